/* Converts the keys for sliding windows: sliding_window, use_sliding_window, max_window_layers, sliding_window_pattern
 * and layer_types. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt/hf/form.h"

/* Returns whether max_window_layers has an effect. */
static bool reads_first(const HfRow *row) {
    return row->choice == HF_WINDOWS_LATE || row->choice == HF_WINDOWS_EVEN || row->choice == HF_WINDOWS_LAST;
}

/* Returns whether layers without a window have no rotation. */
static bool only_windows_rotate(const HfRow *row) {
    return row->choice == HF_WINDOWS_ROTATED || row->choice == HF_WINDOWS_ROTATED_OR_NONE;
}

/* Returns whether use_sliding_window has an effect. */
static bool is_switched(const HfRow *row) {
    return (reads_first(row) && row->choice != HF_WINDOWS_LAST) || row->choice == HF_WINDOWS_SWITCHED ||
           row->choice == HF_WINDOWS_UNROTATED;
}

/* Returns whether every n-th layer has full attention, and all other layers have a window. */
static bool is_periodic(const HfRow *row) {
    return row->choice == HF_WINDOWS_ALTERNATE || row->choice == HF_WINDOWS_PERIOD ||
           row->choice == HF_WINDOWS_FOURTH || row->choice == HF_WINDOWS_AFTER_FIRST ||
           row->choice == HF_WINDOWS_LISTED || only_windows_rotate(row);
}

/* Returns whether layer_types decides which layers have a window. */
static bool reads_layers(const HfRow *row) {
    return reads_first(row) || is_periodic(row) || row->choice == HF_WINDOWS_UNROTATED;
}

/* Returns whether layer_types gives layer i a window. If there is no layer_types, returns `otherwise`. */
static bool is_named(HfReader *r, const json_t *types, int64_t i, bool otherwise) {
    const char *word = json_string_value(json_array_get(types, (size_t)i));
    if (!types) return otherwise;
    if (word && !strcmp(word, "sliding_attention")) return true;
    if (word && (!strcmp(word, "full_attention") || !strcmp(word, "attention"))) return false;
    if (!r->err.code)
        r->err = err_user("'%s': layer_types has %s for layer %lld; only full_attention and "
                          "sliding_attention are supported",
                          r->path, word ? quote(word).s : "no text", (long long)i);
    return false;
}

/* Returns the period if is_periodic, and otherwise max_window_layers. */
static int64_t get_number(HfReader *r, const HfRow *row) {
    const bool has_list = hf_member(r, NULL, "layer_types") != NULL;
    if (row->choice == HF_WINDOWS_PERIOD) return hf_get_size(r, "sliding_window_pattern", 6);
    if (only_windows_rotate(row)) return has_list ? 1 : hf_get_size(r, "sliding_window_pattern", 4);
    if (row->choice == HF_WINDOWS_FOURTH) return 4;
    if (row->choice == HF_WINDOWS_LISTED) return INT64_MAX; /* all layers have a window */
    if (row->choice == HF_WINDOWS_LAST) return hf_get_count(r, "max_window_layers", 62);
    return reads_first(row) ? hf_get_count(r, "max_window_layers", 28) : 2;
}

/* Returns whether layer i has a window if the file has no layer_types. */
static bool is_windowed(HfReader *r, const HfRow *row, int64_t i, int64_t number) {
    if (row->choice == HF_WINDOWS_UNROTATED) return !hf_is_rotated(r, i);
    if (row->choice == HF_WINDOWS_LATE || row->choice == HF_WINDOWS_LAST) return i >= number;
    if (row->choice == HF_WINDOWS_AFTER_FIRST) return i % 4 != 0;
    if (row->choice == HF_WINDOWS_EVEN) return i % 2 == 0 && i < number;
    return is_periodic(row) ? (i + 1) % number != 0 : row->choice != HF_WINDOWS_NONE;
}

/* Returns the window size, which in Hugging Face includes the current token. 0 means no window. */
static int64_t get_window(HfReader *r, const HfRow *row) {
    const json_t *size = json_object_get(r->root, row->key);
    if (row->choice == HF_WINDOWS_NONE) return 0;
    if (is_switched(row) && !hf_get_flag(r, NULL, "use_sliding_window", false)) return 0;
    if (json_is_null(size) && row->choice == HF_WINDOWS_EVEN)
        hf_refuse(r, row->key, "but use_sliding_window is true");
    if (json_is_null(size) && row->choice == HF_WINDOWS_ROTATED_OR_NONE && hf_member(r, NULL, "layer_types"))
        return 0;
    if (json_is_null(size) && is_periodic(row))
        hf_refuse(r, row->key, "but transformers cannot run this type of model without it");
    return json_is_null(size) ? 0 : hf_get_size(r, row->key, (int64_t)row->fallback);
}

/* Reads which layers have a window. For some model types, transformers ignores layer_types. A file whose layer_types
 * contradicts the type is rejected. */
