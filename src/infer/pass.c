/* Runs one pass of the model: writes a step's tokens and page tables to the device, and runs the forward pass. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "infer/engine_state.h"
#include "infer/stages.h"
#include "ops/choose.h"
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
    return pads(m, c) ? engine_pages(ranks_on(c, AXIS_TP), page) : device_has_graphs(c->device);
}

/* Returns the number of padding tokens. Each tensor-parallel rank routes an equal part of the tokens to experts. A
 * replica without requests needs one token to participate in the other replicas' pass. */
static int64_t padding(const Model *m, const RunContext *c, int64_t tokens) {
    if (!pads(m, c)) return 0;
    const int64_t tp = ranks_on(c, AXIS_TP), most = tokens ? tokens : 1;
    return (most + tp - 1) / tp * tp - tokens;
}

/* A pass's integers: the batch fields and the page tables. The padding consists of tokens at position 0 of an extra
 * request, which uses the spare pages. */
typedef struct Inputs {
    Batch batch;
    /* the numbers of tokens, padding tokens, chosen rows and requests; the page tables' widths */
    int64_t tokens, padding, chosen, requests, width, encoder_width;
    /* whether each token belongs to a different request, so that the numbers and widths match a PassGraph */
    bool graph;
} Inputs;

static int64_t most_tiles(const Inputs *in) { return in->requests + in->tokens / PAGED_TILE; }

/* Returns whether the logits of row i of a share are needed. */
static bool is_chosen(const Engine *e, const Share *s, int64_t i) {
    return i >= s->wanted || reports(e, s->live, i);
}

/* Returns the first of 1, 2, 3, 4, 6, 8, 12, 16, ... that is at least n. */
static int64_t class_of(int64_t n) {
    int64_t size = 1;
    while (size < n) size *= 2;
    return size >= 4 && size / 4 * 3 >= n ? size / 4 * 3 : size;
}

/* Returns whether each request in the pass gets one next token, so that the pass can be captured as a CUDA graph. */
static bool fits_graph(const Engine *e, const Pass *p) {
    const RunContext *c = tape_context(p->tape);
    bool fits = !e->limits.no_graphs && device_has_graphs(c->device) && !c->comm && p->cache == &e->cache &&
                !has_encoder(e) && !model_has_experts(&p->model->plan);
    for (const Share *s = p->share; s < p->share + p->n; s++)
        fits = fits && s->n == 1 && s->first >= s->wanted;
    return fits;
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
    in.graph = fits_graph(e, p);
    in.padding =
        in.graph ? class_of(in.tokens) - in.tokens : padding(p->model, tape_context(p->tape), in.tokens);
    in.tokens += in.padding, in.requests += in.padding > 0;
    if (in.graph) in.chosen = in.tokens, in.requests = in.tokens + 1;
    while (in.graph && in.width & (in.width - 1)) in.width++; /* powers of two limit the number of graphs */
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

/* Appends integers to the pass's memory, as a tensor [n] or [n, width]. */
typedef struct Writer {
    Engine *e;
    const Pass *pass;
    size_t at; /* offset in ids and host_ids */
    Tensor tensor[10];
    int n;
} Writer;

static Tensor *write_integers(Writer *w, const int64_t *x, int64_t n, int64_t width) {
    Tensor *t = &w->tensor[w->n++];
    *t = tensor_make(w->e->ids + w->at, I64, width ? 2 : 1, (int64_t[]){n, width});
    memcpy(w->e->host_ids + w->at, x, tensor_bytes(t));
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
    out->request = p->cache->positions.request, out->tiles = p->cache->positions.tiles;
    free(x);
}

/* Appends the tiles for tokens [first, first + n), and returns the new number of tiles. */
static int64_t add_tiles(int64_t *x, int64_t tiles, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i += PAGED_TILE) x[tiles++] = first + i;
    return tiles;
}

