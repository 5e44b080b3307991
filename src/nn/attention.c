/* Shapes: s positions, b samples, h hidden, g key/value groups, r query heads per group, d head width, w = g*r*d. */
#include "nn/attention.h"

#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "kernels/ops.h"
#include "ops/gate.h"
#include "ops/redistribute.h"
#include "ops/residual.h"
#include "ops/rope.h"
#include "tape/tape_ops.h"

/* Registers a norm that is applied to each head separately or, with qk_norm_whole, to all heads together. */
static Norm heads_norm(Registry *r, const AttentionSpec *s, const char *name, const char *which,
                       int64_t heads) {
    if (s->qk_norm_plain) return (Norm){.attr = {.rms = true, .eps = s->norm.eps}};
    const int64_t width = s->qk_norm_whole ? heads * s->head_dim : s->head_dim;
    Norm n = norm_new(r, arena_printf(r->arena, "%s.%s_layernorm", name, which), width, s->norm);
    for (int i = 0; i < 2; i++) {
        Param *p = i ? n.bias : n.gain;
        if (!p) continue;
        p->spec.invariant = s->qk_norm_whole; /* otherwise, each rank normalizes its own heads */
        if (s->qk_norm_decays) p->spec.flags &= ~(unsigned)PARAM_NO_DECAY;
    }
    return n;
}

Param *attention_offset_new(Registry *r, const AttentionSpec *s, const char *name) {
    return param_add(r, (ParamSpec){
                            .name = arena_printf(r->arena, "%s.core_attention.softmax_offset", name),
                            .ndim = 1,
                            .dim = {s->heads},
                            .tp_split = 0,
                            .init = {INIT_NORMAL, s->softmax_init_std},
                            .flags = PARAM_NO_DECAY,
                        });
}

/* Returns the relative position bias. The stack's first layer on this rank registers the bias, and later
 * layers look it up. */
static Param *relative_of(Registry *r, const AttentionSpec *s) {
    Param *shared = registry_find(r, s->relative.name);
    if (shared) return shared;
    return param_add(r, (ParamSpec){.name = s->relative.name,
                                    .ndim = 2,
                                    .dim = {s->relative.buckets, s->heads},
                                    .tp_split = 1,
                                    .init = {INIT_NORMAL, s->relative.init_std}});
}

/* Returns the number of query heads in a group, and the number of heads before its key: queries and their gates. */
static int64_t queries(const AttentionSpec *s) { return s->heads / s->groups; }
static int64_t before_key(const AttentionSpec *s) { return queries(s) * (s->gated ? 2 : 1); }

/* In each group, the query rows precede the key rows. */
static void clip_init(Attention *a, Registry *r) {
    const AttentionSpec *s = a->spec;
    const int64_t d = s->head_dim, q = queries(s) * d, k = before_key(s) * d, rows = k + 2 * d;
    if (!s->clip.clips) return;
    a->clip = (QkClip){.threshold = s->clip.threshold,
                       .max = a->max,
                       .heads = queries(s),
                       .n = 2,
                       .part = {{a->qkv.weight, rows, 0, q, s->clip.alpha},
                                {a->qkv.weight, rows, k, k + d, 1 - s->clip.alpha}}};
    qk_clip_add(r, &a->clip);
}

static void attention_init(void *self, Registry *r, const char *name, const void *spec, Tensor *counters) {
    Attention *a = self;
    const AttentionSpec *s = spec;
    const int64_t q = queries(s) * s->head_dim;
    LinearSpec qkv = {
        .name = arena_printf(r->arena, "%s.linear_qkv", name),
        .in = s->hidden,
        .out = s->groups * (before_key(s) + 2) * s->head_dim,
        .bias = s->qkv_bias,
        .tp_split = 0,
        .init_std = s->qkv_init_std,
        .quant = s->quant,
        .groups = s->groups,
        .heads = s->heads,
        .n_parts = 3,
        .parts = {{"q", q}, {"k", s->head_dim}, {"v", s->head_dim}},
    };
    if (s->gated) {
        qkv.n_parts = 4;
        memcpy(qkv.parts, (ParamPart[]){{"q", q}, {"gate", q}, {"k", s->head_dim}, {"v", s->head_dim}},
               4 * sizeof *qkv.parts);
    }
    LinearSpec proj = {
        .name = arena_printf(r->arena, "%s.linear_proj", name),
        .in = s->heads * s->head_dim,
        .out = s->hidden,
        .bias = s->proj_bias,
        .tp_split = 1,
        .init_std = s->proj_init_std,
        .quant = s->quant,
    };
    *a = (Attention){.spec = s, .dropout_site = hash_name(name), .qkv = linear_new(r, qkv), .max = counters};
    clip_init(a, r);
    if (s->rope.dim) a->rope = rope_table(r, s->rope);
    if (s->temperature.dim) a->temperature = rope_table(r, s->temperature);
    if (s->qk_norm) {
        a->q_norm = heads_norm(r, s, name, "q", s->heads);
        a->k_norm = heads_norm(r, s, name, "k", s->groups);
    }
    if (s->relative.name) a->relative = relative_of(r, s);
    if (s->sink == SINK_LEARNED) a->softmax_offset = attention_offset_new(r, s, name);
    a->proj = linear_new(r, proj);
}

