/* A recorded local step in one call: an interpreter of torch's operators on memory whose shapes and strides are known.

   A small module's local step is a few dozen operators of a few hundred numbers each. To call one of torch's takes a
   microsecond or more; to interpret one here takes some twenty nanoseconds.

   REAL is float or double. Strides and offsets are in numbers. A sum is added up in a fixed order: rows of more than one
   number in 16 lanes, one after the other. Products and sums of products are contracted (-ffp-contract), but nothing is
   reassociated. What is not a number stays that, as in torch. */

#include "vectors.h"

enum { MOST_AXES = 6, MOST_OPERANDS = 8, SUMS = 16 };

/* Of a block of a product: with two vectors a row, as many as the processor's registers hold. */
enum { ROWS = NATIVE == 64 ? 8 : NATIVE == 32 ? 6 : 4 };

/* Where numbers begin, and how far apart those of an axis are. */
typedef struct {
    int64_t base, offset; /* index of an address, and numbers behind it; base -1: there is no such operand */
    int64_t strides[MOST_AXES];
} Operand;

typedef struct {
    int64_t code, axes;
    int64_t shape[MOST_AXES];
    Operand operands[MOST_OPERANDS]; /* what is written to comes first */
    double p, q;
    int64_t by_alpha; /* p is multiplied with the step's alpha */
} Instruction;

/* --- functions of a number ------------------------------------------------------------------------------------- */

/* exp(-x^2 / 2), and with it the normal distribution's integral up to x. */
INLINE REAL bell(REAL x) { return exp_of((REAL)-0.5 * x * x); }

INLINE REAL normal_integral(REAL x, REAL bell_of_x) {
    const REAL u = (x < 0 ? -x : x) * (REAL)0.70710678118654752440;
#if IS_FLOAT
    /* erfc(u) = t p(t) exp(-u^2) with t = 1 / (1 + 0.35 u): p interpolates it at ten Chebyshev points of 0 <= u <= 9.5,
       to 1e-8 of the value. */
    const REAL t = 1 / (1 + (REAL)0.35 * u);
    REAL p = (REAL)0.03570997447;
    p = p * t + (REAL)-0.1441787369;
    p = p * t + (REAL)0.146401786;
    p = p * t + (REAL)0.01965027074;
    p = p * t + (REAL)0.04702814376;
    p = p * t + (REAL)0.1679025257;
    p = p * t + (REAL)0.1434621043;
    p = p * t + (REAL)0.1896015165;
    p = p * t + (REAL)0.1969273793;
    p = p * t + (REAL)0.1974950402;
    const REAL tail = (REAL)0.5 * t * p * bell_of_x;
#else
    (void)bell_of_x;
    const REAL tail = 0.5 * erfc(u);
#endif
    return x < 0 ? tail : 1 - tail;
}

INLINE REAL gelu_of(REAL x) { return x * normal_integral(x, bell(x)); }

INLINE REAL gelu_slope(REAL x) {
    const REAL b = bell(x);
    return normal_integral(x, b) + x * (REAL)0.39894228040143267794 * b;
}

INLINE REAL silu_slope(REAL x) {
    const REAL s = sigmoid_of(x);
    return s * (1 + x * (1 - s));
}

/* log(1 + t), 0 <= t <= 1: twice the inverse hyperbolic tangent of z = t / (2 + t), by its series in z^2 <= 1/9. */
INLINE REAL log1p_of(REAL t) {
    const REAL z = t / (2 + t), w = z * z;
#if IS_FLOAT
    REAL s = (REAL)(1.0 / 15);
#else
    REAL s = (REAL)(1.0 / 33);
    s = s * w + (REAL)(1.0 / 31);
    s = s * w + (REAL)(1.0 / 29);
    s = s * w + (REAL)(1.0 / 27);
    s = s * w + (REAL)(1.0 / 25);
    s = s * w + (REAL)(1.0 / 23);
    s = s * w + (REAL)(1.0 / 21);
    s = s * w + (REAL)(1.0 / 19);
    s = s * w + (REAL)(1.0 / 17);
    s = s * w + (REAL)(1.0 / 15);
#endif
    s = s * w + (REAL)(1.0 / 13);
    s = s * w + (REAL)(1.0 / 11);
    s = s * w + (REAL)(1.0 / 9);
    s = s * w + (REAL)(1.0 / 7);
    s = s * w + (REAL)(1.0 / 5);
    s = s * w + (REAL)(1.0 / 3);
    return 2 * (z + z * w * s);
}

/* log(1 + exp(x)) */
INLINE REAL softplus_of(REAL x) { return (x < 0 ? 0 : x) + log1p_of(exp_of(x < 0 ? x : -x)); }

/* tanh(log(1 + exp(x))) = e (e + 2) / (e (e + 2) + 2), e = exp(x); it is 1 long before e has no number. */
INLINE REAL mish_share(REAL x) {
    const REAL e = exp_of(x > 20 ? 20 : x), n = e * (e + 2);
    return n / (n + 2);
}

INLINE REAL mish_slope(REAL x) {
    const REAL t = mish_share(x);
    return t + x * (1 - t * t) * sigmoid_of(x);
}

#define GELU_SCALE (REAL)0.79788456080286535588 /* the square root of 2 / pi */
#define GELU_CUBE (REAL)0.044715

INLINE REAL gelu_tanh_of(REAL x) { return (REAL)0.5 * x * (1 + tanh_of(GELU_SCALE * (x + GELU_CUBE * x * x * x))); }

