// The patient step of `reference`, one patient per block, in one kernel: U is read and written once.
//
// Compiled on first use, for one rank R and one MODE. Threads share all loops (FOR) and synchronise at SYNC; without CUDA
// the same source is plain C++ with one thread, which tests run on machines without a GPU.
// R × R algebra and sums are double, since C = H UᵀU Hᵀ holds squares; U is float.

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
#define ROLLED _Pragma("unroll 1")
DEV double sum_warp(double x) {
  for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  return x;
}
DEV double max_warp(double x) {
  for (int far = 16; far > 0; far /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, far));
  return x;
}
DEV float from_lane(float x, int owner) { return SPLIT == 1 ? x : __shfl_sync(~0u, x, owner, SPLIT); }
DEV bool any_lane(bool x) { return __any_sync(~0u, x); }
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
#define ROLLED
DEV double sum_warp(double x) { return x; }
DEV double max_warp(double x) { return x; }
DEV float from_lane(float x, int) { return x; }
DEV bool any_lane(bool x) { return x; }
DEV double reciprocal(double x) { return 1.0 / x; }
DEV double rsqrt_newton(double x) { return 1.0 / sqrt(x); }
DEV double cos_pi(double x) { return cos(M_PI * x); }
DEV void prefetch(const void *) {}
struct float4 { float x, y, z, w; };
struct double2 { double x, y; };
DEV double lane_entry(const double *mine, int i) { return mine[i]; }
DEV void atomicAdd(int *to, int by) { *to += by; }
DEV void atomicAdd(double *to, double by) { *to += by; }
DEV void atomicMax(int *to, int by) { *to = *to > by ? *to : by; }
#define SLOTS R  // the single thread does the work of all
#define FOR_COLUMN(s, g, r) for (int s = 0, g = 0, r = 0; s < SLOTS; s++, r = s)
#endif

#define WARPS (NT / LANES)
#define WARP (TID / LANES)
#define LANE (TID % LANES)
#ifdef __CUDACC__
#define FOR(i, n) _Pragma("unroll 1") for (int i = TID; i < (n); i += NT)
#else
#define FOR(i, n) for (int i = TID; i < (n); i += NT)
#endif
#define FOR_LANE(i, first, n) for (int i = (first) + LANE; i < (n); i += LANES)
#define TILE (NT / SPLIT)                    // visits at a time
// A thread owns one column of a square matrix, and keeps ROWS_PER_THREAD rows of it, those of its group g, in registers.
#define GROUPS (NT / R > R ? R : NT > R ? NT / R : 1)
#define ROWS_PER_THREAD (((R + GROUPS - 1) / GROUPS + 1) / 2 * 2)
#define PAD (GROUPS * ROWS_PER_THREAD)
#define PER_LANE ((R + LANES - 1) / LANES)       // entries of a vector that each lane of a warp holds
#define FOR_PER_LANE(h, i) for (int h = 0, i = LANE; h < PER_LANE; h++, i += LANES)
#define QUADS ((R + 3) / 4)
#define PER_THREAD ((R + SPLIT - 1) / SPLIT)       // phenotypes of a row that one thread updates
#define ROW ((PER_THREAD + 3) / 4 * 4)
#define SIDE (R > 24 ? 4 : R > 5 ? 2 : 1)    // of the square of entries that a thread computes
#define MASKS ((R + 31) / 32)

#define SIGMA_FLOOR2 1e-12  // as in `polar`: squares of SIGMA_FLOOR and SIGMA_RTOL
#define SIGMA_RTOL2 1e-14
#define DEPENDENT_RTOL 1e-13  // as in `nnls`
#define TINY 1e-150
#define ROUNDING_RTOL 1e-12

