/* Passes over memory of schemes with n streams, and of RMSNorm (streams.py has the formulas), one pass each.

REAL is float or double. Stream k of token i starts at x + i * x_token + k * x_stream; a vector per token is contiguous
unless a stride is given. Sums over tokens are [threads, 2, size]: the first row of each thread is its total, the second
room for a block's sum. Built with depth_kernels.c into one library. */
#include "../kernels.h"

#define WIDE 16 /* tokens that go through Sinkhorn side by side */

/* The share of thread t begins at a multiple of `grain`. */
static integer first_of(integer tokens, int threads, integer grain, integer t) {
    const integer grains = (tokens + grain - 1) / grain, share = (grains + threads - 1) / threads;
    return least(tokens, t * share * grain);
}

/* y = g x r, r = 1 / sqrt(mean(x^2) + eps) */
void rms_forward(integer tokens, integer d, const REAL *x, integer x_stride, const REAL *g, double eps, REAL *restrict y,
                 REAL *restrict r, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        const REAL *xi = x + i * x_stride;
        REAL *restrict yi = y + i * d;
        REAL squares = 0;
        for (integer k = 0; k < d; k++) squares += xi[k] * xi[k];
        const REAL ri = r[i] = 1 / sqrt(squares / (REAL)d + (REAL)eps);
        for (integer k = 0; k < d; k++) yi[k] = xi[k] * ri * g[k];
    }
}

/* dx = through + r g dy - x r^3 (dy g . x) / d, dg = sum of dy x r; through: the gradient that came past the norm, or null */
void rms_backward(integer tokens, integer d, const REAL *dy, integer dy_stride, const REAL *x, integer x_stride,
                  const REAL *g, const REAL *r, const REAL *through, integer through_stride, REAL *restrict dx, REAL *dg,
                  int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        const integer end = first_of(tokens, threads, 1, t + 1);
        REAL *restrict total = dg + 2 * t * d, *restrict part = total + d;
        for (integer k = 0; k < d; k++) total[k] = 0;
        for (integer start = first_of(tokens, threads, 1, t); start < end; start += BLOCK) {
            for (integer k = 0; k < d; k++) part[k] = 0;
            for (integer i = start; i < least(end, start + BLOCK); i++) {
                const REAL *xi = x + i * x_stride, *dyi = dy + i * dy_stride, ri = r[i];
                REAL *restrict dxi = dx + i * d;
                REAL dot = 0;
                for (integer k = 0; k < d; k++) dot += dyi[k] * g[k] * xi[k];
                const REAL along = dot * ri * ri * ri / (REAL)d;
                if (through) {
                    const REAL *ti = through + i * through_stride;
                    for (integer k = 0; k < d; k++) {
                        dxi[k] = ti[k] + (ri * g[k] * dyi[k] - along * xi[k]);
                        part[k] += dyi[k] * xi[k] * ri;
                    }
                } else
                    for (integer k = 0; k < d; k++) {
                        dxi[k] = ri * g[k] * dyi[k] - along * xi[k];
                        part[k] += dyi[k] * xi[k] * ri;
                    }
            }
            for (integer k = 0; k < d; k++) total[k] += part[k];
        }
    }
}

/* y_k = g_k X_k r_k for n streams with a gain each; y is [tokens, n, d], r is [tokens, n] */
void norms_forward(integer tokens, integer n, integer d, const REAL *x, integer x_token, integer x_stream, const REAL *g,
                   double eps, REAL *restrict y, REAL *restrict r, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++)
        for (integer s = 0; s < n; s++) {
            const REAL *xs = x + i * x_token + s * x_stream, *gs = g + s * d;
            REAL *restrict ys = y + (i * n + s) * d;
            REAL squares = 0;
            for (integer k = 0; k < d; k++) squares += xs[k] * xs[k];
            const REAL q = r[i * n + s] = 1 / sqrt(squares / (REAL)d + (REAL)eps);
            for (integer k = 0; k < d; k++) ys[k] = xs[k] * q * gs[k];
        }
}

