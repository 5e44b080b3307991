/* Determines which layers belong to each pipeline stage. A pipeline of p ranks with v chunks per rank has v * p
 * virtual stages. Stage i is chunk i / p of rank i % p. Source: Megatron-LM
 * core/transformer/transformer_block.py (get_num_layers_to_build) and pipeline_parallel_layer_layout.py. */
#pragma once

#include "models/model.h"

typedef struct PipelineLayout {
    int ranks, chunks; /* pipeline-parallel size, and number of virtual stages per rank */
    StagePart *stages; /* [chunks * ranks]: the index is chunk * ranks + rank */
} PipelineLayout;

/* The Config must satisfy the rules of CHECK_LAYOUT. An uneven split is a user error, and so is an invalid
 * --pipeline-model-parallel-layout. The stages are allocated in the arena. */
Err pipeline_layout(const Config *, Arena *, PipelineLayout *out);
