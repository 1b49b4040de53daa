// The patient step of `reference`, one patient a block, all of it in one kernel: the courses are read and written once.
//
// Compiled when first used, for one rank R and one MODE. Threads share all loops (FOR) and meet at SYNC; without CUDA
// the same source is plain C++ with one thread, which is how the tests read it where there is no GPU.
// R × R algebra and sums are double, for C = H UᵀU Hᵀ holds squares; the courses are float.

#define START 0
#define STEP 1
#define SCORE 2
#define PROJECT 3
#define POLES 32   // of the sum for C^(-1/2), one for each lane of a warp
#define HALF (POLES / 2)
#define LD (R | 1)  // odd rows of squares: no two lanes of a column meet in one bank
#define SQUARE (R > POLES ? R * LD : R * (POLES + 1))

#ifdef __CUDACC__
#define DEV static __device__ __forceinline__
#define TID ((int)threadIdx.x)
#define LANES 32
#define SYNC() __syncthreads()
#define SYNC_WARP() __syncwarp()
#define SHARED extern __shared__ __align__(16) double room[];
#define BLOCK ((int)blockIdx.x)
#define BLOCKS ((int)gridDim.x)
#define KERNEL extern "C" __global__ void __launch_bounds__(NT, BLOCKS_AT_ONCE)
#define UNROLL _Pragma("unroll")
DEV double sum_warp(double x) {
  for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  return x;
}
DEV double max_warp(double x) {
  for (int far = 16; far > 0; far /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, far));
  return x;
}
DEV float from_lane(float x, int owner) { return SPLIT == 1 ? x : __shfl_sync(~0u, x, owner, SPLIT); }
DEV bool anybody(bool wanted) { return __any_sync(~0u, wanted); }
DEV double over(double x) {  // 1 / x: the approximation and two steps of Newton, a fraction of a division's time
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  y = y * fma(-x, y, 2.0);
  return y * fma(-x, y, 2.0);
}
DEV double cosine_of_pi(double x) { return cospi(x); }
#else
#include <math.h>
#include <stdlib.h>
#define DEV static inline
#define TID 0
#define LANES 1
#define SYNC()
#define SYNC_WARP()
#define SHARED static double room[ROOM];
#define BLOCK 0
#define BLOCKS 1
#define KERNEL extern "C" void
#define UNROLL
DEV double sum_warp(double x) { return x; }
DEV double max_warp(double x) { return x; }
DEV float from_lane(float x, int) { return x; }
DEV bool anybody(bool wanted) { return wanted; }
DEV double over(double x) { return 1.0 / x; }
DEV double cosine_of_pi(double x) { return cos(M_PI * x); }
struct float4 { float x, y, z, w; };
DEV void atomicAdd(int *to, int by) { *to += by; }
DEV void atomicMax(int *to, int by) { *to = *to > by ? *to : by; }
#endif

#define WARPS (NT / LANES)
#define WARP (TID / LANES)
#define LANE (TID % LANES)
#define FOR(i, n) for (int i = TID; i < (n); i += NT)
#define FOR_LANE(i, first, n) for (int i = (first) + LANE; i < (n); i += LANES)
#define TILE (NT / SPLIT)                    // visits at a time
#define GROUPS (NT >= R ? NT / R : 1)        // threads that share a column
#define FOR_COLUMN(g, r) for (int t_ = TID, g = t_ / R, r = t_ % R; t_ < GROUPS * R; t_ += NT, g = t_ / R, r = t_ % R)
#define MINE ((R + SPLIT - 1) / SPLIT)       // phenotypes of a row that one thread sweeps
#define ROW ((MINE + 3) / 4 * 4)
#define SIDE (R > 24 ? 4 : R > 5 ? 2 : 1)    // of the square of entries that a thread multiplies
#define MASKS ((R + 31) / 32)

#define SMALLEST2 1e-12  // as in `polar`: singular values below 1e-6, or this share of the largest, fade out
#define NOISE2 1e-14
#define DEPENDENT 1e-13  // as in `nnls`
#define TINY 1e-150
#define ROUNDING 1e-12