INLINE REAL gelu_tanh_slope(REAL x) {
    const REAL t = tanh_of(GELU_SCALE * (x + GELU_CUBE * x * x * x));
    return (REAL)0.5 * (1 + t) + (REAL)0.5 * x * (1 - t * t) * GELU_SCALE * (1 + 3 * GELU_CUBE * x * x);
}

INLINE REAL clamped(REAL x, REAL least, REAL most) {
    const REAL above = x < least ? least : x;
    return above > most ? most : above;
}

INLINE REAL hardswish_slope(REAL x) { return x <= -3 ? 0 : x < 3 ? x / 3 + (REAL)0.5 : 1; }

/* --- number by number ------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t n, o, a, b; /* how many, and how far apart */
    REAL p, q;
} Row;

/* x is of the first operand, y of the second; a row of one number stands for all. */
#define BY_NUMBER(name, value)                                                          \
    static void name(Row row, REAL *o, const REAL *a, const REAL *b) {                   \
        const REAL p = row.p, q = row.q;                                                \
        (void)p, (void)q;                                                               \
        if (row.o == 1 && row.a == 1 && row.b == 1) {                                   \
            APART for (int64_t i = 0; i < row.n; i++) {                                 \
                const REAL x = a[i], y = b[i];                                          \
                (void)x, (void)y;                                                       \
                o[i] = value;                                                           \
            }                                                                           \
        } else if (row.o == 1 && row.a == 1 && row.b == 0) {                            \
            const REAL y = *b;                                                          \
            (void)y;                                                                    \
            APART for (int64_t i = 0; i < row.n; i++) {                                 \
                const REAL x = a[i];                                                    \
                (void)x;                                                                \
                o[i] = value;                                                           \
            }                                                                           \
        } else {                                                                        \
            for (int64_t i = 0; i < row.n; i++) {                                       \
                const REAL x = a[i * row.a], y = b[i * row.b];                          \
                (void)x, (void)y;                                                       \
                o[i * row.o] = value;                                                   \
            }                                                                           \
        }                                                                               \
    }

BY_NUMBER(fill, p)
BY_NUMBER(copy, x)
BY_NUMBER(linear, p * x + q)
BY_NUMBER(add, x + p * y)
BY_NUMBER(subtract, x - p * y)
BY_NUMBER(multiply, x * y)
BY_NUMBER(divide, x / y)
BY_NUMBER(relu, x < 0 ? 0 : x)
BY_NUMBER(threshold_slope, y <= p ? 0 : x)
BY_NUMBER(clamp, clamped(x, p, q))
BY_NUMBER(leaky_relu, x > 0 ? x : x * p)
BY_NUMBER(leaky_relu_slope, y > 0 ? x : x * p)
BY_NUMBER(exponential, exp_of(x))
BY_NUMBER(tangent, tanh_of(x))
BY_NUMBER(tangent_slope, x * (1 - y * y))
BY_NUMBER(sigmoid, sigmoid_of(x))
BY_NUMBER(sigmoid_slope, x * (1 - y) * y)
BY_NUMBER(gelu, gelu_of(x))
BY_NUMBER(gelu_back, x * gelu_slope(y))
BY_NUMBER(silu, x * sigmoid_of(x))
BY_NUMBER(silu_back, x * silu_slope(y))
BY_NUMBER(hardswish, x * clamped(x + 3, 0, 6) * (REAL)(1.0 / 6))
BY_NUMBER(hardswish_back, x * hardswish_slope(y))
BY_NUMBER(square_root, (REAL)sqrt(x))
BY_NUMBER(reciprocal, 1 / x)
BY_NUMBER(logarithm, (REAL)log(x))
BY_NUMBER(absolute, x < 0 ? -x : x)
BY_NUMBER(sign, x > 0 ? 1 : x < 0 ? -1 : 0)
BY_NUMBER(clamp_slope, y <= p || y >= q ? 0 : x)
BY_NUMBER(elu, x > 0 ? q * x : p * expm1_of(x))
BY_NUMBER(elu_back, y > 0 ? q * x : x * p * exp_of(y))
BY_NUMBER(elu_slope, y > 0 ? q * x : x * (y + p))
BY_NUMBER(softplus, x > p ? x : softplus_of(x))
BY_NUMBER(softplus_back, y > p ? x : x * sigmoid_of(y))
BY_NUMBER(mish, x * mish_share(x))
BY_NUMBER(mish_back, x * mish_slope(y))
BY_NUMBER(gelu_tanh, gelu_tanh_of(x))
BY_NUMBER(gelu_tanh_back, x * gelu_tanh_slope(y))

static void multiply_add(Row row, REAL *o, const REAL *a, const REAL *b) {
    if (row.o == 1 && row.a == 1 && row.b == 0) {
        const REAL y = *b;
        APART for (int64_t i = 0; i < row.n; i++) o[i] += a[i] * y;
    } else {
        for (int64_t i = 0; i < row.n; i++) o[i * row.o] += a[i * row.a] * b[i * row.b];
    }
}

/* Fewer numbers than a vector has: two halves, or quarters, of one, the first of which begins where these begin, and the
   second ends where they end; fewer than a quarter one by one. */
INLINE void copy_part(REAL *to, const REAL *from, int64_t many) {
    if (many >= LANES / 2) {
        __builtin_memcpy(to, from, NATIVE / 2);
        __builtin_memcpy(to + many - LANES / 2, from + many - LANES / 2, NATIVE / 2);
    } else if (LANES >= 4 && many >= LANES / 4) {
        __builtin_memcpy(to, from, NATIVE / 4);
        __builtin_memcpy(to + many - LANES / 4, from + many - LANES / 4, NATIVE / 4);
    } else {
        for (int64_t j = 0; j < many; j++) to[j] = from[j];
    }
}

