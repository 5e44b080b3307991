/* Rows of tokens to the ranks that have their experts, and back. Megatron-LM
 * core/transformer/moe/token_dispatcher.py.
 *
 * The same ranks have two views (comm/mesh.h). Outside a layer of experts tensors have types on the dense
 * axes and are I on the expert axes; inside it is the other way round. Where each rank has other tokens, x is
 * V on every axis of the one view, and so it is on every axis of the other: crossing moves nothing. It is the
 * only way between the views, so what does not take it, or crosses back as a partial sum, fits no op. */
#ifndef ISOTRON_OPS_EXPERT_PARALLEL_H
#define ISOTRON_OPS_EXPERT_PARALLEL_H

#include "ops/dispatch.h"

/* V everywhere -> the same bytes, V everywhere in the other view; x itself on one rank. */
Tensor *op_to_expert_view(Tape *, Tensor *x);
Tensor *op_to_dense_view(Tape *, Tensor *x);

/* What goes where in an all-to-all over EP, after which the rows of all expert-tensor-parallel ranks are
 * gathered. */
typedef struct Arrival {
    Group ep;
    const int64_t *sent, *received; /* rows to and from each rank of the group; [ep.size], the tape's */
    int64_t rows, arriving;         /* rows of the tensors here and there: behind what is received stands
                                       padding, so that all expert-tensor-parallel ranks have the same */
    Dispatch sort;                  /* of the gathered rows: by this rank's experts */
} Arrival;
/* `from` says how the rows are grouped by all experts. `experts` are on this rank; `room` are their capacity
 * (rows of one expert that can come from all ranks) and padding: with a capacity, sizes do not depend on the
 * data. */
Arrival op_plan_arrival(Tape *, const Dispatch *from, int64_t experts, DispatchAttr room);
/* The same where all expert-parallel ranks share the tokens: `own` are the rows of this rank's experts, not
 * padded. */
Dispatch op_plan_gathered(Tape *, const Dispatch *own, DispatchAttr room);
/* x_r1w [rows,1,w] in the dense view -> [arriving,1,w] in the expert view, zeros where nothing is received;
 * and back. x must feed no other op. */
Tensor *op_send_to_experts(Tape *, Tensor *x_r1w, const Arrival *);
Tensor *op_return_from_experts(Tape *, Tensor *x_r1w, const Arrival *);

/* Which copies an expert drops is decided over the whole microbatch, as one rank does. Their expert is -1 in
 * the result. */
Routing op_drop(Tape *, const Routing *, int64_t experts, DispatchAttr);

#endif
