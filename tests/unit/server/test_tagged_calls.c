/* Tests the grammars of calls in XML: which texts they allow, and that allowed texts are read as calls. */
#include "unit/err.h"

#include <stdlib.h>
#include <string.h>

#include "server/constraint.h"

typedef enum Verdict { NO, BEGINNING, WHOLE } Verdict;

static const char TOOLS[] =
    "[{'type': 'function', 'function': {'name': 'f', 'parameters': {'properties': {'s': {'type': 'string'}, "
    "'n': "
    "{'type': 'integer'}, 'e': {'enum': ['x y', 1]}, 'o': {'anyOf': [{'type': 'null'}, {'$ref': "
    "'#/$defs/d'}]}}, "
    "'required': ['s'], '$defs': {'d': {'const': 'z'}}}}}, {'type': 'function', 'function': {'name': 'g'}}]";

#define F      "<tool_call>\n<function=f>\n"
#define G      "<tool_call>\n<function=g>\n</function>\n</tool_call>"
#define S      F "<parameter=s>\na\n</parameter>\n"
#define END    "</function>\n</tool_call>"
#define NUMBER "<parameter=n>\n-7\n</parameter>\n"
static const struct {
    const char *sign, *text;
    Verdict verdict;
    const char *arguments; /* of the last call */
} CASES[] = {
    {"<parameter=", S END, WHOLE, "{'s': 'a'}"},
    {"<parameter=", G, WHOLE, "{}"},
    {"<parameter=", G "\n" S NUMBER "<parameter=e>x y</parameter><parameter=o>null</parameter>" END, WHOLE,
     "{'s': 'a', 'n': -7, 'e': 'x y', 'o': null}"},
    {"<parameter=", S "<parameter=e>1</parameter>\n<parameter=o>\nz</parameter>" END, WHOLE,
     "{'s': 'a', 'e': 1, 'o': 'z'}"},
    {"<parameter=", F "<parameter=s><<</parameter></</parameter>\n" END, NO, NULL},
    {"<parameter=", F "<parameter=s>\xC3\xA9<</p\t\r\n</parameter</<//parameter></parameter>" END, WHOLE,
     "{'s': '\xC3\xA9<</p\\t\\r\\n</parameter</<//parameter>'}"},
    {"<parameter=", F "<parameter=s></parameter>" END, WHOLE, "{'s': ''}"},
    {"<parameter=", F "<parameter=s>\n" END, BEGINNING, NULL},
    {"<parameter=", F END, NO, NULL},
    {"<parameter=", F NUMBER, NO, NULL},
    {"<parameter=", F "<parameter=s>\x01", NO, NULL},
    {"<parameter=", F "<parameter=s>\xC3<", NO, NULL},
    {"<parameter=", S "<parameter=n>x", NO, NULL},
    {"<parameter=", S "<parameter=e>x</parameter>", NO, NULL},
    {"<parameter=", S "<parameter=other>", NO, NULL},
    {"<parameter=", "<tool_call>\n<function=h>", NO, NULL},
    {"<arg_key>", "<tool_call>g</tool_call>", WHOLE, "{}"},
    {"<arg_key>",
     "<tool_call>g\n</tool_call><tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a\n</arg_value>\n<arg_key>n</"
     "arg_key>"
     "<arg_value>7</arg_value></tool_call>",
     WHOLE, "{'s': 'a', 'n': 7}"},
    {"<arg_key>", "<tool_call>f</tool_call>", NO, NULL},
    {"<minimax:tool_call>",
     "<minimax:tool_call>\n<invoke name=\"g\">\n</invoke>\n<invoke name=\"f\">\n<parameter "
     "name=\"s\">a</parameter>\n"
     "</invoke>\n</minimax:tool_call>",
     WHOLE, "{'s': 'a'}"},
};

static Tokenizer *tokenizer;
static Vocabulary *vocabulary;

static int open_tokenizer(void **state) {
    TokenizerConfig config = TOKENIZER_CONFIG_DEFAULT;
    (void)state;
    config.type = "ByteLevelTokenizer";
    assert_ok(tokenizer_open(&config, &tokenizer));
    vocabulary = constraint_vocabulary(tokenizer);
    return 0;
}

