#include "tokenizer/text/charsmap.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

struct Charsmap {
    uint32_t *units;
    size_t num_units, n;
    char *texts; /* n bytes of NUL-terminated replacements, followed by a NUL */
};

static uint32_t little_endian(const unsigned char *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

Err charsmap_load(const void *bytes, size_t n, Charsmap **out) {
    const unsigned char *p = bytes;
    size_t trie = n > 4 ? little_endian(p) : 0;
    if (trie < 4 || trie % 4 || trie > n - 4)
        return err_user("precompiled_charsmap is damaged: it has %zu bytes, but declares a trie of %zu bytes",
                        n, trie);
    if (!utf8_valid((const char *)p + 4 + trie, n - 4 - trie))
        return err_user("precompiled_charsmap is damaged: its replacements are not UTF-8");
    Charsmap *m = mem_zero(1, sizeof *m);
    m->num_units = trie / 4;
    m->units = mem_alloc(trie);
    for (size_t i = 0; i < m->num_units; i++) m->units[i] = little_endian(p + 4 + 4 * i);
    m->n = n - 4 - trie;
    m->texts = mem_zero(m->n + 1, 1);
    memcpy(m->texts, p + 4 + trie, m->n);
    *out = m;
    return ERR_OK;
}

void charsmap_free(Charsmap *m) {
    if (!m) return;
    free(m->units), free(m->texts), free(m);
}

static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

size_t charsmap_find(const Charsmap *m, CharsmapRule rule, const char *text, size_t n, const char **to,
                     size_t *to_n) {
    size_t found = 0, node = offset(m->units[0]);
    for (size_t i = 0; i < n; i++) {
        node ^= (unsigned char)text[i];
        if (node >= m->num_units) break;
        const uint32_t unit = m->units[node];
        if ((unit & (1u << 31 | 0xFF)) != (unsigned char)text[i]) break;
        node ^= offset(unit);
        if (!(unit >> 8 & 1)) continue; /* no rule ends at this node */
        if (node >= m->num_units) break;
        const uint32_t at = m->units[node] & ~(1u << 31);
        if (at >= m->n || ((unsigned char)m->texts[at] & 0xC0) == 0x80) break; /* there is no replacement */
        *to = m->texts + at;
        found = i + 1;
        if (rule == CHARSMAP_SHORTEST) break;
    }
    if (found) *to_n = strlen(*to);
    return found;
}
