/* Calls the kernel's functions on many shapes, each array in memory of exactly its size: for the sanitizers. */

#include DENSE_C

#include <stdio.h>
#include <stdlib.h>

#include "drawn.h"

static void *exactly(size_t bytes, size_t alignment) {
    void *memory = 0;
    if (posix_memalign(&memory, alignment, bytes ? bytes : 1)) abort();
    return memory;
}

static REAL *numbers(int64_t n) {
    REAL *made = exactly((size_t)n * sizeof(REAL), sizeof(double));
    for (int64_t i = 0; i < n; i++) made[i] = (REAL)DRAWN;
    return made;
}

static REAL *zeros(int64_t n) {
    REAL *made = exactly((size_t)n * sizeof(REAL), 64);
    for (int64_t i = 0; i < n; i++) made[i] = 0;
    return made;
}

/* REAL or int64 targets of so many examples. */
static char *targets(const Dense *dense, int64_t examples) {
    const int64_t last = dense->widths[dense->depth], rows = examples * dense->places;
    if (dense->squared) return (char *)numbers(rows * last);
    int64_t *made = exactly((size_t)rows * sizeof *made, sizeof *made);
    for (int64_t i = 0; i < rows; i++) made[i] = (int64_t)(draw() % (uint64_t)last);
    return (char *)made;
}

static void gradients(const Dense *dense, int64_t examples) {
    const int64_t in = dense->widths[0], last = dense->widths[dense->depth], rows = examples * dense->places;
    const int64_t most = examples + (int64_t)(draw() % 3);
    REAL *params = numbers(dense->size), *x = numbers(rows * in), *into = zeros(dense->size);
    REAL *outputs = zeros(rows * last), *memory = zeros(room_for(dense, most, OWN_STEPPED));
    char *y = targets(dense, examples);
    if (!gradient(dense, params, x, y, examples, 1.0, into, outputs, most, memory)) abort();
    free(params), free(x), free(into), free(outputs), free(memory), free(y);
}

static void trains(const Dense *dense, int64_t batch, int64_t clients, int constants) {
    const int64_t in = dense->widths[0], last = dense->widths[dense->depth], places = dense->places;
    const REAL **x = exactly((size_t)clients * sizeof *x, sizeof *x);
    char **y = exactly((size_t)clients * sizeof *y, sizeof *y);
    int64_t *steps = exactly((size_t)clients * sizeof *steps, sizeof *steps), visits = 0, cuts = 0;
    int64_t *sizes = exactly((size_t)clients * sizeof *sizes, sizeof *sizes);
    for (int64_t k = 0; k < clients; k++) {
        sizes[k] = 1 + (int64_t)(draw() % (uint64_t)(2 * batch));
        steps[k] = (sizes[k] + batch - 1) / batch;
        x[k] = numbers(sizes[k] * places * in);
        y[k] = targets(dense, sizes[k]);
        visits += sizes[k];
        cuts += steps[k] + 1;
    }
    int64_t *order = exactly((size_t)visits * sizeof *order, sizeof *order), *to = order;
    int64_t *bounds = exactly((size_t)cuts * sizeof *bounds, sizeof *bounds), *cut = bounds;
    for (int64_t k = 0; k < clients; k++) {
        for (int64_t e = 0; e < sizes[k]; e++) *to++ = sizes[k] - 1 - e;
        for (int64_t s = 0; s <= steps[k]; s++) *cut++ = s * batch < sizes[k] ? s * batch : sizes[k];
    }
    const int64_t stride = constants == 2 ? dense->size : 0;
    REAL *broadcast = numbers(dense->size), *deltas = zeros(clients * dense->size);
    REAL *added = constants ? numbers(stride ? clients * stride : dense->size) : 0;
    REAL *begins = draw() % 2 ? numbers(clients * dense->size) : 0;
    int64_t *penalised = exactly((size_t)(2 * dense->depth) * sizeof *penalised, sizeof *penalised);
    for (int64_t i = 0; i < 2 * dense->depth; i++) penalised[i] = (int64_t)(draw() % 2);
    /* Windows of one to three steps, behind a first step that is of none. */
    int64_t *counts = exactly((size_t)clients * sizeof *counts, sizeof *counts), all = 0;
    const int64_t length = 1 + (int64_t)(draw() % 3);
    for (int64_t k = 0; k < clients; k++) all += counts[k] = (steps[k] - 1) / length;
    int64_t *windows = exactly((size_t)(2 * all) * sizeof *windows, sizeof *windows), *range = windows;
    for (int64_t k = 0; k < clients; k++)
        for (int64_t w = 0; w < counts[k]; w++) *range++ = 1 + w * length, *range++ = 1 + (w + 1) * length;
    REAL *means = zeros(all * dense->size);
    Rule rule = {.scale = -0.1, .keep = 0.9, .constants = added, .stride = stride, .begins = begins,
                 .anchored = draw() % 2, .penalty = (int64_t)(draw() % 3), .penalised = penalised, .amount = 0.1,
                 .growth = 0.01};
    if (draw() % 2) rule.windows = windows, rule.counts = counts, rule.means = means;
    REAL *outputs = zeros(visits * places * last), *memory = zeros(room_for(dense, batch, extras_of(&rule)));
    double *squares = exactly((size_t)(clients * dense->depth * 2) * sizeof *squares, sizeof *squares);
    for (int64_t i = 0; i < clients * dense->depth * 2; i++) squares[i] = 0;
    if (!train(dense, clients, broadcast, x, (const char *const *)y, order, bounds, steps, &rule, deltas, squares, outputs,
               batch, memory))
        abort();
    for (int64_t k = 0; k < clients; k++) free((void *)x[k]), free(y[k]);
    free(x), free(y), free(steps), free(sizes), free(order), free(bounds), free(broadcast), free(deltas), free(added);
    free(outputs), free(memory), free(squares), free(begins), free(penalised), free(counts), free(windows), free(means);
}