static int close_tokenizer(void **state) {
    (void)state;
    vocabulary_free(vocabulary);
    tokenizer_free(tokenizer);
    return 0;
}

/* Parses JSON in which strings have single quotes. */
static json_t *parsed(const char *text) {
    char copy[2000] = "";
    assert_true(strlen(text) < sizeof copy);
    for (size_t i = 0; text[i]; i++) copy[i] = text[i] == '\'' ? '"' : text[i];
    json_t *json = json_loads(copy, 0, NULL);
    assert_non_null(json);
    return json;
}

/* A token is a byte. */
static Verdict judge(const Ask *a, const char *text) {
    GrammarReader *reader = grammar_new(a->grammar, a->n_grammar, vocabulary);
    int32_t tokens[1000];
    const int64_t n = (int64_t)strlen(text);
    bool complete = false;
    int64_t at = 0;
    while (at < n) {
        tokens[at] = (unsigned char)text[at];
        const bool *mask = grammar_next(reader, tokens, at, 0, &complete);
        assert_non_null(mask);
        if (!mask[tokens[at]]) break;
        at++;
    }
    if (at == n) assert_non_null(grammar_next(reader, tokens, n, 0, &complete));
    grammar_free(reader);
    return at < n ? NO : complete ? WHOLE : BEGINNING;
}

static void assert_read(const Ask *a, const char *text, const char *arguments) {
    ToolText t = {.format = a->tools, .tools = a->functions};
    Str content = {0};
    tool_text_push(&t, text, strlen(text), true, &content);
    assert_true(t.calls && !content.len);
    const json_t *last = json_array_get(t.calls, json_array_size(t.calls) - 1);
    json_t *got = json_loads(json_string_value(json_object_get(last, "arguments")), 0, NULL),
           *wanted = parsed(arguments);
    assert_true(json_equal(got, wanted));
    json_decref(got), json_decref(wanted);
    str_free(&content);
    tool_text_free(&t);
}

TEST(grammars_of_xml_allow_calls) {
    const Served served = {.tokenizer = tokenizer};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Ask a = {.tools = tool_format(CASES[i].sign, strlen(CASES[i].sign)), .functions = parsed(TOOLS)};
        const Refusal refusal = constraint_call(&served, NULL, true, &a);
        if (refusal.status) fail_msg("%s", refusal.message);
        const Verdict verdict = judge(&a, CASES[i].text);
        if (verdict != CASES[i].verdict) fail_msg("%s: %d", CASES[i].text, (int)verdict);
        if (verdict == WHOLE) assert_read(&a, CASES[i].text, CASES[i].arguments);
        ask_free(&a);
    }
}

TEST(texts_that_tags_cannot_hold_are_refused) {
    static const char *const WRONG[] = {
        "[{'function': {'name': 'a>'}}]",
        "[{'function': {'name': 'a', 'parameters': {'properties': {'b<': {}}}}}]",
        "[{'function': {'name': 'a', 'parameters': {'properties': {'b': {'const': 'x</parameter>'}}}}}]",
        "[{'function': {'name': 'a', 'parameters': {'properties': {'b': {'enum': ['x', 'x\\n']}}}}}]",
        ("[{'function': {'name': 'a', 'parameters': {'properties': {'b': {'type': 'string', 'format': "
         "'date'}}}}}]"),
        "[{'function': {'name': 'a', 'parameters': {'properties': {'b': {'$ref': '#/$defs/c'}}}}}]",
        "[{'function': {'name': 'a', 'parameters': {'type': 'object', 'enum': [{}]}}}]"};
    const Served served = {.tokenizer = tokenizer};
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        Ask a = {.tools = tool_format("<parameter=", 11), .functions = parsed(WRONG[i])};
        const Refusal refusal = constraint_call(&served, NULL, true, &a);
        if (refusal.status != 400 || strcmp(refusal.param, "tools"))
            fail_msg("%s: %s", WRONG[i], refusal.message);
        ask_free(&a);
    }
}

int main(void) { return run_all_tests(open_tokenizer, close_tokenizer); }
