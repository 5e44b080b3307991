#include "tokenizer/text/aligned.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"

void aligned_free(Aligned *a) {
    str_free(&a->text), free(a->at);
    *a = (Aligned){0};
}

void aligned_clear(Aligned *a) { str_clear(&a->text), a->count = 0; }

void aligned_shorten(Aligned *a, size_t n) {
    a->text.len = n;
    if (a->tracks) a->count = n;
}

View aligned_view(const Aligned *a) {
    return (View){a->text.s ? a->text.s : "", a->text.len, a->tracks ? a->at : NULL};
}

static void reserve(Aligned *a) {
    if (a->text.len > a->cap) a->at = mem_grow(a->at, a->cap = 2 * a->text.len + 64, sizeof *a->at);
}

void aligned_fill(Aligned *a, Origin origin) {
    if (!a->tracks) return;
    reserve(a);
    while (a->count < a->text.len) a->at[a->count++] = origin;
}

void aligned_add(Aligned *a, View v) {
    str_add(&a->text, v.text, v.n);
    if (!a->tracks) return;
    reserve(a);
    for (size_t i = 0; i < v.n; i++) a->at[a->count++] = v.at[i];
}

void aligned_insert(Aligned *a, const char *bytes, size_t n, Origin origin) {
    str_add(&a->text, bytes, n);
    aligned_fill(a, origin);
}

void aligned_original(Aligned *a, const char *text, size_t n, size_t at) {
    str_add(&a->text, text, n);
    if (!a->tracks) return;
    reserve(a);
    for (size_t i = 0, end; i < n; i = end) {
        uint32_t c;
        end = i + utf8_next(text + i, &c);
        for (size_t k = i; k < end; k++)
            a->at[a->count++] = (Origin){(uint32_t)(at + i), (uint32_t)(at + end)};
    }
}

static Origin origin_of(const Edit *e) {
    if (e->change <= 0 && e->at < e->from.n) return view_origin(e->from, e->at);
    return view_origin_before(e->from, e->at);
}

void edit_end(Edit *e) {
    if (!e->waits) return;
    e->waits = false;
    utf8_put(&e->out->text, e->last);
    aligned_fill(e->out, origin_of(e));
    uint32_t c;
    for (int k = e->change; k <= 0 && e->at < e->from.n; k++) e->at += utf8_next(e->from.text + e->at, &c);
}

void edit_put(Edit *e, uint32_t character, int change) {
    if (!e->out->tracks) {
        utf8_put(&e->out->text, character);
        return;
    }
    edit_end(e);
    e->last = character, e->change = change, e->waits = true;
}

void edit_remove(Edit *e, int n) { e->change -= n; }
