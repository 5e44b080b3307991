#include "ops/quantize.h"

#include <math.h>

#include "kernels/ops.h"

enum { BLOCK = 128 };

static Fp8Type type_of(const Quantiser *q, QuantRole role) {
    return q->spec.format == FP8_HYBRID && role == QUANT_DY ? E5M2 : E4M3;
}

const Quantiser *quantize_new(Registry *r, const char *name, QuantSpec spec) {
    if (spec.format == FP8_NONE) return NULL;
    Quantiser *q = arena_alloc(r->arena, sizeof *q);
    *q = (Quantiser){.spec = spec};
    if (spec.recipe == FP8_DELAYED)
        q->state = param_add(r, (ParamSpec){.name = arena_printf(r->arena, "%s.fp8_state", name),
                                            .ndim = 2,
                                            .dim = {QUANT_ROLES, 1 + spec.history},
                                            .tp_split = SPLIT_NONE,
                                            .invariant = true,
                                            .init = {INIT_CONSTANT, 0},
                                            .flags = PARAM_BUFFER | PARAM_NO_DECAY});
    return q;
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
    tape_call(t, &OPS[OP_fill], (Call){.out = {state}, .attr = &zero});
    tape_call(t, &OPS[OP_amax], (Call){.in = {x}, .out = {state}});
    if (parts)
        tape_comm(t, &OPS[OP_amax],
                  (CommCall){.kind = COMM_ALL_REDUCE, .reduction = COMM_MAX, .group = tape_group(t, parts)},
                  state, state);
    tape_call(t, &OPS[OP_fp8_scale], (Call){.out = {state}, .attr = &attr});
    return state;
}

Tensor *quantize_state(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, SpmdType type) {
    if (!q || q->spec.recipe == FP8_BLOCKWISE) return NULL;
    if (q->spec.recipe == FP8_TENSORWISE) return own_state(t, q, role, x, type);
    const Tensor row = row_of(q, role);
    Tensor *state = tape_alias(t, &row);
    /* A block that will run again takes its operands in when it does. */
    if (role == QUANT_DY || tape_records(t)) tape_call(t, &OPS[OP_amax], (Call){.in = {x}, .out = {state}});
    return state;
}

void quantize_end_step(const Quantiser *q, Device *device, const Layout *layout, Comm *comm) {
    if (!q || !q->state) return;
    const Tensor *all = &q->state->master;
    /* Scales and past amaxes are equal already. */
    if (comm)
        comm_run(comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                   .reduction = COMM_MAX,
                                   .dtype = (DType)all->dtype,
                                   .group = mesh_group(&layout->mesh, MASK_DENSE & ~(1u << AXIS_PP)),
                                   .site = "fp8_state",
                                   .in = all->data,
                                   .out = all->data,
                                   .n = tensor_count(all),
                                   .device = device});
    for (QuantRole role = 0; role < QUANT_ROLES; role++) {
        const Fp8ScaleAttr attr = scale_attr(q, role, q->spec.margin);
        Tensor row = row_of(q, role);
        call_run(&OPS[OP_fp8_scale], &(Call){.out = {&row}, .attr = &attr, .device = device});
    }
}

/* ---- operands ---- */

Tensor *quantize_run(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, Tensor *state, QuantSum sum) {
    if (!q) return x;
    const QuantizeAttr attr = {.type = type_of(q, role),
                               .rows = sum == QUANT_OVER_ROWS || role == QUANT_W ? BLOCK : 1,
                               .columns = sum == QUANT_OVER_COLUMNS || role == QUANT_W ? BLOCK : 1};
    Tensor *y = tape_scratch(t, x->dtype == F64 ? F64 : F32, x->ndim, x->dim);
    tape_call(t, &OPS[OP_quantize], (Call){.in = {x, state}, .out = {y}, .attr = &attr});
    return y;
}