/* The gradient of the above, with what came past the norms (or null); sums is [threads, 2, n d] for the gains. */
void norms_backward(integer tokens, integer n, integer d, const REAL *dy, const REAL *x, integer x_token,
                    integer x_stream, const REAL *g, const REAL *r, const REAL *through, REAL *restrict dx, REAL *sums,
                    int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        const integer end = first_of(tokens, threads, 1, t + 1), size = n * d;
        REAL *restrict total = sums + 2 * t * size, *restrict part = total + size;
        for (integer k = 0; k < size; k++) total[k] = 0;
        for (integer start = first_of(tokens, threads, 1, t); start < end; start += BLOCK) {
            for (integer k = 0; k < size; k++) part[k] = 0;
            for (integer i = start; i < least(end, start + BLOCK); i++)
                for (integer s = 0; s < n; s++) {
                    const REAL *xs = x + i * x_token + s * x_stream, *gs = g + s * d, *ds = dy + (i * n + s) * d;
                    const REAL *ts = through ? through + (i * n + s) * d : 0, q = r[i * n + s];
                    REAL *restrict out = dx + (i * n + s) * d, *restrict own = part + s * d;
                    REAL dot = 0;
                    for (integer k = 0; k < d; k++) dot += ds[k] * gs[k] * xs[k];
                    const REAL along = dot * q * q * q / (REAL)d;
                    for (integer k = 0; k < d; k++) {
                        out[k] = q * gs[k] * ds[k] - along * xs[k];
                        own[k] += ds[k] * xs[k] * q;
                    }
                    if (ts)
                        for (integer k = 0; k < d; k++) out[k] += ts[k];
                }
            for (integer k = 0; k < size; k++) total[k] += part[k];
        }
    }
}

/* z = mean_k sigmoid(u_k) y_k; u and y are [tokens, n, d] */
void gated_forward(integer tokens, integer n, integer d, const REAL *u, const REAL *y, REAL *restrict z, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        REAL *restrict zi = z + i * d;
        for (integer s = 0; s < n; s++) {
            const REAL *us = u + (i * n + s) * d, *ys = y + (i * n + s) * d;
            if (s)
                for (integer k = 0; k < d; k++) zi[k] += ys[k] / ((1 + raised(-us[k])) * (REAL)n);
            else
                for (integer k = 0; k < d; k++) zi[k] = ys[k] / ((1 + raised(-us[k])) * (REAL)n);
        }
    }
}

/* du = dz y s (1 - s) / n, dy = dz s / n, s = sigmoid(u) */
void gated_backward(integer tokens, integer n, integer d, const REAL *dz, integer dz_stride, const REAL *u, const REAL *y,
                    REAL *restrict du, REAL *restrict dy, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        const REAL *di = dz + i * dz_stride;
        for (integer s = 0; s < n; s++) {
            const integer at = (i * n + s) * d;
            APART for (integer k = 0; k < d; k++) {
                const REAL gate = 1 / (1 + raised(-u[at + k])), up = di[k] / (REAL)n;
                dy[at + k] = up * gate;
                du[at + k] = up * y[at + k] * gate * (1 - gate);
            }
        }
    }
}

/* r = 1 / sqrt(mean(x^2) + eps) of every row */
void inverse_rms(integer rows, integer d, const REAL *x, integer x_stride, double eps, REAL *restrict r, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < rows; i++) {
        const REAL *xi = x + i * x_stride;
        REAL squares = 0;
        for (integer k = 0; k < d; k++) squares += xi[k] * xi[k];
        r[i] = 1 / sqrt(squares / (REAL)d + (REAL)eps);
    }
}

