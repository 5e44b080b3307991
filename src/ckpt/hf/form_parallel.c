/* Forms for parallel residuals. Each model type uses different keys for them. */
#include "ckpt/hf/form.h"

static void set_parallel(HfReader *r, const HfRow *row, ParallelResidual v) {
    hf_set_text(r, row->option, ParallelResidual_spellings[v]);
}

static void two_norms_read(HfReader *r, const HfRow *row) {
    set_parallel(r, row,
                 hf_get_flag(r, NULL, row->key, row->fallback != 0) ? PARALLEL_TWO_NORMS : PARALLEL_NONE);
}

static void two_norms_write(HfWriter *w, const HfRow *row) {
    hf_put_flag(w, row->key, w->config->parallel_residual == PARALLEL_TWO_NORMS);
}

/* ---- Falcon ---- With new_decoder_architecture, layers are parallel, with num_ln_in_parallel_attn norms and any
 * number of groups. Without new_decoder_architecture, layers are sequential if parallel_attn is false, and otherwise
 * parallel with one norm. The number of key and value heads is then either 1 or the number of query heads. */

static bool is_new_falcon(HfReader *r) { return hf_get_flag(r, NULL, "new_decoder_architecture", false); }

static void falcon_layers_read(HfReader *r, const HfRow *row) {
    static const char norms_key[] = "num_ln_in_parallel_attn";
    const bool is_new = is_new_falcon(r), parallel = hf_get_flag(r, NULL, "parallel_attn", true);
    const int64_t norms = hf_get_size(r, norms_key, is_new ? 2 : 1);
    if (is_new && !parallel) hf_refuse(r, "parallel_attn", "but new_decoder_architecture is always parallel");
    if (is_new && norms > 2) hf_refuse(r, norms_key, "neither 1 nor 2");
    if (!is_new && parallel && norms == 2) hf_refuse(r, norms_key, "but new_decoder_architecture is false");
    set_parallel(r, row, !parallel ? PARALLEL_NONE : norms == 2 ? PARALLEL_TWO_NORMS : PARALLEL_ONE_NORM);
}

static bool is_written_as_new(const Config *c) {
    return c->parallel_residual == PARALLEL_TWO_NORMS ||
           (c->parallel_residual == PARALLEL_ONE_NORM && c->num_query_groups > 1 &&
            c->num_query_groups < c->num_attention_heads);
}

static void falcon_layers_write(HfWriter *w, const HfRow *row) {
    const ParallelResidual parallel = w->config->parallel_residual;
    hf_put_flag(w, row->key, is_written_as_new(w->config));
    hf_put_flag(w, "parallel_attn", parallel != PARALLEL_NONE);
    if (parallel != PARALLEL_NONE)
        hf_put_size(w, "num_ln_in_parallel_attn", parallel == PARALLEL_TWO_NORMS ? 2 : 1);
    if (parallel == PARALLEL_TWO_NORMS) w->family = HF_FALCON_TWO_NORMS;
}

static void falcon_heads_read(HfReader *r, const HfRow *row) {
    const int64_t heads = hf_get_option(r, OPTION_num_attention_heads);
    const bool is_new = is_new_falcon(r), one = !is_new && hf_get_flag(r, NULL, "multi_query", true);
    const int64_t groups = one ? 1 : hf_get_size(r, row->key, heads);
    if (!is_new && !one && groups != heads)
        hf_refuse(r, row->key, "but without new_decoder_architecture and multi_query each head has a key");
    hf_set_flag(r, OPTION_group_query_attention, true);
    hf_set_size(r, row->option, groups);
}

static void falcon_heads_write(HfWriter *w, const HfRow *row) {
    const bool is_new = is_written_as_new(w->config), one = !is_new && w->config->num_query_groups == 1;
    if (!is_new) hf_put_flag(w, "multi_query", one);
    if (!one) hf_value_write(w, row);
}

const HfForm hf_form_two_norms = {two_norms_read, two_norms_write},
             hf_form_falcon_layers = {falcon_layers_read, falcon_layers_write},
             hf_form_falcon_heads = {falcon_heads_read, falcon_heads_write};
