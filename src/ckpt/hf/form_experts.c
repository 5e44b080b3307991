/* Forms for experts in MoE models. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt/hf/form.h"

/* Reads the number of experts, which has two names in transformers. If a file contains both, the second takes
 * precedence. */
static void experts_read(HfReader *r, const HfRow *row) {
    const char *key = hf_member(r, NULL, row->word) ? row->word : row->key;
    hf_set_size(r, row->option, hf_get_size(r, key, (int64_t)row->fallback));
}

/* Reads a key whose value is a number, or a list that repeats the same number for each layer. */
static void one_for_all_read(HfReader *r, const HfRow *row) {
    const json_t *value = hf_member(r, NULL, row->key), *first = json_array_get(value, 0);
    bool same = json_is_integer(first) && json_integer_value(first) > 0;
    for (size_t i = 1; i < json_array_size(value) && same; i++)
        same = json_equal(json_array_get(value, i), first);
    if (!json_is_array(value)) return hf_value_read(r, row);
    if (!same) hf_refuse(r, row->key, "not the same positive number for each layer");
    hf_set_size(r, row->option, same ? json_integer_value(first) : 1);
}

/* Writes the experts' width, which is ffn_hidden_size by default. */
static void expert_width_write(HfWriter *w, const HfRow *row) {
    hf_put_size(w, row->key, w->config->moe_ffn_hidden_size);
}

/* Rejects a single expert per token: transformers would divide the expert's sigmoid by itself, which gives 1, but
 * Isotron keeps the sigmoid. */
static void several_experts_read(HfReader *r, const HfRow *row) {
    (void)row;
    if (hf_get_option(r, OPTION_moe_router_topk) == 1)
        hf_refuse(r, "num_experts_per_tok", "but this type of model needs two or more");
}

/* Reads whether sigmoids are divided by their sum. Isotron divides the sigmoids if and only if a token has
 * several experts. */
static void normalized_read(HfReader *r, const HfRow *row) {
    const bool several = hf_get_option(r, OPTION_moe_router_topk) > 1;
    if (hf_get_flag(r, NULL, row->key, row->fallback != 0) != several)
        hf_refuse(r, row->key,
                  several ? "but must be true if a token has several experts"
                          : "but must be false if a token has one expert");
}

static void normalized_write(HfWriter *w, const HfRow *row) {
    hf_put_flag(w, row->key, w->config->moe_router_topk > 1);
}

/* Reads quick GELU's factor. Isotron supports only the usual factor, 1.702. */
static void quick_gate_read(HfReader *r, const HfRow *row) {
    (void)row;
    if (hf_get_real(r, NULL, "swiglu_alpha", 1.702) != 1.702)
        hf_refuse(r, "swiglu_alpha", "not 1.702, the only value that is supported");
}

/* Reads the lower limit for the sum that normalizes the probabilities. Isotron has no such limit. */
static void small_norm_min_read(HfReader *r, const HfRow *row) {
    (void)row;
    if (hf_get_real(r, NULL, "moe_norm_min", 1e-12) > 1e-12)
        hf_refuse(r, "moe_norm_min", "more than 1e-12, the largest value that is supported");
}

static void router_groups_read(HfReader *r, const HfRow *row) {
    const int64_t groups = hf_get_size(r, row->key, (int64_t)row->fallback),
                  best = hf_get_size(r, "topk_group", row->choice),
                  topk = hf_get_option(r, OPTION_moe_router_topk);
    if (best > groups) hf_refuse(r, "topk_group", "more than n_group");
    if (groups == 1) return;
    hf_set_size(r, row->option, groups);
    hf_set_size(r, OPTION_moe_router_group_topk, best);
    /* transformers adds the two best scores of a group; Isotron adds topk / group-topk scores by default. */
    if (topk % best || topk / best != 2) hf_set_size(r, OPTION_moe_router_group_score_topk, 2);
}

static void router_groups_write(HfWriter *w, const HfRow *row) {
    const bool groups = i64_is_set(w->config->moe_router_num_groups);
    hf_put_size(w, row->key, groups ? w->config->moe_router_num_groups : 1);
    hf_put_size(w, "topk_group", groups ? w->config->moe_router_group_topk : 1);
}

