/* Tests vocabulary files of BERT, SentencePiece and tiktoken: special ids, appended tokens, and user errors.
 * test_cases.c compares ids with the original libraries. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit/err.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "tokenizer/tokenizer.h"

#define DATA "tests/data/tokenizer/"

typedef struct Place {
    char dir[40], path[80];
} Place;

/* Creates a file with this content in a new folder. */
static Place make(const char *name, const char *bytes, size_t n) {
    Place p = {.dir = "/tmp/isotron-vocabulary-XXXXXX"};
    assert_non_null(mkdtemp(p.dir));
    snprintf(p.path, sizeof p.path, "%s/%s", p.dir, name);
    assert_ok(file_write_atomic(p.path, bytes, n));
    return p;
}

static void remove_place(const Place *p) { assert_ok(file_remove_tree(p->dir)); }

static TokenizerConfig config_of(const char *type, const char *path) {
    TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
    c.type = type, c.model = c.vocab_file = path;
    return c;
}

static Tokenizer *open_config(TokenizerConfig c) {
    Tokenizer *t = NULL;
    assert_ok(tokenizer_open(&c, &t));
    return t;
}

static void encodes(const Tokenizer *t, unsigned flags, const char *text, const int32_t *wanted, size_t n) {
    int32_t *ids;
    size_t count;
    assert_ok(tokenizer_encode_with(t, flags, text, strlen(text), &ids, &count));
    assert_int_equal(count, n);
    assert_memory_equal(ids, wanted, n * sizeof *ids);
    free(ids);
}

/* Asserts that a file with this content cannot be opened, and that the message contains this text. */
static void refuses(TokenizerConfig c, const char *name, const char *content, size_t n, const char *says) {
    const Place p = make(name, content, n);
    Tokenizer *t;
    c.model = c.vocab_file = p.path;
    const Err e = tokenizer_open(&c, &t);
    assert_int_equal(e.code, ERR_USER);
    if (!strstr(e.msg, says) || !strstr(e.msg, p.path)) fail_msg("'%s' does not say '%s'", e.msg, says);
    remove_place(&p);
}

static const char BERT[] = "[PAD]\n[UNK]\r\n[CLS]\n[SEP]\n[MASK]\ncafe\n##s\nCaf\xC3\xA9\n\xE4\xB8\xAD\n";

TEST(bert_has_its_ids_and_extra_tokens) {
    const Place p = make("vocab.txt", BERT, sizeof BERT - 1);
    static const char *const extra[] = {"<extra_id_0>", "[MASK]", "<extra_id_1>"};
    TokenizerConfig c = config_of("BertWordPieceLowerCase", p.path);
    c.extra_tokens = extra, c.num_extra_tokens = 3;
    Tokenizer *t = open_config(c);
    assert_int_equal(tokenizer_vocab_size(t), 11);
    assert_int_equal(tokenizer_pad(t), 0);
    assert_int_equal(tokenizer_cls(t), 2);
    assert_int_equal(tokenizer_bos(t), 2);
    assert_int_equal(tokenizer_sep(t), 3);
    assert_int_equal(tokenizer_eod(t), 3);
    assert_int_equal(tokenizer_mask(t), 4);
    assert_int_equal(tokenizer_token_id(t, "<extra_id_1>"), 10);
    assert_true(tokenizer_is_special(t, 9));
    encodes(t, 0, "Caf\xC3\xA9s\xE4\xB8\xAD<extra_id_0> x", (int32_t[]){5, 6, 8, 9, 1}, 5);
    encodes(t, TOKENIZER_ADD_SPECIAL, "cafe", (int32_t[]){2, 5, 3}, 3);
    size_t n;
    const char *text = tokenizer_token_text(t, 6, &n);
    assert_int_equal(n, 3);
    assert_memory_equal(text, "##s", 3);
    assert_null(tokenizer_token_text(t, 11, &n));
    tokenizer_free(t);
    t = open_config(config_of("BertWordPieceCase", p.path));
    encodes(t, 0, "Caf\xC3\xA9s", (int32_t[]){7, 6}, 2);
    enum {
        MOST = 100,
        CAFE = 5
    }; /* characters of the longest word; bytes of the word "Cafe" with an accent */
    char word[CAFE + MOST] = "Caf\xC3\xA9";
    int32_t ids[MOST - 3] = {7};
    for (int i = 1; i < MOST - 3; i++) ids[i] = 6, word[CAFE + i - 1] = 's';
    encodes(t, 0, word, ids, MOST - 3);
    word[strlen(word)] = 's';
    encodes(t, 0, word, (int32_t[]){1}, 1);
    tokenizer_free(t);
    remove_place(&p);
    const TokenizerConfig bad = config_of("BertWordPieceCase", NULL);
    refuses(bad, "vocab.txt", "[PAD]\n[UNK]\n", 12, "[CLS]");
    refuses(bad, "vocab.txt", "a\na\n", 4, "line 2");
    refuses(bad, "vocab.txt", "a\n\xFF\n", 4, "line 2");
}

