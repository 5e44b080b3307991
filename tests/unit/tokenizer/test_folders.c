/* Tests that every folder of tests/data/tokenizer/folders.json is either refused or read in the same way as
 * transformers' AutoTokenizer reads it (tools/oracle/tokenizer_folders.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/err.h"
#include "unit/json_fixture.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "tokenizer/text/base64.h"
#include "tokenizer/tokenizer.h"

#define DATA "tests/data/tokenizer"

static void write_file(const char *dir, const char *name, const json_t *content) {
    char *path = mem_printf("%s/%s", dir, name);
    const char *copy = json_string_value(json_object_get(content, "copy")),
               *base64 = json_string_value(json_object_get(content, "base64"));
    Str bytes = {0};
    if (copy) {
        char *from = mem_printf(DATA "/%s", copy);
        assert_ok(file_read(from, &bytes));
        free(from);
    } else if (base64)
        assert_true(base64_decode(base64, strlen(base64), &bytes));
    else if (json_is_string(content))
        str_puts(&bytes, json_string_value(content));
    else {
        char *text = json_dumps(content, 0);
        str_puts(&bytes, text);
        free(text);
    }
    assert_ok(file_write_atomic(path, bytes.s, bytes.len));
    str_free(&bytes), free(path);
}

static void write_files(const char *dir, const json_t *files, const json_t *others) {
    const char *name;
    json_t *content;
    json_object_foreach((json_t *)files, name,
                        content) if (!json_is_null(content) && !json_object_get(others, name))
        write_file(dir, name, content);
}

static int failed;

static void same(const char *name, const char *what, const json_t *wanted, json_t *got) {
    if (!json_equal(wanted, got)) {
        char *a = json_dumps(wanted, JSON_ENCODE_ANY | JSON_COMPACT),
             *b = json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT);
        printf("%s: %s is %s, not %s\n", name, what, b, a);
        free(a), free(b);
        failed++;
    }
    json_decref(got);
}

static json_t *spans_of(const Tokenizer *t, const json_t *texts) {
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        json_t *one = json_array();
        int32_t *ids;
        TokenSpan *spans;
        size_t n;
        assert_ok(tokenizer_encode_spans(t, 0, text, strlen(text), &ids, &spans, &n));
        for (size_t k = 0; k < n; k++)
            json_array_append_new(one,
                                  json_pack("[I,I]", (json_int_t)spans[k].begin, (json_int_t)spans[k].end));
        json_array_append_new(all, one);
        free(ids), free(spans);
    }
    return all;
}

static json_t *ids_of(const Tokenizer *t, unsigned flags, const json_t *texts) {
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        json_t *one = json_array();
        int32_t *ids;
        size_t n;
        assert_ok(
            tokenizer_encode_with(t, flags, json_string_value(text), json_string_length(text), &ids, &n));
        for (size_t k = 0; k < n; k++) json_array_append_new(one, json_integer(ids[k]));
        json_array_append_new(all, one);
        free(ids);
    }
    return all;
}

/* Compares a special token. If AutoTokenizer does not define it, it may be the token with the usual name
 * here. */
static void same_token(const char *name, const char *key, const json_t *wanted, int32_t id) {
    if (!json_is_null(json_object_get(wanted, key)))
        same(name, key, json_object_get(wanted, key), json_integer(id));
}

static bool contains(const json_t *list, int32_t id) {
    size_t i = 0;
    while (i < json_array_size(list) && json_integer_value(json_array_get(list, i)) != id) i++;
    return i < json_array_size(list);
}

/* The expected special tokens. End and padding tokens are always special here. */
static json_t *special_of(const Tokenizer *t, const json_t *wanted) {
    json_t *all = json_array();
    for (int32_t id = 0; id < tokenizer_vocab_size(t); id++) {
        const bool any_case = id == tokenizer_eod(t) || id == tokenizer_pad(t);
        if (any_case ? contains(wanted, id) : tokenizer_is_special(t, id))
            json_array_append_new(all, json_integer(id));
    }
    return all;
}

/* Returns the ids and types of the first two texts as a pair, according to an exported file's template, or NULL if it
 * has none. */
static json_t *pair_of(const char *exported, const json_t *ids) {
    json_t *root = json_loads(exported, 0, NULL), *post = json_object_get(root, "post_processor"),
           *list = json_object_get(post, "processors");
    if (list) post = json_array_get(list, json_array_size(list) - 1);
    const json_t *pair = json_object_get(post, "pair"), *tokens = json_object_get(post, "special_tokens");
    json_t *made = pair ? json_pack("[[],[]]") : NULL;
    for (size_t i = 0; i < json_array_size(pair); i++) {
        const json_t *piece = json_array_get(pair, i), *text = json_object_get(piece, "Sequence"),
                     *named = text ? text : json_object_get(piece, "SpecialToken");
        const char *id = json_string_value(json_object_get(named, "id"));
        json_t *added =
            text ? json_array_get(ids, id[0] == 'B') : json_object_get(json_object_get(tokens, id), "ids");
        json_array_extend(json_array_get(made, 0), added);
        for (size_t k = 0; k < json_array_size(added); k++)
            json_array_append(json_array_get(made, 1), json_object_get(named, "type_id"));
    }
    json_decref(root);
    return made;
}

