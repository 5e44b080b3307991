#include "ops/fp8.h"

#include "kernels/ops.h"
#include "ops/fp8_state.h"
#include "param/fp8_weights.h"
#include "tape/tape_ops.h"

/* ---- scales ---- */

/* Adds the amaxes of x to the state. */
static void add_amaxes(Tape *t, Tensor *x, const QuantRows *rows, Tensor *state) {
    tape_call(t, &OPS[rows ? OP_fp8_expert_amax : OP_amax],
              (Call){.in = {x, rows ? rows->offset : NULL}, .out = {state}});
}

/* Computes the full tensor's scale from its current amax. */
static Tensor *own_state(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, const QuantRows *rows,
                         SpmdType type) {
    const FillAttr zero = {0};
    const Fp8ScaleAttr attr = quantize_scale_attr(q, role, 0);
    const unsigned parts = spmd_axes(type, SPMD_V) & QUANT_PARTS;
    Tensor *state = tape_tensor(t, x->dtype == F64 ? F64 : F32, 2, (int64_t[]){q->matrices, 2});
    if (!parts && !rows) {
        tape_call(t, &OPS[OP_fp8_own_scale], (Call){.in = {x}, .out = {state}, .attr = &attr});
        return state;
    }
    tape_call(t, &OPS[OP_fill], (Call){.out = {state}, .attr = &zero});
    add_amaxes(t, x, rows, state);
    if (parts) {
        Tensor bits = tensor_make(state->data, quantize_bits(state), state->ndim, state->dim);
        tape_comm(t, &OPS[OP_amax_all_reduce],
                  (CommCall){.kind = COMM_ALL_REDUCE, .reduction = COMM_MAX, .group = tape_group(t, parts)},
                  &bits, &bits);
    }
    tape_call(t, &OPS[OP_fp8_scale], (Call){.out = {state}, .attr = &attr});
    return state;
}

/* Returns whether x's amax is added to the history. If a block is recomputed, only its second run adds the
 * amax. */
static bool counts(const Tape *t, QuantRole role) { return role == QUANT_DY || tape_is_recording(t); }

Tensor *quantize_state(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, const QuantRows *rows,
                       SpmdType type, bool values) {
    if (!q) return NULL;
    const bool is_cast = role == QUANT_W && (q->weight->fp8 || (values && q->kept->block));
    if (q->spec.recipe == QUANT_BLOCKWISE || is_cast) return NULL;
    if (q->spec.recipe == QUANT_TENSORWISE) return own_state(t, q, role, x, rows, type);
    const Tensor row = quantize_row(q, role);
    Tensor *state = tape_alias(t, &row);
    if (!values && counts(t, role)) add_amaxes(t, x, rows, state);
    return state;
}

/* ---- operands ---- */

/* Returns the dequantized FP8 weight. */
static Tensor *decoded(Tape *t, const Fp8Weight *w, Tensor *values) {
    const Fp8CastAttr attr = {.blocks = w->blocks};
    Tensor *y = tape_scratch(t, (DType)w->inverse.dtype, values->ndim, values->dim);
    tape_call(t, &OPS[OP_fp8_decode],
              (Call){.in = {values, (Tensor *)&w->inverse}, .out = {y}, .attr = &attr});
    return y;
}

Tensor *quantize_run(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, Tensor *state, QuantSum sum) {
    if (!q) return x;
    if (role == QUANT_W && q->weight->fp8) return decoded(t, q->weight->fp8, x);
    const QuantizeAttr attr = {.type = quantize_type(q, role),
                               .rows = sum == QUANT_OVER_ROWS || role == QUANT_W ? FP8_BLOCK : 1,
                               .columns = sum == QUANT_OVER_COLUMNS || role == QUANT_W ? FP8_BLOCK : 1};
    Tensor *y = tape_scratch(t, x->dtype == F64 ? F64 : F32, x->ndim, x->dim);
    tape_call(t, &OPS[OP_quantize], (Call){.in = {x, state}, .out = {y}, .attr = &attr});
    return y;
}

/* ---- FP8 values ---- */

static Tensor *take(Tape *t, bool kept, DType type, int ndim, const int64_t *dim) {
    return kept ? tape_tensor(t, type, ndim, dim) : tape_scratch(t, type, ndim, dim);
}

static int64_t blocks_of(const QuantOperand *y, int64_t matrices) {
    return matrices * fp8_blocks_count(y->blocks, y->values->dim[0] / matrices, y->values->dim[1]);
}