struct Task {
  const float *data;     // the patients' visits as CSR
  const int *indices, *indptr, *offsets;
  const double *norms;   // ‖X_k‖²
  const double *mu;
  const double *right;   // λ Fᵀa, patients × R
  const double *statics; // λ ‖a‖²
  const double *V, *VV, *FF, *H, *HT, *HH, *poles;  // FF = λFᵀF; H fit to be inverted, HH = HᵀH as it is
  float *U, *other, *scaled;  // courses; those before and after; the new ones times the scores
  double *W;
  unsigned *passive;     // which scores were positive last time: where the exact solution is looked for first
  double *sums;          // for each block: Σ (w wᵀ)∘UᵀU, Σ μ (QH)ᵀU and Σ μ‖U‖²
  double *spare;         // for each block: T of patients with many visits
  double *desks;         // for each block: all of its desk, where that is too large to share
  double *loss;          // patients × 3: visits, uniqueness term, ‖UᵀU − HᵀH‖²
  double reach, tol, hh; // hh = ‖H‖²
  int patients, max_iter;
};

struct Desk {
  double *S0, *S1, *S2, *S3;                        // squares
  double *w, *b, *d, *e, *tau, *inv, *y, *part, *q;  // vectors; part and q one for each group or warp
  double *cell;                                     // single numbers
  int *passive, *count;
};

#define VECTORS (7 * R + GROUPS * R + WARPS * R + 8 + WARPS)
#define WORDS ((R + 8) / 2 + 1)
#define PASS2 (SQUARE + (TILE * (3 * (R | 1) + 1) + 1) / 2)
#define BODY (4 * SQUARE > PASS2 ? 4 * SQUARE : PASS2)
#define ROOM ((BODY + VECTORS + WORDS + 1) / 2 * 2)
#define SUMS (2 * R * R + 1)

DEV Desk set_up(double *room) {
  Desk k;
  k.S0 = room, k.S1 = k.S0 + SQUARE, k.S2 = k.S1 + SQUARE, k.S3 = k.S2 + SQUARE;
  k.w = room + BODY, k.b = k.w + R, k.d = k.b + R, k.e = k.d + R, k.tau = k.e + R, k.inv = k.tau + R;
  k.y = k.inv + R, k.part = k.y + R, k.q = k.part + GROUPS * R, k.cell = k.q + WARPS * R;
  k.passive = (int *)(k.cell + 8 + WARPS), k.count = k.passive + R;
  return k;
}

DEV double sum_block(double x, Desk k) {
  x = sum_warp(x);
  SYNC();
  if (LANE == 0) k.cell[8 + WARP] = x;
  SYNC();
  double total = 0;
  for (int i = 0; i < WARPS; i++) total += k.cell[8 + i];
  return total;
}

// out(i, j) = Σ_k a[k, i] b[k, j]: every product here has this form, so that neighbours read neighbours.
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

// One entry of B = X V.
DEV double visit(const Task &t, int i, int r) {
  double total = 0;
  for (int n = t.indptr[i]; n < t.indptr[i + 1]; n++)
    total = fma((double)t.data[n], t.V[(long long)t.indices[n] * R + r], total);
  return total;
}

DEV float ahead(float now, float before, float reach) {
  float there = fmaf(reach, now - before, now);
  return there > 0.0f ? there : 0.0f;
}

