/* Logits that another program, transformers, computed in float64 for a converted model
 * (tools/oracle/hf_logits.py; the file's format is in docs/formats.md), and the verdict on ours.
 *
 * Both programs compute in float64, so a right conversion differs by rounding alone. The bound is the one of
 * parity.h: 8 max(moved, u sqrt(K)), with `moved` the largest distance by which the logits move, over three
 * draws, when every weight w becomes w (1 + u xi), xi standard normal, and K the longest sum of the forward.
 * Weights are first rounded to the type in which the reference has them, which is what an export to 16 bits
 * did; u is then 2^-53. Only where the reference's type is the wider one, so that weights were rounded on
 * their way here, is u the roundoff of ours. */
#ifndef ISOTRON_VALIDATE_REFERENCE_H
#define ISOTRON_VALIDATE_REFERENCE_H

#include "base/err.h"
#include "base/str.h"
#include "ckpt/safetensors.h"
#include "models/gpt.h"
#include "validate/compare.h"

typedef struct Reference {
    Safetensors *file;
    const int64_t *tokens; /* [samples, positions] */
    const double *logits;  /* [samples, positions, vocab] */
    int64_t samples, positions, vocab;
    DType weights; /* the narrowest type that holds all of the reference's weights */
} Reference;

/* Refuses a file that is not whole, and numbers that no model gives. */
Err reference_open(const char *path, Reference *);
void reference_close(Reference *); /* also after an error */

typedef struct ReferenceReport {
    Row logits;
    double roundoff, longest_sum; /* u, K */
    int64_t rounded;              /* weights that the reference's type does not hold */
} ReferenceReport;

/* A reference that does not fit the model is a user error. */
Err reference_judge(const Reference *, const Gpt *, ReferenceReport *);
void reference_print(const Reference *, const Gpt *, const ReferenceReport *, Str *out);

#endif
