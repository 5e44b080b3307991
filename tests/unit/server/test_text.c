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
    text_begin(&text, tokenizer, &stops, NULL, 0);
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

/* Each part of the text, and parts that do not continue as the text does. */
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

/* A byte that is not UTF-8 becomes U+FFFD, once, at the place where it is. */
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
        text_begin(&text, tokenizer, &(StopList){0}, NULL, 0);
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

int main(void) { return run_all_tests(open_tokenizer, close_tokenizer); }
