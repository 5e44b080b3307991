#include "parity/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/fault.h"
#include "base/philox.h"
#include "parity/logits.h"

enum { DRAWS = 3 };

static const struct {
    const char *name;
    DType type;
} TYPES[] = {{"bfloat16", BF16}, {"float16", F16}, {"float32", F32}, {"float64", F64}};
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

/* ---- files ---- */

static const char *text_of(const Reference *r, const char *key) {
    for (int64_t i = 0; i < r->file->num_metadata; i++)
        if (!strcmp(r->file->metadata[i].key, key)) return r->file->metadata[i].value;
    return NULL;
}

static Err read_encoder(Reference *r, const char *path) {
    const Tensor *tokens = safetensors_find(r->file, "encoder_tokens"),
                 *lengths = safetensors_find(r->file, "encoder_lengths");
    if (!tokens && !lengths) return ERR_OK;
    const bool good = tokens && lengths && tokens->dtype == I64 && tokens->ndim == 2 &&
                      tokens->dim[0] == r->samples && tokens->dim[1] > 0 && lengths->dtype == I64 &&
                      lengths->ndim == 1 && lengths->dim[0] == r->samples;
    if (!good)
        return err_user(
            "'%s' is not a reference: \"encoder_tokens\" and \"encoder_lengths\" are not I64 of shape "
            "[%lld, positions] and [%lld]; create it with tools/oracle/hf_logits.py",
            path, (long long)r->samples, (long long)r->samples);
    r->encoder_tokens = tokens->data, r->encoder_lengths = lengths->data;
    r->encoder = tokens->dim[1];
    return ERR_OK;
}

static Err read_tensors(Reference *r, const char *path) {
    const Tensor *tokens = safetensors_find(r->file, "tokens"), *logits = safetensors_find(r->file, "logits");
    if (!tokens || tokens->dtype != I64 || tokens->ndim != 2 || tensor_count(tokens) < 1)
        return err_user(
            "'%s' is not a reference: it has no I64 tensor \"tokens\" of shape [samples, positions]; "
            "create one with tools/oracle/hf_logits.py",
            path);
    r->tokens = tokens->data;
    r->samples = tokens->dim[0], r->positions = tokens->dim[1];
    const bool of_task = logits && logits->ndim == 2;
    if (!logits || logits->dtype != F64 || (!of_task && logits->ndim != 3) || logits->dim[0] != r->samples ||
        (!of_task && logits->dim[1] != r->positions) || logits->dim[logits->ndim - 1] < 1)
        return err_user("'%s' is not a reference: it has no F64 tensor \"logits\" of shape [%lld, %lld, "
                        "vocabulary], as its tokens need, or [%lld, classes]",
                        path, (long long)r->samples, (long long)r->positions, (long long)r->samples);
    r->logits = logits->data;
    r->of_task = of_task, r->rows = of_task ? 1 : r->positions;
    r->outputs = logits->dim[logits->ndim - 1];
    return read_encoder(r, path);
}

