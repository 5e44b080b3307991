/* A pass of the model: writes the tokens of a step and the tables of their pages to the device, and runs the
 * forward. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "infer/engine_state.h"
#include "infer/stages.h"
#include "ops/take_row.h"

/* ---- padding ---- */

static int ranks_on(const RunContext *c, Axis axis) { return c->layout ? c->layout->mesh.size[axis] : 1; }

bool pass_joins(const Model *m, const RunContext *c) {
    return model_has_experts(&m->plan) && ranks_on(c, AXIS_DP) > 1 &&
           ranks_on(c, AXIS_EP) * ranks_on(c, AXIS_ETP) > 1;
}

static bool pads(const Model *m, const RunContext *c) {
    return pass_joins(m, c) || (model_has_experts(&m->plan) && ranks_on(c, AXIS_TP) > 1);
}

int64_t pass_spare_pages(const Model *m, const RunContext *c, int64_t page) {
    return pads(m, c) ? engine_pages(ranks_on(c, AXIS_TP), page) : 0;
}

/* Tensor-parallel ranks route equal parts of the tokens to experts. A replica without requests needs a token to take
 * part in the pass of the others. */
static int64_t padding(const Model *m, const RunContext *c, int64_t tokens) {
    if (!pads(m, c)) return 0;
    const int64_t tp = ranks_on(c, AXIS_TP), most = tokens ? tokens : 1;
    return (most + tp - 1) / tp * tp - tokens;
}

/* The integers of a pass: the fields of the batch, and tables of pages. The padding consists of tokens at position 0 of
 * one more request, which has the spare pages. */
typedef struct Inputs {
    Batch batch;
    int64_t tokens, padding, chosen, requests, width, encoder_width; /* numbers; widths of the page tables */
} Inputs;

/* Whether the logits of row i of a share are needed. */
static bool is_chosen(const Engine *e, const Share *s, int64_t i) {
    return i >= s->wanted || reports(e, s->live, i);
}

static Inputs inputs_of(const Engine *e, const Pass *p) {
    Inputs in = {.requests = p->n, .width = 1, .encoder_width = 1};
    FieldSet fields = fields_inputs(e->model->plan.sample.fields) & ~FIELD_SET(document_start);
    int64_t encoder = 0;
    for (const Share *s = p->share; s < p->share + p->n; s++) {
        in.tokens += s->n;
        for (int64_t i = s->first; i < s->first + s->n; i++) in.chosen += is_chosen(e, s, i);
        if (s->live->pages.n > in.width) in.width = s->live->pages.n;
        if (s->live->encoder_pages.n > in.encoder_width) in.encoder_width = s->live->encoder_pages.n;
        if (has_encoder(e) && !s->live->encoded) encoder = s->live->request.n;
    }
    in.padding = padding(p->model, tape_context(p->tape), in.tokens);
    in.tokens += in.padding, in.requests += in.padding > 0;
    for (int f = 0; f < FIELDS; f++)
        if (!encoder && (field_info((FieldId)f)->extent == EXTENT_ENCODER || f == FIELD_encoder_lengths))
            fields &= ~(UINT32_C(1) << f);
    in.batch = batch_new(1, (SampleShape){.positions = in.tokens, .encoder = encoder, .fields = fields});
    batch_reset(&in.batch);
    return in;
}

static void fill_batch(const Pass *p, const Inputs *in) {
    const Sample x = batch_sample(&in->batch, 0);
    int64_t at = 0;
    for (const Share *s = p->share; s < p->share + p->n; s++) {
        const Live *live = s->live;
        for (int64_t i = s->first; i < s->first + s->n; i++, at++)
            x.tokens[at] = live->tokens[i + p->depth], x.position_ids[at] = i;
        if (!x.encoder_tokens) continue;
        for (int64_t i = 0; i < live->request.n; i++) x.encoder_tokens[i] = live->request.prompt[i];
        *x.encoder_lengths = live->request.n;
    }
    for (; at < in->tokens; at++) x.position_ids[at] = 0;
}

static int64_t row_of(const PageList *l, int64_t i, int64_t page) {
    return l->page[i / page] * page + i % page;
}

/* Appends integers to the pass's device memory, as a tensor [n] or [n, width]. */
typedef struct Writer {
    Engine *e;
    const Pass *pass;
    char *at;
} Writer;

static Tensor *write_integers(Writer *w, const int64_t *x, int64_t n, int64_t width) {
    Tensor *t = tape_alloc(w->pass->tape, sizeof *t);
    *t = tensor_make(w->at, I64, width ? 2 : 1, (int64_t[]){n, width});
    device_write(w->e->context->device, w->at, x, tensor_bytes(t));
    w->at += tensor_bytes(t);
    return t;
}

