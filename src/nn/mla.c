/* Shapes: s positions, b samples, h hidden, g heads on this rank, d width of a query or key head, e width of a value
 * head. */
#include "nn/mla.h"

#include "base/hash.h"
#include "ops/join_heads.h"
#include "ops/linear_heads.h"
#include "ops/redistribute.h"
#include "ops/residual.h"
#include "ops/rope.h"
#include "tape/tape_ops.h"

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

/* The keys' shared part cannot be clipped for a single head, so the rotated part of the head's queries is multiplied by
 * the entire factor. */
static void clip_init(Mla *m, Registry *r) {
    const MlaSpec *s = m->spec;
    const QkClipSpec *c = &s->attention.clip;
    const int64_t d = s->attention.head_dim, plain = d - s->rotated;
    if (!c->clips) return;
    m->clip = (QkClip){.threshold = c->threshold,
                       .max = m->max,
                       .heads = 1,
                       .n = 3,
                       .part = {{m->q.weight, d, 0, plain, c->alpha},
                                {m->q.weight, d, plain, d, 1},
                                {m->kv.weight, plain + s->value, 0, plain, 1 - c->alpha}}};
    qk_clip_add(r, &m->clip);
}

static void mla_init(void *self, Registry *r, const char *name, const void *spec, Tensor *counters) {
    Mla *m = self;
    const MlaSpec *s = spec;
    const AttentionSpec *a = &s->attention;
    const int64_t h = a->hidden, q = a->heads * a->head_dim,
                  kv = a->heads * (a->head_dim - s->rotated + s->value);
    const double std = a->qkv_init_std;
    const RopeTable *temperature = a->temperature.dim ? rope_table(r, a->temperature) : NULL;
    *m = (Mla){.spec = s,
               .rope = rope_table(r, a->rope),
               .temperature = temperature,
               .dropout_site = hash_name(name),
               .max = counters};
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
    AttentionSpec up = *a;
    if (s->caches_latents) up.quant.weights = F64; /* absorbed() multiplies parts of this weight */
    m->kv = mla_linear(r, &up, name, "kv_up_proj", (Size){kv, s->kv_rank, 0, std});
    if (a->sink == SINK_LEARNED) m->softmax_offset = attention_offset_new(r, a, name);
    clip_init(m, r);
    m->proj = mla_linear(r, a, name, "proj", (Size){h, a->heads * s->value, 1, a->proj_init_std});
}

/* ---- attention ---- */

typedef struct Core {
    const Mla *module;
    const Feed *feed;
    /* the key pool and the value pool, or the pool of latents together with the keys' shared part */
    Tensor *cache;
    Tensor *latent_sbl; /* the latent for keys and values */
    Tensor *key_sb11p;  /* the keys' shared part */
    Tensor *kv_sbw;
} Core;

/* Returns a view of columns [first, first + n) in each head of x [s, b, g*width], which has g heads. */
static Tensor *columns_of(Tape *t, Tensor *x, int64_t g, int64_t first, int64_t n) {
    const int64_t width = tensor_width(x) / g;
    return tape_view(t, x, first, 5, (int64_t[]){x->dim[0], x->dim[1], g, 1, n},
                     (int64_t[]){x->stride[0], x->stride[1], width, width, 1});
}

static Tensor *rotated(Tape *t, const Core *c, Tensor *x) {
    const RopeTable *rope = c->module->rope;
    const AttentionSpec *p = &c->module->spec->attention;
    const RopeAttr attr = {.dim = (int32_t)p->rope.dim, .interleaved = p->rotary_interleaved};
    return op_rope(t, x, (Tensor *)&rope->cos, (Tensor *)&rope->sin, c->feed->position_ids, attr);
}

/* Adds masks and sinks to x. Returns the context [s, b, g, r, e]. With a cache, k and v are pools. */
static Tensor *attend(Tape *t, const Core *c, AttentionInputs x) {
    const AttentionSpec *p = &c->module->spec->attention;
    const AttentionAttr attr = attention_attr(t, p, c->module->dropout_site, x.q->dim[0]);
    x.sink = attention_sinks(t, p, c->module->softmax_offset, (DType)x.q->dtype);
    if (c->cache)
        return op_paged_attention(
            t,
            &(PagedInputs){.q = x.q, .k = x.k, .v = x.v, .position = c->feed->position_ids, .sink = x.sink},
            &c->feed->cache->positions, attr);
    x.first_key = c->feed->document_start;
    x.lengths = c->feed->lengths;
    x.max = c->module->max;
    /* With context parallelism, attention itself waits for other ranks. */
    if (tape_axis(t, AXIS_CP) == 1) tape_pause_halfway(t);
    return op_context_attention(t, &x, attr, p->context, p->unfused);
}

