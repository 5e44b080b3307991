/* Tests that function calls are found in the formats of chat templates, wherever the text is split. */
#include "unit/err.h"

#include <stdio.h>
#include <string.h>

#include "chat/tools.h"

static const struct {
    const char *template, *text, *content, *calls;
} CASES[] = {
    {"<tool_call>",
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"\xC3\xA9\", \"b\": [0.1, {}]}}\n</tool_call>",
     "", "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\\\u00e9\\\", \\\"b\\\": [0.1, {}]}\"}]"},
    {"<tool_call>",
     "\nLet me see.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"arguments\": "
     "{\"x\": "
     "\"</tool_call>\"}, \"name\": \"g\"}</tool_call>\n",
     "\nLet me see.\n",
     "[{\"name\": \"f\", \"arguments\": \"{}\"}, {\"name\": \"g\", \"arguments\": "
     "\"{\\\"x\\\": \\\"</tool_call>\\\"}\"}]"},
    {"<tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call> Well.", " Well.",
     "[{\"name\": \"f\", \"arguments\": \"{}\"}]"},
    {"<tool_call>", "<tool_call>{\"name\": \"f\"}", "", "[{\"name\": \"f\", \"arguments\": \"{}\"}]"},
    {"<tool_call>", "a <tool_call>{\"name\": \"f\", \"argu", "a <tool_call>{\"name\": \"f\", \"argu", NULL},
    {"<tool_call>", "<tool_call>{\"name\": 3}</tool_call> b", "<tool_call>{\"name\": 3}</tool_call> b", NULL},
    {"<tool_call>", "<tool_call></tool_call>", "<tool_call></tool_call>", NULL},
    {"<tool_call>", "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", NULL},
    {"<tool_call>", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", NULL},
    {"<tool_call>", "x < y, <tool_cal <<tool_", "x < y, <tool_cal <<tool_", NULL},
    {"<tool_call>", "{\"name\": \"f\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}}", NULL},
    {"<tool_call>", " \n ", " \n ", NULL},
    {"<tool_call>", "", "", NULL},
    {"[TOOL_CALLS]",
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]", "",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]"},
    {"[TOOL_CALLS]", "Yes.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}", "Yes.",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]"},
    {"[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{\"a\": 1} x", "[TOOL_CALLS]f[ARGS]{\"a\": 1} x", NULL},
    {"<|tool_call|>", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", "",
     "[{\"name\": \"f\", \"arguments\": \"{}\"}]"},
    {"<|tool_call|>", "<|tool_call|>{\"name\": \"f\", \"arguments\": {}}<|/tool_call|>", "",
     "[{\"name\": \"f\", \"arguments\": \"{}\"}]"},
    {"ipython", "{\"name\": \"f\", \"parameters\": {\"a\": true}}; {\"name\": \"g\", \"parameters\": {}}", "",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": true}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]"},
    {"ipython", " <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "",
     "[{\"name\": \"f\", \"arguments\": \"{}\"}]"},
    {"ipython", "<|python_tag|>print(1)", "<|python_tag|>print(1)", NULL},
    {"ipython", " {not JSON}", " {not JSON}", NULL},
    {"ipython", "a {\"name\": \"f\", \"parameters\": {}}", "a {\"name\": \"f\", \"parameters\": {}}", NULL},
    {"<tool_call><parameter=",
     "Well.\n<tool_call>\n<function=f>\n<parameter=text>\n  "
     "a\n<b>\n</parameter>\n<parameter=n>\n-7\n</parameter>\n"
     "<parameter=flag>True</parameter>\n<parameter=list>\n[1, {\"a\": "
     "null}]\n</parameter>\n</function>\n</tool_call>"
     "\n<tool_call>\n<function=g>\n</function>\n</tool_call>\n",
     "Well.\n",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"text\\\": \\\"  a\\\\n<b>\\\", \\\"n\\\": -7, \\\"flag\\\": "
     "true, "
     "\\\"list\\\": [1, {\\\"a\\\": null}]}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]"},
    {"<parameter=",
     "<tool_call><function=f><parameter=text>1</parameter><parameter=either>None</"
     "parameter><parameter=named>2"
     "</parameter><parameter=n>x</parameter><parameter=other>[1]</parameter></function></tool_call>",
     "",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"text\\\": \\\"1\\\", \\\"either\\\": \\\"None\\\", "
     "\\\"named\\\": "
     "\\\"2\\\", \\\"n\\\": \\\"x\\\", \\\"other\\\": [1]}\"}]"},
    {"<parameter=",
     "<tool_call>\n<function=f>\n<parameter=text>\n</tool_call>\n</parameter>\n<parameter=either>\nnull\n</"
     "parameter>"
     "\n</function>",
     "",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"text\\\": \\\"</tool_call>\\\", \\\"either\\\": null}\"}]"},
    {"<parameter=", "<tool_call>\n<function=f>\n<parameter=text>\nab",
     "<tool_call>\n<function=f>\n<parameter=text>\nab", NULL},
    {"<parameter=", "<tool_call>{\"name\": \"f\"}</tool_call> b",
     "<tool_call>{\"name\": \"f\"}</tool_call> b", NULL},
    {"<parameter=", "<tool_call><function=></function></tool_call>",
     "<tool_call><function=></function></tool_call>", NULL},
    {"<seed:tool_call><parameter=",
     "<seed:tool_call>\n<function=f>\n<parameter=n>1.5</parameter>\n</function>\n</seed:tool_call>", "",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1.5}\"}]"},
    {"<minimax:tool_call>",
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"text\">a\nb</parameter>\n<parameter "
     "name=\"n\">3</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
     "",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"text\\\": \\\"a\\\\nb\\\", \\\"n\\\": 3}\"}, {\"name\": "
     "\"g\", "
     "\"arguments\": \"{}\"}]"},
    {"<tool_call><arg_key>",
     "\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>\xC3\xA9 "
     "\"b\"</arg_value>\n<arg_key>flag</arg_key>\n"
     "<arg_value>false</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
     "",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"text\\\": \\\"\\\\u00e9 \\\\\\\"b\\\\\\\"\\\", \\\"flag\\\": "
     "false}\"}, "
     "{\"name\": \"g\", \"arguments\": \"{}\"}]"},
    {"<arg_key>",
     "a<tool_call>f<arg_key>n</arg_key><arg_value>3</arg_value></tool_call><tool_call>g</tool_call>", "a",
     "[{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 3}\"}, {\"name\": \"g\", \"arguments\": \"{}\"}]"},
    {"<arg_key>", "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n",
     "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n", NULL},
    {"<arg_key>", "<tool_call>f<arg_key>n</arg_key> b</tool_call>",
     "<tool_call>f<arg_key>n</arg_key> b</tool_call>", NULL},
    {"nothing", "<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>", NULL},
};

