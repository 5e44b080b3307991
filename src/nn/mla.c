/* Shapes: s positions, b samples, h hidden, g heads of this rank, d width of a query or key head, e of a value head. */
#include "nn/mla.h"

#include "base/hash.h"
#include "ops/join_heads.h"
#include "ops/redistribute.h"
#include "ops/residual.h"
#include "ops/rope.h"

typedef struct Size {
    int64_t out, in;
    int tp_split;
    double std;
} Size;

static Linear mla_linear(Registry *r, const AttentionSpec *a, const char *name, const char *which,
                         Size size) {
    return linear_new(r, (LinearSpec){
                             .name = arena_printf(r->arena, "%s.linear_%s", name, which),
                             .in = size.in,
                             .out = size.out,
                             .bias = size.tp_split == 1 && a->proj_bias,
                             .tp_split = size.tp_split,
                             .invariant = !r->layout.sequence_parallel,
                             .init_std = size.std,
                             .quant = a->quant,
                         });
}

static void mla_init(void *self, Registry *r, const char *name, const void *spec, Tensor *counters) {
    (void)counters;
    Mla *m = self;
    const MlaSpec *s = spec;
    const AttentionSpec *a = &s->attention;
    const int64_t h = a->hidden, q = a->heads * a->head_dim,
                  kv = a->heads * (a->head_dim - s->rotated + s->value);
    const double std = a->qkv_init_std;
    *m = (Mla){.spec = s, .rope = rope_table(r, a->rope), .dropout_site = hash_name(name)};
    if (s->q_rank) {
        m->q_down = mla_linear(r, a, name, "q_down_proj", (Size){s->q_rank, h, SPLIT_NONE, std});
        if (a->qk_norm)
            m->q_norm = norm_new(r, arena_printf(r->arena, "%s.q_layernorm", name), s->q_rank, a->norm);
        m->q = mla_linear(r, a, name, "q_up_proj", (Size){q, s->q_rank, 0, std});
    } else {
        m->q = mla_linear(r, a, name, "q_proj", (Size){q, h, 0, std});
    }
    m->kv_down = mla_linear(r, a, name, "kv_down_proj", (Size){s->kv_rank + s->rotated, h, SPLIT_NONE, std});
    if (a->qk_norm)
        m->kv_norm = norm_new(r, arena_printf(r->arena, "%s.kv_layernorm", name), s->kv_rank, a->norm);
    m->kv = mla_linear(r, a, name, "kv_up_proj", (Size){kv, s->kv_rank, 0, std});
    if (a->sink == SINK_LEARNED) m->softmax_offset = attention_offset_new(r, a, name);
    m->proj = mla_linear(r, a, name, "proj", (Size){h, a->heads * s->value, 1, a->proj_init_std});
}

/* ---- attention ---- */

typedef struct Core {
    const Mla *module;
    const Feed *feed;
    Tensor *cache;                           /* keys, values */
    Tensor *latent_sbl, *key_sb11p, *kv_sbw; /* the latent of keys and values; the shared part of the keys */
} Core;

/* A view of columns [first, first + n) of each of the g heads of x [s, b, g*width]. */
static Tensor *columns_of(Tape *t, Tensor *x, int64_t g, int64_t first, int64_t n) {
    const int64_t width = tensor_width(x) / g;
    return tape_view(t, x, first, 5, (int64_t[]){x->dim[0], x->dim[1], g, 1, n},
                     (int64_t[]){x->stride[0], x->stride[1], width, width, 1});
}

static Tensor *rotated(Tape *t, const Core *c, Tensor *x) {
    const RopeTable *rope = c->module->rope;
    const RopeAttr attr = {.dim = (int32_t)c->module->spec->attention.rope.dim, .interleaved = true};
    return op_rope(t, x, (Tensor *)&rope->cos, (Tensor *)&rope->sin, c->feed->position_ids, attr);
}

