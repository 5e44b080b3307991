#include "ops/fp8.h"

#include <math.h>

#include "kernels/ops.h"

typedef struct QuantKept {
    QuantValues values; /* no memory: nothing is kept */
    Tensor values_at[2], inverse_at[2], state;
    char *block;
    size_t bytes;
} QuantKept;

static Fp8Type type_of(const Quantiser *q, QuantRole role) {
    return q->spec.format == QUANT_HYBRID && role == QUANT_DY ? E5M2 : E4M3;
}

/* ---- scales ---- */

static Tensor row_of(const Quantiser *q, QuantRole role) {
    const Tensor *all = &q->state->master;
    const size_t bytes = dtype_size((DType)all->dtype) * (size_t)all->dim[1];
    return tensor_make((char *)all->data + bytes * role, (DType)all->dtype, 1, &all->dim[1]);
}

static Fp8ScaleAttr scale_attr(const Quantiser *q, QuantRole role, int64_t margin) {
    return (Fp8ScaleAttr){.largest = ldexp((double)fp8_max(type_of(q, role)), (int)-margin),
                          .most_recent = q->spec.most_recent};
}

/* The scale of the whole tensor by its own amax. */
static Tensor *own_state(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, SpmdType type) {
    const FillAttr zero = {0};
    const Fp8ScaleAttr attr = scale_attr(q, role, 0);
    const unsigned parts = spmd_axes(type, SPMD_V) & (1u << AXIS_TP | 1u << AXIS_CP);
    Tensor *state = tape_tensor(t, x->dtype == F64 ? F64 : F32, 1, (int64_t[]){2});
    if (!parts) {
        tape_call(t, &OPS[OP_fp8_own_scale], (Call){.in = {x}, .out = {state}, .attr = &attr});
        return state;
    }
    tape_call(t, &OPS[OP_fill], (Call){.out = {state}, .attr = &zero});
    tape_call(t, &OPS[OP_amax], (Call){.in = {x}, .out = {state}});
    tape_comm(t, &OPS[OP_amax_all_reduce],
              (CommCall){.kind = COMM_ALL_REDUCE, .reduction = COMM_MAX, .group = tape_group(t, parts)},
              state, state);
    tape_call(t, &OPS[OP_fp8_scale], (Call){.out = {state}, .attr = &attr});
    return state;
}

/* A block that will run again takes its operands in when it does. */
static bool counts(const Tape *t, QuantRole role) { return role == QUANT_DY || tape_is_recording(t); }

Tensor *quantize_state(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, SpmdType type, bool native) {
    if (!q || q->spec.recipe == QUANT_BLOCKWISE || (native && role == QUANT_W && q->kept->block)) return NULL;
    if (q->spec.recipe == QUANT_TENSORWISE) return own_state(t, q, role, x, type);
    const Tensor row = row_of(q, role);
    Tensor *state = tape_alias(t, &row);
    if (!native && counts(t, role)) tape_call(t, &OPS[OP_amax], (Call){.in = {x}, .out = {state}});
    return state;
}

/* ---- operands ---- */

Tensor *quantize_run(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, Tensor *state, QuantSum sum) {
    if (!q) return x;
    const QuantizeAttr attr = {.type = type_of(q, role),
                               .rows = sum == QUANT_OVER_ROWS || role == QUANT_W ? FP8_BLOCK : 1,
                               .columns = sum == QUANT_OVER_COLUMNS || role == QUANT_W ? FP8_BLOCK : 1};
    Tensor *y = tape_scratch(t, x->dtype == F64 ? F64 : F32, x->ndim, x->dim);
    tape_call(t, &OPS[OP_quantize], (Call){.in = {x, state}, .out = {y}, .attr = &attr});
    return y;
}

/* ---- FP8 values ---- */

const char *quantize_emulation(const Device *device, QuantSpec spec, int64_t rows, int64_t in, int64_t out) {
    const bool blocks = spec.recipe == QUANT_BLOCKWISE;
    const int64_t unit = blocks ? FP8_BLOCK : 16; /* sizes that the device's GEMMs take are multiples of it */
    if (spec.emulated) return "--fp8-emulated asks for it";
    if (!(device_fp8_gemms(device) & (blocks ? FP8_GEMM_BLOCKS : FP8_GEMM_WHOLE)))
        return blocks ? "the device has no GEMMs with a scale for every 128 terms"
                      : "the device has no GEMMs of FP8 numbers";
    if (spec.fixed_order) return "--batch-invariant-mode sums in a fixed order";
    if (rows % unit || in % unit || out % unit)
        return blocks ? "tokens, inputs and outputs of a layer must be multiples of 128"
                      : "tokens, inputs and outputs of a layer must be multiples of 16";
    return NULL;
}

static Fp8Blocks blocks_of(const Quantiser *q, QuantRole role) {
    if (q->spec.recipe != QUANT_BLOCKWISE) return FP8_WHOLE;
    return role == QUANT_W ? FP8_SQUARES : FP8_ROWS;
}

