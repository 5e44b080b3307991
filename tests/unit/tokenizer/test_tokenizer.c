/* Tests tokenizer types without files, decisions that are made when a tokenizer is opened, and user
 * errors. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit/err.h"

#include "base/file.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"

#define DATA "tests/data/tokenizer"

static Tokenizer *open_type(const char *type, int64_t vocab_size) {
    TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
    c.type = type, c.vocab_size = vocab_size;
    Tokenizer *t;
    assert_ok(tokenizer_open(&c, &t));
    return t;
}

static void encodes(const Tokenizer *t, const char *text, size_t n, const int32_t *wanted, size_t count) {
    int32_t *ids;
    size_t got;
    assert_ok(tokenizer_encode(t, text, n, &ids, &got));
    assert_int_equal(got, count);
    if (count) assert_memory_equal(ids, wanted, count * sizeof *ids);
    free(ids);
}

TEST(null_reads_ids_and_ends_with_its_last) {
    Tokenizer *t = open_type("NullTokenizer", 100);
    encodes(t, "7 99 0 12\n", 10, (int32_t[]){7, 99, 0, 12}, 4);
    encodes(t, "", 0, NULL, 0);
    assert_int_equal(tokenizer_vocab_size(t), 100);
    assert_int_equal(tokenizer_eod(t), 99);
    assert_int_equal(tokenizer_pad(t), -1);
    assert_true(tokenizer_is_special(t, 99));
    assert_false(tokenizer_is_special(t, -1)); /* the missing padding token */
    char *text;
    size_t n;
    assert_ok(tokenizer_decode(t, (int32_t[]){7, 99}, 2, &text, &n));
    assert_string_equal(text, "7 99");
    free(text);
    static const char *const bad[] = {"100", "1 -2", "a", "1  2", "1\t2", "99999999999999999999", "+5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int32_t *ids;
        assert_int_equal(tokenizer_encode(t, bad[i], strlen(bad[i]), &ids, &n).code, ERR_USER);
    }
    tokenizer_free(t);
}

TEST(bytes_survive_whatever_they_are) {
    Tokenizer *t = open_type("ByteLevelTokenizer", 0);
    encodes(t, "a\0\xff\xc3", 4, (int32_t[]){'a', 0, 255, 195}, 4);
    assert_int_equal(tokenizer_vocab_size(t), 512);
    assert_int_equal(tokenizer_eod(t), 0);
    assert_int_equal(tokenizer_pad(t), 1);
    char *text;
    size_t n;
    assert_ok(tokenizer_decode(t, (int32_t[]){255, 300, 0, 65}, 4, &text, &n));
    assert_int_equal(n, 3);
    assert_memory_equal(text, "\xff\0A", 3);
    free(text);
    assert_int_equal(tokenizer_decode(t, (int32_t[]){512}, 1, &text, &n).code, ERR_USER);
    assert_int_equal(tokenizer_decode(t, (int32_t[]){-1}, 1, &text, &n).code, ERR_USER);
    tokenizer_free(t);
}

/* Types with files are tested by test_cases.c. The offset of a token that starts inside a character is the beginning of
 * that character. */
TEST(offsets_count_characters) {
    size_t at[4];
    Tokenizer *t = open_type("NullTokenizer", 1000);
    assert_ok(tokenizer_offsets(t, (int32_t[]){7, 999, 0}, 3, at));
    assert_memory_equal(at, ((size_t[]){0, 2, 6}), 3 * sizeof *at);
    assert_int_equal(tokenizer_offsets(t, (int32_t[]){1000}, 1, at).code, ERR_USER);
    assert_ok(tokenizer_offsets(t, NULL, 0, at));
    tokenizer_free(t);
    t = open_type("ByteLevelTokenizer", 0);
    assert_ok(tokenizer_offsets(t, (int32_t[]){0xC3, 0xA9, 300, 'x'}, 4, at));
    assert_memory_equal(at, ((size_t[]){0, 0, 1, 1}), 4 * sizeof *at);
    assert_ok(tokenizer_offsets(t, (int32_t[]){0xA9, 'x', 'y'}, 3, at));
    assert_memory_equal(at, ((size_t[]){0, 0, 1}), 3 * sizeof *at);
    tokenizer_free(t);
    TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
    c.type = "HuggingFaceTokenizer", c.model = DATA "/bert.json";
    assert_ok(tokenizer_open(&c, &t));
    assert_non_null(strstr(tokenizer_offsets(t, (int32_t[]){5}, 1, at).msg, "decoder is ByteLevel"));
    tokenizer_free(t);
}

