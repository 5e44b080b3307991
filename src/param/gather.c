#include "param/gather.h"

#include <stdlib.h>

#include "param/bucket.h"
#include "param/bucket_pool.h"
#include "param/fp8_weights.h"

enum { SLOTS = 2 }; /* one slot for the bucket in use, and one slot for the next bucket */

typedef struct Piece {
    CommWork *work; /* NULL if the gather has not been started, or is complete */
    bool stale;     /* below stage 3: whether the gather has not been started since the last gather_publish */
    void *slot;     /* used at stage 3 */
    int64_t used;   /* the number of the last gather_use call for this bucket */
    bool attends;   /* whether an attention op has run while this was the last used bucket */
} Piece;

struct Gather {
    Registry *registry;
    Comm *comm;
    Piece *piece; /* [n_buckets] */
    BucketPool slots;
    bool in_graph; /* whether a CUDA graph starts the gathers instead of gather_publish */
    int64_t now;   /* number of gather_use calls so far */
    /* last: the last used bucket; way: 1 if bucket numbers rise (in a backward pass), -1 if bucket numbers
     * fall */
    int last, way;
    int due; /* the bucket whose gather starts at the next attention op, or -1 if there is none */
};

static Bucket *bucket(const Gather *g, int k) { return &g->registry->buckets[k]; }
static bool is_gathered(const Gather *g, int k) {
    return bucket_is_shared(g->registry, bucket(g, k), FLAT_STATE);
}
static bool is_dropped(const Gather *g, int k) {
    return bucket_is_shared(g->registry, bucket(g, k), bucket_values(bucket(g, k)));
}

static size_t value_bytes(const Gather *g, int k) {
    const Bucket *b = bucket(g, k);
    return (size_t)(b->end - b->begin) * dtype_size(registry_dtype(g->registry, bucket_values(b)));
}

/* Returns the first of the buckets that share a slot with bucket k. Mates share a slot, and the bucket with FP8
 * weights comes last in the slot. */
static int lead_of(const Gather *g, int k) {
    const Bucket *b = bucket(g, k);
    return b->fp8 && b->mate >= 0 ? b->mate : k;
}

static size_t slot_bytes(const Gather *g, int lead) {
    const int mate = bucket(g, lead)->mate;
    return value_bytes(g, lead) + (mate < 0 ? 0 : value_bytes(g, mate));
}

Gather *gather_new(Registry *r, Comm *comm) {
    Gather *g = mem_zero(1, sizeof *g);
    *g = (Gather){.registry = r, .comm = comm, .way = -1, .last = r->n_buckets, .due = -1};
    g->piece = mem_zero((size_t)r->n_buckets, sizeof *g->piece);
    g->slots = (BucketPool){.registry = r, .comm = comm, .what = "gathered parameters"};
    for (int k = 0; k < r->n_buckets; k++) {
        const size_t bytes = slot_bytes(g, k);
        if (is_dropped(g, k) && bytes > g->slots.bytes) g->slots.bytes = bytes;
    }
    return g;
}

static void start(Gather *g, int k) {
    Registry *r = g->registry;
    g->piece[k].stale = false;
    const Bucket *b = bucket(g, k);
    const FlatRange part = bucket_part(r, b);
    const FlatBuffer which = bucket_values(b);
    void *flat = b->fp8 ? r->fp8 : r->values, *out = g->piece[k].slot;
    const Tensor in = registry_slice(r, which, flat, k, part.begin, b->shard);
    if (!out) out = registry_slice(r, which, flat, k, b->begin, b->end - b->begin).data;
    if (g->comm)
        g->piece[k].work = comm_start(g->comm, &(CommCall){.kind = COMM_ALL_GATHER,
                                                           .dtype = registry_dtype(r, which),
                                                           .group = b->inner,
                                                           .site = "param_gather",
                                                           .in = in.data,
                                                           .out = out,
                                                           .n = b->shard,
                                                           .device = r->device});
}

static void finish(Gather *g, int k) {
    if (g->piece[k].work) comm_wait(g->comm, g->piece[k].work);
    g->piece[k].work = NULL;
}

static void finish_all(Gather *g) {
    for (int k = 0; k < g->registry->n_buckets; k++) finish(g, k);
}

/* ---- stage 3 ---- */

static void show(Gather *g, int k, char *slot) {
    const Bucket *b = bucket(g, k);
    g->piece[k].slot = slot;
    for (int i = b->first; i < b->first + b->n; i++) {
        Param *p = g->registry->laid[i];
        p->value.data =
            slot ? slot + (p->offset - b->begin) * (int64_t)dtype_size((DType)p->value.dtype) : NULL;
    }
}

/* Points the parameters of a slot's buckets to the slot, or to no memory if `slot` is NULL. `lead` is the first
 * bucket in the slot. */
static void show_slot(Gather *g, int lead, char *slot) {
    const int mate = bucket(g, lead)->mate;
    show(g, lead, slot);
    if (mate >= 0) show(g, mate, slot ? slot + value_bytes(g, lead) : NULL);
}