/* Rows of contiguous numbers, of which many are short: those of a head of attention, say. */
static void copy_rows(int64_t rows, int64_t n, REAL *o, int64_t so, const REAL *a, int64_t sa) {
    for (int64_t r = 0; r < rows; r++, o += so, a += sa) {
        if (n < LANES) {
            copy_part(o, a, n);
            continue;
        }
        for (int64_t i = 0; i < n - LANES; i += LANES) *(vec *)(o + i) = load(a + i);
        *(vec *)(o + n - LANES) = load(a + n - LANES);
    }
}

typedef void (*ByNumber)(Row, REAL *, const REAL *, const REAL *);

/* In the order of the codes (operators.py). */
static const ByNumber BY_NUMBER_OF[] = {
    fill,       copy,        linear,      add,           subtract,   multiply,      divide,
    relu,       threshold_slope, clamp,   leaky_relu,    leaky_relu_slope, exponential, tangent,
    tangent_slope, sigmoid,  sigmoid_slope, gelu,        gelu_back,  silu,          silu_back,
    hardswish,  hardswish_back, square_root, reciprocal, logarithm,     absolute,      sign,
    clamp_slope, multiply_add, elu,       elu_back,      elu_slope,  softplus,      softplus_back,
    mish,       mish_back,   gelu_tanh,   gelu_tanh_back,
};
enum { NUM_BY_NUMBER = sizeof BY_NUMBER_OF / sizeof *BY_NUMBER_OF };

enum {
    ADD_UP = 64, PRODUCT, SOFTMAX, LOG_SOFTMAX, SOFTMAX_SLOPE, LOG_SOFTMAX_SLOPE, ADD_AT, TAKE_ROWS, ADD_ROWS,
    NORMALISE, NORMALISE_SLOPE, COUNT, LARGEST, TAKE_AT
};

/* --- sums ------------------------------------------------------------------------------------------------------ */

INLINE REAL folded(REAL *lanes) {
    for (int half = SUMS / 2; half; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

/* The sum of a row of `value`, an expression of i. */
#define SUMMED(total, n, value)                                     \
    do {                                                            \
        REAL lanes[SUMS] = {0};                                     \
        int64_t at = 0;                                             \
        for (; at + SUMS <= (n); at += SUMS)                        \
            for (int j = 0; j < SUMS; j++) {                        \
                const int64_t i = at + j;                           \
                lanes[j] += (value);                                \
            }                                                       \
        for (int j = 0; at + j < (n); j++) {                        \
            const int64_t i = at + j;                               \
            lanes[j] += (value);                                    \
        }                                                           \
        total = folded(lanes);                                      \
    } while (0)

static REAL sum_of(int64_t n, const REAL *a, int64_t s) {
    REAL total;
    if (s == 1) SUMMED(total, n, a[i]);
    else SUMMED(total, n, a[i * s]);
    return total;
}

/* --- products of matrices ---------------------------------------------------------------------------------------- */

/* o <- beta c + alpha a b; c may be o. */
typedef struct {
    int64_t m, k, n;
    REAL *o;
    int64_t or, on;
    const REAL *a;
    int64_t ar, ak;
    const REAL *b;
    int64_t bk, bn;
    const REAL *c;
    int64_t cr, cn;
    REAL alpha, beta;
} Product;

enum { MANY_TERMS = 64 };

/* beta 0 does not read c. */
INLINE void put(const Product *of, REAL *to, const REAL *c, REAL value) {
    *to = of->beta == 0 ? of->alpha * value : of->beta * *c + of->alpha * value;
}

/* A block of `rows` by `many` outputs, which take so many vectors; b's rows are contiguous, `step` apart. Of two vectors
   the second ends with the last output: outputs that both have are the same in both. */
INLINE void block(const int rows, const int vectors, const Product *of, int64_t r, int64_t c, const REAL *b, int64_t step,
                  int64_t many) {
    const int64_t second = many - LANES;
    vec sums[ROWS][2];
    const REAL *a = of->a + r * of->ar;
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int v = 0; v < vectors; v++) sums[i][v] = (vec){0};
    /* What is written to comes from memory while the sums are added up. */
    if (of->k >= MANY_TERMS && of->on == 1)
        UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int v = 0; v < vectors; v++)
            __builtin_prefetch(of->o + (r + i) * of->or + c + v * second, 1);
    for (int64_t k = 0; k < of->k; k++) {
        vec own[2];
        UNROLLED for (int v = 0; v < vectors; v++) own[v] = load(b + k * step + v * second);
        UNROLLED for (int i = 0; i < rows; i++) {
            const REAL x = a[i * of->ar + k * of->ak];
            UNROLLED for (int v = 0; v < vectors; v++) sums[i][v] += x * own[v];
        }
    }
    const int in_rows = of->on == 1 && of->cn == 1, is_whole = vectors == 2 || many == LANES;
    UNROLLED for (int i = 0; i < rows; i++) {
        REAL *to = of->o + (r + i) * of->or + c * of->on;
        const REAL *old = of->c + (r + i) * of->cr + c * of->cn;
        if (in_rows) {
            vec now[2] = {{0}};
            UNROLLED for (int v = 0; v < vectors; v++) {
                if (of->beta == 0) now[v] = of->alpha * sums[i][v];
                else {
                    vec was = {0};
                    if (is_whole) was = load(old + v * second);
                    else copy_part((REAL *)&was, old, many);
                    now[v] = of->beta * was + of->alpha * sums[i][v];
                }
            }
            if (is_whole) UNROLLED for (int v = 0; v < vectors; v++) *(vec *)(to + v * second) = now[v];
            else copy_part(to, (REAL *)&now[0], many);
        } else {
            /* A variable index would keep the sums themselves in memory all the while. */
            REAL row[2 * LANES];
            UNROLLED for (int v = 0; v < vectors; v++) *(vec *)(row + v * second) = sums[i][v];
            for (int64_t j = 0; j < many; j++) put(of, to + j * of->on, old + j * of->cn, row[j]);
        }
    }
}

