/* The passes over memory of fast reads (depth_reads.py has the formulas), one pass each where PyTorch needs three to nine.

REAL is float or double. Row i of a tensor [tokens, d] starts at p + i * stride; numbers per token are contiguous.
Built by depth_kernels.py, once per machine and type. */
#include <tgmath.h>
#ifdef _OPENMP
#include <omp.h>
#endif

typedef long long integer;

#define BLOCK 64 /* tokens that are summed before their sum joins the total: keeps rounding small */

static integer smaller(integer a, integer b) { return a < b ? a : b; }

int parallel(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

/* h = o + g (b - o), g = sigmoid(s - lse), s = r (b . query); r = 1 / rms(b), or 1 if not `normed`.
stats is [3, tokens]: r, s and g. */
void merge_forward(integer tokens, integer d, const REAL *o, integer o_stride, const REAL *lse, integer lse_stride,
                   const REAL *b, integer b_stride, const REAL *query, int normed, double eps, REAL *restrict h,
                   REAL *restrict stats, int threads) {
    REAL *restrict r = stats, *restrict s = stats + tokens, *restrict gate = stats + 2 * tokens;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        const REAL *bi = b + i * b_stride, *oi = o + i * o_stride;
        REAL *restrict hi = h + i * d;
        REAL squares = 0, dot = 0;
        for (integer k = 0; k < d; k++) {
            squares += bi[k] * bi[k];
            dot += bi[k] * query[k];
        }
        r[i] = normed ? 1 / sqrt(squares / (REAL)d + (REAL)eps) : 1;
        s[i] = dot * r[i];
        gate[i] = 1 / (1 + exp(lse[i * lse_stride] - s[i]));
        const REAL g = gate[i];
        for (integer k = 0; k < d; k++) hi[k] = oi[k] + g * (bi[k] - oi[k]);
    }
}

/* do = (1 - g) dh, ds = g (1 - g) dh . (b - o) = -dlse, db = g dh + ds (r query - s r^2 b / d), dquery = sum of ds r b.
dquery is [threads, 2, d]: the first row of each thread is its total, the second is room for a block's sum. */
void merge_backward(integer tokens, integer d, const REAL *dh, integer dh_stride, const REAL *o, integer o_stride,
                    const REAL *b, integer b_stride, const REAL *query, int normed, const REAL *stats, REAL *restrict grad_o,
                    integer grad_o_stride, REAL *restrict dlse, REAL *restrict db, REAL *dquery, int threads) {
    const REAL *r = stats, *s = stats + tokens, *gate = stats + 2 * tokens;
    const integer share = (tokens + threads - 1) / threads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        const integer end = smaller(tokens, (t + 1) * share);
        REAL *restrict total = dquery + 2 * t * d, *restrict part = total + d;
        for (integer k = 0; k < d; k++) total[k] = 0;
        for (integer start = t * share; start < end; start += BLOCK) {
            for (integer k = 0; k < d; k++) part[k] = 0;
            for (integer i = start; i < smaller(end, start + BLOCK); i++) {
                const REAL *bi = b + i * b_stride, *oi = o + i * o_stride, *dhi = dh + i * dh_stride;
                REAL *restrict doi = grad_o + i * grad_o_stride, *restrict dbi = db + i * d;
                REAL dot = 0;
                for (integer k = 0; k < d; k++) dot += dhi[k] * (bi[k] - oi[k]);
                const REAL g = gate[i], ds = dot * g * (1 - g);
                const REAL pull = ds * r[i], along = normed ? pull * r[i] * s[i] / (REAL)d : 0;
                dlse[i] = -ds;
                for (integer k = 0; k < d; k++) {
                    const REAL through = g * dhi[k];
                    doi[k] = dhi[k] - through;
                    dbi[k] = through + pull * query[k] - along * bi[k];
                    part[k] += pull * bi[k];
                }
            }
            for (integer k = 0; k < d; k++) total[k] += part[k];
        }
    }
}

/* weights = exp(logits - lse), out_s[i] = sum_n weights[i, n, s] v_n[i]; logits and weights are [tokens, sources,
queries], lse is [tokens, queries]; every out_s is contiguous, so that the merges read it in one run */
void mix_forward(integer tokens, integer d, integer sources, integer queries, const REAL *logits,
                 const REAL *const *v, const integer *strides, REAL *restrict lse, REAL *restrict weights,
                 REAL *const *out, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        const REAL *li = logits + i * sources * queries;
        REAL *restrict ai = weights + i * sources * queries;
        for (integer s = 0; s < queries; s++) {
            REAL top = li[s], total = 0;
            for (integer n = 1; n < sources; n++) top = li[n * queries + s] > top ? li[n * queries + s] : top;
            for (integer n = 0; n < sources; n++) total += ai[n * queries + s] = exp(li[n * queries + s] - top);
            for (integer n = 0; n < sources; n++) ai[n * queries + s] /= total;
            lse[i * queries + s] = top + log(total);
        }
        for (integer n = 0; n < sources; n++) {
            const REAL *vi = v[n] + i * strides[n];
            for (integer s = 0; s < queries; s++) {
                const REAL w = ai[n * queries + s];
                REAL *restrict oi = out[s] + i * d;
                if (n == 0)
                    for (integer k = 0; k < d; k++) oi[k] = w * vi[k];
                else
                    for (integer k = 0; k < d; k++) oi[k] += w * vi[k];
            }
        }
    }
}

/* dv_n[i] = sum_s weights[i, n, s] dout_s[i],
dlogits[i, n, s] = weights[i, n, s] (D_ns - sum_m weights[i, m, s] D_ms + dlse_s),  D_ns = dout_s[i] . v_n[i] */
void mix_backward(integer tokens, integer d, integer sources, integer queries, const REAL *weights,
                  const REAL *const *v, const integer *strides, const REAL *const *dout,
                  const integer *dout_strides, REAL *const *dv, const integer *dv_strides, const REAL *dlse, REAL *restrict dlogits,
                  int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        const REAL *ai = weights + i * sources * queries;
        REAL *restrict di = dlogits + i * sources * queries;
        for (integer n = 0; n < sources; n++) {
            const REAL *vi = v[n] + i * strides[n];
            REAL *restrict dvi = dv[n] + i * dv_strides[n];
            for (integer s = 0; s < queries; s++) {
                const REAL *gi = dout[s] + i * dout_strides[s], w = ai[n * queries + s];
                REAL dot = 0;
                if (s == 0)
                    for (integer k = 0; k < d; k++) {
                        dot += gi[k] * vi[k];
                        dvi[k] = w * gi[k];
                    }
                else
                    for (integer k = 0; k < d; k++) {
                        dot += gi[k] * vi[k];
                        dvi[k] += w * gi[k];
                    }
                di[n * queries + s] = dot;
            }
        }
        for (integer s = 0; s < queries; s++) {
            REAL mean = 0;
            for (integer n = 0; n < sources; n++) mean += ai[n * queries + s] * di[n * queries + s];
            for (integer n = 0; n < sources; n++) {
                REAL *restrict one = di + n * queries + s;
                *one = ai[n * queries + s] * (*one - mean + dlse[i * queries + s]);
            }
        }
    }
}
