#include "tokenizer/special.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int64_t first_of(const Tokenizer *t, const char *bert, const char *other, int64_t fallback) {
    const int64_t id = tokenizer_token_id(t, bert), second = id < 0 ? tokenizer_token_id(t, other) : id;
    return second < 0 ? fallback : second;
}

int64_t tokenizer_special(const Tokenizer *t, SpecialToken special) {
    const int64_t bos = tokenizer_bos(t), eod = tokenizer_eod(t);
    switch (special) {
    case SPECIAL_CLS:
        return first_of(t, "[CLS]", "<cls>", bos);
    case SPECIAL_SEP:
        return first_of(t, "[SEP]", "<sep>", eod);
    case SPECIAL_MASK:
        return first_of(t, "[MASK]", "<mask>", -1);
    case SPECIAL_BOS:
        return bos >= 0 ? bos : first_of(t, "[CLS]", "<cls>", tokenizer_pad(t));
    default:
        return eod >= 0 ? eod : first_of(t, "[SEP]", "<sep>", -1);
    }
}

int64_t tokenizer_sentinels(const Tokenizer *t, int64_t **ids) {
    int64_t n = 0;
    *ids = NULL;
    for (;; n++) {
        char name[40];
        snprintf(name, sizeof name, "<extra_id_%lld>", (long long)n);
        const int32_t id = tokenizer_token_id(t, name);
        if (id < 0) return n;
        *ids = mem_grow(*ids, (size_t)n + 1, sizeof **ids);
        (*ids)[n] = id;
    }
}

/* Decodes each token separately, because a decoder keeps the "##" of the first token. */
Err tokenizer_continuations(const Tokenizer *t, unsigned char **out) {
    const int32_t n = tokenizer_vocab_size(t);
    unsigned char *continues = mem_zero((size_t)n, 1);
    for (int32_t id = 0; id < n; id++) {
        char *text;
        size_t bytes;
        Err e = tokenizer_decode(t, &id, 1, &text, &bytes);
        if (e.code) {
            free(continues);
            return e;
        }
        continues[id] = bytes >= 2 && !memcmp(text, "##", 2);
        free(text);
    }
    *out = continues;
    return ERR_OK;
}
