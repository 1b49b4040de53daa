// The patient step of `reference`, one patient per block, in one kernel: U is read and written once.
//
// Compiled on first use, for one rank R and one MODE. Threads share all loops (FOR) and synchronise at SYNC; without CUDA
// the same source is plain C++ with one thread, which tests run on machines without a GPU.
// R × R algebra and sums are double, since C = H UᵀU Hᵀ holds squares; U is float.

#define WARPS (NT / LANES)
#define WARP (TID / LANES)
#define LANE (TID % LANES)
#define INIT 0
#define STEP 1
#define SCORE 2
#define PROJECT 3
#define POLES 32   // of the sum for C^(-1/2), one per lane of a warp
#define HALF (POLES / 2)
#define LD (R | 1)  // odd leading dimension: no bank conflicts between the lanes of a column
#define SQUARE (((R > POLES ? R * LD : R * (POLES + 1)) + 1) / 2 * 2)

#ifdef __CUDACC__
#define DEV static __device__ __forceinline__
// Blocks on one multiprocessor number their threads from different warps on, so that a warp with more work than the
// others is on a different one of the four schedulers in each block.
#define TID ((int)(threadIdx.x + blockIdx.x / MULTIPROCESSORS * 32) % NT)
#define LANES 32
#define SYNC() __syncthreads()
#define SYNC_WARP() __syncwarp()
#define SHARED extern __shared__ __align__(16) double scratch[];
#define BLOCK ((int)blockIdx.x)
#define BLOCKS ((int)gridDim.x)
#define KERNEL extern "C" __global__ void __launch_bounds__(NT, BLOCKS_AT_ONCE)
#define UNROLL _Pragma("unroll")
#define UNROLL_FEW _Pragma("unroll 4")
#if R > 32  // with small ranks, many blocks run at once, and small code matters more
#define UNROLL_LARGE UNROLL_FEW
#else
#define UNROLL_LARGE ROLLED
#endif
#define ROLLED _Pragma("unroll 1")
DEV double sum_warp(double x) {
  for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  return x;
}
DEV double max_warp(double x) {
  for (int far = 16; far > 0; far /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, far));
  return x;
}
DEV float sum_lanes(float x) {
  for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  return x;
}
// Which of 32 consecutive entries of a vector of R are not zero, from the n-th on.
DEV unsigned nonzero(const double *x, int n) { return __ballot_sync(~0u, n + LANE < R && x[n + LANE] != 0); }
DEV int count_bits(unsigned x) { return __popc(x); }
DEV double reciprocal(double x) {  // 1 / x by approximation and two Newton steps, a fraction of the time of a division
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  y = y * fma(-x, y, 2.0);
  return y * fma(-x, y, 2.0);
}
DEV double rsqrt_newton(double x) {
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  y = y * fma(-0.5 * x * y, y, 1.5);
  return y * fma(-0.5 * x * y, y, 1.5);
}
DEV float last_lane(float x) { return __shfl_sync(~0u, x, 31); }
DEV float rsqrt_newton(float x) {
  const float y = rsqrtf(x);
  return y * fmaf(-0.5f * x * y, y, 1.5f);
}
DEV double cos_pi(double x) { return cospi(x); }
DEV void prefetch(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
#define SLOTS 1
#define FOR_COLUMN(s, g, r) if (const int s = 0, g = TID / R, r = TID % R; s < SLOTS && g < GROUPS)
DEV double lane_entry(const double *mine, int i) {  // entry i of a vector distributed over the lanes of a warp
  double x = mine[0];
  UNROLL
  for (int h = 1; h < (R + 31) / 32; h++) x = i / 32 == h ? mine[h] : x;
  return __shfl_sync(~0u, x, i % 32);
}
#else
#include <math.h>
#include <stdlib.h>
#define DEV static inline
#define TID 0
#define LANES 1
#define SYNC()
#define SYNC_WARP()
#define SHARED static double scratch[SCRATCH];
#define BLOCK 0
#define BLOCKS 1
#define KERNEL extern "C" void
#define UNROLL
#define UNROLL_FEW
#define UNROLL_LARGE
#define ROLLED
DEV double sum_warp(double x) { return x; }
DEV double max_warp(double x) { return x; }
DEV float sum_lanes(float x) { return x; }
DEV unsigned nonzero(const double *x, int n) {
  unsigned bits = 0;
  for (int i = n; i < R && i < n + 32; i++) bits |= (unsigned)(x[i] != 0) << (i - n);
  return bits;
}
DEV int count_bits(unsigned x) { return __builtin_popcount(x); }
DEV float last_lane(float x) { return x; }
DEV double reciprocal(double x) { return 1.0 / x; }
DEV double rsqrt_newton(double x) { return 1.0 / sqrt(x); }
DEV float rsqrt_newton(float x) { return 1.0f / sqrtf(x); }
DEV double cos_pi(double x) { return cos(M_PI * x); }
DEV void prefetch(const void *) {}
struct float4 { float x, y, z, w; };
struct int4 { int x, y, z, w; };
struct double2 { double x, y; };
DEV double lane_entry(const double *mine, int i) { return mine[i]; }
DEV void atomicAdd(int *to, int by) { *to += by; }
DEV void atomicAdd(double *to, double by) { *to += by; }
DEV void atomicMax(int *to, int by) { *to = *to > by ? *to : by; }
#define SLOTS R  // the single thread does the work of all
#define FOR_COLUMN(s, g, r) for (int s = 0, g = 0, r = 0; s < SLOTS; s++, r = s)
#endif

#ifdef __CUDACC__
#define FOR(i, n) _Pragma("unroll 1") for (int i = TID; i < (n); i += NT)
#else
#define FOR(i, n) for (int i = TID; i < (n); i += NT)
#endif
#define FOR_LANE(i, first, n) for (int i = (first) + LANE; i < (n); i += LANES)
// A thread owns one column of a square matrix, and keeps ROWS_PER_THREAD rows of it, those of its group g, in registers.
#define GROUPS (NT / R > R ? R : NT > R ? NT / R : 1)
#define ROWS_PER_THREAD (((R + GROUPS - 1) / GROUPS + 1) / 2 * 2)
#define PAD (GROUPS * ROWS_PER_THREAD)
#define PER_LANE ((R + LANES - 1) / LANES)       // entries of a vector that each lane of a warp holds
#define FOR_PER_LANE(h, i) for (int h = 0, i = LANE; h < PER_LANE; h++, i += LANES)
#define QUADS ((R + 3) / 4)
#define LDU (R | 1)  // odd, too
#define MIN_VISITS (R > 24 ? 0 : 128)  // that the scratch has room for, even if fewer blocks run at once
#define COLUMN_SWEEPS 2  // as in `unit_columns`
#define GROUP 8          // phenotypes whose columns are updated together
#define LDG (GROUP + 1)
#define GRAM_ROW ((R + GROUP - 1) / GROUP * GROUP)
#define GRAM (R * GRAM_ROW)
#define SIDE (R > 24 ? 4 : R > 5 ? 2 : 1)    // of the square of entries that a thread computes
#define MASKS ((R + 31) / 32)
#define N_SCORED 6  // numbers per patient that `score` finds

#define SIGMA_FLOOR2 1e-12  // as in `polar`: squares of SIGMA_FLOOR and SIGMA_RTOL
#define SIGMA_RTOL2 1e-14
#define DEPENDENT_RTOL 1e-13  // as in `nnls`
#define TINY 1e-150
#define ROUNDING_RTOL 1e-12

struct Task {
  const float *data;     // the patients' visits as CSR
  const int *indices, *indptr, *offsets;
  const double *norms;   // ‖X_k‖², all but 1, or 0 without a history
  const double *mu, *influence;
  const double *A;       // static features, patients × n_static
  const float *VQ;       // V in groups of four, zero-padded
  const double *V, *VV, *F, *FF, *H, *HT, *HH, *poles;  // FF = λFᵀF; H with clipped singular values, HH = HᵀH of the original
  float *U, *U_prev, *scaled;  // U; the previous U, overwritten by the new one; X V, overwritten by p U diag(w)
  double *W;
  unsigned *passive;     // one bit per score, positive last time: the initial passive set
  double *sums;          // per block: Σ p (w wᵀ)∘UᵀU, Σ pμ (QH)ᵀU, Σ pμ‖U‖² and Σ pτ tr(UᵀLU)
  float *spare;          // per block: a group of columns of a patient with a long history
  double *global_scratch;  // per block: its scratch, if it exceeds shared memory
  double *scored;        // patients × 6: see `score`
  double lam, tau, beta, tol, hh;  // hh = ‖H‖²
  int patients, n_static, max_iter, spare_length;
};

struct Scratch {
  double *S0, *S1, *S2, *S3;                        // square matrices
  double *w, *b, *right, *d, *e, *inv, *unit, *part;  // vectors; right = λFᵀa, unit: of the columns, part: per group
  double *cell;                                     // scalars
  int *passive, *count;
};

#define VECTORS (7 * R + GROUPS * R + 8 + WARPS)
#define INTS ((R + 8) / 2 + 1)
#define TILES ((TILE * (3 * LDU + 1) + 3) / 4 * 2)  // U in double and X V of a tile of visits
#define FEW ((GRAM + MIN_VISITS * (2 * LDU + LDG) + 3) / 4 * 2)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define COURSES LARGER(LARGER(3 * SQUARE, TILES), LARGER(FEW - SQUARE, (MIN_VISITS * LDU + 1) / 2 * 2))
#define BODY (SQUARE + COURSES)
#define SCRATCH ((BODY + VECTORS + INTS + 1) / 2 * 2)
#define SUMS (2 * R * R + 2)
#ifndef MAX_VISITS
// Of a patient whose courses fit into the scratch: U and right-hand sides beside T, and beside Gram matrix and a group.
#define BESIDE_T (COURSES / LDU)
#define BESIDE_GRAM ((2 * BODY - GRAM) / (2 * LDU + LDG))
#define MAX_VISITS (BESIDE_T < BESIDE_GRAM ? BESIDE_T : BESIDE_GRAM)
#endif
#define OWN_VISITS ((MAX_VISITS + NT - 1) / NT)  // of a thread

DEV Scratch make_scratch(double *scratch) {
  Scratch k;
  k.S0 = scratch, k.S1 = k.S0 + SQUARE, k.S2 = k.S1 + SQUARE, k.S3 = k.S2 + SQUARE;
  k.w = scratch + BODY, k.b = k.w + R, k.d = k.b + R, k.e = k.d + R, k.inv = k.e + R, k.unit = k.inv + R;
  k.right = k.unit + R, k.part = k.right + R, k.cell = k.part + GROUPS * R;
  k.passive = (int *)(k.cell + 8 + WARPS), k.count = k.passive + R;
  return k;
}

DEV double sum_block(double x, Scratch k) {
  x = sum_warp(x);
  SYNC();
  if (LANE == 0) k.cell[8 + WARP] = x;
  SYNC();
  double total = 0;
  for (int i = 0; i < WARPS; i++) total += k.cell[8 + i];
  return total;
}

// out(i, j) = Σ_k a[k, i] b[k, j] with a[k, i] at k·lda + i·step.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// On the tensor cores, in double: a warp computes 8 × 16 entries at a time.
DEV void mma(double (&c)[2], double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+d"(c[0]), "+d"(c[1])
      : "d"(a), "d"(b));
}

