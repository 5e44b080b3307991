/* Shapes: s positions, b samples, and on this rank: g key heads of width dk, h value heads of width dv. */
#include "nn/delta_net.h"

#include "nn/state_layer.h"
#include "ops/delta_rule.h"
#include "ops/gate.h"
#include "ops/join_heads.h"
#include "ops/state_space.h"
#include "ops/take_parts.h"
#include "ops/ulysses.h"
#include "tape/tape_ops.h"

/* Returns the number of elements of q or k, or of v or z. */
static int64_t keys(const DeltaNetSpec *s) { return s->rule.key_heads * s->rule.key_dim; }
static int64_t values(const DeltaNetSpec *s) { return s->heads * s->rule.value_dim; }

static void delta_net_init(void *self, Registry *r, const char *name, const void *spec, Tensor *counters) {
    DeltaNet *n = self;
    const DeltaNetSpec *s = spec;
    const ParamPart channels[] = {{"q", keys(s)}, {"k", keys(s)}, {"v", values(s)}};
    const LinearSpec in = {.name = arena_printf(r->arena, "%s.in_proj", name),
                           .in = s->hidden,
                           .out = 2 * (keys(s) + values(s) + s->heads),
                           .tp_split = 0,
                           .init_std = s->in_init_std,
                           .quant = s->quant,
                           .split_parts = true,
                           .groups = 1,
                           .heads = s->rule.key_heads,
                           .n_parts = 6,
                           .parts = {{"q", keys(s)},
                                     {"k", keys(s)},
                                     {"v", values(s)},
                                     {"z", values(s)},
                                     {"beta", s->heads},
                                     {"alpha", s->heads}}};
    const LinearSpec out = {.name = arena_printf(r->arena, "%s.out_proj", name),
                            .in = values(s),
                            .out = s->hidden,
                            .tp_split = 1,
                            .init_std = s->out_init_std,
                            .quant = s->quant};
    (void)counters;
    *n = (DeltaNet){.spec = s,
                    .in = linear_new(r, in),
                    .conv = conv_weight(r, name, s->taps, channels),
                    .dt_bias = head_param(r, name, "dt_bias", s->heads, (Init){INIT_CONSTANT, 1}),
                    .a_log = head_param(r, name, "A_log", s->heads, (Init){INIT_LOG, 16}),
                    .norm =
                        norm_new(r, arena_printf(r->arena, "%s.out_norm", name), s->rule.value_dim, s->norm),
                    .out = linear_new(r, out)};
    if (n->norm.gain) n->norm.gain->spec.invariant = false; /* each rank normalizes its own heads */
    if (n->norm.bias) n->norm.bias->spec.invariant = false;
}

/* The inputs of the convolution and of the delta rule. */
typedef struct Inputs {
    Tensor *mixed, *conv; /* mixed: q, k and v */
    DeltaRuleInputs rule; /* without qkv */
} Inputs;

/* `width` and `mixed` are the numbers of columns of z, and of q, k and v. */
static Inputs own_inputs(Tape *t, const DeltaNet *n, const Feed *feed, Tensor *projected, int64_t width,
                         int64_t mixed) {
    const int64_t h = n->a_log->rows, beta = mixed + width;
    return (Inputs){.mixed = columns_of(t, projected, 0, mixed),
                    .conv = &n->conv->value,
                    .rule = {.beta = columns_of(t, projected, beta, h),
                             .alpha = columns_of(t, projected, beta + h, h),
                             .a_log = &n->a_log->value,
                             .dt_bias = &n->dt_bias->value,
                             .start = feed->document_start}};
}

/* Like own_inputs, for this rank's share of the heads. If there are fewer key heads than ranks, ranks share a key
 * head. */
static Inputs exchanged_inputs(Tape *t, const DeltaNet *n, const Feed *feed, Tensor *projected, int64_t width,
                               int64_t mixed, Group ranks) {
    const int64_t dk = n->spec->rule.key_dim, dv = n->spec->rule.value_dim, h = n->a_log->rows,
                  g = (mixed - width) / (2 * dk), own = h / ranks.size, head = ranks.rank * own,
                  own_keys = g < ranks.size ? 1 : g / ranks.size, key = head / (h / g), beta = mixed + width;
    const RowRange rows[] = {
        {key * dk, own_keys * dk}, {(g + key) * dk, own_keys * dk}, {2 * g * dk + head * dv, own * dv}};
    Tensor *q = exchanged(t, projected, ranks, 0, g, dk), *k = exchanged(t, projected, ranks, g * dk, g, dk),
           *v = exchanged(t, projected, ranks, 2 * g * dk, h, dv);
    Tensor *qk = op_join_heads(t, as_heads(t, q, 1), as_heads(t, k, 1));
    return (Inputs){
        .mixed = as_rows(t, op_join_heads(t, qk, as_heads(t, v, 1))),
        .conv = op_take_parts(t, &n->conv->value, rows, 3),
        .rule = {.beta = as_rows(t, exchanged(t, projected, ranks, beta, h, 1)),
                 .alpha = as_rows(t, exchanged(t, projected, ranks, beta + h, h, 1)),
                 .a_log = param_share_of(t, n->a_log, head, own),
                 .dt_bias = param_share_of(t, n->dt_bias, head, own),
                 .start = feed->document_start ? exchange_ids(t, feed->document_start, ranks) : NULL}};
}

