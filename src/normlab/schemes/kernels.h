/* What the C files share. REAL is float or double. */
#ifndef NORMLAB_KERNELS_H
#define NORMLAB_KERNELS_H
#include <tgmath.h>

typedef long long integer;

#define TILE 16 /* tokens of one source that are read before those of the next: rows side by side come faster */
#define BLOCK 64 /* tokens that are summed before their sum joins the total: keeps rounding small */

/* Before a loop: what it writes is not what it reads. With many pointers a compiler gives up asking, and does without vectors. */
#if defined(__clang__)
#define APART _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define APART _Pragma("GCC ivdep")
#else
#define APART
#endif

static inline integer least(integer a, integer b) { return a < b ? a : b; }

/* e^x to about 1e-7 of itself, in code that vectors can follow: x = n ln 2 + r, and a polynomial for e^r, |r| <= ln(2) / 2 */
static inline float raised_float(float x) {
    const float y = x > 88 ? 88 : x < -87 ? -87 : x, n = rintf(y * 1.44269504f);
    const float r = (float)((double)y - (double)n * 0.6931471805599453);
    const float p = 1 + r * (1 + r * (0.5f + r * (1.f / 6 + r * (1.f / 24 + r * (1.f / 120 + r * (1.f / 720 + r / 5040))))));
    union { int bits; float value; } two;
    two.bits = ((int)n + 127) << 23;
    return x < -87 ? 0 : x > 88 ? x * 1e38f * 1e38f : p * two.value;
}

/* e^x; a double takes the library's */
static inline REAL raised(REAL x) { return sizeof(REAL) == sizeof(float) ? (REAL)raised_float((float)x) : exp(x); }

#endif
