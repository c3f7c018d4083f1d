/* What drivers of sources on maps share: numbers that are drawn, and where those of a map lie. It comes behind the source,
  whose REAL and Strides it takes. */

#include <stdio.h>

#include "filled.h"

static Strides of_maps(int64_t channels, int64_t rows, int64_t columns, int last) {
    const int64_t each = channels * rows * columns;
    if (last) return (Strides){each, 1, columns * channels, channels};
    return (Strides){each, rows * columns, columns, 1};
}