INLINE void blocks(const int vectors, const Product *of, int64_t c, const REAL *b, int64_t step, int64_t many) {
    int64_t r = 0;
    for (; r + ROWS <= of->m; r += ROWS) block(ROWS, vectors, of, r, c, b, step, many);
    if (r + 4 <= of->m) {
        block(4, vectors, of, r, c, b, step, many);
        r += 4;
    }
    if (r + 2 <= of->m) {
        block(2, vectors, of, r, c, b, step, many);
        r += 2;
    }
    if (r < of->m) block(1, vectors, of, r, c, b, step, many);
}

/* Lay `many` columns of b out in rows of `wide` numbers; fewer than a vector are filled up with zeros to one. */
static void pack(const Product *of, const REAL *b, int64_t many, int64_t wide, REAL *packed) {
    int64_t turned = 0;
    if (many < wide)
        for (int64_t k = 0; k < of->k; k++) *(vec *)(packed + k * wide) = (vec){0};
    if (of->bk == 1 && of->bn != 1) {
        for (; turned + 4 <= many; turned += 4) {
            const REAL *from = b + turned * of->bn;
            int64_t k = 0;
            for (; k + 4 <= of->k; k += 4) turn(from + k, of->bn, packed + k * wide + turned, wide);
            for (; k < of->k; k++)
                for (int64_t j = 0; j < 4; j++) packed[k * wide + turned + j] = from[j * of->bn + k];
        }
        if (turned == many) return;
    }
    for (int64_t k = 0; k < of->k; k++) {
        REAL *to = packed + k * wide;
        const REAL *from = b + k * of->bk;
        if (of->bn == 1 && many < LANES) copy_part(to, from, many);
        else
            for (int64_t j = turned; j < many; j++) to[j] = from[j * of->bn];
    }
}

/* Rows of a matrix that lie so far apart, or farther, fall on few lines of a cache, and each in another page. Where many
   blocks read them, they are laid out close together first: columns of b, and of a in groups. */
enum { FAR = 1024 / (int)sizeof(REAL), MANY_ROWS = 32, GROUP = 64, MOST_GROUPED = 4096 };

/* How many columns are next: two vectors of them, but so that less than a vector is left over only where there is no more. */
static int64_t next_columns(int64_t left) {
    if (left < 2 * LANES) return left;
    return left > 2 * LANES && left < 3 * LANES ? LANES : 2 * LANES;
}

static void by_columns(const Product *of, REAL *packed) {
    for (int64_t c = 0; c < of->n;) {
        const int64_t many = next_columns(of->n - c), second = many > LANES ? many - LANES : 0;
        const REAL *b = of->b + c * of->bn;
        int64_t step = of->bk;
        if (of->bn != 1 || many < LANES) {
            step = many < LANES ? LANES : many;
            pack(of, b, many, step, packed);
            b = packed;
        } else if (step >= FAR && of->m >= MANY_ROWS && of->k >= MANY_TERMS) {
            for (int64_t k = 0; k < of->k; k++) {
                *(vec *)(packed + k * many) = load(b + k * step);
                *(vec *)(packed + k * many + second) = load(b + k * step + second);
            }
            b = packed, step = many;
        }
        if (second) blocks(2, of, c, b, step, many);
        else blocks(1, of, c, b, step, many);
        c += many;
    }
}

/* The same where a's columns are contiguous and far apart, a group of its rows after the other. */
static void by_groups(const Product *of, REAL *packed) {
    REAL *group = packed + of->k * 2 * LANES;
    for (int64_t r = 0; r < of->m; r += GROUP) {
        Product one = *of;
        one.m = of->m - r < GROUP ? of->m - r : GROUP;
        one.o += r * of->or, one.c += r * of->cr;
        one.a = group, one.ak = GROUP;
        for (int64_t k = 0; k < of->k; k++)
            for (int64_t i = 0; i < one.m; i++) group[k * GROUP + i] = of->a[r + i + k * of->ak];
        by_columns(&one, packed);
    }
}

static int is_grouped(const Product *of) {
    const int is_far = of->ar == 1 && of->ak >= FAR, is_large = of->m >= MANY_ROWS && of->n > 2 * LANES;
    /* Columns of b that are not contiguous would be laid out once a group. */
    return is_far && is_large && of->k >= MANY_TERMS && of->k <= MOST_GROUPED && of->bn == 1;
}

