/* Local training of dense layers with relu, tanh or nothing behind them, one client after another: forward, backward and
   local step.

   A local step is plain SGD with a constant (`Rule`). What else it does with new numbers is done where the product that
   makes them has them in registers: weights are read and written once a local step.

   REAL is float or double. A sum of products is added up in 64 bytes whatever the processor's vectors have, so in the same
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

/* Bytes of the processor's vectors, and how many sums products keep in registers: of 32, 16 or more. */
#if defined(__AVX512F__)
#define NATIVE 64
enum { ROWS = 5, OUTS = 4, UPDATED = 5, VECTORS = 4 };
#elif defined(__AVX__)
#define NATIVE 32
enum { ROWS = 5, OUTS = 2, UPDATED = 5, VECTORS = 2 };
#else
#define NATIVE 16
enum { ROWS = 5, OUTS = 2, UPDATED = 5, VECTORS = 2 };
#endif

/* Otherwise compilers put the address into each product, and processors load it each time. */
#if defined(__AVX512F__)
#define LOADED_ONCE(v) __asm__("" : "+v"(v))
#elif defined(__AVX__)
#define LOADED_ONCE(v) __asm__("" : "+x"(v))
#else
#define LOADED_ONCE(v) ((void)(v))
#endif

typedef REAL vec __attribute__((vector_size(NATIVE), aligned(NATIVE), may_alias));

/* Numbers of a vector of the processor's; of 64 bytes, to which rows are filled up; and how many of those are in these. */
#define LANES (NATIVE / (int)sizeof(REAL))
#define FILL (64 / (int)sizeof(REAL))
enum { PARTS = 64 / NATIVE };

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")

enum { MOST_LAYERS = 64 };
enum { NOTHING = 0, RELU = 1, TANH = 2 };

/* What a room has beside weights. */
enum { OWN_STEPPED = 1, CONSTANT = 2, SUM = 4, ANCHOR = 8 };
enum { SHRUNK = 1, BOUNDED = 2 };

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

/* A local step: y <- y + scale grad, then y <- keep y + constant. */
typedef struct {
    double scale, keep;
    const REAL *constants;    /* (clients, stride), or all the same with stride 0; 0: none */
    int64_t stride;
    const REAL *begins;       /* (clients, size), y at first; 0: the broadcast */
    int64_t anchored;         /* the gradient at the broadcast, of the same batch, is taken off */
    int64_t penalty;          /* where the gradient is taken: SHRUNK or BOUNDED; 0: at y */
    const int64_t *penalised; /* (depth, 2), whether a weight, a bias is */
    double amount, growth;    /* SHRUNK at local step k: by amount + k growth; BOUNDED: to a norm of amount */
    const int64_t *windows;   /* (all, 2), ranges of local steps, one client's behind the other's */
    const int64_t *counts;    /* (clients,), of windows; 0: there are none */
    REAL *means;              /* (all, size), of y after each local step of a window; gaps are left as they are */
} Rule;

/* Numbers of every layer, in rows that are filled up. A weight is `factor` times what is there, for it not to be written
   twice where all of it is scaled. */
typedef struct {
    REAL *w[MOST_LAYERS], *b[MOST_LAYERS], factor[MOST_LAYERS];
} Pieces;

/* What a client's training works in, carved out of one piece of memory. */
typedef struct {
    Pieces at;               /* weights; a bias that is not there is zeros */
    Pieces g;                /* what is stepped, or gradients: the weights themselves, if they are not kept apart; its b
                                is 0 where there is no bias */
    Pieces constant, sum, anchor;
    REAL *h[MOST_LAYERS + 1], *d[MOST_LAYERS + 1];
    const void **targets; /* of the batch's examples */
} Room;

static int64_t filled(int64_t n) { return (n + FILL - 1) / FILL * FILL; }

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