#define NEW_FOLDER "/tmp/isotron-tokenizer-XXXXXX"

/* Creates a folder from the template `dir`. */
static TokenizerConfig hugging_face_in(char *dir) {
    assert_non_null(mkdtemp(dir));
    TokenizerConfig c = TOKENIZER_CONFIG_DEFAULT;
    c.type = "HuggingFaceTokenizer", c.model = dir;
    return c;
}

static Err open_with(TokenizerConfig c) {
    Tokenizer *t;
    Err e = tokenizer_open(&c, &t);
    if (!e.code) tokenizer_free(t);
    return e;
}

TEST(mistakes_in_the_configuration_are_named) {
    assert_non_null(strstr(open_with((TokenizerConfig){.type = "GPT2BPETokeniser"}).msg,
                           "did you mean GPT2BPETokenizer"));
    assert_non_null(strstr(open_with((TokenizerConfig){0}).msg, "--tokenizer-type"));
    assert_non_null(strstr(open_with((TokenizerConfig){.type = "NullTokenizer"}).msg, "--vocab-size"));
    assert_non_null(
        strstr(open_with((TokenizerConfig){.type = "ByteLevelTokenizer", .vocab_size = 255}).msg, "256"));
    assert_non_null(strstr(open_with((TokenizerConfig){.type = "GPT2BPETokenizer"}).msg, "--merge-file"));
    assert_non_null(
        strstr(open_with((TokenizerConfig){.type = "HuggingFaceTokenizer"}).msg, "--tokenizer-model"));
    assert_non_null(strstr(
        open_with((TokenizerConfig){.type = "HuggingFaceTokenizer", .model = "/nowhere"}).msg, "/nowhere"));
    assert_non_null(strstr(
        open_with((TokenizerConfig){.type = "NullTokenizer", .vocab_size = 9, .eod_id = 9, .pad_id = -1}).msg,
        "end-of-document"));
}

static void write_text(const char *dir, const char *name, const char *text) {
    char *path = mem_printf("%s/%s", dir, name);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    free(path);
}

static const char SMALL[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]},"
    "\"added_tokens\":[{\"id\":3,\"content\":\"<bos>\",\"special\":true},{\"id\":4,\"content\":\"</"
    "s>\",\"special\":true},"
    "{\"id\":5,\"content\":\"<pad>\",\"special\":true}]}";

/* eos_token may be a string or an object. Without the file, tokens have their usual names. */
TEST(special_tokens_come_from_the_config_beside_it) {
    char dir[] = NEW_FOLDER;
    TokenizerConfig c = hugging_face_in(dir);
    write_text(dir, "tokenizer.json", SMALL);
    Tokenizer *t;
    assert_ok(tokenizer_open(&c, &t));
    assert_int_equal(tokenizer_eod(t), 4);
    assert_int_equal(tokenizer_pad(t), 5);
    assert_int_equal(tokenizer_bos(t), 3);
    assert_int_equal(tokenizer_token_id(t, "ab"), 2);
    assert_int_equal(tokenizer_token_id(t, "<pad>"), 5);
    assert_int_equal(tokenizer_token_id(t, "none"), -1);
    assert_true(tokenizer_is_special(t, 3));
    assert_false(tokenizer_is_special(t, 2));
    assert_int_equal(tokenizer_vocab_size(t), 6);
    tokenizer_free(t);
    write_text(dir, "tokenizer_config.json", "{}");
    assert_ok(tokenizer_open(&c, &t));
    assert_int_equal(tokenizer_eod(t), 4);
    assert_int_equal(tokenizer_pad(t), -1);
    assert_int_equal(tokenizer_bos(t), -1);
    tokenizer_free(t);
    write_text(dir, "tokenizer_config.json",
               "{\"eos_token\":\"ab\",\"pad_token\":{\"content\":\"<pad>\"},\"bos_token\":\"<bos>\"}");
    assert_ok(tokenizer_open(&c, &t));
    assert_int_equal(tokenizer_eod(t), 2);
    assert_int_equal(tokenizer_pad(t), 5);
    assert_int_equal(tokenizer_bos(t), 3);
    tokenizer_free(t);
    c.eod_id = 1;
    assert_ok(tokenizer_open(&c, &t));
    assert_int_equal(tokenizer_eod(t), 1);
    tokenizer_free(t);
    write_text(dir, "tokenizer_config.json", "{");
    assert_int_equal(tokenizer_open(&c, &t).code, ERR_USER);
    assert_ok(file_remove_tree(dir));
}