static void gather(integer n, integer d, const REAL *x, integer x_stream, const REAL *pre, REAL *restrict h) {
    if (n == 4) {
        const REAL *a = x, *b = x + x_stream, *c = x + 2 * x_stream, *e = x + 3 * x_stream;
        const REAL wa = pre[0], wb = pre[1], wc = pre[2], we = pre[3];
        for (integer k = 0; k < d; k++) h[k] = wa * a[k] + wb * b[k] + wc * c[k] + we * e[k];
        return;
    }
    for (integer k = 0; k < d; k++) h[k] = pre[0] * x[k];
    for (integer s = 1; s < n; s++) {
        const REAL *xs = x + s * x_stream, w = pre[s];
        for (integer k = 0; k < d; k++) h[k] += w * xs[k];
    }
}

/* y = g h r, h = sum_k pre_k X_k */
void read_forward(integer tokens, integer n, integer d, const REAL *x, integer x_token, integer x_stream,
                  const REAL *pre, integer pre_token, const REAL *g, double eps, REAL *restrict y, REAL *restrict r,
                  int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        REAL *restrict yi = y + i * d;
        REAL squares = 0;
        gather(n, d, x + i * x_token, x_stream, pre + i * pre_token, yi);
        for (integer k = 0; k < d; k++) squares += yi[k] * yi[k];
        const REAL ri = r[i] = 1 / sqrt(squares / (REAL)d + (REAL)eps);
        for (integer k = 0; k < d; k++) yi[k] *= ri * g[k];
    }
}

/* dh of the norm, dpre_k = dh . X_k, dX_k = through_k + pre_k dh (through: the gradient that came past the branch, or
null), dg; dh is kept for `along` below: room is [threads, 2, d]. */
void read_backward(integer tokens, integer n, integer d, const REAL *dy, integer dy_stride, const REAL *x,
                   integer x_token, integer x_stream, const REAL *pre, integer pre_token, const REAL *g, const REAL *r,
                   const REAL *through, REAL *restrict dx, REAL *restrict dpre, REAL *dg, REAL *room, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        const integer end = first_of(tokens, threads, 1, t + 1);
        REAL *restrict total = dg + 2 * t * d, *restrict part = total + d;
        REAL *restrict h = room + 2 * t * d, *restrict dh = h + d;
        for (integer k = 0; k < d; k++) total[k] = 0;
        for (integer start = first_of(tokens, threads, 1, t); start < end; start += BLOCK) {
            for (integer k = 0; k < d; k++) part[k] = 0;
            for (integer i = start; i < least(end, start + BLOCK); i++) {
                const REAL *xi = x + i * x_token, *pi = pre + i * pre_token, *dyi = dy + i * dy_stride, ri = r[i];
                REAL dot = 0;
                gather(n, d, xi, x_stream, pi, h);
                for (integer k = 0; k < d; k++) dot += dyi[k] * g[k] * h[k];
                const REAL along = dot * ri * ri * ri / (REAL)d;
                for (integer k = 0; k < d; k++) {
                    dh[k] = ri * g[k] * dyi[k] - along * h[k];
                    part[k] += dyi[k] * h[k] * ri;
                }
                for (integer s = 0; s < n; s++) {
                    const REAL *xs = xi + s * x_stream, w = pi[s];
                    REAL *restrict dxs = dx + (i * n + s) * d;
                    REAL sum = 0;
                    if (through) {
                        const REAL *ts = through + (i * n + s) * d;
                        for (integer k = 0; k < d; k++) {
                            sum += dh[k] * xs[k];
                            dxs[k] = ts[k] + w * dh[k];
                        }
                    } else
                        for (integer k = 0; k < d; k++) {
                            sum += dh[k] * xs[k];
                            dxs[k] = w * dh[k];
                        }
                    dpre[i * n + s] = sum;
                }
            }
            for (integer k = 0; k < d; k++) total[k] += part[k];
        }
    }
}

/* dX_row += along_row X_row: what the norm in front of a product adds; rows are [tokens, n] */
void add_along(integer tokens, integer n, integer d, const REAL *x, integer x_token, integer x_stream,
               const REAL *along, integer along_token, integer along_stream, REAL *restrict dx, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++)
        for (integer s = 0; s < n; s++) {
            const REAL *xs = x + i * x_token + s * x_stream, w = along[i * along_token + s * along_stream];
            REAL *restrict dxs = dx + (i * n + s) * d;
            for (integer k = 0; k < d; k++) dxs[k] += w * xs[k];
        }
}

