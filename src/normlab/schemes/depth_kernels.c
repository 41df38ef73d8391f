/* The passes over memory of fast reads (depth_reads.py has the formulas), one pass each where PyTorch needs three to nine.

REAL is float or double. Row i of a tensor [tokens, d] starts at p + i * stride; numbers per token are contiguous.
Built by depth_kernels.py, once per machine and type. */
#include "kernels.h"
#ifdef _OPENMP
#include <omp.h>
#endif

int parallel(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

/* h = o + g (b - o), g = sigmoid(s - lse), s = r (b . query); r = 1 / rms(b), or 1 if not `normed`. With a gain, what is
written is its RMSNorm, gain h / rms(h). stats is [4, tokens]: r, s, g and 1 / rms(h). */
void merge_forward(integer tokens, integer d, const REAL *o, integer o_stride, const REAL *lse, integer lse_stride,
                   const REAL *b, integer b_stride, const REAL *query, int normed, double eps, const REAL *gain,
                   double norm_eps, REAL *restrict h, REAL *restrict stats, int threads) {
    REAL *restrict r = stats, *restrict s = stats + tokens, *restrict gate = stats + 2 * tokens;
    REAL *restrict scale = stats + 3 * tokens;
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
        if (gain) {
            REAL size = 0;
            for (integer k = 0; k < d; k++) {
                const REAL one = oi[k] + g * (bi[k] - oi[k]);
                hi[k] = one;
                size += one * one;
            }
            const REAL ri = scale[i] = 1 / sqrt(size / (REAL)d + (REAL)norm_eps);
            for (integer k = 0; k < d; k++) hi[k] *= ri * gain[k];
        } else {
            scale[i] = 1;
            for (integer k = 0; k < d; k++) hi[k] = oi[k] + g * (bi[k] - oi[k]);
        }
    }
}

/* do = (1 - g) dh, ds = g (1 - g) dh . (b - o) = -dlse, db = through + g dh + ds (r query - s r^2 b / d), dquery = sum of
ds r b. With a gain, the gradient that arrives is that of the norm: dh = q gain dx - q^3 (gain dx . h) h / d, q = 1 / rms(h),
and dgain = sum of dx h q. sums is [threads, 4, d]: totals of dquery and dgain, and room for a block's sums. */
void merge_backward(integer tokens, integer d, const REAL *grad, integer grad_stride, const REAL *o, integer o_stride,
                    const REAL *b, integer b_stride, const REAL *query, int normed, const REAL *stats, const REAL *gain,
                    const REAL *through, integer through_stride, REAL *restrict grad_o, integer grad_o_stride,
                    REAL *restrict dlse, REAL *restrict db, REAL *sums, int threads) {
    const REAL *r = stats, *s = stats + tokens, *gate = stats + 2 * tokens, *scale = stats + 3 * tokens;
    const integer share = (tokens + threads - 1) / threads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        const integer end = least(tokens, (t + 1) * share);
        REAL *restrict total = sums + 4 * t * d;
        REAL *restrict part = total + 2 * d, *restrict part_gain = total + 3 * d;
        for (integer k = 0; k < 2 * d; k++) total[k] = 0;
        for (integer start = t * share; start < end; start += BLOCK) {
            for (integer k = 0; k < 2 * d; k++) part[k] = 0;
            for (integer i = start; i < least(end, start + BLOCK); i++) {
                const REAL *bi = b + i * b_stride, *oi = o + i * o_stride, *gi = grad + i * grad_stride;
                REAL *restrict doi = grad_o + i * grad_o_stride, *restrict dbi = db + i * d;
                const REAL g = gate[i], q = scale[i];
                REAL dot = 0, along_h = 0;
                if (gain) {
                    REAL with_h = 0, with_gap = 0, both = 0;
                    for (integer k = 0; k < d; k++) {
                        const REAL gap = bi[k] - oi[k], h = oi[k] + g * gap, up = gain[k] * gi[k];
                        with_h += up * h;
                        with_gap += up * gap;
                        both += h * gap;
                    }
                    along_h = with_h * q * q * q / (REAL)d;
                    dot = q * with_gap - along_h * both;
                } else
                    for (integer k = 0; k < d; k++) dot += gi[k] * (bi[k] - oi[k]);
                const REAL ds = dot * g * (1 - g), pull = ds * r[i], along = normed ? pull * r[i] * s[i] / (REAL)d : 0;
                dlse[i] = -ds;
                const REAL *ti = through ? through + i * through_stride : 0;
#define NORMED(START)                                                                                               \
    APART for (integer k = 0; k < d; k++) {                                                                         \
        const REAL h = oi[k] + g * (bi[k] - oi[k]), dh = q * gain[k] * gi[k] - along_h * h, past = g * dh;          \
        doi[k] = dh - past;                                                                                         \
        dbi[k] = (START) + (past + pull * query[k] - along * bi[k]);                                                \
        part[k] += pull * bi[k];                                                                                    \
        part_gain[k] += gi[k] * h * q;                                                                              \
    }
#define PLAIN(START)                                                                                                \
    APART for (integer k = 0; k < d; k++) {                                                                         \
        const REAL past = g * gi[k];                                                                                \
        doi[k] = gi[k] - past;                                                                                      \
        dbi[k] = (START) + (past + pull * query[k] - along * bi[k]);                                                \
        part[k] += pull * bi[k];                                                                                    \
    }
                if (gain && ti)
                    NORMED(ti[k])
                else if (gain)
                    NORMED(0)
                else if (ti)
                    PLAIN(ti[k])
                else
                    PLAIN(0)
#undef NORMED
#undef PLAIN
            }
            for (integer k = 0; k < 2 * d; k++) total[k] += part[k];
        }
    }
}

