#include "infer/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/hash.h"
#include "base/philox.h"

enum { IDS = 3 };

typedef struct Session {
    const Model *model;
    const RunContext *context;
    const GenerateOptions *options;
    Space *slot, *transient;
    Tape *tape;
    KvCache cache;
    char *ids; /* tokens, positions and first keys of a forward */
    size_t ids_bytes;
    int64_t n, longest, capacity; /* samples; longest prompt; positions in the cache */
    Generated *out;
    bool *done;
} Session;

static Err check_prompts(const Derived *c, const Prompt *prompts, int64_t n, const GenerateOptions *o,
                         int64_t *longest) {
    *longest = 0;
    for (int64_t i = 0; i < n; i++) {
        if (prompts[i].n < 1)
            return err_user("prompt %lld is empty; give it at least one token", (long long)i + 1);
        if (prompts[i].n > *longest) *longest = prompts[i].n;
        for (int64_t j = 0; j < prompts[i].n; j++)
            if (prompts[i].tokens[j] < 0 || prompts[i].tokens[j] >= c->vocab_size)
                return err_user("token %d of prompt %lld is outside the model's vocabulary of %lld; is this "
                                "the model's tokenizer?",
                                prompts[i].tokens[j], (long long)i + 1, (long long)c->vocab_size);
    }
    if (*longest + o->max_new_tokens > c->max_position_embeddings)
        return err_user("%lld prompt tokens and %lld new ones exceed the model's %lld positions; shorten the "
                        "prompt or ask for "
                        "fewer tokens",
                        (long long)*longest, (long long)o->max_new_tokens,
                        (long long)c->max_position_embeddings);
    return ERR_OK;
}

/* The memory that grows with the prompts and the new tokens. The logits of all prompt tokens exist at once. */
static Err check_memory(const Session *s) {
    const double cache = model_cache_bytes(s->model, s->context->dtype, s->capacity, s->n),
                 logits = (double)s->n * (double)s->longest * (double)s->model->derived->padded_vocab_size *
                          (double)dtype_size(s->context->dtype),
                 have = (double)device_memory_available(s->context->device);
    if (cache + logits <= have) return ERR_OK;
    return err_user("the KV cache of %s of %s takes %s and the logits of the prompts "
                    "take %s, but %s "
                    "are available; lower --tokens-to-generate, or give fewer or shorter prompts at a time",
                    amount(s->n, "sequence").s, amount(s->capacity, "token").s, bytes_text(cache).s,
                    bytes_text(logits).s, bytes_text(have).s);
}

static void open_session(Session *s) {
    Device *d = s->context->device;
    s->cache = model_cache_new(s->model, s->context->dtype, s->capacity, s->n);
    s->ids_bytes = IDS * (size_t)(s->n * s->longest) * sizeof(int64_t);
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
    model_cache_free(s->model, &s->cache);
    device_release(s->context->device, s->ids, s->ids_bytes);
    free(s->done);
}

static int64_t padding(const Session *s, int64_t sample) { return s->longest - s->out[sample].n_prompt; }

/* Feeds `count` positions starting at cache.length. Leaves the logits of all of them in *logits [count, n,
 * padded vocab]. */
static Tensor *feed(Session *s, int64_t count) {
    int64_t first = s->cache.length, cells = s->n * count;
    int64_t *tokens = mem_zero(IDS * (size_t)cells, sizeof *tokens), *position = tokens + cells,
            *first_key = position + cells;
    for (int64_t b = 0; b < s->n; b++) {
        const Generated *g = &s->out[b];
        for (int64_t i = 0; i < count; i++) {
            int64_t at = first + i - padding(s, b), cell = b * count + i;
            tokens[cell] =
                at >= 0 && at < g->n ? g->tokens[at] : 0; /* left padding, or a sample that has ended */
            position[cell] = at > 0 ? at : 0;
            first_key[cell] = padding(s, b);
        }
    }
    const int64_t dim[] = {s->n, count};
    const size_t bytes = (size_t)cells * sizeof *tokens;
    Tensor ids[IDS];
    for (int i = 0; i < IDS; i++) ids[i] = tensor_make(s->ids + (size_t)i * bytes, I64, 2, dim);
    device_write(s->context->device, s->ids, tokens, IDS * bytes);
    free(tokens);
    const Feed feed = {
        .tokens = &ids[0], .position_ids = &ids[1], .document_start = &ids[2], .cache = &s->cache};
    tape_begin(s->tape, &(MicrobatchContext){.recording = false});
    Tensor *logits = model_forward(s->tape, s->model, &feed);
    s->cache.length += count;
    return logits;
}

static void logits_row(const Session *s, const Tensor *logits, int64_t position, int64_t sample,
                       double *row) {
    const DType type = (DType)logits->dtype;
    const size_t n = (size_t)s->model->derived->vocab_size,
                 at = (size_t)((position * s->n + sample) * logits->dim[2]);
    DeviceView v = device_view(s->context->device, (const char *)logits->data + at * dtype_size(type),
                               n * dtype_size(type), VIEW_READ);
    dtype_convert(row, F64, v.data, type, n);
    device_view_end(&v);
}

static void append(Session *s, int64_t sample, double *row) {
    Generated *g = &s->out[sample];
    const GenerateOptions *o = s->options;
    int64_t vocab = s->model->derived->vocab_size;
    double uniform = philox_uniform(o->seed, hash_name("generate"), (uint64_t)sample << 32 | (uint64_t)g->n);
    double *scratch = mem_alloc((size_t)vocab * sizeof *scratch);
    memcpy(scratch, row, (size_t)vocab * sizeof *scratch);
    int64_t id = sampling_choose(&o->sampling, scratch, vocab, uniform);
    free(scratch);
    if (id == o->eod) {
        g->stopped = s->done[sample] = true;
        return;
    }
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
    int64_t vocab = s->model->derived->vocab_size;
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
    Session s = {.model = m, .context = context, .options = o, .n = n, .out = out};
    ERR_RETURN(check_prompts(m->derived, prompts, n, o, &s.longest));
    s.capacity = s.longest + o->max_new_tokens;
    ERR_RETURN(check_memory(&s));
    for (int64_t b = 0; b < n; b++) {
        int64_t room = prompts[b].n + o->max_new_tokens;
        out[b] = (Generated){.n = prompts[b].n, .n_prompt = prompts[b].n};
        out[b].tokens = mem_zero((size_t)room, sizeof *out[b].tokens);
        out[b].logprobs = mem_zero((size_t)room, sizeof *out[b].logprobs);
        memcpy(out[b].tokens, prompts[b].tokens, (size_t)prompts[b].n * sizeof *prompts[b].tokens);
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