/* X'_k = sum_j res_kj X_j + post_k y */
void write_forward(integer tokens, integer n, integer d, const REAL *x, integer x_token, integer x_stream, const REAL *y,
                   integer y_stride, const REAL *res, integer res_token, const REAL *post, integer post_token,
                   REAL *restrict out, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        const REAL *xi = x + i * x_token, *yi = y + i * y_stride;
        const REAL *ri = res + i * res_token, *pi = post + i * post_token;
        for (integer s = 0; s < n; s++) {
            const REAL *row = ri + s * n, p = pi[s];
            REAL *restrict os = out + (i * n + s) * d;
            if (n == 4) {
                const REAL *a = xi, *b = xi + x_stream, *c = xi + 2 * x_stream, *e = xi + 3 * x_stream;
                const REAL wa = row[0], wb = row[1], wc = row[2], we = row[3];
                for (integer k = 0; k < d; k++)
                    os[k] = wa * a[k] + wb * b[k] + wc * c[k] + we * e[k] + p * yi[k];
                continue;
            }
            for (integer k = 0; k < d; k++) os[k] = p * yi[k];
            for (integer j = 0; j < n; j++) {
                const REAL *xj = xi + j * x_stream, w = row[j];
                for (integer k = 0; k < d; k++) os[k] += w * xj[k];
            }
        }
    }
}

/* dX_j = sum_k res_kj D_k, dy = sum_k post_k D_k, dres_kj = D_k . X_j, dpost_k = D_k . y, for D the gradient of X' */
void write_backward(integer tokens, integer n, integer d, const REAL *grad, const REAL *x, integer x_token,
                    integer x_stream, const REAL *y, integer y_stride, const REAL *res, integer res_token,
                    const REAL *post, integer post_token, REAL *restrict dx, REAL *restrict dy, REAL *restrict dres,
                    REAL *restrict dpost, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        const REAL *xi = x + i * x_token, *yi = y + i * y_stride, *gi = grad + i * n * d;
        const REAL *ri = res + i * res_token, *pi = post + i * post_token;
        gather(n, d, gi, d, pi, dy + i * d);
        for (integer j = 0; j < n; j++) {
            const REAL *xj = xi + j * x_stream;
            REAL *restrict dxj = dx + (i * n + j) * d;
            if (n == 4) {
                const REAL *a = gi, *b = gi + d, *c = gi + 2 * d, *e = gi + 3 * d;
                const REAL wa = ri[j], wb = ri[4 + j], wc = ri[8 + j], we = ri[12 + j];
                REAL sa = 0, sb = 0, sc = 0, se = 0;
                for (integer k = 0; k < d; k++) {
                    dxj[k] = wa * a[k] + wb * b[k] + wc * c[k] + we * e[k];
                    sa += a[k] * xj[k];
                    sb += b[k] * xj[k];
                    sc += c[k] * xj[k];
                    se += e[k] * xj[k];
                }
                REAL *restrict dr = dres + i * 16 + j;
                dr[0] = sa, dr[4] = sb, dr[8] = sc, dr[12] = se;
                continue;
            }
            for (integer s = 0; s < n; s++) {
                const REAL *gs = gi + s * d, w = ri[s * n + j];
                REAL sum = 0;
                for (integer k = 0; k < d; k++) {
                    dxj[k] = s ? dxj[k] + w * gs[k] : w * gs[k];
                    sum += gs[k] * xj[k];
                }
                dres[(i * n + s) * n + j] = sum;
            }
        }
        for (integer s = 0; s < n; s++) {
            const REAL *gs = gi + s * d;
            REAL sum = 0;
            for (integer k = 0; k < d; k++) sum += gs[k] * yi[k];
            dpost[i * n + s] = sum;
        }
    }
}