static Tensor *stored(Tape *t, const Core *c, Tensor *x, Tensor *pool) {
    op_store_rows(t, &c->feed->cache->positions, x, pool, NULL, NULL);
    return pool;
}

/* Computes the context [s, b, g*e] for this rank's heads from q [s, b, g*d] and kv [s, b, g*(d-rotated+e)]. */
static Tensor *core(Tape *t, void *self, Tensor *q) {
    const Core *c = self;
    const MlaSpec *s = c->module->spec;
    const int64_t d = s->attention.head_dim, g = tensor_width(q) / d, plain = d - s->rotated;
    Tensor *turned = rotated(t, c, columns_of(t, q, g, plain, s->rotated)),
           *key = rotated(t, c, c->key_sb11p);
    AttentionInputs x = {.q = op_join_heads(t, columns_of(t, q, g, 0, plain), turned),
                         .k = op_join_heads(t, columns_of(t, c->kv_sbw, g, 0, plain), key),
                         .v = columns_of(t, c->kv_sbw, g, plain, s->value)};
    if (c->cache) x.k = stored(t, c, x.k, &c->cache[0]), x.v = stored(t, c, x.v, &c->cache[1]);
    return attention_flat_heads(t, attend(t, c, x));
}

/* Computes the queries [s, b, g*d] from x, which is the queries' latent or the residual stream. No other node has read
 * the queries, so they are multiplied by the temperatures in place. */
static Tensor *queries(Tape *t, const Core *c, Tensor *x) {
    const Mla *m = c->module;
    const int64_t d = m->spec->attention.head_dim;
    Tensor *q = linear_forward(t, &m->q, x);
    if (!m->temperature) return q;
    return op_rope_in_place(t, q, tensor_width(q) / d, 1, 1, (Tensor *)&m->temperature->cos,
                            (Tensor *)&m->temperature->sin, c->feed->position_ids,
                            (RopeAttr){.dim = (int32_t)d});
}

/* x is the queries' latent, or the residual stream if queries have no latent. */
static Tensor *from_latents(Tape *t, void *self, Tensor *x) {
    const Mla *m = ((const Core *)self)->module;
    const MlaSpec *s = m->spec;
    Core *c = tape_alloc(t, sizeof *c);
    *c = *(const Core *)self;
    c->kv_sbw = linear_forward(t, &m->kv, c->latent_sbl);
    Tensor *q = queries(t, c, x);
    return s->attention.recompute && !s->recompute_up ? tape_block(t, core, c, q) : core(t, c, q);
}

/* ---- a cache of latents ---- */

/* Returns the weights [g, n, l] that project latents to columns [first, first + n) of each head's key and value. */
static Tensor *head_weights(Tape *t, const Mla *m, int64_t g, int64_t first, int64_t n) {
    const Tensor *w = &m->kv.weight->value;
    Tensor *part = tape_alloc(t, sizeof *part);
    *part = tensor_make(tensor_at(w, first * w->dim[1]), (DType)w->dtype, 3, (int64_t[]){g, n, w->dim[1]});
    part->stride[0] = w->dim[0] / g * w->dim[1];
    part->spmd = w->spmd;
    return part;
}

/* Returns a view of x [s,b,g*width] as one group of g heads, with n columns of each head, starting at column
 * `first`. The heads of a group share keys and values. */
static Tensor *one_group(Tape *t, Tensor *x, int64_t g, int64_t first, int64_t n) {
    const int64_t width = tensor_width(x) / g;
    return tape_view(t, x, first, 5, (int64_t[]){x->dim[0], x->dim[1], 1, g, n},
                     (int64_t[]){x->stride[0], x->stride[1], g * width, width, 1});
}

/* Returns a view of the first n columns of the pool's rows. */
static Tensor *pool_columns(Tape *t, const Tensor *pool, int64_t n) {
    Tensor *part = tape_alloc(t, sizeof *part);
    *part = *pool;
    part->dim[4] = n;
    return part;
}

/* Computes the same result as from_latents, but without computing keys and values. A key is W_k l, so its
 * product with q equals the product of the latent l and W_k^T q. A weighted sum of values is W_v times the
 * weighted sum of latents. Each row of the pool contains a latent and the keys' rotated part. */
