#include "parity/golden.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "ckpt/hf/config.h"
#include "models/model.h"

static char *path_of(const char *dir, const char *file) { return mem_printf("%s/%s", dir, file); }

/* Checks that all files that a case requires exist. */
static Err check_files(const char *dir) {
    static const char *const FILES[] = {"run.conf", "curve.json", "init.safetensors", "batches.safetensors",
                                        "oracle.safetensors"};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        char *path = path_of(dir, FILES[i]);
        bool there = file_exists(path);
        free(path);
        if (!there) return err_user("'%s' is not a golden case: it has no %s", dir, FILES[i]);
    }
    return ERR_OK;
}

static Err open_tensors(const char *dir, const char *file, Safetensors **out) {
    char *path = path_of(dir, file);
    Err e = safetensors_open(path, out);
    free(path);
    return e;
}

/* ---- curve.json ---- */

static const char *const KEYS[] = {"loss", "grad_norm", "clip", "lr"};
enum { N_KEYS = sizeof KEYS / sizeof *KEYS };

static bool is_key(const char *name) {
    for (int i = 0; i < N_KEYS; i++)
        if (!strcmp(name, KEYS[i])) return true;
    return false;
}

/* Reads the names of the losses: all members of the first step that have no other meaning. */
static Err read_loss_names(Golden *g, const json_t *step, const char *path) {
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)step, name, value) {
        if (is_key(name)) continue;
        if (g->n_losses == GOLDEN_LOSSES)
            return err_user("'%s' has more than the maximum of %d losses", path, GOLDEN_LOSSES);
        g->loss_names[g->n_losses++] = mem_strdup(name);
    }
    return ERR_OK;
}

static Err read_number(const json_t *step, const char *path, int64_t number, const char *key, double *out) {
    const json_t *v = json_object_get(step, key);
    if (!json_is_number(v))
        return err_user("'%s': step %lld has no number %s", path, (long long)number, quote(key).s);
    *out = json_number_value(v);
    return ERR_OK;
}

static Err read_step(const Golden *g, const json_t *step, const char *path, int64_t number, GoldenStep *out) {
    double *const to[] = {&out->loss, &out->grad_norm, &out->clip, &out->lr};
    for (int i = 0; i < N_KEYS; i++) ERR_RETURN(read_number(step, path, number, KEYS[i], to[i]));
    for (int i = 0; i < g->n_losses; i++)
        ERR_RETURN(read_number(step, path, number, g->loss_names[i], &out->named[i]));
    if (json_object_size(step) > (size_t)(N_KEYS + g->n_losses))
        return err_user("'%s': step %lld names a loss that the first step does not "
                        "have",
                        path, (long long)number);
    return ERR_OK;
}

static Err read_curve(Golden *g, const char *path) {
    json_error_t problem;
    Str text = {0};
    ERR_RETURN(file_read(path, &text));
    json_t *root = json_loadb(text.s, text.len, JSON_REJECT_DUPLICATES, &problem);
    str_free(&text);
    if (!root) return err_user("'%s' is not JSON (line %d: %s)", path, problem.line, problem.text);
    const json_t *steps = json_object_get(root, "steps");
    Err e = ERR_OK;
    if (!json_is_array(steps) || !json_array_size(steps))
        e = err_user("'%s' must have a list \"steps\" with at least one step", path);
    g->n_steps = e.code ? 0 : (int64_t)json_array_size(steps);
    g->steps = mem_zero((size_t)g->n_steps, sizeof *g->steps);
    if (!e.code) e = read_loss_names(g, json_array_get(steps, 0), path);
    for (int64_t i = 0; i < g->n_steps && !e.code; i++)
        e = read_step(g, json_array_get(steps, (size_t)i), path, i + 1, &g->steps[i]);
    json_decref(root);
    return e;
}

/* ---- batches.safetensors ---- */