typedef struct Core {
    const Attention *attention;
    const Feed *feed;
    Tensor *cache; /* the key pool and the value pool */
} Core;

Tensor *attention_heads(Tape *t, Tensor *x, int64_t groups, int64_t all, int64_t d, int64_t first,
                        int64_t n) {
    return tape_view(t, x, first * d, 5, (int64_t[]){x->dim[0], x->dim[1], groups, n, d},
                     (int64_t[]){x->stride[0], x->stride[1], all * d, d, 1});
}

/* Splits qkv, which is [s, b, g*(k+2)*d] or [s, b, g, k+2, d], where k is before_key. Sets *gate to the heads' gates, if
 * there are any. */
static AttentionInputs split_groups(Tape *t, const AttentionSpec *p, Tensor *qkv, Tensor **gate) {
    const int64_t d = p->head_dim, r = queries(p), k = before_key(p);
    const int64_t g = tensor_count(qkv) / (qkv->dim[0] * qkv->dim[1] * (k + 2) * d);
    if (p->gated) *gate = attention_heads(t, qkv, g, k + 2, d, r, r);
    return (AttentionInputs){.q = attention_heads(t, qkv, g, k + 2, d, 0, r),
                             .k = attention_heads(t, qkv, g, k + 2, d, k, 1),
                             .v = attention_heads(t, qkv, g, k + 2, d, k + 1, 1)};
}

Tensor *attention_flat_heads(Tape *t, Tensor *x) {
    const int64_t s = x->dim[0], b = x->dim[1], w = x->dim[2] * x->dim[3] * x->dim[4];
    return tape_view(t, x, 0, 3, (int64_t[]){s, b, w}, (int64_t[]){b * w, w, 1});
}

/* Selects this rank's heads [s, b, g, r, d] from x [s, b, w], which contains all ranks' heads. */
static Tensor *own_heads(Tape *t, Tensor *x, int64_t g, int64_t r, int64_t d) {
    const int64_t s = x->dim[0], b = x->dim[1], w = g * r * d;
    return tape_view(t, op_redistribute(t, x, AXIS_TP, SPMD_V, 2), 0, 5, (int64_t[]){s, b, g, r, d},
                     (int64_t[]){b * w, w, r * d, d, 1});
}

static Tensor *normed_heads(Tape *t, const AttentionSpec *p, const Norm *n, Tensor *x) {
    if (!p->qk_norm_whole) return norm_forward(t, n, x);
    Tensor *all = op_redistribute(t, attention_flat_heads(t, op_contiguous(t, x)), AXIS_TP, SPMD_I, 2);
    return own_heads(t, norm_forward(t, n, all), x->dim[2], x->dim[3], x->dim[4]);
}

/* Returns the index of this rank's first query head. */
static int64_t first_head(const Tape *t, const AttentionSpec *p) {
    const int tp = tape_axis(t, AXIS_TP);
    return tp > 1 ? tape_group(t, 1 << AXIS_TP).rank * p->heads / tp : 0;
}

/* With more tensor-parallel ranks than groups, each rank computes only a part of a group. The ranks therefore
 * gather qkv, and each rank selects its query heads and their group's key and value (Megatron-LM
 * core/transformer/attention.py, num_query_groups < world_size). */
static AttentionInputs share_groups(Tape *t, const AttentionSpec *p, Tensor *qkv, Tensor **gate) {
    const int64_t d = p->head_dim, r = queries(p), mine = p->heads / tape_axis(t, AXIS_TP);
    const int64_t first = first_head(t, p), group = first / r * (before_key(p) + 2) * d;
    const int64_t at_q = group + first % r * d, at_k = group + before_key(p) * d;
    qkv = op_redistribute(t, qkv, AXIS_TP, SPMD_R, 2);
    if (p->gated) *gate = op_take_heads(t, qkv, AXIS_TP, at_q + r * d, mine, d, SPMD_V);
    return (AttentionInputs){.q = op_take_heads(t, qkv, AXIS_TP, at_q, mine, d, SPMD_V),
                             .k = op_take_heads(t, qkv, AXIS_TP, at_k, 1, d, SPMD_R),
                             .v = op_take_heads(t, qkv, AXIS_TP, at_k + d, 1, d, SPMD_R)};
}

