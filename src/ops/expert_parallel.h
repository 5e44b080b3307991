/* Moves rows of tokens to the ranks that have their experts, and back. Megatron-LM
 * core/transformer/moe/token_dispatcher.py.
 *
 * The same ranks have two views (comm/mesh.h). Outside a layer of experts, tensors have types on the dense axes and are
 * I on the expert axes. Inside it, the reverse holds. Where each rank has other tokens, x is V on every axis of both
 * views, so crossing moves no data. Crossing is the only way between the views. A tensor that does not cross, or that
 * crosses back as a partial sum, is refused by the next op. */
#pragma once

#include "ops/dispatch.h"

/* V everywhere -> the same bytes, V everywhere in the other view; x itself on one rank. */
Tensor *op_to_expert_view(Tape *, Tensor *x);
Tensor *op_to_dense_view(Tape *, Tensor *x);

/* An all-to-all over EP, after which the rows of all expert-tensor-parallel ranks are gathered. */
typedef struct Arrival {
    Group ep;
    const int64_t *sent, *received; /* rows to and from each rank of the group; [ep.size], memory of the
                                       tape */
    /* Rows of the tensor before and after. The received rows are followed by padding, so that all
     * expert-tensor-parallel ranks have equally many. */
    int64_t rows, arriving;
    Dispatch sort; /* sorts the gathered rows by this rank's experts */
} Arrival;
/* `from` groups the rows by expert, over all experts; `experts` of them are on this rank. `room` has their
 * capacity (rows of one expert that can come from all ranks) and padding. With a capacity, sizes do not
 * depend on the data. */
Arrival op_plan_arrival(Tape *, const Dispatch *from, int64_t experts, DispatchAttr room);
/* As op_plan_arrival, where all expert-parallel ranks share the tokens. `own` has the rows of this rank's
 * experts, without padding. */
Dispatch op_plan_gathered(Tape *, const Dispatch *own, DispatchAttr room);
/* Rows on their way. Only op_arrive may read it. exchange NULL: y is there. */
typedef struct Exchange Exchange;
typedef struct Moving {
    Tensor *from, *y;
    Exchange *exchange;
} Moving;
/* x_r1w [rows,1,w] in the dense view -> [arriving,1,w] in the expert view, with zeros where no row is
 * received; and back. The rows move while the ops before op_arrive run, and their gradients while the backward
 * of these ops runs. */
Moving op_send_to_experts(Tape *, Tensor *x_r1w, const Arrival *);
Moving op_return_from_experts(Tape *, Tensor *x_r1w, const Arrival *);
Tensor *op_arrive(Tape *, Moving);

/* Drops the copies that exceed the capacity of an expert; their expert becomes -1. The decision is over the
 * whole microbatch, as on one rank. */
Routing op_drop(Tape *, const Routing *, int64_t experts, DispatchAttr);