/* The tensors in batches.safetensors. A tensor's shape is [steps, samples, elements in the field], or [steps,
 * samples] if the field has one number per sample. A length is stored as a mask: ones for the counted elements,
 * followed by zeros. */
static const struct {
    const char *name;
    FieldId field;
} TENSORS[] = {{"tokens", FIELD_tokens},
               {"dec_tokens", FIELD_tokens},
               {"enc_tokens", FIELD_encoder_tokens},
               {"enc_mask", FIELD_encoder_lengths},
               {"padding_mask", FIELD_lengths},
               {"types", FIELD_token_types},
               {"labels", FIELD_labels},
               {"is_random", FIELD_sentence_labels},
               {"classes", FIELD_sentence_labels},
               {"loss_mask", FIELD_loss_mask}};
enum { N_TENSORS = sizeof TENSORS / sizeof *TENSORS };

static bool is_length(FieldId field) { return (int)field_info(field)->value < EXTENTS; }

/* Returns the number of tokens before the padding, or -1 if the mask does not consist of ones followed by
 * zeros. */
static int64_t length_of(const int64_t *mask, int64_t positions) {
    int64_t n = 0;
    while (n < positions && mask[n] == 1) n++;
    for (int64_t i = n; i < positions; i++)
        if (mask[i]) return -1;
    return n;
}

/* Copies a field from rows of `columns` numbers. If the file has no labels, a row of tokens has one more number than
 * the field. */
static void take_field(Golden *g, FieldId field, const char *from, int64_t columns) {
    const size_t size = field_info(field)->bytes, bytes = (size_t)shape_columns(&g->all.shape, field) * size;
    for (int64_t k = 0; k < g->all.b; k++, from += (size_t)columns * size) {
        const Sample to = batch_sample(&g->all, k);
        if (is_length(field))
            *(int64_t *)to.field[field] = length_of((const int64_t *)from, columns);
        else
            memcpy(to.field[field], from, bytes);
        if (field == FIELD_tokens && g->shifted) memcpy(to.labels, from + size, bytes);
    }
}

static Err read_field(Golden *g, const char *path, const char *name, FieldId field, const Tensor *x) {
    const FieldInfo *info = field_info(field);
    const DType dtype = info->is_integer ? I64 : F32;
    const bool per_sample = info->extent == EXTENT_SAMPLES && !is_length(field),
               shifts = field == FIELD_tokens && g->shifted;
    const int64_t columns = is_length(field) ? g->all.shape.extent[info->value]
                                             : shape_columns(&g->all.shape, field) + shifts,
                  dim[] = {g->all.b / g->samples, g->samples, columns};
    const Tensor want = tensor_make(NULL, dtype, per_sample ? 2 : 3, dim);
    if (x->dtype != dtype || !tensor_same_shape(x, &want) || g->name_of[field])
        return err_user("'%s': \"%s\" must be the only tensor for its field and have type %s and shape "
                        "[steps, samples%s]",
                        path, name, dtype_name(dtype), per_sample ? "" : ", positions");
    g->name_of[field] = name;
    if (shifts) g->name_of[FIELD_labels] = name;
    take_field(g, field, x->data, columns);
    return ERR_OK;
}

static const Tensor *tensor_of(const Golden *g, FieldId field) {
    const Tensor *x = NULL;
    for (int i = 0; i < N_TENSORS && !x; i++)
        if (TENSORS[i].field == field) x = safetensors_find(g->batches, TENSORS[i].name);
    return x;
}

