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

/* Reads the inputs. Inputs that the file lacks are set to the values for a batch without padding. */
static Err read_fields(Reference *r, const char *path, const Tensor *tokens) {
    const Tensor *encoder = safetensors_find(r->file, "encoder_tokens");
    const int64_t samples = tokens->dim[0];
    const bool fits = encoder && encoder->ndim == 2 && encoder->dim[0] == samples;
    r->batch = batch_new(samples, (SampleShape){.positions = tokens->dim[1],
                                                .encoder = fits ? encoder->dim[1] : 0,
                                                .fields = fields_inputs(ALL_FIELDS)});
    batch_reset(&r->batch);
    for (int f = 0; f < FIELDS; f++) {
        const char *name = field_info((FieldId)f)->name;
        const Tensor *x = safetensors_find(r->file, name);
        int64_t dim[3];
        const int n = batch_dims(&r->batch, (FieldId)f, dim);
        const Tensor want = tensor_make(NULL, I64, n, dim);
        if (!x || !r->batch.field[f]) continue;
        if (x->dtype != I64 || !tensor_same_shape(x, &want))
            return err_user("'%s' is not a reference: \"%s\" is not I64 of shape [%lld%s]; create it with "
                            "tools/oracle/hf_logits.py",
                            path, name, (long long)samples, n == 1 ? "" : ", positions");
        memcpy(r->batch.field[f], x->data, tensor_bytes(x));
    }
    return ERR_OK;
}

static bool is_input(const Reference *r, const char *name) {
    for (int f = 0; f < FIELDS; f++)
        if (r->batch.field[f] && !strcmp(field_info((FieldId)f)->name, name)) return true;
    return false;
}

static Err check_names(const Reference *r, const char *path) {
    for (int64_t i = 0; i < r->file->count; i++) {
        const char *name = r->file->tensors[i].name;
        if (strcmp(name, "logits") && !is_input(r, name))
            return err_user("'%s' is not a reference: it has a tensor %s, which is neither \"logits\" nor an "
                            "input of a model; create it with tools/oracle/hf_logits.py",
                            path, quote(name).s);
    }
    return ERR_OK;
}

static Err read_tensors(Reference *r, const char *path) {
    const Tensor *tokens = safetensors_find(r->file, "tokens"), *logits = safetensors_find(r->file, "logits");
    if (!tokens || tokens->dtype != I64 || tokens->ndim != 2 || tensor_count(tokens) < 1)
        return err_user("'%s' is not a reference: it has no I64 tensor \"tokens\" of shape [samples, "
                        "positions]; create one with tools/oracle/hf_logits.py",
                        path);
    ERR_RETURN(read_fields(r, path, tokens));
    ERR_RETURN(check_names(r, path));
    const bool of_task = logits && logits->ndim == 2;
    if (!logits || logits->dtype != F64 || (!of_task && logits->ndim != 3) || logits->dim[0] != r->batch.b ||
        (!of_task && logits->dim[1] != r->batch.shape.positions) || logits->dim[logits->ndim - 1] < 1)
        return err_user("'%s' is not a reference: it has no F64 tensor \"logits\" of shape [%lld, %lld, "
                        "vocabulary], as its tokens require, or [%lld, classes]",
                        path, (long long)r->batch.b, (long long)r->batch.shape.positions,
                        (long long)r->batch.b);
    r->logits = logits->data;
    r->of_task = of_task, r->rows = of_task ? 1 : r->batch.shape.positions;
    r->outputs = logits->dim[logits->ndim - 1];
    return ERR_OK;
}

static Err check_tokens(const Reference *r, int64_t vocab) {
    for (int f = 0; f < FIELDS; f++) {
        if (field_info((FieldId)f)->value != VALUE_ID) continue;
        const int64_t at = batch_outside(&r->batch, (FieldId)f, 0, vocab),
                      columns = shape_columns(&r->batch.shape, (FieldId)f);
        if (at >= 0)
            return err_user("'%s': token %lld of sample %lld is %lld, outside the vocabulary of %lld",
                            r->file->path, (long long)(at % columns), (long long)(at / columns),
                            (long long)((const int64_t *)r->batch.field[f])[at], (long long)vocab);
    }
    return ERR_OK;
}

static Err check_lengths(const Reference *r) {
    for (int f = 0; f < FIELDS; f++) {
        const FieldInfo *info = field_info((FieldId)f);
        if ((int)info->value >= EXTENTS || !safetensors_find(r->file, info->name)) continue;
        const int64_t most = r->batch.shape.extent[info->value],
                      at = batch_outside(&r->batch, (FieldId)f, 1, most + 1);
        if (at >= 0)
            return err_user("'%s': \"%s\" of sample %lld is %lld, which is not in [1, %lld]", r->file->path,
                            info->name, (long long)at, (long long)((const int64_t *)r->batch.field[f])[at],
                            (long long)most);
    }
    return ERR_OK;
}

static Err check_numbers(const Reference *r, const char *path) {
    if (!r->of_task) ERR_RETURN(check_tokens(r, r->outputs));
    ERR_RETURN(check_lengths(r));
    for (int64_t i = 0; i < r->batch.b * r->rows * r->outputs; i++)
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
    return err_user("the metadata of '%s' does not state which type of weights was used: recreate the file "
                    "with tools/oracle/hf_logits.py",
                    path);
}

void reference_close(Reference *r) {
    if (r->file) safetensors_close(r->file);
    batch_free(&r->batch);
    *r = (Reference){0};
}

static int64_t longest(const Reference *r) {
    return r->batch.shape.encoder > r->batch.shape.positions ? r->batch.shape.encoder
                                                             : r->batch.shape.positions;
}

/* ---- our logits ---- */