template <class A, class B, class Out>
DEV void multiply(const A *a, int lda, int step, const B *b, int ldb, int inner, int ni, int nj, Out out) {
  const int TJ = (nj + 15) / 16, deep = LANE % 4, wide = LANE / 4;
  for (int task = WARP; task < (ni + 7) / 8 * TJ; task += WARPS) {
    const int i = task / TJ * 8 + wide, j = task % TJ * 16 + wide;
    const A *p = a + (i < ni ? i : ni - 1) * step;
    const B *q = b + (j < nj ? j : nj - 1), *r = b + (j + 8 < nj ? j + 8 : nj - 1);
    double c[2] = {0, 0}, d[2] = {0, 0};
    UNROLL_FEW
    for (int k = 0; k < inner; k += 4) {
      const bool in = k + deep < inner;
      const int at = in ? k + deep : 0;
      const double x = in ? (double)p[at * lda] : 0;
      mma(c, x, (double)q[at * ldb]);
      mma(d, x, (double)r[at * ldb]);
    }
    UNROLL
    for (int n = 0; n < 2; n++) {
      const int column = task % TJ * 16 + 2 * deep + n;
      if (i < ni && column < nj) out(i, column, c[n]);
      if (i < ni && column + 8 < nj) out(i, column + 8, d[n]);
    }
  }
}
#else
template <class A, class B, class Out>
DEV void multiply(const A *a, int lda, int step, const B *b, int ldb, int inner, int ni, int nj, Out out) {
  const int TI = (ni + SIDE - 1) / SIDE, TJ = (nj + SIDE - 1) / SIDE;
  for (int t = TID; t < TI * TJ; t += NT) {
    const int ti = t / TJ, tj = t % TJ;
    double acc[SIDE][SIDE];
    int row[SIDE], col[SIDE];
    UNROLL
    for (int x = 0; x < SIDE; x++) {
      row[x] = ti + TI * x < ni ? ti + TI * x : ti;
      col[x] = tj + TJ * x < nj ? tj + TJ * x : tj;
      UNROLL
      for (int y = 0; y < SIDE; y++) acc[x][y] = 0;
    }
    for (int k = 0; k < inner; k++) {
      double p[SIDE], q[SIDE];
      UNROLL
      for (int x = 0; x < SIDE; x++) p[x] = (double)a[k * lda + row[x] * step], q[x] = (double)b[k * ldb + col[x]];
      UNROLL
      for (int x = 0; x < SIDE; x++) {
        UNROLL
        for (int y = 0; y < SIDE; y++) acc[x][y] = fma(p[x], q[y], acc[x][y]);
      }
    }
    UNROLL
    for (int x = 0; x < SIDE; x++) {
      UNROLL
      for (int y = 0; y < SIDE; y++)
        if (ti + TI * x < ni && tj + TJ * y < nj) out(ti + TI * x, tj + TJ * y, acc[x][y]);
    }
  }
}

#endif

// B = X V of some visits, four phenotypes per thread.
DEV void read_visits(const Task &t, int first, int rows, float *B, int ldb) {
  FOR(n, rows * QUADS) {
    const int i = n / QUADS, q = n % QUADS;
    const float4 *V = (const float4 *)t.VQ + q;
    float4 sum = {0, 0, 0, 0};
    const int end = t.indptr[first + i + 1];
    UNROLL_FEW
    for (int m = t.indptr[first + i]; m < end; m++) {
      const float x = t.data[m];
      const float4 v = V[(long long)t.indices[m] * QUADS];
      sum.x = fmaf(x, v.x, sum.x), sum.y = fmaf(x, v.y, sum.y);
      sum.z = fmaf(x, v.z, sum.z), sum.w = fmaf(x, v.w, sum.w);
    }
    float *to = B + i * ldb + 4 * q;
    to[0] = sum.x;
    if (4 * q + 1 < R) to[1] = sum.y;
    if (4 * q + 2 < R) to[2] = sum.z;
    if (4 * q + 3 < R) to[3] = sum.w;
  }
}

// One entry of B in double.
DEV double visit(const Task &t, int i, int r) {
  double total = 0;
  for (int n = t.indptr[i]; n < t.indptr[i + 1]; n++)
    total = fma((double)t.data[n], t.V[(long long)t.indices[n] * R + r], total);
  return total;
}

