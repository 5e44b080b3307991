/* Tests that a text has the same characters and ends at the same stop string, wherever tokens split it: a token is a
 * byte. */
#include "unit/err.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "server/text.h"

/* A letter of each length, a family of emoji with joiners, a letter with a combining accent, repetitions. */
static const char TEXT[] =
    "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 e\xCC\x81 abababc aab.";
static const size_t N = sizeof TEXT - 1;

static Tokenizer *tokenizer;

static int open_tokenizer(void **state) {
    TokenizerConfig config = TOKENIZER_CONFIG_DEFAULT;
    (void)state;
    config.type = "ByteLevelTokenizer";
    return tokenizer_open(&config, &tokenizer).code;
}

static int close_tokenizer(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

/* The bytes before the stop string that the text completes first, or all of them. */
static size_t expected(const StopList *stops) {
    size_t first = N;
    for (size_t n = 1; n <= N && first == N; n++)
        for (int64_t i = 0; i < stops->n; i++) {
            const size_t k = strlen(stops->at[i]);
            if (k <= n && !memcmp(TEXT + n - k, stops->at[i], k) && n - k < first) first = n - k;
        }
    return first;
}

static void check(StopList stops) {
    Str all = {0};
    TextStream text;
    const size_t want = expected(&stops);
    text_begin(&text, tokenizer, &stops, false, NULL, 0);
    for (size_t i = 0; i <= N; i++) {
        Str part = {0};
        if (i < N)
            text_push(&text, (unsigned char)TEXT[i], &part);
        else
            text_end(&text, &part);
        assert_true(utf8_valid(part.s ? part.s : "", part.len));
        if (part.len) str_add(&all, part.s, part.len);
        if (all.len > want) fail_msg("stop string %s: the text has %s", stops.at[0], all.s);
        str_free(&part);
    }
    if (all.len != want || (want && memcmp(all.s, TEXT, want)) || !text.stopped != (want == N))
        fail_msg("stop strings %s, %s: the text is %s", stops.at[0], stops.at[stops.n - 1], all.s);
    str_free(&all);
    text_free(&text);
}

/* Tries each part of the text as a stop string, alone and with a longer string that does not occur. */
TEST(a_text_ends_before_its_first_stop_string) {
    int checked = 0;
    for (size_t from = 0; from < N; from++)
        for (size_t n = 1; from + n <= N && utf8_begins(TEXT[from]); n++) {
            char stop[sizeof TEXT + 1] = "", longer[sizeof TEXT + 1] = "";
            if (from + n < N && !utf8_begins(TEXT[from + n])) continue;
            memcpy(stop, TEXT + from, n);
            snprintf(longer, sizeof longer, "%s!", stop);
            check((StopList){.at = (char *[]){stop}, .n = 1});
            check((StopList){.at = (char *[]){longer}, .n = 1});
            check((StopList){.at = (char *[]){longer, stop, "abc"}, .n = 3});
            checked++;
        }
    assert_true(checked > 200);
}

/* A byte that is not UTF-8 becomes U+FFFD, once and at its place. */
TEST(bytes_that_are_no_characters_are_replaced) {
    static const struct {
        const char *bytes, *text;
    } CASES[] = {{"a\xC3", "a\xEF\xBF\xBD"},
                 {"\x80z", "\xEF\xBF\xBDz"},
                 {"\xF0\x9F\x91", "\xEF\xBF\xBD"},
                 {"\xF0\x9F\xC3\xA9", "\xEF\xBF\xBD\xC3\xA9"},
                 {"\xE4\xB8x\xE4\xB8\xAD", "\xEF\xBF\xBDx\xE4\xB8\xAD"}};
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        Str all = {0};
        TextStream text;
        text_begin(&text, tokenizer, &(StopList){0}, false, NULL, 0);
        for (const char *s = CASES[k].bytes; *s; s++) {
            text_push(&text, (unsigned char)*s, &all);
            assert_true(utf8_valid(all.s ? all.s : "", all.len));
        }
        text_end(&text, &all);
        assert_string_equal(all.s, CASES[k].text);
        assert_int_equal(text.characters, utf8_count(all.s, all.len));
        str_free(&all);
        text_free(&text);
    }
}

/* Bytes of a SentencePiece vocabulary. A token's piece has no text of the tokens before it, and its offset is the index
 * of the character that it begins or continues. */
TEST(bytes_of_a_vocabulary_have_pieces_and_offsets) {
    enum { A = 274, E2 = 234, B82 = 138, AC = 180, UPPER = 73, LINE = 18 };
    static const struct {
        int32_t tokens[6];
        const char *text, *pieces;
        int offsets[6];
    } CASES[] = {{{A, E2, B82, AC, A},
                  "a\xE2\x82\xAC"
                  "a",
                  "a|\xE2|\x82|\xAC|a|",
                  {0, 1, 1, 1, 2}},
                 {{A, E2, A, A},
                  "a\xEF\xBF\xBD"
                  "aa",
                  "a|\xE2|a|a|",
                  {0, 1, 2, 3}},
                 {{A, E2, B82, A, A},
                  "a\xEF\xBF\xBD\xEF\xBF\xBD"
                  "aa",
                  "a|\xE2|\x82|a|a|",
                  {0, 1, 1, 3, 4}},
                 {{A, UPPER, E2, A},
                  "aA\xEF\xBF\xBD"
                  "a",
                  "a|A|\xE2|a|",
                  {0, 1, 2, 3}},
                 {{A, LINE, E2, B82}, "a\n\xEF\xBF\xBD\xEF\xBF\xBD", "a|\n|\xE2|\x82|", {0, 1, 2, 2}}};
    TokenizerConfig config = TOKENIZER_CONFIG_DEFAULT;
    Tokenizer *bytes;
    config.type = "HuggingFaceTokenizer";
    config.model = "tests/data/tokenizer/unigram.json";
    assert_ok(tokenizer_open(&config, &bytes));
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++) {
        Str all = {0}, pieces = {0};
        TextStream text;
        text_begin(&text, bytes, &(StopList){0}, false, NULL, 0);
        for (int i = 0; i < 6 && CASES[k].tokens[i]; i++) {
            text_piece(&text, CASES[k].tokens[i], &pieces);
            str_puts(&pieces, "|");
            assert_int_equal(text_offset(&text, CASES[k].tokens[i]), CASES[k].offsets[i]);
            text_push(&text, CASES[k].tokens[i], &all);
        }
        text_end(&text, &all);
        assert_string_equal(all.s, CASES[k].text);
        assert_string_equal(pieces.s, CASES[k].pieces);
        str_free(&all), str_free(&pieces), text_free(&text);
    }
    tokenizer_free(bytes);
}

int main(void) { return run_all_tests(open_tokenizer, close_tokenizer); }