static Tensor *rule(Tape *t, Inputs *in, DeltaRuleAttr a) {
    in->rule.qkv = op_causal_conv(t, in->mixed, in->conv, NULL, in->rule.start);
    return op_gated_delta_rule(t, &in->rule, a);
}

/* Continues from the states of the tokens' requests, and stores their new states. */
static Tensor *rule_stream(Tape *t, Inputs *in, DeltaRuleAttr a, const Feed *feed, Tensor *cache) {
    Tensor *slot = feed->cache->slot, *position = feed->position_ids;
    in->rule.qkv = op_stream_conv(t, in->mixed, in->conv, NULL, slot, position, &cache[0]);
    return op_stream_delta_rule(t, &in->rule, a, slot, position, &cache[1]);
}

typedef struct GatedNorm {
    const Norm *norm;
    Tensor *z;
} GatedNorm;

static Tensor *gated_norm(Tape *t, void *self, Tensor *y) {
    const GatedNorm *g = self;
    return op_gate(t, norm_forward(t, g->norm, y), g->z, (GateAttr){.silu = true});
}

static Tensor *delta_net_forward(Tape *t, const void *self, const Feed *feed, Tensor *cache, Tensor *x) {
    const DeltaNet *n = self;
    DeltaRuleAttr a = n->spec->rule;
    const int64_t h = n->a_log->rows, width = h * a.value_dim, mixed = n->conv->rows;
    const bool exchanges = tape_axis(t, AXIS_CP) > 1;
    const Group ranks = exchanges ? tape_group(t, 1u << AXIS_CP) : (Group){0};
    Tensor *projected = linear_forward(t, &n->in, x), *z = heads_at(t, projected, mixed, h, a.value_dim);
    Inputs in = exchanges ? exchanged_inputs(t, n, feed, projected, width, mixed, ranks)
                          : own_inputs(t, n, feed, projected, width, mixed);
    if (!exchanges) tape_pause_halfway(t); /* otherwise, the exchange waits for other ranks */
    a.key_heads = (tensor_width(in.mixed) - tensor_width(in.rule.alpha) * a.value_dim) / (2 * a.key_dim);
    Tensor *y = cache ? rule_stream(t, &in, a, feed, cache) : rule(t, &in, a);
    y = exchanges ? op_heads_to_seq(t, as_heads(t, y, h / ranks.size), ranks, h, 1) : as_heads(t, y, h);
    GatedNorm *g = tape_alloc(t, sizeof *g);
    *g = (GatedNorm){&n->norm, z};
    const bool discards = n->spec->recompute_norm;
    y = discards ? tape_block_discarded(t, gated_norm, g, y) : gated_norm(t, g, y);
    Tensor *out = linear_forward(t, &n->out, as_rows(t, y));
    if (discards) tape_discard(t, y);
    return out;
}

/* As in Megatron-LM, an element of a dv by dv state counts as 8 operations per token, and the convolution counts. */
static double delta_net_flops(const void *spec, double positions) {
    const DeltaNetSpec *s = spec;
    const double hidden = (double)s->hidden, qk = 2 * (double)keys(s), v = (double)values(s),
                 in = hidden * (qk + 2 * v + 2 * (double)s->heads), conv = (double)s->taps * (qk + v),
                 rule = 4 * v * (double)s->rule.value_dim, out = hidden * v;
    return 6 * positions * (in + conv + rule + out);
}

/* Describes the inputs of the convolution's next token, and the delta rule's state. */
static int delta_net_caches(const void *spec, const Layout *l, CacheSpec out[BRANCH_CACHES]) {
    const DeltaNetSpec *s = spec;
    const int64_t tp = l->mesh.size[AXIS_TP];
    out[0] = (CacheSpec){EXTENT_SAMPLES, {1, s->taps - 1, (2 * keys(s) + values(s)) / tp}};
    out[1] = (CacheSpec){EXTENT_SAMPLES, {s->heads / tp, s->rule.key_dim, s->rule.value_dim}};
    return 2;
}

const BranchOps delta_net_branch = {.size = sizeof(DeltaNet),
                                    .init = delta_net_init,
                                    .forward = delta_net_forward,
                                    .caches = delta_net_caches,
                                    .flops = delta_net_flops};