DEV float extrapolate(float U, float U_prev, float beta) {
  float u = fmaf(beta, U - U_prev, U);
  return u > 0.0f ? u : 0.0f;
}

// The factors that scale the extrapolated columns to unit norm, into `unit`; zero columns stay.
DEV void unit_factors(int visits, const float *U, const float *U_prev, float beta, Scratch k) {
  FOR_COLUMN(s, g, r) {
    double total = 0;
    UNROLL_LARGE
    for (int i = g; i < visits; i += GROUPS) {
      const double u = extrapolate(U[i * R + r], U_prev[i * R + r], beta);
      total = fma(u, u, total);
    }
    k.part[g * R + r] = total;
  }
  SYNC();
  FOR(r, R) {
    double total = 0;
    for (int g = 0; g < GROUPS; g++) total += k.part[g * R + r];
    k.unit[r] = total > 0 ? 1 / sqrt(total) : 1;
  }
  SYNC();
}

// Entry n of U to start from. It is rounded before G is computed: where C is singular, its inverse root magnifies differences.
DEV float start_U(const float *U, const float *U_prev, double beta, int n, Scratch k) {
  return beta > 0 ? (float)k.unit[n % R] * extrapolate(U[n], U_prev[n], (float)beta) : U[n];
}

DEV void init_U(const Task &t, int first, int visits, float *U, Scratch k) {
  FOR(n, visits * R) {
    double b = visit(t, first + n / R, n % R);
    U[n] = b > 0 ? (float)b : 0.0f;
  }
  SYNC();
  FOR(r, R) {
    double norm_b = 0, norm_e = 0, norm = 0;
    for (int i = 0; i < visits; i++) {
      double e = 1 + cos_pi(r * (i + 0.5) / visits), b = U[i * R + r];
      norm_b += b * b, norm_e += e * e;
    }
    norm_b = sqrt(norm_b), norm_e = sqrt(norm_e);
    for (int pass = 0; pass < 2; pass++) {
      double total = 0;
      for (int i = 0; i < visits; i++) {
        double e = 1 + cos_pi(r * (i + 0.5) / visits);
        double u = pass ? (double)U[i * R + r] / norm
                        : 0.9 * (norm_b > 0 ? U[i * R + r] / norm_b : 0.0) +
                              0.1 * (norm_e > 1e-6 ? e / norm_e : 1 / sqrt((double)visits));
        U[i * R + r] = (float)u;
        total += u * u;
      }
      norm = sqrt(total);
    }
  }
}

// G = UᵀU into S0 and colsum(U∘B) into b, from U extrapolated by `beta`, with unit columns; B is kept in `scaled`.
DEV void load_patient(const Task &t, int first, int visits, const float *U, const float *U_prev, double beta,
                      Scratch k) {
  double *tile = k.S1, *G = k.S0;
  float *B = (float *)(tile + TILE * R);
  if (beta > 0) unit_factors(visits, U, U_prev, (float)beta, k);
  FOR(n, R * R) G[n / R * LD + n % R] = 0;
  FOR(n, GROUPS * R) k.part[n] = 0;
  SYNC();
  for (int at = 0; at < visits; at += TILE) {
    const int rows = visits - at < TILE ? visits - at : TILE;
    UNROLL_FEW
    for (int n = TID; n < rows * R; n += NT) tile[n] = start_U(U + at * R, U_prev + at * R, beta, n, k);
    if (MODE != SCORE) read_visits(t, first + at, rows, B, LDU);
    SYNC();
    FOR_COLUMN(s, g, r) {
      double total = k.part[g * R + r];
      for (int i = g; i < rows; i += GROUPS) {
        if (MODE == SCORE) {
          total = fma(tile[i * R + r], visit(t, first + at + i, r), total);
        } else {
          const float b = B[i * LDU + r];
          total = fma(tile[i * R + r], (double)b, total);
          t.scaled[(long long)(first + at + i) * R + r] = b;
        }
      }
      k.part[g * R + r] = total;
    }
    multiply(tile, R, 1, tile, R, rows, R, R, [=](int i, int j, double x) { G[i * LD + j] += x; });
    SYNC();
  }
  FOR(r, R) {
    double total = 0;
    for (int g = 0; g < GROUPS; g++) total += k.part[g * R + r];
    k.b[r] = total;
  }
  SYNC();
}

// w on the passive set, by elimination; dependent columns are left out, which does not change the fit.
// The matrix is in registers; row c is published in S1 when it becomes the pivot row.
DEV void solve_passive(const double *gram, const double *b, Scratch k) {
  double *A = k.S1;  // rows of length PAD, extends into S2
  double own[SLOTS][ROWS_PER_THREAD], y[PER_LANE];
  UNROLL
  FOR_PER_LANE(h, i) y[h] = i < R && k.passive[i] ? b[i] : 0;
  FOR_COLUMN(s, g, j) {
    const bool in_set = k.passive[j];
    UNROLL
    for (int e = 0; e < ROWS_PER_THREAD; e++) {
      const int i = g * ROWS_PER_THREAD + e;
      own[s][e] = in_set && i < R && k.passive[i] ? gram[i * LD + j] : 0;
    }
  }
  for (int c = 0; c < R; c++) {
    if (!k.passive[c]) continue;
    FOR_COLUMN(s, g, j) if (j == c) {
      UNROLL
      for (int e = 0; e < ROWS_PER_THREAD; e++) A[c * PAD + g * ROWS_PER_THREAD + e] = own[s][e];
    }
    SYNC();
    const double pivot = A[c * PAD + c], least = DEPENDENT_RTOL * gram[c * LD + c];
    const double inverse = pivot > (least > TINY ? least : TINY) ? reciprocal(pivot) : 0;
    if (TID == 0) k.inv[c] = inverse;
    if (WARP == 0) {  // the right-hand side, held by the warp that back-substitutes
      const double f = -inverse * lane_entry(y, c);
      UNROLL
      FOR_PER_LANE(h, i) if (i > c && i < R) y[h] = fma(f, A[c * PAD + i], y[h]);
    }
    FOR_COLUMN(s, g, j) if (g * ROWS_PER_THREAD + ROWS_PER_THREAD - 1 > c) {
      const double f = -inverse * A[c * PAD + j];
      const double2 *row = (const double2 *)(A + c * PAD + g * ROWS_PER_THREAD);
      UNROLL
      for (int e = 0; e < ROWS_PER_THREAD; e += 2) {
        const double2 x = row[e / 2];
        own[s][e] = fma(f, x.x, own[s][e]), own[s][e + 1] = fma(f, x.y, own[s][e + 1]);
      }
    }
  }
  SYNC();
  if (WARP == 0) {
    for (int c = R - 1; c >= 0; c--) {
      const double x = k.passive[c] ? k.inv[c] * lane_entry(y, c) : 0;
      if (LANE == 0) k.w[c] = x;
      if (x != 0) {
        UNROLL
        FOR_PER_LANE(h, i) if (i < c && k.passive[i]) y[h] = fma(-A[i * PAD + c], x, y[h]);
      }
    }
  }
  SYNC();
}

