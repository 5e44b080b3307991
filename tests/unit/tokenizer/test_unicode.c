/* Tests that every character is matched, classified and normalized as in the original library
 * (tools/oracle/unicode_tables.py). */
#include "unit/err.h"
#include "unit/json_fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/text/ages_table.h"
#include "tokenizer/text/regex.h"
#include "tokenizer/text/unicode.h"

enum { CHARACTERS = 0x110000, BLOCK = 4096 };

static bool is_surrogate(uint32_t c) { return c >= 0xD800 && c < 0xE000; }

/* Converts pairs (length of a gap, length of a run) to one flag per character. */
static uint8_t *members(const json_t *runs) {
    uint8_t *is = calloc(CHARACTERS, 1);
    size_t at = 0;
    for (size_t i = 0; i + 1 < json_array_size(runs); i += 2) {
        at += (size_t)json_integer_value(json_array_get(runs, i));
        for (json_int_t n = json_integer_value(json_array_get(runs, i + 1)); n > 0; n--) is[at++] = 1;
    }
    return is;
}

static void same(const char *what, const uint8_t *is, const uint8_t *wanted) {
    for (uint32_t c = 0; c < CHARACTERS; c++)
        if (is[c] != wanted[c]) fail_msg("%s: U+%04" PRIX32 " is %s", what, c, is[c] ? "in" : "not in");
}

TEST(regexes_match_the_same_characters) {
    const json_t *all = json_object_get(*state, "matches");
    assert_int_equal(json_object_size(all), 35);
    Str text = {0};
    uint32_t *at =
        calloc(4 * (size_t)CHARACTERS, sizeof *at); /* at[i] is the character that begins at byte i */
    for (uint32_t c = 0; c < CHARACTERS; c++)
        if (!is_surrogate(c)) at[text.len] = c, utf8_put(&text, c);
    Matcher *m = matcher_new();
    const char *pattern;
    json_t *runs;
    json_object_foreach((json_t *)all, pattern, runs) {
        Regex *r;
        Spans spans = {0};
        assert_ok(regex_compile(pattern, strlen(pattern), false, &r));
        assert_ok(regex_spans(r, m, text.s, text.len, &spans));
        uint8_t *is = calloc(CHARACTERS, 1), *wanted = members(runs);
        for (size_t i = 0; i < spans.n; i++)
            if (spans.v[i].match) is[at[spans.v[i].begin]] = 1;
        if (strstr(pattern, "Arabic")) /* Unicode 14 has no Arabic mark of 4 bytes to replace these */
            for (uint32_t c = 0x10EFC; c <= 0x10EFF; c++) is[c] = wanted[c];
        same(pattern, is, wanted);
        free(is), free(wanted), free(spans.v), regex_free(r);
    }
    matcher_free(m), free(at), str_free(&text);
}

static void check_class(const json_t *all, const char *name, bool (*is_member)(uint32_t)) {
    uint8_t *is = calloc(CHARACTERS, 1), *wanted = members(json_object_get(all, name));
    for (uint32_t c = 0; c < CHARACTERS; c++) is[c] = !is_surrogate(c) && is_member(c);
    same(name, is, wanted);
    free(is), free(wanted);
}

TEST(words_and_spaces_are_the_same) {
    check_class(*state, "word", unicode_is_word);
    check_class(*state, "space", unicode_is_space);
}

/* The text that the oracle's `around` makes for a block. */
static Str block_text(uint32_t first) {
    Str text = {0};
    for (uint32_t c = first; c < first + BLOCK; c++) {
        if (is_surrogate(c)) continue;
        utf8_put(&text, c), str_puts(&text, "\n");
        utf8_put(&text, c), str_puts(&text, "\xCC\x80\xCC\xA3\n");
        str_puts(&text, "a\xCC\x81"), utf8_put(&text, c), str_puts(&text, "\xCC\xB1\n");
        str_puts(&text, "\xE1\x84\x80"), utf8_put(&text, c), str_puts(&text, "\n");
    }
    return text;
}

static uint64_t fnv(const Str *text) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < text->len; i++) h = (h ^ (unsigned char)text->s[i]) * 0x100000001B3u;
    return h;
}

TEST(normal_forms_are_the_same) {
    static const char *const FORMS[] = {"NFD", "NFKD", "NFC", "NFKC", "Lowercase"};
    size_t k = 0;
    for (uint32_t first = 0; first < CHARACTERS; first += BLOCK) {
        if (first >= 0x34000 && first != 0xE0000) continue;
        Str text = block_text(first);
        for (int f = 0; text.len && f < 5; f++) {
            Aligned out = {0};
            const View view = {text.s, text.len, NULL};
            if (f < 4)
                unicode_normalize(view, f & 1, f & 2, &out);
            else
                unicode_lower(view, &out);
            char hash[17];
            snprintf(hash, sizeof hash, "%016" PRIx64, fnv(&out.text));
            const json_t *wanted =
                json_array_get(json_object_get(json_object_get(*state, "forms"), FORMS[f]), k);
            if (!wanted || strcmp(hash, json_string_value(wanted)))
                fail_msg("%s of U+%04" PRIX32 " to U+%04" PRIX32, FORMS[f], first, first + BLOCK - 1);
            aligned_free(&out);
        }
        k += text.len > 0;
        str_free(&text);
    }
    assert_int_equal(k, 53);
}

/* utf8proc treats U+11A7 as a final consonant. */
TEST(hangul_composes_with_final_consonants_only) {
    Aligned out = {0};
    const char text[] = "\u1111\u1162\u11a7\u1111\u1162\u11a8";
    unicode_normalize((View){text, sizeof text - 1, NULL}, false, true, &out);
    str_add(&out.text, "", 1);
    assert_string_equal(out.text.s, "\ud328\u11a7\ud329");
    aligned_free(&out);
}

static int load(void **state) { return json_fixture_load(state, "tests/data/tokenizer/unicode.json"); }

/* Tables must be sorted, because they are searched by bisection. */
static void ascend(const uint32_t *table, size_t rows, size_t width) {
    for (size_t i = 0; i < rows; i++) {
        const uint32_t *row = table + i * width;
        assert_true(row[0] <= row[1] && row[1] < CHARACTERS);
        if (i) assert_true(row[-(ptrdiff_t)width + 1] < row[0]);
    }
}

TEST(ranges_of_ages_ascend) {
    ascend(STAND_INS[0], sizeof STAND_INS / sizeof *STAND_INS, 3);
    ascend(UNORDERED[0], sizeof UNORDERED / sizeof *UNORDERED, 2);
    ascend(LOWER[0], sizeof LOWER / sizeof *LOWER, 3);
}

int main(void) { return run_all_tests(load, json_fixture_free); }
