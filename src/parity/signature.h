/* Describes the difference between a wrong tensor and the correct tensor. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Suspect {
    const double *x, *y; /* [n], the actual and the expected values */
    int64_t n;
    const double *summands; /* [ranks, n], the summand of y from each rank, or NULL if y is not a sum */
    int ranks, rank;        /* rank: the rank that has x */
} Suspect;

/* Describes x as not finite, scaled by c, entirely zero or zero at the end, without a rank's summand, equal to the
 * summand of its rank, or permuted. If no description applies, states the relative difference. */
void signature_of(Suspect, char *out, size_t size);
