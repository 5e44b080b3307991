#include "tape/spmd_infer.h"

#include <stdio.h>

#include "base/fault.h"
#include "base/str.h"

typedef struct Operands {
    const OpDef *op;
    const Call *call;
    Axis axis;
} Operands;

_Noreturn static void refuse(const Operands *o, const char *why) {
    char types[2 * CALL_IN + 1] = "";
    for (int i = 0, n = 0; i < CALL_IN; i++)
        if (o->call->in[i])
            n += snprintf(types + n, sizeof types - (size_t)n, " %c",
                          spmd_letter(spmd_on(o->call->in[i]->spmd, o->axis)));
    fault(__FILE__, __LINE__, "types fit", "op '%s', axis %s: the operands are%s; %s", o->op->name,
          axis_name(o->axis), types, why);
}

/* A replicated tensor that needs no gradient matches both I and R. */
static bool is_neutral(const Tensor *x, Spmd s) {
    return !(x->flags & TENSOR_NEEDS_GRAD) && (s == SPMD_I || s == SPMD_R);
}

static Spmd local(const Operands *o, bool is_linear) {
    int count[4] = {0}, n = 0;
    for (int i = 0; i < CALL_IN; i++) {
        const Tensor *x = o->call->in[i];
        if (!x) continue;
        const Spmd s = spmd_on(x->spmd, o->axis);
        if (is_neutral(x, s)) continue;
        count[s]++, n++;
    }
    if (count[SPMD_P]) {
        if (is_linear && count[SPMD_P] == n) return SPMD_P;
        refuse(o, "a partial sum is used before it is summed (all-reduce or reduce-scatter it first)");
    }
    if (count[SPMD_I] && count[SPMD_I] < n)
        refuse(o, "an invariant operand is combined with other types: make it R first, or its gradient will "
                  "lack the "
                  "other ranks' contributions");
    return count[SPMD_V] ? SPMD_V : count[SPMD_R] ? SPMD_R : SPMD_I;
}

/* Returns the type of y = x w^T + bias, w [.., out, in]. A third operand of integer type is not a bias, but
 * assigns rows to experts. */
static Spmd gemm(const Operands *o) {
    enum { X, W, BIAS };
    const Tensor *const x = o->call->in[X], *const w = o->call->in[W], *const third = o->call->in[BIAS],
                        *const bias = third && dtype_is_float((DType)third->dtype) ? third : NULL;
    const Spmd sx = spmd_on(x->spmd, o->axis), sw = spmd_on(w->spmd, o->axis);
    /* on the EP axis, entire experts are distributed over the ranks */
    const bool is_cut = w->cut && o->axis != AXIS_EP;
    if (sw != SPMD_V || !is_cut) return local(o, false);
    if (w->cut == 1) {
        if (sx != SPMD_R && !is_neutral(x, sx)) refuse(o, "the weight is split by output: x must be R");
        if (bias && spmd_on(bias->spmd, o->axis) != SPMD_V)
            refuse(o, "the weight is split by output, but the bias is not");
        return SPMD_V;
    }
    if (sx != SPMD_V) refuse(o, "the weight is split by input: x must be V");
    if (bias) refuse(o, "the output is a partial sum: add the bias after the reduction");
    return SPMD_P;
}

/* Returns the type of row id[i] of a table w. */
static Spmd lookup(const Operands *o) {
    enum { ID, W };
    const Spmd id = spmd_on(o->call->in[ID]->spmd, o->axis), w = spmd_on(o->call->in[W]->spmd, o->axis);
    if (w != SPMD_V) return local(o, false);
    if (id == SPMD_V)
        refuse(o, "every rank must look up every id, because each rank holds a part of the table");
    return SPMD_P;
}

/* Returns the type of a sum over a microbatch's tokens, which are sharded over tp and cp. Each data-parallel rank has
 * different microbatches. */
static Spmd sum(const Operands *o) {
    const Spmd s = local(o, false);
    return s == SPMD_V && (o->axis == AXIS_TP || o->axis == AXIS_CP) ? SPMD_P : s;
}

static Spmd infer(const Operands *o) {
    switch (o->op->rule) {
    case SPMD_LINEAR:
        return local(o, true);
    case SPMD_GEMM:
        return gemm(o);
    case SPMD_LOOKUP:
        return lookup(o);
    case SPMD_SUM:
        return sum(o);
    default:
        return local(o, false);
    }
}

void types_infer(const OpDef *op, const Call *call, const Layout *layout) {
    SpmdType type = 0;
    for (int a = 0; a < AXES; a++) {
        if (layout->mesh.size[a] == 1 || a == AXIS_PP) continue;
        type = spmd_with(type, a, infer(&(Operands){op, call, (Axis)a}));
    }
    for (int i = 0; i < CALL_OUT; i++)
        if (call->out[i]) call->out[i]->spmd = type;
}