/* Writes the pass's tiles. Returns NULL if each request has one token. */
static Tensor *write_tiles(Writer *w, const Inputs *in) {
    if (in->graph || in->tokens == in->requests) return NULL;
    int64_t *x = mem_zero((size_t)most_tiles(in), sizeof *x), tiles = 0, at = 0;
    for (const Share *s = w->pass->share; s < w->pass->share + w->pass->n; at += s++->n)
        tiles = add_tiles(x, tiles, at, s->n);
    Tensor *t = write_integers(w, x, add_tiles(x, tiles, at, in->padding), 0);
    free(x);
    return t;
}

/* Writes where the tokens' rows are stored and which logits are required. Returns the parameters (ChoiceRow) for
 * choosing from these logits. */
static Tensor *write_pages(Writer *w, const Inputs *in, Feed *feed) {
    const Pass *p = w->pass;
    Pages *pages = &p->cache->positions;
    int64_t *row = mem_zero((size_t)in->tokens, sizeof *row),
            *request = mem_zero((size_t)in->tokens, sizeof *row),
            *slot = mem_zero((size_t)in->tokens, sizeof *row),
            *chosen = mem_zero((size_t)in->chosen + 1, sizeof *chosen);
    ChoiceRow *how = mem_zero((size_t)in->chosen + 1, sizeof *how);
    int64_t at = 0, n = 0;
    for (int64_t r = 0; r < p->n; r++) {
        const Share *s = &p->share[r];
        for (int64_t i = s->first; i < s->first + s->n; i++, at++) {
            row[at] = row_of(&s->live->pages, i, pages->page), request[at] = r;
            slot[at] = s->live->state.n ? *s->live->state.page : 0;
            if (!is_chosen(w->e, s, i)) continue;
            how[n] = choice_row(s->live, i + 1 + p->depth), chosen[n++] = at;
        }
    }
    const int64_t spare = pass_spare_pages(p->model, tape_context(p->tape), pages->page) * pages->page;
    for (int64_t i = 0; at < in->tokens; i++, at++) /* padding tokens are equal, so they may share rows */
        row[at] = w->e->limits.pages * pages->page + i % spare, request[at] = p->n,
        slot[at] = w->e->limits.requests;
    while (n < in->chosen) chosen[n] = n, n++;
    pages->row = write_integers(w, row, in->tokens, 0);
    pages->request = write_integers(w, request, in->tokens, 0);
    p->cache->slot = write_integers(w, slot, in->tokens, 0);
    pages->table = write_table(w, in->requests, in->width, false);
    pages->tiles = write_tiles(w, in);
    feed->chosen = write_integers(w, chosen, in->chosen, 0);
    if (has_encoder(w->e)) write_encoder(w, in, &p->cache->encoder);
    Tensor *rows = write_integers(w, (const int64_t *)how, in->chosen, CHOICE_ROW_WORDS);
    free(row), free(request), free(slot), free(chosen), free(how);
    return rows;
}

/* Sets the SPMD types of the fields. Data-parallel ranks have different tokens. */
static void set_types(const RunContext *c, Tensor field[FIELDS]) {
    for (int f = 0; f < FIELDS && ranks_on(c, AXIS_DP) > 1; f++)
        field[f].spmd = spmd_with(0, AXIS_DP, SPMD_V);
}

/* Returns the previous stack's outputs [n, 1, h] for the pass's rows. */
static Tensor *read_outputs(const Pass *p) {
    Tensor *pool = tape_alloc(p->tape, sizeof *pool);
    *pool = tensor_make(p->before->data, (DType)p->before->dtype, 3,
                        (int64_t[]){p->before->dim[0], 1, p->before->dim[4]});
    pool->spmd = p->before->spmd;
    return op_take_rows(p->tape, pool, p->cache->positions.row);
}