/* Reads the batch sizes from the tokens' shape. */
static Err read_sizes(Golden *g, const char *path) {
    const Tensor *tokens = tensor_of(g, FIELD_tokens), *below = tensor_of(g, FIELD_encoder_tokens);
    g->shifted = !tensor_of(g, FIELD_lengths) && !tensor_of(g, FIELD_labels);
    if (!tokens || tokens->ndim != 3 || tokens->dim[1] < 1 || tokens->dim[2] < 2)
        return err_user(
            "'%s' has no I64 tensor \"tokens\" or \"dec_tokens\" of shape [steps, samples, positions%s]",
            path, g->shifted ? " + 1" : "");
    if (tokens->dim[0] < g->n_steps)
        return err_user("'%s' has tokens for %lld steps, but curve.json has %lld steps", path,
                        (long long)tokens->dim[0], (long long)g->n_steps);
    const bool fits =
        below && below->ndim == 3 && below->dim[0] == tokens->dim[0] && below->dim[1] == tokens->dim[1];
    g->samples = tokens->dim[1];
    g->all = batch_new(tokens->dim[0] * g->samples, (SampleShape){.positions = tokens->dim[2] - g->shifted,
                                                                  .encoder = fits ? below->dim[2] : 0,
                                                                  .fields = ALL_FIELDS});
    batch_reset(&g->all);
    return ERR_OK;
}

static Err read_batches(Golden *g, const char *path) {
    ERR_RETURN(read_sizes(g, path));
    for (int64_t i = 0; i < g->batches->count; i++) {
        const SafeTensor *x = &g->batches->tensors[i];
        int row = 0;
        while (row < N_TENSORS && strcmp(TENSORS[row].name, x->name)) row++;
        if (row == N_TENSORS)
            return err_user("'%s' has the tensor %s, which is not a field of a batch", path,
                            quote(x->name).s);
        ERR_RETURN(read_field(g, path, x->name, TENSORS[row].field, &x->tensor));
    }
    if (g->shifted) return ERR_OK;
    for (int64_t i = 0; i < g->all.b * g->all.shape.positions; i++)
        if (g->all.loss_mask[i] == 0) g->all.labels[i] = 0; /* a label with loss weight 0 may be any number */
    return ERR_OK;
}

/* Returns the exclusive upper limit for a field's numbers. */
static int64_t end_of(const Golden *g, FieldId field, const Config *c) {
    const FieldValue value = field_info(field)->value;
    switch (value) {
    case VALUE_TYPE:
        return config_token_types(c);
    case VALUE_CLASS:
        return c->task == TASK_NONE ? 2 : c->derived.choices > 1 ? c->derived.choices : c->class_labels.count;
    case VALUE_ID:
    case VALUE_LABEL:
        return c->derived.vocab_size;
    default:
        return g->all.shape.extent[value] + 1;
    }
}

static Err check_field(const Golden *g, FieldId field, const Config *c) {
    const Batch steps = batch_rows(&g->all, 0, g->n_steps * g->samples);
    const int64_t end = end_of(g, field, c), at = batch_outside(&steps, field, is_length(field), end);
    if (at < 0) return ERR_OK;
    if (is_length(field))
        return err_user("batches.safetensors: \"%s\" of sample %lld must consist of one or more ones "
                        "followed by zeros, because padding must be on the right",
                        g->name_of[field], (long long)at);
    return err_user("batches.safetensors: \"%s\" has %lld, which is not in [0, %lld)", g->name_of[field],
                    (long long)((const int64_t *)steps.field[field])[at], (long long)end);
}

static Err lacks_field(FieldId field, const Config *c) {
    Str names = {0};
    for (int i = 0; i < N_TENSORS; i++)
        if (TENSORS[i].field == field)
            str_printf(&names, "%s\"%s\"", names.len ? " or " : "", TENSORS[i].name);
    const Err e =
        err_user("batches.safetensors has no %s, which this --model %s reads; add the tensor, or change "
                 "the options for the model's inputs",
                 names.s, ModelFamily_spellings[c->model]);
    str_free(&names);
    return e;
}

/* Weights, positions and starts may be missing, because they have defaults. Token types and sentence labels may
 * be present even if this model does not read them, because only certain options make a model read them. */
