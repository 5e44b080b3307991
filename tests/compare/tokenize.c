/* Runs the tokenizer as a filter on standard input, for tools/oracle/compare_tokenizer.py: tokenize TYPE MODEL
 * [VOCAB_FILE MERGE_FILE], or tokenize TikTokenizer MODEL PATTERN. All numbers are uint32 in host order. Request:
 * flags, bytes, text. Answer: number of ids, ids, starts and ends of their spans, size of the decoded text, decoded
 * text. After an error: UINT32_MAX, size of the error message, error message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tokenizer/tokenizer.h"

static void put(const void *bytes, size_t n) {
    uint32_t count = (uint32_t)n;
    fwrite(&count, sizeof count, 1, stdout);
    fwrite(bytes, 1, n, stdout);
}

static void answer(const Tokenizer *t, unsigned flags, const char *text, size_t n) {
    int32_t *ids = NULL;
    TokenSpan *spans = NULL;
    size_t count, bytes;
    char *decoded = NULL;
    Err e = tokenizer_encode_spans(t, flags, text, n, &ids, &spans, &count);
    if (!e.code) e = tokenizer_decode_with(t, flags, ids, count, &decoded, &bytes);
    uint32_t head = e.code ? UINT32_MAX : (uint32_t)count;
    fwrite(&head, sizeof head, 1, stdout);
    if (e.code)
        put(e.msg, strlen(e.msg));
    else {
        fwrite(ids, sizeof *ids, count, stdout);
        for (size_t i = 0; i < 2 * count; i++)
            fwrite(&(uint32_t){(uint32_t)(i < count ? spans[i].begin : spans[i - count].end)},
                   sizeof(uint32_t), 1, stdout);
        put(decoded, bytes);
    }
    free(ids), free(spans), free(decoded);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: tokenize TYPE MODEL [VOCAB_FILE MERGE_FILE]\n"), ERR_USER;
    TokenizerConfig config = TOKENIZER_CONFIG_DEFAULT;
    config.type = argv[1], config.model = argv[2];
    config.vocab_file = argv[2];
    if (argc == 4) config.tiktoken_pattern = argv[3], config.tiktoken_num_special = -1;
    if (argc > 4) config.vocab_file = argv[3], config.merge_file = argv[4];
    Tokenizer *t;
    Err e = tokenizer_open(&config, &t);
    if (e.code) return fprintf(stderr, "tokenize: %s\n", e.msg), (int)e.code;
    uint32_t head[2];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        char *text = mem_alloc(head[1]);
        if (fread(text, 1, head[1], stdin) != head[1]) break;
        answer(t, head[0], text, head[1]);
        free(text);
    }
    tokenizer_free(t);
    return 0;
}