TEST(sentencepiece_has_its_ids_and_extra_tokens) {
    static const char *const extra[] = {"<extra_id_0>", "<s>", "<extra_id_1>"};
    TokenizerConfig c = config_of("Llama2Tokenizer", DATA "unigram.model");
    c.extra_tokens = extra, c.num_extra_tokens = 3;
    Tokenizer *t = open_config(c);
    assert_int_equal(tokenizer_vocab_size(t), 702);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eod(t), 2);
    assert_int_equal(tokenizer_pad(t), 3);
    assert_int_equal(tokenizer_token_id(t, "<extra_id_1>"), 701);
    assert_true(tokenizer_is_special(t, 700) && tokenizer_is_special(t, 1) && !tokenizer_is_special(t, 0));
    char *text;
    size_t n;
    const int32_t sep = tokenizer_token_id(t, "<sep>");
    const int32_t ids[] = {1, sep, 700, tokenizer_token_id(t, "<0xC3>"), 2};
    assert_ok(tokenizer_decode(t, ids, 5, &text, &n));
    assert_string_equal(text, "<sep><extra_id_0>\xEF\xBF\xBD");
    free(text);
    tokenizer_free(t);
}

/* A unigram and a BPE model with the pieces U (unknown), P (control), a and a space. The expected ids are
 * those of SentencePiece. */
TEST(control_pieces_match_no_text) {
    static const char model[] = "\x0A\x05\x0A\x01U\x18\x02\x0A\x05\x0A\x01P\x18\x03\x0A\x05\x0A\x01"
                                "a\x18\x01\x0A\x07\x0A\x03\xE2\x96\x81\x18\x01\x12\x02\x18";
    char bytes[sizeof model];
    memcpy(bytes, model, sizeof model);
    for (char kind = 1; kind <= 2; kind++) {
        bytes[sizeof model - 1] = kind;
        const Place p = make("a.model", bytes, sizeof bytes);
        Tokenizer *t = open_config(config_of("SentencePieceTokenizer", p.path));
        encodes(t, 0, "aPUa aP", (int32_t[]){3, 2, 0, 2, 3, 2, 0}, 7);
        tokenizer_free(t);
        remove_place(&p);
    }
}

/* An unknown character costs 10 more than the worst piece. The pieces are U (unknown), a space, ab (-20) and a. If the
 * score of a is 9, a and an unknown b have -21; if it is 11, they have -19. */
TEST(unknown_characters_are_worse_than_pieces) {
    static const char model[] = "\x0A\x05\x0A\x01U\x18\x02\x0A\x05\x0A\x03\xE2\x96\x81\x0A\x09\x0A\x02"
                                "ab\x15\0\0\xA0\xC1\x12\x02\x18\x01\x0A\x08\x0A\x01"
                                "a\x15\0\0";
    for (int i = 0; i < 2; i++) {
        char bytes[sizeof model + 1];
        memcpy(bytes, model, sizeof model - 1);
        memcpy(bytes + sizeof model - 1, i ? "\x30\x41" : "\x10\x41", 2);
        const Place p = make("a.model", bytes, sizeof bytes);
        Tokenizer *t = open_config(config_of("SentencePieceTokenizer", p.path));
        encodes(t, 0, "ab", i ? (int32_t[]){1, 3, 0} : (int32_t[]){1, 2}, i ? 3 : 2);
        tokenizer_free(t);
        remove_place(&p);
    }
}

static const struct {
    const char *bytes, *says;
    size_t n;
} MODELS[] = {
    {"", "unknown piece", 0},
    {"\x0A", "damaged", 1},
    {"\x0A\x7F"
     "a",
     "damaged", 3},
    {"\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", "damaged", 11},
    {"\x0B", "damaged", 1},
    {"\x0A\x00", "piece 0 is empty", 2},
    {"\x0A\x03\x0A\x01\xFF", "not UTF-8", 5},
    {"\x0A\x05\x0A\x01"
     "a\x18\x07",
     "unknown type", 7},
    {"\x0A\x08\x0A\x01"
     "a\x15\x00\x00\xC0\x7F",
     "finite", 10},
    {"\x0A\x03\x0A\x01"
     "a\x0A\x03\x0A\x01"
     "a",
     "twice", 10},
    {"\x0A\x05\x0A\x01"
     "a\x18\x02\x0A\x05\x0A\x01"
     "b\x18\x02",
     "two unknown", 14},
    {"\x0A\x05\x0A\x01"
     "a\x18\x06",
     "byte_fallback is off", 7},
    {"\x0A\x05\x0A\x01"
     "a\x18\x02\x12\x02\x18\x03",
     "model_type", 11},
    {"\x0A\x05\x0A\x01"
     "a\x18\x02\x12\x03\x98\x02\x01",
     "0x00", 12},
    {"\x0A\x05\x0A\x01"
     "a\x18\x02\x0A\x05\x0A\x01"
     "b\x18\x05\x12\x02\x18\x02",
     "UNUSED", 18},
    {"\x0A\x05\x0A\x01"
     "a\x18\x02\x1A\x03\x12\x01x",
     "precompiled_charsmap", 12},
};

