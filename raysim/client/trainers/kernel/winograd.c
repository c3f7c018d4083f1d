/* Convolutions of 3 x 3 or 5 x 5 numbers, one apart, by Winograd's minimal filtering, and their gradients.

   A tile is `tile` x `tile` numbers of the map behind, and the `side` x `side` before that they see, where side = tile +
   taps - 1. With d the tile before, g a kernel and . the product number by number,

       Y = A' (sum over channels of (G g G') . (B' d B)) A,

   so that side^2 products do the work of (tile taps)^2 (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
   2016, arXiv 1509.09308). The sum over channels is a product of matrices for each of the side^2 places. The gradient of
   the kernel is the same read backwards: G' (sum over tiles of (B' d B) . (A dY A')) G. That of the map is a convolution
   of dY with the kernel turned round.

   A row of A, B and G belongs to a point: a polynomial's value there, or its highest coefficient for the last one. With a
   side of six they are 0, P, -P, Q, -Q and infinity, with one of five 0, R, -R, S and infinity. These have exact powers,
   and lost fewest digits, of multiples of 1/8, for numbers drawn at random.

   Where a kernel sees zeros alone, the map behind is the bias, to the last bit: a relu makes much of what is rounded
   around 0.

   REAL is float or double. Sums are added up in an order that the shapes alone decide. */

#include "vectors.h"

#include <string.h>

/* A block of products: rows, and vectors beside one another. */
enum { ROWS = NATIVE == 64 ? 8 : 4, WIDE = 2, PANEL = WIDE * LANES, LEAST_ROWS = 4, TURNED = 4, MOST_TAPS = 5, MOST_SIDE = 6 };

/* Channels whose kernels are worked on together: in all places they lie in a core's second cache. Sums over so many
   channels are added up apart, which loses fewer digits: with 64 a quarter more, in 3 per cent less time. */
enum { TOGETHER = 32 };

#define P ((REAL)0.625)
#define Q ((REAL)1.5)
#define R ((REAL)1.25)
#define S ((REAL)0.5)
#define PP (P * P)
#define QQ (Q * Q)
#define RR (R * R)
#define SS (S * S)
/* What a polynomial with the other points as its roots is at P and -P, at Q and -Q, at R, at -R, and at S. */
#define AT_P (2 * PP * (PP - QQ))
#define AT_Q (2 * QQ * (QQ - PP))
#define AT_R (2 * RR * (R - S))
#define BELOW_R (-2 * RR * (R + S))
#define AT_S (S * (SS - RR))

/* Of a convolution. `turned`: whether kernels are turned round. `most`: how many tiles of a block lie in the room at most.
   `together`: examples whose maps do. */
typedef struct {
    int64_t examples, in, out, height, width, above, left, taps, turned, tile, most, together;
} Shape;

/* Where a map's numbers lie: strides of example, channel, row and column. */
typedef struct {
    int64_t example, channel, row, column;
} Strides;

typedef struct {
    int64_t in, out;        /* channels, filled up to whole vectors and blocks */
    int64_t high, wide;     /* of the map behind */
    int64_t down, across;   /* tiles */
    int64_t rows, columns;  /* of the map before with its margin, which tiles fill */
    int64_t places;
    int64_t before, behind; /* numbers between two places of a block */
} Sizes;

