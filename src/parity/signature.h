/* Describes how a wrong tensor differs from the correct one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Suspect {
    const double *x, *y; /* [n]: actual and expected values */
    int64_t n;
    const double *summands; /* [ranks, n]: the summand of y from each rank, or NULL if y is not a sum */
    int ranks, rank;        /* rank: the rank that has x */
} Suspect;

/* Describes x as not finite, scaled by c, entirely zero or zero at the end, lacking a rank's summand, equal
 * to its own rank's summand, or permuted. If none of these applies, states the relative difference. */
void signature_of(Suspect, char *out, size_t size);