INLINE REAL total(vec v) {
    REAL lanes[LANES];
    __builtin_memcpy(lanes, &v, sizeof v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

/* The totals of four vectors: fours of each are added up, and turned. */
INLINE void totals(const vec *v, REAL *to) {
#if defined(PICKED) && NATIVE / SIZE(REAL) >= 4
    four each[4];
    UNROLLED for (int o = 0; o < 4; o++) {
        four parts[QUARTERS];
        __builtin_memcpy(parts, v + o, sizeof parts);
        UNROLLED for (int half = QUARTERS / 2; half; half /= 2)
            UNROLLED for (int i = 0; i < half; i++) parts[i] += parts[i + half];
        each[o] = parts[0];
    }
    const four ab = PICKED(each[0], each[1], 0, 1, 4, 5) + PICKED(each[0], each[1], 2, 3, 6, 7);
    const four cd = PICKED(each[2], each[3], 0, 1, 4, 5) + PICKED(each[2], each[3], 2, 3, 6, 7);
    *(four *)to = PICKED(ab, cd, 0, 2, 4, 6) + PICKED(ab, cd, 1, 3, 5, 7);
#else
    for (int o = 0; o < 4; o++) to[o] = total(v[o]);
#endif
}

/* Products of rows with rows, both contiguous: k is at least LANES. */
INLINE void dots(const int rows, const int outs, const Product *of, int64_t r, int64_t c, mask tail) {
    const REAL *a = of->a + r * of->ar, *b = of->b + c * of->bn;
    vec sums[4][4];
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int o = 0; o < outs; o++) sums[i][o] = (vec){0};
    int64_t k = 0;
    for (; k + LANES <= of->k; k += LANES) {
        vec own[4];
        UNROLLED for (int o = 0; o < outs; o++) own[o] = load(b + o * of->bn + k);
        UNROLLED for (int i = 0; i < rows; i++) {
            const vec x = load(a + i * of->ar + k);
            UNROLLED for (int o = 0; o < outs; o++) sums[i][o] += x * own[o];
        }
    }
    if (k < of->k) {
        /* The last vector ends where the rows end: what of it was added up before is masked out. */
        k = of->k - LANES;
        vec own[4];
        UNROLLED for (int o = 0; o < outs; o++) own[o] = (vec)((mask)load(b + o * of->bn + k) & tail);
        UNROLLED for (int i = 0; i < rows; i++) {
            const vec x = (vec)((mask)load(a + i * of->ar + k) & tail);
            UNROLLED for (int o = 0; o < outs; o++) sums[i][o] += x * own[o];
        }
    }
    UNROLLED for (int i = 0; i < rows; i++) {
        REAL *to = of->o + (r + i) * of->or + c * of->on, all[4];
        if (outs == 4) totals(sums[i], all);
        else UNROLLED for (int o = 0; o < outs; o++) all[o] = total(sums[i][o]);
        const REAL *old = of->c + (r + i) * of->cr + c * of->cn;
        UNROLLED for (int o = 0; o < outs; o++) put(of, to + o * of->on, old + o * of->cn, all[o]);
    }
}

static void by_rows(const Product *of) {
    mask tail;
    for (int j = 0; j < LANES; j++) tail[j] = j >= LANES - of->k % LANES ? -1 : 0;
    for (int64_t c = 0; c < of->n;) {
        const int many = c + 4 <= of->n;
        for (int64_t r = 0; r < of->m;) {
            const int block = r + 4 <= of->m;
            if (block && many) dots(4, 4, of, r, c, tail);
            else if (block) dots(4, 1, of, r, c, tail);
            else if (many) dots(1, 4, of, r, c, tail);
            else dots(1, 1, of, r, c, tail);
            r += block ? 4 : 1;
        }
        c += many ? 4 : 1;
    }
}

/* Rows with rows where there are few, or long ones: to lay columns out would take longer. */
static void multiply_out(const Product *of, REAL *packed) {
    const int are_few = of->m < ROWS || (of->m < 4 * ROWS && of->k > 12 * LANES);
    if (of->ak == 1 && of->bk == 1 && of->bn != 1 && of->k >= LANES && are_few) by_rows(of);
    else if (is_grouped(of)) by_groups(of, packed);
    else by_columns(of, packed);
}

/* --- rows ---------------------------------------------------------------------------------------------------------- */

/* The largest number; where one is not a number, any. */
INLINE REAL largest_of(int64_t n, const REAL *a) {
    REAL most = a[0];
    int64_t i = 1;
    if (n >= 4 * LANES) {
        vec all = load(a);
        for (i = LANES; i + LANES <= n; i += LANES) {
            const vec x = load(a + i);
            const mask above = x > all;
            all = (vec)(((mask)x & above) | ((mask)all & ~above));
        }
        for (int j = 0; j < LANES; j++) most = all[j] > most ? all[j] : most;
    }
    for (; i < n; i++) most = a[i] > most ? a[i] : most;
    return most;
}

static void softmax(int64_t n, REAL *o, const REAL *a) {
    const REAL most = largest_of(n, a);
    REAL total;
    APART for (int64_t i = 0; i < n; i++) o[i] = exp_of(a[i] - most);
    SUMMED(total, n, o[i]);
    const REAL share = 1 / total;
    APART for (int64_t i = 0; i < n; i++) o[i] *= share;
}

static void log_softmax(int64_t n, REAL *o, const REAL *a) {
    const REAL most = largest_of(n, a);
    REAL total;
    SUMMED(total, n, exp_of(a[i] - most));
    const REAL less = most + (REAL)log(total);
    APART for (int64_t i = 0; i < n; i++) o[i] = a[i] - less;
}

/* dx = y (dy - sum of y dy), */
static void softmax_slope(int64_t n, REAL *o, const REAL *dy, const REAL *y) {
    REAL total;
    SUMMED(total, n, y[i] * dy[i]);
    APART for (int64_t i = 0; i < n; i++) o[i] = y[i] * (dy[i] - total);
}

/* and of its logarithm dx = dy - exp(y) sum of dy. */
static void log_softmax_slope(int64_t n, REAL *o, const REAL *dy, const REAL *y) {
    REAL total;
    SUMMED(total, n, dy[i]);
    APART for (int64_t i = 0; i < n; i++) o[i] = dy[i] - exp_of(y[i]) * total;
}

/* y = w (x - mean) / sd + b over a row; w and b may be 0. */
static void normalise(int64_t n, REAL *y, REAL *mean, REAL *over_sd, const REAL *x, const REAL *w, const REAL *b, REAL eps) {
    REAL sum, squares;
    SUMMED(sum, n, x[i]);
    const REAL m = sum / (REAL)n;
    SUMMED(squares, n, (x[i] - m) * (x[i] - m));
    const REAL r = 1 / (REAL)sqrt(squares / (REAL)n + eps);
    *mean = m, *over_sd = r;
    if (w && b) { APART for (int64_t i = 0; i < n; i++) y[i] = (x[i] - m) * r * w[i] + b[i]; }
    else if (w) { APART for (int64_t i = 0; i < n; i++) y[i] = (x[i] - m) * r * w[i]; }
    else { APART for (int64_t i = 0; i < n; i++) y[i] = (x[i] - m) * r; }
}

/* dx, and dw, db to which the row's part is added; each may be 0. */
static void normalise_slope(int64_t n, REAL *dx, REAL *dw, REAL *db, const REAL *dy, const REAL *x, REAL m, REAL r,
                            const REAL *w) {
    REAL sum, with;
    if (w) {
        SUMMED(sum, n, dy[i] * w[i]);
        SUMMED(with, n, dy[i] * w[i] * (x[i] - m));
    } else {
        SUMMED(sum, n, dy[i]);
        SUMMED(with, n, dy[i] * (x[i] - m));
    }
    const REAL mean = sum / (REAL)n, slope = with * r * r / (REAL)n;
    if (dw) APART for (int64_t i = 0; i < n; i++) dw[i] += dy[i] * (x[i] - m) * r;
    if (db) APART for (int64_t i = 0; i < n; i++) db[i] += dy[i];
    if (dx && w) { APART for (int64_t i = 0; i < n; i++) dx[i] = r * (dy[i] * w[i] - mean - (x[i] - m) * slope); }
    else if (dx) { APART for (int64_t i = 0; i < n; i++) dx[i] = r * (dy[i] - mean - (x[i] - m) * slope); }
}

/* --- the interpreter ----------------------------------------------------------------------------------------------- */

typedef struct {
    const Instruction *of;
    int64_t outer, index[MOST_AXES]; /* axes that are walked over, and where the walk is */
    char *at[MOST_OPERANDS];
} Walk;

/* Every operand begins at an address, and is of numbers, or of indices, of a size of its own. */
static Walk begun(const Instruction *of, int64_t inner, char *const *bases, int64_t indices) {
    Walk walk = {.of = of, .outer = of->axes - inner};
    for (int j = 0; j < MOST_OPERANDS; j++) {
        const Operand *operand = of->operands + j;
        const int64_t size = j == indices ? (int64_t)sizeof(int64_t) : (int64_t)sizeof(REAL);
        walk.at[j] = operand->base < 0 ? 0 : bases[operand->base] + operand->offset * size;
    }
    return walk;
}

/* Go on to the next place; 0 behind the last one. */
static int next(Walk *walk, int operands, int64_t indices) {
    for (int64_t axis = walk->outer - 1; axis >= 0; axis--) {
        const int64_t turns = walk->of->shape[axis];
        const int again = ++walk->index[axis] < turns;
        for (int j = 0; j < operands; j++) {
            if (!walk->at[j]) continue;
            const int64_t size = j == indices ? (int64_t)sizeof(int64_t) : (int64_t)sizeof(REAL);
            walk->at[j] += walk->of->operands[j].strides[axis] * size * (again ? 1 : 1 - turns);
        }
        if (again) return 1;
        walk->index[axis] = 0;
    }
    return 0;
}

static int is_empty(const Instruction *of) {
    for (int64_t axis = 0; axis < of->axes; axis++)
        if (!of->shape[axis]) return 1;
    return 0;
}

#define REALS(j) ((REAL *)walk.at[j])

/* Rows of the last axis but one lie in the same walk: many of them are short. */
static void by_number(const Instruction *of, REAL p, char *const *bases) {
    const int64_t inner = of->axes - 1, outer = inner > 0, rows = outer ? of->shape[inner - 1] : 1;
    const Operand *o = of->operands, *a = o + 1, *b = o + 2;
    const Row row = {of->shape[inner], o->strides[inner], a->strides[inner], b->strides[inner], p, (REAL)of->q};
    const int64_t so = outer ? o->strides[inner - 1] : 0, sa = outer ? a->strides[inner - 1] : 0,
                  sb = outer ? b->strides[inner - 1] : 0;
    const ByNumber carry_out = BY_NUMBER_OF[of->code];
    const int copies = carry_out == copy && row.o == 1 && row.a == 1;
    Walk walk = begun(of, 1 + outer, bases, -1);
    do
        if (copies) copy_rows(rows, row.n, REALS(0), so, REALS(1), sa);
        else
            for (int64_t r = 0; r < rows; r++) carry_out(row, REALS(0) + r * so, REALS(1) + r * sa, REALS(2) + r * sb);
    while (next(&walk, 3, -1));
}

static void add_up(const Instruction *of, char *const *bases) {
    const int64_t inner = of->axes - 1, outer = inner > 0, rows = outer ? of->shape[inner - 1] : 1, n = of->shape[inner];
    const int64_t so = of->operands[0].strides[inner], sa = of->operands[1].strides[inner];
    const int64_t ro = outer ? of->operands[0].strides[inner - 1] : 0, ra = outer ? of->operands[1].strides[inner - 1] : 0;
    Walk walk = begun(of, 1 + outer, bases, -1);
    do
        for (int64_t r = 0; r < rows; r++) {
            REAL *o = REALS(0) + r * ro;
            const REAL *a = REALS(1) + r * ra;
            if (so == 0) *o += sum_of(n, a, sa);
            else if (so == 1 && sa == 1) { APART for (int64_t i = 0; i < n; i++) o[i] += a[i]; }
            else for (int64_t i = 0; i < n; i++) o[i * so] += a[i * sa];
        }
    while (next(&walk, 2, -1));
}

/* Axes: batch, m, k, n. Operands: what is written to, a, b, and what is added q times; without the last it is what is written to. */
static void product(const Instruction *of, REAL p, char *const *bases, REAL *packed) {
    const Operand *o = of->operands, *a = o + 1, *b = o + 2, *c = o[3].base < 0 ? o : o + 3;
    Walk walk = begun(of, 3, bases, -1);
    do {
        const Product one = {of->shape[1],  of->shape[2],  of->shape[3],
                             REALS(0),      o->strides[1], o->strides[3],
                             REALS(1),      a->strides[1], a->strides[2],
                             REALS(2),      b->strides[2], b->strides[3],
                             REALS(c - o),  c->strides[1], c->strides[3],
                             p,             (REAL)of->q};
        multiply_out(&one, packed);
    } while (next(&walk, 4, -1));
}

/* Numbers at indices along the last axis: out[..., index[..., i]] += source[..., i] where it `adds`, otherwise
   out[..., i] = source[..., index[..., i]]. p: of how many, q: an index at which nothing is added, or that gives 0. */
static int numbers_at(const Instruction *of, char *const *bases, int adds) {
    const int64_t inner = of->axes - 1, most = (int64_t)of->p, left_out = (int64_t)of->q;
    const int64_t so = of->operands[0].strides[inner], si = of->operands[1].strides[inner];
    const int64_t sa = of->operands[2].strides[inner];
    Walk walk = begun(of, 1, bases, 1);
    do {
        REAL *o = REALS(0);
        const REAL *a = REALS(2);
        for (int64_t i = 0; i < of->shape[inner]; i++) {
            const int64_t at = ((const int64_t *)walk.at[1])[i * si];
            const int is_left_out = at == left_out;
            if (!is_left_out && (at < 0 || at >= most)) return 0;
            if (!adds) o[i * so] = is_left_out ? 0 : a[at * sa];
            else if (!is_left_out) o[at * so] += a[i * sa];
        }
    } while (next(&walk, 3, 1));
    return 1;
}

/* Rows of a table, one behind the other. Last axis: numbers of a row. Operand 0 is written to, 1 has the indices, 2 is
   read; p: rows of the table, q: a row that nothing is added to. */
static int rows_at(const Instruction *of, char *const *bases, int adds) {
    const int64_t inner = of->axes - 1, n = of->shape[inner], most = (int64_t)of->p, left_out = (int64_t)of->q;
    const int64_t so = of->operands[0].strides[inner], sa = of->operands[2].strides[inner];
    Walk walk = begun(of, 1, bases, 1);
    do {
        const int64_t row = *(const int64_t *)walk.at[1];
        if (row < 0 || row >= most) return 0;
        REAL *o = REALS(0);
        const REAL *a = REALS(2);
        if (adds && row == left_out) continue;
        if (adds) APART for (int64_t i = 0; i < n; i++) o[row * n + i * so] += a[i * sa];
        else APART for (int64_t i = 0; i < n; i++) o[i * so] = a[row * n + i * sa];
    } while (next(&walk, 3, 1));
    return 1;
}

/* Whole numbers, each of which goes up by p. */
static void count_up(const Instruction *of, char *const *bases) {
    const int64_t inner = of->axes - 1, strides = of->operands[0].strides[inner];
    Walk walk = begun(of, 1, bases, 0);
    do
        for (int64_t i = 0; i < of->shape[inner]; i++) ((int64_t *)walk.at[0])[i * strides] += (int64_t)of->p;
    while (next(&walk, 1, 0));
}

/* Axes: rows, numbers of a row, which are contiguous. */
static void by_row(const Instruction *of, char *const *bases) {
    const int64_t n = of->shape[of->axes - 1];
    Walk walk = begun(of, 1, bases, -1);
    do {
        switch (of->code) {
            case SOFTMAX: softmax(n, REALS(0), REALS(1)); break;
            case LOG_SOFTMAX: log_softmax(n, REALS(0), REALS(1)); break;
            case SOFTMAX_SLOPE: softmax_slope(n, REALS(0), REALS(1), REALS(2)); break;
            case LOG_SOFTMAX_SLOPE: log_softmax_slope(n, REALS(0), REALS(1), REALS(2)); break;
            case NORMALISE:
                normalise(n, REALS(0), REALS(1), REALS(2), REALS(3), REALS(4), REALS(5), (REAL)of->p);
                break;
            default:
                normalise_slope(n, REALS(0), REALS(5), REALS(6), REALS(1), REALS(2), *REALS(3), *REALS(4), REALS(7));
        }
    } while (next(&walk, MOST_OPERANDS, -1));
}

/* Of `many` places from `start` on, so far apart: the first, and the one behind the last, of those in [0, size). */
INLINE int64_t first_inside(int64_t start, int64_t apart) { return start < 0 ? (apart - 1 - start) / apart : 0; }

INLINE int64_t end_inside(int64_t start, int64_t apart, int64_t many, int64_t size) {
    return start + (many - 1) * apart < size ? many : (size - start + apart - 1) / apart;
}

/* The largest number of each window, the first of equal ones, and its index. Axes: planes, two of the windows, two in a
   window. Operands: the numbers, the indices, what is read; two have no address: how many rows and columns a plane has,
   and how these rise along an axis. p, q: rows and columns of the margin, which has no numbers. */
static void largest(const Instruction *of, char *const *bases) {
    const Operand *read = of->operands + 2, *rows = of->operands + 3, *columns = of->operands + 4;
    const int64_t down = rows->strides[3], right = columns->strides[4];
    Walk walk = begun(of, 2, bases, 1);
    do {
        const int64_t row = walk.index[1] * rows->strides[1] - (int64_t)of->p;
        const int64_t column = walk.index[2] * columns->strides[2] - (int64_t)of->q;
        const int64_t first = first_inside(column, right), end = end_inside(column, right, of->shape[4], columns->offset);
        const int64_t last = end_inside(row, down, of->shape[3], rows->offset);
        const REAL *a = REALS(2);
        REAL most = -(REAL)INFINITY;
        int64_t where = -1;
        for (int64_t i = first_inside(row, down); i < last; i++)
            for (int64_t j = first; j < end; j++) {
                const REAL x = a[i * read->strides[3] + j * read->strides[4]];
                /* Where all are -INFINITY, the first is the largest. */
                if (x > most || x != x || where < 0) {
                    most = x;
                    where = (row + i * down) * columns->offset + column + j * right;
                }
            }
        *REALS(0) = most;
        *(int64_t *)walk.at[1] = where;
    } while (next(&walk, 3, 1));
}

/* The first of a row's numbers that is none, or else the first that equals `most`. */
static int64_t place_of_largest(int64_t n, const REAL *a, REAL most) {
    for (int64_t i = 0; i < n; i++)
        if (a[i] != a[i]) return i;
    for (int64_t i = 0; i < n; i++)
        if (a[i] == most) return i;
    return -1;
}

/* -log softmax(a)[label] of rows of classes, and whether the label's output is the largest, the first of equal ones; 0 and
   no where the label is `skipped`, if `skips`. The first row whose label is no class, behind which nothing is written;
   -1: there is none. */
int64_t class_scores(int64_t rows, int64_t classes, const REAL *outputs, const int64_t *labels, int64_t skips,
                     int64_t skipped, REAL *losses, uint8_t *hits) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *a = outputs + row * classes;
        const int64_t label = labels[row];
        if (skips && label == skipped) {
            losses[row] = hits[row] = 0;
            continue;
        }
        if (label < 0 || label >= classes) return row;
        const REAL most = largest_of(classes, a);
        REAL total;
        SUMMED(total, classes, exp_of(a[i] - most));
        losses[row] = most - a[label] + (REAL)log(total);
        /* Where one is none, so is the total. */
        hits[row] = (total != total || a[label] == most) && place_of_largest(classes, a, most) == label;
    }
    return -1;
}

