/* Tests masks of tokens with a language that a few lines of C recognize: the letter a, and lists of such texts. An
 * example is [[a,[]],a]. The token "!" may follow a list, and there are at most GRAMMAR_DEEPEST levels. */
#include "unit/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "infer/grammar.h"

/* Node 1 is a value, 2 a list, 6 what follows its items, and 10 the end of the text. Node 4 has the same alternative
 * twice. */
static const GrammarNode NODES[] = {
    {GRAMMAR_CALL, 0, 0, 0, 1, 10},    {GRAMMAR_EITHER, 0, 0, 0, 2, 8},    {GRAMMAR_BYTE, '[', '[', 0, 3, 0},
    {GRAMMAR_EITHER, 0, 0, 0, 7, 4},   {GRAMMAR_EITHER, 0, 0, 0, 5, 5},    {GRAMMAR_CALL, 0, 0, 0, 1, 6},
    {GRAMMAR_EITHER, 0, 0, 0, 7, 9},   {GRAMMAR_BYTE, ']', ']', 0, 11, 0}, {GRAMMAR_BYTE, 'a', 'a', 0, 10, 0},
    {GRAMMAR_BYTE, ',', ',', 0, 5, 0}, {GRAMMAR_RETURN, 0, 0, 0, 0, 0},    {GRAMMAR_EITHER, 0, 0, 0, 10, 12},
    {GRAMMAR_TOKEN, 0, 0, 0, 10, 0},
};

/* Token 0 has no text, and is written as "!". Tokens 1 and 2 have the same text. */
static const char *const TOKENS[] = {"",    "]",    "]",    "[",     "a",  ",",  "]]",
                                     "],[", "a]",   ",a",   "[a,a",  "[]", "[[", "]],",
                                     "aa",  "[a],", "]]]]", "[[[[a", "x",  ",,", "a],[a]"};
enum { SIZE = sizeof TOKENS / sizeof *TOKENS };

typedef enum Verdict { NO, BEGINNING, WHOLE } Verdict;

/* expects: whether a value comes next */
static Verdict recognize(const char *s) {
    int depth = 0;
    bool expects = true, first = false,
         list = false; /* first: the list may end here; list: the last value is a list */
    for (; *s; s++) {
        if (expects && *s == 'a' && depth < GRAMMAR_DEEPEST)
            expects = first = list = false;
        else if (expects && *s == '[' && depth < GRAMMAR_DEEPEST)
            depth++, first = true;
        else if (*s == ']' && depth && (!expects || first))
            depth--, expects = first = false, list = true;
        else if (*s == ',' && depth && !expects)
            expects = true, list = false;
        else if (*s == '!' && list && !expects)
            list = false;
        else
            return NO;
        if (*s == ',') first = false;
    }
    return expects || depth ? BEGINNING : WHOLE;
}

static void add(char *text, int32_t token) { strcat(text, *TOKENS[token] ? TOKENS[token] : "!"); }

static Vocabulary *vocabulary(void) {
    TokenText texts[SIZE];
    for (int i = 0; i < SIZE; i++) texts[i] = (TokenText){TOKENS[i], (int32_t)strlen(TOKENS[i])};
    return vocabulary_new(texts, SIZE);
}

/* Some steps look ahead as drafts do, and others return to an earlier text. */
TEST(a_token_is_allowed_if_it_continues_a_text) {
    enum { ROUNDS = 400, LENGTH = 60 };
    Vocabulary *v = vocabulary();
    int64_t whole = 0, refused = 0, deep = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        GrammarReader *reader = grammar_new(NODES, sizeof NODES / sizeof *NODES, v);
        int32_t tokens[LENGTH];
        char text[8 * LENGTH] = "";
        size_t begins[LENGTH + 1] = {0}; /* bytes of the first tokens */
        for (int64_t n = 0, settled = 0, rolls = 0; n < LENGTH && rolls < 4 * LENGTH; rolls++) {
            bool complete;
            const bool *next = grammar_next(reader, tokens, n, settled, &complete);
            assert_int_equal(complete, recognize(text) == WHOLE);
            int32_t allowed[SIZE], count = 0;
            for (int32_t id = 0; id < SIZE; id++) {
                char more[8 * LENGTH + 8];
                strcpy(more, text);
                add(more, id);
                if (next[id] != (recognize(more) != NO))
                    fail_msg("token '%s' after %s: %d", TOKENS[id], text, next[id]);
                if (next[id]) allowed[count++] = id;
                refused += !next[id];
            }
            whole += complete, deep += strstr(text, "[[[[[") != NULL;
            const uint32_t draw = philox_u32(7, round, (uint64_t)rolls);
            if (draw % 8 == 0 && n > settled) { /* drafts are not kept */
                n = settled;
                text[begins[n]] = '\0';
                continue;
            }
            if (draw % 3) settled = n;
            if (!count) break;
            tokens[n] = allowed[draw / 24 % (uint32_t)count];
            add(text, tokens[n]);
            begins[++n] = strlen(text);
        }
        grammar_free(reader);
    }
    assert_true(whole > 200 && refused > 10000 && deep > 100);
    vocabulary_free(v);
}