TEST(damaged_models_are_refused) {
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
        refuses(config_of("SentencePieceTokenizer", NULL), "a.model", MODELS[i].bytes, MODELS[i].n,
                MODELS[i].says);
}

/* Writes the tokens of all bytes, then "he", as JSON "[{"rank": 0, "token_bytes": "AA==", ...}]" or one per
 * line. */
static void tiktoken_file(bool json, Str *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i <= 256; i++) {
        char code[5] = {digits[i >> 2 & 63], digits[(i & 3) << 4], '=', '=', 0};
        if (i == 256) strcpy(code, "aGU=");
        if (json)
            str_printf(out, "%s{\"rank\":%d,\"token_bytes\":\"%s\",\"token_str\":\"\"}%s", i ? "," : "[", i,
                       code, i == 256 ? "]" : "");
        else
            str_printf(out, "%s %d\n", code, i);
    }
}

TEST(tiktoken_puts_special_tokens_on_either_side) {
    Str text = {0};
    tiktoken_file(true, &text);
    Place p = make("a.vocab.json", text.s, text.len);
    TokenizerConfig c = config_of("TikTokenizer", p.path);
    c.tiktoken_num_special = 9;
    Tokenizer *t = open_config(c);
    assert_int_equal(tokenizer_vocab_size(t), 266);
    assert_int_equal(tokenizer_eod(t), 2);
    assert_int_equal(tokenizer_pad(t), 4);
    assert_int_equal(tokenizer_mask(t), 3);
    encodes(t, 0, "he<SPECIAL_8></s>h", (int32_t[]){265, 8, 2, 9 + 'h'}, 4);
    tokenizer_free(t);
    c.vocab_size = 265; /* only the first tokens of the file */
    t = open_config(c);
    encodes(t, 0, "he", (int32_t[]){9 + 'h', 9 + 'e'}, 2);
    tokenizer_free(t);
    remove_place(&p);
    c.vocab_size = 267;
    refuses(c, "a.json", text.s, text.len, "too few");
    c.vocab_size = 0, c.tiktoken_num_special = 6;
    refuses(c, "a.json", text.s, text.len, "7 special tokens, more than");
    c.tiktoken_num_special = 9, c.extra_tokens = (const char *const[]){"<unk>"}, c.num_extra_tokens = 1;
    refuses(c, "a.json", text.s, text.len, "must include <s>");
    str_clear(&text);
    tiktoken_file(false, &text);
    p = make("a.tiktoken", text.s, text.len);
    t = open_config(config_of("TikTokenizer", p.path));
    assert_int_equal(tokenizer_vocab_size(t), 258);
    assert_int_equal(tokenizer_eod(t), 257);
    encodes(t, 0, "he<|endoftext|>h", (int32_t[]){256, 257, 'h'}, 3);
    tokenizer_free(t);
    remove_place(&p);
    c = config_of("TikTokenizer", NULL);
    c.tiktoken_num_special = 9;
    refuses(c, "a.tiktoken", text.s, text.len, "remove it");
    c.tiktoken_num_special = -1, c.tiktoken_pattern = "v3";
    Tokenizer *none;
    assert_non_null(
        strstr(tokenizer_open(
                   &(TokenizerConfig){.type = "TikTokenizer", .model = "x", .tiktoken_pattern = "v3"}, &none)
                   .msg,
               "v1, v2"));
    c.tiktoken_pattern = NULL;
    refuses(c, "a.tiktoken", "AA== 0\n", 7, "too few for the 256 bytes");
    refuses(c, "a.tiktoken", "AA= 0\n", 6, "base64");
    refuses(c, "a.tiktoken", "AA==\n", 5, "line 1");
    refuses(c, "a.tiktoken", "AA== 0\nAQ== 0\n", 14, "another token");
    refuses(c, "a.tiktoken", "aGU= 0\n", 7, "single byte");
    refuses(c, "a.json", "{}", 2, "list");
    refuses(c, "a.json", "[{\"rank\":1,\"token_bytes\":\"AA==\"}]", 33, "rank 1");
    str_free(&text);
}
