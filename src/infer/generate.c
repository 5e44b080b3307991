#include "infer/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/hash.h"
#include "base/philox.h"
#include "comm/agree.h"
#include "models/cache.h"
#include "ops/redistribute.h"

typedef struct Session {
    const Model *model;
    const RunContext *context;
    const GenerateOptions *options;
    const Prompt *prompts;
    Space *slot, *transient;
    Tape *tape;
    Cache cache;
    char *ids; /* device memory: the fields of a forward pass */
    size_t ids_bytes;
    int64_t n, longest; /* number of samples; length of the decoder's longest prompt */
    int64_t encoder;    /* length of the encoder's longest prompt, or 0 if there is no encoder */
    int64_t capacity;   /* number of positions in the cache */
    Generated *out;
    bool *done;
} Session;

static bool has_encoder(const Model *m) { return m->plan.sample.encoder > 0; }

static bool has_room(const Model *m, int64_t positions) { return positions <= m->plan.limit; }

static Err check_token(const Model *m, int64_t token, int64_t prompt) {
    const int64_t vocab = m->plan.vocab;
    if (token >= 0 && token < vocab) return ERR_OK;
    return err_user(
        "token %lld of prompt %lld is outside the model's vocabulary of %lld; is this the model's tokenizer?",
        (long long)token, (long long)prompt + 1, (long long)vocab);
}

static Err check_length(const Session *s) {
    const long long room = s->model->plan.limit, fresh = s->options->max_new_tokens;
    if (!has_room(s->model, s->encoder))
        return err_user("a prompt of %lld tokens exceeds the model's %lld positions; shorten it",
                        (long long)s->encoder, room);
    if (!has_room(s->model, s->capacity) && s->encoder)
        return err_user("%lld new tokens exceed the model's %lld positions, the first of which holds the "
                        "token that begins a text; lower --tokens-to-generate",
                        fresh, room);
    if (!has_room(s->model, s->capacity))
        return err_user("%lld prompt tokens and %lld new ones exceed the model's %lld positions; shorten the "
                        "prompt or lower --tokens-to-generate",
                        (long long)s->longest, fresh, room);
    return ERR_OK;
}

static Err check_prompts(Session *s) {
    int64_t longest = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const Prompt *p = &s->prompts[i];
        if (p->n < 1) return err_user("prompt %lld is empty; give it at least one token", (long long)i + 1);
        if (p->n > longest) longest = p->n;
        for (int64_t j = 0; j < p->n; j++) ERR_RETURN(check_token(s->model, p->tokens[j], i));
    }
    const bool encodes = has_encoder(s->model);
    s->encoder = encodes ? longest : 0;
    s->longest = encodes ? 1 : longest;
    s->capacity = s->longest + s->options->max_new_tokens;
    const int64_t start = s->options->start, vocab = s->model->plan.vocab;
    if (encodes && (start < 0 || start >= vocab))
        return err_user("the decoder begins with token %lld, which is outside the model's vocabulary of "
                        "%lld; is this the model's tokenizer?",
                        (long long)start, (long long)vocab);
    return check_length(s);
}

static CacheShape cache_shape(const Session *s) {
    return (CacheShape){s->context->dtype, s->capacity, s->encoder, s->n};
}

/* Checks the memory that grows with the prompts and the new tokens. The logits of all prompt tokens exist at
 * the same time. */
static Err check_memory(const Session *s) {
    const CacheShape shape = cache_shape(s);
    const double cache = cache_bytes(s->model, &shape),
                 logits = (double)s->n * (double)s->longest * (double)s->model->plan.head->width *
                          (double)dtype_size(s->context->dtype),
                 have = (double)device_memory_available(s->context->device);
    if (cache + logits <= have) return ERR_OK;
    return err_user("the KV cache of %s of %s takes %s and the logits of the prompts take %s, but %s are "
                    "available; lower --tokens-to-generate, or give fewer or shorter prompts at a time",
                    amount(s->n, "sequence").s, amount(s->capacity + s->encoder, "token").s,
                    bytes_text(cache).s, bytes_text(logits).s, bytes_text(have).s);
}

/* The inputs of a forward pass of `count` positions. Only the first pass needs the encoder's inputs. A model
 * without encoder has padding on the left, to which no position attends. */
static SampleShape forward_shape(const Session *s, int64_t count) {
    FieldSet fields = fields_inputs(s->model->plan.sample.fields);
    if (!s->encoder) fields |= FIELD_SET(document_start);
    for (int f = 0; f < FIELDS; f++)
        if (field_info((FieldId)f)->extent == EXTENT_ENCODER && s->cache.length)
            fields &= ~(UINT32_C(1) << f);
    return (SampleShape){.positions = count, .encoder = s->encoder, .fields = fields};
}

static void open_session(Session *s) {
    Device *d = s->context->device;
    const CacheShape shape = cache_shape(s);
    s->cache = cache_new(s->model, &shape);
    s->ids_bytes = feed_bytes(&(Batch){.b = s->n, .shape = forward_shape(s, s->longest)});
    s->ids = device_alloc(d, s->ids_bytes, "token ids");
    s->slot = space_new(d, "activation", SPACE_UNPLANNED);
    s->transient = space_new(d, "transient", SPACE_UNPLANNED);
    s->tape = tape_new(s->context, s->slot, s->transient);
    s->done = mem_zero((size_t)s->n, sizeof *s->done);
}

static void close_session(Session *s) {
    tape_free(s->tape);
    space_free(s->slot);
    space_free(s->transient);
    cache_free(s->model, &s->cache);
    device_release(s->context->device, s->ids, s->ids_bytes);
    free(s->done);
}

