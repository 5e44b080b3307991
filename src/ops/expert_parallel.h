/* Moves rows of tokens to the ranks that have their experts, and back. Megatron-LM
 * core/transformer/moe/token_dispatcher.py.
 *
 * The same ranks have two views (comm/mesh.h). Outside a layer of experts, tensors have types on the dense axes and are
 * I on the expert axes. Inside it, the reverse holds. If each rank has different tokens, x is V on every axis of both
 * views, so crossing moves no data. Crossing is the only way between the views. A tensor that does not cross, or that
 * crosses back as a partial sum, is refused by the next op. */
#pragma once

#include "ops/dispatch.h"

/* V everywhere -> the same bytes, V everywhere in the other view; x itself on one rank. */
Tensor *op_to_expert_view(Tape *, Tensor *x);
Tensor *op_to_dense_view(Tape *, Tensor *x);

/* The plan of an all-to-all over EP, followed by an all-gather of the rows over the expert-tensor-parallel ranks. */
typedef struct Arrival {
    Group ep;
    const int64_t *sent, *received; /* rows to and from each rank of the group; [ep.size], memory of the
                                       tape */
    /* Number of rows before and after. The received rows are padded, so that all expert-tensor-parallel ranks have
     * equal numbers. */
    int64_t rows, arriving;
    Dispatch sort; /* sorts the gathered rows by this rank's experts */
} Arrival;
/* `from` groups the rows by expert, over all experts; `experts` experts are on this rank. `room` has the capacity (the
 * maximum number of rows of one expert from all ranks) and the padding. With a capacity, sizes do not depend on the
 * data. */
Arrival op_plan_arrival(Tape *, const Dispatch *from, int64_t experts, DispatchAttr room);
/* As op_plan_arrival, if all expert-parallel ranks share the tokens. `own` has the rows of this rank's
 * experts, without padding. */
Dispatch op_plan_gathered(Tape *, const Dispatch *own, DispatchAttr room);
/* Rows in transit, which only op_arrive may read. exchange NULL: y has arrived. */
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

/* Drops the copies that exceed an expert's capacity, and sets their expert to -1. The whole microbatch decides, as on
 * one rank. */
Routing op_drop(Tape *, const Routing *, int64_t experts, DispatchAttr);