/* X'_k = X_k + post_k y, for streams that are not mixed */
void inject_forward(integer tokens, integer n, integer d, const REAL *x, integer x_token, integer x_stream,
                    const REAL *y, integer y_stride, const REAL *post, REAL *restrict out, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++)
        for (integer s = 0; s < n; s++) {
            const REAL *xs = x + i * x_token + s * x_stream, *yi = y + i * y_stride, p = post[i * n + s];
            REAL *restrict os = out + (i * n + s) * d;
            for (integer k = 0; k < d; k++) os[k] = xs[k] + p * yi[k];
        }
}

/* dy = sum_k post_k D_k, dpost_k = D_k . y; the gradient of X is D itself */
void inject_backward(integer tokens, integer n, integer d, const REAL *grad, const REAL *y, integer y_stride,
                     const REAL *post, REAL *restrict dy, REAL *restrict dpost, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        const REAL *gi = grad + i * n * d, *yi = y + i * y_stride;
        gather(n, d, gi, d, post + i * n, dy + i * d);
        for (integer s = 0; s < n; s++) {
            const REAL *gs = gi + s * d;
            REAL sum = 0;
            for (integer k = 0; k < d; k++) sum += gs[k] * yi[k];
            dpost[i * n + s] = sum;
        }
    }
}

/* Sinkhorn's half steps over WIDE tokens at once, x is [n, n, WIDE]. Step 0 is the columns' softmax; then rows where the
step is odd, columns where it is even (sinkhorn.py has the derivation). */
static void start(integer n, const REAL *logits, REAL eps, REAL *restrict x) {
    for (integer j = 0; j < n; j++) {
        REAL top[WIDE], total[WIDE];
        for (int w = 0; w < WIDE; w++) top[w] = logits[j * WIDE + w], total[w] = 0;
        for (integer k = 1; k < n; k++)
            for (int w = 0; w < WIDE; w++) {
                const REAL l = logits[(k * n + j) * WIDE + w];
                top[w] = l > top[w] ? l : top[w];
            }
        for (integer k = 0; k < n; k++)
            for (int w = 0; w < WIDE; w++) {
                const REAL e = raised(logits[(k * n + j) * WIDE + w] - top[w]);
                x[(k * n + j) * WIDE + w] = e;
                total[w] += e;
            }
        for (integer k = 0; k < n; k++)
            for (int w = 0; w < WIDE; w++) x[(k * n + j) * WIDE + w] = x[(k * n + j) * WIDE + w] / total[w] + eps;
    }
}

/* One line (row or column) of a half step. `outer` and `inner` are the strides across lines and along one. */
static void half_step(integer n, integer outer, integer inner, const REAL *x, REAL eps, REAL *restrict y) {
    for (integer a = 0; a < n; a++) {
        REAL total[WIDE];
        for (int w = 0; w < WIDE; w++) total[w] = 0;
        for (integer b = 0; b < n; b++)
            for (int w = 0; w < WIDE; w++) total[w] += x[(a * outer + b * inner) * WIDE + w];
        for (int w = 0; w < WIDE; w++) {
            const REAL sum = eps > 0 ? total[w] + eps : total[w] > (REAL)1e-30 ? total[w] : (REAL)1e-30;
            total[w] = 1 / sum;
        }
        for (integer b = 0; b < n; b++)
            for (int w = 0; w < WIDE; w++)
                y[(a * outer + b * inner) * WIDE + w] = x[(a * outer + b * inner) * WIDE + w] * total[w];
    }
}