static void carve_pieces(const Dense *dense, REAL *memory, int64_t *at, Pieces *pieces) {
    for (int64_t l = 0; l < dense->depth; l++) {
        pieces->w[l] = carve(memory, at, dense->widths[l + 1] * filled(dense->widths[l]));
        pieces->b[l] = carve(memory, at, dense->widths[l + 1]);
        pieces->factor[l] = 1;
    }
}

/* Lay the room out; the first address behind it, in numbers from `memory`. */
static int64_t lay_out(const Dense *dense, int64_t rows, int64_t extras, REAL *memory, Room *room) {
    int64_t at = 0;
    for (int64_t l = 0; l <= dense->depth; l++) {
        room->h[l] = carve(memory, &at, rows * filled(dense->widths[l]));
        /* Nothing asks for the gradient of the examples. */
        room->d[l] = l ? carve(memory, &at, rows * filled(dense->widths[l])) : 0;
    }
    carve_pieces(dense, memory, &at, &room->at);
    room->g = room->at;
    if (extras & OWN_STEPPED) carve_pieces(dense, memory, &at, &room->g);
    if (extras & CONSTANT) carve_pieces(dense, memory, &at, &room->constant);
    if (extras & SUM) carve_pieces(dense, memory, &at, &room->sum);
    if (extras & ANCHOR) carve_pieces(dense, memory, &at, &room->anchor);
    for (int64_t l = 0; l < dense->depth; l++) {
        if (dense->biases[l] < 0) room->g.b[l] = 0;
    }
    room->targets = (const void **)carve(memory, &at, rows * (int64_t)(sizeof(void *) / sizeof(REAL) + 1));
    return at;
}

/* Numbers of memory that a caller must provide for batches of at most so many examples. They begin at 64 bytes, are zeros
   at first, and serve one number of examples and the same extras only: what fills rows up stays as it is. */
int64_t room_for(const Dense *dense, int64_t examples, int64_t extras) {
    Room room;
    return lay_out(dense, examples * dense->places, extras, 0, &room);
}

/* In a fixed order, halves upon halves: first those of 64 bytes, of which part p is `apart` vectors behind part p - 1, */
INLINE void fold(const int many, const int apart, vec *sums) {
    UNROLLED for (int half = PARTS / 2; half; half /= 2)
        UNROLLED for (int p = 0; p < half; p++)
            UNROLLED for (int i = 0; i < many; i++) sums[p * apart + i] += sums[(p + half) * apart + i];
}

