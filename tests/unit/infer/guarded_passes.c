/* Checks each pass of an engine: it must read no row that it has not computed, and change only its own rows. Before the
 * pass, the rows that it will write and those after them are NaN. Afterwards, all other rows of the pools must be
 * unchanged, whether or not a request or a named page uses them. The linker replaces pass_run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "infer/engine_state.h"
#include "models/cache.h"

Tensor __real_pass_run(Engine *, const Pass *);
Tensor __wrap_pass_run(Engine *, const Pass *);

/* The rows of a pool that a pass may change, and those that must be NaN before it. */
typedef struct Marks {
    bool *written, *stale; /* [rows] */
} Marks;

/* Whether another request uses the page. */
static bool is_shared(const Engine *e, const Live *live, bool encoder, int64_t page) {
    for (int64_t i = 0; i < e->running.n; i++) {
        const Live *other = e->running.at[i];
        const PageList *l = encoder ? &other->encoder_pages : &other->pages;
        for (int64_t k = 0; other != live && k < l->n; k++)
            if (l->page[k] == page) return true;
    }
    return false;
}

/* Marks the rows from `first` on; the first n of them are written. */
static void mark(const Engine *e, const Live *live, bool encoder, int64_t first, int64_t n, Marks *m) {
    const PageList *l = encoder ? &live->encoder_pages : &live->pages;
    const int64_t page = e->limits.page;
    for (int64_t i = first; i < l->n * page; i++) {
        const int64_t at = l->page[i / page], row = at * page + i % page;
        m->written[row] |= i < first + n;
        m->stale[row] = !is_shared(e, live, encoder, at);
    }
}

static void mark_pass(const Engine *e, const Pass *p, bool encoder, Marks *m) {
    for (const Share *s = p->share; s < p->share + p->n; s++)
        if (!encoder)
            mark(e, s->live, false, s->first, s->n, m);
        else if (!s->live->encoded)
            mark(e, s->live, true, 0, s->live->request.n, m);
}

static bool has_row_per_request(const Engine *e, const Tensor *pool) { return pool->dim[0] < e->limits.page; }

/* A request that begins does not read its state. */
static void mark_states(const Engine *e, const Pass *p, Marks *m) {
    for (const Share *s = p->share; s < p->share + p->n; s++)
        m->written[*s->live->state.page] = true, m->stale[*s->live->state.page] = !s->first;
    m->written[e->limits.requests] = m->stale[e->limits.requests] = true;
}

static void make_nan(const Tensor *pool, const Marks *m, char *bytes) {
    const double nan = NAN;
    const size_t size = dtype_size((DType)pool->dtype), row = tensor_bytes(pool) / (size_t)pool->dim[0];
    for (int64_t i = 0; i < pool->dim[0]; i++)
        for (size_t k = 0; m->stale[i] && k < row; k += size)
            dtype_convert(bytes + (size_t)i * row + k, (DType)pool->dtype, &nan, F64, 1);
}

static void check(const Tensor *pool, const Marks *m, const char *before, const char *after) {
    const size_t row = tensor_bytes(pool) / (size_t)pool->dim[0];
    for (size_t i = 0; i < (size_t)pool->dim[0]; i++)
        CHECK(m->written[i] || m->stale[i] || !memcmp(before + i * row, after + i * row, row),
              "a pass has changed row %zu of a pool, which is not its own", i);
}

static size_t offset_of(const Cache *c, int pool) {
    return (size_t)((char *)c->pool[pool].data - (char *)c->block);
}

Tensor __wrap_pass_run(Engine *e, const Pass *p) {
    Device *d = e->context->device;
    const Cache *c = p->cache;
    CHECK(e->limits.pages != e->limits.encoder_pages,
          "pools of positions and of encoders have the same size");
    char *before = mem_alloc(c->bytes);
    Marks *marks = mem_zero((size_t)c->n + 1, sizeof *marks);
    DeviceView view = device_view(d, c->block, c->bytes, VIEW_READ | VIEW_WRITE);
    for (int i = 0; i < c->n; i++) {
        const Tensor *pool = &c->pool[i];
        const int64_t rows = pool->dim[0];
        marks[i] = (Marks){mem_zero((size_t)rows, 1), mem_zero((size_t)rows, 1)};
        if (has_row_per_request(e, pool))
            mark_states(e, p, &marks[i]);
        else
            mark_pass(e, p, has_encoder(e) && rows == e->limits.page * e->limits.encoder_pages, &marks[i]);
        for (int64_t row = e->limits.page * e->limits.pages; row < rows && !has_encoder(e); row++)
            marks[i].written[row] = true; /* of tokens that only fill the pass */
        make_nan(pool, &marks[i], (char *)view.data + offset_of(c, i));
    }
    memcpy(before, view.data, c->bytes);
    device_view_end(&view);
    const Tensor out = __real_pass_run(e, p);
    view = device_view(d, c->block, c->bytes, VIEW_READ);
    for (int i = 0; i < c->n; i++) {
        const size_t at = offset_of(c, i);
        check(&c->pool[i], &marks[i], before + at, (char *)view.data + at);
        free(marks[i].written), free(marks[i].stale);
    }
    device_view_end(&view);
    free(marks), free(before);
    return out;
}
