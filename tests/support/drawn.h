/* Numbers that drivers draw, the same in every run. */

#include <stdint.h>

static uint64_t state = 1;

static uint64_t draw(void) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return state >> 33;
}

/* A number from -1 to 1. */
#define DRAWN ((double)(draw() % 2001) / 1000 - 1)
