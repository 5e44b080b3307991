#include "ops/fp8_state.h"

#include <fnmatch.h>
#include <math.h>

#include "kernels/ops.h"
#include "param/fp8_weights.h"

Fp8Type quantize_type(const Quantiser *q, QuantRole role) {
    return q->spec.format == QUANT_HYBRID && role == QUANT_DY ? E5M2 : E4M3;
}

/* Returns the number of matrices on all ranks. */
static int64_t all_matrices(const Quantiser *q) { return q->state->spec.dim[0] / QUANT_ROLES; }

Tensor quantize_row(const Quantiser *q, QuantRole role) {
    return fp8_weight_rows(q->state, role * all_matrices(q) + q->first, q->matrices);
}

Fp8ScaleAttr quantize_scale_attr(const Quantiser *q, QuantRole role, int64_t margin) {
    return (Fp8ScaleAttr){.largest = ldexp((double)fp8_max(quantize_type(q, role)), (int)-margin),
                          .most_recent = q->spec.most_recent};
}

Fp8Blocks quantize_blocks(const Quantiser *q, QuantRole role) {
    if (q->spec.recipe != QUANT_BLOCKWISE) return FP8_WHOLE;
    return role == QUANT_W ? FP8_SQUARES : FP8_ROWS;
}

DType quantize_bits(const Tensor *state) { return state->dtype == F64 ? I64 : I32; }

static void all_reduce_max(const StateContext *c, Group group, const char *site, const Tensor *state) {
    comm_run(c->comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                  .reduction = COMM_MAX,
                                  .dtype = quantize_bits(state),
                                  .group = group,
                                  .site = site,
                                  .in = state->data,
                                  .out = state->data,
                                  .n = tensor_count(state),
                                  .device = c->device});
}

/* Returns the reason for the emulation of GEMMs that need `gemms` of the device. `lacks` and `sizes` are the reasons if
 * the device lacks them, or if the sizes do not fit. */
static const char *reason(const Device *device, QuantSpec spec, unsigned gemms, const char *lacks, bool fits,
                          const char *sizes) {
    if (spec.emulated) return "--fp8-emulated requests it";
    if (!(device_fp8_gemms(device) & gemms)) return lacks;
    if (spec.fixed_order) return "--batch-invariant-mode sums in a fixed order";
    return fits ? NULL : sizes;
}

const char *quantize_emulation(const Device *device, QuantSpec spec, int64_t rows, int64_t in, int64_t out) {
    const int64_t all = rows | in | out;
    return spec.recipe == QUANT_BLOCKWISE
               ? reason(device, spec, FP8_GEMM_BLOCKS,
                        "the device has no GEMMs with a scale for every 128 terms", all % FP8_BLOCK == 0,
                        "a layer's tokens, inputs and outputs must be multiples of 128")
               : reason(device, spec, FP8_GEMM_WHOLE, "the device has no FP8 GEMMs", all % 16 == 0,
                        "a layer's tokens, inputs and outputs must be multiples of 16");
}

static const char *emulation(const Quantiser *q, const Device *device, int64_t tokens) {
    const Param *w = q->weight;
    if (!w->spec.expert) return quantize_emulation(device, q->spec, tokens, w->columns, w->rows);
    const bool wide = w->value.dtype == F32;
    return reason(device, q->spec, FP8_GEMM_EXPERTS, "the device has no FP8 GEMMs for experts",
                  !wide && (w->columns | w->rows / q->matrices) % 16 == 0,
                  wide ? "FP8 GEMMs of experts write only 16-bit outputs"
                       : "an expert's inputs and outputs must be multiples of 16");
}

/* ---- the end of a step ---- */

static void fp8_end_step(void *self, const StateContext *c) {
    const Quantiser *q = self;
    if (!q->state) return;
    const Tensor *all = &q->state->master;
    /* Scales and older amaxes are already equal on all ranks, so the all-reduce changes only the newest
     * amaxes. */
    if (c->comm)
        all_reduce_max(c, mesh_group(&c->layout->mesh, MASK_DENSE & ~(1u << AXIS_PP)), "fp8_state", all);
    for (QuantRole role = 0; role < QUANT_ROLES; role++) {
        const Fp8ScaleAttr attr = quantize_scale_attr(q, role, q->spec.margin);
        Tensor every = fp8_weight_rows(q->state, role * all_matrices(q), all_matrices(q));
        call_run(&OPS[OP_fp8_scale], &(Call){.out = {&every}, .attr = &attr, .device = c->device});
    }
}

