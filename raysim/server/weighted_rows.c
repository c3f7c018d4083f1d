/* Adds up weighted rows (weighted_rows.py): each number of the rows is read once, and the sum's is written once; `anew`,
   the sum so far is 0, and not read.

   REAL, the rows' type, is float or double. A number is added up in the order of the rows, a product and a sum rounded
   each (-ffp-contract=off): the bits are those of torch's single steps, on every processor. */

#include <stdint.h>

enum { BLOCK = 512 }; /* numbers of the sum that stay in the cache while the rows go by */

#define DEFINE(name, SUM)                                                                                              \
    void name(int64_t k, int64_t d, int64_t stride, const REAL *rows, const double *coefficients, int64_t anew,         \
              SUM *total) {                                                                                           \
        for (int64_t first = 0; first < d; first += BLOCK) {                                                          \
            int64_t n = d - first < BLOCK ? d - first : BLOCK;                                                        \
            SUM sum[BLOCK];                                                                                           \
            for (int64_t j = 0; j < n; j++) sum[j] = anew ? 0 : total[first + j];                                     \
            for (int64_t i = 0; i < k; i++) {                                                                         \
                const REAL *row = rows + i * stride + first;                                                          \
                SUM c = (SUM)coefficients[i];                                                                         \
                for (int64_t j = 0; j < n; j++) sum[j] += c * (SUM)row[j];                                            \
            }                                                                                                         \
            for (int64_t j = 0; j < n; j++) total[first + j] = sum[j];                                                \
        }                                                                                                             \
    }

DEFINE(add_to_doubles, double)
DEFINE(add_to_own, REAL)