static void encode(Tape *t, const Quantiser *q, Tensor *x, Tensor *state, Tensor *newest, bool kept,
                   QuantOperand *y, QuantOperand *yt) {
    QuantOperand *first = y ? y : yt;
    const int64_t matrices = first->blocks == FP8_ROWS ? 1 : q->matrices, n = blocks_of(first, matrices);
    const Fp8CastAttr attr = {.blocks = first->blocks, .matrices = matrices};
    Tensor *inverse = take(t, kept, x->dtype == F64 ? F64 : F32, 1, &n);
    if (y) y->inverse = inverse;
    if (yt) yt->inverse = inverse;
    tape_call(t, &OPS[OP_fp8_cast],
              (Call){.in = {x, state},
                     .out = {y ? y->values : NULL, yt ? yt->values : NULL, inverse, newest},
                     .attr = &attr});
}

/* Computes both operands in one pass, also with blocks. */
static void encode_rows(Tape *t, const Quantiser *q, Tensor *x, const QuantRows *rows, Tensor *state,
                        Tensor *newest, bool kept, QuantOperand *y, QuantOperand *yt) {
    const DType real = x->dtype == F64 ? F64 : F32;
    const Fp8CastAttr attr = {.blocks = y ? y->blocks : yt->blocks};
    const bool whole = attr.blocks == FP8_WHOLE;
    Tensor *one = whole ? take(t, kept, real, 1, &q->matrices) : NULL;
    QuantOperand *each[2] = {y, yt};
    for (int s = 0; s < 2; s++)
        if (each[s]) {
            const int64_t n = blocks_of(each[s], 1);
            each[s]->inverse = whole ? one : take(t, kept, real, 1, &n);
        }
    tape_call(t, &OPS[OP_fp8_expert_cast],
              (Call){.in = {x, rows->offset, rows->padded, state},
                     .out = {y ? y->values : NULL, yt ? yt->values : NULL,
                             whole ? one
                             : y   ? y->inverse
                                   : NULL,
                             !whole && yt ? yt->inverse : NULL, newest},
                     .attr = &attr});
}

/* Returns the GEMM operands for a weight that is stored in FP8 with its scales. */
static QuantValues stored_values(Tape *t, Fp8Weight *w, Tensor *values, QuantWanted want) {
    QuantValues c = {.kept = 1 << QUANT_OVER_COLUMNS};
    if (want.sums & 1 << QUANT_OVER_COLUMNS)
        c.by[QUANT_OVER_COLUMNS] = (QuantOperand){values, &w->inverse, w->blocks};
    if (want.sums & 1 << QUANT_OVER_ROWS) {
        Tensor *turned = tape_scratch(
            t, F8E4M3, 2, (int64_t[]){w->matrices * values->dim[1], values->dim[0] / w->matrices});
        tape_call(t, &OPS[OP_fp8_transpose], (Call){.in = {values}, .out = {turned}});
        c.by[QUANT_OVER_ROWS] = (QuantOperand){turned, &w->inverse_turned, w->blocks};
    }
    return c;
}

QuantValues quantize_values(Tape *t, const Quantiser *q, QuantRole role, Tensor *x, const QuantRows *rows,
                            Tensor *state, QuantWanted want) {
    const int64_t matrices = role == QUANT_W ? q->matrices : 1, height = tensor_rows(x) / matrices,
                  width = tensor_width(x), turned = rows ? fp8_padded_rows(height, q->matrices) : height;
    const DType type = quantize_type(q, role) == E4M3 ? F8E4M3 : F8E5M2;
    if (role == QUANT_W && q->weight->fp8) return stored_values(t, q->weight->fp8, x, want);
    if (role == QUANT_W && q->kept->block) return q->kept->values;
    Tensor *newest = want.first && q->spec.recipe == QUANT_DELAYED && counts(t, role) ? state : NULL;
    QuantValues c = {.kept = want.kept};
    QuantOperand *asked[2] = {NULL, NULL};
    for (int s = 0; s < 2; s++) {
        if (!(want.sums >> s & 1)) continue;
        const int64_t dim[2] = {matrices * (s == QUANT_OVER_COLUMNS ? height : width),
                                s == QUANT_OVER_COLUMNS ? width : turned};
        c.by[s] = (QuantOperand){take(t, want.kept >> s & 1, type, 2, dim), NULL, quantize_blocks(q, role)};
        asked[s] = &c.by[s];
    }
    if (rows)
        encode_rows(t, q, x, rows, state, newest, want.kept, asked[0], asked[1]);
    else if (quantize_blocks(q, role) == FP8_WHOLE)
        encode(t, q, x, state, newest, want.kept, asked[0], asked[1]);
    else
        for (int s = 0; s < 2; s++)
            if (asked[s]) encode(t, q, x, NULL, NULL, false, s ? NULL : asked[s], s ? asked[s] : NULL);
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