/* Like share_groups, but queries and keys are normalized over all heads before each rank selects its heads. */
static AttentionInputs share_normed_groups(Tape *t, const Attention *a, Tensor *qkv, Tensor **gate) {
    const AttentionSpec *p = a->spec;
    const int64_t d = p->head_dim, mine = p->heads / tape_axis(t, AXIS_TP);
    const int64_t at = first_head(t, p) / (p->heads / p->groups) * d;
    const AttentionInputs all = split_groups(t, p, op_redistribute(t, qkv, AXIS_TP, SPMD_I, 2), gate);
    if (p->gated) *gate = own_heads(t, attention_flat_heads(t, op_contiguous(t, *gate)), 1, mine, d);
    Tensor *q = norm_forward(t, &a->q_norm, attention_flat_heads(t, op_contiguous(t, all.q)));
    Tensor *k = norm_forward(t, &a->k_norm, attention_flat_heads(t, op_contiguous(t, all.k)));
    Tensor *v = attention_flat_heads(t, op_contiguous(t, all.v));
    k = op_redistribute(t, k, AXIS_TP, SPMD_R, 2);
    v = op_redistribute(t, v, AXIS_TP, SPMD_R, 2);
    return (AttentionInputs){.q = own_heads(t, q, 1, mine, d),
                             .k = op_take_heads(t, k, AXIS_TP, at, 1, d, SPMD_R),
                             .v = op_take_heads(t, v, AXIS_TP, at, 1, d, SPMD_R)};
}

static void norm_heads(Tape *t, const Attention *a, AttentionInputs *x) {
    x->q = normed_heads(t, a->spec, &a->q_norm, x->q);
    x->k = normed_heads(t, a->spec, &a->k_norm, x->k);
    tape_grad_off_grid(x->k); /* if ranks share groups, the gradient of x->k is a partial sum */
}

/* Returns this rank's queries, keys and values, after the norms that precede the rotation. */
static AttentionInputs split(Tape *t, const Attention *a, Tensor *qkv, Tensor **gate) {
    const AttentionSpec *p = a->spec;
    const bool shares = p->groups < tape_axis(t, AXIS_TP);
    if (shares && p->qk_norm_whole) return share_normed_groups(t, a, qkv, gate);
    AttentionInputs x = shares ? share_groups(t, p, qkv, gate) : split_groups(t, p, qkv, gate);
    if (p->qk_norm && !p->qk_norm_last) norm_heads(t, a, &x);
    return x;
}

/* Returns whether queries and keys are adjacent heads in the memory of qkv. */
static bool are_together(const Tape *t, const AttentionSpec *p) {
    return !p->qk_norm && !p->gated && p->groups >= tape_axis(t, AXIS_TP);
}

/* Returns whether one call rotates both queries and keys. The exact lane needs two calls, because it rounds the
 * queries' gradient but not the keys' gradient. */
static bool rotates_in_one_call(const Tape *t, const AttentionSpec *p) {
    return p->rope.dim && are_together(t, p) && !tape_context(t)->exact;
}

static RopeAttr rope_attr(const AttentionSpec *p) {
    return (RopeAttr){.dim = (int32_t)p->rope.dim, .interleaved = p->rotary_interleaved};
}

static Tensor *rotated(Tape *t, const Core *c, Tensor *x) {
    return op_rope(t, x, (Tensor *)&c->attention->rope->cos, (Tensor *)&c->attention->rope->sin,
                   c->feed->position_ids, rope_attr(c->attention->spec));
}

/* Multiplies the query heads x [s, b, g, r, d] by the temperatures for their positions. */
static Tensor *tempered(Tape *t, const Core *c, Tensor *x) {
    const RopeTable *temperature = c->attention->temperature;
    if (!temperature) return x;
    return op_rope(t, x, (Tensor *)&temperature->cos, (Tensor *)&temperature->sin, c->feed->position_ids,
                   (RopeAttr){.dim = (int32_t)x->dim[4]});
}

static int64_t own_groups(const Tape *t, const AttentionSpec *p) { return p->groups / tape_axis(t, AXIS_TP); }

