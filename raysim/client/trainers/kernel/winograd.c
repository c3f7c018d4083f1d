/* Convolutions of 3 x 3 numbers, one apart, by Winograd's minimal filtering F(2 x 2, 3 x 3), and their gradients.

   A tile is four numbers of the map behind, and the 4 x 4 before that they see. With d the tile before, g a kernel and
   . the product number by number,

       Y = A' (sum over channels of (G g G') . (B' d B)) A,

   so that 16 products do the work of 36 (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016, arXiv
   1509.09308). The sum over channels is a product of matrices for each of the 16 places. The gradient of the kernel is
   the same read backwards: G' (sum over tiles of (B' d B) . (A dY A')) G. That of the map is a convolution of dY with
   the kernel turned round.

   REAL is float or double. Sums are added up in an order that the shapes alone decide. */

#include "vectors.h"

#include <string.h>

/* A block of products: rows, and vectors beside one another. */
enum { ROWS = NATIVE == 64 ? 8 : 4, WIDE = 2, LEAST_ROWS = 4, PLACES = 16, TAPS = 9, SIDE = 4 };

/* Of a convolution. `tiles`: how many of a block lie in the room at most. `together`: examples whose maps do. */
typedef struct {
    int64_t examples, in, out, height, width, above, left, tiles, together;
} Shape;

/* Where a map's numbers lie: strides of example, channel, row and column. */
typedef struct {
    int64_t example, channel, row, column;
} Strides;

typedef struct {
    int64_t in, out;        /* channels, filled up to whole vectors and blocks */
    int64_t high, wide;     /* of the map behind */
    int64_t down, across;   /* tiles */
    int64_t before, behind; /* numbers between two places of a block */
} Sizes;

INLINE int64_t up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static Sizes sizes(const Shape *of) {
    Sizes s;
    const int64_t whole = LANES < LEAST_ROWS ? LEAST_ROWS : LANES;
    s.in = up(of->in, whole);
    s.out = up(of->out, whole);
    s.high = of->height + 2 * of->above - 2;
    s.wide = of->width + 2 * of->left - 2;
    s.down = (s.high + 1) / 2;
    s.across = (s.wide + 1) / 2;
    /* One line of the cache more, lest all places share a set of it. */
    s.before = of->tiles * s.in + 64 / (int64_t)sizeof(REAL);
    s.behind = of->tiles * s.out + 64 / (int64_t)sizeof(REAL);
    return s;
}

INLINE void store(REAL *to, vec value) { *(vec *)to = value; }

/* to (rows x columns) <- from, both by strides of row and column. */
static void laid_out(REAL *to, int64_t to_row, int64_t to_column, const REAL *from, int64_t row, int64_t column,
                     int64_t rows, int64_t columns) {
    if (to_column == 1 && column == 1) {
        for (int64_t r = 0; r < rows; r++) memcpy(to + r * to_row, from + r * row, columns * sizeof(REAL));
        return;
    }
    const int turns_in = to_column == 1 && row == 1, turns_out = to_row == 1 && column == 1;
    for (int64_t r = 0; r < rows; r += SIDE)
        for (int64_t c = 0; c < columns; c += SIDE) {
            REAL *into = to + r * to_row + c * to_column;
            const REAL *of = from + r * row + c * column;
            if ((turns_in || turns_out) && r + SIDE <= rows && c + SIDE <= columns)
                turn(of, turns_in ? column : row, into, turns_in ? to_row : to_column);
            else
                for (int64_t i = 0; i < least(SIDE, rows - r); i++)
                    for (int64_t j = 0; j < least(SIDE, columns - c); j++)
                        into[i * to_row + j * to_column] = of[i * row + j * column];
        }
}

