#include "validate/golden.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

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

static Err read_step(const json_t *step, const char *path, int64_t number, GoldenStep *out) {
    static const char *const KEYS[] = {"loss", "grad_norm", "clip", "lr"};
    double *const to[] = {&out->loss, &out->grad_norm, &out->clip, &out->lr};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *v = json_object_get(step, KEYS[i]);
        if (!json_is_number(v))
            return err_user("'%s': step %lld has no number \"%s\"", path, (long long)number, KEYS[i]);
        *to[i] = json_number_value(v);
    }
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
    for (int64_t i = 0; i < g->n_steps && !e.code; i++)
        e = read_step(json_array_get(steps, (size_t)i), path, i + 1, &g->steps[i]);
    json_decref(root);
    return e;
}

/* ---- batches.safetensors ---- */

static Err read_batches(Golden *g, const char *path) {
    const Tensor *tokens = safetensors_find(g->batches, "tokens"),
                 *mask = safetensors_find(g->batches, "loss_mask");
    if (!tokens || tokens->dtype != I64 || tokens->ndim != 3 || tokens->dim[1] < 1 || tokens->dim[2] < 2)
        return err_user("'%s' has no I64 tensor \"tokens\" of shape [steps, samples, positions + 1]", path);
    if (tokens->dim[0] < g->n_steps)
        return err_user("'%s' holds %lld steps of tokens, curve.json has %lld", path,
                        (long long)tokens->dim[0], (long long)g->n_steps);
    g->tokens = tokens->data;
    g->samples = tokens->dim[1];
    g->seq = tokens->dim[2] - 1;
    if (!mask) return ERR_OK;
    if (mask->dtype != F32 || mask->ndim != 3 || mask->dim[0] != tokens->dim[0] ||
        mask->dim[1] != g->samples || mask->dim[2] != g->seq)
        return err_user("'%s': \"loss_mask\" is not an F32 tensor of shape [steps, samples, positions]",
                        path);
    g->loss_mask = mask->data;
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
    free(g->steps);
    free(g->name);
    free(g);
}

static void complete(int64_t *option, int64_t value) {
    if (!i64_is_set(*option)) *option = value;
}

void golden_complete(const Golden *g, Config *c) {
    static const char *const EMBEDDINGS[] = {"model.embed_tokens.weight", "transformer.wte.weight",
                                             "wte.weight"};
    for (size_t i = 0; i < sizeof EMBEDDINGS / sizeof *EMBEDDINGS; i++) {
        const Tensor *w = safetensors_find(g->init, EMBEDDINGS[i]);
        if (w) complete(&c->vocab_size, w->dim[0]);
    }
    complete(&c->seq_length, g->seq);
    complete(&c->max_position_embeddings, g->seq);
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
    int64_t s = g->seq;
    for (int64_t i = 0; i < b->b; i++) {
        int64_t sample = step * g->samples + b->indices[i];
        const int64_t *from = g->tokens + sample * (s + 1);
        memcpy(b->tokens + i * s, from, (size_t)s * sizeof *from);
        memcpy(b->labels + i * s, from + 1, (size_t)s * sizeof *from);
        for (int64_t p = 0; p < s; p++) {
            b->position_ids[i * s + p] = p;
            b->loss_mask[i * s + p] = g->loss_mask ? g->loss_mask[sample * s + p] : 1;
        }
    }
}
