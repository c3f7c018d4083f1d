/* What drivers of sources on maps share: drawn numbers, in memory of exactly their size, and where those of a map lie. It
   comes behind the source, whose REAL and Strides it takes. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 1;

static uint64_t draw(void) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return state >> 33;
}

static REAL *filled(int64_t n, int draws) {
    void *memory = 0;
    if (posix_memalign(&memory, sizeof(double), (size_t)n * sizeof(REAL))) abort();
    REAL *made = memory;
    /* NaN, where nothing is drawn: it would be seen if it were read. */
    for (int64_t i = 0; i < n; i++) made[i] = draws ? (REAL)((double)(draw() % 2001) / 1000 - 1) : (REAL)NAN;
    return made;
}

static Strides of_maps(int64_t channels, int64_t rows, int64_t columns, int last) {
    const int64_t each = channels * rows * columns;
    if (last) return (Strides){each, 1, columns * channels, channels};
    return (Strides){each, rows * columns, columns, 1};
}