/* out += sum_n w[n] v_n[i] over the sources from `first` to `end`, four at a time: the sum is read and written a quarter as
often. The first source of all begins the sum. */
#define WEIGH(NAME, NEXT)                                                                                              \
    static void NAME(integer i, integer d, integer first, integer end, const REAL *w, integer step,                    \
                     const REAL *const *v, const integer *strides, REAL *restrict out) {                               \
        integer n = first;                                                                                             \
        for (; n + 4 <= end; n += 4) {                                                                                 \
            const REAL *a = v[n] + i * strides[n], *b = v[n + 1] + i * strides[n + 1];                                 \
            const REAL *c = v[n + 2] + i * strides[n + 2], *e = v[n + 3] + i * strides[n + 3];                         \
            const REAL wa = w[n * step], wb = w[(n + 1) * step], wc = w[(n + 2) * step], we = w[(n + 3) * step];       \
            if (n)                                                                                                     \
                for (integer k = 0; k < d; k++) out[k] = NEXT;                                                         \
            else                                                                                                       \
                for (integer k = 0; k < d; k++) out[k] = wa * a[k] + wb * b[k] + wc * c[k] + we * e[k];                \
        }                                                                                                              \
        for (; n < end; n++) {                                                                                         \
            const REAL *a = v[n] + i * strides[n], wa = w[n * step];                                                   \
            if (n)                                                                                                     \
                for (integer k = 0; k < d; k++) out[k] += wa * a[k];                                                   \
            else                                                                                                       \
                for (integer k = 0; k < d; k++) out[k] = wa * a[k];                                                    \
        }                                                                                                              \
    }

WEIGH(weigh, out[k] + (wa * a[k] + wb * b[k] + wc * c[k] + we * e[k]))

/* The same in the order of the sources: with weights of 1 they add up as a residual stream does, to the last bit. */
#if defined(__clang__)
#pragma float_control(precise, on, push)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("no-associative-math")
#endif
WEIGH(add_up, out[k] + wa * a[k] + wb * b[k] + wc * c[k] + we * e[k])
#if defined(__clang__)
#pragma float_control(pop)
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif

/* weights = whole softmax(logits), out_s[i] = sum_n weights[i, n, s] v_n[i]; logits and weights are [tokens, sources,
queries], lse = log sum exp(logits) / whole is [tokens, queries]; every out_s is contiguous, so that the merges read it in
one run. With whole = sources and equal logits, weights are 1 and lse is a logit, both exactly. */
void mix_forward(integer tokens, integer d, integer sources, integer queries, double whole, const REAL *logits,
                 const REAL *const *v, const integer *strides, REAL *restrict lse, REAL *restrict weights,
                 REAL *const *out, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer start = 0; start < tokens; start += TILE) {
        const integer end = least(tokens, start + TILE);
        for (integer i = start; i < end; i++) {
            const REAL *li = logits + i * sources * queries;
            REAL *restrict ai = weights + i * sources * queries;
            REAL *restrict top = lse + i * queries;
            for (integer s = 0; s < queries; s++) {
                top[s] = li[s];
                for (integer n = 1; n < sources; n++) top[s] = li[n * queries + s] > top[s] ? li[n * queries + s] : top[s];
                for (integer n = 0; n < sources; n++) ai[n * queries + s] = li[n * queries + s] - top[s];
            }
            for (integer j = 0; j < sources * queries; j++) ai[j] = raised(ai[j]);
            for (integer s = 0; s < queries; s++) {
                REAL total = 0;
                for (integer n = 0; n < sources; n++) total += ai[n * queries + s];
                for (integer n = 0; n < sources; n++) ai[n * queries + s] = ai[n * queries + s] * (REAL)whole / total;
                top[s] += log(total / (REAL)whole);
            }
        }
        for (integer n = 0; n < sources; n += 4)
            for (integer i = start; i < end; i++) {
                const REAL *ai = weights + i * sources * queries;
                for (integer s = 0; s < queries; s++)
                    (whole == 1 ? weigh : add_up)(i, d, n, least(sources, n + 4), ai + s, queries, v, strides, out[s] + i * d);
            }
    }
}

