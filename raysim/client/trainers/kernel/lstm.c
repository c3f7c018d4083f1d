/* An LSTM over all places of texts: forward and backward pass of what a state adds to the next one.

   What inputs add to the gates, and the gradients of weights, are products over all places at once, which the caller
   makes. All arrays are contiguous: gates (places, examples, 4, units) in the order i, f, g, o; states and cells (places
   + 1, examples, units) with those before the first place too; U (4 units, units).

   Texts of several lengths, the longest first, are packed: a place has rows of those texts alone that reach it, which are
   the first ones of the place before. The states and cells before the first place have a row of every text.

   U is laid out in panels of PANEL columns at first: a place's product reads it from one end to the other. A sum is added
   up in the order of its terms, whatever the width of vectors and the number of examples. */

#include "vectors.h"

enum { WIDE = NATIVE == 64 ? 4 : 2, PANEL = WIDE * LANES };

typedef struct {
    int64_t places, examples, units, backwards; /* backwards: the last place is the first */
} Shape;

INLINE int64_t panels_of(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

/* Where a place's rows are. rows: how many there are. at: the first among gates and squashed cells. before, behind: the
   first among states and cells. */
typedef struct {
    int64_t rows, at, before, behind;
} Place;

/* The place in which `step` is, of texts packed by `reaching`, how many reach each place, where `at` rows are before it; 0:
   all texts are equally long. */
INLINE Place place_of(const Shape *of, const int64_t *reaching, int64_t step, int64_t at) {
    if (reaching) {
        const int64_t all = reaching[0];
        return (Place){reaching[step], at, step ? all + at - reaching[step - 1] : 0, all + at};
    }
    const int64_t each = of->examples, t = of->backwards ? of->places - 1 - step : step;
    return (Place){each, t * each, (of->backwards ? t + 1 : t) * each, (of->backwards ? t : t + 1) * each};
}

/* Numbers of the room: panels of U turned; or panels of U, and behind each place a state's gradients. */
int64_t room_for(const Shape *of) {
    const int64_t n = of->units, turned = panels_of(4 * n) * n, same = panels_of(n) * 4 * n;
    return (turned > same ? turned : same) * PANEL + of->examples * n;
}

/* o = added + a b for `rows` rows and a panel of b, of which `many` columns are b's; rows of o and `added` are `wide` apart. */
INLINE void block(const int rows, int64_t k, const REAL *a, const REAL *panel, const REAL *added, REAL *o, int64_t wide,
                  int64_t many) {
    vec sums[6][WIDE];
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int v = 0; v < WIDE; v++) sums[i][v] = (vec){0};
    for (int64_t j = 0; j < k; j++) {
        vec own[WIDE];
        UNROLLED for (int v = 0; v < WIDE; v++) own[v] = load(panel + j * PANEL + v * LANES);
        UNROLLED for (int i = 0; i < rows; i++) {
            const REAL x = a[i * k + j];
            UNROLLED for (int v = 0; v < WIDE; v++) sums[i][v] += x * own[v];
        }
    }
    for (int i = 0; i < rows; i++) {
        if (many == PANEL) {
            for (int v = 0; v < WIDE; v++) {
                const int64_t at = i * wide + v * LANES;
                *(vec *)(o + at) = load(added + at) + sums[i][v];
            }
        } else {
            for (int64_t j = 0; j < many; j++) o[i * wide + j] = added[i * wide + j] + sums[i][j / LANES][j % LANES];
        }
    }
}

/* o = added + a b; a (rows, k), o and `added` (rows, n), b in panels. */
static void multiply(int64_t rows, int64_t k, int64_t n, const REAL *a, const REAL *panels, const REAL *added, REAL *o) {
    for (int64_t c = 0; c < n; c += PANEL, panels += k * PANEL) {
        const int64_t many = n - c < PANEL ? n - c : PANEL;
        int64_t r = 0;
#define ROWS_OF(rows_of)                                                                                    \
    for (; r + (rows_of) <= rows; r += (rows_of))                                                           \
        block(rows_of, k, a + r * k, panels, added + r * n + c, o + r * n + c, n, many)
        if (NATIVE == 64) ROWS_OF(6);
        ROWS_OF(4);
        ROWS_OF(2);
        ROWS_OF(1);
#undef ROWS_OF
    }
}

/* U in panels of its columns, filled up with zeros. */
static void lay_out(int64_t n, const REAL *u, REAL *panels) {
    for (int64_t c = 0; c < n; c += PANEL)
        for (int64_t k = 0; k < 4 * n; k++, panels += PANEL) {
            const int64_t many = n - c < PANEL ? n - c : PANEL;
            for (int64_t j = 0; j < many; j++) panels[j] = u[k * n + c + j];
            for (int64_t j = many; j < PANEL; j++) panels[j] = 0;
        }
}

