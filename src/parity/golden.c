#include "parity/golden.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "ckpt/hf/config.h"

static char *path_of(const char *dir, const char *file) { return mem_printf("%s/%s", dir, file); }

/* Required files of a case. */
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

/* The other members of the first step. */
static Err read_loss_names(Golden *g, const json_t *step, const char *path) {
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)step, name, value) {
        if (is_key(name)) continue;
        if (g->n_losses == GOLDEN_LOSSES)
            return err_user("'%s' names more than %d losses, the most that a model has", path, GOLDEN_LOSSES);
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
        return err_user("'%s': step %lld names a loss that the first step lacks", path, (long long)number);
    return ERR_OK;
}

static Err read_curve(Golden *g, const char *path) {
    json_error_t problem;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!root) return err_user("'%s' is not JSON (line %d: %s)", path, problem.line, problem.text);
    const json_t *steps = json_object_get(root, "steps");
    Err e = ERR_OK;
    if (!json_is_array(steps) || !json_array_size(steps))
        e = err_user("'%s' has no list \"steps\" with at least one step", path);
    g->n_steps = e.code ? 0 : (int64_t)json_array_size(steps);
    g->steps = mem_zero((size_t)g->n_steps, sizeof *g->steps);
    if (!e.code) e = read_loss_names(g, json_array_get(steps, 0), path);
    for (int64_t i = 0; i < g->n_steps && !e.code; i++)
        e = read_step(g, json_array_get(steps, (size_t)i), path, i + 1, &g->steps[i]);
    json_decref(root);
    return e;
}

/* ---- batches.safetensors ---- */

/* A tensor of the batches, [steps, samples] or [steps, samples, positions]; *out NULL: there is none. */
static Err read_field(const Golden *g, const char *path, const char *name, DType dtype, int ndim,
                      int64_t positions, const void **out) {
    const Tensor *x = safetensors_find(g->batches, name);
    const int64_t dim[] = {g->stored_steps, g->samples, positions};
    const Tensor want = tensor_make(NULL, dtype, ndim, dim);
    *out = NULL;
    if (!x) return ERR_OK;
    if (x->dtype != dtype || !tensor_same_shape(x, &want))
        return err_user("'%s': \"%s\" is not an %s tensor of shape [steps, samples%s]", path, name,
                        dtype_name(dtype), ndim == 3 ? ", positions" : "");
    *out = x->data;
    return ERR_OK;
}

/* The encoder's side of an encoder-decoder. */
static Err read_encoder(Golden *g, const char *path) {
    const Tensor *tokens = safetensors_find(g->batches, "enc_tokens");
    if (!tokens || tokens->ndim != 3 || tokens->dim[2] < 1 || !safetensors_find(g->batches, "enc_mask"))
        return err_user(
            "'%s' has \"dec_tokens\" without I64 tensors \"enc_tokens\" and \"enc_mask\" of shape "
            "[steps, samples, positions]",
            path);
    g->encoder_seq = tokens->dim[2];
    ERR_RETURN(read_field(g, path, "enc_tokens", I64, 3, g->encoder_seq, (const void **)&g->encoder_tokens));
    return read_field(g, path, "enc_mask", I64, 3, g->encoder_seq, (const void **)&g->padding_mask);
}

