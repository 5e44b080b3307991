/* Shapes: s positions, t encoder positions, b samples, h hidden, g heads, d head dim, w = g*d. */
#include "nn/cross_attention.h"

#include "base/fault.h"
#include "base/hash.h"
#include "kernels/ops.h"
#include "tape/tape_ops.h"

static void cross_attention_init(void *self, Registry *r, const char *name, const void *spec,
                                 Tensor *counters) {
    (void)counters;
    CrossAttention *m = self;
    const CrossAttentionSpec *s = spec;
    const AttentionSpec *a = &s->attention;
    LinearSpec q = {
        .name = arena_printf(r->arena, "%s.linear_q", name),
        .in = a->hidden,
        .out = a->heads * a->head_dim,
        .bias = a->qkv_bias,
        .tp_split = 0,
        .init_std = a->qkv_init_std,
        .quant = a->quant,
    };
    LinearSpec kv = q;
    kv.name = arena_printf(r->arena, "%s.linear_kv", name);
    kv.out = 2 * q.out;
    kv.groups = a->heads;
    kv.n_parts = 2;
    kv.parts[0] = (ParamPart){"k", a->head_dim};
    kv.parts[1] = (ParamPart){"v", a->head_dim};
    LinearSpec proj = {
        .name = arena_printf(r->arena, "%s.linear_proj", name),
        .in = q.out,
        .out = a->hidden,
        .bias = a->proj_bias,
        .tp_split = 1,
        .init_std = a->proj_init_std,
        .quant = a->quant,
    };
    *m = (CrossAttention){.spec = s, .dropout_site = hash_name(name)};
    m->q = linear_new(r, q);
    m->kv = linear_new(r, kv);
    m->proj = linear_new(r, proj);
}

typedef struct Core {
    const CrossAttention *module;
    const Feed *feed;
    Tensor *cache; /* a pool of keys and values: in each group, row 0 is the key, and row 1 is the value */
    Tensor *kv_tbw;
} Core;

/* Returns a view of row i in each of the pool's groups. */
static Tensor *pool_part(Tape *t, const Tensor *pool, int64_t i) {
    Tensor *part = tape_alloc(t, sizeof *part);
    *part = *pool;
    part->data = tensor_at(pool, i * pool->stride[3]);
    part->dim[3] = 1;
    return part;
}

/* If the encoder's output was computed, stores its keys and values. Then computes attention to the requests' keys and
 * values. */
static Tensor *attend_to_pages(Tape *t, const Core *c, Tensor *q, AttentionAttr attr) {
    const Pages *pages = &c->feed->cache->encoder;
    const int64_t d = tensor_width(q), g = q->dim[2];
    if (c->kv_tbw)
        op_store_rows(t, pages, attention_heads(t, c->kv_tbw, g, 2, d, 0, 2), c->cache, NULL, NULL);
    const PagedInputs inputs = {.q = q,
                                .k = pool_part(t, c->cache, 0),
                                .v = pool_part(t, c->cache, 1),
                                .position = c->feed->position_ids};
    return op_paged_attention(t, &inputs, pages, attr);
}

/* Computes the context [s, b, w] for this rank's heads from q [s, b, w]. */
static Tensor *core(Tape *t, void *self, Tensor *q_sbw) {
    const Core *c = self;
    const AttentionSpec *p = &c->module->spec->attention;
    const int64_t d = p->head_dim, g = tensor_width(q_sbw) / d, s = q_sbw->dim[0],
                  keys = c->kv_tbw ? c->kv_tbw->dim[0] : 0;
    Tensor *q = attention_heads(t, q_sbw, g, 1, d, 0, 1);
    const AttentionAttr attr = attention_attr(t, p, c->module->dropout_site, s > keys ? s : keys);
    if (c->cache) return attention_flat_heads(t, attend_to_pages(t, c, q, attr));
    const AttentionInputs inputs = {.q = q,
                                    .k = attention_heads(t, c->kv_tbw, g, 2, d, 0, 1),
                                    .v = attention_heads(t, c->kv_tbw, g, 2, d, 1, 1),
                                    .lengths = c->feed->encoder_lengths};
    return attention_flat_heads(t, op_context_attention(t, &inputs, attr, p->context, p->unfused));
}

static Tensor *cross_attention_forward(Tape *t, const void *self, const Feed *feed, Tensor *cache,
                                       Tensor *x_sbh) {
    const CrossAttention *m = self;
    CHECK(cache || feed->encoded, "cross-attention needs an encoder's output");
    tape_module_begin(t, OFFLOAD_CORE_ATTN);
    Tensor *q = linear_forward(t, &m->q, x_sbh);
    Core *c = tape_alloc(t, sizeof *c);
    *c = (Core){m, feed, cache, feed->encoded ? linear_forward(t, &m->kv, feed->encoded) : NULL};
    Tensor *context = m->spec->attention.recompute ? tape_block(t, core, c, q) : core(t, c, q);
    tape_module_end(t);
    return linear_forward(t, &m->proj, context);
}

static int cross_attention_caches(const void *spec, const Layout *l, CacheSpec out[BRANCH_CACHES]) {
    const AttentionSpec *a = &((const CrossAttentionSpec *)spec)->attention;
    out[0] = (CacheSpec){EXTENT_ENCODER, {a->heads / l->mesh.size[AXIS_TP], 2, a->head_dim}};
    return 1;
}

/* In cross-attention, every query attends to all keys. */
static double cross_attention_flops(const void *spec, double s) {
    const CrossAttentionSpec *m = spec;
    const AttentionSpec *a = &m->attention;
    const double h = (double)a->hidden, w = (double)(a->heads * a->head_dim),
                 keys = (double)m->encoder_positions;
    return 6 * (2 * s * h * w + 2 * keys * h * w + 2 * s * keys * w);
}

const BranchOps cross_attention_branch = {.size = sizeof(CrossAttention),
                                          .init = cross_attention_init,
                                          .forward = cross_attention_forward,
                                          .caches = cross_attention_caches,
                                          .flops = cross_attention_flops};