/* U (places, panels of out, in, panel) <- G g G'. w: strides of out, in, row and column of the kernel. */
static void kernels(const Shape *of, const Sizes *s, const REAL *w, const int64_t *apart, REAL *u) {
    const int64_t panel = WIDE * LANES;
    for (int64_t o = 0; o < s->out; o += LANES) {
        const int64_t first = o / panel * panel, width = least(panel, s->out - first), many = least(LANES, of->out - o);
        for (int64_t i = 0; i < of->in; i++) {
            REAL g[TAPS][NATIVE / sizeof(REAL)] __attribute__((aligned(64)));
            if (many < LANES) memset(g, 0, sizeof g);
            const REAL *from = w + o * apart[0] + i * apart[1];
            for (int64_t j = 0; j < many; j++)
                for (int k = 0; k < TAPS; k++) g[k][j] = from[j * apart[0] + k / 3 * apart[2] + k % 3 * apart[3]];
            vec half[4][3];
            const REAL by = 0.5;
            for (int c = 0; c < 3; c++) {
                const vec a = load(g[c]), b = load(g[3 + c]), d = load(g[6 + c]);
                half[0][c] = a;
                half[1][c] = by * (a + d + b);
                half[2][c] = by * (a + d - b);
                half[3][c] = d;
            }
            REAL *to = u + first * of->in + i * width + (o - first);
            const int64_t place = s->out * of->in;
            for (int r = 0; r < 4; r++) {
                const vec a = half[r][0], b = half[r][1], d = half[r][2];
                store(to + (4 * r) * place, a);
                store(to + (4 * r + 1) * place, by * (a + d + b));
                store(to + (4 * r + 2) * place, by * (a + d - b));
                store(to + (4 * r + 3) * place, d);
            }
        }
    }
}

/* V (places, tiles, in) <- B' d B, for `many` tiles from `first`, of maps with a margin: (examples, rows, columns, in). */
static void seen(const Sizes *s, const REAL *maps, int64_t first, int64_t many, REAL *v) {
    const int64_t rows = 2 * s->down + 2, columns = 2 * s->across + 2, each = s->down * s->across;
    for (int64_t t = 0; t < many; t++) {
        const int64_t n = (first + t) / each, of = (first + t) % each, y = of / s->across, x = of % s->across;
        const REAL *tile = maps + ((n * rows + 2 * y) * columns + 2 * x) * s->in;
        REAL *to = v + t * s->in;
        for (int64_t c = 0; c < s->in; c += LANES) {
            vec half[4][4];
            UNROLLED for (int j = 0; j < 4; j++) {
                const vec a = load(tile + j * s->in + c), b = load(tile + (columns + j) * s->in + c);
                const vec d = load(tile + (2 * columns + j) * s->in + c), e = load(tile + (3 * columns + j) * s->in + c);
                half[0][j] = a - d;
                half[1][j] = b + d;
                half[2][j] = d - b;
                half[3][j] = b - e;
            }
            UNROLLED for (int i = 0; i < 4; i++) {
                store(to + (4 * i) * s->before + c, half[i][0] - half[i][2]);
                store(to + (4 * i + 1) * s->before + c, half[i][1] + half[i][2]);
                store(to + (4 * i + 2) * s->before + c, half[i][2] - half[i][1]);
                store(to + (4 * i + 3) * s->before + c, half[i][1] - half[i][3]);
            }
        }
    }
}

/* maps (examples, rows, columns, out) <- A' M A + bias. */
static void shown(const Sizes *s, const REAL *m, int64_t first, int64_t many, const REAL *bias, REAL *maps) {
    const int64_t columns = 2 * s->across, each = s->down * s->across;
    for (int64_t t = 0; t < many; t++) {
        const int64_t n = (first + t) / each, of = (first + t) % each, y = of / s->across, x = of % s->across;
        REAL *tile = maps + ((n * 2 * s->down + 2 * y) * columns + 2 * x) * s->out;
        const REAL *from = m + t * s->out;
        for (int64_t c = 0; c < s->out; c += LANES) {
            vec half[2][4];
            UNROLLED for (int j = 0; j < 4; j++) {
                const vec a = load(from + j * s->behind + c), b = load(from + (4 + j) * s->behind + c);
                const vec d = load(from + (8 + j) * s->behind + c), e = load(from + (12 + j) * s->behind + c);
                half[0][j] = a + b + d;
                half[1][j] = b - d - e;
            }
            const vec own = load(bias + c);
            UNROLLED for (int i = 0; i < 2; i++) {
                store(tile + i * columns * s->out + c, half[i][0] + half[i][1] + half[i][2] + own);
                store(tile + (i * columns + 1) * s->out + c, half[i][1] - half[i][2] - half[i][3] + own);
            }
        }
    }
}

