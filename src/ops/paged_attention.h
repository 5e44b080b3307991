/* Attention to keys and values in pages, for generation. kernels/ops.def describes the layout of pages. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* The pages of the requests of a forward pass, whose tokens form one stream. Tensors are I64. */
typedef struct Pages {
    Tensor *row;     /* [new rows]: the rows of the pool that the pass writes; NULL if it writes none */
    Tensor *table;   /* [requests, pages]: the pages of each request; unused entries are valid pages */
    Tensor *request; /* [s]: for each token of the stream, the row of its request in the table */
    /* [n]: the first token of each tile, which has at most PAGED_TILE tokens of one request; NULL if every token is a
     * tile, and the rows before its position were stored in earlier passes */
    Tensor *tiles;
    /* [requests]: number of rows of each request, all of which a token attends to; NULL if a token attends to rows up
     * to its position */
    Tensor *lengths;
    int64_t page; /* number of rows of a page, a multiple of PAGE_ROWS */
} Pages;

/* Stores the rows x [new rows,1,g,r,d] in a pool [rows,1,g,r,d], and the rows x2 in pool2 unless both are NULL. */
void op_store_rows(Tape *, const Pages *, Tensor *x, Tensor *pool, Tensor *x2, Tensor *pool2);

/* The same for keys and values that are heads of x [s,1,g,r+2,d], of each group r queries, a key and a value. Rotates
 * the queries in place, and stores the rotated keys. Tables and positions are those of op_rope. */
void op_rope_store(Tape *, const Pages *, Tensor *x, Tensor *cos, Tensor *sin, Tensor *position,
                   Tensor *k_pool, Tensor *v_pool, RopeAttr);

typedef struct PagedInputs {
    Tensor *q;        /* [s,1,g,r,d], may be strided */
    Tensor *k, *v;    /* pools [rows,1,g,1,d] and [rows,1,g,1,e], or views of one pool */
    Tensor *position; /* I64 [1,s]: the position of each token in its request */
    Tensor *bias;     /* as in AttentionInputs, or NULL */
    Tensor *sink;
} PagedInputs;

/* Returns [s,1,g,r,e]. The attributes define which rows a token attends to. The op sets `page` and the positions. */
Tensor *op_paged_attention(Tape *, const PagedInputs *, const Pages *, AttentionAttr);