static int64_t padding(const Session *s, int64_t sample) { return s->longest - s->out[sample].n_prompt; }

/* Fills sample b of a forward pass that begins at position cache.length. */
static void fill_sample(const Session *s, int64_t b, const Batch *to) {
    const Generated *g = &s->out[b];
    const Prompt *prompt = &s->prompts[b];
    const Sample x = batch_sample(to, b);
    for (int64_t i = 0; i < to->shape.positions; i++) {
        const int64_t at = s->cache.length + i - padding(s, b);
        x.tokens[i] = at >= 0 && at < g->n ? g->tokens[at] : 0; /* left padding, or a sample that has ended */
        x.position_ids[i] = at > 0 ? at : 0;
        if (x.document_start) x.document_start[i] = padding(s, b);
    }
    for (int64_t i = 0; x.encoder_tokens && i < prompt->n; i++) x.encoder_tokens[i] = prompt->tokens[i];
    if (x.encoder_lengths) *x.encoder_lengths = prompt->n;
}

/* Runs `count` positions from cache.length on. The first call also runs the encoder. Returns the logits of
 * these positions, [count, n, padded vocab]. */
static Tensor *feed(Session *s, int64_t count) {
    Batch batch = batch_new(s->n, forward_shape(s, count));
    batch_reset(&batch);
    for (int64_t b = 0; b < s->n; b++) fill_sample(s, b, &batch);
    Tensor field[FIELDS];
    Feed feed = {.cache = &s->cache, .releases = true};
    feed_write(&feed, field, s->context->device, &batch, s->ids);
    batch_free(&batch);
    tape_begin(s->tape, &(MicrobatchContext){.recording = false});
    Tensor *logits = model_forward(s->tape, s->model, &feed);
    s->cache.length += count;
    return op_redistribute(s->tape, logits, AXIS_TP, SPMD_I, 2);
}

static void logits_row(const Session *s, const Tensor *logits, int64_t position, int64_t sample,
                       double *row) {
    const DType type = (DType)logits->dtype;
    const size_t n = (size_t)s->model->plan.vocab, at = (size_t)((position * s->n + sample) * logits->dim[2]);
    DeviceView v = device_view(s->context->device, (const char *)logits->data + at * dtype_size(type),
                               n * dtype_size(type), VIEW_READ);
    dtype_convert(row, F64, v.data, type, n);
    device_view_end(&v);
}

static void append(Session *s, int64_t sample, double *row) {
    Generated *g = &s->out[sample];
    const GenerateOptions *o = s->options;
    int64_t vocab = s->model->plan.vocab;
    double uniform = philox_uniform(o->seed, hash_name("generate"), (uint64_t)sample << 32 | (uint64_t)g->n);
    double *scratch = mem_alloc((size_t)vocab * sizeof *scratch);
    memcpy(scratch, row, (size_t)vocab * sizeof *scratch);
    int64_t id = sampling_choose(&o->sampling, scratch, vocab, uniform);
    free(scratch);
    for (int64_t i = 0; i < o->n_ends; i++) g->stopped |= id == o->ends[i];
    s->done[sample] = g->stopped;
    if (g->stopped) return;
    g->logprobs[g->n - 1] = sampling_logprob(row, vocab, id);
    g->tokens[g->n++] = (int32_t)id;
    g->stopped = s->done[sample] = o->stop && o->stop(o->stop_arg, sample, g->tokens, g->n);
}

static bool all_done(const Session *s) {
    for (int64_t b = 0; b < s->n; b++)
        if (!s->done[b]) return false;
    return true;
}

static void generate_run(Session *s) {
    int64_t vocab = s->model->plan.vocab;
    double *row = mem_alloc((size_t)vocab * sizeof *row);
    Tensor *logits = feed(s, s->longest);
    for (int64_t b = 0; b < s->n; b++)
        for (int64_t i = 0; i + 1 < s->out[b].n_prompt; i++) {
            logits_row(s, logits, padding(s, b) + i, b, row);
            s->out[b].logprobs[i] = sampling_logprob(row, vocab, s->out[b].tokens[i + 1]);
        }
    for (int64_t step = 0, last = s->longest - 1; step < s->options->max_new_tokens; step++, last = 0) {
        for (int64_t b = 0; b < s->n; b++) {
            if (s->done[b]) continue;
            logits_row(s, logits, last, b, row);
            append(s, b, row);
        }
        if (all_done(s) || step + 1 == s->options->max_new_tokens) break;
        logits = feed(s, 1);
    }
    free(row);
}

Err generate(const Model *m, const RunContext *context, const Prompt *prompts, int64_t n,
             const GenerateOptions *o, Generated *out) {
    Session s = {.model = m, .context = context, .options = o, .prompts = prompts, .n = n, .out = out};
    ERR_RETURN(check_prompts(&s));
    ERR_RETURN(comm_agree(context->comm, check_memory(&s)));
    const int32_t start = (int32_t)o->start;
    const Prompt begun = {&start, 1};
    for (int64_t b = 0; b < n; b++) {
        const Prompt *p = s.encoder ? &begun : &prompts[b];
        const int64_t room = p->n + o->max_new_tokens;
        out[b] = (Generated){.n = p->n, .n_prompt = p->n};
        out[b].tokens = mem_zero((size_t)room, sizeof *out[b].tokens);
        out[b].logprobs = mem_zero((size_t)room, sizeof *out[b].logprobs);
        memcpy(out[b].tokens, p->tokens, (size_t)p->n * sizeof *p->tokens);
    }
    open_session(&s);
    generate_run(&s);
    close_session(&s);
    return ERR_OK;
}

void generated_free(Generated *g) {
    free(g->tokens);
    free(g->logprobs);
    *g = (Generated){0};
}