static Tensor *take(Tape *t, bool kept, DType type, int ndim, const int64_t *dim) {
    return kept ? tape_tensor(t, type, ndim, dim) : tape_scratch(t, type, ndim, dim);
}

static void encode(Tape *t, Tensor *x, Tensor *state, Tensor *newest, bool kept, QuantOperand *y,
                   QuantOperand *yt) {
    QuantOperand *first = y ? y : yt;
    const Fp8CastAttr attr = {first->blocks};
    const int64_t n = fp8_blocks_count(attr.blocks, first->values->dim[0], first->values->dim[1]);
    Tensor *inverse = take(t, kept, x->dtype == F64 ? F64 : F32, 1, &n);
    if (y) y->inverse = inverse;
    if (yt) yt->inverse = inverse;
    tape_call(t, &OPS[OP_fp8_cast],
              (Call){.in = {x, state},
                     .out = {y ? y->values : NULL, yt ? yt->values : NULL, inverse, newest},
                     .attr = &attr});
}

QuantValues quantize_values(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, Tensor *state,
                            QuantWanted want) {
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const DType type = type_of(q, role) == E4M3 ? F8E4M3 : F8E5M2;
    if (role == QUANT_W && q->kept->block) return q->kept->values;
    Tensor *newest = want.first && q->spec.recipe == QUANT_DELAYED && counts(t, role) ? state : NULL;
    QuantValues c = {.kept = want.kept};
    QuantOperand *asked[2] = {NULL, NULL};
    for (int s = 0; s < 2; s++) {
        if (!(want.sums >> s & 1)) continue;
        const int64_t dim[2] = {s == QUANT_OVER_COLUMNS ? rows : width,
                                s == QUANT_OVER_COLUMNS ? width : rows};
        c.by[s] = (QuantOperand){take(t, want.kept >> s & 1, type, 2, dim), NULL, blocks_of(q, role)};
        asked[s] = &c.by[s];
    }
    if (blocks_of(q, role) == FP8_WHOLE)
        encode(t, x, state, newest, want.kept, asked[0], asked[1]);
    else
        for (int s = 0; s < 2; s++)
            if (asked[s]) encode(t, x, NULL, NULL, false, s ? NULL : asked[s], s ? asked[s] : NULL);
    return c;
}

void quantize_drop(Tape *t, QuantValues *c) {
    Tensor *inverse = c->by[0].inverse;
    for (int s = 0; s < 2; s++) {
        if (c->by[s].values && !(c->kept >> s & 1)) tape_drop(t, c->by[s].values);
        if (c->by[s].inverse && !c->kept && (!s || c->by[s].inverse != inverse))
            tape_drop(t, c->by[s].inverse);
    }
    *c = (QuantValues){0};
}

void quantize_multiply(Tape *t, const QuantGemm *p) {
    const Fp8GemmAttr attr = {.a = p->a.blocks,
                              .b = p->b.blocks,
                              .fast = p->fast && p->a.blocks == FP8_WHOLE,
                              .activation = p->activation};
    tape_call(t, &OPS[OP_fp8_gemm],
              (Call){.in = {p->a.values, p->b.values, p->a.inverse, p->b.inverse, p->bias},
                     .out = {p->c, p->act},
                     .attr = &attr});
}

/* ---- the end of a step ---- */

static void fp8_end_step(void *self, const StateContext *c) {
    const Quantiser *q = self;
    if (!q->state) return;
    const Tensor *all = &q->state->master;
    /* Scales and past amaxes are equal already. */
    if (c->comm)
        comm_run(c->comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                      .reduction = COMM_MAX,
                                      .dtype = (DType)all->dtype,
                                      .group = mesh_group(&c->layout->mesh, MASK_DENSE & ~(1u << AXIS_PP)),
                                      .site = "fp8_state",
                                      .in = all->data,
                                      .out = all->data,
                                      .n = tensor_count(all),
                                      .device = c->device});
    for (QuantRole role = 0; role < QUANT_ROLES; role++) {
        const Fp8ScaleAttr attr = scale_attr(q, role, q->spec.margin);
        Tensor row = row_of(q, role);
        call_run(&OPS[OP_fp8_scale], &(Call){.out = {&row}, .attr = &attr, .device = c->device});
    }
}

/* ---- kept FP8 values ---- */

enum { KEPT_PARTS = 5 };

