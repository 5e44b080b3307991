/* Tables for rotary position embeddings (Su et al., RoFormer, 2021). Megatron-LM
 * core/models/common/embeddings/rotary_pos_embedding.py:
 *
 *   inv_freq_i = base^(-2i/dim), dim = head_dim * percent.
 *
 * Positions are divided by the interpolation factor. Llama-3 scaling divides frequencies by `factor` if their
 * wavelength is above original/low, keeps frequencies whose wavelength is below original/high, and blends in
 * between. YaRN (Peng et al., 2023; yarn_rotary_pos_embedding.py) divides the frequencies of channels that
 * rotate fewer than `slow` times over the original context length. YaRN keeps the frequencies of channels
 * that rotate more than `fast` times, and blends linearly in between.
 *
 * Instead of rotations, a table can contain temperatures, by which queries are multiplied (transformers,
 * models/llama4 and models/ministral3): the cosines of position p are 1 + scale ln(1 + floor((p + first) /
 * floor)), and the sines are 0. */
#pragma once

#include "param/state.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

typedef struct RopeSpec {
    int64_t dim; /* number of rotated channels per head; even */
    double base, interpolation;
    /* [dim/2]: divisors for the frequencies (Ding et al., LongRoPE, 2024); NULL if there are none */
    const double *divisor;
    double amplitude; /* factor by which rotated channels are scaled */
    struct {
        double factor; /* 0 means no Llama-3 scaling */
        double low, high, original;
    } llama3;
    struct {
        double factor; /* 0 means no YaRN */
        double fast, slow, original;
        int64_t rounds; /* nonzero if the bounds of the range of blended channels are rounded to integers */
    } yarn;
    struct {
        double scale; /* 0 means rotation instead of temperatures */
        double floor, first;
    } temperature;
} RopeSpec;

/* Returns inv_freq_i for i in [0, dim/2), without interpolation. */
double rope_frequency(const RopeSpec *, int64_t i);

typedef struct RopeTable {
    Tensor cos, sin; /* [positions, dim/2], F64 or F32; persistent on the device */
} RopeTable;

RopeTable rope_table_new(Device *, DType, const RopeSpec *, int64_t positions);
void rope_table_free(Device *, RopeTable *);
/* Returns the registry's table for this spec. Equal specs share one table. states_allocate computes the tables. */
const RopeTable *rope_table(Registry *, RopeSpec);