/* Likewise, turned. */
static void lay_out_turned(int64_t n, const REAL *u, REAL *panels) {
    for (int64_t c = 0; c < 4 * n; c += PANEL, panels += n * PANEL) {
        const int64_t many = 4 * n - c < PANEL ? 4 * n - c : PANEL;
        for (int64_t j = 0; j < PANEL; j += 4) {
            const REAL *from = u + (c + j) * n;
            int64_t k = 0;
            /* 4 n is a multiple of 4, so four rows are all there, or none. */
            if (j < many)
                for (; k + 4 <= n; k += 4) turn(from + k, n, panels + k * PANEL + j, PANEL);
            for (; k < n; k++)
                for (int64_t i = 0; i < 4; i++) panels[k * PANEL + j + i] = j < many ? from[i * n + k] : 0;
        }
    }
}

/* `added`, in the shape of the gates: by inputs and biases. The first of states and cells (the last, backwards) are there.
   `squashed` (places, examples, units): tanh of the cells. */
void forward(const Shape *of, const int64_t *reaching, const REAL *u, const REAL *added, REAL *gates, REAL *states,
             REAL *cells, REAL *squashed, REAL *room) {
    const int64_t n = of->units;
    lay_out_turned(n, u, room);
    for (int64_t step = 0, at = 0; step < of->places; step++) {
        const Place own = place_of(of, reaching, step, at);
        at += own.rows;
        REAL *a = gates + 4 * own.at * n;
        multiply(own.rows, n, 4 * n, states + own.before * n, room, added + 4 * own.at * n, a);
        for (int64_t r = 0; r < own.rows; r++) {
            REAL *i = a + 4 * r * n, *f = i + n, *g = f + n, *o = g + n, *s = squashed + (own.at + r) * n;
            const REAL *old = cells + (own.before + r) * n;
            REAL *c = cells + (own.behind + r) * n, *h = states + (own.behind + r) * n;
            APART for (int64_t j = 0; j < 2 * n; j++) i[j] = sigmoid_of(i[j]);
            APART for (int64_t j = 0; j < n; j++) g[j] = tanh_of(g[j]);
            APART for (int64_t j = 0; j < n; j++) o[j] = sigmoid_of(o[j]);
            APART for (int64_t j = 0; j < n; j++) c[j] = f[j] * old[j] + i[j] * g[j];
            APART for (int64_t j = 0; j < n; j++) s[j] = tanh_of(c[j]);
            APART for (int64_t j = 0; j < n; j++) h[j] = o[j] * s[j];
        }
    }
}

/* `da` gets the gradients of what is squashed to gates, dh and dc those of the states and cells before all places; what is
   behind all places has the gradients that are there, which are 0 of packed texts. dy (places, examples, units): of the
   states as results. */
void backward(const Shape *of, const int64_t *reaching, const REAL *u, const REAL *gates, const REAL *cells,
              const REAL *squashed, const REAL *dy, REAL *da, REAL *dh, REAL *dc, REAL *room) {
    const int64_t n = of->units;
    REAL *panels = room + of->examples * n, *sum = room;
    int64_t at = 0;
    if (reaching)
        for (int64_t step = 0; step < of->places; step++) at += reaching[step];
    lay_out(n, u, panels);
    for (int64_t step = of->places - 1; step >= 0; step--) {
        if (reaching) at -= reaching[step];
        const Place place = place_of(of, reaching, step, at);
        const int64_t each = place.rows * n;
        REAL *own = da + 4 * place.at * n;
        const REAL *d_own = dy + place.at * n;
        for (int64_t j = 0; j < each; j++) sum[j] = dh[j] + d_own[j];
        for (int64_t r = 0; r < place.rows; r++) {
            const REAL *i = gates + 4 * (place.at + r) * n, *f = i + n, *g = f + n, *o = g + n;
            const REAL *s = squashed + (place.at + r) * n, *old = cells + (place.before + r) * n, *d = sum + r * n;
            REAL *to = own + 4 * r * n, *by_cell = dc + r * n;
            APART for (int64_t j = 0; j < n; j++) {
                const REAL own_dc = by_cell[j] + d[j] * o[j] * (1 - s[j] * s[j]);
                to[j] = own_dc * g[j] * i[j] * (1 - i[j]);
                to[n + j] = own_dc * old[j] * f[j] * (1 - f[j]);
                to[2 * n + j] = own_dc * i[j] * (1 - g[j] * g[j]);
                to[3 * n + j] = d[j] * s[j] * o[j] * (1 - o[j]);
                by_cell[j] = own_dc * f[j];
            }
        }
        for (int64_t j = 0; j < each; j++) dh[j] = 0;
        multiply(place.rows, 4 * n, n, own, panels, dh, dh);
    }
}