static Err check_tokens(const Reference *r, const int64_t *tokens, int64_t positions, int64_t vocab) {
    for (int64_t i = 0; i < r->samples * positions; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return err_user("'%s': token %lld of sample %lld is %lld, outside the vocabulary of %lld",
                            r->file->path, (long long)(i % positions), (long long)(i / positions),
                            (long long)tokens[i], (long long)vocab);
    return ERR_OK;
}

static Err check_numbers(const Reference *r, const char *path) {
    if (!r->of_task) ERR_RETURN(check_tokens(r, r->tokens, r->positions, r->outputs));
    if (!r->of_task) ERR_RETURN(check_tokens(r, r->encoder_tokens, r->encoder, r->outputs));
    for (int64_t i = 0; i < (r->encoder ? r->samples : 0); i++)
        if (r->encoder_lengths[i] < 1 || r->encoder_lengths[i] > r->encoder)
            return err_user("'%s': encoder length %lld of sample %lld is not in [1, %lld]", path,
                            (long long)r->encoder_lengths[i], (long long)i, (long long)r->encoder);
    for (int64_t i = 0; i < r->samples * r->rows * r->outputs; i++)
        if (!isfinite(r->logits[i]))
            return err_user(
                "'%s': the logits have a value that is not finite, for sample %lld, position %lld", path,
                (long long)(i / r->outputs / r->rows), (long long)(i / r->outputs % r->rows));
    return ERR_OK;
}

Err reference_open(const char *path, Reference *r) {
    *r = (Reference){0};
    ERR_RETURN(safetensors_open(path, &r->file));
    ERR_RETURN(read_tensors(r, path));
    const char *weights = text_of(r, "weights");
    for (int i = 0; i < N_TYPES; i++)
        if (weights && !strcmp(weights, TYPES[i].name)) {
            r->weights = TYPES[i].type;
            return check_numbers(r, path);
        }
    return err_user("'%s' does not record in its metadata which type of weights it was computed with: "
                    "recreate it with tools/oracle/hf_logits.py",
                    path);
}

void reference_close(Reference *r) {
    if (r->file) safetensors_close(r->file);
    *r = (Reference){0};
}

static int64_t longest(const Reference *r) { return r->encoder > r->positions ? r->encoder : r->positions; }

/* ---- our logits ---- */

static Err check_fit(const Reference *r, const Config *c, const Derived *d, const Model *m) {
    const bool of_task = c->task != TASK_NONE;
    const int64_t outputs = !of_task ? d->vocab_size : d->choices > 1 ? 1 : c->class_labels.count;
    if (of_task != r->of_task)
        return err_user("the reference has logits of %s, the model of %s: it was computed with another model",
                        of_task ? "tokens" : "classes", of_task ? "classes" : "tokens");
    if (r->outputs != outputs)
        return err_user("the reference has logits of %lld %s, the model %s of %lld: it was "
                        "computed with another model",
                        (long long)r->outputs, of_task ? "classes" : "tokens",
                        of_task ? "a head" : "has a vocabulary", (long long)outputs);
    if (r->samples % d->choices)
        return err_user(
            "the reference has %lld samples, which are not questions of %lld choices: recreate it "
            "with --samples",
            (long long)r->samples, (long long)d->choices);
    if (of_task) ERR_RETURN(check_tokens(r, r->tokens, r->positions, d->vocab_size));
    if (!r->encoder != !m->plan.sample.encoder)
        return err_user("the reference is %s, the model %s: it was computed with another model",
                        r->encoder ? "of an encoder-decoder" : "not of an encoder-decoder",
                        m->plan.sample.encoder ? "is one" : "is none");
    if (longest(r) > d->max_position_embeddings)
        return err_user("the reference has %lld positions, the model %lld: recreate it with --length",
                        (long long)longest(r), (long long)d->max_position_embeddings);
    return ERR_OK;
}

/* The model's options with the samples' length, by which transformers chooses the factors of LongRoPE. */
static Config of_samples(const Config *options, const Derived *d, const Reference *r, Arena *arena,
                         Derived *derived) {
    Config c = *options;
    c.max_position_embeddings = d->max_position_embeddings;
    c.seq_length = longest(r);
    config_finish(&c, arena, d->vocab_size, derived);
    return c;
}

/* The same model in fp64, with weights rounded to the reference's type. Counts those that change. */
static Model *widened(const Registry *from, const Config *c, const Derived *d, const Reference *r,
                      int64_t *rounded) {
    Model *wide = model_new(c, d, NULL);
    model_allocate(wide, device_cpu((int)c->cpu_threads), F64, longest(r), false);
    Registry *to = wide->registry;
    CHECK(to->elements == from->elements, "%lld elements, not %lld", (long long)to->elements,
          (long long)from->elements);
    double *x = to->masters;
    dtype_convert(x, F64, from->masters, from->precise, (size_t)to->elements);
    *rounded = 0;
    for (int64_t i = 0; i < to->elements; i++) {
        const double was = x[i];
        char narrow[sizeof(double)];
        dtype_convert(narrow, r->weights, &was, F64, 1);
        dtype_convert(&x[i], F64, narrow, r->weights, 1);
        *rounded += x[i] != was;
    }
    return wide;
}

/* Samples [first, first + b->b). */
static void set_batch(const Reference *r, int64_t first, const Batch *b) {
    for (int64_t i = 0; i < b->b * r->positions; i++) b->position_ids[i] = i % r->positions;
    memcpy(b->tokens, r->tokens + first * r->positions, (size_t)(b->b * r->positions) * sizeof *r->tokens);
    for (int64_t i = 0; b->lengths && i < b->b; i++) b->lengths[i] = r->positions;
    if (!r->encoder) return;
    for (int64_t i = 0; i < b->b * r->encoder; i++) b->encoder_position_ids[i] = i % r->encoder;
    memcpy(b->encoder_tokens, r->encoder_tokens + first * r->encoder,
           (size_t)(b->b * r->encoder) * sizeof *r->encoder_tokens);
    memcpy(b->encoder_lengths, r->encoder_lengths + first, (size_t)b->b * sizeof *r->encoder_lengths);
}

/* samples: of a batch. */
static void compute(const Model *m, int64_t samples, const Reference *r, double *out) {
    const RunContext context = {.device = m->device, .dtype = F64};
    Batch b = batch_new(
        samples,
        (SampleShape){.positions = r->positions, .encoder = r->encoder, .fields = m->plan.sample.fields});
    for (int64_t i = 0; i < r->samples; i += samples) {
        set_batch(r, i, &b);
        logits_compute(m, &context, &(MicrobatchContext){.training = false}, &b, NULL, NULL,
                       out + i * r->rows * r->outputs);
    }
    batch_free(&b);
}

static void compute_noisy(const Model *m, int64_t samples, const Reference *r, double roundoff, int draw,
                          double *out) {
    const Registry *weights = m->registry;
    double *x = weights->masters;
    const size_t bytes = (size_t)weights->elements * sizeof *x;
    double *kept = mem_alloc(bytes);
    memcpy(kept, x, bytes);
    for (int64_t i = 0; i < weights->elements; i++)
        x[i] *= 1 + roundoff * philox_normal(0, (uint64_t)draw, (uint64_t)i);
    compute(m, samples, r, out);
    memcpy(x, kept, bytes);
    free(kept);
}

static double longest_sum(const Config *c, const Derived *d, int64_t positions) {
    const double widths[] = {(double)c->hidden_size, (double)d->ffn_hidden_size,
                             (double)(c->num_attention_heads * d->kv_channels), (double)positions,
                             (double)d->moe_shared_size};
    double longest = 1;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) longest = fmax(longest, widths[i]);
    return longest;
}

