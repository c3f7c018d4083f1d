/* Makes gradients of depthwise kernels on many shapes and layouts, each array in memory of exactly its size: for the
   sanitizers. What it makes is compared with sums over all positions. */

#include DEPTHWISE_C

#include "maps_driver.h"

static REAL at(const REAL *x, const Strides *xs, int64_t n, int64_t c, int64_t i, int64_t j) {
    return x[n * xs->example + c * xs->channel + i * xs->row + j * xs->column];
}

/* What number (i, j) of channel c's kernel gets. */
static double wanted(const Shape *of, const REAL *x, const Strides *xs, const REAL *dy, const Strides *ys, int64_t c,
                     int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t n = 0; n < of->examples; n++)
        for (int64_t r = 0; r < of->down; r++)
            for (int64_t p = 0; p < of->across; p++) {
                const int64_t row = r * of->stride[0] + i * of->dilation[0] - of->margin[0];
                const int64_t column = p * of->stride[1] + j * of->dilation[1] - of->margin[1];
                if (row >= 0 && column >= 0 && row < of->high && column < of->wide)
                    sum += (double)at(dy, ys, n, c, r, p) * (double)at(x, xs, n, c, row, column);
            }
    return sum;
}

static int one(const Shape *of, int x_last, int y_last) {
    const Strides xs = of_maps(of->channels, of->high, of->wide, x_last);
    const Strides ys = of_maps(of->channels, of->down, of->across, y_last);
    const int64_t taps = of->rows * of->columns;
    REAL *x = filled(of->examples * xs.example, 1), *dy = filled(of->examples * ys.example, 1);
    REAL *dw = filled(of->channels * taps, 0), *room = filled(room_for(of), 0);
    kernels_gradient(of, x, &xs, dy, &ys, dw, room);
    for (int64_t c = 0; c < of->channels; c++)
        for (int64_t t = 0; t < taps; t++) {
            const double sum = wanted(of, x, &xs, dy, &ys, c, t / of->columns, t % of->columns);
            if (!(fabs((double)dw[c * taps + t] - sum) <= 1e-3 * (1 + fabs(sum)))) {
                fprintf(stderr, "%g in the place of %g\n", (double)dw[c * taps + t], sum);
                exit(1);
            }
        }
    free(x), free(dy), free(dw), free(room);
    return 1;
}

int main(void) {
    int shapes = 0;
    while (shapes < 600) {
        Shape of = {.examples = 1 + draw() % 3, .channels = 1 + draw() % 35, .high = 1 + draw() % 8,
                    .wide = 1 + draw() % 12, .rows = 1 + draw() % 4, .columns = 1 + draw() % 11};
        int64_t side[2] = {of.high, of.wide}, taps[2] = {of.rows, of.columns}, behind[2];
        int fits = 1;
        for (int a = 0; a < 2; a++) {
            of.stride[a] = 1 + draw() % 3, of.margin[a] = draw() % 4, of.dilation[a] = 1 + draw() % 2;
            const int64_t left = side[a] + 2 * of.margin[a] - of.dilation[a] * (taps[a] - 1) - 1;
            fits &= left >= 0;
            behind[a] = left / of.stride[a] + 1;
        }
        of.down = behind[0], of.across = behind[1];
        if (fits) shapes += one(&of, draw() % 2, draw() % 2);
    }
    printf("%d shapes\n", shapes);
    return 0;
}
