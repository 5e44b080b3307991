/* Tests that ids and text of every case in tests/data/tokenizer/cases.json agree with those of the original
 * library (tools/oracle/tokenizer_cases.py). */
#include <stdlib.h>
#include <string.h>

#include "unit/err.h"
#include "unit/json_fixture.h"

#include "base/mem.h"
#include "base/str.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "tokenizer/text/regex.h"
#include "tokenizer/tokenizer.h"

#define DATA "tests/data/tokenizer"

static void base64(const char *s, Str *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int have = 0;
    for (; *s && *s != '='; s++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, *s) - digits);
        have += 6;
        if (have >= 8) have -= 8, str_add(out, &(char){(char)(bits >> have)}, 1);
    }
    if (!out->s) str_puts(out, "");
}

static void fnv(const int32_t *ids, size_t n, char out[17]) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            h = (h ^ ((uint32_t)ids[i] >> shift & 0xFF)) * 0x100000001B3u;
    snprintf(out, 17, "%016llx", (unsigned long long)h);
}

static Tokenizer *open_file(const char *file) {
    char *path = mem_printf(DATA "/%s", file);
    TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
    c.type = "HuggingFaceTokenizer", c.model = path;
    if (!strcmp(file, "gpt2"))
        c.type = "GPT2BPETokenizer", c.vocab_file = DATA "/gpt2/vocab.json",
        c.merge_file = DATA "/gpt2/merges.txt";
    if (strstr(file, ".model")) c.type = "SentencePieceTokenizer";
    if (strstr(file, ".tiktoken")) c.type = "TikTokenizer", c.tiktoken_pattern = "cl100k";
    Tokenizer *t;
    Err e = tokenizer_open(&c, &t);
    assert_ok(e);
    free(path);
    return t;
}

static void check_offsets(const Tokenizer *t, const int32_t *ids, size_t n, const json_t *wanted) {
    size_t *offsets = mem_alloc((n + 1) * sizeof *offsets);
    assert_ok(tokenizer_offsets(t, ids, n, offsets));
    assert_int_equal(n, json_array_size(wanted));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(offsets[i], json_integer_value(json_array_get(wanted, i)));
    free(offsets);
}

static void check_spans(const Tokenizer *t, unsigned flags, const Str *text, const json_t *wanted) {
    int32_t *ids;
    TokenSpan *spans;
    size_t n;
    assert_ok(tokenizer_encode_spans(t, flags, text->s, text->len, &ids, &spans, &n));
    assert_int_equal(2 * n, json_array_size(wanted));
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(spans[i].begin, json_integer_value(json_array_get(wanted, 2 * i)));
        assert_int_equal(spans[i].end, json_integer_value(json_array_get(wanted, 2 * i + 1)));
    }
    free(ids), free(spans);
}

static void check(const Tokenizer *t, const json_t *c) {
    Str unit = {0}, text = {0}, decoded = {0};
    int32_t *ids;
    size_t n, bytes;
    char hash[17], *back;
    unsigned flags = (unsigned)json_integer_value(json_object_get(c, "flags"));
    base64(json_string_value(json_object_get(c, "text")), &unit);
    for (json_int_t i = json_integer_value(json_object_get(c, "times")); i > 0; i--)
        str_add(&text, unit.s, unit.len);
    assert_ok(tokenizer_encode_with(t, flags, text.s, text.len, &ids, &n));
    fnv(ids, n, hash);
    const json_t *wanted = json_object_get(c, "ids");
    for (size_t i = 0; i < json_array_size(wanted) && i < n; i++)
        assert_int_equal(ids[i], json_integer_value(json_array_get(wanted, i)));
    assert_int_equal(n, json_integer_value(json_object_get(c, "count")));
    assert_string_equal(hash, json_string_value(json_object_get(c, "fnv")));
    if (wanted) {
        base64(json_string_value(json_object_get(c, "decoded")), &decoded);
        assert_ok(tokenizer_decode_with(t, flags, ids, n, &back, &bytes));
        Str shown = {0}; /* the original library shows bytes that are not UTF-8 as U+FFFD */
        utf8_repair(back, bytes, &shown);
        assert_int_equal(shown.len, decoded.len);
        if (shown.len) assert_memory_equal(shown.s, decoded.s, shown.len);
        free(back), str_free(&shown);
    }
    if (json_object_get(c, "spans")) check_spans(t, flags, &text, json_object_get(c, "spans"));
    if (json_object_get(c, "offsets")) check_offsets(t, ids, n, json_object_get(c, "offsets"));
    free(ids), str_free(&unit), str_free(&text), str_free(&decoded);
}