int main(void) {
    enum { DEEP = 3 };
    static const int64_t WIDTHS[][DEEP + 1] = {
        {1, 1, 1, 1}, {2, 3, 2, 5}, {15, 16, 17, 3}, {16, 8, 4, 2}, {33, 41, 23, 7}, {64, 5, 31, 10}, {7, 129, 1, 4},
    };
    static const int64_t BATCHES[] = {1, 2, 5, 10, 17, 41};
    int64_t calls = 0;
    for (size_t w = 0; w < sizeof WIDTHS / sizeof *WIDTHS; w++)
        for (int64_t depth = 1; depth <= DEEP; depth++)
            for (size_t b = 0; b < sizeof BATCHES / sizeof *BATCHES; b++)
                for (int kind = 0; kind < 12; kind++) {
                    /* As Python hands them over: each array in memory of its own. */
                    int64_t *widths = exactly((size_t)(depth + 1) * sizeof *widths, sizeof *widths), size = 0;
                    int64_t *behind = exactly((size_t)depth * sizeof *behind, sizeof *behind);
                    int64_t *weights = exactly((size_t)depth * sizeof *weights, sizeof *weights);
                    int64_t *biases = exactly((size_t)depth * sizeof *biases, sizeof *biases);
                    for (int64_t l = 0; l <= depth; l++) widths[l] = WIDTHS[w][l];
                    for (int64_t l = 0; l < depth; l++) {
                        behind[l] = l + 1 < depth ? (int64_t)(draw() % 3) : NOTHING;
                        weights[l] = size;
                        size += widths[l] * widths[l + 1];
                        biases[l] = draw() % 3 ? size : -1;
                        if (biases[l] >= 0) size += widths[l + 1];
                    }
                    const Dense dense = {depth, widths, behind, weights, biases, size, 1 + kind % 3 % 2, kind % 2};
                    trains(&dense, BATCHES[b], 1 + (int64_t)(draw() % 3), kind / 4);
                    gradients(&dense, BATCHES[b]);
                    free(widths), free(behind), free(weights), free(biases);
                    calls += 2;
                }
    printf("%lld calls\n", (long long)calls);
    return 0;
}
