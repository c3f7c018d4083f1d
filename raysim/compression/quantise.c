/* Rounds numbers to a few levels at random (quantise.py): draws, adds and rounds in one pass.

   REAL is float or double. Nothing is contracted (-ffp-contract=off), so the bits are those of torch's single steps. */

#include <math.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the draws of four numbers lie in 64 bits, the first one's lowest"
#endif

enum { DRAWN_BITS = 16, PER_DRAW = 64 / DRAWN_BITS, BLOCK = 1024 };

/* As seeds.py mixes the places of a stream. */
static inline uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline REAL to_even(REAL u) { return sizeof(REAL) == sizeof(float) ? (REAL)rintf((float)u) : (REAL)rint(u); }

/* out = unit round(v scale + (own + behind) 2^-16), with 16 bits of the stream for each number's own; d numbers. */
void rounded(int64_t d, const REAL *v, REAL scale, REAL unit, REAL behind, uint64_t start, REAL *out) {
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
    }
}