static Err read_batches(Golden *g, const char *path) {
    const bool two = safetensors_find(g->batches, "dec_tokens");
    const Tensor *tokens = safetensors_find(g->batches, two ? "dec_tokens" : "tokens");
    const bool encoder = safetensors_find(g->batches, "padding_mask");
    const char *positions = encoder ? "positions" : "positions + 1";
    if (!tokens || tokens->dtype != I64 || tokens->ndim != 3 || tokens->dim[1] < 1 || tokens->dim[2] < 2)
        return err_user("'%s' has no I64 tensor \"%s\" of shape [steps, samples, %s]", path,
                        two ? "dec_tokens" : "tokens", positions);
    if (tokens->dim[0] < g->n_steps)
        return err_user("'%s' holds %lld steps of tokens, curve.json has %lld", path,
                        (long long)tokens->dim[0], (long long)g->n_steps);
    g->tokens = tokens->data;
    g->stored_steps = tokens->dim[0];
    g->samples = tokens->dim[1];
    g->seq = tokens->dim[2] - !encoder;
    ERR_RETURN(read_field(g, path, "loss_mask", F32, 3, g->seq, (const void **)&g->loss_mask));
    if (two) return read_encoder(g, path);
    if (!encoder) return ERR_OK;
    ERR_RETURN(read_field(g, path, "padding_mask", I64, 3, g->seq, (const void **)&g->padding_mask));
    ERR_RETURN(read_field(g, path, "types", I64, 3, g->seq, (const void **)&g->types));
    ERR_RETURN(read_field(g, path, "labels", I64, 3, g->seq, (const void **)&g->labels));
    ERR_RETURN(read_field(g, path, "is_random", I64, 2, 0, (const void **)&g->is_random));
    ERR_RETURN(read_field(g, path, "classes", I64, 2, 0, (const void **)&g->classes));
    return g->labels || g->classes ? ERR_OK : err_user("'%s' has a \"padding_mask\" and no \"labels\"", path);
}

static Err check_ids(const int64_t *id, int64_t n, int64_t end, const char *what, const char *range) {
    for (int64_t i = 0; id && i < n; i++)
        if (id[i] < 0 || id[i] >= end)
            return err_user("batches.safetensors: %s %lld is outside the %s of %lld", what, (long long)id[i],
                            range, (long long)end);
    return ERR_OK;
}

/* The number of tokens before the padding of a sample; -1: the mask is not ones followed by zeros. */
static int64_t length_of(const Golden *g, int64_t sample) {
    const int64_t s = g->encoder_tokens ? g->encoder_seq : g->seq, *mask = g->padding_mask + sample * s;
    int64_t n = 0;
    while (n < s && mask[n] == 1) n++;
    for (int64_t i = n; i < s; i++)
        if (mask[i]) return -1;
    return n;
}

static Err check_lengths(const Golden *g, int64_t samples) {
    for (int64_t i = 0; i < samples; i++)
        if (length_of(g, i) < 1)
            return err_user("batches.safetensors: the padding mask of sample %lld is not one or more ones "
                            "followed by zeros; padding must be on the right",
                            (long long)i);
    return ERR_OK;
}

static Err check_types(const Golden *g, const Config *c, int64_t samples) {
    const int64_t types = config_token_types(c);
    return check_ids(types ? g->types : NULL, samples * g->seq, types, "type", "range");
}

/* Labels without weight may be any number. */
static Err check_encoder(const Golden *g, const Config *c, const Derived *d, int64_t samples) {
    ERR_RETURN(check_lengths(g, samples));
    for (int64_t i = 0; i < samples * g->seq; i++)
        if (!g->loss_mask || g->loss_mask[i] != 0)
            ERR_RETURN(check_ids(&g->labels[i], 1, d->vocab_size, "label", "vocabulary"));
    ERR_RETURN(check_types(g, c, samples));
    return check_ids(g->is_random, samples, 2, "is_random", "range");
}

static Err check_task(const Golden *g, const Config *c, const Derived *d, int64_t samples) {
    const int64_t classes = d->choices > 1 ? d->choices : c->class_labels.count;
    ERR_RETURN(check_lengths(g, samples));
    ERR_RETURN(check_types(g, c, samples));
    return check_ids(g->classes, samples, classes, "class", "classes");
}