// Marks in `inv` the coordinates in the wrong set, and the last of them in count[1]; returns their number.
DEV int count_wrong(const double *gram, const double *b, Scratch k, double *noise) {
  double *value = k.S1, *size = value + GROUPS * R;  // of the gradients, one part per group
  FOR_COLUMN(s, g, r) {
    double sum = 0, terms = 0;
    for (int i = g * ROWS_PER_THREAD; i < (g + 1) * ROWS_PER_THREAD && i < R; i++) {
      const double term = gram[i * LD + r] * k.w[i];
      sum += term, terms += fabs(term);
    }
    value[g * R + r] = sum, size[g * R + r] = terms;
  }
  if (TID == 0) k.count[0] = 0, k.count[1] = -1;
  double top = 0;
  FOR_LANE(r, 0, R) top = fmax(top, k.w[r] * k.w[r] * gram[r * LD + r]);
  *noise = ROUNDING_RTOL * ROUNDING_RTOL * max_warp(top);
  SYNC();
  FOR(r, R) {
    bool wrong = false;
    if (k.passive[r]) {
      wrong = k.w[r] < 0 && k.w[r] * k.w[r] * gram[r * LD + r] > *noise;
    } else if (gram[r * LD + r] > TINY) {
      double sum = -b[r], terms = fabs(b[r]);
      for (int g = 0; g < GROUPS; g++) sum += value[g * R + r], terms += size[g * R + r];
      wrong = sum < -ROUNDING_RTOL * terms;
    }
    k.inv[r] = wrong;
    if (wrong) atomicAdd(&k.count[0], 1), atomicMax(&k.count[1], r);
  }
  SYNC();
  return k.count[0];
}

// w: block principal pivoting from the passive set of the last step; the Gram matrix is left in S3.
DEV void solve_scores(const Task &t, int patient, Scratch k) {
  double *gram = k.S3, noise = 0;
  FOR(n, R * R) {
    int i = n / R, j = n % R;
    gram[i * LD + j] = fma(k.S0[i * LD + j], t.VV[n], t.FF[n]);
  }
  FOR(r, R) {
    const double *a = t.A + (long long)patient * t.n_static;
    double right = 0;
    UNROLL_FEW
    for (int p = 0; p < t.n_static; p++) right = fma(a[p], t.F[p * R + r], right);
    k.right[r] = t.lam * right;
    k.b[r] += k.right[r];
    k.passive[r] = t.passive[(long long)patient * MASKS + r / 32] >> (r % 32) & 1;
  }
  SYNC();
  int min_wrong = R + 1, patience = 3;
  bool done = false;
  for (int round = 0; round < 5 * R + 20 && !done; round++) {
    solve_passive(gram, k.b, k);
    const int wrong = count_wrong(gram, k.b, k, &noise), last = k.count[1];
    done = wrong == 0;
    patience = wrong < min_wrong ? 3 : patience - 1;
    min_wrong = wrong < min_wrong ? wrong : min_wrong;
    FOR(r, R)
      if (!done && k.inv[r] != 0 && (patience >= 0 || r == last)) k.passive[r] = !k.passive[r];
    SYNC();
  }
  if (!done) {  // pivoting cycled: coordinate descent is monotone
    if (TID == 0) {
      ROLLED
      for (int r = 0; r < R; r++) k.w[r] = k.w[r] > 0 ? k.w[r] : 0;
      ROLLED
      for (int sweep = 0; sweep < 500; sweep++)
        ROLLED
        for (int r = 0; r < R; r++) {
          double gradient = -k.b[r];
          ROLLED
          for (int s = 0; s < R; s++) gradient = fma(gram[s * LD + r], k.w[s], gradient);
          double to = k.w[r] - gradient / gram[r * LD + r];
          if (gram[r * LD + r] > TINY) k.w[r] = to > 0 ? to : 0;
        }
    }
    SYNC();
  }
  FOR(r, R) {  // residues of cancellation are set to zero
    double x = k.w[r];
    if (!(x > 0 && x * x * gram[r * LD + r] > noise) && x == x) k.w[r] = 0;
  }
  SYNC();
  UNROLL
  for (int m = 0; m < MASKS; m++) {
    const unsigned mask = nonzero(k.w, 32 * m);
    if (TID == 0) t.passive[(long long)patient * MASKS + m] = mask;
  }
}

// While columns are updated, phenotypes with a score come first: `b` gets the phenotype of each column, `passive` the column
// of each phenotype, and count[2] the number of scores.
DEV void order_phenotypes(Scratch k) {
  unsigned mask[MASKS];
  int scored = 0;
  UNROLL
  for (int m = 0; m < MASKS; m++) mask[m] = nonzero(k.w, 32 * m), scored += count_bits(mask[m]);
  FOR(r, R) {
    int before = 0;
    UNROLL
    for (int m = 0; m < MASKS; m++)
      before += count_bits(m < r / 32 ? mask[m] : m == r / 32 ? mask[m] & ((1u << r % 32) - 1) : 0);
    const int column = k.w[r] != 0 ? before : scored + r - before;
    k.passive[r] = column, ((int *)k.b)[column] = r;
  }
  if (TID == 0) k.count[2] = scored;
  SYNC();
}

// S1 = P tridiagonal Pᵀ by reflections I − τvvᵀ, and S2 = Pᵀ S2 with them; both in registers meanwhile.
DEV void to_tridiagonal(Scratch k) {
  double *row = k.S1, *v = k.S3 + WARP * 2 * PAD, *q = v + PAD, *p = k.S0, *z = p + GROUPS * R;
  double a[SLOTS][ROWS_PER_THREAD], x[SLOTS][ROWS_PER_THREAD];
  FOR_COLUMN(s, g, j) {
    UNROLL
    for (int e = 0; e < ROWS_PER_THREAD; e++) {
      const int i = g * ROWS_PER_THREAD + e;
      a[s][e] = i < R ? k.S1[i * LD + j] : 0, x[s][e] = i < R ? k.S2[i * LD + j] : 0;
    }
  }
  FOR_LANE(i, R, PAD) v[i] = q[i] = 0;
  SYNC();
  for (int c = 0; c < R - 2; c++) {
    FOR_COLUMN(s, g, j) if (j == c) {
      UNROLL
      for (int e = 0; e < ROWS_PER_THREAD; e++) row[g * ROWS_PER_THREAD + e] = a[s][e];
    }
    SYNC();
    double mine[PER_LANE], rest = 0;
    UNROLL
    FOR_PER_LANE(h, i) {
      mine[h] = i > c && i < R ? row[i] : 0;
      if (i > c + 1) rest = fma(mine[h], mine[h], rest);
    }
    rest = sum_warp(rest);
    const double head = row[c + 1], size = fma(head, head, rest);
    const bool flat = !(rest > 1e-290);
    const double alpha = flat ? head : -copysign(size * rsqrt_newton(size), head);
    const double v0 = head - alpha, tau = flat ? 0 : -reciprocal(alpha * v0);
    if (TID == 0) k.d[c] = row[c], k.e[c] = alpha;
    UNROLL
    FOR_PER_LANE(h, i) {
      if (i == c + 1) mine[h] = v0;
      if (i < R) v[i] = mine[h];
    }
    SYNC_WARP();
    FOR_COLUMN(s, g, j) {
      double along = 0, along2 = 0, across = 0, across2 = 0;
      const double2 *at = (const double2 *)(v + g * ROWS_PER_THREAD);
      if (g * ROWS_PER_THREAD + ROWS_PER_THREAD - 1 > c) {
        UNROLL
        for (int e = 0; e < ROWS_PER_THREAD; e += 2) {
          const double2 w = at[e / 2];
          along = fma(a[s][e], w.x, along), across = fma(x[s][e], w.x, across);
          along2 = fma(a[s][e + 1], w.y, along2), across2 = fma(x[s][e + 1], w.y, across2);
        }
      }
      p[g * R + j] = along + along2, z[g * R + j] = across + across2;
    }
    SYNC();
    double dot = 0, turned[PER_LANE];
    UNROLL
    FOR_PER_LANE(h, i) {
      double total = 0;
      if (i > c && i < R)
        for (int g = 0; g < GROUPS; g++) total += p[g * R + i];
      turned[h] = total * tau;
      dot = fma(mine[h], turned[h], dot);
    }
    dot = -0.5 * tau * sum_warp(dot);
    UNROLL
    FOR_PER_LANE(h, i) if (i < R) q[i] = fma(dot, mine[h], turned[h]);
    SYNC_WARP();
    FOR_COLUMN(s, g, j) if (g * ROWS_PER_THREAD + ROWS_PER_THREAD - 1 > c) {
      const double vj = -v[j], qj = -q[j];
      double zj = 0;
      for (int h = 0; h < GROUPS; h++) zj += z[h * R + j];
      zj *= -tau;
      const double2 *at = (const double2 *)(v + g * ROWS_PER_THREAD), *by = (const double2 *)(q + g * ROWS_PER_THREAD);
      UNROLL
      for (int e = 0; e < ROWS_PER_THREAD; e += 2) {
        const double2 w = at[e / 2], u = by[e / 2];
        a[s][e] = fma(w.x, qj, fma(u.x, vj, a[s][e])), x[s][e] = fma(w.x, zj, x[s][e]);
        a[s][e + 1] = fma(w.y, qj, fma(u.y, vj, a[s][e + 1])), x[s][e + 1] = fma(w.y, zj, x[s][e + 1]);
      }
    }
  }
  FOR_COLUMN(s, g, j) {
    UNROLL
    for (int e = 0; e < ROWS_PER_THREAD; e++) {
      const int i = g * ROWS_PER_THREAD + e;
      if (i < R) k.S2[i * LD + j] = x[s][e];
      if (i == j && i >= R - 2) k.d[i] = a[s][e];
      if (i == R - 2 && j == R - 1) k.e[i] = a[s][e];
    }
  }
  SYNC();
}

