/* Compares our logits with the logits that transformers computed in float64 for a converted model
 * (tools/oracle/hf_logits.py). docs/reference/formats.md describes the file format.
 *
 * Both programs compute in float64, so a correct conversion differs only by rounding. The bound is the same as
 * in parity.h: 8 max(moved, u sqrt(K)). `moved` is the largest change in the logits, over three draws, if every
 * weight w becomes w (1 + u xi) with a standard normal xi. K is the number of terms in the forward pass's
 * longest sum. Weights are first rounded to the reference's type, as in a 16-bit export, and u is then 2^-53.
 * If the reference's type is wider than our type, the import has rounded the weights, so u is the unit roundoff
 * of our type. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "ckpt/safetensors.h"
#include "models/model.h"
#include "parity/compare.h"

typedef struct Reference {
    Safetensors *file;
    Batch batch;          /* all samples, with every input that a model can have */
    const double *logits; /* [batch.b, rows, outputs] */
    /* The number of rows per sample, and the number of outputs per row: the number of positions and the
     * vocabulary size. For a task, they are 1 and the number of classes, or 1 and 1 for multiple choice. */
    int64_t rows, outputs;
    bool
        /* Whether the reference is for a task. The tokens of such a reference are checked against the model,
         * because the file does not contain the vocabulary size. */
        of_task;
    DType weights; /* the narrowest type that can represent all weights in the reference */
} Reference;

/* Reads a reference. Returns a user error if the file is incomplete, or if it contains values that are
 * invalid for every model. */
Err reference_open(const char *path, Reference *);
void reference_close(Reference *); /* must also be called after an error */

typedef struct ReferenceReport {
    Row logits;
    double roundoff, longest_sum; /* u and K */
    int64_t rounded;              /* number of weights that the reference's type cannot represent */
} ReferenceReport;

/* Returns a user error if the reference is not compatible with the model. */
Err reference_judge(const Reference *, const Config *, const Model *, ReferenceReport *);
void reference_print(const Reference *, const Derived *, const ReferenceReport *, Str *out);
