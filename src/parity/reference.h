/* Compares our logits with those that transformers computed in float64 for a converted model
 * (tools/oracle/hf_logits.py; file format: docs/reference/formats.md).
 *
 * Both programs compute in float64, so a correct conversion differs only by rounding. The bound is that of parity.h: 8
 * max(moved, u sqrt(K)). `moved` is the largest movement of the logits, over three draws, when every weight w becomes
 * w (1 + u xi), xi standard normal; the longest sum of the forward pass has K terms. Weights are first rounded to the
 * reference's type, as an export to 16 bits did; u is then 2^-53. If the reference's type is wider than ours, so that
 * weights were rounded on import, u is the roundoff of our type. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "ckpt/safetensors.h"
#include "models/model.h"
#include "parity/compare.h"

typedef struct Reference {
    Safetensors *file;
    Batch batch;          /* all samples, with every input that a model may have */
    const double *logits; /* [batch.b, rows, outputs] */
    /* Rows per sample, and outputs per row: positions and vocabulary size; with a task, 1 and the number of
     * classes; with a multiple-choice task, 1 and 1. */
    int64_t rows, outputs;
    bool
        /* whether the reference has a task; its tokens are checked against the model, because the file does
         * not contain the vocabulary size */
        of_task;
    DType weights; /* the narrowest type that can hold all of the reference's weights */
} Reference;

/* Rejects incomplete files and values that no model can produce. */
Err reference_open(const char *path, Reference *);
void reference_close(Reference *); /* also after an error */

typedef struct ReferenceReport {
    Row logits;
    double roundoff, longest_sum; /* u, K */
    int64_t rounded;              /* number of weights that the reference's type cannot represent */
} ReferenceReport;

/* Returns a user error if the reference does not fit the model. */
Err reference_judge(const Reference *, const Config *, const Model *, ReferenceReport *);
void reference_print(const Reference *, const Derived *, const ReferenceReport *, Str *out);