static const json_t *cases(void **state) { return json_object_get(*state, "cases"); }

TEST(ids_and_text_equal_the_original) {
    Tokenizer *t = NULL;
    const char *open = "";
    size_t checked = 0;
    for (size_t i = 0; i < json_array_size(cases(state)); i++) {
        const json_t *c = json_array_get(cases(state), i);
        const char *file = json_string_value(json_object_get(c, "file"));
        if (strcmp(file, open)) tokenizer_free(t), t = open_file(open = file);
        check(t, c);
        checked++;
    }
    tokenizer_free(t);
    assert_true(checked > 500);
}

typedef struct Shared {
    const Tokenizer *t;
    const json_t *cases;
    const char *file;
} Shared;

static void check_range(void *arg, int64_t begin, int64_t end) {
    const Shared *s = arg;
    for (int64_t i = begin; i < end; i++) {
        const json_t *c = json_array_get(s->cases, (size_t)i % json_array_size(s->cases));
        if (json_object_get(c, "ids") && !strcmp(json_string_value(json_object_get(c, "file")), s->file))
            check(s->t, c);
    }
}

TEST(one_tokenizer_serves_many_threads) {
    Shared s = {open_file("qwen2.json"), cases(state), "qwen2.json"};
    Pool *pool = pool_new(4);
    pool_for(pool, 4 * (int64_t)json_array_size(s.cases), 1, check_range, &s);
    pool_free(pool);
    tokenizer_free((Tokenizer *)s.t);
}

static void check_regex(const json_t *c) {
    const char *pattern = json_string_value(json_object_get(c, "pattern")),
               *text = json_string_value(json_object_get(c, "text"));
    Regex *r;
    Spans spans = {0};
    Matcher *m = matcher_new();
    assert_ok(regex_compile(pattern, strlen(pattern), false, &r));
    assert_ok(regex_spans(r, m, text, strlen(text), &spans));
    for (int only_matches = 0; only_matches < 2; only_matches++) {
        const json_t *wanted = json_object_get(c, only_matches ? "matches" : "pieces");
        size_t k = 0;
        for (size_t i = 0; i < spans.n; i++) {
            const Span *s = &spans.v[i];
            if (s->begin == s->end || (only_matches && !s->match)) continue;
            const char *piece = json_string_value(json_array_get(wanted, k++));
            if (!piece || strlen(piece) != s->end - s->begin || memcmp(piece, text + s->begin, strlen(piece)))
                fail_msg("'%s' on '%s': piece %zu is [%zu, %zu), not '%s'", pattern, text, k, s->begin,
                         s->end, piece ? piece : "none");
        }
        if (k != json_array_size(wanted))
            fail_msg("'%s' on '%s': %zu pieces, not %zu", pattern, text, k, json_array_size(wanted));
    }
    free(spans.v), matcher_free(m), regex_free(r);
}

TEST(regexes_match_as_oniguruma_does) {
    const json_t *all = json_object_get(*state, "regex");
    assert_true(json_array_size(all) > 300);
    for (size_t i = 0; i < json_array_size(all); i++) check_regex(json_array_get(all, i));
}

static int load(void **state) { return json_fixture_load(state, DATA "/cases.json"); }

/* Parses all prefixes of regexes, some of which are invalid. Each is in memory of exactly its length, so that
 * AddressSanitizer detects reads after the end. */
TEST(beginnings_of_regexes_end_where_they_end) {
    const json_t *all = json_object_get(*state, "regex");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const char *pattern = json_string_value(json_object_get(json_array_get(all, i), "pattern"));
        for (size_t n = 1; n <= strlen(pattern); n++) {
            char *beginning = malloc(n);
            Regex *r = NULL;
            memcpy(beginning, pattern, n);
            if (!regex_compile(beginning, n, false, &r).code) regex_free(r);
            free(beginning);
        }
    }
}

int main(void) { return run_all_tests(load, json_fixture_free); }