/* D (places, tiles, out) <- A dY A'. */
static void errors(const Sizes *s, const REAL *maps, int64_t first, int64_t many, REAL *d) {
    const int64_t columns = 2 * s->across, each = s->down * s->across;
    for (int64_t t = 0; t < many; t++) {
        const int64_t n = (first + t) / each, of = (first + t) % each, y = of / s->across, x = of % s->across;
        const REAL *tile = maps + ((n * 2 * s->down + 2 * y) * columns + 2 * x) * s->out;
        REAL *to = d + t * s->out;
        for (int64_t c = 0; c < s->out; c += LANES) {
            vec half[4][2];
            UNROLLED for (int j = 0; j < 2; j++) {
                const vec a = load(tile + j * s->out + c), b = load(tile + (columns + j) * s->out + c);
                half[0][j] = a;
                half[1][j] = a + b;
                half[2][j] = a - b;
                half[3][j] = -b;
            }
            UNROLLED for (int i = 0; i < 4; i++) {
                store(to + (4 * i) * s->behind + c, half[i][0]);
                store(to + (4 * i + 1) * s->behind + c, half[i][0] + half[i][1]);
                store(to + (4 * i + 2) * s->behind + c, half[i][0] - half[i][1]);
                store(to + (4 * i + 3) * s->behind + c, -half[i][1]);
            }
        }
    }
}

/* o (rows, `vectors` vectors) <- [o +] a b: numbers of a by strides of row and term, rows of b `apart`. */
INLINE void block(const int rows, const int vectors, const int adds, REAL *o, int64_t o_row, const REAL *a, int64_t a_row,
                  int64_t a_term, const REAL *b, int64_t apart, int64_t terms) {
    vec sums[ROWS][WIDE];
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int j = 0; j < vectors; j++) sums[i][j] = (vec){0};
    for (int64_t k = 0; k < terms; k++) {
        vec own[WIDE];
        UNROLLED for (int j = 0; j < vectors; j++) own[j] = load(b + k * apart + j * LANES);
        UNROLLED for (int i = 0; i < rows; i++) {
            const REAL x = a[i * a_row + k * a_term];
            UNROLLED for (int j = 0; j < vectors; j++) sums[i][j] += x * own[j];
        }
    }
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int j = 0; j < vectors; j++) {
        REAL *to = o + i * o_row + j * LANES;
        if (adds) sums[i][j] += load(to);
        store(to, sums[i][j]);
    }
}

#define ALL_ROWS(vectors, adds)                                                                                         \
    do {                                                                                                                \
        int64_t r = 0;                                                                                                  \
        for (; r + ROWS <= rows; r += ROWS)                                                                             \
            block(ROWS, vectors, adds, o + r * o_row, o_row, a + r * a_row, a_row, a_term, b, apart, terms);            \
        for (; r < rows; r += LEAST_ROWS)                                                                               \
            block(LEAST_ROWS, vectors, adds, o + r * o_row, o_row, a + r * a_row, a_row, a_term, b, apart, terms);      \
    } while (0)

/* As `block`, for rows that are a multiple of LEAST_ROWS. */
static void rows_of(int wide, int adds, int64_t rows, REAL *o, int64_t o_row, const REAL *a, int64_t a_row, int64_t a_term,
                    const REAL *b, int64_t apart, int64_t terms) {
    if (wide && adds) ALL_ROWS(WIDE, 1);
    else if (wide) ALL_ROWS(WIDE, 0);
    else if (adds) ALL_ROWS(1, 1);
    else ALL_ROWS(1, 0);
}