Err golden_check(const Golden *g, const Config *c) {
    Arena *arena = arena_new();
    const FieldSet all = model_plan(c, arena).sample.fields;
    arena_free(arena);
    for (int f = 0; f < FIELDS; f++) {
        const FieldValue value = field_info((FieldId)f)->value;
        const bool reads = fields_have(all, f), has = g->name_of[f], optional = value >= VALUE_INDEX;
        if (reads && !has && !optional) return lacks_field((FieldId)f, c);
        if (!reads && has && value != VALUE_TYPE && value != VALUE_CLASS)
            return err_user("batches.safetensors has \"%s\", which this --model %s does not read",
                            g->name_of[f], ModelFamily_spellings[c->model]);
        if (reads && has && !optional) ERR_RETURN(check_field(g, (FieldId)f, c));
    }
    return ERR_OK;
}

Err golden_open(const char *dir, Golden **out) {
    *out = NULL;
    ERR_RETURN(check_files(dir));
    Golden *g = mem_zero(1, sizeof *g);
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/') end--;
    const char *last = memrchr(dir, '/', end);
    last = last && last + 1 < dir + end ? last + 1 : dir;
    g->name = mem_printf("%.*s", (int)(dir + end - last), last);
    char *curve = path_of(dir, "curve.json"), *batches = path_of(dir, "batches.safetensors");
    Err e = read_curve(g, curve);
    if (!e.code) e = open_tensors(dir, "init.safetensors", &g->init);
    if (!e.code) e = open_tensors(dir, "batches.safetensors", &g->batches);
    if (!e.code) e = open_tensors(dir, "oracle.safetensors", &g->oracle);
    if (!e.code) e = read_batches(g, batches);
    free(curve);
    free(batches);
    if (e.code)
        golden_close(g);
    else
        *out = g;
    return e;
}

void golden_close(Golden *g) {
    if (!g) return;
    if (g->init) safetensors_close(g->init);
    if (g->batches) safetensors_close(g->batches);
    if (g->oracle) safetensors_close(g->oracle);
    batch_free(&g->all);
    free(g->steps);
    for (int i = 0; i < g->n_losses; i++) free(g->loss_names[i]);
    free(g->name);
    free(g);
}

static void complete(int64_t *option, int64_t value) {
    if (!i64_is_set(*option)) *option = value;
}

void golden_complete(const Golden *g, Config *c) {
    static const char *const EMBEDDINGS[] = {"model.embed_tokens.weight", "transformer.wte.weight",
                                             "wte.weight", "bert.embeddings.word_embeddings.weight",
                                             "shared.weight"};
    for (size_t i = 0; i < sizeof EMBEDDINGS / sizeof *EMBEDDINGS; i++) {
        const Tensor *w = safetensors_find(g->init, EMBEDDINGS[i]);
        if (w) complete(&c->vocab_size, w->dim[0]);
    }
    if (c->untie_embeddings_and_output_weights) hf_config_fit(c, g->init);
    const int64_t positions = g->all.shape.positions, encoder = g->all.shape.encoder;
    complete(&c->seq_length, encoder ? encoder : positions);
    if (encoder) complete(&c->decoder_seq_length, positions);
    complete(&c->max_position_embeddings, positions > encoder ? positions : encoder);
    complete(&c->global_batch_size, g->samples);
    complete(&c->micro_batch_size, c->global_batch_size);
    if (!i64_is_set(c->train_samples)) complete(&c->train_iters, g->n_steps);
    if (!config_given(c, calculate_per_token_loss)) c->calculate_per_token_loss = true;
    if (!config_given(c, hidden_dropout)) c->hidden_dropout = 0;
    if (!config_given(c, attention_dropout)) c->attention_dropout = 0;
}

void golden_refuse(Args *args) {
    static const char *const NAMES[] = {"train-iters", "train-samples"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        args_refuse(args, NAMES[i], "here, because the golden case sets the number of steps");
}

void golden_batch(const Golden *g, int64_t step, Batch *b) {
    for (int64_t i = 0; i < b->b; i++) batch_copy(b, i, &g->all, step * g->samples + b->indices[i]);
    batch_look_ahead(b);
}