/* ---- FP8 values that are kept ---- */

enum { KEPT_PARTS = 5 };

/* Computes the sizes of the parts of the kept block: FP8 values, inverses and the state. */
static size_t kept_parts(const Quantiser *q, const Param *w, size_t part[KEPT_PARTS]) {
    const Fp8Blocks blocks = quantize_blocks(q, QUANT_W);
    const size_t each = dtype_size((DType)w->master.dtype);
    const int64_t all = w->rows * w->columns, n = q->matrices, rows = w->rows / n;
    const int64_t counts[KEPT_PARTS] = {all, all, n * fp8_blocks_count(blocks, rows, w->columns),
                                        n * fp8_blocks_count(blocks, w->columns, rows), 2 * n};
    size_t total = 0;
    for (int i = 0; i < KEPT_PARTS; i++) {
        part[i] = total;
        total += ((size_t)counts[i] * (i < 2 ? 1 : each) + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    }
    return total;
}

/* Allocates the kept values. No values are kept if the GEMMs are emulated. */
static size_t fp8_prepare(void *self, const StateContext *c) {
    const Quantiser *q = self;
    const Param *w = q->weight;
    if (!q->spec.keep_weights || emulation(q, c->device, c->tokens)) return 0;
    const Fp8Blocks blocks = quantize_blocks(q, QUANT_W);
    const DType real = (DType)w->master.dtype;
    QuantKept *k = q->kept;
    size_t part[KEPT_PARTS];
    k->bytes = kept_parts(q, w, part);
    k->block = device_alloc(c->device, k->bytes, "the FP8 values of FP8 weights");
    k->values.kept = 1 << QUANT_OVER_COLUMNS | 1 << QUANT_OVER_ROWS;
    const int64_t matrices = q->matrices, rows = w->rows / matrices;
    for (int s = 0; s < 2; s++) {
        const int64_t dim[2] = {s ? w->columns : rows, s ? rows : w->columns},
                      n = matrices * fp8_blocks_count(blocks, dim[0], dim[1]);
        k->values_at[s] = tensor_make(k->block + part[s], F8E4M3, 2, (int64_t[]){matrices * dim[0], dim[1]});
        k->inverse_at[s] = tensor_make(k->block + part[2 + (blocks == FP8_WHOLE ? 0 : s)], real, 1, &n);
        k->values.by[s] = (QuantOperand){&k->values_at[s], &k->inverse_at[s], blocks};
    }
    k->state = tensor_make(k->block + part[4], real, 2, (int64_t[]){matrices, 2});
    return k->bytes;
}

static void fp8_release(void *self, Device *device) {
    const Quantiser *q = self;
    if (!q->kept->block) return;
    device_release(device, q->kept->block, q->kept->bytes);
    q->kept->block = NULL;
}

/* Computes a weight's scale for the tensorwise recipe without a tape, like own_state in fp8.c. */
static void take_own_state(const Quantiser *q, Tensor *w, const StateContext *c) {
    const FillAttr zero = {0};
    const Fp8ScaleAttr attr = quantize_scale_attr(q, QUANT_W, 0);
    Tensor *state = &q->kept->state;
    call_run(&OPS[OP_fill], &(Call){.out = {state}, .attr = &zero, .device = c->device});
    call_run(&OPS[OP_amax], &(Call){.in = {w}, .out = {state}, .device = c->device});
    const unsigned parts = spmd_axes(w->spmd, SPMD_V) & QUANT_PARTS;
    if (c->comm && parts) all_reduce_max(c, mesh_group(&c->layout->mesh, parts), "fp8_weight", state);
    call_run(&OPS[OP_fp8_scale], &(Call){.out = {state}, .attr = &attr, .device = c->device});
}

/* Adds the amax of a weight stored in FP8 to the history, as casting does for other weights. */
static void record_amax(const Quantiser *q, const StateContext *c) {
    if (!c->training || q->spec.recipe != QUANT_DELAYED) return;
    Tensor row = quantize_row(q, QUANT_W);
    call_run(&OPS[OP_amax], &(Call){.in = {&q->weight->fp8->amaxes}, .out = {&row}, .device = c->device});
}

static void fp8_refresh(void *self, const StateContext *c) {
    const Quantiser *q = self;
    if (q->weight->fp8) record_amax(q, c);
    if (!q->kept->block) return;
    const QuantKept *k = q->kept;
    const Fp8CastAttr attr = {.blocks = quantize_blocks(q, QUANT_W), .matrices = q->matrices};
    const QuantOperand *y = k->values.by;
    Tensor value = q->weight->value, row, *state = NULL;
    if (q->spec.recipe == QUANT_TENSORWISE) {
        take_own_state(q, &value, c);
        state = &q->kept->state;
    } else if (q->spec.recipe == QUANT_DELAYED) {
        row = quantize_row(q, QUANT_W);
        state = &row;
    }
    Tensor *newest = c->training && q->spec.recipe == QUANT_DELAYED ? state : NULL;
    Call call = {.in = {&value, state},
                 .out = {y[0].values, y[1].values, y[0].inverse, newest},
                 .attr = &attr,
                 .device = c->device};
    if (attr.blocks != FP8_WHOLE) {
        call.out[1] = NULL;
        call_run(&OPS[OP_fp8_cast], &call);
        call.out[0] = NULL, call.out[1] = y[1].values, call.out[2] = y[1].inverse;
    }
    call_run(&OPS[OP_fp8_cast], &call);
}

/* ---- states ---- */

static const StateKind FP8_STATE = {
    .prepare = fp8_prepare, .refresh = fp8_refresh, .end_step = fp8_end_step, .release = fp8_release};

/* Applies the rules to the layer with this name. */
static QuantSpec spec_for(QuantSpec spec, const char *name) {
    int i = 0;
    while (i < spec.n_rules && fnmatch(spec.rules[i].pattern, name, FNM_NOESCAPE) != 0) i++;
    const QuantRule *rule = i < spec.n_rules ? &spec.rules[i] : NULL;
    if (rule && (spec.format == QUANT_OFF ? rule->of_plain : rule->of_quantised))
        spec.format = rule->format, spec.recipe = rule->recipe;
    spec.keep_inputs &= spec.recipe != QUANT_BLOCKWISE;
    return spec;
}

const Quantiser *quantize_new(Registry *r, const char *name, Param *weight, QuantSpec spec) {
    Quantiser *q;
    spec = spec_for(spec, name);
    if (spec.format == QUANT_OFF) return NULL;
    for (int i = 0; (q = state_find(r, &FP8_STATE, i)); i++)
        if (q->weight == weight) return q;
    q = arena_alloc(r->arena, sizeof *q);
    const Mesh *m = &r->layout.mesh;
    const int64_t experts = weight->spec.expert ? weight->spec.groups : 1,
                  here = weight->spec.expert ? experts / m->size[AXIS_EP] : 1;
    *q = (Quantiser){.spec = spec,
                     .weight = weight,
                     .matrices = here,
                     .first = weight->spec.expert ? here * m->coordinate[AXIS_EP] : 0,
                     .kept = arena_alloc(r->arena, sizeof *q->kept)};
    *q->kept = (QuantKept){.block = NULL};
    if (spec.recipe == QUANT_DELAYED)
        q->state = state_buffer(r, arena_printf(r->arena, "%s" PARAM_FP8_STATE, name), 2,
                                (int64_t[]){QUANT_ROLES * experts, 1 + spec.history});
    if (spec.store_weights)
        fp8_weight_add(r, q->weight,
                       (Fp8Weight){.blocks = quantize_blocks(q, QUANT_W),
                                   .matrices = here,
                                   .history = q->state,
                                   .row = q->state ? QUANT_W * experts + q->first : 0});
    state_add(r, &FP8_STATE, q);
    return q;
}

int64_t quantize_layers(const Registry *r, int64_t tokens, const char **why) {
    int n = 0;
    *why = NULL;
    for (const Quantiser *q; (q = state_find(r, &FP8_STATE, n)); n++)
        if (!*why) *why = emulation(q, r->device, tokens);
    return n;
}
