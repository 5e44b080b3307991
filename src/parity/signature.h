/* Describes how a wrong tensor differs from the correct one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Suspect {
    const double *x, *y; /* [n]: actual and expected values */
    int64_t n;
    const double *summands; /* [ranks, n]: the summand of y from each rank; NULL: y is not a sum */
    int ranks, rank;        /* rank: that of x */
} Suspect;

/* One of: not finite, scaled by c, all or the tail zero, a rank's summand missing, only the rank's own
 * summand, permuted; else the relative difference. */
void signature_of(Suspect, char *out, size_t size);
