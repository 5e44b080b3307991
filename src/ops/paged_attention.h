/* Attention to keys and values stored in pages, for generation. kernels/ops.def describes the page layout. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* The pages of the requests in a forward pass; the requests' tokens form one stream. Tensors are I64. */
typedef struct Pages {
    Tensor *row;     /* [new rows]: the pool rows that the pass writes; NULL if the pass writes no rows */
    Tensor *table;   /* [requests, pages]: the pages of each request; unused entries are valid pages */
    Tensor *request; /* [s]: for each token in the stream, the row of its request in the table */
    /* [n]: the first token of each tile, which consists of at most PAGED_TILE tokens from one request. NULL if
     * each token is a tile by itself, and earlier passes have stored all rows before the token's position */
    Tensor *tiles;
    /* [requests]: each request's number of rows, if the request's tokens attend to all of them; NULL if a token
     * attends only to rows up to its position */
    Tensor *lengths;
    int64_t page; /* number of rows per page, a multiple of PAGE_ROWS */
} Pages;

/* Stores the rows x [new rows,1,g,r,d] in a pool [rows,1,g,r,d]. Unless x2 and pool2 are NULL, also stores the
 * rows x2 in pool2. */
void op_store_rows(Tape *, const Pages *, Tensor *x, Tensor *pool, Tensor *x2, Tensor *pool2);

typedef struct PagedInputs {
    Tensor *q;        /* [s,1,g,r,d], may be strided */
    Tensor *k, *v;    /* pools [rows,1,g,1,d] and [rows,1,g,1,e], or views of one pool */
    Tensor *position; /* I64 [1,s]: each token's position in its request */
    Tensor *bias;     /* as in AttentionInputs, or NULL */
    Tensor *sink;
} PagedInputs;

/* Returns [s,1,g,r,e]. The attributes define the rows to which a token attends. The op itself sets the positions and
 * the attribute `page`. */
Tensor *op_paged_attention(Tape *, const PagedInputs *, const Pages *, AttentionAttr);

/* Combines op_rope, op_store_rows and op_paged_attention in one op. inputs->q is x [s,1,g,r+2,d], which
 * contains r queries, a key and a value for each group. The op does not change x. The pools receive the rotated
 * keys and the values. */
Tensor *op_rope_paged_attention(Tape *, const PagedInputs *, Tensor *cos, Tensor *sin, const Pages *,
                                AttentionAttr, RopeAttr);