/* A row may be so much smaller than all others that nothing is left of it in the columns' softmax; its logarithms still
know its shape: rows of y that lost their digits are the softmax over j of l_kj - logsumexp_k l_kj. */
static void rescue(integer n, const REAL *logits, const REAL *x, REAL *restrict y) {
    for (integer k = 0; k < n; k++)
        for (int w = 0; w < WIDE; w++) {
            REAL total = 0, top = 0, sum = 0;
            for (integer j = 0; j < n; j++) total += x[(k * n + j) * WIDE + w];
            if (!(total < (REAL)1e-30)) continue;
            for (int pass = 0; pass < 3; pass++)
                for (integer j = 0; j < n; j++) {
                    REAL high = logits[j * WIDE + w], all = 0;
                    for (integer m = 1; m < n; m++)
                        high = logits[(m * n + j) * WIDE + w] > high ? logits[(m * n + j) * WIDE + w] : high;
                    for (integer m = 0; m < n; m++) all += raised(logits[(m * n + j) * WIDE + w] - high);
                    const REAL l = logits[(k * n + j) * WIDE + w] - high - log(all);
                    if (pass == 0)
                        top = j == 0 || l > top ? l : top;
                    else if (pass == 1)
                        sum += raised(l - top);
                    else
                        y[(k * n + j) * WIDE + w] = raised(l - top) / sum;
                }
        }
}

/* All half steps, each state kept: states is [steps, n, n, WIDE]. */
static void iterate(integer n, integer steps, const REAL *logits, REAL eps, REAL *restrict states, int keep) {
    const integer size = n * n * WIDE;
    start(n, logits, eps, states);
    for (integer step = 1; step < steps; step++) {
        const REAL *x = states + (keep ? (step - 1) * size : ((step - 1) % 2) * size);
        REAL *y = states + (keep ? step * size : (step % 2) * size);
        step % 2 ? half_step(n, n, 1, x, eps, y) : half_step(n, 1, n, x, eps, y);
        if (step == 1 && !(eps > 0)) rescue(n, logits, x, y);
    }
}

/* logits and out are [tokens, n, n] with a stride per token; room is [threads, 3 n n WIDE] */
void sinkhorn_forward(integer tokens, integer n, integer iterations, const REAL *logits, integer stride, double eps,
                      REAL *restrict out, REAL *room, int threads) {
    const integer size = n * n * WIDE, steps = 2 * iterations;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        REAL *l = room + t * 3 * size, *states = l + size;
        const integer end = first_of(tokens, threads, WIDE, t + 1);
        for (integer i = first_of(tokens, threads, WIDE, t); i < end; i += WIDE) {
            const integer count = least(WIDE, end - i);
            for (integer w = 0; w < WIDE; w++) /* what is beyond the last token repeats it */
                for (integer m = 0; m < n * n; m++) l[m * WIDE + w] = logits[(i + least(w, count - 1)) * stride + m];
            iterate(n, steps, l, (REAL)eps, states, 0);
            const REAL *last = states + ((steps - 1) % 2) * size;
            for (integer w = 0; w < count; w++)
                for (integer m = 0; m < n * n; m++) out[(i + w) * n * n + m] = last[m * WIDE + w];
        }
    }
}

