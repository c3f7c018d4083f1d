/* Squared norms of the parameter groups of updates (squared_norms.py): every number is read once.

   REAL, the updates' type, is float or double. Lane l adds up the squares of the numbers l, l + LANES, ... of a group, in
   order, a product and a sum rounded each (-ffp-contract=off), and halves of the lanes are added until one is left: the
   bits are the same on every processor, and those of NumPy's passes in squared_norms.py. */

#include <stdint.h>

enum { LANES = 32 };

void squared_norms(int64_t k, int64_t stride, const REAL *rows, int64_t groups, const int64_t *offsets,
                   const int64_t *sizes, double *squares) {
    for (int64_t i = 0; i < k; i++) {
        for (int64_t g = 0; g < groups; g++) {
            const REAL *numbers = rows + i * stride + offsets[g];
            int64_t size = sizes[g], j = 0;
            double sums[LANES] = {0};
            for (; j + LANES <= size; j += LANES)
                for (int l = 0; l < LANES; l++) sums[l] += (double)numbers[j + l] * (double)numbers[j + l];
            for (int l = 0; j + l < size; l++) sums[l] += (double)numbers[j + l] * (double)numbers[j + l];
            for (int half = LANES / 2; half; half /= 2)
                for (int l = 0; l < half; l++) sums[l] += sums[l + half];
            squares[i * groups + g] = sums[0];
        }
    }
}