Err golden_check(const Golden *g, const Config *c, const Derived *d) {
    const int64_t samples = g->n_steps * g->samples;
    const bool encoder = c->model == MODEL_bert, two = c->model == MODEL_t5;
    if (two != (g->encoder_tokens != NULL))
        return err_user("batches.safetensors has %s \"enc_tokens\", which does not fit --model %s",
                        g->encoder_tokens ? "" : "no", ModelFamily_spellings[c->model]);
    if (!two && encoder != (g->padding_mask != NULL))
        return err_user("batches.safetensors has %s \"padding_mask\", which does not fit --model %s",
                        g->padding_mask ? "a" : "no", ModelFamily_spellings[c->model]);
    const bool task = c->task != TASK_NONE;
    if (task && (!g->types || !g->classes))
        return err_user("batches.safetensors needs \"types\" and \"classes\" for --task");
    if (encoder && !task && !g->labels)
        return err_user("batches.safetensors has no \"labels\"; set the --task of its \"classes\"");
    if (encoder && !task && c->bert_binary_head && (!g->types || !g->is_random))
        return err_user(
            "batches.safetensors needs \"types\" and \"is_random\" for the head for sentences; add "
            "them, or set --bert-no-binary-head");
    if (encoder && config_token_types(c) && !g->types)
        return err_user("batches.safetensors needs \"types\" for the token types; add them, or set "
                        "--num-token-types 0");
    ERR_RETURN(check_ids(g->tokens, samples * (g->seq + !encoder), d->vocab_size, "token", "vocabulary"));
    ERR_RETURN(check_ids(g->encoder_tokens, samples * g->encoder_seq, d->vocab_size, "token", "vocabulary"));
    if (two) return check_lengths(g, samples);
    if (task) return check_task(g, c, d, samples);
    return encoder ? check_encoder(g, c, d, samples) : ERR_OK;
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
    complete(&c->seq_length, g->encoder_tokens ? g->encoder_seq : g->seq);
    if (g->encoder_tokens) complete(&c->decoder_seq_length, g->seq);
    complete(&c->max_position_embeddings, g->seq > g->encoder_seq ? g->seq : g->encoder_seq);
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

/* Inputs and labels of a sample. */
static void decoder_sample(const Golden *g, int64_t sample, const Sample *to) {
    const int64_t *from = g->tokens + sample * (g->seq + 1);
    memcpy(to->tokens, from, (size_t)g->seq * sizeof *from);
    memcpy(to->labels, from + 1, (size_t)g->seq * sizeof *from);
}

/* The encoder's inputs, below a decoder. */
static void lower_sample(const Golden *g, int64_t sample, const Sample *to) {
    const int64_t s = g->encoder_seq;
    memcpy(to->encoder_tokens, g->encoder_tokens + sample * s, (size_t)s * sizeof *g->encoder_tokens);
    for (int64_t p = 0; p < s; p++) to->encoder_position_ids[p] = p;
    *to->encoder_lengths = length_of(g, sample);
}

static void encoder_sample(const Golden *g, int64_t sample, const Sample *to) {
    const int64_t at = sample * g->seq;
    memcpy(to->tokens, g->tokens + at, (size_t)g->seq * sizeof *g->tokens);
    for (int64_t p = 0; to->labels && p < g->seq; p++)
        to->labels[p] = g->loss_mask && g->loss_mask[at + p] == 0 ? 0 : g->labels[at + p];
    *to->lengths = length_of(g, sample);
    if (to->token_types) memcpy(to->token_types, g->types + at, (size_t)g->seq * sizeof *g->types);
    if (to->sentence_labels) *to->sentence_labels = g->classes ? g->classes[sample] : g->is_random[sample];
    if (to->sample_weights) *to->sample_weights = 1;
}

void golden_batch(const Golden *g, int64_t step, Batch *b) {
    for (int64_t i = 0; i < b->b; i++) {
        const int64_t sample = step * g->samples + b->indices[i];
        const Sample to = batch_sample(b, i);
        if (g->encoder_tokens) lower_sample(g, sample, &to);
        if (g->padding_mask && !g->encoder_tokens)
            encoder_sample(g, sample, &to);
        else
            decoder_sample(g, sample, &to);
        for (int64_t p = 0; p < g->seq; p++) {
            to.position_ids[p] = p;
            if (to.loss_mask) to.loss_mask[p] = g->loss_mask ? g->loss_mask[sample * g->seq + p] : 1;
        }
    }
}
