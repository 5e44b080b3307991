/* QK clip (Kimi K2, 2025). The method follows Megatron-LM's core/optimizer/qk_clip.py, and clip_qk in
 * attention.py. If a head's largest score in a step exceeds the threshold, the head's query and key rows are
 * multiplied by powers of threshold / score after the update. The query heads in a group share one key, so the
 * group's largest score determines the factors for the whole group. */
#pragma once

#include "param/param.h"
#include "param/state.h"

typedef struct QkClipSpec {
    bool measures; /* whether to measure the largest scores of a step, for the log or for clipping */
    bool clips;
    double threshold;
    double alpha; /* exponent for queries; the exponent for keys is 1 - alpha */
} QkClipSpec;

/* Selects rows [begin, end) of each group of heads in a weight with `rows` rows per group. */
typedef struct QkClipRows {
    Param *weight;
    int64_t rows, begin, end;
    double exponent;
} QkClipRows;

enum { QK_CLIP_PARTS = 3 };

typedef struct QkClip {
    double threshold;
    const Tensor *max; /* F64 [heads of the model] */
    int64_t heads;     /* number of query heads per group */
    int n;
    QkClipRows part[QK_CLIP_PARTS];
} QkClip;

/* Registers a QkClip. The QkClip must outlive the registry. */
void qk_clip_add(Registry *, QkClip *);