/* and then those of a vector of the processor's. */
INLINE REAL total(vec v) {
    REAL lanes[LANES];
    __builtin_memcpy(lanes, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define PICKED __builtin_shufflevector
#endif
#endif

typedef REAL four __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

#define SIZE_float 4
#define SIZE_double 8
#define JOINED(a, b) a##b
#define SIZE(real) JOINED(SIZE_, real)

/* The totals of four, each in the order of `total`. */
INLINE four totals(const vec *v) {
#ifndef PICKED
    return (four){total(v[0]), total(v[1]), total(v[2]), total(v[3])};
#elif NATIVE / SIZE(REAL) == 16
    const vec ab = PICKED(v[0], v[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
                   + PICKED(v[0], v[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    const vec cd = PICKED(v[2], v[3], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
                   + PICKED(v[2], v[3], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    const vec quarters = PICKED(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
                         + PICKED(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    const vec pairs = quarters + PICKED(quarters, quarters, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    const vec all = pairs + PICKED(pairs, pairs, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return PICKED(all, all, 0, 4, 8, 12);
#elif NATIVE / SIZE(REAL) == 8
    const vec ab = PICKED(v[0], v[1], 0, 1, 2, 3, 8, 9, 10, 11) + PICKED(v[0], v[1], 4, 5, 6, 7, 12, 13, 14, 15);
    const vec cd = PICKED(v[2], v[3], 0, 1, 2, 3, 8, 9, 10, 11) + PICKED(v[2], v[3], 4, 5, 6, 7, 12, 13, 14, 15);
    const vec pairs = PICKED(ab, cd, 0, 1, 4, 5, 8, 9, 12, 13) + PICKED(ab, cd, 2, 3, 6, 7, 10, 11, 14, 15);
    const vec all = pairs + PICKED(pairs, pairs, 1, 0, 3, 2, 5, 4, 7, 6);
    return PICKED(all, all, 0, 2, 4, 6);
#elif NATIVE / SIZE(REAL) == 4
    const vec ab = PICKED(v[0], v[1], 0, 1, 4, 5) + PICKED(v[0], v[1], 2, 3, 6, 7);
    const vec cd = PICKED(v[2], v[3], 0, 1, 4, 5) + PICKED(v[2], v[3], 2, 3, 6, 7);
    return PICKED(ab, cd, 0, 2, 4, 6) + PICKED(ab, cd, 1, 3, 5, 7);
#else
    const vec ab = PICKED(v[0], v[1], 0, 2) + PICKED(v[0], v[1], 1, 3);
    const vec cd = PICKED(v[2], v[3], 0, 2) + PICKED(v[2], v[3], 1, 3);
    return PICKED(ab, cd, 0, 1, 2, 3);
#endif
}

/* y[r][o] = b[o] + f (x[r] . w[o]) */
INLINE void dots(const int rows, const int outs, int64_t n, const REAL *x, const REAL *w, const REAL *b, REAL f, REAL *y,
                 int64_t ys) {
    vec all[PARTS * ROWS * OUTS];
    UNROLLED for (int p = 0; p < PARTS; p++) {
        vec sums[ROWS][OUTS];
        UNROLLED for (int r = 0; r < rows; r++) UNROLLED for (int o = 0; o < outs; o++) sums[r][o] = (vec){0};
        for (int64_t i = p * LANES; i < n; i += FILL) {
            vec own[OUTS];
            UNROLLED for (int o = 0; o < outs; o++) {
                own[o] = *(const vec *)(w + o * n + i);
                LOADED_ONCE(own[o]);
            }
            UNROLLED for (int r = 0; r < rows; r++) {
                vec at = *(const vec *)(x + r * n + i);
                LOADED_ONCE(at);
                UNROLLED for (int o = 0; o < outs; o++) sums[r][o] += at * own[o];
            }
        }
        UNROLLED for (int r = 0; r < rows; r++)
            UNROLLED for (int o = 0; o < outs; o++) all[p * ROWS * OUTS + r * outs + o] = sums[r][o];
    }
    fold(rows * outs, ROWS * OUTS, all);
    UNROLLED for (int r = 0; r < rows; r++) {
        if (outs == 4) *(four *)(y + r * ys) = *(const four *)b + f * totals(all + r * outs);
        else
            UNROLLED for (int o = 0; o < outs; o++) y[r * ys + o] = b[o] + f * total(all[r * outs + o]);
    }
}

/* A few rows stay in the first cache while a tile of outputs' weights passes over them; the tile stays in the second for
   the next rows. */
static void forward(int64_t rows, int64_t n, int64_t outs, const REAL *x, const REAL *w, const REAL *b, REAL f,
                    REAL *y) {
    const int64_t ys = filled(outs), tile = 8 * OUTS;
    for (int64_t first = 0; first < outs; first += tile) {
        const int64_t stop = first + tile < outs ? first + tile : outs;
        for (int64_t r = 0; r < rows;) {
            const REAL *at = x + r * n;
            const int block = r + ROWS <= rows;
            for (int64_t o = first; o < stop;) {
                const REAL *own = w + o * n;
                REAL *to = y + r * ys + o;
                const int many = o + OUTS <= stop;
                if (block && many) dots(ROWS, OUTS, n, at, own, b + o, f, to, ys);
                else if (block) dots(ROWS, 1, n, at, own, b + o, f, to, ys);
                else if (many) dots(1, OUTS, n, at, own, b + o, f, to, ys);
                else dots(1, 1, n, at, own, b + o, f, to, ys);
                o += many ? OUTS : 1;
            }
            r += block ? ROWS : 1;
        }
    }
}

typedef int64_t mask __attribute__((vector_size(NATIVE), may_alias));

/* v moved by t >= 0 towards 0, and no further. */
INLINE vec shrunk(vec v, REAL t) {
    const vec above = (vec)((mask)(v > t) & (mask)(v - t)), below = (vec)((mask)(v < -t) & (mask)(v + t));
    return above + below;
}

INLINE REAL shrunk_one(REAL v, REAL t) { return v > t ? v - t : v < -t ? v + t : 0; }

static void shrink(int64_t numbers, const REAL *from, REAL by, REAL *to) {
    for (int64_t i = 0; i < numbers; i++) to[i] = shrunk_one(from[i], by);
}

/* What becomes of new numbers of a weight, beside being written. */
typedef struct {
    const REAL *constant; /* first y <- keep y + constant; 0: nothing */
    REAL keep;
    REAL *sum; /* added up here, or put here at first; 0: nowhere */
    int first, both; /* both: with what was there before, whose turn it was */
    REAL *shrunk; /* where they are written shrunk by `by`; 0: nowhere */
    REAL by;
} After;

/* Ask for what a product will need when it is done. */
INLINE void fetch(const int outs, const int vectors, int64_t n, const REAL *from) {
    UNROLLED for (int o = 0; o < outs; o++)
        UNROLLED for (int v = 0; v < vectors; v++) __builtin_prefetch(from + o * n + v * LANES);
}

/* g[o] = w[o] + alpha sum_r dy[r][o] x[r], or without w[o] where the gradient is asked for; then `after`. All of a
   weight's pieces have this place at `place`. */
INLINE void outer(const int outs, const int vectors, int64_t rows, int64_t n, const REAL *x, const REAL *dy, int64_t ys,
                  REAL alpha, int alone, REAL *g, int64_t place, const After *after) {
    vec sums[UPDATED][VECTORS];
    UNROLLED for (int o = 0; o < outs; o++) UNROLLED for (int v = 0; v < vectors; v++) sums[o][v] = (vec){0};
    if (after->constant) fetch(outs, vectors, n, after->constant + place);
    if (after->shrunk) fetch(outs, vectors, n, after->shrunk + place);
    if (after->sum) fetch(outs, vectors, n, after->sum + place);
    for (int64_t r = 0; r < rows; r++) {
        vec at[VECTORS];
        UNROLLED for (int v = 0; v < vectors; v++) at[v] = *(const vec *)(x + r * n + v * LANES);
        UNROLLED for (int o = 0; o < outs; o++) {
            const REAL c = dy[r * ys + o];
            UNROLLED for (int v = 0; v < vectors; v++) sums[o][v] += c * at[v];
        }
    }
    UNROLLED for (int o = 0; o < outs; o++) UNROLLED for (int v = 0; v < vectors; v++) {
        const vec was = alone ? (vec){0} : *(const vec *)(g + place + o * n + v * LANES);
        sums[o][v] = was + alpha * sums[o][v];
    }
    if (after->constant)
        UNROLLED for (int o = 0; o < outs; o++) UNROLLED for (int v = 0; v < vectors; v++) {
            const vec add = *(const vec *)(after->constant + place + o * n + v * LANES);
            sums[o][v] = add + after->keep * sums[o][v];
        }
    if (after->sum)
        UNROLLED for (int o = 0; o < outs; o++) UNROLLED for (int v = 0; v < vectors; v++) {
            vec *to = (vec *)(after->sum + place + o * n + v * LANES), now = sums[o][v];
            if (after->both) now += *(const vec *)(g + place + o * n + v * LANES);
            *to = now + (after->first ? (vec){0} : *to);
        }
    UNROLLED for (int o = 0; o < outs; o++)
        UNROLLED for (int v = 0; v < vectors; v++) *(vec *)(g + place + o * n + v * LANES) = sums[o][v];
    if (after->shrunk)
        UNROLLED for (int o = 0; o < outs; o++) UNROLLED for (int v = 0; v < vectors; v++)
            *(vec *)(after->shrunk + place + o * n + v * LANES) = shrunk(sums[o][v], after->by);
}

static void step_weight(int64_t rows, int64_t n, int64_t outs, const REAL *x, const REAL *dy, REAL alpha, int alone, REAL *g,
                        const After *after) {
    const int64_t ys = filled(outs), vectors = n / LANES;
    for (int64_t o = 0; o < outs;) {
        const int block = o + UPDATED <= outs;
        for (int64_t v = 0; v < vectors;) {
            const REAL *at = x + v * LANES;
            const int many = v + VECTORS <= vectors;
            const int64_t place = o * n + v * LANES;
            if (block && many) outer(UPDATED, VECTORS, rows, n, at, dy + o, ys, alpha, alone, g, place, after);
            else if (block) outer(UPDATED, 1, rows, n, at, dy + o, ys, alpha, alone, g, place, after);
            else if (many) outer(1, VECTORS, rows, n, at, dy + o, ys, alpha, alone, g, place, after);
            else outer(1, 1, rows, n, at, dy + o, ys, alpha, alone, g, place, after);
            v += many ? VECTORS : 1;
        }
        o += block ? UPDATED : 1;
    }
}

static void step_bias(int64_t rows, int64_t outs, const REAL *dy, REAL alpha, int alone, REAL *g, const After *after) {
    const int64_t ys = filled(outs);
    for (int64_t o = 0; o < outs; o++) {
        REAL sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += dy[r * ys + o];
        REAL now = (alone ? 0 : g[o]) + alpha * sum;
        if (after->constant) now = after->constant[o] + after->keep * now;
        if (after->sum) after->sum[o] = (now + (after->both ? g[o] : 0)) + (after->first ? 0 : after->sum[o]);
        if (after->shrunk) after->shrunk[o] = shrunk_one(now, after->by);
        g[o] = now;
    }
}

/* dx[r] = f sum_o dy[r][o] w[o] */
INLINE void inner(const int rows, const int vectors, int64_t n, int64_t outs, const REAL *dy, int64_t ys, const REAL *w,
                  REAL f, REAL *dx) {
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
        UNROLLED for (int v = 0; v < vectors; v++) *(vec *)(dx + r * n + v * LANES) = f * sums[r][v];
}

static void backward(int64_t rows, int64_t n, int64_t outs, const REAL *dy, const REAL *w, REAL f, REAL *dx) {
    const int64_t ys = filled(outs), vectors = n / LANES;
    for (int64_t v = 0; v < vectors;) {
        const int many = v + VECTORS <= vectors;
        const REAL *own = w + v * LANES;
        for (int64_t r = 0; r < rows;) {
            const REAL *at = dy + r * ys;
            REAL *to = dx + r * n + v * LANES;
            const int block = r + ROWS <= rows;
            if (block && many) inner(ROWS, VECTORS, n, outs, at, ys, own, f, to);
            else if (block) inner(ROWS, 1, n, outs, at, ys, own, f, to);
            else if (many) inner(1, VECTORS, n, outs, at, ys, own, f, to);
            else inner(1, 1, n, outs, at, ys, own, f, to);
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

/* How new numbers go on (`After`), where a pass ends a local step. */
typedef struct {
    int corrects, sums, first, both;
    int64_t penalty;
    const int64_t *penalised;
    REAL keep, by;
} End;

static After after(const Room *room, int64_t l, int is_bias, const End *end) {
    After made = {0};
    if (!end) return made;
    made.keep = end->keep, made.first = end->first, made.both = end->both, made.by = end->by;
    if (end->corrects) made.constant = is_bias ? room->constant.b[l] : room->constant.w[l];
    if (end->sums) made.sum = is_bias ? room->sum.b[l] : room->sum.w[l];
    if (end->penalty == SHRUNK && end->penalised[2 * l + is_bias]) made.shrunk = is_bias ? room->at.b[l] : room->at.w[l];
    return made;
}

/* One gradient of a batch whose inputs and targets are in the room. Whether all targets are classes.

   g <- w + scale times the gradient of the mean loss at `at`, or without w (`alone`), then `end`, which may be 0. outputs:
   0 where nobody asks for them. */
static int pass(const Dense *dense, int64_t examples, REAL scale, int alone, Room *room, const Pieces *at, const End *end,
                REAL *outputs) {
    const int64_t depth = dense->depth, rows = examples * dense->places, last = dense->widths[depth];
    for (int64_t l = 0; l < depth; l++) {
        forward(rows, filled(dense->widths[l]), dense->widths[l + 1], room->h[l], at->w[l], at->b[l],
                at->factor[l], room->h[l + 1]);
        activate(dense->behind[l], rows * filled(dense->widths[l + 1]), room->h[l + 1]);
    }
    REAL factor = 1 / (REAL)dense->places;
    if (dense->squared) factor = 2 / (REAL)(dense->places * last);
    for (int64_t row = 0; row < rows; row++) {
        const REAL *z = room->h[depth] + row * filled(last);
        REAL *dy = room->d[depth] + row * filled(last);
        const int64_t example = row / dense->places, place = row % dense->places;
        if (outputs) copy(outputs + row * last, z, last);
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
        const After of_weight = after(room, l, 0, end), of_bias = after(room, l, 1, end);
        deactivate(dense->behind[l], rows * filled(outs), room->h[l + 1], room->d[l + 1]);
        /* Before the weights move. */
        if (l) backward(rows, n, outs, room->d[l + 1], at->w[l], at->factor[l], room->d[l]);
        step_weight(rows, n, outs, room->h[l], room->d[l + 1], alpha, alone, room->g.w[l], &of_weight);
        if (room->g.b[l]) step_bias(rows, outs, room->d[l + 1], alpha, alone, room->g.b[l], &of_bias);
    }
    return 1;
}

/* A flat vector's numbers, in the room's rows. */
static void load(const Dense *dense, const REAL *from, const Pieces *to) {
    for (int64_t l = 0; l < dense->depth; l++) {
        const int64_t n = dense->widths[l], outs = dense->widths[l + 1];
        for (int64_t o = 0; o < outs; o++) {
            REAL *own = to->w[l] + o * filled(n);
            copy(own, from + dense->weights[l] + o * n, n);
            /* What a client that diverged left there. */
            for (int64_t i = n; i < filled(n); i++) own[i] = 0;
        }
        if (dense->biases[l] >= 0) copy(to->b[l], from + dense->biases[l], outs);
    }
}

/* Rows of the room in a flat vector, by `divisor`. */
static void store(const Dense *dense, const Pieces *from, REAL divisor, REAL *to) {
    for (int64_t l = 0; l < dense->depth; l++) {
        const int64_t n = dense->widths[l], outs = dense->widths[l + 1];
        for (int64_t o = 0; o < outs; o++) {
            const REAL *own = from->w[l] + o * filled(n);
            REAL *into = to + dense->weights[l] + o * n;
            for (int64_t i = 0; i < n; i++) into[i] = own[i] / divisor;
        }
        if (dense->biases[l] >= 0)
            for (int64_t o = 0; o < outs; o++) to[dense->biases[l] + o] = from->b[l][o] / divisor;
    }
}

/* min(1, most / |v|), of v with so many numbers; 1 where |v| is 0. Sums in lanes, whose order is the same everywhere. */
static REAL bound(int64_t numbers, const REAL *v, REAL most) {
    vec sums[PARTS][4] = {{{0}}}, all[PARTS];
    const int64_t whole = numbers / (4 * FILL) * (4 * FILL);
    for (int64_t i = 0; i < whole; i += 4 * FILL)
        UNROLLED for (int j = 0; j < 4; j++) UNROLLED for (int p = 0; p < PARTS; p++) {
            const vec own = *(const vec *)(v + i + j * FILL + p * LANES);
            sums[p][j] += own * own;
        }
    UNROLLED for (int p = 0; p < PARTS; p++) all[p] = (sums[p][0] + sums[p][1]) + (sums[p][2] + sums[p][3]);
    fold(1, 1, all);
    REAL rest = 0;
    for (int64_t i = whole; i < numbers; i++) rest += v[i] * v[i];
    const REAL norm = __builtin_sqrt((double)(total(all[0]) + rest));
    /* What is not a number stays none. */
    return norm <= most ? 1 : most / norm;
}

/* Where the first gradient is taken, or every one of a bounded parameter. */
static void take_point(const Dense *dense, const Rule *rule, Room *room) {
    const REAL by = (REAL)rule->amount;
    for (int64_t l = 0; l < dense->depth; l++) {
        const int64_t numbers = dense->widths[l + 1] * filled(dense->widths[l]), outs = dense->widths[l + 1];
        if (rule->penalised[2 * l]) {
            if (rule->penalty == BOUNDED) room->at.factor[l] = bound(numbers, room->g.w[l], by);
            else shrink(numbers, room->g.w[l], by, room->at.w[l]);
        }
        if (rule->penalised[2 * l + 1] && dense->biases[l] >= 0) {
            const REAL *own = room->g.b[l];
            const REAL factor = rule->penalty == BOUNDED ? bound(outs, own, by) : 1;
            if (rule->penalty == SHRUNK) shrink(outs, own, by, room->at.b[l]);
            else
                for (int64_t o = 0; o < outs; o++) room->at.b[l][o] = factor * own[o];
        }
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

/* What the room of a rule has beside weights. */
int64_t extras_of(const Rule *rule) {
    return (rule->penalty ? OWN_STEPPED : 0) | (rule->constants ? CONSTANT : 0) | (rule->counts ? SUM : 0)
           | (rule->anchored ? ANCHOR : 0);
}

/* Train clients, each from the broadcast. 0 where a target is no class, else 1.

   x, y: (clients,) addresses of their examples. order, bounds: local step k of a client takes its examples
   order[bounds[k]] to order[bounds[k + 1] - 1]; one client's behind the other's. steps: (clients,). deltas: (clients,
   size), gaps are left as they are. squares: (clients, depth, 2), zeros: of each weight's and bias's part of the delta,
   the sum of squares. outputs: of all visits. memory: `room_for(most)` of the rule's extras, and no batch has more
   examples. */
int64_t train(const Dense *dense, int64_t clients, const REAL *broadcast, const REAL *const *x, const char *const *y,
              const int64_t *order, const int64_t *bounds, const int64_t *steps, const Rule *rule, REAL *deltas,
              double *squares, REAL *outputs, int64_t most, REAL *memory) {
    Room room;
    lay_out(dense, most * dense->places, extras_of(rule), memory, &room);
    const int64_t in = dense->widths[0], last = dense->widths[dense->depth], places = dense->places;
    const size_t target = dense->squared ? sizeof(REAL) * last : sizeof(int64_t);
    const int64_t *window = rule->windows;
    REAL *mean = rule->means;
    End end = {.corrects = rule->constants != 0, .penalty = rule->penalty, .penalised = rule->penalised,
               .keep = (REAL)rule->keep};
    if (rule->penalty)
        for (int64_t l = 0; l < dense->depth; l++) {
            /* What is not penalised is where it is stepped. */
            if (rule->penalty == BOUNDED || !rule->penalised[2 * l]) room.at.w[l] = room.g.w[l];
            if (dense->biases[l] >= 0 && !rule->penalised[2 * l + 1]) room.at.b[l] = room.g.b[l];
        }
    if (rule->anchored) load(dense, broadcast, &room.anchor);
    for (int64_t k = 0; k < clients; k++) {
        const int64_t *last_window = window + (rule->counts ? 2 * rule->counts[k] : 0);
        load(dense, rule->begins ? rule->begins + k * dense->size : broadcast, &room.g);
        if (rule->penalty) take_point(dense, rule, &room);
        if (rule->constants && (rule->stride || !k)) load(dense, rule->constants + k * rule->stride, &room.constant);
        for (int64_t s = 0; s < steps[k]; s++) {
            const int64_t examples = bounds[s + 1] - bounds[s];
            for (int64_t e = 0; e < examples; e++) {
                const int64_t which = order[bounds[s] + e];
                for (int64_t p = 0; p < places; p++)
                    copy(room.h[0] + (e * places + p) * filled(in), x[k] + (which * places + p) * in, in);
                room.targets[e] = y[k] + (size_t)(which * places) * target;
            }
            end.by = (REAL)(rule->amount + (double)(s + 1) * rule->growth);
            const int inside = window < last_window && s >= window[0], ends = inside && s == window[1] - 1;
            /* Two at a time, where what was there before is y: the sum is read and written half as often. */
            const int64_t taken = inside ? s - window[0] : 0;
            end.both = inside && !rule->anchored && taken % 2;
            end.sums = inside && (rule->anchored || end.both || ends);
            end.first = taken < (end.both ? 2 : 1);
            if (!pass(dense, examples, (REAL)rule->scale, 0, &room, &room.at, rule->anchored ? 0 : &end, outputs)) return 0;
            if (rule->anchored) pass(dense, examples, (REAL)-rule->scale, 0, &room, &room.anchor, &end, 0);
            if (rule->penalty == BOUNDED) take_point(dense, rule, &room);
            if (ends) {
                store(dense, &room.sum, (REAL)(window[1] - window[0]), mean);
                window += 2, mean += dense->size;
            }
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
                square[0] += subtract(n, room.g.w[l] + o * filled(n), broadcast + at, delta + at);
            }
            if (b >= 0) square[1] = subtract(outs, room.g.b[l], broadcast + b, delta + b);
        }
    }
    return 1;
}

/* The gradient of a batch's mean loss, times `scale`. 0 where a target is no class, else 1.

   x: (examples, places, in). y: their targets. gradient: (size,), of which gaps are left as they are. outputs, most:
   as `train`; the extra is `OWN_STEPPED`. */
int64_t gradient(const Dense *dense, const REAL *params, const REAL *x, const char *y, int64_t examples, double scale,
                 REAL *gradient, REAL *outputs, int64_t most, REAL *memory) {
    Room room;
    lay_out(dense, most * dense->places, OWN_STEPPED, memory, &room);
    const int64_t in = dense->widths[0], last = dense->widths[dense->depth], places = dense->places;
    const size_t target = dense->squared ? sizeof(REAL) * last : sizeof(int64_t);
    load(dense, params, &room.at);
    for (int64_t e = 0; e < examples; e++) {
        for (int64_t p = 0; p < places; p++)
            copy(room.h[0] + (e * places + p) * filled(in), x + (e * places + p) * in, in);
        room.targets[e] = y + (size_t)(e * places) * target;
    }
    if (!pass(dense, examples, (REAL)scale, 1, &room, &room.at, 0, outputs)) return 0;
    for (int64_t l = 0; l < dense->depth; l++) {
        const int64_t n = dense->widths[l], outs = dense->widths[l + 1];
        for (int64_t o = 0; o < outs; o++)
            copy(gradient + dense->weights[l] + o * n, room.g.w[l] + o * filled(n), n);
        if (dense->biases[l] >= 0) copy(gradient + dense->biases[l], room.g.b[l], outs);
    }
    return 1;
}