Err reference_judge(const Reference *r, const Config *c, const Derived *d, const Model *m,
                    ReferenceReport *report) {
    ERR_RETURN(check_fit(r, c, d, m));
    const int64_t n = r->samples * r->rows * r->outputs;
    double *ours = mem_alloc((size_t)n * sizeof *ours), *moved = mem_alloc((size_t)n * sizeof *moved);
    const DType stored = m->registry->precise;
    *report = (ReferenceReport){.roundoff = dtype_roundoff(r->weights == F64 ? stored : F64),
                                .longest_sum = longest_sum(c, d, longest(r))};
    Arena *arena = arena_new();
    Derived derived;
    const Config config = of_samples(c, d, r, arena, &derived);
    Model *wide = widened(m->registry, &config, &derived, r, &report->rounded);
    compute(wide, d->choices, r, ours);
    Scale scale = {0};
    scale_add(&scale, r->logits, n);
    double bound = report->roundoff * sqrt(report->longest_sum), elementwise = bound;
    for (int k = 0; k < DRAWS; k++) {
        compute_noisy(wide, d->choices, r, report->roundoff, k, moved);
        const TensorError e = tensor_error(moved, ours, n, r->outputs, &scale);
        bound = fmax(bound, e.relative), elementwise = fmax(elementwise, e.elementwise);
    }
    row_add(&report->logits, "logits", tensor_error(ours, r->logits, n, r->outputs, &scale), 8 * bound,
            8 * elementwise, 0);
    free(ours), free(moved);
    Device *device = wide->device;
    model_free(wide);
    device_free(device);
    arena_free(arena);
    return ERR_OK;
}

/* ---- report ---- */

static const char *type_name(DType type) {
    int i = 0;
    while (TYPES[i].type != type) i++;
    return TYPES[i].name;
}

void reference_print(const Reference *r, const Derived *d, const ReferenceReport *report, Str *out) {
    const Row *x = &report->logits;
    const int64_t at = x->error.worst / r->outputs;
    const char *source = text_of(r, "source");
    str_printf(out, "logits of %s of %s, in fp64, against %s (%s)\n", amount(r->samples, "sample").s,
               amount(r->positions, "token").s, r->file->path, source ? source : "of unknown source");
    if (report->rounded)
        str_printf(out, "note: %s %s rounded to %s, the type of the reference\n",
                   amount(report->rounded, "weight").s, report->rounded == 1 ? "was" : "were",
                   type_name(r->weights));
    if (d->window_left >= r->positions - 1 && d->window_left >= 0)
        str_printf(out, "note: the window of %s covers the whole samples: the check does not test it\n",
                   amount(d->window_left + 1, "token").s);
    str_printf(out, "%-10s %11s %11s\n%-10s %11.2e %11.2e\n%-10s %11.2e %11.2e\n", "", "error", "bound",
               "relative", x->error.relative, x->bound, "element", x->error.elementwise,
               x->elementwise_bound);
    str_printf(out,
               "bound = 8 max(movement by roundings of the weights, u sqrt(K)), u = %.3g, K = %.0f\n"
               "worst: sample %lld, position %lld, output %lld\n%s\n",
               report->roundoff, report->longest_sum, (long long)(at / r->rows), (long long)(at % r->rows),
               (long long)(x->error.worst % r->outputs),
               x->pass ? "pass" : "FAIL: this is not the model that the reference was computed with");
}
