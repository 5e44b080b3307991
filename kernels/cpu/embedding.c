/* Embedding: y[s,b] = w[id[b,s]], or 0 if another rank owns the row. Gradient: dw[v] is the sum of dy over
 * the tokens with id v, in canonical order: over the positions of each sample, then over the samples. y is
 * written; dw is written or accumulated. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/real.h"

static void gather_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *id = c->in[0], *w = c->in[1];
    const EmbeddingAttr *a = c->attr;
    const int64_t b = id->dim[0], s = id->dim[1], h = w->dim[1];
    for (int64_t r = begin; r < end; r++) {
        const int64_t position = r / b, sample = r % b, v = int64s(id)[sample * s + position];
        CHECK(v >= 0 && v < a->total,
              "id %lld of sample %lld at position %lld is outside the table of %lld rows", (long long)v,
              (long long)sample, (long long)position, (long long)a->total);
        real *y = reals(c->out[0]) + r * h;
        if (v >= a->first && v < a->first + w->dim[0])
            dtype_convert(y, REAL_TYPE, tensor_at(w, (v - a->first) * h), (DType)w->dtype, (size_t)h);
        else
            memset(y, 0, (size_t)h * sizeof(real));
    }
}

void KERNEL(embedding)(const Call *c) {
    const int64_t h = c->in[1]->dim[1];
    pool_for(c->device->pool, tensor_count(c->in[0]), grain_rows(h), gather_rows, (void *)c);
}

typedef struct Token {
    int64_t id, position;
} Token;

static int by_id(const void *a, const void *b) {
    const Token *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* The tokens of each sample, sorted by id and then by position. */
typedef struct Sorted {
    const Call *call;
    Token *tokens;
} Sorted;

/* Number of columns per unit of work. */
enum { COLUMNS = 64 };
static void scatter_columns(void *arg, int64_t begin, int64_t end) {
    const Sorted *sorted = arg;
    const Call *c = sorted->call;
    const int64_t b = c->in[1]->dim[0], s = c->in[1]->dim[1], h = c->out[0]->dim[1];
    const int64_t first = begin * COLUMNS, last = end * COLUMNS < h ? end * COLUMNS : h;
    real *sum = mem_alloc((size_t)(last - first) * sizeof *sum);
    for (int64_t sample = 0; sample < b; sample++) {
        const Token *t = sorted->tokens + sample * s, *stop = t + s;
        while (t < stop) {
            const int64_t id = t->id;
            memset(sum, 0, (size_t)(last - first) * sizeof *sum);
            if (id < 0 || id >= c->out[0]->dim[0]) { /* another rank owns the row */
                while (t < stop && t->id == id) t++;
                continue;
            }
            for (; t < stop && t->id == id; t++) {
                const real *dy = reals(c->in[0]) + (t->position * b + sample) * h + first;
#pragma omp simd
                for (int64_t j = 0; j < last - first; j++) sum[j] += dy[j];
            }
            real *dw = reals(c->out[0]) + id * h + first;
#pragma omp simd
            for (int64_t j = 0; j < last - first; j++) dw[j] += sum[j];
        }
    }
    free(sum);
}

void KERNEL(embedding_grad)(const Call *c) {
    const Tensor *id = c->in[1], *dw = c->out[0];
    const EmbeddingAttr *a = c->attr;
    const int64_t b = id->dim[0], s = id->dim[1], h = dw->dim[1];
    if (!accumulates(dw)) memset(dw->data, 0, tensor_bytes(dw));
    Sorted sorted = {c, mem_alloc((size_t)(b * s) * sizeof *sorted.tokens)};
    for (int64_t i = 0; i < b * s; i++) {
        const int64_t v = int64s(id)[i];
        CHECK(v >= 0 && v < a->total, "id %lld is outside the table of %lld rows", (long long)v,
              (long long)a->total);
        sorted.tokens[i] = (Token){v - a->first, i % s};
    }
    for (int64_t sample = 0; sample < b; sample++)
        qsort(sorted.tokens + sample * s, (size_t)s, sizeof(Token), by_id);
    pool_for(c->device->pool, (h + COLUMNS - 1) / COLUMNS, grain_rows(COLUMNS * b * s), scatter_columns,
             &sorted);
    free(sorted.tokens);
}
