/* Calls minimal filtering on many shapes and layouts, each array in memory of exactly its size: for the sanitizers.
   What it makes is compared with sums over the kernel's nine numbers. */

#include WINOGRAD_C

#include "maps_driver.h"

/* 0 in the margin. */
static REAL at(const Shape *of, const REAL *x, const Strides *xs, int64_t n, int64_t i, int64_t r, int64_t c) {
    if (r < 0 || c < 0 || r >= of->height || c >= of->width) return 0;
    return x[n * xs->example + i * xs->channel + r * xs->row + c * xs->column];
}

static void near(REAL got, double wanted) {
    if (!(fabs((double)got - wanted) <= 1e-3 * (1 + fabs(wanted)))) {
        fprintf(stderr, "%g in the place of %g\n", (double)got, wanted);
        exit(1);
    }
}

static void both_ways(const Shape *of, int x_last, int y_last, int has_bias) {
    const int64_t high = of->height + 2 * of->above - of->taps + 1;
    const int64_t wide = of->width + 2 * of->left - of->taps + 1, area = of->taps * of->taps;
    const int64_t apart[4] = {of->in * area, area, of->taps, 1};
    const Strides xs = of_maps(of->in, of->height, of->width, x_last), ys = of_maps(of->out, high, wide, y_last);
    REAL *x = filled(of->examples * xs.example, 1), *w = filled(of->out * of->in * area, 1);
    REAL *bias = has_bias ? filled(of->out, 1) : 0, *y = filled(of->examples * ys.example, 0);
    REAL *dw = filled(of->out * of->in * area, 0), *room = filled(room_for(of), 0);
    convolve(of, x, &xs, w, apart, bias, y, &ys, room);
    for (int64_t n = 0; n < of->examples; n++)
        for (int64_t o = 0; o < of->out; o++)
            for (int64_t r = 0; r < high; r++)
                for (int64_t c = 0; c < wide; c++) {
                    double sum = bias ? (double)bias[o] : 0;
                    for (int64_t i = 0; i < of->in; i++)
                        for (int k = 0; k < area; k++)
                            sum += (double)w[o * apart[0] + i * apart[1] + (of->turned ? area - 1 - k : k)] *
                                   (double)at(of, x, &xs, n, i, r + k / of->taps - of->above, c + k % of->taps - of->left);
                    near(y[n * ys.example + o * ys.channel + r * ys.row + c * ys.column], sum);
                }
    convolve_back(of, x, &xs, y, &ys, dw, apart, room);
    for (int64_t o = 0; o < of->out; o++)
        for (int64_t i = 0; i < of->in; i++)
            for (int k = 0; k < area; k++) {
                double sum = 0;
                for (int64_t n = 0; n < of->examples; n++)
                    for (int64_t r = 0; r < high; r++)
                        for (int64_t c = 0; c < wide; c++)
                            sum += (double)y[n * ys.example + o * ys.channel + r * ys.row + c * ys.column] *
                                   (double)at(of, x, &xs, n, i, r + k / of->taps - of->above, c + k % of->taps - of->left);
                near(dw[o * apart[0] + i * apart[1] + k], sum);
            }
    free(x), free(w), free(bias), free(y), free(dw), free(room);
}

int main(void) {
    const int64_t channels[] = {1, 3, 17, 70}, sides[] = {1, 3, 4, 7, 10}, kinds[3][2] = {{3, 3}, {3, 4}, {5, 2}};
    int calls = 0;
    for (int kind = 0; kind < 3; kind++)
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++)
                for (int h = 0; h < 5; h++)
                    for (int g = 0; g < 5; g++) {
                        const int64_t taps = kinds[kind][0], tile = kinds[kind][1];
                        const int64_t above = (int64_t)(draw() % taps), left = (int64_t)(draw() % taps);
                        Shape of = {1 + (int64_t)(draw() % 3), channels[a], channels[b], sides[h], sides[g], above, left,
                                    taps, 0, tile, 0, 0};
                        const int64_t high = of.height + 2 * of.above - taps + 1, wide = of.width + 2 * of.left - taps + 1;
                        if (high < 1 || wide < 1) continue;
                        const int64_t each = (up(high, tile) / tile) * (up(wide, tile) / tile);
                        of.most = 4 * (1 + (int64_t)(draw() % 10));
                        of.together = of.most / each < 1 ? 1 : least(of.most / each, of.examples);
                        of.turned = draw() % 2;
                        both_ways(&of, draw() % 2, draw() % 2, draw() % 2);
                        calls++;
                    }
    printf("%d shapes\n", calls);
    return 0;
}
