/* Moves rows of tokens to the ranks that hold the tokens' experts, and back. Source: Megatron-LM
 * core/transformer/moe/token_dispatcher.py.
 *
 * The mesh has two views of the same ranks (comm/mesh.h). Outside an MoE layer, tensors have SPMD types on the
 * dense axes and are I on the expert axes. Inside an MoE layer, tensors have SPMD types on the expert axes and
 * are I on the dense axes. If each rank has different tokens, a tensor is V on all axes of either view, so a
 * change of view moves no data. Only the ops in this file change the view; these ops reject partial sums. Other
 * ops reject a tensor that is in the wrong view. */
#pragma once

#include "ops/dispatch.h"

/* op_to_expert_view and op_to_dense_view convert x from V on all axes of one view to V on all axes of the other
 * view. The data does not change. On one rank, both ops return x itself. */
Tensor *op_to_expert_view(Tape *, Tensor *x);
Tensor *op_to_dense_view(Tape *, Tensor *x);

/* The plan for an all-to-all over EP, followed by an all-gather of the rows over the expert-tensor-parallel ranks. */
typedef struct Arrival {
    Group ep;
    /* [ep.size], in the tape's memory: number of rows sent to and received from each rank in the group */
    const int64_t *sent, *received;
    /* The numbers of rows before and after the all-to-all. The received rows are padded, so that all
     * expert-tensor-parallel ranks have the same number of rows. */
    int64_t rows, arriving;
    Dispatch sort; /* sorts the gathered rows by this rank's experts */
} Arrival;
/* `from` groups the rows by expert, for all experts. `experts` is the number of experts on this rank. `room`
 * specifies the capacity (the maximum number of rows for one expert from all ranks) and the padding. With a capacity,
 * the sizes of tensors do not depend on the data. */
Arrival op_plan_arrival(Tape *, const Dispatch *from, int64_t experts, DispatchAttr room);
/* Does the same as op_plan_arrival for tokens that all expert-parallel ranks share. `own` describes the rows of this
 * rank's experts, without padding. */
Dispatch op_plan_gathered(Tape *, const Dispatch *own, DispatchAttr room);
/* Rows in transit, which only op_arrive may read. If `exchange` is NULL, the rows have already arrived in y. */
typedef struct Exchange Exchange;
typedef struct Moving {
    Tensor *from, *y;
    Exchange *exchange;
} Moving;
/* Sends x_r1w [rows,1,w], which is in the dense view. The result is [arriving,1,w] in the expert view, with
 * zeros where no row is received. op_return_from_experts performs the reverse operation. The rows are
 * transferred while the ops before op_arrive run. The gradients are transferred during the backward pass of
 * these ops. */
Moving op_send_to_experts(Tape *, Tensor *x_r1w, const Arrival *);
Moving op_return_from_experts(Tape *, Tensor *x_r1w, const Arrival *);
Tensor *op_arrive(Tape *, Moving);

/* Drops the copies that exceed an expert's capacity, and sets their expert to -1. As on one rank, the capacity
 * limits an expert's total number of tokens in the microbatch. */
Routing op_drop(Tape *, const Routing *, int64_t experts, DispatchAttr);