static void drop(Gather *g, int lead) {
    const int mate = bucket(g, lead)->mate;
    finish(g, lead);
    if (mate >= 0) finish(g, mate);
    if (g->piece[lead].slot) bucket_pool_give(&g->slots, g->piece[lead].slot);
    show_slot(g, lead, NULL);
}

/* Returns the least recently used slot that the current call does not use. */
static int oldest(const Gather *g) {
    int found = -1;
    for (int k = 0; k < g->registry->n_buckets; k++)
        if (g->piece[k].slot && lead_of(g, k) == k && g->piece[k].used < g->now &&
            (found < 0 || g->piece[k].used < g->piece[found].used))
            found = k;
    return found;
}

static void ensure(Gather *g, int k) {
    const int lead = lead_of(g, k), mate = bucket(g, lead)->mate;
    if (g->piece[k].stale) start(g, k);
    if (!is_dropped(g, k)) return;
    if (!g->piece[lead].slot) {
        const int old = bucket_pool_can_take(&g->slots, SLOTS) ? -1 : oldest(g);
        if (old >= 0) drop(g, old);
        show_slot(g, lead, bucket_pool_take(&g->slots));
        start(g, lead);
        if (mate >= 0) start(g, mate);
    }
    g->piece[lead].used = g->now;
}

static void start_due(Gather *g) {
    const int mate = g->due < 0 ? -1 : bucket(g, g->due)->mate;
    if (g->due >= 0) ensure(g, g->due);
    if (mate >= 0) ensure(g, mate);
    g->due = -1;
}

/* Returns whether the bucket can be gathered by itself, before its first use. */
static bool begins_slot(const Gather *g, int k) { return bucket(g, k)->trained && lead_of(g, k) == k; }

void gather_use(Gather *g, Param *const *p, int n) {
    g->now++;
    for (int i = 0; i < n; i++) ensure(g, p[i]->bucket);
    for (int i = 0; i < n; i++) finish(g, p[i]->bucket);
    const int lead = n ? lead_of(g, p[0]->bucket) : g->last;
    if (!g->registry->layout.data.overlap_values || lead == g->last) return;
    g->way = lead > g->last ? 1 : -1;
    g->last = lead;
    int next = g->last + g->way;
    while (next >= 0 && next < g->registry->n_buckets && !begins_slot(g, next)) next += g->way;
    if (next >= 0 && next < g->registry->n_buckets) g->due = next;
    if (!g->registry->layout.data.with_attention || !g->piece[g->last].attends) start_due(g);
}

void gather_attention(Gather *g) {
    if (g->last < g->registry->n_buckets) g->piece[g->last].attends = true;
    start_due(g);
}

/* ---- all stages ---- */

/* Sets `stale` for buckets that are gathered in place (below stage 3), and drops buckets gathered at stage 3. The next
 * gather_use must belong to a new forward pass. */
static void set_stale(Gather *g, bool stale) {
    g->last = g->registry->n_buckets, g->way = g->due = -1;
    for (int k = 0; k < g->registry->n_buckets; k++) {
        if (is_dropped(g, k))
            drop(g, lead_of(g, k));
        else
            g->piece[k].stale = stale && is_gathered(g, k);
    }
}

/* Starts gathering stale buckets, from the last bucket down to bucket `last`. The next forward pass uses the
 * buckets in the same order. */
static void start_until(Gather *g, int last) {
    for (int k = g->registry->n_buckets; k-- > last;)
        if (g->piece[k].stale) start(g, k);
}

static void start_first(Gather *g) {
    const Layout *l = &g->registry->layout;
    const DataParallel *data = &l->data;
    const bool one = data->overlap_values && data->with_attention && l->mesh.size[AXIS_PP] == 1;
    start_until(g, one ? g->registry->n_buckets - 1 : 0);
    if (!data->overlap_values) finish_all(g);
}

void gather_publish(Gather *g) {
    finish_all(g);
    registry_round_values(g->registry);
    fp8_weights_cast(g->registry, g->comm);
    set_stale(g, true);
    if (!g->in_graph) start_first(g);
}

/* ---- graphs ---- */

void gather_before_graph(Gather *g) {
    g->in_graph = true;
    finish_all(g);
    set_stale(g, true);
}

void gather_begin_graph(Gather *g) { start_first(g); }

void gather_end_graph(Gather *g) {
    start_until(g, 0); /* the buckets that the graph does not use are also gathered */
    finish_all(g);
}

void gather_after_graph(Gather *g) { set_stale(g, false); }

size_t gather_bytes(const Gather *g) { return bucket_pool_bytes(&g->slots); }

void gather_free(Gather *g) {
    if (!g) return;
    finish_all(g);
    for (int k = 0; k < g->registry->n_buckets; k++)
        if (is_dropped(g, k)) drop(g, lead_of(g, k));
    bucket_pool_free(&g->slots);
    free(g->piece);
    free(g);
}
