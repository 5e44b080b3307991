#include "ops/paged_attention.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/attention.h"
#include "tape/tape_ops.h"

static void check_rows(const Pages *pages, const Tensor *x, const Tensor *pool) {
    char a[100], b[100];
    bool fits = x->ndim == 5 && pool->ndim == 5 && pages->row && pages->row->dim[0] == x->dim[0];
    for (int i = 1; i < 5; i++) fits = fits && x->dim[i] == pool->dim[i];
    CHECK(fits, "store_rows: the shapes of the rows %s and the pool %s are not compatible",
          tensor_describe(x, a, sizeof a), tensor_describe(pool, b, sizeof b));
}

void op_store_rows(Tape *t, const Pages *pages, Tensor *x, Tensor *pool, Tensor *x2, Tensor *pool2) {
    check_rows(pages, x, pool);
    if (x2) check_rows(pages, x2, pool2);
    tape_call(t, &OPS[OP_store_rows], (Call){.in = {x, pages->row, x2}, .out = {pool, pool2}});
    pool->spmd = x->spmd;
    if (x2) pool2->spmd = x2->spmd;
}

/* Creates y and lse for r queries in each group of x. */
static void make_results(Tape *t, const Tensor *x, int64_t r, int64_t width, Tensor **y, Tensor **lse) {
    *y = tape_tensor(t, (DType)x->dtype, 5, (int64_t[]){x->dim[0], 1, x->dim[2], r, width});
    *lse = tape_tensor(t, x->dtype == F64 ? F64 : F32, 4, (int64_t[]){1, x->dim[2], r, x->dim[0]});
}

Tensor *op_paged_attention(Tape *t, const PagedInputs *x, const Pages *pages, AttentionAttr attr) {
    const Tensor *q = x->q, *k = x->k, *v = x->v;
    char a[100], b[100], c[100];
    Tensor *y, *lse;
    CHECK(!tape_is_recording(t) && q->ndim == 5 && q->dim[1] == 1 && k->ndim == 5 && v->ndim == 5 &&
              q->dim[4] == k->dim[4] && q->dim[2] == k->dim[2] && q->dim[2] == v->dim[2] &&
              k->dim[0] == v->dim[0] && tensor_count(pages->request) == q->dim[0],
          "paged_attention: the shapes of q %s, k %s and v %s are not compatible",
          tensor_describe(q, a, sizeof a), tensor_describe(k, b, sizeof b), tensor_describe(v, c, sizeof c));
    attr.page = pages->page;
    make_results(t, q, q->dim[3], v->dim[4], &y, &lse);
    const Call call = {.in = {x->q, x->k, x->v, pages->table, pages->request, x->position, pages->lengths,
                              x->bias, pages->tiles},
                       .out = {y, lse},
                       .attr = &attr};
    tape_run(t, &OPS[OP_paged_attention], call, sizeof attr, NULL);
    attention_add_sinks(t, &(Call){.in = {x->q, [6] = x->sink}, .out = {y, lse}, .attr = &attr});
    return y;
}

Tensor *op_rope_paged_attention(Tape *t, const PagedInputs *x, Tensor *cos, Tensor *sin, const Pages *pages,
                                AttentionAttr attention, RopeAttr rope) {
    const int64_t r = x->q->dim[3] - 2, d = x->q->dim[4];
    const Tensor key = tensor_slice(x->q, 3, r, 1);
    Tensor *y, *lse;
    check_rows(pages, &key, x->k);
    check_rows(pages, &key, x->v);
    CHECK(!tape_is_recording(t) && !x->bias && !pages->lengths && !rope.inverse &&
              tensor_same_shape(cos, sin) && cos->dim[1] == rope.dim / 2 &&
              tensor_count(x->position) == x->q->dim[0],
          "rope_paged_attention: the tables or the positions are not compatible with x of %lld tokens and "
          "dim %d",
          (long long)x->q->dim[0], rope.dim);
    attention.page = pages->page;
    make_results(t, x->q, r, d, &y, &lse);
    const RopePagedAttr attr = {attention, rope};
    tape_call(
        t, &OPS[OP_rope_paged_attention],
        (Call){.in = {x->q, cos, sin, x->position, pages->row, pages->table, pages->request, pages->tiles},
               .out = {y, lse, x->k, x->v},
               .attr = &attr});
    y->spmd = lse->spmd = x->k->spmd = x->v->spmd = x->q->spmd;
    attention_add_sinks(t, &(Call){.in = {y, [6] = x->sink}, .out = {y, lse}, .attr = &attr.attention});
    return y;
}