/* Provides memory for a pass's integers, and for the tokens that the pass chooses. */
static void make_room(Engine *e, size_t bytes) {
    Device *d = e->context->device;
    if (bytes <= e->ids_bytes) return;
    pass_close(e); /* graphs contain the old addresses */
    e->ids = device_alloc(d, bytes, "the tokens of a pass");
    e->host_ids = device_host_alloc(d, bytes, "the tokens of a pass");
    e->ids_bytes = bytes;
}

void pass_close(Engine *e) {
    Device *d = e->context->device;
    for (int i = 0; i < e->n_graphs; i++) device_recording_drop(d, &e->graph[i].work);
    free(e->graph);
    device_release(d, e->ids, e->ids_bytes);
    device_host_release(d, e->host_ids, e->ids_bytes);
    e->graph = NULL, e->n_graphs = 0, e->ids = e->host_ids = NULL, e->ids_bytes = 0;
}

typedef struct Work {
    const Pass *pass;
    Feed *feed;
    PassTokens tokens;
    Tensor *how, logits, choice;
} Work;

static void forward(void *arg) {
    Work *w = arg;
    Tape *t = w->pass->tape;
    tape_begin(t, &(MicrobatchContext){.recording = false, .dropless = true, .steady = true});
    if (w->pass->depth) w->feed->encoded = read_outputs(w->pass);
    Tensor *logits = stages_forward(t, w->pass->model, w->pass->depth, w->feed, &w->tokens);
    w->logits = *logits;
    if (w->tokens.chosen) w->choice = *op_choose(t, logits, w->how, w->pass->model->plan.vocab);
}

static PassGraph *graph_of(Engine *e, const Inputs *in) {
    for (int i = 0; i < e->n_graphs; i++)
        if (e->graph[i].tokens == in->tokens && e->graph[i].width == in->width) return &e->graph[i];
    e->graph = mem_grow(e->graph, (size_t)e->n_graphs + 1, sizeof *e->graph);
    e->graph[e->n_graphs] = (PassGraph){.tokens = in->tokens, .width = in->width};
    return &e->graph[e->n_graphs++];
}

/* Runs the forward pass, or replays its graph. */
static void run(Engine *e, const Inputs *in, Work *w) {
    if (!in->graph) {
        forward(w);
        return;
    }
    PassGraph *g = graph_of(e, in);
    w->logits = g->logits, w->choice = g->choice;
    device_replay(e->context->device, &g->work, forward, w);
    g->logits = w->logits, g->choice = w->choice;
}

Tensor pass_run(Engine *e, const Pass *p) {
    Inputs in = inputs_of(e, p);
    Tensor field[FIELDS];
    Device *d = e->context->device;
    Feed feed = {.cache = p->cache, .releases = true};
    const size_t results = (size_t)in.chosen * sizeof(Chosen),
                 integers =
                     (size_t)(3 * in.tokens + most_tiles(&in) + in.chosen * (1 + CHOICE_ROW_WORDS) +
                              in.requests * (in.width + in.encoder_width + 1) + in.batch.shape.encoder) *
                     sizeof(int64_t);
    make_room(e, feed_bytes(&in.batch) + integers + results);
    e->choice = (const Chosen *)e->host_ids;
    fill_batch(p, &in);
    Writer w = {e, p, results, .n = 0};
    feed_write(&feed, field, &in.batch, e->ids + w.at, e->host_ids + w.at);
    w.at += feed_bytes(&in.batch);
    set_types(tape_context(p->tape), field);
    Work work = {.pass = p,
                 .feed = &feed,
                 .tokens = {in.tokens, in.batch.shape.encoder, in.chosen},
                 .how = write_pages(&w, &in, &feed)};
    batch_free(&in.batch);
    const int64_t start = clock_ns();
    device_copy(d, e->ids + results, e->host_ids + results, w.at - results); /* runs after earlier kernels */
    run(e, &in, &work);
    if (results) device_copy(d, e->host_ids, work.choice.data, results);
    device_wait(d); /* the host reads the results next */
    e->model_ns += clock_ns() - start;
    return work.logits;
}
