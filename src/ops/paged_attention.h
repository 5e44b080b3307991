/* Attention to keys and values in pages, for generation. kernels/ops.def describes the layout of pages. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* The pages of the requests of a forward pass, whose tokens are one stream. Tensors are I64. */
typedef struct Pages {
    Tensor *row;     /* [new rows]: rows of the pool that the pass fills; NULL if it fills none */
    Tensor *table;   /* [requests, pages]: the pages of each request; unused entries are valid pages */
    Tensor *request; /* [s]: the row of the table, for each token of the stream */
    Tensor *
        tiles; /* [n]: first tokens of tiles of at most PAGED_TILE tokens of one request; NULL: every token is a tile */
    Tensor *lengths; /* [requests]: rows of each request, all of which a token sees; NULL: a token sees rows
                        up to its position */
    int64_t page;    /* rows of a page, a multiple of PAGE_ROWS */
} Pages;

/* Stores the rows x [new rows,1,g,r,d] in a pool [rows,1,g,r,d], and the rows x2 in pool2 unless both are NULL. */
void op_store_rows(Tape *, const Pages *, Tensor *x, Tensor *pool, Tensor *x2, Tensor *pool2);

typedef struct PagedInputs {
    Tensor *q;        /* [s,1,g,r,d], may be strided */
    Tensor *k, *v;    /* pools [rows,1,g,1,d] and [rows,1,g,1,e], or views of one */
    Tensor *position; /* I64 [1,s]: of each token in its request */
    Tensor *bias;     /* as in AttentionInputs; or NULL */
    Tensor *sink;
} PagedInputs;

/* Returns [s,1,g,r,e]. The attributes define which rows a token sees; `page` and positions are set here. */
Tensor *op_paged_attention(Tape *, const PagedInputs *, const Pages *, AttentionAttr);