/* o = factor (softmax(a) - onehot(label)) of rows of classes; 0 where the factor is, whose label is not read. The first
   row whose label is no class, behind which nothing is written; -1: there is none. */
int64_t class_gradient(int64_t rows, int64_t classes, const REAL *outputs, const int64_t *labels, const REAL *factors,
                       REAL *gradient) {
    for (int64_t row = 0; row < rows; row++) {
        const REAL *a = outputs + row * classes;
        REAL *o = gradient + row * classes;
        const REAL factor = factors[row];
        if (factor == 0) {
            memset(o, 0, (size_t)classes * sizeof *o);
            continue;
        }
        const int64_t label = labels[row];
        if (label < 0 || label >= classes) return row;
        const REAL most = largest_of(classes, a);
        REAL total;
        APART for (int64_t i = 0; i < classes; i++) o[i] = exp_of(a[i] - most);
        SUMMED(total, classes, o[i]);
        const REAL share = factor / total;
        APART for (int64_t i = 0; i < classes; i++) o[i] *= share;
        o[label] -= factor;
    }
    return -1;
}

/* Numbers that `packed` must have room for, where products have at most so many terms. */
int64_t room_for(int64_t terms) { return terms * 2 * LANES + (terms < MOST_GROUPED ? terms : MOST_GROUPED) * GROUP; }