/* M (places, tiles, out) <- V U. */
static void products(const Shape *of, const Sizes *s, const REAL *v, const REAL *u, int64_t many, REAL *m) {
    const int64_t panel = WIDE * LANES;
    for (int e = 0; e < PLACES; e++)
        for (int64_t o = 0; o < s->out; o += panel) {
            const int64_t width = least(panel, s->out - o);
            rows_of(width == panel, 0, many, m + e * s->behind + o, s->out, v + e * s->before, s->in, 1,
                    u + (e * s->out + o) * of->in, width, of->in);
        }
}

/* W (places, out, in) <- W + D' V. */
static void kernel_products(const Sizes *s, const REAL *d, const REAL *v, int64_t many, REAL *w) {
    const int64_t panel = WIDE * LANES;
    for (int e = 0; e < PLACES; e++)
        for (int64_t i = 0; i < s->in; i += panel)
            rows_of(s->in - i >= panel, 1, s->out, w + e * s->out * s->in + i, s->in, d + e * s->behind, 1, s->out,
                    v + e * s->before + i, s->in, many);
}

/* Maps with a margin of zeros (together, rows, columns, channels). */
static void take(const Strides *x, const REAL *from, int64_t many, int64_t channels, int64_t filled, int64_t height,
                 int64_t width, int64_t above, int64_t left, int64_t rows, int64_t columns, REAL *to) {
    const int in_one = above == 0 && left == 0 && columns == width && x->row == width * x->column;
    for (int64_t n = 0; n < many; n++) {
        REAL *map = to + (n * rows + above) * columns * filled + left * filled;
        const REAL *own = from + n * x->example;
        if (in_one) {
            laid_out(map, filled, 1, own, x->column, x->channel, height * width, channels);
            continue;
        }
        for (int64_t r = 0; r < height; r++)
            laid_out(map + r * columns * filled, filled, 1, own + r * x->row, x->column, x->channel, width, channels);
    }
}

/* Maps without what lies beyond their last row and column. */
static void give(const Strides *y, REAL *into, int64_t many, int64_t channels, int64_t filled, int64_t height,
                 int64_t width, int64_t rows, int64_t columns, const REAL *from) {
    const int in_one = columns == width && y->row == width * y->column;
    for (int64_t n = 0; n < many; n++) {
        const REAL *map = from + n * rows * columns * filled;
        REAL *own = into + n * y->example;
        if (in_one) {
            laid_out(own, y->column, y->channel, map, filled, 1, height * width, channels);
            continue;
        }
        for (int64_t r = 0; r < height; r++)
            laid_out(own + r * y->row, y->column, y->channel, map + r * columns * filled, filled, 1, width, channels);
    }
}

INLINE int64_t blocks_of(const Shape *of, int64_t tiles) { return (tiles + of->tiles - 1) / of->tiles; }

/* Numbers that the room of a convolution must have. */
int64_t room_for(const Shape *of) {
    const Sizes s = sizes(of);
    const int64_t maps = of->together * ((2 * s.down + 2) * (2 * s.across + 2) * s.in + 4 * s.down * s.across * s.out);
    return PLACES * (s.before + s.behind + s.in * s.out) + maps + s.out + 64;
}

