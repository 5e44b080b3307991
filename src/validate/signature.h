/* What a wrong tensor looks like next to the right one. */
#ifndef ISOTRON_VALIDATE_SIGNATURE_H
#define ISOTRON_VALIDATE_SIGNATURE_H

#include <stddef.h>
#include <stdint.h>

typedef struct Suspect {
    const double *x, *y; /* [n]: what is there, what should be */
    int64_t n;
    const double *summands; /* [ranks, n]: what each rank should have added to y; NULL: y is no sum */
    int ranks, rank;        /* rank: the one that holds x */
} Suspect;

/* One of: not finite, scaled by c, all or the tail zero, summand of a rank missing, only a rank's own
 * summand, permuted; else by how much it differs. */
void signature_of(Suspect, char *out, size_t size);

#endif
