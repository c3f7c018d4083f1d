/* Local training of dense layers with relu, tanh or nothing behind them, one client after another: forward, backward and
   SGD step.

   REAL is float or double. Vectors have 64 bytes whatever the processor's have, so every sum is added up in the same
   order everywhere; how many rows, outputs and vectors a product takes at a time changes no bit. Products and sums of
   products are contracted (-ffp-contract), but nothing is reassociated.

   Weights are worked on in a copy whose rows are filled up with zeros to whole vectors, and so are activations: no
   product has a remainder. */

#include <stddef.h>
#include <stdint.h>

/* Where the address sanitizer looks on, pieces of memory have a gap behind them that nobody may touch. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GAP = 64 };
#else
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
enum { GAP = 0 };
#endif

typedef REAL vec __attribute__((vector_size(64), aligned(64), may_alias));

#define LANES (64 / (int)sizeof(REAL))
#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

/* Products keep this many sums in registers: 32 of 64 bytes with AVX-512, half as many of half the size elsewhere. */
#ifdef __AVX512F__
enum { ROWS = 5, OUTS = 4, UPDATED = 5, VECTORS = 4 };
#else
enum { ROWS = 2, OUTS = 2, UPDATED = 2, VECTORS = 2 };
#endif

enum { MOST_LAYERS = 64 };
enum { NOTHING = 0, RELU = 1, TANH = 2 };

typedef struct {
    int64_t depth;
    const int64_t *widths;  /* (depth + 1,) numbers of an activation: inputs, hidden, outputs */
    const int64_t *behind;  /* (depth,) what is behind the layer: NOTHING, RELU or TANH */
    const int64_t *weights; /* (depth,) where W (out, in) begins in a flat vector */
    const int64_t *biases;  /* (depth,) where b (out,) begins; -1: there is none */
    int64_t size;           /* of a flat vector */
    int64_t places;         /* rows of an example */
    int64_t squared;        /* 0: cross entropy, int64 targets (places,); 1: squared error, REAL targets (places, out) */
} Dense;

/* What a client's training works in, carved out of one piece of memory. */
typedef struct {
    REAL *w[MOST_LAYERS], *b[MOST_LAYERS];   /* weights */
    REAL *gw[MOST_LAYERS], *gb[MOST_LAYERS]; /* gradients, or the weights themselves; gb is 0 where there is no bias */
    REAL *h[MOST_LAYERS + 1], *d[MOST_LAYERS + 1];
    const void **targets; /* of the batch's examples */
} Room;