DEV void start_courses(const Task &t, int first, int visits, float *U, Desk k) {
  FOR(n, visits * R) {
    double b = visit(t, first + n / R, n % R);
    U[n] = b > 0 ? (float)b : 0.0f;
  }
  SYNC();
  FOR(r, R) {
    double norm_b = 0, norm_e = 0, norm = 0;
    for (int i = 0; i < visits; i++) {
      double e = 1 + cosine_of_pi(r * (i + 0.5) / visits), b = U[i * R + r];
      norm_b += b * b, norm_e += e * e;
    }
    norm_b = sqrt(norm_b), norm_e = sqrt(norm_e);
    for (int pass = 0; pass < 2; pass++) {
      double total = 0;
      for (int i = 0; i < visits; i++) {
        double e = 1 + cosine_of_pi(r * (i + 0.5) / visits);
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

// G = UᵀU into S0 and colsum(U∘B) into b, from the courses extrapolated by `reach`.
DEV void look(const Task &t, int first, int visits, const float *U, const float *before, double reach, Desk k) {
  double *tile = k.S1;
  FOR(n, R * R) k.S0[n / R * LD + n % R] = 0;
  FOR_COLUMN(g, r) k.part[g * R + r] = 0;
  SYNC();
  for (int at = 0; at < visits; at += TILE) {
    const int rows = visits - at < TILE ? visits - at : TILE;
    FOR(n, rows * R) {
      float now = U[at * R + n];
      tile[n] = reach > 0 ? ahead(now, before[at * R + n], (float)reach) : now;
    }
    SYNC();
    FOR_COLUMN(g, r) {
      double total = k.part[g * R + r];
      for (int i = g; i < rows; i += GROUPS) {
        double u = tile[i * R + r];
        if (u != 0) total = fma(u, visit(t, first + at + i, r), total);
      }
      k.part[g * R + r] = total;
    }
    double *G = k.S0;
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

// x = w on the passive set, by elimination: a dependent column is left out, the others fit just as well.
DEV void solve_passive(const double *gram, const double *b, Desk k) {
  double *A = k.S1, *y = k.y, *x = k.w;
  FOR(n, R * R) {
    int i = n / R, j = n % R;
    A[i * LD + j] = k.passive[i] && k.passive[j] ? gram[i * LD + j] : 0;
  }
  FOR(r, R) y[r] = k.passive[r] ? b[r] : 0, x[r] = 0, k.inv[r] = 0;
  SYNC();
  for (int c = 0; c < R; c++) {
    if (!k.passive[c]) continue;
    const double pivot = A[c * LD + c], least = DEPENDENT * gram[c * LD + c];
    const double inverse = pivot > (least > TINY ? least : TINY) ? over(pivot) : 0;
    if (TID == 0) k.inv[c] = inverse;
    if (inverse != 0) {
      FOR_COLUMN(g, j) {
        if (j > c)
          for (int i = c + 1 + g; i < R; i += GROUPS) {
            double f = A[c * LD + i] * inverse;
            if (f != 0) A[i * LD + j] = fma(-f, A[c * LD + j], A[i * LD + j]);
          }
        if (g == 0 && j > c) y[j] = fma(-A[c * LD + j] * inverse, y[c], y[j]);
      }
    }
    SYNC();
  }
  if (WARP == 0)
    for (int c = R - 1; c >= 0; c--) {
      if (!k.passive[c]) continue;
      const double found = y[c] * k.inv[c];
      SYNC_WARP();
      if (LANE == 0) x[c] = found;
      FOR_LANE(i, 0, c) y[i] = fma(-A[i * LD + c], found, y[i]);
      SYNC_WARP();
    }
  SYNC();
}

// Marks which coordinates are on the wrong side; returns how many.
DEV int count_wrong(const double *gram, const double *b, Desk k, double *noise) {
  FOR(r, R) k.y[r] = k.w[r] * k.w[r] * gram[r * LD + r];
  if (TID == 0) k.count[0] = 0, k.count[1] = -1;
  SYNC();
  double top = 0;
  for (int r = 0; r < R; r++) top = k.y[r] > top ? k.y[r] : top;
  *noise = ROUNDING * ROUNDING * top;
  FOR(r, R) {
    bool wrong = false;
    if (k.passive[r]) {
      wrong = k.w[r] < 0 && k.y[r] > *noise;
    } else if (gram[r * LD + r] > TINY) {
      double value = -b[r], size = fabs(b[r]);
      for (int s = 0; s < R; s++) {
        double term = gram[s * LD + r] * k.w[s];
        value += term, size += fabs(term);
      }
      wrong = value < -ROUNDING * size;
    }
    k.inv[r] = wrong;
    if (wrong) atomicAdd(&k.count[0], 1), atomicMax(&k.count[1], r);
  }
  SYNC();
  return k.count[0];
}

// w: block principal pivoting from the set that `hint` names; the Gram matrix is left in S3.
DEV void solve_scores(const Task &t, int patient, Desk k) {
  double *gram = k.S3, noise = 0;
  FOR(n, R * R) {
    int i = n / R, j = n % R;
    gram[i * LD + j] = fma(k.S0[i * LD + j], t.VV[n], t.FF[n]);
  }
  FOR(r, R) {
    k.b[r] += t.right[(long long)patient * R + r];
    k.passive[r] = t.passive[(long long)patient * MASKS + r / 32] >> (r % 32) & 1;
  }
  SYNC();
  int fewest = R + 1, patience = 3;
  bool done = false;
  for (int round = 0; round < 5 * R + 20 && !done; round++) {
    solve_passive(gram, k.b, k);
    const int wrong = count_wrong(gram, k.b, k, &noise), last = k.count[1];
    done = wrong == 0;
    patience = wrong < fewest ? 3 : patience - 1;
    fewest = wrong < fewest ? wrong : fewest;
    FOR(r, R)
      if (!done && k.inv[r] != 0 && (patience >= 0 || r == last)) k.passive[r] = !k.passive[r];
    SYNC();
  }
  if (!done) {  // pivoting went in circles: coordinate descent from there never goes up
    if (TID == 0) {
      for (int r = 0; r < R; r++) k.w[r] = k.w[r] > 0 ? k.w[r] : 0;
      for (int sweep = 0; sweep < 500; sweep++)
        for (int r = 0; r < R; r++) {
          double slope = -k.b[r];
          for (int s = 0; s < R; s++) slope = fma(gram[s * LD + r], k.w[s], slope);
          double to = k.w[r] - slope / gram[r * LD + r];
          if (gram[r * LD + r] > TINY) k.w[r] = to > 0 ? to : 0;
        }
    }
    SYNC();
  }
  FOR(r, R) {  // what is left of a cancellation is no score
    double x = k.w[r];
    if (!(x > 0 && x * x * gram[r * LD + r] > noise) && x == x) k.w[r] = 0;
  }
  SYNC();
  if (WARP == 0)
    FOR_LANE(m, 0, MASKS) {
      unsigned mask = 0;
      for (int r = 32 * m; r < R && r < 32 * m + 32; r++) mask |= (unsigned)(k.w[r] > 0) << (r % 32);
      t.passive[(long long)patient * MASKS + m] = mask;
    }
}

// S1 = P tridiagonal Pᵀ by reflections I − τvvᵀ; v stays in its row.
DEV void to_tridiagonal(Desk k) {
  double *A = k.S1;
  for (int c = 0; c < R - 2; c++) {
    double rest = 0;
    FOR_LANE(j, c + 2, R) rest = fma(A[c * LD + j], A[c * LD + j], rest);
    rest = sum_warp(rest);
    const double x = A[c * LD + c + 1];
    const bool flat = !(rest > 1e-290);
    const double alpha = flat ? x : -copysign(sqrt(fma(x, x, rest)), x);
    const double v0 = x - alpha, tau = flat ? 0 : -1 / (alpha * v0);
    if (!flat)
      FOR_COLUMN(g, i) if (i > c) {
        double total = g == 0 ? A[(c + 1) * LD + i] * v0 : 0;
        for (int j = c + 1 + (g == 0 ? GROUPS : g); j < R; j += GROUPS)
          total = fma(A[j * LD + i], A[c * LD + j], total);
        k.part[g * R + i] = total;
      }
    SYNC();  // from here on nobody reads x
    if (TID == 0) k.d[c] = A[c * LD + c], k.e[c] = alpha, k.tau[c] = tau, A[c * LD + c + 1] = v0;
    if (!flat) {
      double *q = k.q + WARP * R, dot = 0;
      FOR_LANE(i, c + 1, R) {
        double p = 0;
        for (int g = 0; g < GROUPS; g++) p += k.part[g * R + i];
        q[i] = p * tau;
        dot = fma(i == c + 1 ? v0 : A[c * LD + i], p * tau, dot);
      }
      dot = 0.5 * tau * sum_warp(dot);
      FOR_LANE(i, c + 1, R) q[i] -= dot * (i == c + 1 ? v0 : A[c * LD + i]);
      SYNC_WARP();
      FOR_COLUMN(g, i) if (i > c) {
        const double vi = i == c + 1 ? v0 : A[c * LD + i], qi = q[i];
        for (int j = c + 1 + g; j < R; j += GROUPS) {
          const double vj = j == c + 1 ? v0 : A[c * LD + j];
          A[j * LD + i] = fma(-vj, qi, fma(-q[j], vi, A[j * LD + i]));
        }
      }
    }
    SYNC();
  }
  const int last = R > 1 ? R - 2 : 0;
  if (TID == 0) k.e[last] = A[last * LD + R - 1], k.d[last] = A[last * (LD + 1)], k.d[R - 1] = A[(R - 1) * (LD + 1)];
  SYNC();
}

// For every pole s: the diagonal of w (T + s)⁻¹, and the ratios of an entry to the one above it; see `root`.
DEV void open_poles(const Task &t, Desk k) {
  double *ratio = k.S0, *diagonal = k.S3;
  double top = 0;
  FOR_LANE(i, 0, R) {
    double beside = (i > 0 ? fabs(k.e[i - 1]) : 0) + (i < R - 1 ? fabs(k.e[i]) : 0);
    top = fmax(top, k.d[i] + beside);
  }
  top = max_warp(top);
  const double least = fmax(SMALLEST2, NOISE2 * top);  // added to C: the cap, and room for its rounding
  top += least;
  if (LANE == 0) k.cell[0] = least;
  FOR_LANE(p, 0, POLES) {
    const double shift = fma(top, t.poles[p], least), weight = sqrt(top) * t.poles[POLES + p];
    double inverse = over(k.d[R - 1] + shift);
    for (int i = R - 2; i >= 0; i--) {
      const double r = -k.e[i] * inverse;
      ratio[(i + 1) * POLES + p] = r;
      diagonal[(i + 1) * POLES + p] = inverse;
      inverse = over(fma(k.e[i], r, k.d[i] + shift));
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

// S2 = Pᵀ S2: each column by two threads of one warp, who own its odd and its even rows.
DEV void turn(Desk k, int me, int many) {
  double *X = k.S2, *A = k.S1;
  const int pair = LANES > 1 ? 2 : 1;
  for (int first = 0; first < R; first += many / pair) {
    const int c = first + me / pair, odd = me % pair, column = c < R ? c : R - 1;
    for (int step = 0; step < R - 2; step++) {
      const double tau = k.tau[step];
      if (tau == 0) continue;
      const double *v = A + step * LD;
      double dot = 0, dot2 = 0;
      int i = step + 1 + odd;
      for (; i + pair < R; i += 2 * pair) {
        dot = fma(v[i], X[i * LD + column], dot);
        dot2 = fma(v[i + pair], X[(i + pair) * LD + column], dot2);
      }
      if (i < R) dot = fma(v[i], X[i * LD + column], dot);
      dot += dot2;
#ifdef __CUDACC__
      dot += __shfl_xor_sync(~0u, dot, 1);
#endif
      dot *= -tau;
      if (c < R)
        for (int i = step + 1 + odd; i < R; i += pair) X[i * LD + column] = fma(dot, v[i], X[i * LD + column]);
    }
  }
}

// S1 = Σ_p w_p (T + s_p)⁻¹ from its ratios: half of the poles below the diagonal, the other half above, then both.
DEV void add_up(Desk k) {
  double *F = k.S1, *ratio = k.S0, *diagonal = k.S3;
  const int wide = (R + 31) / 32 * 32;
  for (int t = TID; t < 2 * wide; t += NT) {
    const int half = t / wide, i = t % wide, p0 = half * HALF;
    double c[HALF];
    UNROLL
    for (int p = 0; p < HALF; p++) c[p] = 0;
    for (int j = i / 32 * 32; j < R; j++) {
      double total = 0, total2 = 0;
      UNROLL
      for (int p = 0; p < HALF; p++) c[p] *= ratio[j * POLES + p0 + p];
      if (j == i) {
        UNROLL
        for (int p = 0; p < HALF; p++) c[p] = diagonal[j * POLES + p0 + p];
      }
      UNROLL
      for (int p = 0; p < HALF; p += 2) total += c[p], total2 += c[p + 1];
      total += total2;
      if (i < R && j == i) (half ? k.inv[i] : F[i * LD + i]) = total;
      if (i < R && j > i) F[half ? i * LD + j : j * LD + i] = total;
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

// ‖U Hᵀ‖_* = tr(C f) from f = C^(-1/2) in S1 and C's tridiagonal form, after a step of Newton, which squares f's error.
DEV double nuclear_norm(Desk k) {
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
  const double least = k.cell[0];
  FOR(n, R * R) {
    const int m = n / R * LD + n % R;
    total -= 0.5 * fma(least, F[m], N[m]) * NF[m];
  }
  return sum_block(total, k);
}

// S1 = f = C^(-1/2), capped, with C = H G Hᵀ from G in S0, in the basis in which C is tridiagonal; S2 = H in that basis.
DEV void inverse_root(const Task &t, Desk k) {
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
  if (WARP == 0) open_poles(t, k);
  if (WARPS == 1) {
    SYNC_WARP();
    turn(k, TID, NT);
  } else if (WARP > 0) {
    turn(k, TID - LANES, NT - LANES);
  }
  SYNC();
  add_up(k);
}

// S0 = T = Hᵀ C^(-1/2) H, so that Q H = U T.
DEV void aim(const Task &t, Desk k) {
  double *S0 = k.S0, *S3 = k.S3;
  inverse_root(t, k);
  multiply(k.S1, LD, k.S2, LD, R, R, R, [=](int i, int j, double x) { S3[i * LD + j] = x; });
  SYNC();
  multiply(k.S2, LD, k.S3, LD, R, R, R, [=](int i, int j, double x) { S0[i * LD + j] = x; });
  SYNC();
}

// slope += x · row of the Gram matrix, for the phenotypes that are this thread's.
DEV void add_row(const float *gram, int r, float x, float (&slope)[MINE]) {
  const float4 *row = (const float4 *)gram + (r * SPLIT + TID % SPLIT) * (ROW / 4);
  UNROLL
  for (int s = 0; s < MINE; s += 4) {
    const float4 g = row[s / 4];
    slope[s] = fmaf(g.x, x, slope[s]);
    if (s + 1 < MINE) slope[s + 1] = fmaf(g.y, x, slope[s + 1]);
    if (s + 2 < MINE) slope[s + 2] = fmaf(g.z, x, slope[s + 2]);
    if (s + 3 < MINE) slope[s + 3] = fmaf(g.w, x, slope[s + 3]);
  }
}

// Two sweeps of coordinate descent on one visit, the gradient kept; SPLIT neighbours share a visit.
DEV void sweep(const float *gram, const float *step, float (&u)[MINE], float (&slope)[MINE]) {
  const int part = TID % SPLIT;
  UNROLL
  for (int r = 0; r < R; r++) {  // slope = G u − right, from −right
    const float x = from_lane(u[r / SPLIT], r % SPLIT);
    if (anybody(x != 0)) add_row(gram, r, x, slope);
  }
  for (int round = 0; round < 2; round++) {
    UNROLL
    for (int r = 0; r < R; r++) {
      const float now = u[r / SPLIT];
      float to = fmaf(-slope[r / SPLIT], step[r], now);
      to = to > 0 ? to : (to == to ? 0.0f : to);
      const float move = from_lane(to - now, r % SPLIT);
      if (part == r % SPLIT) u[r / SPLIT] = to;
      if (anybody(move != 0)) add_row(gram, r, move, slope);
    }
  }
}

// The new courses of a tile of visits, into `fresh` (visits × R) in shared memory; pull holds QH as float.
DEV void solve_courses(const Task &t, int first, int at, int rows, double mu, const float *U, const float *before,
                       double reach, Desk k) {
  float *old = (float *)(k.S0 + SQUARE), *pull = old + R * TILE, *B = pull + TILE * (R | 1);
  FOR(n, rows * R) {
    const int i = n / R, r = n % R;
    float now = U[at * R + n];
    old[r * TILE + i] = reach > 0 ? ahead(now, before[at * R + n], (float)reach) : now;
    B[i * (R | 1) + r] = (float)visit(t, first + at + i, r);
  }
  SYNC();
  if (mu > 0)
    multiply(old, TILE, k.S0, LD, R, rows, R, [=](int i, int j, double x) { pull[i * (R | 1) + j] = (float)x; });
  else
    FOR(n, rows * R) pull[n / R * (R | 1) + n % R] = 0;
  SYNC();
  float *gram = (float *)k.S0, *step = (float *)k.part;
  FOR(n, R * SPLIT * ROW) {
    const int r = n / (SPLIT * ROW), s = n % ROW * SPLIT + n / ROW % SPLIT;
    gram[n] = s < R && n % ROW < MINE ? (float)(k.w[r] * k.w[s] * t.VV[r * R + s] + (r == s ? mu : 0)) : 0;
  }
  FOR(r, R) {
    const float size = (float)(k.w[r] * k.w[r] * t.VV[r * R + r] + mu);
    step[r] = size > 1e-30f ? 1 / size : 0;
  }
  SYNC();
  float u[MINE], slope[MINE];
  const int row = TID / SPLIT, part = TID % SPLIT, i = row < rows ? row : 0;
  UNROLL
  for (int s = 0; s < MINE; s++) {
    const int r = s * SPLIT + part;
    u[s] = r < R ? old[r * TILE + i] : 0;
    slope[s] = r < R ? -fmaf(B[i * (R | 1) + r], (float)k.w[r], (float)mu * pull[i * (R | 1) + r]) : 0;
  }
  sweep(gram, step, u, slope);
  SYNC();
  double *fresh = k.S0;  // over the Gram matrix and the old courses, which nobody needs any more
  UNROLL
  for (int s = 0; s < MINE; s++)
    if (row < rows && s * SPLIT + part < R) fresh[row * R + s * SPLIT + part] = u[s];
  SYNC();
}

// The second look at the visits: new courses to `to`, addends to this block's sums; returns twice the patient's loss.
DEV double advance(const Task &t, int patient, int first, int visits, double mu, float *U, float *to, double reach,
                   bool keep, double *energy, Desk k) {
  double *sums = t.sums + (long long)BLOCK * SUMS, *spare = t.spare + (long long)BLOCK * R * R;
  const bool many = visits > TILE;
  double loss = 0;
  if (many) FOR(n, R * R) spare[n] = k.S0[n / R * LD + n % R];
  SYNC();
  for (int at = 0; at < visits; at += TILE) {
    const int rows = visits - at < TILE ? visits - at : TILE;
    if (at > 0) {
      FOR(n, R * R) k.S0[n / R * LD + n % R] = spare[n];
      SYNC();
    }
    solve_courses(t, first, at, rows, mu, U, to, reach, k);
    const double *fresh = k.S0, *w = k.w, *VV = t.VV;
    const float *pull = (float *)(k.S0 + SQUARE) + R * TILE, *B = pull + TILE * (R | 1);
    FOR(n, rows * R) {
      const float u = (float)fresh[n];
      to[at * R + n] = u;
      if (keep) t.scaled[(long long)(first + at) * R + n] = u * (float)w[n % R], *energy += mu * u * u;
      if (!keep) {
        const int m = n / R * (R | 1) + n % R;
        loss += u * (mu * (u - 2.0 * pull[m]) - 2.0 * w[n % R] * B[m]);
      }
    }
    if (keep) {
      multiply(fresh, R, fresh, R, rows, R, R,
               [=](int i, int j, double x) { sums[i * R + j] = fma(w[i] * w[j], x, sums[i * R + j]); });
      if (mu > 0)
        multiply(pull, R | 1, fresh, R, rows, R, R,
                 [=](int i, int j, double x) { sums[R * R + i * R + j] = fma(mu, x, sums[R * R + i * R + j]); });
    } else {
      double *mine = &loss;
      multiply(fresh, R, fresh, R, rows, R, R,
               [=](int i, int j, double x) { *mine = fma(w[i] * w[j] * VV[i * R + j], x, *mine); });
    }
    SYNC();
  }
  if (keep) return 0;
  FOR(r, R) {
    loss -= 2 * k.w[r] * t.right[(long long)patient * R + r];
    for (int s = 0; s < R; s++) loss = fma(k.w[r] * k.w[s], t.FF[r * R + s], loss);
  }
  return sum_block(loss, k) + t.norms[patient] + t.statics[patient] + mu * t.hh;
}

DEV void score(const Task &t, int patient, double norm, double mu, Desk k) {
  double fit = 0, size = 0, gap = 0;
  FOR(n, R * R) {
    const int i = n / R, j = n % R;
    const double g = k.S0[i * LD + j];
    fit = fma(k.w[i] * k.w[j] * t.VV[n], g, fit);
    if (i == j) fit -= 2 * k.w[i] * (k.b[i] - t.right[(long long)patient * R + i]), size += g;
    gap += (g - t.HH[n]) * (g - t.HH[n]);
  }
  fit = norm + sum_block(fit, k);
  size = sum_block(size, k), gap = sum_block(gap, k);
  double nuclear = 0;
  if (mu > 0) {
    inverse_root(t, k);
    nuclear = nuclear_norm(k);
  }
  if (TID == 0) {
    double *loss = t.loss + (long long)patient * 3;
    loss[0] = fit > 0 || fit != fit ? 0.5 * fit : 0;
    loss[1] = mu > 0 ? 0.5 * mu * (size + t.hh - 2 * nuclear) : 0;
    loss[2] = gap;
  }
}

// Patient steps under a fixed model until the loss stops falling, reaching ahead as `cpu.settle` does.
DEV void settle(const Task &t, int patient, int first, int visits, double norm, double mu, float *U, float *other,
                Desk k) {
  double before = 1e300, reach = 0, longer = 0.5;
  float *here = U, *there = other;
  for (int turn = 0; turn < t.max_iter; turn++) {
    look(t, first, visits, here, there, reach, k);
    solve_scores(t, patient, k);
    if (mu > 0) aim(t, k);
    const double loss = 0.5 * advance(t, patient, first, visits, mu, here, there, reach, false, nullptr, k);
    if (loss > before && reach > 0) {  // reached too far: `there` is spoilt, so the next step is a plain one
      longer /= 2, reach = 0;
      continue;
    }
    float *swap = here;
    here = there, there = swap;
    if (!(before - loss >= t.tol * fmax(loss, 1e-12 * norm))) break;
    reach = longer, longer = fmin(longer * 1.05, 0.99), before = loss;
  }
  if (here != U) FOR(n, visits * R) U[n] = here[n];
}

KERNEL patients(const Task t) {
  SHARED
#ifdef IN_GLOBAL
  Desk k = set_up(t.desks + (long long)BLOCK * ROOM);
#else
  Desk k = set_up(room);
#endif
  double energy = 0;
  if (MODE == STEP) FOR(n, SUMS) t.sums[(long long)BLOCK * SUMS + n] = 0;
  for (int patient = BLOCK; patient < t.patients; patient += BLOCKS) {
    const int first = t.offsets[patient], visits = t.offsets[patient + 1] - first;
    const double norm = t.norms[patient], mu = t.mu[patient];
    float *U = t.U + (long long)first * R, *other = t.other + (long long)first * R;
    SYNC();
    if (norm == 0 && (MODE == START || MODE == PROJECT)) {
      FOR(n, visits * R) U[n] = 0;
      continue;
    }
    if (MODE == START || MODE == PROJECT) start_courses(t, first, visits, U, k);
    if (MODE == START) continue;
    SYNC();
    if (MODE == PROJECT) {
      settle(t, patient, first, visits, norm, mu, U, other, k);
      continue;
    }
    look(t, first, visits, U, other, MODE == STEP ? t.reach : 0, k);
    solve_scores(t, patient, k);
    FOR(r, R) t.W[(long long)patient * R + r] = k.w[r];
    if (MODE == SCORE) {
      score(t, patient, norm, mu, k);
    } else if (norm == 0) {
      FOR(n, visits * R) other[n] = 0, t.scaled[(long long)first * R + n] = 0;
    } else {
      if (mu > 0) aim(t, k);
      advance(t, patient, first, visits, mu, U, other, t.reach, true, &energy, k);
    }
  }
  if (MODE != STEP) return;
  energy = sum_block(energy, k);
  if (TID == 0) t.sums[(long long)BLOCK * SUMS + 2 * R * R] = energy;
}

#ifndef __CUDACC__
extern "C" int room_needed() { return ROOM; }
#endif

// Xᵀ(U diag w), feature by feature in a fixed order: each block adds up one stretch of a feature's visits.
KERNEL gather(const int *stretch, const int *rows, const float *values, const float *scaled, double *found, int n) {
  SHARED
  for (int s = BLOCK; s < n; s += BLOCKS) {
    FOR_COLUMN(g, r) {
      double total = 0, total2 = 0;
      int m = stretch[s] + g;
      for (; m + GROUPS < stretch[s + 1]; m += 2 * GROUPS) {
        total = fma((double)values[m], (double)scaled[(long long)rows[m] * R + r], total);
        total2 = fma((double)values[m + GROUPS], (double)scaled[(long long)rows[m + GROUPS] * R + r], total2);
      }
      if (m < stretch[s + 1]) total = fma((double)values[m], (double)scaled[(long long)rows[m] * R + r], total);
      room[g * R + r] = total + total2;
    }
    SYNC();
    FOR(r, R) {
      double total = 0;
      for (int g = 0; g < GROUPS; g++) total += room[g * R + r];
      found[(long long)s * R + r] = total;
    }
    SYNC();
  }
}

// The stretches of each feature added up, in order.
KERNEL combine(const int *features, const double *found, double *XU, int n) {
  for (int j = BLOCK; j < n; j += BLOCKS)
    FOR(r, R) {
      double total = 0;
      for (int s = features[j]; s < features[j + 1]; s++) total += found[(long long)s * R + r];
      XU[(long long)j * R + r] += total;
    }
}