/* Carry the instructions out, in order; 0 where an index is out of its range, behind which nothing is carried out.
   `bases`: addresses. `packed`: of a room. */
int64_t run(const Instruction *program, int64_t count, char *const *bases, double alpha, REAL *packed) {
    for (const Instruction *of = program; of < program + count; of++) {
        if (is_empty(of)) continue;
        const REAL p = (REAL)(of->by_alpha ? of->p * alpha : of->p);
        if (of->code < NUM_BY_NUMBER) by_number(of, p, bases);
        else if (of->code == ADD_UP) add_up(of, bases);
        else if (of->code == PRODUCT) product(of, p, bases, packed);
        else if (of->code == ADD_AT || of->code == TAKE_AT) {
            if (!numbers_at(of, bases, of->code == ADD_AT)) return 0;
        } else if (of->code == TAKE_ROWS || of->code == ADD_ROWS) {
            if (!rows_at(of, bases, of->code == ADD_ROWS)) return 0;
        } else if (of->code == COUNT) count_up(of, bases);
        else if (of->code == LARGEST) largest(of, bases);
        else by_row(of, bases);
    }
    return 1;
}

/* The same so many times (`steps`), behind each of which the first `changing` bases move on by `moves` bytes. How many
   times it was carried out: fewer where an index is out of its range. */
int64_t run_steps(const Instruction *program, int64_t count, char **bases, double alpha, REAL *packed, int64_t steps,
                  const int64_t *moves, int64_t changing) {
    for (int64_t step = 0; step < steps; step++) {
        if (!run(program, count, bases, alpha, packed)) return step;
        for (int64_t i = 0; i < changing; i++) bases[i] += moves[i];
    }
    return steps;
}