/* Reads DeepSeek-V2's topk_method. With group_limited_greedy, a group's score is its best expert's score. */
static void best_groups_read(HfReader *r, const HfRow *row) {
    const char *method = hf_get_text(r, NULL, row->key, "greedy");
    const int64_t groups = hf_get_size(r, "n_group", 1), best = hf_get_size(r, "topk_group", 1);
    if (!strcmp(method, "greedy")) return;
    if (strcmp(method, "group_limited_greedy"))
        hf_refuse(r, row->key, "which is not supported (greedy and group_limited_greedy are)");
    if (best > groups) hf_refuse(r, "topk_group", "more than n_group");
    hf_set_size(r, row->option, groups);
    hf_set_size(r, OPTION_moe_router_group_topk, best);
    hf_set_size(r, OPTION_moe_router_group_score_topk, 1);
}

static void best_groups_write(HfWriter *w, const HfRow *row) {
    const bool groups = i64_is_set(w->config->moe_router_num_groups);
    hf_put(w, row->key, json_string(groups ? "group_limited_greedy" : "greedy"));
    if (groups) router_groups_write(w, &(HfRow){.key = "n_group"});
}

/* Reads the number of shared experts, each as wide as a routed expert. */
static void shared_experts_read(HfReader *r, const HfRow *row) {
    const int64_t experts = hf_get_size(r, row->key, (int64_t)row->fallback);
    hf_set_size(r, row->option, hf_get_multiple(r, row, experts, OPTION_moe_ffn_hidden_size));
}

static void shared_experts_write(HfWriter *w, const HfRow *row) {
    hf_put_size(w, row->key, w->config->derived.moe_shared_size / w->config->derived.moe_ffn_hidden_size);
}

/* Reads the shared expert's width. The value 0 means that there is no shared expert. */
static void shared_width_read(HfReader *r, const HfRow *row) {
    const int64_t width = hf_get_count(r, row->key, (int64_t)row->fallback);
    if (width) hf_set_size(r, row->option, width);
}

/* ---- layers with experts ---- */

bool *hf_get_listed_layers(HfReader *r, const char *key, int64_t layers) {
    bool *found = mem_zero((size_t)layers, sizeof *found);
    const json_t *list = key ? hf_member(r, NULL, key) : NULL;
    if (list && !json_is_array(list)) hf_refuse(r, key, "not a list");
    for (size_t k = 0; k < json_array_size(list); k++) {
        const json_t *layer = json_array_get(list, k);
        const int64_t i = json_is_integer(layer) ? json_integer_value(layer) : -1;
        if (i < 0)
            hf_refuse(r, key, "not a list of layer numbers");
        else if (i < layers)
            found[i] = true;
    }
    return found;
}

/* Sets moe-layer-freq to a pattern such as "[0,1,1]". Layer i is dense (0) if i < first or i > last, if i + 1 is not a
 * multiple of `step`, or if the list in the key `dense` contains i. */
static void set_moe_layers(HfReader *r, int64_t first, int64_t last, int64_t step, const char *dense) {
    const int64_t layers = hf_get_layers(r);
    bool *moe = hf_get_listed_layers(r, dense, layers);
    for (int64_t i = 0; i < layers; i++) moe[i] = i >= first && i <= last && (i + 1) % step == 0 && !moe[i];
    hf_set_pattern(r, OPTION_moe_layer_freq, moe, layers);
    free(moe);
}

static void first_dense_read(HfReader *r, const HfRow *row) {
    set_moe_layers(r, hf_get_count(r, row->key, (int64_t)row->fallback), INT64_MAX, 1, NULL);
}

static void first_dense_write(HfWriter *w, const HfRow *row) {
    int64_t i = 0;
    while (i < w->config->num_layers && !w->config->derived.layer_moe[i]) i++;
    hf_put_size(w, row->key, i);
}

/* Reads a list that names each layer's MLP. Without this list, first_k_dense_replace is the number of dense layers. */
static void layers_by_name_read(HfReader *r, const HfRow *row) {
    const json_t *names = hf_member(r, NULL, row->key);
    const int64_t layers = hf_get_layers(r);
    bool *moe = mem_zero((size_t)layers, sizeof *moe);
    if (!names) {
        set_moe_layers(r, hf_get_count(r, "first_k_dense_replace", (int64_t)row->fallback), INT64_MAX, 1,
                       NULL);
    } else {
        bool known = json_array_size(names) == (size_t)layers;
        for (int64_t i = 0; i < layers && known; i++) {
            const char *name = json_string_value(json_array_get(names, (size_t)i));
            moe[i] = name && !strcmp(name, "sparse");
            known = moe[i] || (name && !strcmp(name, "dense"));
        }
        if (!known) hf_refuse(r, row->key, "not a list with dense or sparse for each layer");
        hf_set_pattern(r, row->option, moe, layers);
    }
    free(moe);
}

