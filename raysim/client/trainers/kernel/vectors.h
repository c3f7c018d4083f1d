/* Vectors of the width that this processor has, and functions of a number that are made of sums and products alone, which
   are therefore the same in vectors of any width.

   REAL is float or double. Products and sums of products are contracted (-ffp-contract), but nothing is reassociated. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define SIZE_float 4
#define SIZE_double 8
#define JOINED(a, b) a##b
#define SIZE(real) JOINED(SIZE_, real)
#define IS_FLOAT (SIZE(REAL) == 4)

#if defined(__AVX512F__)
#define NATIVE 64
#elif defined(__AVX__)
#define NATIVE 32
#else
#define NATIVE 16
#endif

typedef REAL vec __attribute__((vector_size(NATIVE), aligned(sizeof(REAL)), may_alias));
#if IS_FLOAT
typedef int32_t bits;
typedef uint32_t pattern; /* shifts of what is signed are not defined */
#else
typedef int64_t bits;
typedef uint64_t pattern;
#endif
typedef bits mask __attribute__((vector_size(NATIVE), aligned(sizeof(REAL)), may_alias));

#define LANES (NATIVE / (int)sizeof(REAL))
#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")
/* Whoever writes in place writes the number that it has just read. */
#ifdef __clang__
#define APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define APART _Pragma("GCC ivdep")
#endif

INLINE vec load(const REAL *from) { return *(const vec *)from; }

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define PICKED __builtin_shufflevector
#endif
#endif

enum { QUARTERS = LANES / 4 };
typedef REAL four __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

/* Four rows of four numbers become columns, `wide` apart. */
INLINE void turn(const REAL *from, int64_t apart, REAL *to, int64_t wide) {
#ifdef PICKED
    four rows[4];
    UNROLLED for (int j = 0; j < 4; j++) rows[j] = *(const four *)(from + j * apart);
    const four ab_low = PICKED(rows[0], rows[1], 0, 4, 1, 5), ab_high = PICKED(rows[0], rows[1], 2, 6, 3, 7);
    const four cd_low = PICKED(rows[2], rows[3], 0, 4, 1, 5), cd_high = PICKED(rows[2], rows[3], 2, 6, 3, 7);
    *(four *)to = PICKED(ab_low, cd_low, 0, 1, 4, 5);
    *(four *)(to + wide) = PICKED(ab_low, cd_low, 2, 3, 6, 7);
    *(four *)(to + 2 * wide) = PICKED(ab_high, cd_high, 0, 1, 4, 5);
    *(four *)(to + 3 * wide) = PICKED(ab_high, cd_high, 2, 3, 6, 7);
#else
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++) to[i * wide + j] = from[j * apart + i];
#endif
}

/* --- functions of a number ------------------------------------------------------------------------------------- */

#if IS_FLOAT
#define EXPONENT_BIAS 127
#define MANTISSA 23
#define ROUNDER 12582912.0f /* 1.5 x 2^23: a sum with it is rounded to a whole number, which its last bits are */
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#define EXP_LEAST -87.33654f
#define EXP_MOST 88.72283f
#else
#define EXPONENT_BIAS 1023
#define MANTISSA 52
#define ROUNDER 6755399441055744.0 /* 1.5 x 2^52 */
#define LN2_HIGH 6.93145751953125e-1
#define LN2_LOW 1.42860682030941723212e-6
#define EXP_LEAST -708.39641853226408
#define EXP_MOST 709.78271289338397
#endif

INLINE pattern pattern_of(REAL x) {
    pattern b;
    __builtin_memcpy(&b, &x, sizeof b);
    return b;
}

INLINE REAL real_of(pattern b) {
    REAL x;
    __builtin_memcpy(&x, &b, sizeof x);
    return x;
}

/* exp(r) - 1 by Taylor's series, |r| <= ln(2) / 2: the first term left out is below half a unit in the last place. */
INLINE REAL small_expm1(REAL r) {
#if IS_FLOAT
    REAL s = (REAL)(1.0 / 5040);
#else
    REAL s = (REAL)(1.0 / 87178291200.0);
    s = s * r + (REAL)(1.0 / 6227020800.0);
    s = s * r + (REAL)(1.0 / 479001600.0);
    s = s * r + (REAL)(1.0 / 39916800.0);
    s = s * r + (REAL)(1.0 / 3628800.0);
    s = s * r + (REAL)(1.0 / 362880.0);
    s = s * r + (REAL)(1.0 / 40320.0);
    s = s * r + (REAL)(1.0 / 5040.0);
#endif
    s = s * r + (REAL)(1.0 / 720);
    s = s * r + (REAL)(1.0 / 120);
    s = s * r + (REAL)(1.0 / 24);
    s = s * r + (REAL)(1.0 / 6);
    s = s * r + (REAL)0.5;
    return r + r * r * s;
}

/* x = n ln(2) + r; returns r and 2^n. */
INLINE REAL reduced(REAL x, REAL *power) {
    const REAL shifted = x * (REAL)1.44269504088896340736 + ROUNDER, n = shifted - ROUNDER;
    *power = real_of((pattern_of(shifted) + EXPONENT_BIAS) << MANTISSA);
    return (x - n * LN2_HIGH) - n * LN2_LOW;
}

INLINE REAL exp_of(REAL x) {
    /* 2^n is made of half the exponent, twice, as 2^128 has no number of its own. */
    REAL half;
    const REAL r = reduced(x * (REAL)0.5, &half);
    const REAL e = half + half * small_expm1(r);
    const REAL inside = e * e;
    const REAL above = x > EXP_MOST ? (REAL)INFINITY : inside;
    return x < EXP_LEAST ? 0 : above;
}

INLINE REAL expm1_of(REAL x) {
    REAL power;
    const REAL low = x < -40 ? -40 : x;
    const REAL r = reduced(low, &power);
    return power * small_expm1(r) + (power - 1);
}

INLINE REAL tanh_of(REAL x) {
    const REAL size = x < 0 ? -x : x;
    const REAL e = expm1_of(-2 * size), t = -e / (e + 2);
    return x < 0 ? -t : t;
}

INLINE REAL sigmoid_of(REAL x) { return 1 / (1 + exp_of(-x)); }