// For every pole s: the diagonal of w (T + s)⁻¹, and the ratios of each entry to the one above it; see `inverse_sqrt`.
DEV void resolvents(const Task &t, Scratch k) {
  double *ratio = k.S0, *diagonal = k.S3;
  double eig_max = 0;
  FOR_LANE(i, 0, R) {
    double radius = (i > 0 ? fabs(k.e[i - 1]) : 0) + (i < R - 1 ? fabs(k.e[i]) : 0);
    eig_max = fmax(eig_max, k.d[i] + radius);
  }
  eig_max = max_warp(eig_max);
  // Added to C: the lower bound of its eigenvalues, with a margin for rounding.
  const double floor = fmax(SIGMA_FLOOR2, SIGMA_RTOL2 * eig_max);
  eig_max += floor;
  if (LANE == 0) k.cell[0] = floor;
  FOR_LANE(p, 0, POLES) {
    const double shift = fma(eig_max, t.poles[p], floor), weight = sqrt(eig_max) * t.poles[POLES + p];
    double inverse = reciprocal(k.d[R - 1] + shift);
    for (int i = R - 2; i >= 0; i--) {
      const double r = -k.e[i] * inverse;
      ratio[(i + 1) * POLES + p] = r;
      diagonal[(i + 1) * POLES + p] = inverse;
      inverse = reciprocal(fma(k.e[i], r, k.d[i] + shift));
    }
    double entry = weight * inverse;
    diagonal[p] = entry;
    ratio[p] = 0;
    for (int i = 1; i < R; i++) {
      const double r = ratio[i * POLES + p];
      entry = fma(r * r, entry, weight * diagonal[i * POLES + p]);
      diagonal[i * POLES + p] = entry;
    }
  }
}

// S1 = Σ_p w_p (T + s_p)⁻¹ from its ratios: half of the poles below the diagonal, the other half above, then their sum.
DEV void sum_resolvents(Scratch k) {
  double *F = k.S1, *ratio = k.S0, *diagonal = k.S3;
  const int wide = (R + 31) / 32 * 32;
  for (int t = TID; t < 2 * wide; t += NT) {
    const int half = t / wide, i = t % wide, p0 = half * HALF;
    double c[HALF];
    UNROLL
    for (int p = 0; p < HALF; p++) c[p] = 0;
    for (int j = i / 32 * 32; j < R; j++) {
      double total[4] = {0, 0, 0, 0};
      UNROLL
      for (int p = 0; p < HALF; p++) c[p] *= ratio[j * POLES + p0 + p];
      if (j == i) {
        UNROLL
        for (int p = 0; p < HALF; p++) c[p] = diagonal[j * POLES + p0 + p];
      }
      UNROLL
      for (int p = 0; p < HALF; p++) total[p % 4] += c[p];
      const double sum = (total[0] + total[1]) + (total[2] + total[3]);
      if (i < R && j == i) (half ? k.inv[i] : F[i * LD + i]) = sum;
      if (i < R && j > i) F[half ? i * LD + j : j * LD + i] = sum;
    }
  }
  SYNC();
  FOR(n, R * R) {
    const int j = n / R, i = n % R;
    if (j == i) F[i * LD + i] += k.inv[i];
    if (j > i) F[j * LD + i] = F[i * LD + j] = F[j * LD + i] + F[i * LD + j];
  }
  SYNC();
}

// ‖U Hᵀ‖_* = tr(C f) from f = C^(-1/2) in S1 and C's tridiagonal form, after a Newton step, which squares f's error.
DEV double nuclear_norm(Scratch k) {
  double *F = k.S1, *N = k.S2, *NF = k.S3, total = 0;
  FOR(n, R * R) {  // N = C f
    const int i = n / R, j = n % R;
    double x = k.d[i] * F[i * LD + j];
    if (i > 0) x = fma(k.e[i - 1], F[(i - 1) * LD + j], x);
    if (i < R - 1) x = fma(k.e[i], F[(i + 1) * LD + j], x);
    N[i * LD + j] = x;
    if (i == j) total += 1.5 * x;
  }
  SYNC();
  multiply(N, LD, 1, F, LD, R, R, R, [=](int i, int j, double x) { NF[i * LD + j] = x; });
  SYNC();
  const double floor = k.cell[0];
  FOR(n, R * R) {
    const int m = n / R * LD + n % R;
    total -= 0.5 * fma(floor, F[m], N[m]) * NF[m];
  }
  return sum_block(total, k);
}

// S1 = f = C^(-1/2), bounded, with C = H G Hᵀ from G in S0, in the basis in which C is tridiagonal; S2 = H in that basis.
DEV void inverse_sqrt(const Task &t, Scratch k) {
  double *S1 = k.S1, *S3 = k.S3;
  SYNC();
  FOR(n, R * R) k.S2[n / R * LD + n % R] = t.HT[n];
  SYNC();
  multiply(k.S0, LD, 1, k.S2, LD, R, R, R, [=](int i, int j, double x) { S3[i * LD + j] = x; });
  SYNC();
  multiply(k.S2, LD, 1, k.S3, LD, R, R, R, [=](int i, int j, double x) { S1[i * LD + j] = x; });
  SYNC();
  FOR(n, R * R) k.S2[n / R * LD + n % R] = t.H[n];
  SYNC();
  to_tridiagonal(k);
  if (WARP == 0) resolvents(t, k);
  SYNC();
  sum_resolvents(k);
}

// S0 = T = Hᵀ C^(-1/2) H, so that Q H = U T, in the order of `order_phenotypes`.
DEV void polar_target(const Task &t, Scratch k) {
  double *S0 = k.S0, *S3 = k.S3;
  const int *column = k.passive;
  inverse_sqrt(t, k);
  multiply(k.S1, LD, 1, k.S2, LD, R, R, R, [=](int i, int j, double x) { S3[i * LD + j] = x; });
  SYNC();
  multiply(k.S2, LD, 1, k.S3, LD, R, R, R,
           [=](int i, int j, double x) { S0[column[i] * LD + column[j]] = x; });
  SYNC();
}

// The courses of a patient and the right-hand sides w∘XV + μQH, while columns are updated: row by row in the scratch, or,
// with TILED, in global memory, where each tile of visits is transposed. Columns are in the order of `order_phenotypes`.
template <bool TILED>
struct Courses {
  float *U, *right;
  float *group;  // c of some columns, visit by visit
  int visits, scored;
  float tau, bound;  // bound: τρ, where ρ is twice the largest diagonal entry of L, which bounds its eigenvalues
};