INLINE int64_t up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static Sizes sizes(const Shape *of) {
    Sizes s;
    const int64_t whole = LANES < LEAST_ROWS ? LEAST_ROWS : LANES, side = of->tile + of->taps - 1;
    s.in = up(of->in, whole);
    s.out = up(of->out, whole);
    s.high = of->height + 2 * of->above - of->taps + 1;
    s.wide = of->width + 2 * of->left - of->taps + 1;
    s.down = up(s.high, of->tile) / of->tile;
    s.across = up(s.wide, of->tile) / of->tile;
    s.rows = of->tile * s.down + of->taps - 1;
    s.columns = of->tile * s.across + of->taps - 1;
    s.places = side * side;
    /* One line of the cache more, lest all places share a set of it. */
    s.before = of->most * s.in + 64 / (int64_t)sizeof(REAL);
    s.behind = of->most * s.out + 64 / (int64_t)sizeof(REAL);
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
    for (int64_t r = 0; r < rows; r += TURNED)
        for (int64_t c = 0; c < columns; c += TURNED) {
            REAL *into = to + r * to_row + c * to_column;
            const REAL *of = from + r * row + c * column;
            if ((turns_in || turns_out) && r + TURNED <= rows && c + TURNED <= columns)
                turn(of, turns_in ? column : row, into, turns_in ? to_row : to_column);
            else
                for (int64_t i = 0; i < least(TURNED, rows - r); i++)
                    for (int64_t j = 0; j < least(TURNED, columns - c); j++)
                        into[i * to_row + j * to_column] = of[i * row + j * column];
        }
}

/* --- along one axis ---------------------------------------------------------------------------------------------- */

/* o (side) <- B' d. */
INLINE void before_along(const int side, const vec *d, vec *o) {
    if (side == 5) {
        const vec even = d[3] - S * d[2], odd = R * d[2] - (R * S) * d[1];
        o[0] = RR * S * d[0] + (d[3] - S * d[2] - RR * d[1]);
        o[1] = even + odd;
        o[2] = even - odd;
        o[3] = d[3] - RR * d[1];
        o[4] = RR * S * d[1] + (d[4] - S * d[3] - RR * d[2]);
        return;
    }
    const vec even_p = d[4] - QQ * d[2], odd_p = P * d[3] - (P * QQ) * d[1];
    const vec even_q = d[4] - PP * d[2], odd_q = Q * d[3] - (Q * PP) * d[1];
    o[0] = PP * QQ * d[0] + (d[4] - (PP + QQ) * d[2]);
    o[1] = even_p + odd_p;
    o[2] = even_p - odd_p;
    o[3] = even_q + odd_q;
    o[4] = even_q - odd_q;
    o[5] = PP * QQ * d[1] + (d[5] - (PP + QQ) * d[3]);
}

/* o (side) <- G g. */
INLINE void kernel_along(const int side, const int taps, const vec *g, vec *o) {
    if (side == 5) {
        const vec even = g[0] + RR * g[2], odd = R * g[1];
        o[0] = (1 / (RR * S)) * g[0];
        o[1] = (1 / AT_R) * (even + odd);
        o[2] = (1 / BELOW_R) * (even - odd);
        o[3] = (1 / AT_S) * (g[0] + S * g[1] + SS * g[2]);
        o[4] = g[2];
        return;
    }
    vec even_p = (1 / AT_P) * g[0] + (PP / AT_P) * g[2], odd_p = (P / AT_P) * g[1];
    vec even_q = (1 / AT_Q) * g[0] + (QQ / AT_Q) * g[2], odd_q = (Q / AT_Q) * g[1];
    if (taps == 5) {
        even_p += (PP * PP / AT_P) * g[4];
        even_q += (QQ * QQ / AT_Q) * g[4];
        odd_p += (PP * P / AT_P) * g[3];
        odd_q += (QQ * Q / AT_Q) * g[3];
    }
    o[0] = (1 / (PP * QQ)) * g[0];
    o[1] = even_p + odd_p;
    o[2] = even_p - odd_p;
    o[3] = even_q + odd_q;
    o[4] = even_q - odd_q;
    o[5] = g[taps - 1];
}

/* y (tile) <- A' m. */
INLINE void behind_along(const int side, const int tile, const vec *m, vec *y) {
    if (side == 5) {
        const vec even = m[1] + m[2], odd = m[1] - m[2];
        y[0] = m[0] + even + m[3];
        y[1] = R * odd + S * m[3];
        y[2] = RR * even + (SS * m[3] + m[4]);
        return;
    }
    const vec even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
    y[0] = m[0] + even_p + even_q;
    y[1] = P * odd_p + Q * odd_q;
    if (tile == 4) {
        y[2] = PP * even_p + QQ * even_q;
        y[3] = (P * PP) * odd_p + (Q * QQ) * odd_q;
    }
    y[tile - 1] += m[5];
}

