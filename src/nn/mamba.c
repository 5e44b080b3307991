/* Shapes: s positions, b samples, and on this rank: h heads of width p, g groups, n state width. */
#include "nn/mamba.h"

#include "nn/state_layer.h"
#include "ops/join_heads.h"
#include "ops/state_space.h"
#include "ops/take_parts.h"
#include "ops/ulysses.h"
#include "tape/tape_ops.h"

/* Returns the number of elements of x and z, or of B and C. */
static int64_t inner(const MambaSpec *s) { return s->heads * s->scan.head_dim; }
static int64_t states(const MambaSpec *s) { return s->scan.groups * s->scan.state; }

static void mamba_init(void *self, Registry *r, const char *name, const void *spec, Tensor *counters) {
    Mamba *m = self;
    const MambaSpec *s = spec;
    const ParamPart channels[] = {{"x", inner(s)}, {"B", states(s)}, {"C", states(s)}};
    const LinearSpec in = {
        .name = arena_printf(r->arena, "%s.in_proj", name),
        .in = s->hidden,
        .out = 2 * inner(s) + 2 * states(s) + s->heads,
        .tp_split = 0,
        .init_std = s->in_init_std,
        .weight_flags = PARAM_NO_MUON,
        .quant = s->quant,
        .split_parts = true,
        .groups = 1,
        .n_parts = 5,
        .parts = {{"z", inner(s)}, {"x", inner(s)}, {"B", states(s)}, {"C", states(s)}, {"dt", s->heads}}};
    const LinearSpec out = {.name = arena_printf(r->arena, "%s.out_proj", name),
                            .in = inner(s),
                            .out = s->hidden,
                            .tp_split = 1,
                            .init_std = s->out_init_std,
                            .quant = s->quant};
    (void)counters;
    *m = (Mamba){.spec = s,
                 .in = linear_new(r, in),
                 .conv = conv_weight(r, name, s->taps, channels),
                 .conv_bias = conv_bias(r, name, s->taps, channels),
                 .dt_bias = head_param(r, name, "dt_bias", s->heads, (Init){INIT_SOFTPLUS, 0.1}),
                 .a_log = head_param(r, name, "A_log", s->heads, (Init){INIT_LOG, 16}),
                 .d = head_param(r, name, "D", s->heads, (Init){INIT_CONSTANT, 1}),
                 .gain = head_param(r, name, "norm.weight", inner(s), (Init){INIT_CONSTANT, 1}),
                 .out = linear_new(r, out)};
}

/* The inputs of the convolution and of the scan. */
typedef struct Inputs {
    Tensor *mixed, *conv, *conv_bias; /* mixed: x, B and C */
    ScanInputs scan;                  /* without x */
} Inputs;

/* `width` and `mixed` are the numbers of columns of x, and of x, B and C. */
static Inputs own_inputs(Tape *t, const Mamba *m, const Feed *feed, Tensor *projected, int64_t width,
                         int64_t mixed) {
    return (Inputs){.mixed = columns_of(t, projected, width, mixed),
                    .conv = &m->conv->value,
                    .conv_bias = &m->conv_bias->value,
                    .scan = {.dt = columns_of(t, projected, width + mixed, m->a_log->rows),
                             .dt_bias = &m->dt_bias->value,
                             .a_log = &m->a_log->value,
                             .d = &m->d->value,
                             .start = feed->document_start}};
}

/* Like own_inputs, for this rank's share of the heads. If there are fewer groups than ranks, ranks share a group. */
static Inputs exchanged_inputs(Tape *t, const Mamba *m, const Feed *feed, Tensor *projected, int64_t width,
                               int64_t mixed, Group ranks) {
    const int64_t p = m->spec->scan.head_dim, n = m->spec->scan.state, h = m->a_log->rows,
                  g = (mixed - width) / (2 * n), own = h / ranks.size, head = ranks.rank * own,
                  groups = g < ranks.size ? 1 : g / ranks.size, group = head / (h / g);
    const RowRange rows[] = {
        {head * p, own * p}, {width + group * n, groups * n}, {width + (g + group) * n, groups * n}};
    Tensor *x = exchanged(t, projected, ranks, width, h, p),
           *b = exchanged(t, projected, ranks, 2 * width, g, n),
           *c = exchanged(t, projected, ranks, 2 * width + g * n, g, n),
           *dt = exchanged(t, projected, ranks, width + mixed, h, 1);
    Tensor *xb = op_join_heads(t, as_heads(t, x, 1), as_heads(t, b, 1));
    return (Inputs){
        .mixed = as_rows(t, op_join_heads(t, xb, as_heads(t, c, 1))),
        .conv = op_take_parts(t, &m->conv->value, rows, 3),
        .conv_bias = op_take_parts(t, &m->conv_bias->value, rows, 3),
        .scan = {.dt = as_rows(t, dt),
                 .dt_bias = param_share_of(t, m->dt_bias, head, own),
                 .a_log = param_share_of(t, m->a_log, head, own),
                 .d = param_share_of(t, m->d, head, own),
                 .start = feed->document_start ? exchange_ids(t, feed->document_start, ranks) : NULL}};
}