template <bool TILED>
DEV int place(const Courses<TILED> &c, int i, int r) {
  if (!TILED) return i * LDU + r;
  const int at = i / TILE * TILE, rows = c.visits - at < TILE ? c.visits - at : TILE;
  return at * R + r * rows + i - at;
}

// The row of τ(ρI − L) of a visit.
struct Smooth {
  float stay, before, after;
};

template <bool TILED>
DEV Smooth smooth_row(const Courses<TILED> &c, int i) {
  const float before = i > 0 ? c.tau : 0, after = i + 1 < c.visits ? c.tau : 0;
  return {c.bound - before - after, before, after};
}

DEV float smooth(const Smooth &by, float below, float u, float above, float x) {
  return fmaf(by.stay, u, fmaf(by.before, below, fmaf(by.after, above, x)));
}

DEV float smoothness_bound(const Task &t, int visits) {
  return visits < 2 ? 0 : (float)(t.tau * (visits > 2 ? 4 : 2));
}

// −(w wᵀ)∘VᵀV of the phenotypes with a score, with a zero diagonal, and zero columns up to the end of a group.
DEV void scored_gram(const Task &t, int scored, float *gram, Scratch k) {
  const int *order = (int *)k.b;
  FOR(n, scored * GRAM_ROW) {
    const int a = n / GRAM_ROW, b = n % GRAM_ROW, r = order[a], s = order[b < scored ? b : a];
    gram[n] = r == s ? 0 : -(float)(k.w[r] * k.w[s] * t.VV[r * R + s]);
  }
  SYNC();
}

// c of a group of columns with a score, from the a-th on, without smoothness.
template <bool TILED>
DEV void start_group(const Courses<TILED> &c, int a, const float *gram) {
  const int most = TILED ? TILE : c.visits;
  SYNC();
  for (int at = 0; at < c.visits; at += most) {
    const int rows = c.visits - at < most ? c.visits - at : most;
    multiply(c.U + (TILED ? at * R : 0), TILED ? rows : 1, TILED ? 1 : LDU, gram + a, GRAM_ROW, c.scored, rows, GROUP,
             [=](int i, int q, double x) {
               if (a + q < R) c.group[(at + i) * LDG + q] = c.right[place(c, at + i, a + q)] + (float)x;
             });
  }
  SYNC();
}

// The factor that scales a column to unit norm, or 0; of each thread, `squares` is part of the squared norm.
DEV float unit_factor(float squares, int turn, Scratch k) {
  squares = sum_lanes(squares);
  float *partial = (float *)(k.cell + 8) + turn % 2 * WARPS, total = 0;
  if (LANE == 0) partial[WARP] = squares;
  SYNC();
  UNROLL
  for (int warp = 0; warp < WARPS; warp++) total += partial[warp];
  return total != 0 ? rsqrt_newton(total) : 0;
}

// Two sweeps over the columns of phenotypes that have a score; see `unit_columns`. A thread keeps c of its visits and of a
// group of columns, and corrects it after each of them.
DEV void update_scored(const Task &t, const Courses<false> &c, const float *gram, Scratch k) {
  Smooth by[OWN_VISITS];
  float *u[OWN_VISITS], *below[OWN_VISITS], *above[OWN_VISITS], x[OWN_VISITS][GROUP];
  UNROLL
  for (int e = 0; e < OWN_VISITS; e++) {
    const int own = TID + e * NT, i = own < c.visits ? own : c.visits - 1;
    by[e] = own < c.visits ? smooth_row(c, i) : Smooth{0, 0, 0};
    u[e] = c.U + i * LDU, below[e] = i > 0 ? u[e] - LDU : u[e], above[e] = i + 1 < c.visits ? u[e] + LDU : u[e];
  }
  ROLLED
  for (int n = 0; n < COLUMN_SWEEPS * GRAM_ROW; n += GROUP) {
    const int a = n % GRAM_ROW;
    if (a >= c.scored) continue;
    start_group(c, a, gram);
    UNROLL
    for (int e = 0; e < OWN_VISITS; e++) {
      UNROLL
      for (int q = 0; q < GROUP; q++) x[e][q] = TID + e * NT < c.visits ? c.group[(TID + e * NT) * LDG + q] : 0;
    }
    UNROLL
    for (int q = 0; q < GROUP; q++) {
      if (a + q >= c.scored) break;
      float squares = 0, fresh[OWN_VISITS];
      UNROLL
      for (int e = 0; e < OWN_VISITS; e++) {
        fresh[e] = fmaxf(smooth(by[e], below[e][a + q], u[e][a + q], above[e][a + q], x[e][q]), 0);
        squares = fmaf(fresh[e], fresh[e], squares);
      }
      const float f = unit_factor(squares, q, k);
      const float4 *g = (const float4 *)(gram + (a + q) * GRAM_ROW + a);
      const float4 g0 = g[0], g1 = g[1];
      const float row[GROUP] = {g0.x, g0.y, g0.z, g0.w, g1.x, g1.y, g1.z, g1.w};
      UNROLL
      for (int e = 0; e < OWN_VISITS; e++) {
        const bool inside = TID + e * NT < c.visits;
        const float old = u[e][a + q], to = f != 0 && inside ? f * fresh[e] : old;
        if (inside) u[e][a + q] = to;
        UNROLL
        for (int p = q + 1; p < GROUP; p++) x[e][p] = fmaf(row[p], to - old, x[e][p]);
      }
    }
  }
}

// The same with any number of visits per thread: c is kept in `group`, and replaced by the column's change.
template <bool TILED>
DEV void update_scored_rolled(const Task &t, const Courses<TILED> &c, const float *gram, Scratch k) {
  ROLLED
  for (int n = 0; n < COLUMN_SWEEPS * GRAM_ROW; n++) {
    const int a = n % GRAM_ROW, q = a % GROUP;
    if (a >= c.scored) continue;
    if (q == 0) start_group(c, a, gram);
    float squares = 0;
    FOR(i, c.visits) {
      float *group = c.group + i * LDG, x = group[q];
      ROLLED
      for (int p = 0; p < q; p++) x = fmaf(gram[(a - q + p) * GRAM_ROW + a], group[p], x);
      const float below = c.U[place(c, i > 0 ? i - 1 : 0, a)], above = c.U[place(c, i + 1 < c.visits ? i + 1 : i, a)];
      x = fmaxf(smooth(smooth_row(c, i), below, c.U[place(c, i, a)], above, x), 0);
      group[q] = x;
      squares = fmaf(x, x, squares);
    }
    const float f = unit_factor(squares, q, k);
    FOR(i, c.visits) {
      float &u = c.U[place(c, i, a)], &x = c.group[i * LDG + q];
      const float to = f != 0 ? f * x : u;
      x = to - u, u = to;
    }
  }
}

// The other columns do not depend on each other, and are updated once: each warp updates columns of its own.
template <bool TILED>
DEV void update_unscored(const Task &t, const Courses<TILED> &c) {
  ROLLED
  for (int a = c.scored + WARP; a < R; a += WARPS) {
    float f = 0;
    ROLLED
    for (int pass = 0; pass < 2; pass++) {  // the norm of a column, then the column
      float squares = 0, old = 0;
      ROLLED
      for (int at = 0; at < c.visits; at += LANES) {
        const int i = at + LANE < c.visits ? at + LANE : c.visits - 1;
        const float u = c.U[place(c, i, a)], above = c.U[place(c, i + 1 < c.visits ? i + 1 : i, a)];
        const float below = LANE == 0 ? old : c.U[place(c, i > 0 ? i - 1 : 0, a)];
        const float x = fmaxf(smooth(smooth_row(c, i), below, u, above, c.right[place(c, i, a)]), 0);
        old = last_lane(u);  // the next visits' neighbour, overwritten here
        SYNC_WARP();
        if (at + LANE < c.visits) {
          squares = fmaf(x, x, squares);
          if (pass == 1 && f != 0) c.U[place(c, i, a)] = f * x;
        }
      }
      SYNC_WARP();
      if (pass == 0) {
        const float total = sum_lanes(squares);
        f = total != 0 ? rsqrt_newton(total) : 0;
      }
    }
  }
}

