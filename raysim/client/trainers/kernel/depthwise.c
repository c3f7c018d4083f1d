/* Gradients of kernels that each belong to one channel: depthwise convolutions.

   With dw[c][i][j] = sum over examples n and positions p of dy[n][c][p] x[n][c][p met by (i, j)], channels lie side by
   side in vectors, and the sums of several numbers of a kernel stay in registers.

   REAL is float or double. The sum of each example is added up by itself, position by position, and then to that of the
   examples before it: the same order for every width of vectors. */

#include "vectors.h"

#include <string.h>

/* Numbers of a kernel's row whose sums are made at a time. */
enum { TAPS = 8 };

/* Sizes; stride, margin and dilation of rows and of columns. */
typedef struct {
    int64_t examples, channels, high, wide, rows, columns, down, across;
    int64_t stride[2], margin[2], dilation[2];
} Shape;

/* Where a map's numbers lie: strides of example, channel, row and column. */
typedef struct {
    int64_t example, channel, row, column;
} Strides;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE int64_t rows_of(const Shape *of) { return of->high + 2 * of->margin[0]; }
INLINE int64_t columns_of(const Shape *of) { return of->wide + 2 * of->margin[1]; }

/* Numbers that the room must have: sums, and one example's maps of as many channels as a vector has. */
int64_t room_for(const Shape *of) {
    return LANES * (of->rows * of->columns + rows_of(of) * columns_of(of) + of->down * of->across);
}

/* to (rows, columns, LANES) <- so many channels of a map, the rest of a vector zeros. Rows of `to` are `wide` apart. */
static void take(const REAL *from, const Strides *by, int64_t channels, int64_t rows, int64_t columns, int64_t wide,
                 REAL *to) {
    for (int64_t r = 0; r < rows; r++) {
        const REAL *row = from + r * by->row;
        REAL *into = to + r * wide * LANES;
        if (channels == LANES && by->channel == 1) {
            for (int64_t c = 0; c < columns; c++) *(vec *)(into + c * LANES) = load(row + c * by->column);
            continue;
        }
        int64_t turned = 0;
        if (channels == LANES && LANES % 4 == 0 && by->column == 1)
            for (; turned + 4 <= columns; turned += 4)
                for (int l = 0; l < LANES; l += 4)
                    turn(row + l * by->channel + turned, by->channel, into + turned * LANES + l, LANES);
        for (int64_t c = turned; c < columns; c++)
            for (int64_t l = 0; l < channels; l++) into[c * LANES + l] = row[c * by->column + l * by->channel];
    }
}

/* sums (taps, LANES) += those of one example, of `taps` numbers of a row of the kernel. x, dy: where the first of each is
   met. */
INLINE void add_taps(const int taps, const Shape *of, const REAL *x, const REAL *dy, REAL *sums) {
    const int64_t wide = columns_of(of), right = of->stride[1] * LANES, apart = of->dilation[1] * LANES;
    vec own[TAPS];
    UNROLLED for (int t = 0; t < taps; t++) own[t] = (vec){0};
    for (int64_t r = 0; r < of->down; r++) {
        const REAL *met = x + r * of->stride[0] * wide * LANES, *error = dy + r * of->across * LANES;
        for (int64_t c = 0; c < of->across; c++) {
            const vec at = load(error + c * LANES);
            UNROLLED for (int t = 0; t < taps; t++) own[t] += at * load(met + c * right + t * apart);
        }
    }
    UNROLLED for (int t = 0; t < taps; t++) *(vec *)(sums + t * LANES) = load(sums + t * LANES) + own[t];
}

static void add_row(const Shape *of, const REAL *x, const REAL *dy, REAL *sums) {
    int64_t j = 0;
    for (; j + TAPS <= of->columns; j += TAPS)
        add_taps(TAPS, of, x + j * of->dilation[1] * LANES, dy, sums + j * LANES);
    x += j * of->dilation[1] * LANES, sums += j * LANES;
    switch (of->columns - j) {
    case 1: add_taps(1, of, x, dy, sums); break;
    case 2: add_taps(2, of, x, dy, sums); break;
    case 3: add_taps(3, of, x, dy, sums); break;
    case 4: add_taps(4, of, x, dy, sums); break;
    case 5: add_taps(5, of, x, dy, sums); break;
    case 6: add_taps(6, of, x, dy, sums); break;
    case 7: add_taps(7, of, x, dy, sums); break;
    }
}

/* dw (channels, rows, columns) <- the gradient of the kernels, dy that of the map behind. */
void kernels_gradient(const Shape *of, const REAL *x, const Strides *xs, const REAL *dy, const Strides *ys, REAL *dw,
                      REAL *room) {
    const int64_t taps = of->rows * of->columns, wide = columns_of(of);
    REAL *sums = room, *before = sums + taps * LANES, *behind = before + rows_of(of) * wide * LANES;
    /* The margin, and what fills vectors up, stay zeros. */
    for (int64_t first = 0; first < of->channels; first += LANES) {
        const int64_t channels = least(LANES, of->channels - first);
        if (first == 0 || channels < LANES)
            memset(room, 0, room_for(of) * sizeof(REAL));
        else
            memset(sums, 0, taps * LANES * sizeof(REAL));
        for (int64_t n = 0; n < of->examples; n++) {
            take(x + n * xs->example + first * xs->channel, xs, channels, of->high, of->wide, wide,
                 before + (of->margin[0] * wide + of->margin[1]) * LANES);
            take(dy + n * ys->example + first * ys->channel, ys, channels, of->down, of->across, of->across, behind);
            for (int64_t i = 0; i < of->rows; i++)
                add_row(of, before + i * of->dilation[0] * wide * LANES, behind, sums + i * of->columns * LANES);
        }
        for (int64_t c = 0; c < channels; c++)
            for (int64_t t = 0; t < taps; t++) dw[(first + c) * taps + t] = sums[t * LANES + c];
    }
}
