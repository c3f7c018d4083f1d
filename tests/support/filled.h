/* Drawn numbers in memory of exactly their size. It comes behind the source, whose REAL it takes. */

#include <math.h>
#include <stdlib.h>

#include "drawn.h"

static REAL *filled(int64_t n, int draws) {
    void *memory = 0;
    if (posix_memalign(&memory, sizeof(double), (size_t)n * sizeof(REAL))) abort();
    REAL *made = memory;
    /* NaN, where nothing is drawn: it would be seen if it were read. */
    for (int64_t i = 0; i < n; i++) made[i] = draws ? (REAL)DRAWN : (REAL)NAN;
    return made;
}