/* y <- w x + bias. `w_apart`: strides of out, in, row, column. bias may be NULL. */
void convolve(const Shape *of, const REAL *x, const Strides *xs, const REAL *w, const int64_t *w_apart, const REAL *bias,
              REAL *y, const Strides *ys, REAL *room) {
    const Sizes s = sizes(of);
    const int64_t rows = 2 * s.down + 2, columns = 2 * s.across + 2, each = s.down * s.across;
    REAL *u = room, *v = u + PLACES * s.in * s.out, *m = v + PLACES * s.before, *own = m + PLACES * s.behind;
    REAL *before = own + s.out, *behind = before + of->together * rows * columns * s.in;
    kernels(of, &s, w, w_apart, u);
    memset(own, 0, s.out * sizeof(REAL));
    if (bias) memcpy(own, bias, of->out * sizeof(REAL));
    memset(before, 0, of->together * rows * columns * s.in * sizeof(REAL));
    for (int64_t n = 0; n < of->examples; n += of->together) {
        const int64_t now = least(of->together, of->examples - n);
        take(xs, x + n * xs->example, now, of->in, s.in, of->height, of->width, of->above, of->left, rows, columns, before);
        const int64_t tiles = now * each, parts = blocks_of(of, tiles), part = up((tiles + parts - 1) / parts, LEAST_ROWS);
        for (int64_t t = 0; t < tiles; t += part) {
            const int64_t many = least(part, tiles - t);
            seen(&s, before, t, many, v);
            products(of, &s, v, u, up(many, LEAST_ROWS), m);
            shown(&s, m, t, many, own, behind);
        }
        give(ys, y + n * ys->example, now, of->out, s.out, s.high, s.wide, 2 * s.down, 2 * s.across, behind);
    }
}

/* dw <- the gradient of the kernel, dy that of the map behind. */
void convolve_back(const Shape *of, const REAL *x, const Strides *xs, const REAL *dy, const Strides *ys, REAL *dw,
                   const int64_t *w_apart, REAL *room) {
    const Sizes s = sizes(of);
    const int64_t rows = 2 * s.down + 2, columns = 2 * s.across + 2, each = s.down * s.across;
    REAL *w = room, *v = w + PLACES * s.in * s.out, *d = v + PLACES * s.before, *own = d + PLACES * s.behind;
    REAL *before = own + s.out, *behind = before + of->together * rows * columns * s.in;
    memset(w, 0, PLACES * s.in * s.out * sizeof(REAL));
    memset(before, 0, of->together * rows * columns * s.in * sizeof(REAL));
    memset(behind, 0, of->together * 4 * each * s.out * sizeof(REAL));
    for (int64_t n = 0; n < of->examples; n += of->together) {
        const int64_t now = least(of->together, of->examples - n);
        take(xs, x + n * xs->example, now, of->in, s.in, of->height, of->width, of->above, of->left, rows, columns, before);
        take(ys, dy + n * ys->example, now, of->out, s.out, s.high, s.wide, 0, 0, 2 * s.down, 2 * s.across, behind);
        const int64_t tiles = now * each, parts = blocks_of(of, tiles), part = up((tiles + parts - 1) / parts, LEAST_ROWS);
        for (int64_t t = 0; t < tiles; t += part) {
            const int64_t many = least(part, tiles - t);
            seen(&s, before, t, many, v);
            errors(&s, behind, t, many, d);
            kernel_products(&s, d, v, many, w);
        }
    }
    const REAL by = 0.5;
    const int64_t place = s.in * s.out;
    for (int64_t o = 0; o < of->out; o++)
        for (int64_t i = 0; i < of->in; i += LANES) {
            const REAL *from = w + o * s.in + i;
            vec half[3][4];
            UNROLLED for (int j = 0; j < 4; j++) {
                const vec a = load(from + j * place), b = load(from + (4 + j) * place);
                const vec c = load(from + (8 + j) * place), e = load(from + (12 + j) * place);
                half[0][j] = a + by * (b + c);
                half[1][j] = by * (b - c);
                half[2][j] = by * (b + c) + e;
            }
            REAL g[TAPS][NATIVE / sizeof(REAL)] __attribute__((aligned(64)));
            UNROLLED for (int r = 0; r < 3; r++) {
                store(g[3 * r], half[r][0] + by * (half[r][1] + half[r][2]));
                store(g[3 * r + 1], by * (half[r][1] - half[r][2]));
                store(g[3 * r + 2], by * (half[r][1] + half[r][2]) + half[r][3]);
            }
            REAL *to = dw + o * w_apart[0] + i * w_apart[1];
            for (int64_t j = 0; j < least(LANES, of->in - i); j++)
                for (int k = 0; k < TAPS; k++) to[j * w_apart[1] + k / 3 * w_apart[2] + k % 3 * w_apart[3]] = g[k][j];
        }
}