/* The parameters of the function f; g has none. */
static const char PARAMETERS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"g\"}}, {\"type\": \"function\", \"function\": "
    "{\"name\": \"f\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"text\": {\"type\": \"string\"}, \"n\": "
    "{\"type\": \"number\"}, "
    "\"flag\": {\"anyOf\": [{\"type\": \"boolean\"}, {\"type\": \"null\"}]}, \"list\": {\"type\": "
    "[\"array\", \"object\"]}, "
    "\"either\": {\"type\": [\"string\", \"null\"]}, \"named\": {\"$ref\": \"#/$defs/name\"}}, "
    "\"$defs\": {\"name\": {\"enum\": [\"1\", \"2\"]}}}}}]";

/* Passes the text in parts: the first has `first` bytes, and the others have `step`. */
static void check(size_t k, size_t first, size_t step) {
    const char *text = CASES[k].text;
    const size_t n = strlen(text);
    json_t *tools = json_loads(PARAMETERS, 0, NULL);
    ToolText t = {.format = tool_format(CASES[k].template, strlen(CASES[k].template)), .tools = tools};
    assert_non_null(tools);
    Str content = {0};
    for (size_t at = 0, to = first; at < n; at = to, to += step)
        tool_text_push(&t, text + at, (to < n ? to : n) - at, false, &content);
    tool_text_push(&t, NULL, 0, true, &content);
    json_t *wanted = CASES[k].calls ? json_loads(CASES[k].calls, 0, NULL) : NULL;
    if (strcmp(content.s ? content.s : "", CASES[k].content) || !wanted != !t.calls ||
        (wanted && !json_equal(wanted, t.calls)))
        fail_msg("%s in parts of %zu, %zu has the content %s and %zu calls", text, first, step,
                 content.s ? content.s : "", json_array_size(t.calls));
    json_decref(wanted), json_decref(tools);
    str_free(&content);
    tool_text_free(&t);
}

TEST(calls_do_not_depend_on_the_parts_of_a_text) {
    for (size_t k = 0; k < sizeof CASES / sizeof *CASES; k++)
        for (size_t first = 1; first <= strlen(CASES[k].text) + 1; first++) {
            check(k, first, strlen(CASES[k].text) + 1);
            check(k, first, 1);
        }
}