template <bool TILED>
DEV void update_columns(const Task &t, const Courses<TILED> c, Scratch k) {
  scored_gram(t, c.scored, (float *)k.S0, k);
  if constexpr (TILED || (OWN_VISITS > 1 && LANES > 1))
    update_scored_rolled(t, c, (float *)k.S0, k);
  else
    update_scored(t, c, (float *)k.S0, k);
  update_unscored(t, c);
  SYNC();
}

// U to start from and right-hand sides of some visits, from T in S0.
DEV void start_visits(const Task &t, int first, int at, int rows, double mu, const float *U_now, const float *U_prev,
                      double beta, float *U, float *right, Scratch k) {
  const float *B = t.scaled + (long long)(first + at) * R;
  UNROLL_LARGE
  for (int n = TID; n < rows * R; n += NT) {
    const int m = n / R * LDU + k.passive[n % R];
    U[m] = start_U(U_now + at * R, U_prev + at * R, beta, n, k);
    right[m] = (float)k.w[n % R] * B[n];
  }
  SYNC();
  if (mu > 0)
    multiply(U, 1, LDU, k.S0, LD, R, rows, R, [=](int i, int j, double x) { right[i * LDU + j] += (float)(mu * x); });
  SYNC();
}

// Takes w∘B from the right-hand sides of some visits, which leaves μQH.
DEV void subtract_visits(const float *B, int rows, float *right, Scratch k) {
  for (int n = TID; n < rows * R; n += 2 * NT) {
    float b[2];  // loads before stores, so that none waits for another
    UNROLL
    for (int e = 0; e < 2; e++) b[e] = n + e * NT < rows * R ? B[n + e * NT] : 0;
    UNROLL
    for (int e = 0; e < 2; e++)
      if (const int r = (n + e * NT) % R; n + e * NT < rows * R) {
        float &x = right[(n + e * NT) / R * LDU + k.passive[r]];
        x = fmaf(-(float)k.w[r], b[e], x);
      }
  }
}

// Some visits' new U to `to`; their addends to this block's sums and to `totals`, or, without `totals`, to the returned loss.
// `following` is U of the visit after the last of them; `right` is μQH where there are `totals`.
DEV double finish_visits(const Task &t, int patient, int at, int rows, const float *U, const float *right,
                         const float *following, float *to, double *totals, Scratch k) {
  double *sums = t.sums + (long long)BLOCK * SUMS, loss = 0, rough = 0, size = 0;
  const double *w = k.w, *VV = t.VV, mu = t.mu[patient], influence = t.influence[patient];
  const int first = t.offsets[patient], visits = t.offsets[patient + 1] - first, *order = (int *)k.b;
  FOR(n, rows * R) {
    const int i = n / R, r = n % R, m = i * LDU + k.passive[r];
    const float u = U[m];
    to[at * R + n] = u;
    size = fma((double)u, (double)u, size);
    if (t.tau > 0 && at + i + 1 < visits) {
      const double change = (double)(i + 1 < rows ? U[m + LDU] : following[k.passive[r]]) - u;
      rough = fma(change, change, rough);
    }
    if (totals)
      t.scaled[(long long)(first + at) * R + n] = u * (float)(influence * w[r]);
    else
      loss -= 2.0 * u * right[m];
  }
  const int scored = k.count[2];
  if (!totals) {
    double *total = &loss;
    multiply(U, LDU, 1, U, LDU, rows, scored, scored, [=](int i, int j, double x) {
      *total = fma(w[order[i]] * w[order[j]] * VV[order[i] * R + order[j]], x, *total);
    });
    return loss + mu * size + t.tau * rough;
  }
  totals[0] = fma(influence * mu, size, totals[0]), totals[1] = fma(influence * t.tau, rough, totals[1]);
  // Atomic only to avoid waiting for the load: no other block adds to these.
  multiply(U, LDU, 1, U, LDU, rows, scored, scored, [=](int i, int j, double x) {
    atomicAdd(sums + order[i] * R + order[j], influence * w[order[i]] * w[order[j]] * x);
  });
  if (mu > 0)
    multiply(right, LDU, 1, U, LDU, rows, R, R,
             [=](int i, int j, double x) { atomicAdd(sums + R * R + order[i] * R + order[j], influence * x); });
  return 0;
}

// The second pass over the visits, from T in S0: new U to `to`; addends to this block's sums and `totals`, or, without
// `totals`, twice the patient's loss, which is returned. With too many visits for the scratch, it is a tile at a time, and
// `to` and `scaled` hold courses and right-hand sides meanwhile.
DEV double update_U(const Task &t, int patient, const float *U_now, float *to, double beta, double *totals, Scratch k) {
  const int first = t.offsets[patient], visits = t.offsets[patient + 1] - first, scored = k.count[2];
  const bool tiled = visits > MAX_VISITS;
  const int most = tiled ? TILE : MAX_VISITS;
  const double mu = t.mu[patient];
  float *gram = (float *)k.S0, *U = gram + 2 * (BODY - most * LDU), *right = U + most * LDU, *following = (float *)k.d;
  float *scaled = t.scaled + (long long)first * R, *spare = t.spare + (long long)BLOCK * t.spare_length;
  const float tau = (float)t.tau, bound = smoothness_bound(t, visits);
  ROLLED
  for (int at = 0; at < visits; at += most) {
    const int rows = visits - at < most ? visits - at : most;
    start_visits(t, first, at, rows, mu, U_now, to, beta, U, right, k);
    if (!tiled) continue;
    FOR(n, rows * R) {
      const int m = n % rows * LDU + n / rows;
      to[at * R + n] = U[m], scaled[at * R + n] = right[m];
    }
    SYNC();
  }
  float *group = !tiled || visits * LDG <= 2 * BODY - GRAM ? gram + GRAM : spare;
  const Courses<true> tiles = {to, scaled, group, visits, scored, tau, bound};
  if (tiled)
    update_columns(t, tiles, k);
  else
    update_columns(t, Courses<false>{U, right, gram + GRAM, visits, scored, tau, bound}, k);
  double loss = 0;
  ROLLED
  for (int at = 0; at < visits; at += most) {
    const int rows = visits - at < most ? visits - at : most;
    if (tiled) {
      FOR(n, rows * R) {
        const int m = n % rows * LDU + n / rows;
        U[m] = to[at * R + n], right[m] = scaled[at * R + n];
      }
      if (at + rows < visits) FOR(r, R) following[r] = to[place(tiles, at + rows, r)];
      SYNC();
      if (totals) read_visits(t, first + at, rows, scaled + at * R, R);
      SYNC();
    }
    if (totals && mu > 0) subtract_visits(scaled + at * R, rows, right, k);
    SYNC();
    loss += finish_visits(t, patient, at, rows, U, right, following, to, totals, k);
    SYNC();
  }
  if (totals) return 0;
  FOR(p, t.n_static) {
    const double a = t.A[(long long)patient * t.n_static + p];
    loss = fma(t.lam * a, a, loss);
  }
  FOR(r, R) {
    loss -= 2 * k.w[r] * k.right[r];
    for (int s = 0; s < R; s++) loss = fma(k.w[r] * k.w[s], t.FF[r * R + s], loss);
  }
  return sum_block(loss, k) + t.norms[patient] + mu * t.hh;
}

