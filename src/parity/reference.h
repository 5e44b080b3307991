/* Compares our logits with the logits that transformers computed in float64 for a converted model
 * (tools/oracle/hf_logits.py). The file format is in docs/reference/formats.md.
 *
 * Both programs compute in float64, so a correct conversion differs only by rounding. The bound is that of parity.h:
 * 8 max(moved, u sqrt(K)). `moved` is the largest change of the logits, over three draws, if every weight w becomes w
 * (1 + u xi) with a standard normal xi. The longest sum of the forward pass has K terms. Weights are first rounded to
 * the reference's type, as in an export to 16 bits, and u is then 2^-53. If the reference's type is wider than our
 * type, the import has rounded the weights, and u is the roundoff of our type. */
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
    /* The number of rows per sample, and of outputs per row. These are the positions and the vocabulary size. With a
     * task, they are 1 and the number of classes, and with a multiple-choice task, 1 and 1. */
    int64_t rows, outputs;
    bool
        /* Whether the reference has a task. Its tokens are then checked against the model, because the file does not
         * contain the vocabulary size. */
        of_task;
    DType weights; /* the narrowest type that can represent all weights of the reference */
} Reference;

/* Reads a reference. Returns a user error if the file is incomplete, or if it contains values that no model can
 * compute. */
Err reference_open(const char *path, Reference *);
void reference_close(Reference *); /* call this function also after an error */

typedef struct ReferenceReport {
    Row logits;
    double roundoff, longest_sum; /* u and K */
    int64_t rounded;              /* number of weights that the reference's type cannot represent */
} ReferenceReport;

/* Returns a user error if the reference does not fit the model. */
Err reference_judge(const Reference *, const Config *, const Model *, ReferenceReport *);
void reference_print(const Reference *, const Derived *, const ReferenceReport *, Str *out);