struct Task {
  const float *data;     // the patients' visits as CSR
  const int *indices, *indptr, *offsets;
  const double *norms;   // ‖X_k‖²
  const double *mu;
  const double *A;       // static features, patients × n_static
  const float *VQ;       // V in groups of four, zero-padded
  const double *V, *VV, *F, *FF, *H, *HT, *HH, *poles;  // FF = λFᵀF; H with clipped singular values, HH = HᵀH of the original
  float *U, *U_prev, *scaled;  // U; the previous U, overwritten by the new one; new U diag(w)
  double *W;
  unsigned *passive;     // one bit per score, positive last time: the initial passive set
  double *sums;          // per block: Σ (w wᵀ)∘UᵀU, Σ μ (QH)ᵀU and Σ μ‖U‖²
  double *spare;         // per block: T of patients with more than one tile of visits
  double *global_scratch;  // per block: its scratch, if it exceeds shared memory
  double *loss;          // patients × 3: visits, uniqueness term, ‖UᵀU − HᵀH‖²
  double lam, beta, tol, hh;  // hh = ‖H‖²
  int patients, n_static, max_iter;
};

struct Scratch {
  double *S0, *S1, *S2, *S3;                        // square matrices
  double *w, *b, *right, *d, *e, *inv, *y, *part;   // vectors; right = λFᵀa, part: one per group
  double *cell;                                     // scalars
  int *passive, *count;
};

#define VECTORS (7 * R + GROUPS * R + 8 + WARPS)
#define INTS ((R + 8) / 2 + 1)
#define UPDATE (SQUARE + (TILE * (3 * (R | 1) + 1) + 1) / 2)
#define BODY (4 * SQUARE > UPDATE ? 4 * SQUARE : UPDATE)
#define SCRATCH ((BODY + VECTORS + INTS + 1) / 2 * 2)
#define SUMS (2 * R * R + 1)

DEV Scratch make_scratch(double *scratch) {
  Scratch k;
  k.S0 = scratch, k.S1 = k.S0 + SQUARE, k.S2 = k.S1 + SQUARE, k.S3 = k.S2 + SQUARE;
  k.w = scratch + BODY, k.b = k.w + R, k.d = k.b + R, k.e = k.d + R, k.inv = k.e + R, k.y = k.inv + R;
  k.right = k.y + R, k.part = k.right + R, k.cell = k.part + GROUPS * R;
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

// out(i, j) = Σ_k a[k, i] b[k, j]: all products have this form, so that memory accesses coalesce.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// On the tensor cores, in double: a warp computes 8 × 16 entries at a time.
DEV void mma(double (&c)[2], double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+d"(c[0]), "+d"(c[1])
      : "d"(a), "d"(b));
}

