/* Converts between two shardings over a group of ranks: by sequence in zigzag order (base/zigzag.h), and by
 * heads. The method is DeepSpeed-Ulysses (Jacobs et al., 2023), as in Transformer Engine's
 * flash_attn_a2a_communicate. */
#pragma once

#include "tape/tape.h"

/* Returns scratch memory for a packed message [members, n], which has one part per member (sender or
 * receiver). */
Tensor *exchange_message(Tape *, DType, int64_t members, int64_t n, SpmdType); /* scratch */
/* Returns a contiguous tensor with the shape of `like` that begins at element `at` of a member's part of a message. */
Tensor exchange_part(const Tensor *packed, int member, int64_t at, const Tensor *like);
/* Copies between x [s,...] (rows in position order) and a message. A member's part begins at element
 * `at`, and contains the member's zigzag slice of x. */
void exchange_rows(Tape *, Tensor *x, Tensor *packed, int64_t at, bool pack);

/* Converts a zigzag slice x [s,b,g,r,d] to [n*s,b,g/n,r,d]: all rows in position order, with this member's
 * heads. If there are fewer groups than members, the result is [n*s,b,1,r*g/n,d]. If r > 1, it is this member's part of
 * a group. If r = 1, it is a group that several members share, so it is R. */
Tensor *op_seq_to_heads(Tape *, Tensor *x, Group);
/* The inverse of op_seq_to_heads. The result has g groups of r heads. */
Tensor *op_heads_to_seq(Tape *, Tensor *x, Group, int64_t g, int64_t r);
/* All-gathers the members' zigzag slices, I64 [b,s], into [b,n*s] in position order. */
Tensor *exchange_ids(Tape *, Tensor *id, Group);
