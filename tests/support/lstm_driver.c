/* Calls the passes of an LSTM on many shapes, each array in memory of exactly its size: for the sanitizers. Results are
   compared with sums over one number after the other. */

#include LSTM_C

#include <stdio.h>

#include "filled.h"

static double s(double x) { return 1 / (1 + exp(-x)); }

static void near(REAL got, double wanted) {
    if (!(fabs((double)got - wanted) <= 1e-4 * (1 + fabs(wanted)))) {
        fprintf(stderr, "%g in the place of %g\n", (double)got, wanted);
        exit(1);
    }
}

static void both_ways(int64_t places, int64_t examples, int64_t units, int64_t backwards) {
    const Shape of = {places, examples, units, backwards};
    const int64_t n = units, each = examples * n;
    REAL *u = filled(4 * n * n, 1), *added = filled(4 * places * each, 1), *gates = filled(4 * places * each, 0);
    REAL *states = filled((places + 1) * each, 0), *cells = filled((places + 1) * each, 0);
    REAL *squashed = filled(places * each, 0), *room = filled(room_for(&of), 0);
    REAL *dy = filled(places * each, 1), *da = filled(4 * places * each, 0), *dh = filled(each, 1), *dc = filled(each, 1);
    for (int64_t j = 0; j < each; j++) {
        states[(backwards ? places : 0) * each + j] = (REAL)DRAWN;
        cells[(backwards ? places : 0) * each + j] = (REAL)DRAWN;
    }
    double *own_dh = malloc((size_t)each * sizeof(double)), *own_dc = malloc((size_t)each * sizeof(double));
    for (int64_t j = 0; j < each; j++) own_dh[j] = (double)dh[j], own_dc[j] = (double)dc[j];
    forward(&of, 0, u, added, gates, states, cells, squashed, room);
    for (int64_t step = 0; step < places; step++) {
        const int64_t t = backwards ? places - 1 - step : step, before = backwards ? t + 1 : t, behind = 2 * t + 1 - before;
        for (int64_t r = 0; r < examples; r++)
            for (int64_t j = 0; j < n; j++) {
                double a[4];
                for (int g = 0; g < 4; g++) {
                    a[g] = (double)added[4 * t * each + 4 * r * n + g * n + j];
                    for (int64_t k = 0; k < n; k++)
                        a[g] += (double)states[before * each + r * n + k] * (double)u[(g * n + j) * n + k];
                }
                const double c = s(a[1]) * (double)cells[before * each + r * n + j] + s(a[0]) * tanh(a[2]);
                near(cells[behind * each + r * n + j], c);
                near(states[behind * each + r * n + j], s(a[3]) * tanh(c));
            }
    }
    backward(&of, 0, u, gates, cells, squashed, dy, da, dh, dc, room);
    for (int64_t step = places - 1; step >= 0; step--) {
        const int64_t t = backwards ? places - 1 - step : step, before = backwards ? t + 1 : t;
        for (int64_t r = 0; r < examples; r++)
            for (int64_t j = 0; j < n; j++) {
                const int64_t at = r * n + j, gate = 4 * t * each + 4 * r * n + j;
                const double i = (double)gates[gate], f = (double)gates[gate + n], g = (double)gates[gate + 2 * n];
                const double o = (double)gates[gate + 3 * n], q = (double)squashed[t * each + at];
                const double d = own_dh[at] + (double)dy[t * each + at], by_cell = own_dc[at] + d * o * (1 - q * q);
                near(da[gate], by_cell * g * i * (1 - i));
                near(da[gate + n], by_cell * (double)cells[before * each + at] * f * (1 - f));
                near(da[gate + 2 * n], by_cell * i * (1 - g * g));
                near(da[gate + 3 * n], d * q * o * (1 - o));
                own_dc[at] = by_cell * f;
            }
        for (int64_t r = 0; r < examples; r++)
            for (int64_t k = 0; k < n; k++) {
                own_dh[r * n + k] = 0;
                for (int64_t j = 0; j < 4 * n; j++)
                    own_dh[r * n + k] += (double)da[4 * t * each + 4 * r * n + j] * (double)u[j * n + k];
            }
    }
    for (int64_t j = 0; j < each; j++) near(dh[j], own_dh[j]), near(dc[j], own_dc[j]);
    REAL *all[] = {u, added, gates, states, cells, squashed, room, dy, da, dh, dc};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(own_dh), free(own_dc);
}