/* dL_x = dL_y - y sum(dL_y) from the last half step to the first; room is [threads, (2 iterations + 2) n n WIDE] */
void sinkhorn_backward(integer tokens, integer n, integer iterations, const REAL *logits, integer stride, double eps,
                       const REAL *grad, REAL *restrict dlogits, integer out_stride, REAL *room, int threads) {
    const integer size = n * n * WIDE, steps = 2 * iterations;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        REAL *l = room + t * (steps + 2) * size, *restrict g = l + size, *states = g + size;
        const integer end = first_of(tokens, threads, WIDE, t + 1);
        for (integer i = first_of(tokens, threads, WIDE, t); i < end; i += WIDE) {
            const integer count = least(WIDE, end - i);
            for (integer w = 0; w < WIDE; w++)
                for (integer m = 0; m < n * n; m++) {
                    const integer at = i + least(w, count - 1);
                    l[m * WIDE + w] = logits[at * stride + m];
                    g[m * WIDE + w] = grad[at * n * n + m];
                }
            iterate(n, steps, l, (REAL)eps, states, 1);
            const REAL *last = states + (steps - 1) * size;
            for (integer m = 0; m < size; m++) g[m] *= last[m];
            for (integer step = steps - 1; step >= 0; step--) {
                REAL *y = states + step * size;
                const integer outer = step % 2 ? n : 1, inner = step % 2 ? 1 : n;
                if (step == 0 && eps > 0) /* y = p + eps, p the softmax */
                    for (integer m = 0; m < size; m++) {
                        const REAL p = y[m] - (REAL)eps;
                        g[m] *= p / y[m];
                        y[m] = p;
                    }
                for (integer a = 0; a < n; a++) {
                    REAL total[WIDE];
                    for (int w = 0; w < WIDE; w++) total[w] = 0;
                    for (integer b = 0; b < n; b++)
                        for (int w = 0; w < WIDE; w++) total[w] += g[(a * outer + b * inner) * WIDE + w];
                    for (integer b = 0; b < n; b++)
                        for (int w = 0; w < WIDE; w++)
                            g[(a * outer + b * inner) * WIDE + w] -= y[(a * outer + b * inner) * WIDE + w] * total[w];
                }
            }
            for (integer w = 0; w < count; w++)
                for (integer m = 0; m < n * n; m++) dlogits[(i + w) * out_stride + m] = g[m * WIDE + w];
        }
    }
}

/* z = raw r in place; pre = sigmoid(alpha_0 z + b) + pre_eps, post = size sigmoid(alpha_1 z + b) + post_eps, and of the
n n others, where there are (m = 2 n + n n), the logits alpha_2 z + b. raw is [tokens, m]. */
void gates_forward(integer tokens, integer n, integer m, REAL *restrict raw, const REAL *r, const REAL *alpha,
                   const REAL *bias, double pre_eps, double size, double post_eps, REAL *restrict pre,
                   REAL *restrict post, REAL *restrict logits, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++) {
        REAL *restrict z = raw + i * m;
        for (integer k = 0; k < m; k++) z[k] *= r[i];
        for (integer k = 0; k < n; k++) {
            pre[i * n + k] = 1 / (1 + exp(-(alpha[0] * z[k] + bias[k]))) + (REAL)pre_eps;
            post[i * n + k] = (REAL)size / (1 + exp(-(alpha[1] * z[n + k] + bias[n + k]))) + (REAL)post_eps;
        }
        for (integer k = 2 * n; k < m; k++) logits[i * (m - 2 * n) + k - 2 * n] = alpha[2] * z[k] + bias[k];
    }
}

/* draw = r alpha dl, along = -r^2 (z . alpha dl) / d for the gradients dl of all logits; d is the width of the norm.
dl arrives as dpre, dpost and dlogits; sums is [threads, 2, m + 3]: those of the biases, then those of alpha. */
void gates_backward(integer tokens, integer n, integer m, integer d, const REAL *z, const REAL *r, const REAL *alpha,
                    double pre_eps, double size, double post_eps, const REAL *pre, const REAL *post, const REAL *dpre,
                    const REAL *dpost, const REAL *dlogits, REAL *restrict draw, REAL *restrict along, REAL *sums,
                    int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        const integer end = first_of(tokens, threads, 1, t + 1), width = m + 3;
        REAL *restrict total = sums + 2 * t * width, *restrict part = total + width;
        double all[3] = {0, 0, 0}; /* of thousands of terms of either sign: what is left of them is small */
        for (integer k = 0; k < width; k++) total[k] = 0;
        for (integer begin = first_of(tokens, threads, 1, t); begin < end; begin += BLOCK) {
            for (integer k = 0; k < width; k++) part[k] = 0;
            for (integer i = begin; i < least(end, begin + BLOCK); i++) {
                const REAL *zi = z + i * m;
                REAL *restrict di = draw + i * m;
                REAL dot = 0;
                for (integer k = 0; k < n; k++) {
                    const REAL p = pre[i * n + k] - (REAL)pre_eps, q = size != 0 ? (post[i * n + k] - (REAL)post_eps) / (REAL)size : 0;
                    di[k] = dpre[i * n + k] * p * (1 - p);
                    di[n + k] = dpost[i * n + k] * (REAL)size * q * (1 - q);
                }
                for (integer k = 2 * n; k < m; k++) di[k] = dlogits[i * (m - 2 * n) + k - 2 * n];
                for (integer k = 0; k < m; k++) {
                    const integer group = k < n ? 0 : k < 2 * n ? 1 : 2;
                    part[k] += di[k];
                    all[group] += (double)di[k] * zi[k];
                    di[k] *= alpha[group];
                    dot += di[k] * zi[k];
                    di[k] *= r[i];
                }
                along[i] = -dot * r[i] * r[i] / (REAL)d;
            }
            for (integer k = 0; k < width; k++) total[k] += part[k];
        }
        for (integer k = 0; k < 3; k++) total[m + k] = all[k];
    }
}