static Tensor *absorbed(Tape *t, const Core *c, Tensor *x_sbh) {
    const Mla *m = c->module;
    const MlaSpec *s = m->spec;
    Tensor *q = queries(t, c, x_sbh), *latent = columns_of(t, c->latent_sbl, 1, 0, s->kv_rank),
           *rows = op_join_heads(t, latent, rotated(t, c, c->key_sb11p));
    const int64_t d = s->attention.head_dim, g = tensor_width(q) / d, plain = d - s->rotated;
    Tensor *pool = stored(t, c, op_redistribute(t, rows, AXIS_TP, SPMD_R, 0), c->cache);
    Tensor *latent_q =
        op_linear_heads(t, one_group(t, q, g, 0, plain), head_weights(t, m, g, 0, plain), true);
    const AttentionInputs x = {
        .q = op_join_heads(t, latent_q, rotated(t, c, one_group(t, q, g, plain, s->rotated))),
        .k = pool,
        .v = pool_columns(t, pool, s->kv_rank)};
    Tensor *values = op_linear_heads(t, attend(t, c, x), head_weights(t, m, g, plain, s->value), false);
    return attention_flat_heads(t, values);
}

/* Returns the keys' shared part at all positions. The heads on every tensor-parallel rank need all
 * positions. */
static Tensor *shared_key(Tape *t, Tensor *x_sb11p) {
    if (layout_is_sequence_parallel(tape_context(t)->layout)) x_sb11p = op_contiguous(t, x_sb11p);
    return op_redistribute(t, x_sb11p, AXIS_TP, SPMD_R, 0);
}

static Tensor *mla_forward(Tape *t, const void *self, const Feed *feed, Tensor *cache, Tensor *x) {
    const Mla *m = self;
    const MlaSpec *s = m->spec;
    const bool norms = s->attention.qk_norm;
    Tensor *kv = linear_forward(t, &m->kv_down, x);
    Tensor *latent = tape_view(t, kv, 0, 3, (int64_t[]){kv->dim[0], kv->dim[1], s->kv_rank}, kv->stride),
           *key = columns_of(t, kv, 1, s->kv_rank, s->rotated);
    Core *c = tape_alloc(t, sizeof *c);
    *c = (Core){.module = m,
                .feed = feed,
                .cache = cache,
                .latent_sbl = norms ? norm_forward(t, &m->kv_norm, latent) : op_contiguous(t, latent)};
    Tensor *q = s->q_rank ? linear_forward(t, &m->q_down, x) : x;
    if (s->q_rank && norms) q = norm_forward(t, &m->q_norm, q);
    const bool latents = cache && s->caches_latents;
    c->key_sb11p = latents ? key : shared_key(t, key);
    tape_module_begin(t, OFFLOAD_CORE_ATTN);
    Tensor *context = latents           ? absorbed(t, c, q)
                      : s->recompute_up ? tape_block(t, from_latents, c, q)
                                        : from_latents(t, c, q);
    tape_module_end(t);
    return linear_forward(t, &m->proj, context);
}

/* Describes the pool of latents and the keys' shared part, or the pools of keys and values for this rank's heads. */
static int mla_caches(const void *spec, const Layout *l, CacheSpec out[BRANCH_CACHES]) {
    const MlaSpec *s = spec;
    if (s->caches_latents) {
        out[0] = (CacheSpec){EXTENT_POSITIONS, {1, 1, s->kv_rank + s->rotated}};
        return 1;
    }
    const int64_t heads = s->attention.heads / l->mesh.size[AXIS_TP];
    out[0] = (CacheSpec){EXTENT_POSITIONS, {heads, 1, s->attention.head_dim}};
    out[1] = (CacheSpec){EXTENT_POSITIONS, {heads, 1, s->value}};
    return 2;
}

/* As in Megatron-LM, each latent counts as one column wider to account for its norm. */
static double mla_flops(const void *spec, double n) {
    const MlaSpec *s = spec;
    const AttentionSpec *a = &s->attention;
    const double h = (double)a->hidden, heads = (double)a->heads, d = (double)a->head_dim,
                 e = (double)s->value, rotated = (double)s->rotated, q_rank = (double)s->q_rank,
                 q = s->q_rank ? q_rank * (h + heads * d + 1) : h * heads * d,
                 kv = (double)s->kv_rank * (h + heads * (d - rotated + e) + 1) + h * rotated;
    return 6 * n * (q + kv + h * heads * e + n * heads * (d + e) / 2);
}

static int64_t mla_counters(const void *spec) {
    return attention_counters(&((const MlaSpec *)spec)->attention);
}

const BranchOps mla_branch = {.size = sizeof(Mla),
                              .init = mla_init,
                              .forward = mla_forward,
                              .caches = mla_caches,
                              .flops = mla_flops,
                              .counters = mla_counters,
                              .reduction = COMM_MAX};