/* Each case has one error, which the message must name. */
static const struct {
    const char *json, *says;
} MALFORMED[] = {
    {"", "JSON"},
    {"[1]", "object"},
    {"{\"a\":1,\"a\":2}", "duplicate"},
    {"{}", "\"model\""},
    {"{\"model\":3}", "model"},
    {"{\"model\":{\"type\":\"Other\",\"vocab\":[]}}", "Other"},
    {"{\"model\":{\"type\":3}}", "model.type"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "unk_id"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}", "unk_id 1"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]],\"unk_id\":0}}", "entry 0"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"a\",0]],\"unk_id\":0}}", "twice"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}", "[UNK]"},
    {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}}", "<unk>"},
    {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":[]}}", "object"},
    {"{\"model\":{\"vocab\":{\"a\":0}}}", "merges"},
    {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "empty"},
    {"{\"model\":{\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", "integer"},
    {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "-1"},
    {"{\"model\":{\"vocab\":{\"a\":4294967296},\"merges\":[]}}", "4294967296"},
    {"{\"model\":{\"vocab\":{\"a\":16777216},\"merges\":[]}}", "16777216"},
    {"{\"model\":{\"vocab\":{\"a\":99999999999999999999},\"merges\":[]}}", "integer"},
    {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "another token"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merge 0"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", "merge 0"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]}}", "merge 0"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "merge 0"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "vocabulary"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", "unk_token"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", "end_of_word_suffix"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":1}}", "byte_fallback"},
#define A "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},"
    {A "\"normalizer\":{\"type\":\"Other\"}}", "Other"},
    {A "\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":1}}", "lowercase"},
    {A "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"?\"}}", "base64"},
    {A "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}}", "damaged"},
    {A "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAAAAAAA=\"}}", "damaged"},
    {A "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAD/\"}}", "UTF-8"},
    {A "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{},\"content\":\"x\"}}", "Regex"},
    {A "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[7]}}", "type"},
    {A "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", "UnicodeScripts"},
    {A "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Removed\"}}",
     "compiled"},
    {A "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Removed\"}}",
     "intersection"},
    {A "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[^b]]\"},\"behavior\":\"Removed\"}}",
     "nested class of this kind"},
    {A "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"},\"behavior\":\"Removed\"}}",
     "escape"},
    {A "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:SS)\"},\"behavior\":\"Removed\"}}",
     "case ignored"},
    {A "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(?i)b\"},\"behavior\":\"Removed\"}}",
     "option"},
    {A "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}}",
     "Sideways"},
    {A "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
       "\"ByteLevel\"}]}}",
     "once"},
    {A "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
       "\"add_prefix_space\":false,\"use_regex\":false},{\"type\":\"ByteLevel\"}]}}",
     "once"},
    {A "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"__\"}}", "one character"},
    {A "\"decoder\":{\"type\":\"CTC\"}}", "CTC"},
    {A "\"decoder\":{\"type\":\"Strip\",\"content\":\"\",\"start\":1,\"stop\":0}}", "one character"},
    {A "\"post_processor\":{\"type\":\"Other\"}}", "Other"},
    {A "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}", "sequence A"},
    {A "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
       "\"special_tokens\":{}}}",
     "'x'"},
    {A "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"s\",1],\"cls\":[\"c\",0]}}", "[0, 1)"},
    {A "\"added_tokens\":[{\"id\":5,\"content\":\"x\"}]}", "would assign the id 1"},
    {A "\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]}", "would assign the id 0"},
    {A "\"added_tokens\":[{\"id\":1,\"content\":\"x\"},{\"id\":2,\"content\":\"x\"}]}", "twice"},
    {A "\"added_tokens\":[{\"content\":\"x\"}]}", "id"},
    {A "\"added_tokens\":[{\"id\":1,\"content\":null}]}", "content"},
    {A "\"added_tokens\":{}}", "list"},
};

TEST(malformed_files_end_in_a_sentence) {
    char dir[] = NEW_FOLDER;
    const TokenizerConfig c = hugging_face_in(dir);
    for (size_t i = 0; i < sizeof MALFORMED / sizeof *MALFORMED; i++) {
        write_text(dir, "tokenizer.json", MALFORMED[i].json);
        Err e = open_with(c);
        assert_int_equal(e.code, ERR_USER);
        if (!strstr(e.msg, MALFORMED[i].says)) fail_msg("'%s' does not say '%s'", e.msg, MALFORMED[i].says);
    }
    Str deep = {0};
    for (int i = 0; i < 100000; i++) str_puts(&deep, "[");
    write_text(dir, "tokenizer.json", deep.s);
    assert_int_equal(open_with(c).code, ERR_USER);
    str_free(&deep);
    assert_ok(file_remove_tree(dir));
}