template <class A, class B, class Out>
DEV void multiply(const A *a, int lda, const B *b, int ldb, int inner, int ni, int nj, Out out) {
  const int TJ = (nj + 15) / 16, deep = LANE % 4, wide = LANE / 4;
  for (int task = WARP; task < (ni + 7) / 8 * TJ; task += WARPS) {
    const int i = task / TJ * 8 + wide, j = task % TJ * 16 + wide;
    const A *p = a + (i < ni ? i : ni - 1);
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
DEV void multiply(const A *a, int lda, const B *b, int ldb, int inner, int ni, int nj, Out out) {
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
      for (int x = 0; x < SIDE; x++) p[x] = (double)a[k * lda + row[x]], q[x] = (double)b[k * ldb + col[x]];
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
DEV void read_visits(const Task &t, int first, int rows, float *B) {
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
    float *to = B + i * (R | 1) + 4 * q;
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

// G = UᵀU into S0 and colsum(U∘B) into b, from U extrapolated by `beta`; B is kept in `scaled`.
DEV void load_patient(const Task &t, int first, int visits, const float *U, const float *U_prev, double beta,
                      Scratch k) {
  double *tile = k.S1, *G = k.S0;
  float *B = (float *)(tile + TILE * R);
  FOR(n, R * R) G[n / R * LD + n % R] = 0;
  FOR(n, GROUPS * R) k.part[n] = 0;
  SYNC();
  for (int at = 0; at < visits; at += TILE) {
    const int rows = visits - at < TILE ? visits - at : TILE;
    UNROLL_FEW
    for (int n = TID; n < rows * R; n += NT) {
      float u = U[at * R + n];
      tile[n] = beta > 0 ? extrapolate(u, U_prev[at * R + n], (float)beta) : u;
    }
    if (MODE != SCORE) read_visits(t, first + at, rows, B);
    SYNC();
    FOR_COLUMN(s, g, r) {
      double total = k.part[g * R + r];
      for (int i = g; i < rows; i += GROUPS) {
        if (MODE == SCORE) {
          total = fma(tile[i * R + r], visit(t, first + at + i, r), total);
        } else {
          const float b = B[i * (R | 1) + r];
          total = fma(tile[i * R + r], (double)b, total);
          t.scaled[(long long)(first + at + i) * R + r] = b;
        }
      }
      k.part[g * R + r] = total;
    }
    multiply(tile, R, tile, R, rows, R, R, [=](int i, int j, double x) { G[i * LD + j] += x; });
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
  if (WARP == 0)
    FOR_LANE(m, 0, MASKS) {
      unsigned mask = 0;
      ROLLED
      for (int r = 32 * m; r < R && r < 32 * m + 32; r++) mask |= (unsigned)(k.w[r] > 0) << (r % 32);
      t.passive[(long long)patient * MASKS + m] = mask;
    }
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
  multiply(N, LD, F, LD, R, R, R, [=](int i, int j, double x) { NF[i * LD + j] = x; });
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
  multiply(k.S0, LD, k.S2, LD, R, R, R, [=](int i, int j, double x) { S3[i * LD + j] = x; });
  SYNC();
  multiply(k.S2, LD, k.S3, LD, R, R, R, [=](int i, int j, double x) { S1[i * LD + j] = x; });
  SYNC();
  FOR(n, R * R) k.S2[n / R * LD + n % R] = t.H[n];
  SYNC();
  to_tridiagonal(k);
  if (WARP == 0) resolvents(t, k);
  SYNC();
  sum_resolvents(k);
}

// S0 = T = Hᵀ C^(-1/2) H, so that Q H = U T.
DEV void polar_target(const Task &t, Scratch k) {
  double *S0 = k.S0, *S3 = k.S3;
  inverse_sqrt(t, k);
  multiply(k.S1, LD, k.S2, LD, R, R, R, [=](int i, int j, double x) { S3[i * LD + j] = x; });
  SYNC();
  multiply(k.S2, LD, k.S3, LD, R, R, R, [=](int i, int j, double x) { S0[i * LD + j] = x; });
  SYNC();
}

// gradient += x · row of the Gram matrix, for this thread's phenotypes.
DEV void add_row(const float *gram, int r, float x, float (&gradient)[PER_THREAD]) {
  const float4 *row = (const float4 *)gram + (r * SPLIT + TID % SPLIT) * (ROW / 4);
  UNROLL
  for (int s = 0; s < PER_THREAD; s += 4) {
    const float4 g = row[s / 4];
    gradient[s] = fmaf(g.x, x, gradient[s]);
    if (s + 1 < PER_THREAD) gradient[s + 1] = fmaf(g.y, x, gradient[s + 1]);
    if (s + 2 < PER_THREAD) gradient[s + 2] = fmaf(g.z, x, gradient[s + 2]);
    if (s + 3 < PER_THREAD) gradient[s + 3] = fmaf(g.w, x, gradient[s + 3]);
  }
}

// Two sweeps of coordinate descent on one visit with an updated gradient; SPLIT adjacent threads share a visit.
// A round before them moves from zero to U, which turns −right into the gradient G u − right.
DEV void sweep(const float *gram, const float *step, float (&u)[PER_THREAD], float (&gradient)[PER_THREAD]) {
  const int part = TID % SPLIT;
  ROLLED
  for (int round = 0; round < 3; round++) {
    UNROLL
    for (int r = 0; r < R; r++) {
      const float old = u[r / SPLIT];
      if (step[r] < 0) {  // without a score it is decoupled: right / μ
        const float to = gradient[r / SPLIT] * step[r];
        if (part == r % SPLIT && round > 0) u[r / SPLIT] = to > 0 ? to : (to == to ? 0.0f : to);
        continue;
      }
      float to = fmaf(-gradient[r / SPLIT], step[r], old);
      to = to > 0 ? to : (to == to ? 0.0f : to);
      const float move = from_lane(round > 0 ? to - old : old, r % SPLIT);
      if (part == r % SPLIT && round > 0) u[r / SPLIT] = to;
      if (any_lane(move != 0)) add_row(gram, r, move, gradient);
    }
  }
}

// The new U of a tile of visits, into `U_new` (visits × R) in scratch; QH is float.
DEV void solve_U(const Task &t, int first, int at, int rows, double mu, const float *U, const float *U_prev,
                 double beta, Scratch k) {
  float *U_start = (float *)(k.S0 + SQUARE), *QH = U_start + R * TILE, *B = QH + TILE * (R | 1);
  UNROLL_FEW
  for (int n = TID; n < rows * R; n += NT) {
    const int i = n / R, r = n % R;
    float u = U[at * R + n];
    U_start[r * TILE + i] = beta > 0 ? extrapolate(u, U_prev[at * R + n], (float)beta) : u;
    B[i * (R | 1) + r] = t.scaled[(long long)(first + at) * R + n];
  }
  SYNC();
  if (mu > 0)
    multiply(U_start, TILE, k.S0, LD, R, rows, R, [=](int i, int j, double x) { QH[i * (R | 1) + j] = (float)x; });
  else
    FOR(n, rows * R) QH[n / R * (R | 1) + n % R] = 0;
  SYNC();
  float *gram = (float *)k.S0, *step = (float *)k.part;
  FOR(n, R * SPLIT * ROW) {
    const int r = n / (SPLIT * ROW), s = n % ROW * SPLIT + n / ROW % SPLIT;
    gram[n] = s < R && n % ROW < PER_THREAD ? (float)(k.w[r] * k.w[s] * t.VV[r * R + s] + (r == s ? mu : 0)) : 0;
  }
  FOR(r, R) {
    const float size = (float)(k.w[r] * k.w[r] * t.VV[r * R + r] + mu);
    step[r] = size > 1e-30f ? (k.w[r] == 0 ? -1 : 1) / size : 0;
  }
  SYNC();
  float u[PER_THREAD], gradient[PER_THREAD];
  const int row = TID / SPLIT, part = TID % SPLIT, i = row < rows ? row : 0;
  UNROLL
  for (int s = 0; s < PER_THREAD; s++) {
    const int r = s * SPLIT + part;
    u[s] = r < R ? U_start[r * TILE + i] : 0;
    gradient[s] = r < R ? -fmaf(B[i * (R | 1) + r], (float)k.w[r], (float)mu * QH[i * (R | 1) + r]) : 0;
  }
  if (WARP * LANES / SPLIT < rows) sweep(gram, step, u, gradient);
  SYNC();
  double *U_new = k.S0;  // overwrites the Gram matrix and U_start, which are no longer needed
  UNROLL
  for (int s = 0; s < PER_THREAD; s++)
    if (row < rows && s * SPLIT + part < R) U_new[row * R + s * SPLIT + part] = u[s];
  SYNC();
}

// The second pass over the visits: new U to `to`, addends to this block's sums; returns twice the patient's loss.
DEV double update_U(const Task &t, int patient, int first, int visits, double mu, float *U, float *to, double beta,
                   bool accumulate, double *energy, Scratch k) {
  double *sums = t.sums + (long long)BLOCK * SUMS, *T_spare = t.spare + (long long)BLOCK * R * R;
  const bool tiled = visits > TILE;
  double loss = 0;
  if (tiled) FOR(n, R * R) T_spare[n] = k.S0[n / R * LD + n % R];
  SYNC();
  for (int at = 0; at < visits; at += TILE) {
    const int rows = visits - at < TILE ? visits - at : TILE;
    if (at > 0) {
      FOR(n, R * R) k.S0[n / R * LD + n % R] = T_spare[n];
      SYNC();
    }
    solve_U(t, first, at, rows, mu, U, to, beta, k);
    const double *U_new = k.S0, *w = k.w, *VV = t.VV;
    const float *QH = (float *)(k.S0 + SQUARE) + R * TILE, *B = QH + TILE * (R | 1);
    FOR(n, rows * R) {
      const float u = (float)U_new[n];
      to[at * R + n] = u;
      if (accumulate) t.scaled[(long long)(first + at) * R + n] = u * (float)w[n % R], *energy += mu * u * u;
      if (!accumulate) {
        const int m = n / R * (R | 1) + n % R;
        loss += u * (mu * (u - 2.0 * QH[m]) - 2.0 * w[n % R] * B[m]);
      }
    }
    if (accumulate) {  // atomic only to avoid waiting for the load: no other block adds to these
      multiply(U_new, R, U_new, R, rows, R, R,
               [=](int i, int j, double x) { atomicAdd(sums + i * R + j, w[i] * w[j] * x); });
      if (mu > 0)
        multiply(QH, R | 1, U_new, R, rows, R, R,
                 [=](int i, int j, double x) { atomicAdd(sums + R * R + i * R + j, mu * x); });
    } else {
      double *total = &loss;
      multiply(U_new, R, U_new, R, rows, R, R,
               [=](int i, int j, double x) { *total = fma(w[i] * w[j] * VV[i * R + j], x, *total); });
    }
    SYNC();
  }
  if (accumulate) return 0;
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

DEV void score(const Task &t, int patient, double norm, double mu, Scratch k) {
  double fit = 0, size = 0, gap = 0;
  FOR(n, R * R) {
    const int i = n / R, j = n % R;
    const double g = k.S0[i * LD + j];
    fit = fma(k.w[i] * k.w[j] * t.VV[n], g, fit);
    if (i == j) fit -= 2 * k.w[i] * (k.b[i] - k.right[i]), size += g;
    gap += (g - t.HH[n]) * (g - t.HH[n]);
  }
  fit = norm + sum_block(fit, k);
  size = sum_block(size, k), gap = sum_block(gap, k);
  double nuclear = 0;
  if (mu > 0) {
    inverse_sqrt(t, k);
    nuclear = nuclear_norm(k);
  }
  if (TID == 0) {
    double *loss = t.loss + (long long)patient * 3;
    loss[0] = fit > 0 || fit != fit ? 0.5 * fit : 0;
    loss[1] = mu > 0 ? 0.5 * mu * (size + t.hh - 2 * nuclear) : 0;
    loss[2] = gap;
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
    if (mu > 0) polar_target(t, k);
    const double loss = 0.5 * update_U(t, patient, first, visits, mu, current, next, beta, false, nullptr, k);
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
  double energy = 0;
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
    load_patient(t, first, visits, U, U_prev, MODE == STEP ? t.beta : 0, k);
    prefetch_patient(t, patient + BLOCKS);
    solve_scores(t, patient, k);
    FOR(r, R) t.W[(long long)patient * R + r] = k.w[r];
    if (MODE == SCORE) {
      score(t, patient, norm, mu, k);
    } else if (norm == 0) {
      FOR(n, visits * R) U_prev[n] = 0, t.scaled[(long long)first * R + n] = 0;
    } else {
      if (mu > 0) polar_target(t, k);
      update_U(t, patient, first, visits, mu, U, U_prev, t.beta, true, &energy, k);
    }
  }
  if (MODE != STEP) return;
  energy = sum_block(energy, k);
  if (TID == 0) t.sums[(long long)BLOCK * SUMS + 2 * R * R] = energy;
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