/* Texts of several lengths, packed, have the numbers that each has alone. */
static void packed(int64_t places, int64_t examples, int64_t units) {
    const Shape of = {places, examples, units, 0};
    const int64_t n = units;
    int64_t *reaching = malloc((size_t)places * sizeof *reaching), rows = 0;
    for (int64_t t = 0; t < places; t++) reaching[t] = examples > 2 * t ? examples - 2 * t : 1, rows += reaching[t];
    const int64_t all = (examples + rows) * n;
    REAL *u = filled(4 * n * n, 1), *added = filled(4 * rows * n, 1), *gates = filled(4 * rows * n, 0);
    REAL *states = filled(all, 0), *cells = filled(all, 0), *squashed = filled(rows * n, 0);
    REAL *room = filled(room_for(&of), 0), *dy = filled(rows * n, 1), *da = filled(4 * rows * n, 0);
    REAL *dh = filled(examples * n, 0), *dc = filled(examples * n, 0);
    for (int64_t j = 0; j < examples * n; j++) states[j] = cells[j] = dh[j] = dc[j] = 0;
    forward(&of, reaching, u, added, gates, states, cells, squashed, room);
    backward(&of, reaching, u, gates, cells, squashed, dy, da, dh, dc, room);
    for (int64_t r = 0; r < examples; r++) {
        Shape alone = {0, 1, n, 0};
        while (alone.places < places && reaching[alone.places] > r) alone.places++;
        const int64_t length = alone.places;
        REAL *own_added = filled(4 * length * n, 0), *own_gates = filled(4 * length * n, 0);
        REAL *own_states = filled((length + 1) * n, 0), *own_cells = filled((length + 1) * n, 0);
        REAL *own_squashed = filled(length * n, 0), *own_room = filled(room_for(&alone), 0);
        REAL *own_dy = filled(length * n, 0), *own_da = filled(4 * length * n, 0);
        REAL *own_dh = filled(n, 0), *own_dc = filled(n, 0);
        for (int64_t t = 0, at = 0; t < length; at += reaching[t++]) {
            memcpy(own_added + 4 * t * n, added + 4 * (at + r) * n, (size_t)(4 * n) * sizeof *added);
            memcpy(own_dy + t * n, dy + (at + r) * n, (size_t)n * sizeof *dy);
        }
        for (int64_t j = 0; j < n; j++) own_states[j] = own_cells[j] = own_dh[j] = own_dc[j] = 0;
        forward(&alone, 0, u, own_added, own_gates, own_states, own_cells, own_squashed, own_room);
        backward(&alone, 0, u, own_gates, own_cells, own_squashed, own_dy, own_da, own_dh, own_dc, own_room);
        for (int64_t t = 0, at = 0; t < length; at += reaching[t++]) {
            for (int64_t j = 0; j < n; j++) {
                near(states[(examples + at + r) * n + j], (double)own_states[(t + 1) * n + j]);
                near(cells[(examples + at + r) * n + j], (double)own_cells[(t + 1) * n + j]);
            }
            for (int64_t j = 0; j < 4 * n; j++) near(da[4 * (at + r) * n + j], (double)own_da[4 * t * n + j]);
        }
        REAL *own[] = {own_added, own_gates, own_states, own_cells, own_squashed, own_room, own_dy, own_da, own_dh, own_dc};
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) free(own[i]);
    }
    REAL *given[] = {u, added, gates, states, cells, squashed, room, dy, da, dh, dc};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) free(given[i]);
    free(reaching);
}

int main(void) {
    const int64_t units[] = {1, 3, 4, 8, 15, 16, 17, 31, 33, 64, 65};
    int shapes = 0;
    for (size_t n = 0; n < sizeof units / sizeof *units; n++)
        for (int64_t examples = 1; examples < 14; examples += 3)
            for (int64_t places = 1; places < 4; places++, shapes += 3) {
                for (int64_t backwards = 0; backwards < 2; backwards++)
                    both_ways(places, examples, units[n], backwards);
                packed(places, examples, units[n]);
            }
    printf("%d shapes\n", shapes);
    return 0;
}