TEST(normalizers_have_at_most_64_steps) {
    char dir[] = NEW_FOLDER;
    const TokenizerConfig c = hugging_face_in(dir);
    for (int steps = 64; steps <= 65; steps++) {
        Str text = {0};
        str_puts(&text, A "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
        for (int i = 0; i < steps; i++) str_printf(&text, "%s{\"type\":\"Lowercase\"}", i ? "," : "");
        str_puts(&text, "]}}");
        write_text(dir, "tokenizer.json", text.s);
        assert_int_equal(open_with(c).code, steps == 64 ? ERR_NONE : ERR_USER);
        str_free(&text);
    }
    assert_ok(file_remove_tree(dir));
}

TEST(ids_may_come_in_any_order) {
    char dir[] = NEW_FOLDER;
    const TokenizerConfig c = hugging_face_in(dir);
    write_text(dir, "tokenizer.json", "{\"model\":{\"vocab\":{\"c\":2,\"a\":0,\"b\":1},\"merges\":[]}}");
    Tokenizer *t;
    assert_ok(tokenizer_open(&c, &t));
    encodes(t, "abc", 3, (int32_t[]){0, 1, 2}, 3);
    tokenizer_free(t);
    assert_ok(file_remove_tree(dir));
}

/* (a|a|a)* followed by absent text takes exponential time in a backtracking matcher. */
TEST(a_regex_without_end_gives_up) {
    char dir[] = NEW_FOLDER;
    const TokenizerConfig c = hugging_face_in(dir);
    write_text(dir, "tokenizer.json",
               A "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"^(a|a|a)*\\\\1c\"},"
                 "\"behavior\":\"Removed\",\"invert\":true}}");
    Tokenizer *t;
    int32_t *ids;
    size_t n;
    assert_ok(tokenizer_open(&c, &t));
    assert_non_null(
        strstr(tokenizer_encode(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabc", 48, &ids, &n).msg,
               "fails on this text"));
    tokenizer_free(t);
    assert_ok(file_remove_tree(dir));
}

/* In the spellings on the left, serde_json reads the score of "ab" one unit in the last place below that of
 * "a", as the ids of tokenizers 0.23.3 show. A correctly rounding parser would read equal scores. Numbers of
 * 20 digits lose their last digit. */
TEST(scores_are_those_of_serde_json) {
    static const struct {
        const char *whole;
        int32_t ids[2];
        size_t n;
    } cases[] = {
        {"-13.474337369372327", {2, 3}, 2},           {"-13.474337369372326734", {1}, 1},
        {"-13474337369372327e-15", {2, 3}, 2},        {"-0.013474337369372327E+3", {2, 3}, 2},
        {"-134743373693723270000000e-22", {2, 3}, 2}, {"1e-400", {1}, 1},
    };
    char dir[] = NEW_FOLDER;
    const TokenizerConfig c = hugging_face_in(dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *json =
            mem_printf("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"1.5 \\\" 2.5\",-30.0],"
                       "[\"ab\",%s],[\"a\",-13.474337369372326734],[\"b\",0.0]]}}",
                       cases[i].whole);
        write_text(dir, "tokenizer.json", json);
        free(json);
        Tokenizer *t;
        assert_ok(tokenizer_open(&c, &t));
        encodes(t, "ab", 2, cases[i].ids, cases[i].n);
        tokenizer_free(t);
    }
    write_text(dir, "tokenizer.json",
               "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",1e999]]}}");
    assert_int_equal(open_with(c).code, ERR_USER);
    assert_ok(file_remove_tree(dir));
}

/* An unknown character costs 10 more than the worst token: if a has a score of 9, a and an unknown b have -21. */
TEST(unknown_characters_are_worse_than_tokens) {
    char dir[] = NEW_FOLDER;
    const TokenizerConfig c = hugging_face_in(dir);
    for (int32_t score = 9; score <= 11; score += 2) {
        char *json = mem_printf(
            "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",-20.0],[\"ab\",-20.0],"
            "[\"a\",%d.0]]}}",
            score);
        write_text(dir, "tokenizer.json", json);
        free(json);
        Tokenizer *t;
        assert_ok(tokenizer_open(&c, &t));
        encodes(t, "ab", 2, score < 10 ? (int32_t[]){1} : (int32_t[]){2, 0}, score < 10 ? 1 : 2);
        tokenizer_free(t);
    }
    assert_ok(file_remove_tree(dir));
}
