/* A source of known entropy: a Markov chain over 16 states. */
#pragma once

#include <math.h>
#include <string.h>

#include "base/philox.h"

enum { STATES = 16 };

typedef struct Source {
    double p[STATES][STATES], pi[STATES], entropy_rate;
} Source;

static inline Source source_new(void) {
    Source s;
    for (int x = 0; x < STATES; x++) {
        double sum = 0;
        for (int y = 0; y < STATES; y++)
            sum += s.p[x][y] = exp(1.5 * philox_normal(17, 1, (uint64_t)(x * STATES + y)));
        for (int y = 0; y < STATES; y++) s.p[x][y] /= sum;
        s.pi[x] = 1.0 / STATES;
    }
    for (int i = 0; i < 2000;
         i++) { /* each step reduces the distance from the stationary distribution by about half */
        double next[STATES] = {0};
        for (int x = 0; x < STATES; x++)
            for (int y = 0; y < STATES; y++) next[y] += s.pi[x] * s.p[x][y];
        memcpy(s.pi, next, sizeof next);
    }
    s.entropy_rate = 0;
    for (int x = 0; x < STATES; x++)
        for (int y = 0; y < STATES; y++) s.entropy_rate -= s.pi[x] * s.p[x][y] * log(s.p[x][y]);
    return s;
}

static inline int draw(const double *p, double uniform) {
    int y = 0;
    for (double sum = p[0]; sum < uniform && y + 1 < STATES; sum += p[y]) y++;
    return y;
}