/* q [s, b, g*d], kv [s, b, g*(d-rotated+e)] -> context [s, b, g*e] of this rank's heads */
static Tensor *core(Tape *t, void *self, Tensor *q) {
    const Core *c = self;
    const MlaSpec *s = c->module->spec;
    const AttentionSpec *p = &s->attention;
    const int64_t g = tensor_width(q) / p->head_dim, plain = p->head_dim - s->rotated;
    const int64_t first = c->cache ? c->feed->cache->length : 0;
    Tensor *turned = rotated(t, c, columns_of(t, q, g, plain, s->rotated));
    AttentionInputs x = {
        .q = op_join_heads(t, columns_of(t, q, g, 0, plain), turned),
        .k = op_join_heads(t, columns_of(t, c->kv_sbw, g, 0, plain), rotated(t, c, c->key_sb11p)),
        .v = columns_of(t, c->kv_sbw, g, plain, s->value),
        .first_key = c->feed->document_start,
        .lengths = c->feed->lengths,
        .sink = attention_sinks(t, p, c->module->softmax_offset, (DType)q->dtype)};
    if (c->cache) {
        x.k = attention_append(t, &c->cache[0], first, x.k);
        x.v = attention_append(t, &c->cache[1], first, x.v);
    }
    AttentionAttr attr = attention_attr(t, p, c->module->dropout_site, q->dim[0]);
    attr.query.first = first;
    if (tape_axis(t, AXIS_CP) == 1) tape_pause_halfway(t); /* else the attention waits for other ranks */
    return attention_flat_heads(t, op_context_attention(t, &x, attr, p->context, p->unfused));
}

/* x: the latent of the queries, or the residual stream if queries have no latent */
static Tensor *from_latents(Tape *t, void *self, Tensor *x) {
    const Mla *m = ((const Core *)self)->module;
    const MlaSpec *s = m->spec;
    Core *c = tape_alloc(t, sizeof *c);
    *c = *(const Core *)self;
    c->kv_sbw = linear_forward(t, &m->kv, c->latent_sbl);
    Tensor *q = linear_forward(t, &m->q, x);
    return s->attention.recompute && !s->recompute_up ? tape_block(t, core, c, q) : core(t, c, q);
}

/* The heads of every tensor-parallel rank need the shared part of the keys, at all positions. */
static Tensor *shared_key(Tape *t, Tensor *x_sb11p) {
    if (layout_is_sequence_parallel(tape_context(t)->layout)) x_sb11p = op_contiguous(t, x_sb11p);
    return op_redistribute(t, x_sb11p, AXIS_TP, SPMD_R, 0);
}

static Tensor *mla_forward(Tape *t, const void *self, const Feed *feed, Tensor *cache, Tensor *x) {
    const Mla *m = self;
    const MlaSpec *s = m->spec;
    const bool norms = s->attention.qk_norm;
    Tensor *kv = linear_forward(t, &m->kv_down, x);
    Tensor *latent = tape_view(t, kv, 0, 3, (int64_t[]){kv->dim[0], kv->dim[1], s->kv_rank}, kv->stride);
    Core *c = tape_alloc(t, sizeof *c);
    *c = (Core){.module = m,
                .feed = feed,
                .cache = cache,
                .latent_sbl = norms ? norm_forward(t, &m->kv_norm, latent) : op_contiguous(t, latent),
                .key_sb11p = shared_key(t, columns_of(t, kv, 1, s->kv_rank, s->rotated))};
    Tensor *q = s->q_rank ? linear_forward(t, &m->q_down, x) : x;
    if (s->q_rank && norms) q = norm_forward(t, &m->q_norm, q);
    Tensor *context = s->recompute_up ? tape_block(t, from_latents, c, q) : from_latents(t, c, q);
    return linear_forward(t, &m->proj, context);
}

/* The keys and values of this rank's heads. */
static int mla_caches(const void *spec, const Layout *l, CacheSpec out[BRANCH_CACHES]) {
    const MlaSpec *s = spec;
    const int64_t heads = s->attention.heads / l->mesh.size[AXIS_TP];
    out[0] = (CacheSpec){EXTENT_POSITIONS, 3, {heads, 1, s->attention.head_dim}};
    out[1] = (CacheSpec){EXTENT_POSITIONS, 3, {heads, 1, s->value}};
    return 2;
}

/* As in Megatron-LM, a latent counts as one column wider, because of its norm. */
static double mla_flops(const void *spec, double n) {
    const MlaSpec *s = spec;
    const AttentionSpec *a = &s->attention;
    const double h = (double)a->hidden, heads = (double)a->heads, d = (double)a->head_dim,
                 e = (double)s->value, rotated = (double)s->rotated, q_rank = (double)s->q_rank,
                 q = s->q_rank ? q_rank * (h + heads * d + 1) : h * heads * d,
                 kv = (double)s->kv_rank * (h + heads * (d - rotated + e) + 1) + h * rotated;
    return 6 * n * (q + kv + h * heads * e + n * heads * (d + e) / 2);
}

const BranchOps mla_branch = {
    .size = sizeof(Mla), .init = mla_init, .forward = mla_forward, .caches = mla_caches, .flops = mla_flops};