/* o (side) <- A y. */
INLINE void error_along(const int side, const int tile, const vec *y, vec *o) {
    if (side == 5) {
        const vec even = y[0] + RR * y[2], odd = R * y[1];
        o[0] = y[0];
        o[1] = even + odd;
        o[2] = even - odd;
        o[3] = y[0] + S * y[1] + SS * y[2];
        o[4] = y[2];
        return;
    }
    vec even_p = y[0], odd_p = P * y[1], even_q = y[0], odd_q = Q * y[1];
    if (tile == 4) {
        even_p += PP * y[2];
        even_q += QQ * y[2];
        odd_p += (P * PP) * y[3];
        odd_q += (Q * QQ) * y[3];
    }
    o[0] = y[0];
    o[1] = even_p + odd_p;
    o[2] = even_p - odd_p;
    o[3] = even_q + odd_q;
    o[4] = even_q - odd_q;
    o[5] = y[tile - 1];
}

/* g (taps) <- G' w. */
INLINE void kernel_back_along(const int side, const int taps, const vec *w, vec *g) {
    if (side == 5) {
        const vec above = (1 / AT_R) * w[1], below = (1 / BELOW_R) * w[2], third = (1 / AT_S) * w[3];
        g[0] = (1 / (RR * S)) * w[0] + (above + below) + third;
        g[1] = R * (above - below) + S * third;
        g[2] = RR * (above + below) + (SS * third + w[4]);
        return;
    }
    const vec even_p = w[1] + w[2], odd_p = w[1] - w[2], even_q = w[3] + w[4], odd_q = w[3] - w[4];
    g[0] = (1 / (PP * QQ)) * w[0] + ((1 / AT_P) * even_p + (1 / AT_Q) * even_q);
    g[1] = (P / AT_P) * odd_p + (Q / AT_Q) * odd_q;
    g[2] = (PP / AT_P) * even_p + (QQ / AT_Q) * even_q;
    if (taps == 5) {
        g[3] = (PP * P / AT_P) * odd_p + (QQ * Q / AT_Q) * odd_q;
        g[4] = (PP * PP / AT_P) * even_p + (QQ * QQ / AT_Q) * even_q;
    }
    g[taps - 1] += w[5];
}

/* --- along both --------------------------------------------------------------------------------------------------- */

/* A function of the constants `tile` and `taps`, and of more. */
#define BY_SHAPE(of, function, ...)                                                                                     \
    ((of)->taps == 5   ? function(2, 5, __VA_ARGS__)                                                                    \
     : (of)->tile == 4 ? function(4, 3, __VA_ARGS__)                                                                    \
                       : function(3, 3, __VA_ARGS__))

/* Numbers of a kernel, each of several channels beside one another. */
typedef REAL Numbers[MOST_TAPS * MOST_TAPS][NATIVE / sizeof(REAL)];

/* How a kernel's numbers are read or written: all at once where one row follows the other. */
INLINE int64_t rows_apart(int64_t taps, const int64_t *apart) { return apart[2] == taps * apart[3] ? 1 : taps; }

/* A block of kernels: from channels before, and channels behind, so many of each. */
typedef struct {
    int64_t in, out, wide_in, wide_out;
} Block;