static int64_t filled(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

static void copy(REAL *to, const REAL *from, int64_t n) { __builtin_memcpy(to, from, (size_t)n * sizeof(REAL)); }

/* The piece that begins `at` numbers behind `memory`; 0 where only the room that it takes is asked for. */
static REAL *carve(REAL *memory, int64_t *at, int64_t numbers) {
    const int64_t start = *at, all = filled(numbers) + GAP;
    *at += all;
    if (!memory) return 0;
    ASAN_UNPOISON_MEMORY_REGION(memory + start, (size_t)numbers * sizeof(REAL));
    ASAN_POISON_MEMORY_REGION(memory + start + numbers, (size_t)(all - numbers) * sizeof(REAL));
    return memory + start;
}

/* Lay the room out; the first address behind it, in numbers from `memory`. */
static int64_t lay_out(const Dense *dense, int64_t rows, int own_gradients, REAL *memory, Room *room) {
    int64_t at = 0;
    for (int64_t l = 0; l <= dense->depth; l++) {
        room->h[l] = carve(memory, &at, rows * filled(dense->widths[l]));
        /* Nothing asks for the gradient of the examples. */
        room->d[l] = l ? carve(memory, &at, rows * filled(dense->widths[l])) : 0;
    }
    for (int64_t l = 0; l < dense->depth; l++) {
        room->w[l] = room->gw[l] = carve(memory, &at, dense->widths[l + 1] * filled(dense->widths[l]));
        /* Zeros where there is none. */
        room->b[l] = room->gb[l] = carve(memory, &at, dense->widths[l + 1]);
        if (own_gradients) {
            room->gw[l] = carve(memory, &at, dense->widths[l + 1] * filled(dense->widths[l]));
            room->gb[l] = carve(memory, &at, dense->widths[l + 1]);
        }
        if (dense->biases[l] < 0) room->gb[l] = 0;
    }
    room->targets = (const void **)carve(memory, &at, rows * (int64_t)(sizeof(void *) / sizeof(REAL) + 1));
    return at;
}

/* Numbers of memory that a caller must provide for batches of at most so many examples. They begin at 64 bytes, are zeros
   at first, and serve one function with one number of examples only: what fills rows up stays as it is. */
int64_t room_for(const Dense *dense, int64_t examples) {
    Room room;
    return lay_out(dense, examples * dense->places, 1, 0, &room);
}

/* In a fixed order: halves upon halves. */
INLINE REAL total(vec v) {
    REAL lanes[LANES];
    __builtin_memcpy(lanes, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

/* y[r][o] = b[o] + x[r] . w[o] */
INLINE void dots(const int rows, const int outs, int64_t n, const REAL *x, const REAL *w, const REAL *b, REAL *y,
                 int64_t ys) {
    vec sums[ROWS][OUTS];
    UNROLLED for (int r = 0; r < rows; r++) UNROLLED for (int o = 0; o < outs; o++) sums[r][o] = (vec){0};
    for (int64_t i = 0; i < n; i += LANES) {
        vec own[OUTS];
        UNROLLED for (int o = 0; o < outs; o++) own[o] = *(const vec *)(w + o * n + i);
        UNROLLED for (int r = 0; r < rows; r++) {
            vec at = *(const vec *)(x + r * n + i);
            UNROLLED for (int o = 0; o < outs; o++) sums[r][o] += at * own[o];
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int o = 0; o < outs; o++) y[r * ys + o] = b[o] + total(sums[r][o]);
}

/* Rows in tiles that stay in cache while all outputs pass over them. */
static void forward(int64_t rows, int64_t n, int64_t outs, const REAL *x, const REAL *w, const REAL *b, REAL *y) {
    const int64_t ys = filled(outs), tile = 8 * ROWS;
    for (int64_t first = 0; first < rows; first += tile) {
        const int64_t stop = first + tile < rows ? first + tile : rows;
        for (int64_t o = 0; o < outs;) {
            const REAL *own = w + o * n;
            const int many = o + OUTS <= outs;
            for (int64_t r = first; r < stop;) {
                const REAL *at = x + r * n;
                REAL *to = y + r * ys + o;
                const int block = r + ROWS <= stop;
                if (block && many) dots(ROWS, OUTS, n, at, own, b + o, to, ys);
                else if (block) dots(ROWS, 1, n, at, own, b + o, to, ys);
                else if (many) dots(1, OUTS, n, at, own, b + o, to, ys);
                else dots(1, 1, n, at, own, b + o, to, ys);
                r += block ? ROWS : 1;
            }
            o += many ? OUTS : 1;
        }
    }
}

/* g[o] = w[o] + alpha sum_r dy[r][o] x[r], or without w[o] where the gradient is asked for. */
INLINE void outer(const int outs, const int vectors, int64_t rows, int64_t n, const REAL *x, const REAL *dy, int64_t ys,
                  REAL alpha, int alone, REAL *g) {
    vec sums[UPDATED][VECTORS];
    UNROLLED for (int o = 0; o < outs; o++) UNROLLED for (int v = 0; v < vectors; v++) sums[o][v] = (vec){0};
    for (int64_t r = 0; r < rows; r++) {
        vec at[VECTORS];
        UNROLLED for (int v = 0; v < vectors; v++) at[v] = *(const vec *)(x + r * n + v * LANES);
        UNROLLED for (int o = 0; o < outs; o++) {
            const REAL c = dy[r * ys + o];
            UNROLLED for (int v = 0; v < vectors; v++) sums[o][v] += c * at[v];
        }
    }
    UNROLLED for (int o = 0; o < outs; o++) UNROLLED for (int v = 0; v < vectors; v++) {
        vec *to = (vec *)(g + o * n + v * LANES);
        const vec was = alone ? (vec){0} : *to;
        *to = was + alpha * sums[o][v];
    }
}

static void step(int64_t rows, int64_t n, int64_t outs, const REAL *x, const REAL *dy, REAL alpha, int alone, REAL *gw,
                 REAL *gb) {
    const int64_t ys = filled(outs), vectors = n / LANES;
    for (int64_t v = 0; v < vectors;) {
        const int many = v + VECTORS <= vectors;
        const REAL *at = x + v * LANES;
        for (int64_t o = 0; o < outs;) {
            REAL *own = gw + o * n + v * LANES;
            const int block = o + UPDATED <= outs;
            if (block && many) outer(UPDATED, VECTORS, rows, n, at, dy + o, ys, alpha, alone, own);
            else if (block) outer(UPDATED, 1, rows, n, at, dy + o, ys, alpha, alone, own);
            else if (many) outer(1, VECTORS, rows, n, at, dy + o, ys, alpha, alone, own);
            else outer(1, 1, rows, n, at, dy + o, ys, alpha, alone, own);
            o += block ? UPDATED : 1;
        }
        v += many ? VECTORS : 1;
    }
    if (!gb) return;
    for (int64_t o = 0; o < outs; o++) {
        REAL sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += dy[r * ys + o];
        gb[o] = (alone ? 0 : gb[o]) + alpha * sum;
    }
}

/* dx[r] = sum_o dy[r][o] w[o] */
INLINE void inner(const int rows, const int vectors, int64_t n, int64_t outs, const REAL *dy, int64_t ys, const REAL *w,
                  REAL *dx) {
    vec sums[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < rows; r++) UNROLLED for (int v = 0; v < vectors; v++) sums[r][v] = (vec){0};
    for (int64_t o = 0; o < outs; o++) {
        vec own[VECTORS];
        UNROLLED for (int v = 0; v < vectors; v++) own[v] = *(const vec *)(w + o * n + v * LANES);
        UNROLLED for (int r = 0; r < rows; r++) {
            const REAL c = dy[r * ys + o];
            UNROLLED for (int v = 0; v < vectors; v++) sums[r][v] += c * own[v];
        }
    }
    UNROLLED for (int r = 0; r < rows; r++)
        UNROLLED for (int v = 0; v < vectors; v++) *(vec *)(dx + r * n + v * LANES) = sums[r][v];
}

static void backward(int64_t rows, int64_t n, int64_t outs, const REAL *dy, const REAL *w, REAL *dx) {
    const int64_t ys = filled(outs), vectors = n / LANES;
    for (int64_t v = 0; v < vectors;) {
        const int many = v + VECTORS <= vectors;
        const REAL *own = w + v * LANES;
        for (int64_t r = 0; r < rows;) {
            const REAL *at = dy + r * ys;
            REAL *to = dx + r * n + v * LANES;
            const int block = r + ROWS <= rows;
            if (block && many) inner(ROWS, VECTORS, n, outs, at, ys, own, to);
            else if (block) inner(ROWS, 1, n, outs, at, ys, own, to);
            else if (many) inner(1, VECTORS, n, outs, at, ys, own, to);
            else inner(1, 1, n, outs, at, ys, own, to);
            r += block ? ROWS : 1;
        }
        v += many ? VECTORS : 1;
    }
}

/* What follows is not contracted: with branches in between, which sum takes which product would depend on whether the
   compiler turns them into vectors. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

/* exp(x), x <= 0, to some units in the last place: 2^n exp(r), |r| <= log(2) / 2, by the series. A library's would
   differ from one version to the next. */
INLINE REAL exponential(REAL x) {
    const int single = sizeof(REAL) == 4;
    const REAL shift = single ? (REAL)12582912.0 : (REAL)6755399441055744.0;
    const REAL high = single ? (REAL)0.693359375 : (REAL)6.93147180369123816490e-01;
    const REAL low = single ? (REAL)-2.12194440e-4 : (REAL)1.90821492927058770002e-10;
    const REAL least = single ? (REAL)-87.0 : (REAL)-708.0;
    const REAL z = x > least ? x : least;
    const REAL n = (z * (REAL)1.44269504088896340736 + shift) - shift;
    const REAL r = (z - n * high) - n * low;
    REAL sum = 1;
    UNROLLED for (int k = single ? 7 : 13; k >= 1; k--) sum = 1 + sum * r * (1 / (REAL)k);
    REAL power;
    if (single) {
        const int32_t bits = ((int32_t)n + 127) << 23;
        __builtin_memcpy(&power, &bits, sizeof power);
    } else {
        const int64_t bits = ((int64_t)n + 1023) << 52;
        __builtin_memcpy(&power, &bits, sizeof power);
    }
    /* What is not a number stays none. */
    return x > least ? sum * power : x == x ? 0 : x;
}

/* By exp(-2 |x|) - 1, whose series keeps the digits of small numbers. */
INLINE REAL tangent(REAL x) {
    const REAL z = x < 0 ? 2 * x : -2 * x;
    REAL less;
    if (z > (REAL)-0.6) {
        REAL sum = 1;
        UNROLLED for (int k = sizeof(REAL) == 4 ? 9 : 17; k >= 2; k--) sum = 1 + sum * z * (1 / (REAL)k);
        less = sum * z;
    } else {
        less = exponential(z) - 1;
    }
    return (x < 0 ? less : -less) / (2 + less);
}

/* h <- activation(h) */
static void activate(int64_t kind, int64_t numbers, REAL *h) {
    if (kind == RELU)
        for (int64_t i = 0; i < numbers; i++) h[i] = h[i] < 0 ? 0 : h[i];
    else if (kind == TANH)
        for (int64_t i = 0; i < numbers; i++) h[i] = tangent(h[i]);
}

/* d <- d activation'(x), from h = activation(x) */
static void deactivate(int64_t kind, int64_t numbers, const REAL *h, REAL *d) {
    if (kind == RELU)
        for (int64_t i = 0; i < numbers; i++) d[i] = h[i] <= 0 ? 0 : d[i];
    else if (kind == TANH)
        for (int64_t i = 0; i < numbers; i++) d[i] *= 1 - h[i] * h[i];
}

/* dy = softmax(z) - onehot(target). Whether the target is a class. */
static int cross_entropy(int64_t outs, const REAL *z, int64_t target, REAL *dy) {
    if (target < 0 || target >= outs) return 0;
    REAL most = z[0], sum = 0;
    for (int64_t o = 1; o < outs; o++) most = z[o] > most ? z[o] : most;
    for (int64_t o = 0; o < outs; o++) dy[o] = exponential(z[o] - most);
    for (int64_t o = 0; o < outs; o++) sum += dy[o];
    for (int64_t o = 0; o < outs; o++) dy[o] /= sum;
    dy[target] -= 1;
    return 1;
}

#ifdef __clang__
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC pop_options
#endif

/* One local step of a batch whose inputs and targets are in the room. Whether all targets are classes.

   g = w + scale times the gradient of the mean loss, or without w (`alone`). */
static int pass(const Dense *dense, int64_t examples, REAL scale, int alone, Room *room, REAL *outputs) {
    const int64_t depth = dense->depth, rows = examples * dense->places, last = dense->widths[depth];
    for (int64_t l = 0; l < depth; l++) {
        forward(rows, filled(dense->widths[l]), dense->widths[l + 1], room->h[l], room->w[l], room->b[l], room->h[l + 1]);
        activate(dense->behind[l], rows * filled(dense->widths[l + 1]), room->h[l + 1]);
    }
    REAL factor = 1 / (REAL)dense->places;
    if (dense->squared) factor = 2 / (REAL)(dense->places * last);
    for (int64_t row = 0; row < rows; row++) {
        const REAL *z = room->h[depth] + row * filled(last);
        REAL *dy = room->d[depth] + row * filled(last);
        const int64_t example = row / dense->places, place = row % dense->places;
        copy(outputs + row * last, z, last);
        if (dense->squared) {
            const REAL *targets = (const REAL *)room->targets[example] + place * last;
            for (int64_t o = 0; o < last; o++) dy[o] = z[o] - targets[o];
        } else if (!cross_entropy(last, z, ((const int64_t *)room->targets[example])[place], dy)) {
            return 0;
        }
    }
    const REAL alpha = scale * factor / (REAL)examples;
    for (int64_t l = depth - 1; l >= 0; l--) {
        const int64_t n = filled(dense->widths[l]), outs = dense->widths[l + 1];
        deactivate(dense->behind[l], rows * filled(outs), room->h[l + 1], room->d[l + 1]);
        /* Before the weights move. */
        if (l) backward(rows, n, outs, room->d[l + 1], room->w[l], room->d[l]);
        step(rows, n, outs, room->h[l], room->d[l + 1], alpha, alone, room->gw[l], room->gb[l]);
    }
    return 1;
}

static void load(const Dense *dense, const REAL *params, Room *room) {
    for (int64_t l = 0; l < dense->depth; l++) {
        const int64_t n = dense->widths[l], outs = dense->widths[l + 1];
        for (int64_t o = 0; o < outs; o++) {
            REAL *own = room->w[l] + o * filled(n);
            copy(own, params + dense->weights[l] + o * n, n);
            /* What a client that diverged left there. */
            for (int64_t i = n; i < filled(n); i++) own[i] = 0;
        }
        if (dense->biases[l] >= 0) copy(room->b[l], params + dense->biases[l], outs);
    }
}

/* y <- keep y + constant, of a flat vector's own numbers. */
static void correct(const Dense *dense, REAL keep, const REAL *constant, Room *room) {
    for (int64_t l = 0; l < dense->depth; l++) {
        const int64_t n = dense->widths[l], outs = dense->widths[l + 1];
        for (int64_t o = 0; o < outs; o++) {
            REAL *own = room->w[l] + o * filled(n);
            const REAL *add = constant + dense->weights[l] + o * n;
            for (int64_t i = 0; i < n; i++) own[i] = add[i] + keep * own[i];
        }
        if (dense->biases[l] >= 0)
            for (int64_t o = 0; o < outs; o++)
                room->b[l][o] = constant[dense->biases[l] + o] + keep * room->b[l][o];
    }
}

/* delta = own - from; the sum of its squares. */
static double subtract(int64_t n, const REAL *own, const REAL *from, REAL *delta) {
    double lanes[8] = {0}, sum = 0;
    const int64_t whole = n / 8 * 8;
    for (int64_t i = 0; i < whole; i += 8)
        for (int j = 0; j < 8; j++) {
            const REAL d = own[i + j] - from[i + j];
            delta[i + j] = d;
            lanes[j] += (double)d * (double)d;
        }
    for (int64_t i = whole; i < n; i++) {
        const REAL d = own[i] - from[i];
        delta[i] = d;
        lanes[0] += (double)d * (double)d;
    }
    for (int j = 0; j < 8; j++) sum += lanes[j];
    return sum;
}

/* Train clients with SGD, each from the broadcast. 0 where a target is no class, else 1.

   x, y: (clients,) addresses of their examples. order, bounds: local step k of a client takes its examples
   order[bounds[k]] to order[bounds[k + 1] - 1]; one client's behind the other's. steps: (clients,). scale: a local
   step is y <- y + scale grad, then y <- keep y + constant where there is one. constants: (clients, stride), or all the same
   with stride 0. deltas: (clients, size), gaps are left as they are. squares: (clients, depth, 2), zeros: of each
   weight's and bias's part of the delta, the sum of squares. outputs: of all visits. memory: `room_for(most)`, and no
   batch has more examples. */
int64_t train(const Dense *dense, int64_t clients, const REAL *broadcast, const REAL *const *x, const char *const *y,
              const int64_t *order, const int64_t *bounds, const int64_t *steps, double scale, double keep,
              const REAL *constants, int64_t stride, REAL *deltas, double *squares, REAL *outputs, int64_t most,
              REAL *memory) {
    Room room;
    lay_out(dense, most * dense->places, 0, memory, &room);
    const int64_t in = dense->widths[0], last = dense->widths[dense->depth], places = dense->places;
    const size_t target = dense->squared ? sizeof(REAL) * last : sizeof(int64_t);
    for (int64_t k = 0; k < clients; k++) {
        load(dense, broadcast, &room);
        for (int64_t s = 0; s < steps[k]; s++) {
            const int64_t examples = bounds[s + 1] - bounds[s];
            for (int64_t e = 0; e < examples; e++) {
                const int64_t which = order[bounds[s] + e];
                for (int64_t p = 0; p < places; p++)
                    copy(room.h[0] + (e * places + p) * filled(in), x[k] + (which * places + p) * in, in);
                room.targets[e] = y[k] + (size_t)(which * places) * target;
            }
            if (!pass(dense, examples, (REAL)scale, 0, &room, outputs)) return 0;
            if (constants) correct(dense, (REAL)keep, constants + k * stride, &room);
            outputs += examples * places * last;
        }
        order += bounds[steps[k]];
        bounds += steps[k] + 1;
        REAL *delta = deltas + k * dense->size;
        for (int64_t l = 0; l < dense->depth; l++) {
            const int64_t n = dense->widths[l], outs = dense->widths[l + 1], w = dense->weights[l], b = dense->biases[l];
            double *square = squares + 2 * (k * dense->depth + l);
            for (int64_t o = 0; o < outs; o++) {
                const int64_t at = w + o * n;
                square[0] += subtract(n, room.w[l] + o * filled(n), broadcast + at, delta + at);
            }
            if (b >= 0) square[1] = subtract(outs, room.b[l], broadcast + b, delta + b);
        }
    }
    return 1;
}

/* The gradient of a batch's mean loss, times `scale`. 0 where a target is no class, else 1.

   x: (examples, places, in). y: their targets. gradient: (size,), of which gaps are left as they are. outputs, most,
   memory: as `train`, but memory of its own. */
int64_t gradient(const Dense *dense, const REAL *params, const REAL *x, const char *y, int64_t examples, double scale,
                 REAL *gradient, REAL *outputs, int64_t most, REAL *memory) {
    Room room;
    lay_out(dense, most * dense->places, 1, memory, &room);
    const int64_t in = dense->widths[0], last = dense->widths[dense->depth], places = dense->places;
    const size_t target = dense->squared ? sizeof(REAL) * last : sizeof(int64_t);
    load(dense, params, &room);
    for (int64_t e = 0; e < examples; e++) {
        for (int64_t p = 0; p < places; p++)
            copy(room.h[0] + (e * places + p) * filled(in), x + (e * places + p) * in, in);
        room.targets[e] = y + (size_t)(e * places) * target;
    }
    if (!pass(dense, examples, (REAL)scale, 1, &room, outputs)) return 0;
    for (int64_t l = 0; l < dense->depth; l++) {
        const int64_t n = dense->widths[l], outs = dense->widths[l + 1];
        for (int64_t o = 0; o < outs; o++) copy(gradient + dense->weights[l] + o * n, room.gw[l] + o * filled(n), n);
        if (dense->biases[l] >= 0) copy(gradient + dense->biases[l], room.gb[l], outs);
    }
    return 1;
}