static void windows_read(HfReader *r, const HfRow *row) {
    const json_t *types = hf_member(r, NULL, "layer_types");
    const int64_t layers = hf_get_layers(r), size = get_window(r, row), number = get_number(r, row);
    bool *windowed = mem_zero((size_t)layers, sizeof *windowed),
         *full = mem_zero((size_t)layers, sizeof *full);
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)layers))
        hf_refuse(r, "layer_types", "not a list with one entry for each layer");
    for (int64_t i = 0; i < layers && !r->err.code; i++) {
        const bool usual = size && is_windowed(r, row, i, number), named = is_named(r, types, i, usual);
        if (named && !size)
            hf_refuse(r, "layer_types", "but in transformers this model has no window");
        else if (named != usual && !reads_layers(row))
            hf_refuse(r, "layer_types", "but transformers gives every layer of this type of model a window");
        r->windowed += named;
        windowed[i] = named, full[i] = !named;
    }
    if (r->windowed) str_printf(r->out, "window-size = %lld,0\n", (long long)size - 1);
    if (r->windowed && r->windowed < layers)
        hf_set_pattern(r, OPTION_window_attn_skip_freq, windowed, layers);
    if (size && only_windows_rotate(row)) hf_set_pattern(r, OPTION_no_rope_freq, full, layers);
    free(windowed), free(full);
}

/* Writes the window. In Hugging Face, a window's size includes the current token. In Megatron-LM, the size counts
 * only earlier tokens. */
static void windows_write(HfWriter *w, const HfRow *row) {
    const Derived *d = &w->config->derived;
    const int64_t layers = w->config->num_layers;
    int64_t full = 0;
    if (row->choice == HF_WINDOWS_NONE) return;
    while (full < layers && !(d->layer_windowed[full] && d->window_left >= 0)) full++;
    const bool any = full < layers;
    if (any)
        hf_put_size(w, row->key, d->window_left + 1);
    else if (!is_periodic(row) || (row->choice == HF_WINDOWS_ROTATED_OR_NONE && d->layer_rotated[0]))
        hf_put(w, row->key, json_null());
    if (is_switched(row)) hf_put_flag(w, "use_sliding_window", any);
    if (!reads_layers(row) || !(any || is_periodic(row))) return;
    if (row->choice == HF_WINDOWS_LATE || row->choice == HF_WINDOWS_LAST)
        hf_put_size(w, "max_window_layers", full);
    json_t *types = json_array();
    for (int64_t i = 0; i < layers; i++)
        json_array_append_new(
            types, json_string(any && d->layer_windowed[i] ? "sliding_attention" : "full_attention"));
    hf_put(w, "layer_types", types);
}

/* Reads GPT-Neo's list of attention types. Each item consists of a list of words and the number of times to repeat the
 * list. */
static void local_layers_read(HfReader *r, const HfRow *row) {
    static const char key[] = "attention_types";
    const int64_t layers = hf_get_layers(r), size = hf_get_size(r, row->key, (int64_t)row->fallback);
    json_t *usual = json_pack("[[[s,s],i]]", "global", "local", 12);
    const json_t *types = hf_member(r, NULL, key), *list = types ? types : usual;
    bool *local = mem_zero((size_t)layers, sizeof *local), fits = json_is_array(list);
    int64_t n = 0;
    for (size_t i = 0; fits && i < json_array_size(list); i++) {
        const json_t *words = json_array_get(json_array_get(list, i), 0);
        const int64_t times = json_integer_value(json_array_get(json_array_get(list, i), 1));
        const int64_t count = (int64_t)json_array_size(words);
        fits = count > 0 && times >= 0 && times <= layers && n + times * count <= layers;
        for (int64_t k = 0; fits && k < times * count; k++) {
            const char *word = json_string_value(json_array_get(words, (size_t)(k % count)));
            fits = word && (!strcmp(word, "local") || !strcmp(word, "global"));
            local[n++] = fits && !strcmp(word, "local");
            r->windowed += local[n - 1];
        }
    }
    if (!fits || n != layers) hf_refuse(r, key, "not a list that names global or local for each layer");
    if (r->windowed) str_printf(r->out, "window-size = %lld,0\n", (long long)size - 1);
    if (r->windowed && r->windowed < layers) hf_set_pattern(r, OPTION_window_attn_skip_freq, local, layers);
    free(local), json_decref(usual);
}

static void local_layers_write(HfWriter *w, const HfRow *row) {
    const Derived *d = &w->config->derived;
    json_t *words = json_array();
    const bool any = d->window_left >= 0;
    for (int64_t i = 0; i < w->config->num_layers; i++)
        json_array_append_new(words, json_string(any && d->layer_windowed[i] ? "local" : "global"));
    hf_put(w, "attention_types", json_pack("[[o,i]]", words, 1));
    if (any) hf_put_size(w, row->key, d->window_left + 1);
}

const HfForm hf_form_local_layers = {local_layers_read, local_layers_write};
const HfForm hf_form_windows = {windows_read, windows_write};