static Tensor *write_table(Writer *w, int64_t requests, int64_t width, bool encoder) {
    const Pass *p = w->pass;
    int64_t *x = mem_zero((size_t)(requests * width), sizeof *x);
    for (int64_t r = 0; r < p->n; r++) {
        const Live *live = p->share[r].live;
        const PageList *l = encoder ? &live->encoder_pages : &live->pages;
        memcpy(x + r * width, l->page, (size_t)l->n * sizeof *x);
    }
    if (requests > p->n) x[p->n * width] = w->e->limits.pages;
    Tensor *t = write_integers(w, x, requests, width);
    free(x);
    return t;
}

static void write_encoder(Writer *w, const Inputs *in, Pages *out) {
    const Pass *p = w->pass;
    const int64_t n = in->batch.shape.encoder;
    int64_t *x = mem_zero((size_t)(n > p->n ? n : p->n), sizeof *x);
    for (int64_t r = 0; r < p->n; r++) x[r] = p->share[r].live->request.n;
    out->lengths = write_integers(w, x, p->n, 0);
    for (int64_t i = 0; i < n; i++) x[i] = row_of(&p->share->live->encoder_pages, i, out->page);
    out->row = n ? write_integers(w, x, n, 0) : NULL;
    out->table = write_table(w, p->n, in->encoder_width, true);
    out->request = p->cache->positions.request;
    free(x);
}

/* Writes where the tokens' rows are, and which logits are needed. */
static void write_pages(Writer *w, const Inputs *in, Feed *feed) {
    const Pass *p = w->pass;
    Pages *pages = &p->cache->positions;
    int64_t *row = mem_zero((size_t)in->tokens, sizeof *row),
            *request = mem_zero((size_t)in->tokens, sizeof *row),
            *chosen = mem_zero((size_t)in->chosen + 1, sizeof *chosen);
    int64_t at = 0, n = 0;
    for (int64_t r = 0; r < p->n; r++) {
        const Share *s = &p->share[r];
        for (int64_t i = s->first; i < s->first + s->n; i++, at++) {
            row[at] = row_of(&s->live->pages, i, pages->page), request[at] = r;
            if (is_chosen(w->e, s, i)) chosen[n++] = at;
        }
    }
    for (int64_t i = 0; at < in->tokens; i++, at++)
        row[at] = w->e->limits.pages * pages->page + i, request[at] = p->n;
    pages->row = write_integers(w, row, in->tokens, 0);
    pages->request = write_integers(w, request, in->tokens, 0);
    pages->table = write_table(w, in->requests, in->width, false);
    feed->chosen = write_integers(w, chosen, in->chosen, 0);
    if (has_encoder(w->e)) write_encoder(w, in, &p->cache->encoder);
    free(row), free(request), free(chosen);
}

/* Data-parallel ranks have different tokens. */
static void set_types(const RunContext *c, Tensor field[FIELDS]) {
    for (int f = 0; f < FIELDS && ranks_on(c, AXIS_DP) > 1; f++)
        field[f].spmd = spmd_with(0, AXIS_DP, SPMD_V);
}

/* The outputs [n, 1, h] of the stack before the pass's, at the rows of the pass. */
static Tensor *read_outputs(const Pass *p) {
    Tensor *pool = tape_alloc(p->tape, sizeof *pool);
    *pool = tensor_make(p->before->data, (DType)p->before->dtype, 3,
                        (int64_t[]){p->before->dim[0], 1, p->before->dim[4]});
    pool->spmd = p->before->spmd;
    return op_take_rows(p->tape, pool, p->cache->positions.row);
}

Tensor *pass_run(Engine *e, const Pass *p) {
    Inputs in = inputs_of(e, p);
    Tensor field[FIELDS];
    Device *d = e->context->device;
    Feed feed = {.cache = p->cache, .releases = true};
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
    tape_begin(p->tape, &(MicrobatchContext){.recording = false, .dropless = true});
    fill_batch(p, &in);
    feed_write(&feed, field, d, &in.batch, e->ids);
    set_types(tape_context(p->tape), field);
    write_pages(&(Writer){e, p, e->ids + feed_bytes(&in.batch)}, &in, &feed);
    const PassTokens tokens = {in.tokens, in.batch.shape.encoder, in.chosen};
    batch_free(&in.batch);
    if (p->depth) feed.encoded = read_outputs(p);
    const int64_t start = clock_ns();
    Tensor *logits = stages_forward(p->tape, p->model, p->depth, &feed, &tokens);
    device_wait(d); /* the results are read next */
    e->model_ns += clock_ns() - start;
    return logits;
}
