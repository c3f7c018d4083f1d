/* Rounds numbers at random and measures what was lost, in one pass (passes.py).

   REAL is float or double. Nothing is contracted (-ffp-contract=off), and every sum has LANES partial sums, which numbers
   join by turns: the bits are those of torch's and NumPy's single steps, on every processor. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the draws of four numbers lie in 64 bits, the first one's lowest"
#endif

enum { DRAWN_BITS = 16, PER_DRAW = 64 / DRAWN_BITS, BLOCK = 1024 };
/* Doubles of a vector of the processor's: wider ones go through memory. */
#if defined(__AVX512F__)
enum { WIDE = 8 };
#elif defined(__AVX__)
enum { WIDE = 4 };
#else
enum { WIDE = 2 };
#endif
enum { LANES = 32, VECTORS = LANES / WIDE };

typedef __typeof__(__builtin_choose_expr(sizeof(REAL) == sizeof(float), (uint32_t)0, (uint64_t)0)) Bits;
typedef double doubles __attribute__((vector_size(WIDE * sizeof(double))));
typedef REAL reals __attribute__((vector_size(WIDE * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

/* Sums of |a - q|^2 and |q|^2 by group: `ends` are multiples of LANES, and between groups lie zeros. */
typedef struct {
    int64_t groups, group;
    const int64_t *ends;
    double *lost, *norm;
    doubles losses[VECTORS], norms[VECTORS];
} Sums;

/* A double has room for the square of a float, so a fused addition rounds as two steps do. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
enum { FUSED = sizeof(REAL) == sizeof(float) };
#else
enum { FUSED = 0 };
#endif

static inline doubles plus_square(doubles sum, reals x) {
    doubles wide, made;
    /* GCC 12 converts by halves where it is asked for a vector at a time. */
    for (int l = 0; l < WIDE; l++) wide[l] = (double)x[l];
    if (!FUSED) return sum + wide * wide;
    for (int l = 0; l < WIDE; l++) made[l] = __builtin_fma(wide[l], wide[l], sum[l]);
    return made;
}

static double folded(doubles *sums) {
    double lanes[LANES];
    for (int l = 0; l < LANES; l++) lanes[l] = sums[l / WIDE][l % WIDE];
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    for (int v = 0; v < VECTORS; v++) sums[v] = (doubles){0};
    return lanes[0];
}

static void close_group(Sums *sums) {
    sums->lost[sums->group] = folded(sums->losses);
    sums->norm[sums->group++] = folded(sums->norms);
}

static void add(Sums *sums, int64_t first, int64_t end, const REAL *a, const REAL *q) {
    while (first < end) {
        for (; sums->ends[sums->group] == first; close_group(sums)) {}
        int64_t until = sums->ends[sums->group] < end ? sums->ends[sums->group] : end;
        /* Of their own, so that they stay in registers. */
        doubles losses[VECTORS], norms[VECTORS];
        memcpy(losses, sums->losses, sizeof losses);
        memcpy(norms, sums->norms, sizeof norms);
        for (; first < until; first += LANES)
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; v++) {
                reals sent = *(const reals *)(q + first + v * WIDE);
                losses[v] = plus_square(losses[v], *(const reals *)(a + first + v * WIDE) - sent);
                norms[v] = plus_square(norms[v], sent);
            }
        memcpy(sums->losses, losses, sizeof losses);
        memcpy(sums->norms, norms, sizeof norms);
    }
}

/* max |v| of d numbers; NaN, if one is. */
double largest(int64_t d, const REAL *v) {
    /* Bits of numbers without their signs are in the order of the numbers; so compared, they go by vectors. */
    Bits most = 0;
    for (int64_t i = 0; i < d; i++) {
        Bits bits;
        memcpy(&bits, v + i, sizeof bits);
        bits &= ~(Bits)0 >> 1;
        most = bits > most ? bits : most;
    }
    REAL found;
    memcpy(&found, &most, sizeof found);
    return found;
}

static void close_all(Sums *sums) {
    while (sums->group < sums->groups) close_group(sums);
}

/* Vectors of ends[groups - 1] numbers. */
void measure(const REAL *a, const REAL *q, int64_t groups, const int64_t *ends, double *lost, double *norm) {
    Sums sums = {groups, 0, ends, lost, norm, {{0}}, {{0}}};
    add(&sums, 0, groups ? ends[groups - 1] : 0, a, q);
    close_all(&sums);
}

/* As seeds.py mixes the places of a stream. */
static inline uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline REAL to_even(REAL u) { return sizeof(REAL) == sizeof(float) ? (REAL)rintf((float)u) : (REAL)rint(u); }

/* out = unit round(v scale + (own + behind) 2^-16), with 16 bits of the stream for each number's own; d numbers. With
   groups, d is the last one's end, and what is lost is measured. */
void rounded(int64_t d, const REAL *v, REAL scale, REAL unit, REAL behind, uint64_t start, REAL *out, int64_t groups,
             const int64_t *ends, double *lost, double *norm) {
    Sums sums = {groups, 0, ends, lost, norm, {{0}}, {{0}}};
    union { uint64_t draws[BLOCK / PER_DRAW]; int16_t own[BLOCK]; } block;
    for (int64_t first = 0; first < d; first += BLOCK) {
        for (int64_t i = 0; i < BLOCK / PER_DRAW; i++)
            block.draws[i] = mixed(start + (uint64_t)(first / PER_DRAW + i + 1) * 0x9E3779B97F4A7C15u);
        int64_t n = d - first < BLOCK ? d - first : BLOCK;
#pragma GCC ivdep /* out may be v */
        for (int64_t i = 0; i < n; i++) {
            REAL w = ((REAL)block.own[i] + behind) * (REAL)0x1p-16;
            out[first + i] = to_even(v[first + i] * scale + w) * unit;
        }
        if (groups) add(&sums, first, first + n, v, out);
    }
    close_all(&sums);
}
