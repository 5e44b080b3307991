#include "infer/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/min_max.h"

static int order(const void *a, const void *b) {
    const VocabularyRow *x = a, *y = b;
    const int differs = memcmp(x->text.bytes, y->text.bytes, (size_t)smaller(x->text.n, y->text.n));
    if (differs) return differs;
    return x->text.n != y->text.n ? (x->text.n > y->text.n ? 1 : -1) : x->id < y->id ? -1 : x->id > y->id;
}

static int32_t common(const TokenText *a, const TokenText *b) {
    int32_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

Vocabulary *vocabulary_new(const TokenText *texts, int64_t size) {
    size_t bytes = 0;
    for (int64_t i = 0; i < size; i++) bytes += (size_t)texts[i].n;
    Vocabulary *v = mem_zero(1, sizeof *v);
    *v = (Vocabulary){.row = mem_zero((size_t)size + 1, sizeof *v->row),
                      .text = mem_copy(texts, (size_t)size * sizeof *texts),
                      .size = size,
                      .bytes = mem_alloc(bytes + 1)};
    char *at = v->bytes;
    for (int64_t i = 0; i < size; i++) {
        if (!texts[i].n) continue;
        memcpy(at, texts[i].bytes, (size_t)texts[i].n);
        v->text[i].bytes = at;
        at += texts[i].n;
        v->row[v->n++] = (VocabularyRow){.text = v->text[i], .id = (int32_t)i};
    }
    qsort(v->row, (size_t)v->n, sizeof *v->row, order);
    for (int64_t i = 1; i < v->n; i++) v->row[i].common = common(&v->row[i - 1].text, &v->row[i].text);
    return v;
}

void vocabulary_free(Vocabulary *v) {
    if (!v) return;
    free(v->row), free(v->text), free(v->bytes), free(v);
}
