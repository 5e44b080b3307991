#include <stdlib.h>
#include <string.h>

#include "ckpt/reader.h"

/* Hashes a part, which is stored as n boxes, as if it were one box. */
static Err hash_part(const Ckpt *c, const CkptTensor *t, int64_t n, Hash128 *out) {
    for (int64_t i = 0; i < n; i++) ERR_RETURN(open_check(c, &t[i]));
    *out = t->hash;
    if (n == 1) return ERR_OK;
    const size_t size = dtype_size(t->dtype), bytes = (size_t)(t->global[0] * t->global[1]) * size;
    char *whole = mem_alloc(bytes);
    for (int64_t i = 0; i < n; i++) {
        const Box *b = &t[i].box;
        const size_t row = (size_t)b->shape[1] * size;
        for (int64_t k = 0; k < b->shape[0]; k++)
            memcpy(whole + (size_t)((b->offset[0] + k) * t->global[1] + b->offset[1]) * size,
                   ckpt_tensor_bytes(c, &t[i]) + (size_t)k * row, row);
    }
    *out = hash128(whole, bytes);
    free(whole);
    return ERR_OK;
}

static Err add_lines(const Ckpt *c, Str *out) {
    const Manifest *m = &c->manifest;
    Hash128 h;
    char hex[33];
    const size_t begin = out->len;
    for (int64_t i = 0, n; i < m->count; i += n) {
        const CkptTensor *t = &m->tensors[i];
        for (n = 1; i + n < m->count && ckpt_same_part(t, &t[n]);) n++;
        ERR_RETURN(hash_part(c, t, n, &h));
        hash_hex(h, hex);
        str_printf(out, "%s  %-4s [%lld, %lld]  %s%s (%s)\n", hex, dtype_name(t->dtype),
                   (long long)t->global[0], (long long)t->global[1], t->name, t->suffix, t->part);
    }
    hash_hex(hash128(out->s + begin, out->len - begin), hex);
    str_printf(out, "%s  all\n", hex);
    return ERR_OK;
}

Err ckpt_digest(const Ckpt *c, Str *out) { return ckpt_agree(c, add_lines(c, out)); }