/* U (places, in, out) <- G g G' of a block. w: strides of out, in, row and column of the kernel. */
INLINE void kernels(const int tile, const int taps, const Shape *of, const Block *b, const REAL *w, const int64_t *apart,
                    REAL *u) {
    const int side = tile + taps - 1, area = taps * taps;
    const int64_t place = b->wide_in * b->wide_out, rows = rows_apart(taps, apart);
    for (int64_t o = 0; o < b->wide_out; o += LANES) {
        const int64_t many = least(LANES, of->out - b->out - o);
        for (int64_t i = 0; i < b->wide_in; i++) {
            Numbers g __attribute__((aligned(64)));
            if (many < LANES) memset(g, 0, sizeof g);
            const REAL *from = w + (b->out + o) * apart[0] + (b->in + i) * apart[1];
            for (int64_t r = 0; r < rows; r++)
                laid_out(g[taps * r], 1, LANES, from + r * apart[2], apart[0], apart[3], many, area / rows);
            vec half[MOST_TAPS][MOST_SIDE];
            UNROLLED for (int c = 0; c < taps; c++) {
                vec own[MOST_TAPS];
                UNROLLED for (int r = 0; r < taps; r++) own[r] = load(g[of->turned ? area - 1 - taps * r - c : taps * r + c]);
                kernel_along(side, taps, own, half[c]);
            }
            REAL *to = u + i * b->wide_out + o;
            UNROLLED for (int r = 0; r < side; r++) {
                vec row[MOST_TAPS], made[MOST_SIDE];
                UNROLLED for (int c = 0; c < taps; c++) row[c] = half[c][r];
                kernel_along(side, taps, row, made);
                UNROLLED for (int c = 0; c < side; c++) store(to + (side * r + c) * place, made[c]);
            }
        }
    }
}

/* dw <- G' W G of a block, for W (places, out, in). */
INLINE void kernels_back(const int tile, const int taps, const Shape *of, const Block *b, const REAL *w, REAL *dw,
                         const int64_t *apart) {
    const int side = tile + taps - 1;
    const int64_t rows = rows_apart(taps, apart), place = b->wide_out * b->wide_in, outs = least(b->wide_out, of->out - b->out);
    for (int64_t o = 0; o < outs; o++)
        for (int64_t i = 0; i < b->wide_in && b->in + i < of->in; i += LANES) {
            const REAL *from = w + o * b->wide_in + i;
            vec half[MOST_SIDE][MOST_TAPS];
            UNROLLED for (int c = 0; c < side; c++) {
                vec own[MOST_SIDE];
                UNROLLED for (int r = 0; r < side; r++) own[r] = load(from + (side * r + c) * place);
                kernel_back_along(side, taps, own, half[c]);
            }
            Numbers g __attribute__((aligned(64)));
            UNROLLED for (int r = 0; r < taps; r++) {
                vec row[MOST_SIDE], made[MOST_TAPS];
                UNROLLED for (int c = 0; c < side; c++) row[c] = half[c][r];
                kernel_back_along(side, taps, row, made);
                UNROLLED for (int c = 0; c < taps; c++) store(g[taps * r + c], made[c]);
            }
            REAL *to = dw + (b->out + o) * apart[0] + (b->in + i) * apart[1];
            const int64_t many = least(LANES, of->in - b->in - i);
            for (int64_t r = 0; r < rows; r++)
                laid_out(to + r * apart[2], apart[1], apart[3], g[taps * r], 1, LANES, many, taps * taps / rows);
        }
}

/* Where a tile lies in maps of so many columns and channels, whose rows begin `rows` apart from example to example. */
INLINE int64_t corner(const int tile, const Sizes *s, int64_t number, int64_t rows, int64_t columns, int64_t channels) {
    const int64_t each = s->down * s->across, n = number / each, of = number % each;
    const int64_t y = of / s->across, x = of % s->across;
    return ((n * rows + tile * y) * columns + tile * x) * channels;
}

/* V (places, tiles, in) <- B' d B, for `many` tiles from `first`, of maps with a margin: (examples, rows, columns, in). */
INLINE void seen(const int tile, const int taps, const Sizes *s, const REAL *maps, int64_t first, int64_t many, REAL *v) {
    const int side = tile + taps - 1;
    for (int64_t t = 0; t < many; t++) {
        const REAL *from = maps + corner(tile, s, first + t, s->rows, s->columns, s->in);
        REAL *to = v + t * s->in;
        for (int64_t c = 0; c < s->in; c += LANES) {
            vec half[MOST_SIDE][MOST_SIDE];
            UNROLLED for (int j = 0; j < side; j++) {
                vec own[MOST_SIDE];
                UNROLLED for (int i = 0; i < side; i++) own[i] = load(from + (i * s->columns + j) * s->in + c);
                before_along(side, own, half[j]);
            }
            UNROLLED for (int i = 0; i < side; i++) {
                vec row[MOST_SIDE], made[MOST_SIDE];
                UNROLLED for (int j = 0; j < side; j++) row[j] = half[j][i];
                before_along(side, row, made);
                UNROLLED for (int j = 0; j < side; j++) store(to + (side * i + j) * s->before + c, made[j]);
            }
        }
    }
}

