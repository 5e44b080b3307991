/* Planted bugs in datasets, which affect every run. unit/data/test_masked.c, which compares with
 * Megatron-LM's samples, must find those in masked datasets. */
#include "data/data.h"
#include "data/masked_dataset.h"
#include "mutants/mutants.h"

HOOK(Err, data_open, const DataConfig *c, Data **out) {
    DataConfig d = *c;
    MaskedConfig masked;
    if (mutant_is_named(M_seed_not_in_data)) d.seed = 1234;
    if (mutant_is_named(M_sentinels_shifted) && d.kind == DATASET_t5) {
        masked = *(const MaskedConfig *)d.kind_config;
        masked.tokens.sentinels++, masked.tokens.num_sentinels--;
        d.kind_config = &masked;
    }
    return __real_data_open(&d, out);
}

static void invert_lengths(int64_t *lengths, int64_t b, int64_t positions) {
    for (int64_t i = 0; lengths && i < b; i++) lengths[i] = positions - lengths[i];
}

HOOK(Err, data_batch, const Dataset *data, const int64_t *indices, int64_t n, Batch *out) {
    const Err e = __real_data_batch(data, indices, n, out);
    for (int64_t i = 0; mutant_is_named(M_sentence_label_inverted) && out->sentence_labels && i < n; i++)
        out->sentence_labels[i] = !out->sentence_labels[i];
    for (int64_t i = 0; mutant_is_named(M_loss_mask_inverted) && i < n * out->shape.positions; i++)
        out->loss_mask[i] = 1 - out->loss_mask[i];
    if (!mutant_is_named(M_padding_inverted)) return e;
    invert_lengths(out->lengths, n, out->shape.positions);
    invert_lengths(out->encoder_lengths, n, out->shape.encoder);
    return e;
}