/* Rotates queries and keys into new memory, because recomputation in the backward pass reads qkv again. */
static AttentionInputs rotated_together(Tape *t, const Core *c, Tensor *qkv) {
    const AttentionSpec *p = c->attention->spec;
    const int64_t d = p->head_dim, g = own_groups(t, p), r = p->heads / p->groups;
    Tensor *v = attention_heads(t, qkv, g, r + 2, d, r + 1, 1);
    Tensor *qk = rotated(t, c, attention_heads(t, qkv, g, r + 2, d, 0, r + 1));
    Tensor *q = attention_heads(t, qk, g, r + 1, d, 0, r);
    return (AttentionInputs){.q = tempered(t, c, q), .k = attention_heads(t, qk, g, r + 1, d, r, 1), .v = v};
}

/* Returns whether queries and keys remain in the memory of qkv. */
static bool stay_in_place(const Tape *t, const AttentionSpec *p) {
    const bool changed = p->rope.dim || p->temperature.dim;
    return are_together(t, p) && !(changed && (p->recompute || tape_context(t)->exact));
}

static AttentionInputs prepare_in_place(Tape *t, const Core *c, Tensor *qkv) {
    const AttentionSpec *p = c->attention->spec;
    const RopeTable *rope = c->attention->rope, *temperature = c->attention->temperature;
    const int64_t g = own_groups(t, p), r = p->heads / p->groups;
    if (rope)
        qkv = op_rope_in_place(t, qkv, g, r + 2, r + 1, (Tensor *)&rope->cos, (Tensor *)&rope->sin,
                               c->feed->position_ids, rope_attr(p));
    if (temperature)
        qkv = op_rope_in_place(t, qkv, g, r + 2, r, (Tensor *)&temperature->cos, (Tensor *)&temperature->sin,
                               c->feed->position_ids, (RopeAttr){.dim = (int32_t)p->head_dim});
    const bool exchanged = context_exchange(t, &qkv, g, p->head_dim, p->context);
    AttentionInputs x = split_groups(t, p, qkv, NULL);
    x.exchanged = exchanged;
    return x;
}

/* Returns the inputs of attention: splits qkv, then normalizes and rotates queries and keys. Sets *gate to the heads'
 * gates, if there are any. */
static AttentionInputs prepare(Tape *t, const Core *c, Tensor *qkv, Tensor **gate) {
    const AttentionSpec *p = c->attention->spec;
    if (stay_in_place(t, p)) return prepare_in_place(t, c, qkv);
    if (rotates_in_one_call(t, p)) return rotated_together(t, c, qkv);
    AttentionInputs x = split(t, c->attention, qkv, gate);
    if (p->rope.dim) {
        x.q = rotated(t, c, x.q);
        x.k = rotated(t, c, x.k);
        tape_grad_off_grid(x.k);
    }
    if (p->qk_norm_last) norm_heads(t, c->attention, &x);
    x.q = tempered(t, c, x.q);
    return x;
}

AttentionAttr attention_attr(const Tape *t, const AttentionSpec *p, uint64_t dropout_site,
                             int64_t positions) {
    const MicrobatchContext *microbatch = tape_microbatch(t);
    return (AttentionAttr){
        .scale = p->scale,
        .softcap = p->softcap,
        .window_left = p->window_left,
        .window_right = p->window_right,
        .chunk_size = p->chunk_size,
        .first_head = first_head(t, p),
        .bias_max_distance = p->relative.max_distance,
        .bias_bidirectional = p->relative.bidirectional,
        .alibi = p->alibi,
        .heads = p->heads,
        .dropout = {.rate = microbatch->training ? p->dropout : 0,
                    .seed = tape_context(t)->seed,
                    .site = dropout_site,
                    .first_sample = microbatch->first_sample,
                    .seq_total = positions * tape_axis(t, AXIS_CP)},
    };
}

Tensor *attention_sinks(Tape *t, const AttentionSpec *p, Param *offset, DType dtype) {
    const int64_t n = p->heads / tape_axis(t, AXIS_TP);
    if (offset) return &offset->value;
    if (p->sink == SINK_NONE) return NULL;
    Tensor *zeros = tape_tensor(t, dtype, 1, &n);
    tape_call(t, &OPS[OP_fill], (Call){.out = {zeros}, .attr = &(FillAttr){0}});
    return zeros;
}

/* Returns whether one op rotates the tokens' rows, stores keys and values, and computes attention. */
static bool rotates_into_pages(const Tape *t, const Core *c) {
    const AttentionSpec *p = c->attention->spec;
    return c->cache && stay_in_place(t, p) && p->rope.dim && !p->temperature.dim && !c->attention->relative;
}