static void layers_by_name_write(HfWriter *w, const HfRow *row) {
    json_t *names = json_array();
    for (int64_t i = 0; i < w->config->num_layers; i++)
        json_array_append_new(names, json_string(w->config->derived.layer_moe[i] ? "sparse" : "dense"));
    hf_put(w, row->key, names);
}

static void sparse_layers_read(HfReader *r, const HfRow *row) {
    set_moe_layers(r, 0, INT64_MAX, hf_get_size(r, row->key, (int64_t)row->fallback), "mlp_only_layers");
}

/* Returns the indices of the MoE layers if `moe` is true, and otherwise those of the dense layers. */
static json_t *layer_numbers(const Config *c, bool moe) {
    json_t *list = json_array();
    for (int64_t i = 0; i < c->num_layers; i++)
        if (c->derived.layer_moe[i] == moe) json_array_append_new(list, json_integer(i));
    return list;
}

static void sparse_layers_write(HfWriter *w, const HfRow *row) {
    hf_put_size(w, row->key, 1);
    hf_put(w, "mlp_only_layers", layer_numbers(w->config, false));
}

/* Reads the list of layers that have experts. Without a list, layers at a regular interval have experts. */
static void moe_layers_read(HfReader *r, const HfRow *row) {
    static const char step[] = "interleave_moe_layer_step";
    const bool listed = hf_member(r, NULL, row->key) != NULL;
    const int64_t layers = hf_get_layers(r), each = listed ? 1 : hf_get_size(r, step, (int64_t)row->fallback);
    bool *moe = hf_get_listed_layers(r, row->key, layers);
    int64_t n = 0;
    for (int64_t i = 0; i < layers; i++) n += moe[i] = listed ? moe[i] : (i + 1) % each == 0;
    if (!n) hf_refuse(r, listed ? row->key : step, "but every layer in this type of model must have experts");
    hf_set_pattern(r, row->option, moe, layers);
    free(moe);
}

static void moe_layers_write(HfWriter *w, const HfRow *row) {
    hf_put(w, row->key, layer_numbers(w->config, true));
}

/* Reads the number of the first layer with experts. Other keys contain the number of the last such layer (-1 means the
 * model's last layer) and the interval between such layers. */
static void layer_range_read(HfReader *r, const HfRow *row) {
    static const char end[] = "moe_layer_end_index";
    const json_t *last = hf_member(r, NULL, end);
    const bool open = !last || (json_is_integer(last) && json_integer_value(last) == -1);
    set_moe_layers(r, hf_get_count(r, row->key, (int64_t)row->fallback),
                   open ? INT64_MAX : hf_get_count(r, end, 0), hf_get_size(r, "moe_layer_interval", 1), NULL);
}

static void layer_range_write(HfWriter *w, const HfRow *row) {
    const bool *moe = w->config->derived.layer_moe;
    int64_t first = -1, last = -1, step = 1;
    for (int64_t i = 0; i < w->config->num_layers; i++) {
        if (!moe[i]) continue;
        if (first < 0) first = i;
        if (last >= 0) step = i - last;
        last = i;
    }
    hf_put_size(w, row->key, first);
    hf_put_size(w, "moe_layer_end_index", last);
    hf_put_size(w, "moe_layer_interval", step);
}

const HfForm hf_form_experts = {experts_read, hf_value_write},
             hf_form_expert_width = {hf_value_read, expert_width_write},
             hf_form_several_experts = {several_experts_read, NULL},
             hf_form_normalized = {normalized_read, normalized_write},
             hf_form_one_for_all = {one_for_all_read, hf_value_write},
             hf_form_quick_gate = {quick_gate_read, NULL},
             hf_form_small_norm_min = {small_norm_min_read, NULL},
             hf_form_router_groups = {router_groups_read, router_groups_write},
             hf_form_best_groups = {best_groups_read, best_groups_write},
             hf_form_shared_experts = {shared_experts_read, shared_experts_write},
             hf_form_shared_width = {shared_width_read, hf_value_write},
             hf_form_first_dense = {first_dense_read, first_dense_write},
             hf_form_layers_by_name = {layers_by_name_read, layers_by_name_write},
             hf_form_sparse_layers = {sparse_layers_read, sparse_layers_write},
             hf_form_moe_layers = {moe_layers_read, moe_layers_write},
             hf_form_layer_range = {layer_range_read, layer_range_write};
