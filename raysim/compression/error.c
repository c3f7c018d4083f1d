/* Measures what was lost (error.py): one pass over a vector and what was sent of it.

   REAL is float or double. Every sum has LANES partial sums, which numbers join by turns; a product and a sum are rounded
   each (-ffp-contract=off): the bits are those of NumPy's single steps, on every processor. */

#include <stdint.h>

enum { EIGHT = 8, VECTORS = 4, LANES = EIGHT * VECTORS };

typedef double doubles __attribute__((vector_size(EIGHT * sizeof(double))));
typedef REAL reals __attribute__((vector_size(EIGHT * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

static double folded(const doubles *sums) {
    double lanes[LANES];
    for (int l = 0; l < LANES; l++) lanes[l] = sums[l / EIGHT][l % EIGHT];
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

static inline void add(const REAL *a, const REAL *q, doubles *losses, doubles *norms) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        doubles sent = __builtin_convertvector(*(const reals *)(q + v * EIGHT), doubles);
        doubles less = __builtin_convertvector(*(const reals *)(a + v * EIGHT), doubles) - sent;
        losses[v] += less * less;
        norms[v] += sent * sent;
    }
}

/* lost[g] = |a - q|^2 and norm[g] = |q|^2 of each piece g, which has lengths[g] numbers from offsets[g] on. */
void measure(int64_t pieces, const int64_t *offsets, const int64_t *lengths, const REAL *a, const REAL *q, double *lost,
             double *norm) {
    for (int64_t g = 0; g < pieces; g++) {
        const REAL *of_a = a + offsets[g], *of_q = q + offsets[g];
        doubles losses[VECTORS] = {0}, norms[VECTORS] = {0};
        int64_t n = lengths[g], whole = n / LANES * LANES;
        for (int64_t i = 0; i < whole; i += LANES) add(of_a + i, of_q + i, losses, norms);
        /* The last numbers, filled up with zeros. */
        REAL last_a[LANES] = {0}, last_q[LANES] = {0};
        for (int64_t i = whole; i < n; i++) last_a[i - whole] = of_a[i], last_q[i - whole] = of_q[i];
        add(last_a, last_q, losses, norms);
        lost[g] = folded(losses);
        norm[g] = folded(norms);
    }
}