/* Stores the tokens' keys and values, then computes attention to the keys and values of the tokens' requests.
 * If `rotates` is true, x->q contains the rows of qkv before the rotation. */
static Tensor *attend_to_pages(Tape *t, const Core *c, const AttentionInputs *x, AttentionAttr attr,
                               bool rotates) {
    const Pages *pages = &c->feed->cache->positions;
    const RopeTable *rope = c->attention->rope;
    const PagedInputs inputs = {.q = x->q,
                                .k = &c->cache[0],
                                .v = &c->cache[1],
                                .position = c->feed->position_ids,
                                .bias = x->bias,
                                .sink = x->sink};
    if (rotates)
        return op_rope_paged_attention(t, &inputs, (Tensor *)&rope->cos, (Tensor *)&rope->sin, pages, attr,
                                       rope_attr(c->attention->spec));
    op_store_rows(t, pages, x->k, &c->cache[0], x->v, &c->cache[1]);
    return op_paged_attention(t, &inputs, pages, attr);
}

/* Multiplies the heads' outputs by their gates. */
static Tensor *gated(Tape *t, Tensor *context, Tensor *gate) {
    return attention_flat_heads(t, gate ? op_gate(t, context, gate, (GateAttr){.silu = false}) : context);
}

/* Computes the context [s, b, g*r*d] for this rank's heads from qkv. */
static Tensor *core(Tape *t, void *self, Tensor *qkv) {
    const Core *c = self;
    const AttentionSpec *p = c->attention->spec;
    const int64_t r = p->heads / p->groups;
    const bool rotates = rotates_into_pages(t, c);
    AttentionInputs x = {.q = NULL};
    Tensor *gate = NULL;
    if (rotates)
        x.q = attention_heads(t, qkv, own_groups(t, p), r + 2, p->head_dim, 0, r + 2);
    else
        x = prepare(t, c, qkv, &gate);
    const AttentionAttr attr = attention_attr(t, p, c->attention->dropout_site, qkv->dim[0]);
    x.bias = c->attention->relative ? &c->attention->relative->value : NULL;
    x.sink = attention_sinks(t, p, c->attention->softmax_offset, (DType)qkv->dtype);
    if (c->cache) return gated(t, attend_to_pages(t, c, &x, attr, rotates), gate);
    x.first_key = c->feed->document_start;
    x.lengths = c->feed->lengths;
    x.max = c->attention->max;
    /* with context parallelism, attention itself waits for other ranks */
    if (tape_axis(t, AXIS_CP) == 1) tape_pause_halfway(t);
    return gated(t, op_context_attention(t, &x, attr, p->context, p->unfused), gate);
}

static Tensor *attention_forward(Tape *t, const void *self, const Feed *feed, Tensor *cache, Tensor *x_sbh) {
    const Attention *a = self;
    tape_module_begin(t, OFFLOAD_CORE_ATTN);
    Tensor *qkv = linear_forward(t, &a->qkv, x_sbh);
    Core *c = tape_alloc(t, sizeof *c);
    *c = (Core){a, feed, cache};
    Tensor *context = a->spec->recompute ? tape_block(t, core, c, qkv) : core(t, c, qkv);
    tape_module_end(t);
    return linear_forward(t, &a->proj, context);
}

/* Describes the keys and values for this rank's groups. If there are fewer groups than ranks, ranks share groups. */
static int attention_caches(const void *spec, const Layout *l, CacheSpec out[BRANCH_CACHES]) {
    const AttentionSpec *a = spec;
    const int64_t tp = l->mesh.size[AXIS_TP], groups = a->groups > tp ? a->groups / tp : 1;
    out[0] = out[1] = (CacheSpec){EXTENT_POSITIONS, {groups, 1, a->head_dim}};
    return 2;
}

int64_t attention_counters(const AttentionSpec *s) { return s->clip.measures ? s->heads : 0; }

static int64_t branch_counters(const void *spec) { return attention_counters(spec); }

static double attention_flops(const void *spec, double s) {
    const AttentionSpec *a = spec;
    const double h = (double)a->hidden, q = (double)(a->heads * a->head_dim), gate = a->gated ? q : 0,
                 kv = (double)(a->groups * a->head_dim);
    const double seen = a->window_right == WINDOW_OFF ? 2 : 1;
    return 6 * s * (h * (q + gate + 2 * kv) + q * h + seen * q * s);
}

const BranchOps attention_branch = {.size = sizeof(Attention),
                                    .init = attention_init,
                                    .forward = attention_forward,
                                    .caches = attention_caches,
                                    .flops = attention_flops,
                                    .counters = branch_counters,
                                    .reduction = COMM_MAX};