/* dv_n[i] = through_n[i] + sum_s weights[i, n, s] dout_s[i],
dlogits[i, n, s] = weights[i, n, s] (D_ns - sum_m weights[i, m, s] D_ms / whole + dlse_s / whole),  D_ns = dout_s[i] . v_n[i];
through_n is what came to v_n from elsewhere, null, or dv_n itself. A few tokens of one source, then the same tokens of the next: rows
that lie side by side are read together, and the gradients of the outputs stay near. Four queries at a time: a source is
read and its gradient written a quarter as often. */
void mix_backward(integer tokens, integer d, integer sources, integer queries, double whole, const REAL *weights,
                  const REAL *const *v, const integer *strides, const REAL *const *dout, const integer *dout_strides,
                  const REAL *const *through, const integer *through_strides, REAL *const *dv, const integer *dv_strides,
                  const REAL *dlse, REAL *restrict dlogits, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer start = 0; start < tokens; start += TILE) {
        const integer end = least(tokens, start + TILE);
        for (integer n = 0; n < sources; n++)
            for (integer i = start; i < end; i++) {
                const REAL *vi = v[n] + i * strides[n], *ti = through[n] ? through[n] + i * through_strides[n] : 0;
                REAL *restrict dvi = dv[n] + i * dv_strides[n];
                const REAL *w = weights + (i * sources + n) * queries;
                REAL *restrict di = dlogits + (i * sources + n) * queries;
                integer s = 0;
                for (; s + 4 <= queries; s += 4) {
                    const REAL *a = dout[s] + i * dout_strides[s], *b = dout[s + 1] + i * dout_strides[s + 1];
                    const REAL *c = dout[s + 2] + i * dout_strides[s + 2], *e = dout[s + 3] + i * dout_strides[s + 3];
                    const REAL wa = w[s], wb = w[s + 1], wc = w[s + 2], we = w[s + 3];
                    REAL da = 0, db = 0, dc = 0, de = 0;
#define STEP(START)                                                                     \
    APART for (integer k = 0; k < d; k++) {                                             \
        const REAL one = vi[k];                                                         \
        da += a[k] * one, db += b[k] * one, dc += c[k] * one, de += e[k] * one;         \
        dvi[k] = (START) + (wa * a[k] + wb * b[k] + wc * c[k] + we * e[k]);             \
    }
                    if (s || ti == dvi)
                        STEP(dvi[k])
                    else if (ti)
                        STEP(ti[k])
                    else
                        STEP(0)
#undef STEP
                    di[s] = da, di[s + 1] = db, di[s + 2] = dc, di[s + 3] = de;
                }
                for (; s < queries; s++) {
                    const REAL *a = dout[s] + i * dout_strides[s], wa = w[s];
                    REAL da = 0;
#define STEP(START)                               \
    APART for (integer k = 0; k < d; k++) {       \
        da += a[k] * vi[k];                       \
        dvi[k] = (START) + wa * a[k];             \
    }
                    if (s || ti == dvi)
                        STEP(dvi[k])
                    else if (ti)
                        STEP(ti[k])
                    else
                        STEP(0)
#undef STEP
                    di[s] = da;
                }
            }
        for (integer i = start; i < end; i++) {
            const REAL *ai = weights + i * sources * queries;
            REAL *restrict di = dlogits + i * sources * queries;
            for (integer s = 0; s < queries; s++) {
                REAL mean = 0;
                for (integer n = 0; n < sources; n++) mean += ai[n * queries + s] * di[n * queries + s];
                const REAL pull = (dlse[i * queries + s] - mean) / (REAL)whole;
                for (integer n = 0; n < sources; n++) di[n * queries + s] = ai[n * queries + s] * (di[n * queries + s] + pull);
            }
        }
    }
}

