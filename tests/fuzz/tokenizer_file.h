/* Opens a tokenizer's file and, if it is accepted, encodes and decodes awkward text. */
#pragma once

#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "tokenizer/tokenizer.h"

static const char FUZZ_TEXT[] =
    "Hello,  wor\0ld! it's 1234567 \r\n\t\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa6 e\xcc\x81 "
    "\xe4\xb8\xad\xe6\x96\x87 "
    "\xff\xc3 \xd8\xb3\xd9\x84 <|endoftext|><s>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  \xe2\x80\xa8 DON'T";

/* `name` is the name of the file, such as "tokenizer.json". */
static bool fuzz_tokenizer_file(const char *type, const char *name, const uint8_t *bytes, size_t n) {
    char *path = fuzz_file(name, bytes, n);
    TokenizerConfig config = TOKENIZER_CONFIG_DEFAULT;
    config.type = type, config.model = config.vocab_file = path, config.tiktoken_num_special = -1;
    Tokenizer *t;
    bool ok = fuzz_ok(tokenizer_open(&config, &t));
    if (ok) {
        const unsigned flags[] = {0, TOKENIZER_ADD_SPECIAL,
                                  TOKENIZER_SPECIAL_AS_TEXT | TOKENIZER_SKIP_SPECIAL};
        for (int i = 0; i < 3; i++) {
            int32_t *ids;
            size_t count, text_bytes;
            char *text;
            if (!fuzz_ok(tokenizer_encode_with(t, flags[i], FUZZ_TEXT, sizeof FUZZ_TEXT, &ids, &count)))
                continue;
            int32_t *same;
            TokenSpan *spans;
            size_t same_count;
            CHECK(fuzz_ok(tokenizer_encode_spans(t, flags[i], FUZZ_TEXT, sizeof FUZZ_TEXT, &same, &spans,
                                                 &same_count)) &&
                      same_count == count && !memcmp(same, ids, count * sizeof *ids),
                  "the %zu ids with spans differ from the %zu without", same_count, count);
            free(same), free(spans);
            for (size_t k = 0; k < count; k++) {
                CHECK(ids[k] >= 0 && ids[k] < tokenizer_vocab_size(t), "id %d of %d", ids[k],
                      tokenizer_vocab_size(t));
                tokenizer_is_special(t, ids[k]);
            }
            if (fuzz_ok(tokenizer_decode_with(t, flags[i], ids, count, &text, &text_bytes))) free(text);
            free(ids);
        }
        tokenizer_free(t);
    }
    free(path);
    return ok;
}