TEST(a_text_has_a_deepest_level) {
    enum { LENGTH = GRAMMAR_DEEPEST + 4 };
    Vocabulary *v = vocabulary();
    GrammarReader *reader = grammar_new(NODES, sizeof NODES / sizeof *NODES, v);
    int32_t tokens[LENGTH];
    for (int64_t n = 0; n < LENGTH; n++) {
        bool complete;
        const bool *next = grammar_next(reader, tokens, n, n, &complete);
        if (n >= GRAMMAR_DEEPEST) assert_false(next[3] || next[4]);
        tokens[n] = n < GRAMMAR_DEEPEST ? 3 : 1; /* [ or ] */
        assert_true(next[tokens[n]]);
    }
    grammar_free(reader);
    vocabulary_free(v);
}

/* Returns a reader for texts that begin with `first`, and then have one of `ways` equal alternatives, each the list []. */
static GrammarReader *reader_of_ways(GrammarNode first, int32_t ways, const Vocabulary *v) {
    GrammarNode *nodes = calloc((size_t)(2 * ways + 4), sizeof *nodes), *way = nodes + ways + 1;
    nodes[0] = first;
    for (int32_t i = 0; i < ways; i++) { /* way i, or the next way */
        nodes[1 + i] =
            (GrammarNode){GRAMMAR_EITHER, 0, 0, 0, ways + 1 + i, i + 1 < ways ? i + 2 : ways + 1 + i};
        way[i] = (GrammarNode){GRAMMAR_BYTE, '[', '[', 0, 2 * ways + 1 + i % 2, 0};
    }
    way[ways] = way[ways + 1] = (GrammarNode){GRAMMAR_BYTE, ']', ']', 0, 2 * ways + 3, 0};
    way[ways + 2] = (GrammarNode){.kind = GRAMMAR_RETURN};
    GrammarReader *reader = grammar_new(nodes, 2 * ways + 4, v);
    free(nodes);
    return reader;
}

/* Many equal places in a text count as one. A text must not have more places than the limit, and a token must not lead
 * to more. Drafts do not change the reader. */
TEST(alternatives_have_a_limit) {
    static const struct {
        GrammarNode first;
        int32_t text[3], n;
        bool begins; /* whether a text without tokens has few places, before and after its first token */
    } CASES[] = {{{GRAMMAR_EITHER, 0, 0, 0, 1, 1}, {3, 1}, 2, false},
                 {{GRAMMAR_BYTE, 'a', 'a', 0, 1, 0}, {4, 3, 1}, 3, false},
                 {{GRAMMAR_TOKEN, 0, 0, 0, 1, 0}, {0, 3, 1}, 3, true}};
    Vocabulary *v = vocabulary();
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        GrammarReader *few = reader_of_ways(CASES[i].first, GRAMMAR_WIDEST, v),
                      *many = reader_of_ways(CASES[i].first, GRAMMAR_WIDEST + 1, v);
        for (int64_t n = 0; n <= CASES[i].n; n++) {
            bool complete;
            const bool *next = grammar_next(few, CASES[i].text, n, 0, &complete);
            assert_int_equal(complete, n == CASES[i].n);
            for (int32_t id = 0; id < SIZE; id++)
                assert_int_equal(next[id], n < CASES[i].n &&
                                               (id == CASES[i].text[n] || (n == CASES[i].n - 1 && id == 2) ||
                                                (n == CASES[i].n - 2 && !strcmp(TOKENS[id], "[]"))));
            assert_int_equal(grammar_next(many, CASES[i].text, n, 0, &complete) != NULL,
                             !n && CASES[i].begins);
            assert_false(complete);
            assert_int_equal(grammar_next(many, CASES[i].text, 0, 0, &complete) != NULL, CASES[i].begins);
        }
        assert_null(grammar_next(many, CASES[i].text, CASES[i].n, CASES[i].n, &(bool){true}));
        grammar_free(few), grammar_free(many);
    }
    vocabulary_free(v);
}

/* After [, the call returns to ]; after ], to a comma. The reader still has the mask of the other call. */
TEST(a_mask_depends_on_the_calls) {
    static const GrammarNode CALLS[] = {{GRAMMAR_EITHER, 0, 0, 0, 1, 2},   {GRAMMAR_BYTE, '[', '[', 0, 3, 0},
                                        {GRAMMAR_BYTE, ']', ']', 0, 4, 0}, {GRAMMAR_CALL, 0, 0, 0, 5, 6},
                                        {GRAMMAR_CALL, 0, 0, 0, 5, 7},     {GRAMMAR_BYTE, 'a', 'a', 0, 8, 0},
                                        {GRAMMAR_BYTE, ']', ']', 0, 8, 0}, {GRAMMAR_BYTE, ',', ',', 0, 8, 0},
                                        {GRAMMAR_RETURN, 0, 0, 0, 0, 0}};
    Vocabulary *v = vocabulary();
    GrammarReader *reader = grammar_new(CALLS, sizeof CALLS / sizeof *CALLS, v);
    for (int32_t round = 0; round < 4; round++) {
        bool complete;
        const int32_t token = round % 2 ? 1 : 3;
        assert_int_equal(grammar_next(reader, &token, 1, 0, &complete)[8], token == 3); /* a] */
    }
    grammar_free(reader);
    vocabulary_free(v);
}
