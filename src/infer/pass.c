/* A pass of the model: writes the tokens of a step and the tables of their pages to the device, and runs the
 * forward. */
#include <stdlib.h>
#include <string.h>

#include "infer/engine_state.h"
#include "ops/redistribute.h"

/* The integers of a pass: the fields of the batch, and tables of pages. */
typedef struct Inputs {
    Batch batch;
    int64_t tokens, chosen, requests, width, encoder_width; /* numbers; widths of the page tables */
} Inputs;

static Inputs inputs_of(const Engine *e) {
    Inputs in = {.requests = e->n_shares, .width = 1, .encoder_width = 1};
    FieldSet fields = fields_inputs(e->model->plan.sample.fields) & ~FIELD_SET(document_start);
    int64_t encoder = 0;
    for (const Share *s = e->share; s < e->share + e->n_shares; s++) {
        in.tokens += s->n;
        in.chosen += s->live->computed + s->n == s->live->n;
        for (int64_t i = s->live->computed; i < s->live->computed + s->n; i++)
            in.chosen += reports(e, s->live, i);
        if (s->live->pages.n > in.width) in.width = s->live->pages.n;
        if (s->live->encoder_pages.n > in.encoder_width) in.encoder_width = s->live->encoder_pages.n;
        if (has_encoder(e) && !s->live->encoded) encoder = s->live->request.n;
    }
    for (int f = 0; f < FIELDS; f++)
        if (!encoder && (field_info((FieldId)f)->extent == EXTENT_ENCODER || f == FIELD_encoder_lengths))
            fields &= ~(UINT32_C(1) << f);
    in.batch = batch_new(1, (SampleShape){.positions = in.tokens, .encoder = encoder, .fields = fields});
    batch_reset(&in.batch);
    return in;
}

static void fill_batch(const Engine *e, const Inputs *in) {
    const Sample x = batch_sample(&in->batch, 0);
    int64_t at = 0;
    for (const Share *s = e->share; s < e->share + e->n_shares; s++) {
        const Live *live = s->live;
        for (int64_t i = live->computed; i < live->computed + s->n; i++, at++)
            x.tokens[at] = live->tokens[i], x.position_ids[at] = i;
        if (!x.encoder_tokens) continue;
        for (int64_t i = 0; i < live->request.n; i++) x.encoder_tokens[i] = live->request.prompt[i];
        *x.encoder_lengths = live->request.n;
    }
}

static int64_t row_of(const PageList *l, int64_t i, int64_t page) {
    return l->page[i / page] * page + i % page;
}

/* Appends integers to the pass's device memory, as a tensor [n] or [n, width]. */
typedef struct Writer {
    Engine *e;
    char *at;
} Writer;

static Tensor *write_integers(Writer *w, const int64_t *x, int64_t n, int64_t width) {
    Tensor *t = tape_alloc(w->e->tape, sizeof *t);
    *t = tensor_make(w->at, I64, width ? 2 : 1, (int64_t[]){n, width});
    device_write(w->e->context->device, w->at, x, tensor_bytes(t));
    w->at += tensor_bytes(t);
    return t;
}

static Tensor *write_table(Writer *w, int64_t width, bool encoder) {
    const Engine *e = w->e;
    int64_t *x = mem_zero((size_t)(e->n_shares * width), sizeof *x);
    for (int64_t r = 0; r < e->n_shares; r++) {
        const Live *live = e->share[r].live;
        const PageList *l = encoder ? &live->encoder_pages : &live->pages;
        memcpy(x + r * width, l->page, (size_t)l->n * sizeof *x);
    }
    Tensor *t = write_integers(w, x, e->n_shares, width);
    free(x);
    return t;
}

static void write_encoder(Writer *w, const Inputs *in, Pages *out) {
    Engine *e = w->e;
    const int64_t n = in->batch.shape.encoder;
    int64_t *x = mem_zero((size_t)(n > e->n_shares ? n : e->n_shares), sizeof *x);
    for (int64_t r = 0; r < e->n_shares; r++) x[r] = e->share[r].live->request.n;
    out->lengths = write_integers(w, x, e->n_shares, 0);
    for (int64_t i = 0; i < n; i++) x[i] = row_of(&e->share->live->encoder_pages, i, e->limits.page);
    out->row = n ? write_integers(w, x, n, 0) : NULL;
    out->table = write_table(w, in->encoder_width, true);
    out->request = e->cache.positions.request;
    free(x);
}

/* Writes where the tokens' rows are, and which logits are needed. */
static void write_pages(Writer *w, const Inputs *in, Feed *feed) {
    Engine *e = w->e;
    int64_t *row = mem_zero((size_t)in->tokens, sizeof *row),
            *request = mem_zero((size_t)in->tokens, sizeof *row),
            *chosen = mem_zero((size_t)in->chosen + 1, sizeof *chosen);
    int64_t at = 0, n = 0;
    for (int64_t r = 0; r < e->n_shares; r++) {
        const Live *live = e->share[r].live;
        const int64_t end = live->computed + e->share[r].n;
        for (int64_t i = live->computed; i < end; i++, at++) {
            row[at] = row_of(&live->pages, i, e->limits.page), request[at] = r;
            if (reports(e, live, i) || i + 1 == live->n) chosen[n++] = at;
        }
    }
    Pages *p = &e->cache.positions;
    p->row = write_integers(w, row, in->tokens, 0);
    p->request = write_integers(w, request, in->tokens, 0);
    p->table = write_table(w, in->width, false);
    feed->chosen = write_integers(w, chosen, in->chosen, 0);
    if (has_encoder(e)) write_encoder(w, in, &e->cache.encoder);
    free(row), free(request), free(chosen);
}

Tensor *pass_run(Engine *e) {
    Inputs in = inputs_of(e);
    Tensor field[FIELDS];
    Device *d = e->context->device;
    Feed feed = {.cache = &e->cache, .releases = true};
    const size_t integers =
                     (size_t)(2 * in.tokens + in.chosen + in.requests * (in.width + in.encoder_width + 1) +
                              in.batch.shape.encoder) *
                     sizeof(int64_t),
                 bytes = feed_bytes(&in.batch) + integers;
    if (bytes > e->ids_bytes) {
        device_release(d, e->ids, e->ids_bytes);
        e->ids = device_alloc(d, bytes, "the tokens of a pass");
        e->ids_bytes = bytes;
    }
    tape_begin(e->tape, &(MicrobatchContext){.recording = false, .dropless = true});
    fill_batch(e, &in);
    feed_write(&feed, field, d, &in.batch, e->ids);
    write_pages(&(Writer){e, e->ids + feed_bytes(&in.batch)}, &in, &feed);
    batch_free(&in.batch);
    Tensor *logits = model_forward(e->tape, e->model, &feed);
    return op_redistribute(e->tape, logits, AXIS_TP, SPMD_I, 2);
}