/* Checks that the exported file alone is an equivalent tokenizer. `spans` are those before the export, and
 * are released here. */
static void check_export(const char *name, const json_t *c, const json_t *texts, const char *dir,
                         const char *exported, json_t *spans) {
    char *path = mem_printf("%s/exported/tokenizer.json", dir), *folder = mem_printf("%s/exported", dir);
    TokenizerConfig config = TOKENIZER_CONFIG_DEFAULT;
    config.type = "HuggingFaceTokenizer", config.model = path;
    Tokenizer *t;
    assert_ok(file_mkdirs(folder));
    assert_ok(file_write_atomic(path, exported, strlen(exported)));
    assert_ok(tokenizer_open(&config, &t));
    same(name, "exported size", json_object_get(c, "size"), json_integer(tokenizer_vocab_size(t)));
    same(name, "exported special", json_object_get(c, "special"),
         special_of(t, json_object_get(c, "special")));
    same(name, "exported ids", json_object_get(c, "ids"), ids_of(t, 0, texts));
    same(name, "exported spans", spans, spans_of(t, texts));
    json_decref(spans);
    json_t *pair = pair_of(exported, json_object_get(c, "ids"));
    if (pair) same(name, "exported pair", json_object_get(c, "pair"), pair);
    same(name, "exported with", json_object_get(c, "with"), ids_of(t, TOKENIZER_ADD_SPECIAL, texts));
    tokenizer_free(t);
    free(path), free(folder);
}

static void check(const char *name, const json_t *c, const json_t *texts, const char *dir) {
    const char *refusal = json_string_value(json_object_get(c, "error"));
    TokenizerConfig config = TOKENIZER_CONFIG_DEFAULT;
    char *exported = NULL;
    config.type = "HuggingFaceTokenizer", config.model = dir;
    config.export_json = &exported, config.export_type = "phi3"; /* has no tokenizer class */
    Tokenizer *t;
    const Err e = tokenizer_open(&config, &t);
    if (refusal || e.code) {
        if (!refusal || !strstr(e.msg, refusal) || !strstr(e.msg, dir))
            printf("%s: %s\n", name, e.code ? e.msg : "is not refused"), failed++;
        if (!e.code) tokenizer_free(t);
        return;
    }
    same(name, "size", json_object_get(c, "size"), json_integer(tokenizer_vocab_size(t)));
    same(name, "ids", json_object_get(c, "ids"), ids_of(t, 0, texts));
    same(name, "with", json_object_get(c, "with"), ids_of(t, TOKENIZER_ADD_SPECIAL, texts));
    same(name, "special", json_object_get(c, "special"), special_of(t, json_object_get(c, "special")));
    const json_t *spans = json_object_get(c, "spans");
    if (spans) same(name, "spans", spans, spans_of(t, texts));
    same_token(name, "eos", c, tokenizer_eod(t));
    same_token(name, "bos", c, tokenizer_bos(t));
    same_token(name, "pad", c, tokenizer_pad(t));
    if (exported) check_export(name, c, texts, dir, exported, spans_of(t, texts));
    tokenizer_free(t);
    free(exported);
}

static int open_cases(void **state) { return json_fixture_load(state, DATA "/folders.json"); }

TEST(folders_are_read_as_by_auto_tokenizer) {
    const json_t *all = *state;
    const json_t *bases = json_object_get(all, "bases"), *cases = json_object_get(all, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *files = json_object_get(c, "files");
        char dir[] = "/tmp/isotron-folder-XXXXXX";
        assert_non_null(mkdtemp(dir));
        write_files(dir, json_object_get(bases, json_string_value(json_object_get(c, "base"))), files);
        write_files(dir, files, NULL);
        check(json_string_value(json_object_get(c, "name")), c,
              json_object_get(all, json_object_get(c, "spans") ? "spaces" : "texts"), dir);
        assert_ok(file_remove_tree(dir));
    }
    assert_true(json_array_size(cases) > 80);
    assert_int_equal(failed, 0);
}

/* The expected strings are the test vectors of RFC 4648. */
TEST(base64_has_the_digits_of_the_rfc) {
    static const char *const WANTED[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
    for (size_t n = 0; n < sizeof WANTED / sizeof *WANTED; n++) {
        Str made = {0};
        base64_encode("foobar", n, &made);
        assert_string_equal(made.len ? made.s : "", WANTED[n]);
        str_free(&made);
    }
}

int main(void) { return run_all_tests(open_cases, json_fixture_free); }