/* The parts of the block: FP8 values, inverses, the state. */
static size_t kept_parts(const Quantiser *q, const Param *w, size_t part[KEPT_PARTS]) {
    const Fp8Blocks blocks = blocks_of(q, QUANT_W);
    const size_t each = dtype_size((DType)w->master.dtype);
    const int64_t all = w->rows * w->columns;
    const int64_t counts[KEPT_PARTS] = {all, all, fp8_blocks_count(blocks, w->rows, w->columns),
                                        fp8_blocks_count(blocks, w->columns, w->rows), 2};
    size_t total = 0;
    for (int i = 0; i < KEPT_PARTS; i++) {
        part[i] = total;
        total += ((size_t)counts[i] * (i < 2 ? 1 : each) + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    }
    return total;
}

/* Values that other ranks hold part of cannot be kept. */
static size_t fp8_prepare(void *self, const StateContext *c) {
    const Quantiser *q = self;
    const Param *w = q->weight;
    if (!q->spec.keep_weights || quantize_emulation(c->device, q->spec, c->tokens, w->columns, w->rows))
        return 0;
    const Fp8Blocks blocks = blocks_of(q, QUANT_W);
    const DType real = (DType)w->master.dtype;
    QuantKept *k = q->kept;
    size_t part[KEPT_PARTS];
    k->bytes = kept_parts(q, w, part);
    k->block = device_alloc(c->device, k->bytes, "FP8 values of weights");
    k->values.kept = 1 << QUANT_OVER_COLUMNS | 1 << QUANT_OVER_ROWS;
    for (int s = 0; s < 2; s++) {
        const int64_t dim[2] = {s ? w->columns : w->rows, s ? w->rows : w->columns},
                      n = fp8_blocks_count(blocks, dim[0], dim[1]);
        k->values_at[s] = tensor_make(k->block + part[s], F8E4M3, 2, dim);
        k->inverse_at[s] = tensor_make(k->block + part[2 + (blocks == FP8_WHOLE ? 0 : s)], real, 1, &n);
        k->values.by[s] = (QuantOperand){&k->values_at[s], &k->inverse_at[s], blocks};
    }
    k->state = tensor_make(k->block + part[4], real, 1, (int64_t[]){2});
    return k->bytes;
}

static void fp8_release(void *self, Device *device) {
    const Quantiser *q = self;
    if (!q->kept->block) return;
    device_release(device, q->kept->block, q->kept->bytes);
    q->kept->block = NULL;
}

/* own_state, outside of a tape. */
static void take_own_state(const Quantiser *q, Tensor *w, const StateContext *c) {
    const FillAttr zero = {0};
    const Fp8ScaleAttr attr = scale_attr(q, QUANT_W, 0);
    Tensor *state = &q->kept->state;
    call_run(&OPS[OP_fill], &(Call){.out = {state}, .attr = &zero, .device = c->device});
    call_run(&OPS[OP_amax], &(Call){.in = {w}, .out = {state}, .device = c->device});
    if (c->comm && spmd_on(w->spmd, AXIS_TP) == SPMD_V)
        comm_run(c->comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                      .reduction = COMM_MAX,
                                      .dtype = (DType)state->dtype,
                                      .group = mesh_group(&c->layout->mesh, 1u << AXIS_TP),
                                      .site = "fp8_weight",
                                      .in = state->data,
                                      .out = state->data,
                                      .n = tensor_count(state),
                                      .device = c->device});
    call_run(&OPS[OP_fp8_scale], &(Call){.out = {state}, .attr = &attr, .device = c->device});
}

static void fp8_refresh(void *self, const StateContext *c) {
    const Quantiser *q = self;
    if (!q->kept->block) return;
    const QuantKept *k = q->kept;
    const Fp8CastAttr attr = {blocks_of(q, QUANT_W)};
    const QuantOperand *y = k->values.by;
    Tensor value = q->weight->value, row, *state = NULL;
    if (q->spec.recipe == QUANT_TENSORWISE) {
        take_own_state(q, &value, c);
        state = &q->kept->state;
    } else if (q->spec.recipe == QUANT_DELAYED) {
        row = row_of(q, QUANT_W);
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

const Quantiser *quantize_new(Registry *r, const char *name, const Param *weight, QuantSpec spec) {
    if (spec.format == QUANT_OFF) return NULL;
    Quantiser *q = arena_alloc(r->arena, sizeof *q);
    *q = (Quantiser){.spec = spec, .weight = weight, .kept = arena_alloc(r->arena, sizeof *q->kept)};
    *q->kept = (QuantKept){.block = NULL};
    if (spec.recipe == QUANT_DELAYED)
        q->state = state_buffer(r, arena_printf(r->arena, "%s" PARAM_FP8_STATE, name), 2,
                                (int64_t[]){QUANT_ROLES, 1 + spec.history});
    state_add(r, &FP8_STATE, q);
    return q;
}

int64_t quantize_layers(const Registry *r, int64_t tokens, const char **emulation) {
    int n = 0;
    *emulation = NULL;
    for (const Quantiser *q; (q = state_find(r, &FP8_STATE, n)); n++)
        if (!*emulation)
            *emulation = quantize_emulation(r->device, q->spec, tokens, q->weight->columns, q->weight->rows);
    return n;
}
