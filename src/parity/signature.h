/* Describes the difference between a wrong tensor and the correct tensor. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Suspect {
    const double *x, *y; /* [n], the actual and the expected values */
    int64_t n;
    const double *summands; /* [ranks, n], each rank's summand of y, or NULL if y is not a sum */
    int ranks, rank;        /* rank: the rank that holds x */
} Suspect;

/* Describes x as not finite, scaled by c, entirely zero or zero at the end, missing a rank's summand, equal to its own
 * rank's summand, or permuted. If no description applies, states the relative difference. */
void signature_of(Suspect, char *out, size_t size);