// Prefetch what the next patient's step reads first.
DEV void prefetch_patient(const Task &t, int patient) {
  if (patient >= t.patients) return;
  const int first = t.offsets[patient], last = t.offsets[patient + 1];
  const int entry = t.indptr[first], end = t.indptr[last];
  const int line = 32;  // numbers in 128 bytes
  for (long long n = (long long)first * R + TID * line; n < (long long)last * R; n += NT * line) {
    prefetch(t.U + n);
    if (t.beta > 0) prefetch(t.U_prev + n);
  }
  for (int n = entry + TID * line; n < end; n += NT * line) prefetch(t.data + n), prefetch(t.indices + n);
}

// Six numbers of a patient: ½‖X − U diag(w) Vᵀ‖², the uniqueness term, the smoothness term, ‖UᵀU − HᵀH‖², and the same and
// ‖HᵀH‖² over pairs of different phenotypes that the patient has, if there are R visits.
DEV void score(const Task &t, int patient, int first, int visits, const float *U, Scratch k) {
  const double mu = t.mu[patient];
  double fit = 0, size = 0, gap = 0, present = 0, present_size = 0, rough = 0;
  FOR(n, R * R) {
    const int i = n / R, j = n % R;
    const double g = k.S0[i * LD + j], h = t.HH[n], off = (g - h) * (g - h);
    fit = fma(k.w[i] * k.w[j] * t.VV[n], g, fit);
    if (i == j) fit -= 2 * k.w[i] * (k.b[i] - k.right[i]), size += g;
    gap += off;
    if (visits >= R && i != j && k.w[i] > 0 && k.w[j] > 0) present += off, present_size = fma(h, h, present_size);
  }
  if (t.tau > 0)
    FOR(n, (visits - 1) * R) {
      const double change = (double)U[n + R] - U[n];
      rough = fma(change, change, rough);
    }
  fit = t.norms[patient] + sum_block(fit, k);
  size = sum_block(size, k), gap = sum_block(gap, k), rough = sum_block(rough, k);
  present = sum_block(present, k), present_size = sum_block(present_size, k);
  double nuclear = 0;
  if (mu > 0) {
    inverse_sqrt(t, k);
    nuclear = nuclear_norm(k);
  }
  if (TID == 0) {
    double *scored = t.scored + (long long)patient * N_SCORED;
    scored[0] = fit > 0 || fit != fit ? 0.5 * fit : 0;
    scored[1] = mu > 0 ? 0.5 * mu * (size + t.hh - 2 * nuclear) : 0;
    scored[2] = 0.5 * t.tau * rough;
    scored[3] = gap, scored[4] = present, scored[5] = present_size;
  }
}

// Patient steps under a fixed model until the loss converges, with extrapolation as in `projection.accept_steps`.
DEV void project(const Task &t, int patient, int first, int visits, double norm, double mu, float *U, float *U_prev,
                Scratch k) {
  double best_loss = 1e300, beta = 0, next_beta = 0.5;
  float *current = U, *next = U_prev;
  for (int iteration = 0; iteration < t.max_iter; iteration++) {
    load_patient(t, first, visits, current, next, beta, k);
    solve_scores(t, patient, k);
    order_phenotypes(k);
    if (mu > 0) polar_target(t, k);
    const double loss = 0.5 * update_U(t, patient, current, next, beta, nullptr, k);
    if (loss > best_loss && beta > 0) {  // extrapolated too far: the previous U is overwritten, so the next step is plain
      next_beta /= 2, beta = 0;
      continue;
    }
    float *swap = current;
    current = next, next = swap;
    if (!(best_loss - loss >= t.tol * fmax(loss, 1e-12 * norm))) break;
    beta = next_beta, next_beta = fmin(next_beta * 1.05, 0.99), best_loss = loss;
  }
  if (current != U) FOR(n, visits * R) U[n] = current[n];
}

KERNEL patients(const Task t) {
  SHARED
#ifdef IN_GLOBAL
  Scratch k = make_scratch(t.global_scratch + (long long)BLOCK * SCRATCH);
#else
  Scratch k = make_scratch(scratch);
#endif
  double totals[2] = {0, 0};  // this thread's part of Σ pμ‖U‖² and Σ pτ tr(UᵀLU)
  if (MODE == STEP) FOR(n, SUMS) t.sums[(long long)BLOCK * SUMS + n] = 0;
  for (int patient = BLOCK; patient < t.patients; patient += BLOCKS) {
    const int first = t.offsets[patient], visits = t.offsets[patient + 1] - first;
    const double norm = t.norms[patient], mu = t.mu[patient];
    float *U = t.U + (long long)first * R, *U_prev = t.U_prev + (long long)first * R;
    SYNC();
    if (norm == 0 && (MODE == INIT || MODE == PROJECT)) {
      FOR(n, visits * R) U[n] = 0;
      continue;
    }
    if (MODE == INIT || MODE == PROJECT) init_U(t, first, visits, U, k);
    if (MODE == INIT) continue;
    SYNC();
    if (MODE == PROJECT) {
      project(t, patient, first, visits, norm, mu, U, U_prev, k);
      continue;
    }
    if (norm == 0) {
      FOR(r, R) t.W[(long long)patient * R + r] = 0;
      if (MODE == STEP) FOR(n, visits * R) U_prev[n] = 0, t.scaled[(long long)first * R + n] = 0;
      if (MODE == SCORE) FOR(n, N_SCORED) t.scored[(long long)patient * N_SCORED + n] = 0;
      continue;
    }
    load_patient(t, first, visits, U, U_prev, MODE == STEP ? t.beta : 0, k);
    prefetch_patient(t, patient + BLOCKS);
    solve_scores(t, patient, k);
    FOR(r, R) t.W[(long long)patient * R + r] = k.w[r];
    if (MODE == SCORE) {
      score(t, patient, first, visits, U, k);
    } else {
      order_phenotypes(k);
      if (mu > 0) polar_target(t, k);
      update_U(t, patient, U, U_prev, t.beta, totals, k);
    }
  }
  if (MODE != STEP) return;
  for (int n = 0; n < 2; n++) {
    const double total = sum_block(totals[n], k);
    if (TID == 0) t.sums[(long long)BLOCK * SUMS + 2 * R * R + n] = total;
  }
}

#ifndef __CUDACC__
extern "C" int scratch_needed() { return SCRATCH; }
#endif

// Xᵀ(U diag w), feature by feature in a fixed order: each block sums one segment of a feature's visits.
KERNEL gather(const int *segment, const int *rows, const float *values, const float *scaled, double *partial, int n) {
  SHARED
  for (int s = BLOCK; s < n; s += BLOCKS) {
    FOR_COLUMN(s_, g, r) {
      double total = 0, total2 = 0;
      int m = segment[s] + g;
      for (; m + GROUPS < segment[s + 1]; m += 2 * GROUPS) {
        total = fma((double)values[m], (double)scaled[(long long)rows[m] * R + r], total);
        total2 = fma((double)values[m + GROUPS], (double)scaled[(long long)rows[m + GROUPS] * R + r], total2);
      }
      if (m < segment[s + 1]) total = fma((double)values[m], (double)scaled[(long long)rows[m] * R + r], total);
      scratch[g * R + r] = total + total2;
    }
    SYNC();
    FOR(r, R) {
      double total = 0;
      for (int g = 0; g < GROUPS; g++) total += scratch[g * R + r];
      partial[(long long)s * R + r] = total;
    }
    SYNC();
  }
}

// Sum the segments of each feature, in order.
KERNEL combine(const int *features, const double *partial, double *XU, int n) {
  for (int j = BLOCK; j < n; j += BLOCKS)
    FOR(r, R) {
      double total = 0;
      for (int s = features[j]; s < features[j + 1]; s++) total += partial[(long long)s * R + r];
      XU[(long long)j * R + r] += total;
    }
}