/* filled <- 1 for places of maps with a margin that have a number that is not 0, in any channel, else 0. */
static void find_filled(const Sizes *s, const REAL *maps, int64_t places, unsigned char *filled) {
    for (int64_t p = 0; p < places; p++) {
        const REAL *own = maps + p * s->in;
        /* Most places show it in their first channels. */
        unsigned char found = (own[0] != 0) | (own[1] != 0) | (own[2] != 0) | (own[3] != 0);
        if (!found) {
            mask any = {0};
            for (int64_t c = 0; c < s->in; c += LANES) any |= load(own + c) != (vec){0};
            UNROLLED for (int l = 0; l < LANES; l++) found |= any[l] != 0;
        }
        filled[p] = found;
    }
}

/* Eight bytes, of which the first is the lowest. */
INLINE uint64_t eight(const unsigned char *from) {
    uint64_t value;
    memcpy(&value, from, sizeof value);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

/* The places of a tile, a bit each in their order, from which a kernel sees none that is filled. */
INLINE uint32_t blank(const int tile, const int taps, const unsigned char *filled, int64_t columns) {
    const int side = tile + taps - 1;
    const uint64_t ones = 0x0101010101010101 >> 8 * (8 - tile);
    uint64_t across[MOST_SIDE];
    UNROLLED for (int i = 0; i < side; i++) {
        const uint64_t row = across[i] = eight(filled + i * columns);
        UNROLLED for (int c = 1; c < taps; c++) across[i] |= row >> 8 * c;
    }
    uint32_t found = 0;
    UNROLLED for (int i = 0; i < tile; i++) {
        uint64_t any = across[i];
        UNROLLED for (int r = 1; r < taps; r++) any |= across[i + r];
        const uint64_t none = ~any & ones;
        if (none) UNROLLED for (int j = 0; j < tile; j++) found |= (uint32_t)(none >> 8 * j & 1) << (tile * i + j);
    }
    return found;
}

/* maps (examples, rows, columns, out) <- A' M A + bias. filled: see `find_filled`. */
INLINE void shown(const int tile, const int taps, const Sizes *s, const REAL *m, int64_t first, int64_t many,
                  const REAL *bias, const unsigned char *filled, REAL *maps) {
    const int side = tile + taps - 1;
    const int64_t columns = tile * s->across;
    for (int64_t t = 0; t < many; t++) {
        REAL *to = maps + corner(tile, s, first + t, tile * s->down, columns, s->out);
        const REAL *from = m + t * s->out;
        for (int64_t c = 0; c < s->out; c += LANES) {
            vec half[MOST_SIDE][MOST_SIDE];
            UNROLLED for (int j = 0; j < side; j++) {
                vec own[MOST_SIDE];
                UNROLLED for (int i = 0; i < side; i++) own[i] = load(from + (side * i + j) * s->behind + c);
                behind_along(side, tile, own, half[j]);
            }
            const vec own = load(bias + c);
            UNROLLED for (int i = 0; i < tile; i++) {
                vec row[MOST_SIDE], made[MOST_SIDE];
                UNROLLED for (int j = 0; j < side; j++) row[j] = half[j][i];
                behind_along(side, tile, row, made);
                UNROLLED for (int j = 0; j < tile; j++) store(to + (i * columns + j) * s->out + c, made[j] + own);
            }
        }
        const uint32_t found = blank(tile, taps, filled + corner(tile, s, first + t, s->rows, s->columns, 1), s->columns);
        for (int p = 0; found >> p; p++)
            if (found >> p & 1) memcpy(to + (p / tile * columns + p % tile) * s->out, bias, s->out * sizeof(REAL));
    }
}

/* D (places, tiles, out) <- A dY A'. */
INLINE void errors(const int tile, const int taps, const Sizes *s, const REAL *maps, int64_t first, int64_t many, REAL *d) {
    const int side = tile + taps - 1;
    const int64_t columns = tile * s->across;
    for (int64_t t = 0; t < many; t++) {
        const REAL *from = maps + corner(tile, s, first + t, tile * s->down, columns, s->out);
        REAL *to = d + t * s->out;
        for (int64_t c = 0; c < s->out; c += LANES) {
            vec half[MOST_SIDE][MOST_SIDE];
            UNROLLED for (int j = 0; j < tile; j++) {
                vec own[MOST_SIDE];
                UNROLLED for (int i = 0; i < tile; i++) own[i] = load(from + (i * columns + j) * s->out + c);
                error_along(side, tile, own, half[j]);
            }
            UNROLLED for (int i = 0; i < side; i++) {
                vec row[MOST_SIDE], made[MOST_SIDE];
                UNROLLED for (int j = 0; j < tile; j++) row[j] = half[j][i];
                error_along(side, tile, row, made);
                UNROLLED for (int j = 0; j < side; j++) store(to + (side * i + j) * s->behind + c, made[j]);
            }
        }
    }
}

/* --- products ----------------------------------------------------------------------------------------------------- */

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

/* M (places, tiles, out) <- V U of a block, added up over blocks of channels before. */
static void products(const Sizes *s, const Block *b, const REAL *v, const REAL *u, int64_t many, REAL *m) {
    for (int64_t e = 0; e < s->places; e++)
        rows_of(b->wide_out == PANEL, b->in > 0, many, m + e * s->behind + b->out, s->out, v + e * s->before + b->in, s->in,
                1, u + e * b->wide_in * b->wide_out, b->wide_out, b->wide_in);
}

/* W (places, out, in) <- [W +] D' V of a block. */
static void kernel_products(const Sizes *s, const Block *b, int adds, const REAL *d, const REAL *v, int64_t many, REAL *w) {
    for (int64_t e = 0; e < s->places; e++)
        rows_of(b->wide_in == PANEL, adds, b->wide_out, w + e * b->wide_out * b->wide_in, b->wide_in,
                d + e * s->behind + b->out, 1, s->out, v + e * s->before + b->in, s->in, many);
}

/* --- maps --------------------------------------------------------------------------------------------------------- */

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

/* --- whole convolutions -------------------------------------------------------------------------------------------- */

/* Tiles of each block of so many: as equal as whole rows of products allow. */
INLINE int64_t part_of(const Shape *of, int64_t tiles) {
    const int64_t parts = (tiles + of->most - 1) / of->most;
    return up((tiles + parts - 1) / parts, LEAST_ROWS);
}

/* Numbers of all maps before, and behind, that lie in the room together. */
INLINE int64_t maps_before(const Shape *of, const Sizes *s) { return of->together * s->rows * s->columns * s->in; }
INLINE int64_t maps_behind(const Shape *of, const Sizes *s) {
    return of->together * of->tile * of->tile * s->down * s->across * s->out;
}

/* Whether all tiles are one block: then a block of kernels is used once, and its memory again by the next one. */
INLINE int in_one_block(const Shape *of, const Sizes *s) {
    return of->examples <= of->together && of->examples * s->down * s->across <= of->most;
}

INLINE int64_t numbers_of_kernels(const Shape *of, const Sizes *s) {
    return s->places * (in_one_block(of, s) ? TOGETHER * PANEL : s->in * s->out);
}

/* Numbers that the room of a convolution must have. */
int64_t room_for(const Shape *of) {
    const Sizes s = sizes(of);
    return numbers_of_kernels(of, &s) + s.places * (s.before + s.behind) + maps_before(of, &s) + maps_behind(of, &s) + s.out
           + (of->together * s.rows * s.columns + 8) / (int64_t)sizeof(REAL) + 64;
}

/* y <- w x + bias. `w_apart`: strides of out, in, row, column. bias may be NULL. */
void convolve(const Shape *of, const REAL *x, const Strides *xs, const REAL *w, const int64_t *w_apart, const REAL *bias,
              REAL *y, const Strides *ys, REAL *room) {
    const Sizes s = sizes(of);
    const int is_one = in_one_block(of, &s);
    REAL *u = room, *v = u + numbers_of_kernels(of, &s), *m = v + s.places * s.before, *own = m + s.places * s.behind;
    REAL *before = own + s.out, *behind = before + maps_before(of, &s);
    unsigned char *filled = (unsigned char *)(behind + maps_behind(of, &s));
    memset(own, 0, s.out * sizeof(REAL));
    if (bias) memcpy(own, bias, of->out * sizeof(REAL));
    memset(before, 0, maps_before(of, &s) * sizeof(REAL));
    for (int64_t n = 0; n < of->examples; n += of->together) {
        const int64_t now = least(of->together, of->examples - n), tiles = now * s.down * s.across;
        const int64_t part = part_of(of, tiles);
        take(xs, x + n * xs->example, now, of->in, s.in, of->height, of->width, of->above, of->left, s.rows, s.columns,
             before);
        find_filled(&s, before, now * s.rows * s.columns, filled);
        for (int64_t t = 0; t < tiles; t += part) {
            const int64_t many = least(part, tiles - t);
            BY_SHAPE(of, seen, &s, before, t, many, v);
            for (int64_t o = 0; o < s.out; o += PANEL)
                for (int64_t i = 0; i < of->in; i += TOGETHER) {
                    const Block b = {i, o, least(TOGETHER, of->in - i), least(PANEL, s.out - o)};
                    REAL *block = is_one ? u : u + s.places * (o * of->in + i * b.wide_out);
                    if (n + t == 0) BY_SHAPE(of, kernels, of, &b, w, w_apart, block);
                    products(&s, &b, v, block, up(many, LEAST_ROWS), m);
                }
            BY_SHAPE(of, shown, &s, m, t, many, own, filled, behind);
        }
        give(ys, y + n * ys->example, now, of->out, s.out, s.high, s.wide, of->tile * s.down, of->tile * s.across, behind);
    }
}

/* dw <- the gradient of the kernel, dy that of the map behind. */
void convolve_back(const Shape *of, const REAL *x, const Strides *xs, const REAL *dy, const Strides *ys, REAL *dw,
                   const int64_t *w_apart, REAL *room) {
    const Sizes s = sizes(of);
    const int is_one = in_one_block(of, &s);
    REAL *w = room, *v = w + numbers_of_kernels(of, &s), *d = v + s.places * s.before;
    REAL *before = d + s.places * s.behind + s.out, *behind = before + maps_before(of, &s);
    memset(before, 0, maps_before(of, &s) * sizeof(REAL));
    memset(behind, 0, maps_behind(of, &s) * sizeof(REAL));
    for (int64_t n = 0; n < of->examples; n += of->together) {
        const int64_t now = least(of->together, of->examples - n), tiles = now * s.down * s.across;
        const int64_t part = part_of(of, tiles);
        take(xs, x + n * xs->example, now, of->in, s.in, of->height, of->width, of->above, of->left, s.rows, s.columns,
             before);
        take(ys, dy + n * ys->example, now, of->out, s.out, s.high, s.wide, 0, 0, of->tile * s.down, of->tile * s.across,
             behind);
        for (int64_t t = 0; t < tiles; t += part) {
            const int64_t many = least(part, tiles - t);
            const int is_last = n + now == of->examples && t + part >= tiles;
            BY_SHAPE(of, seen, &s, before, t, many, v);
            BY_SHAPE(of, errors, &s, behind, t, many, d);
            for (int64_t o = 0; o < s.out; o += TOGETHER)
                for (int64_t i = 0; i < s.in; i += PANEL) {
                    const Block b = {i, o, least(PANEL, s.in - i), least(TOGETHER, s.out - o)};
                    REAL *block = is_one ? w : w + s.places * (o * s.in + i * b.wide_out);
                    kernel_products(&s, &b, n + t > 0, d, v, many, block);
                    if (is_last) BY_SHAPE(of, kernels_back, of, &b, block, dw, w_apart);
                }
        }
    }
}