/* A_kc = mix_kc + s_0 tanh(z_kc), c = 0..n; beta_k + s_1 tanh(z_k,n+1); z = raw r in place, raw is [tokens, n, n + 2].
pre_k = A_k0, res_ck = A_k,c+1, post = beta. */
void tanh_forward(integer tokens, integer n, REAL *restrict raw, const REAL *r, const REAL *mix, const REAL *beta,
                  const REAL *scale, REAL *restrict pre, REAL *restrict post, REAL *restrict res, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (integer i = 0; i < tokens; i++)
        for (integer k = 0; k < n; k++) {
            REAL *restrict z = raw + (i * n + k) * (n + 2);
            for (integer c = 0; c < n + 2; c++) z[c] *= r[i * n + k];
            pre[i * n + k] = mix[k * (n + 1)] + scale[0] * tanh(z[0]);
            for (integer c = 0; c < n; c++)
                res[(i * n + c) * n + k] = mix[k * (n + 1) + c + 1] + scale[0] * tanh(z[c + 1]);
            post[i * n + k] = beta[k] + scale[1] * tanh(z[n + 1]);
        }
}

/* sums is [threads, 2, n (n + 2) + 2]: gradients of [mix | beta] by k, then of the two scales */
void tanh_backward(integer tokens, integer n, integer d, const REAL *z, const REAL *r, const REAL *scale,
                   const REAL *dpre, const REAL *dpost, const REAL *dres, REAL *restrict draw, REAL *restrict along,
                   REAL *sums, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (integer t = 0; t < threads; t++) {
        const integer end = first_of(tokens, threads, 1, t + 1), row = n + 2, width = n * row + 2;
        REAL *restrict total = sums + 2 * t * width, *restrict part = total + width;
        double all[2] = {0, 0};
        for (integer k = 0; k < width; k++) total[k] = 0;
        for (integer begin = first_of(tokens, threads, 1, t); begin < end; begin += BLOCK) {
            for (integer k = 0; k < width; k++) part[k] = 0;
            for (integer i = begin; i < least(end, begin + BLOCK); i++)
                for (integer k = 0; k < n; k++) {
                    const REAL *zk = z + (i * n + k) * row, rk = r[i * n + k];
                    REAL *restrict dk = draw + (i * n + k) * row;
                    REAL dot = 0;
                    for (integer c = 0; c < row; c++) {
                        const REAL moved = tanh(zk[c]);
                        const REAL up = c == 0   ? dpre[i * n + k]
                                        : c <= n ? dres[(i * n + c - 1) * n + k]
                                                 : dpost[i * n + k];
                        const integer which = c > n;
                        part[k * row + c] += up;
                        all[which] += (double)up * moved;
                        const REAL dz = up * scale[which] * (1 - moved * moved);
                        dot += dz * zk[c];
                        dk[c] = rk * dz;
                    }
                    along[i * n + k] = -dot * rk * rk / (REAL)d;
                }
            for (integer k = 0; k < width; k++) total[k] += part[k];
        }
        for (integer k = 0; k < 2; k++) total[n * row + k] = all[k];
    }
}