static Tensor *scan(Tape *t, Inputs *in, ScanAttr a) {
    in->scan.x = op_causal_conv(t, in->mixed, in->conv, in->conv_bias, in->scan.start);
    return op_ssd_scan(t, &in->scan, a);
}

/* Continues from the states of the tokens' requests, and stores their new states. */
static Tensor *scan_stream(Tape *t, Inputs *in, ScanAttr a, const Feed *feed, Tensor *cache) {
    Tensor *slot = feed->cache->slot, *position = feed->position_ids;
    in->scan.x = op_stream_conv(t, in->mixed, in->conv, in->conv_bias, slot, position, &cache[0]);
    return op_stream_scan(t, &in->scan, a, slot, position, &cache[1]);
}

static Tensor *mamba_forward(Tape *t, const void *self, const Feed *feed, Tensor *cache, Tensor *x) {
    const Mamba *m = self;
    ScanAttr a = m->spec->scan;
    const int64_t h = m->a_log->rows, width = h * a.head_dim, mixed = m->conv->rows;
    const bool exchanges = tape_axis(t, AXIS_CP) > 1;
    const Group ranks = exchanges ? tape_group(t, 1u << AXIS_CP) : (Group){0};
    Tensor *projected = linear_forward(t, &m->in, x), *z = columns_of(t, projected, 0, width);
    Inputs in = exchanges ? exchanged_inputs(t, m, feed, projected, width, mixed, ranks)
                          : own_inputs(t, m, feed, projected, width, mixed);
    if (!exchanges) tape_pause_halfway(t); /* otherwise, the exchange waits for other ranks */
    a.groups = (tensor_width(in.mixed) - tensor_width(in.scan.dt) * a.head_dim) / (2 * a.state);
    Tensor *y = cache ? scan_stream(t, &in, a, feed, cache) : scan(t, &in, a);
    if (exchanges) y = as_rows(t, op_heads_to_seq(t, as_heads(t, y, h / ranks.size), ranks, h, 1));
    y = op_gated_norm(t, y, z, &m->gain->value,
                      (GatedNormAttr){.groups = (mixed - width) / (2 * a.state), .eps = m->spec->epsilon});
    return linear_forward(t, &m->out, y);
}

/* As in Megatron-LM, a state's element counts as 7 operations per token. The convolution does not count. */
static double mamba_flops(const void *spec, double positions) {
    const MambaSpec *s = spec;
    const double hidden = (double)s->hidden, x = (double)inner(s), bc = (double)states(s),
                 in = 2 * hidden * (2 * x + 2 * bc + (double)s->heads), out = 2 * hidden * x;
    return 3 * positions * (in + 7 * x * (double)s->scan.state + out);
}

/* Describes the inputs of the convolution's next token, and the scan's state. */
static int mamba_caches(const void *spec, const Layout *l, CacheSpec out[BRANCH_CACHES]) {
    const MambaSpec *s = spec;
    const int64_t tp = l->mesh.size[AXIS_TP];
    out[0] = (CacheSpec){EXTENT_SAMPLES, {1, s->taps - 1, (inner(s) + 2 * states(s)) / tp}};
    out[1] = (CacheSpec){EXTENT_SAMPLES, {s->heads / tp, s->scan.head_dim, s->scan.state}};
    return 2;
}

const BranchOps mamba_branch = {.size = sizeof(Mamba),
                                .init = mamba_init,
                                .forward = mamba_forward,
                                .caches = mamba_caches,
                                .flops = mamba_flops};