static Err check_fit(const Reference *r, const Config *c, const Model *m) {
    const bool of_task = c->task != TASK_NONE;
    const int64_t outputs = !of_task                 ? c->derived.vocab_size
                            : c->derived.choices > 1 ? 1
                                                     : c->class_labels.count;
    if (of_task != r->of_task)
        return err_user("the reference has logits of %s, but the model has logits of %s: the reference was "
                        "computed with another model",
                        of_task ? "tokens" : "classes", of_task ? "classes" : "tokens");
    if (r->outputs != outputs)
        return err_user("the reference has logits of %lld %s, but the model %s of %lld: the reference was "
                        "computed with another model",
                        (long long)r->outputs, of_task ? "classes" : "tokens",
                        of_task ? "has a head" : "has a vocabulary", (long long)outputs);
    if (r->batch.b % c->derived.choices)
        return err_user(
            "the reference has %lld samples, which is not a multiple of the %lld choices per question: "
            "recreate the reference with --samples",
            (long long)r->batch.b, (long long)c->derived.choices);
    if (of_task) ERR_RETURN(check_tokens(r, c->derived.vocab_size));
    if (!r->batch.shape.encoder != !m->plan.sample.encoder)
        return err_user("the reference was computed %s, but the model %s an encoder-decoder",
                        r->batch.shape.encoder ? "with an encoder-decoder" : "without an encoder",
                        m->plan.sample.encoder ? "is" : "is not");
    if (longest(r) > m->plan.limit)
        return err_user("the reference has %lld positions, but the model has only %lld: recreate "
                        "the reference with --length",
                        (long long)longest(r), (long long)m->plan.limit);
    return ERR_OK;
}

/* Returns the model's options with the samples' sequence length, because transformers selects the LongRoPE
 * factors by this length. */
static Config of_samples(const Config *options, const Reference *r, Arena *arena) {
    Config c = *options;
    c.max_position_embeddings = options->derived.max_position_embeddings;
    c.seq_length = longest(r);
    config_finish(&c, arena, options->derived.vocab_size);
    return c;
}

/* Returns the model in fp64, with weights rounded to the reference's type. Sets *rounded to the number of
 * weights that rounding changes. */
static Model *widened(const Registry *from, const Config *c, const Reference *r, int64_t *rounded) {
    Model *wide = model_new(c, NULL);
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

/* Computes our logits. `samples` is the number of samples per batch. */
static void compute(const Model *m, int64_t samples, const Reference *r, double *out) {
    const RunContext context = {.device = m->device, .dtype = F64};
    for (int64_t i = 0; i < r->batch.b; i += samples) {
        const Batch b = batch_rows(&r->batch, i, samples);
        logits_compute(m, &context, &(MicrobatchContext){.training = false}, &b, NULL, NULL,
                       out + i * r->rows * r->outputs);
    }
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

static double longest_sum(const Config *c, int64_t positions) {
    const double widths[] = {(double)c->hidden_size, (double)c->derived.ffn_hidden_size,
                             (double)(c->num_attention_heads * c->derived.kv_channels), (double)positions,
                             (double)c->derived.moe_shared_size};
    double longest = 1;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) longest = fmax(longest, widths[i]);
    return longest;
}

Err reference_judge(const Reference *r, const Config *c, const Model *m, ReferenceReport *report) {
    ERR_RETURN(check_fit(r, c, m));
    const int64_t n = r->batch.b * r->rows * r->outputs;
    double *ours = mem_alloc((size_t)n * sizeof *ours), *moved = mem_alloc((size_t)n * sizeof *moved);
    const DType stored = m->registry->precise;
    *report = (ReferenceReport){.roundoff = dtype_roundoff(r->weights == F64 ? stored : F64),
                                .longest_sum = longest_sum(c, longest(r))};
    Arena *arena = arena_new();
    const Config config = of_samples(c, r, arena);
    Model *wide = widened(m->registry, &config, r, &report->rounded);
    compute(wide, c->derived.choices, r, ours);
    Scale scale = {0};
    scale_add(&scale, r->logits, n);
    double bound = report->roundoff * sqrt(report->longest_sum), elementwise = bound;
    for (int k = 0; k < DRAWS; k++) {
        compute_noisy(wide, c->derived.choices, r, report->roundoff, k, moved);
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
    str_printf(out, "logits of %s of %s, in fp64, against %s (%s)\n", amount(r->batch.b, "sample").s,
               amount(r->batch.shape.positions, "token").s, r->file->path,
               source ? source : "of unknown source");
    if (report->rounded)
        str_printf(out, "note: %s %s rounded to %s, the type of the reference\n",
                   amount(report->rounded, "weight").s, report->rounded == 1 ? "was" : "were",
                   type_name(r->weights));
    if (d->window_left >= r->batch.shape.positions - 1 && d->window_left >= 0)
        str_printf(out,
                   "note: the window of %s covers entire samples, so the check does not test the window\n",
                   amount(d->window_left + 1, "token").s);
    str_printf(out, "%-10s %11s %11s\n%-10s %11.2e %11.2e\n%-10s %11.2e %11.2e\n", "", "error", "bound",
               "relative", x->error.relative, x->bound, "element", x->error.elementwise,
               x->elementwise_bound);
    str_printf(out,
               "bound = 8 max(movement by roundings of the weights, u sqrt(K)), u = %.3g, K = %.0f\n"
               "worst: sample %lld, position %lld, output %lld\n%s\n",
               report->roundoff, report->longest_sum, (long long)(at / r->rows), (long long)(at % r->rows),
               (long long)(x->error.worst % r->outputs),
               x->pass ? "pass" : "FAIL: the reference was computed with a different model");
}