/* One read: h = sum_n weights_n v_n, and with a gain its RMSNorm; weights_n = whole exp(logits_n) / total, where the first
source counts `mass` times in the total. logits_n and v_n are [tokens] and [tokens, d] wherever they lie; weights is
[tokens, sources]; scale is 1 / rms(h). */
void attend_forward(integer tokens, integer d, integer sources, double mass, double whole, const REAL *const *logits,
                    const integer *steps, const REAL *const *v, const integer *strides, const REAL *gain, double eps,
                    REAL *restrict h, REAL *restrict weights, REAL *restrict scale, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        REAL *restrict ai = weights + i * sources, *restrict hi = h + i * d;
        REAL top = logits[0][i * steps[0]], total = 0, size = 0;
        for (integer n = 0; n < sources; n++) {
            ai[n] = logits[n][i * steps[n]];
            top = ai[n] > top ? ai[n] : top;
        }
        total = (REAL)mass * (ai[0] = raised(ai[0] - top));
        for (integer n = 1; n < sources; n++) total += ai[n] = raised(ai[n] - top);
        for (integer n = 0; n < sources; n++) ai[n] = ai[n] * (REAL)whole / total;
        if (whole == 1)
            weigh(i, d, 0, sources, ai, 1, v, strides, hi);
        else
            add_up(i, d, 0, sources, ai, 1, v, strides, hi);
        scale[i] = 1;
        if (!gain) continue;
        for (integer k = 0; k < d; k++) size += hi[k] * hi[k];
        const REAL q = scale[i] = 1 / sqrt(size / (REAL)d + (REAL)eps);
        for (integer k = 0; k < d; k++) hi[k] *= q * gain[k];
    }
}

/* dv_n = through_n + weights_n dh, dlogits_n = weights_n (D_n - m_n sum_m weights_m D_m / whole), D_n = dh . v_n, where m_n
is `mass` for the first source and 1 for the others; dlogits is [sources, tokens]. With a gain dh is that of the norm, as
in merge_backward. sums is [threads, 4, d]: dgain, a block's sum, h, dh. */
void attend_backward(integer tokens, integer d, integer sources, double mass, double whole, const REAL *grad,
                     integer grad_stride, const REAL *weights, const REAL *const *v, const integer *strides, const REAL *gain,
                     const REAL *scale, const REAL *const *through, const integer *through_strides, REAL *const *dv,
                     const integer *dv_strides, REAL *restrict dlogits, REAL *sums, int threads) {
    const integer share = (tokens + threads - 1) / threads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        const integer end = least(tokens, (t + 1) * share);
        REAL *restrict total = sums + 4 * t * d, *restrict part = total + d, *restrict h = total + 2 * d;
        REAL *restrict dh = total + 3 * d;
        for (integer k = 0; k < d; k++) total[k] = 0;
        for (integer start = t * share; start < end; start += BLOCK) {
            for (integer k = 0; k < d; k++) part[k] = 0;
            for (integer i = start; i < least(end, start + BLOCK); i++) {
                const REAL *ai = weights + i * sources, *gi = grad + i * grad_stride, *up = gi;
                if (gain) {
                    const REAL q = scale[i];
                    REAL dot = 0;
                    weigh(i, d, 0, sources, ai, 1, v, strides, h);
                    for (integer k = 0; k < d; k++) dot += gi[k] * gain[k] * h[k];
                    const REAL along = dot * q * q * q / (REAL)d;
                    for (integer k = 0; k < d; k++) {
                        dh[k] = q * gain[k] * gi[k] - along * h[k];
                        part[k] += gi[k] * h[k] * q;
                    }
                    up = dh;
                }
                REAL mean = 0;
                for (integer n = 0; n < sources; n++) {
                    const REAL *vi = v[n] + i * strides[n], w = ai[n];
                    REAL *restrict dvi = dv[n] + i * dv_strides[n];
                    REAL dot = 0;
                    const REAL *ti = through[n] ? through[n] + i * through_strides[n] : 0;
                    if (ti == dvi) {
                        APART for (integer k = 0; k < d; k++) {
                            dot += up[k] * vi[k];
                            dvi[k] += w * up[k];
                        }
                    } else if (ti) {
                        APART for (integer k = 0; k < d; k++) {
                            dot += up[k] * vi[k];
                            dvi[k] = ti[k] + w * up[k];
                        }
                    } else
                        APART for (integer k = 0; k < d; k++) {
                            dot += up[k] * vi[k];
                            dvi[k] = w * up[k];
                        }
                    dlogits[n * tokens + i] = dot;
                    mean += w * dot;
                }
                mean /= (REAL)whole;
                for (integer n = 0; n < sources; n++)
                    dlogits[n * tokens + i] = ai[n] * (dlogits[n * tokens + i] - (n ? mean : (REAL)mass * mean));
            }
            for (integer k = 0; k < d; k++) total[k] += part[k];
        }
    }
}
