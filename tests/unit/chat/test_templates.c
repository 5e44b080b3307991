/* Tests that templates produce the same texts as in transformers (tools/oracle/chat_templates.py), and that a hostile
 * template ends with an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/err.h"
#include "unit/json_fixture.h"
#include "unit/temp_dir.h"

#include "base/file.h"
#include "base/mem.h"
#include "chat/conversation.h"

#define DATA "tests/data/chat"

static int open_cases(void **state) { return json_fixture_load(state, DATA "/cases.json"); }

static struct tm time_of(const json_t *cases) {
    const json_t *now = json_object_get(cases, "now");
    int at[8];
    for (size_t i = 0; i < 8; i++) at[i] = (int)json_integer_value(json_array_get(now, i));
    return (struct tm){.tm_year = at[0] - 1900,
                       .tm_mon = at[1] - 1,
                       .tm_mday = at[2],
                       .tm_hour = at[3],
                       .tm_min = at[4],
                       .tm_sec = at[5],
                       .tm_wday = (at[6] + 1) % 7,
                       .tm_yday = at[7] - 1};
}

static int failed;

/* `wanted` is the text, or null for an error. Frees `got`. */
static void same(const char *name, const char *what, const json_t *wanted, Err e, Str *got) {
    const char *text = json_string_value(wanted), *made = got->s ? got->s : "";
    const bool equal = text && got->len == json_string_length(wanted) && !memcmp(made, text, got->len);
    if (!text != (e.code != ERR_NONE) || (text && !equal)) {
        printf("%s %s makes: %s\nnot: %s\n", name, what, e.code ? e.msg : made, text ? text : "an error");
        failed++;
    }
    str_free(got);
}

static Err render(const char *source, size_t n, const json_t *variables, const struct tm *now,
                  TemplateLimits limits, Str *out) {
    Template *t = NULL;
    Err e = template_parse(source, n, &t);
    if (!e.code) e = template_render(t, variables, now, limits, out);
    template_free(t);
    return e;
}

TEST(conversations_have_the_texts_of_transformers) {
    const struct tm now = time_of(*state);
    const char *family, *name;
    json_t *conversations, *wanted;
    int count = 0;
    json_object_foreach(json_object_get(*state, "rendered"), family, conversations) {
        char *path = mem_printf(DATA "/%s.jinja", family);
        Str source = {0};
        Template *t;
        assert_ok(file_read(path, &source));
        assert_ok(template_parse(source.s, source.len, &t));
        json_object_foreach(conversations, name, wanted) {
            ChatRequest request;
            Str text = {0};
            assert_ok(chat_request("'it'", json_object_get(json_object_get(*state, "conversations"), name),
                                   &request));
            const Err e = conversation_render(t, json_object_get(*state, "special"), &request, &now,
                                              TEMPLATE_LIMITS, &text);
            same(family, name, wanted, e, &text);
            count++;
        }
        template_free(t);
        str_free(&source), free(path);
    }
    assert_true(count >= 10 * 12);
    assert_int_equal(failed, 0);
}

TEST(snippets_have_the_texts_of_transformers) {
    const struct tm now = time_of(*state);
    const json_t *list = json_object_get(*state, "snippets");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *source = json_array_get(json_array_get(list, i), 0);
        Str text = {0};
        const Err e = render(json_string_value(source), json_string_length(source),
                             json_object_get(*state, "variables"), &now, TEMPLATE_LIMITS, &text);
        same("snippet", json_string_value(source), json_array_get(json_array_get(list, i), 1), e, &text);
    }
    assert_true(json_array_size(list) > 450);
    assert_int_equal(failed, 0);
}

/* Repeats a text. The caller frees it. */
static char *repeated(const char *head, const char *text, int n, const char *tail) {
    Str made = {0};
    str_puts(&made, head);
    for (int i = 0; i < n; i++) str_puts(&made, text);
    str_puts(&made, tail);
    return made.s;
}

static void is_refused(const char *source, const char *message) {
    json_t *variables = json_pack("{s:[i,i,i]}", "l", 1, 2, 3);
    const TemplateLimits limits = {.steps = 2000000, .bytes = 1 << 24, .output = 1 << 16, .depth = 1000};
    Str text = {0};
    assert_err(render(source, strlen(source), variables, &(struct tm){0}, limits, &text), message,
               "of the chat template");
    assert_true(text.len <= 1 << 24);
    str_free(&text);
    json_decref(variables);
}

TEST(hostile_templates_are_refused) {
    static const char *const STEPS = "needs too many steps", *const MEMORY = "needs too much memory",
                             *const DEEP = "nested too deeply", *const LONG = "longer than the limit";
    static const struct {
        const char *source, *message;
    } ROWS[] = {
        {"{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", STEPS},
        {"{% for i in range(9999) %}{% if 'x' * 99999 == 'y' %}{% endif %}{% endfor %}", STEPS},
        {"{{ 'x' * 999999999999 }}", STEPS},
        {"{{ [0] * 999999999999 }}", MEMORY},
        {"{{ '' * 999999999999 }}{{ 2 ** 62 }}{{ 2 ** 63 }}", "beyond 64 bits"},
        {"{{ 'x'.ljust(999999999999) }}", STEPS},
        {"{{ 'x' | indent(999999999999) }}", STEPS},
        {"{{ {} | tojson(indent=999999999999) }}{{ l | tojson(indent=999999999999) }}", STEPS},
        {"{% for i in range(9999) %}{{ 'xxxxxxxxxxxxxxxxxxxx' }}{% endfor %}", LONG},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", DEEP},
        {"{% for x in l recursive %}{{ loop(l) }}{% endfor %}", DEEP},
        {"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", DEEP},
        {"{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a "
         "}}",
         DEEP},
        {"{% set ns = namespace(a=[], b=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% set ns.b = "
         "[ns.b] %}"
         "{% endfor %}{{ ns.a == ns.b }}",
         DEEP},
        {"{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ "
         "ns.a }}",
         STEPS},
        {"{% set ns = namespace(a=1, b=1) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
         "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
         STEPS},
        {"{% set s = 'a' * 200000 %}{% for i in range(99999) %}{% if (s ~ 'b') in (s ~ 'c') %}{% endif %}{% "
         "endfor %}",
         MEMORY},
        {"{{ l[9].x }}", "line 1 of the chat template: a list has no item with this index or key; test it"},
        {"{% for x in [1] %}{{ loop.nextitem.y }}{% endfor %}", "a loop has no attribute 'nextitem'; test"},
        {"\n\n{{ l.x.y }}", "line 3 of the chat template: a list has no attribute 'x'"},
        {"\n{{ l\n| nosuch }}", "line 3 of the chat template: the filter 'nosuch' is not supported"},
        {"\n{% foo %}", "line 2 of the chat template: the tag 'foo' is not known"},
        {"{{ q.x }}", "'q' is undefined"},
        {"{{ ('a' | safe | upper) + '<' }}", "'upper' does not accept markup"},
        {"{{ ('a' | e)[0] }}", "markup can only be printed"},
        {"{{ raise_exception('no \"b\" after a') }}", "refuses the conversation: no \"b\" after a"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) is_refused(ROWS[i].source, ROWS[i].message);
}

TEST(deep_templates_are_refused) {
    static const struct {
        const char *head, *text, *tail;
    } DEEP_ROWS[] = {
        {"{{ ", "(", ""},
        {"{{ ", "[", ""},
        {"{{ ", "{1:", ""},
        {"{{ ", "-", "1 }}"},
        {"{{ ", "not ", "1 }}"},
        {"{{ l", "[0", ""},
        {"{{ 1 ", "+ 1 ", "}}"},
        {"{{ l", "|list", "}}"},
        {"", "{% if 1 %}", ""},
        {"{{ l", ".a", "}}"},
        {"{{ 1 ", "if 1 else 1 ", "}}"},
        {"{% set ", "(", "a = 1 %}"},
        {"{% if 1 %}", "{% elif 1 %}", "{% endif %}"},
    };
    for (size_t i = 0; i < sizeof DEEP_ROWS / sizeof *DEEP_ROWS; i++) {
        char *source = repeated(DEEP_ROWS[i].head, DEEP_ROWS[i].text, 20000, DEEP_ROWS[i].tail);
        is_refused(source, " ");
        free(source);
    }
}

/* A text to which a loop appends needs memory only for its final length. */
TEST(a_growing_text_needs_little_memory) {
    static const char SOURCE[] =
        "{% set ns = namespace(t='') %}{% for i in range(20000) %}{% set ns.t = ns.t ~ "
        "'0123456789' %}{% endfor %}{{ ns.t | length }}";
    Str text = {0};
    json_t *none = json_object();
    assert_ok(render(SOURCE, sizeof SOURCE - 1, none, &(struct tm){0},
                     (TemplateLimits){.steps = 1 << 20, .bytes = 1 << 24, .output = 100, .depth = 100},
                     &text));
    assert_string_equal(text.s, "200000");
    str_free(&text);
    json_decref(none);
}

static void check_request(const char *json, const char *message) {
    json_t *root = json_loads(json, 0, NULL);
    ChatRequest request;
    assert_non_null(root);
    assert_err(chat_request("'it'", root, &request), "'it'", message);
    json_decref(root);
}

TEST(wrong_requests_are_refused) {
    check_request("[]", "must be a list of messages");
    check_request("[1]", "must be a list of messages");
    check_request("{}", "must be a list of messages");
    check_request("{\"messages\": {\"role\": \"user\"}}", "must be a list of messages");
    check_request("{\"messages\": [{}], \"temperature\": 1}", "'temperature' is unknown");
    check_request("{\"messages\": [{}], \"tools\": {}}", "\"tools\" must be a list of objects");
    check_request("{\"messages\": [{}], \"documents\": [1]}", "\"documents\" must be a list of objects");
    check_request("{\"messages\": [{}], \"chat_template\": 1}", "\"chat_template\" must be the name");
    check_request("{\"messages\": [{}], \"chat_template_kwargs\": []}", "must be an object");
    check_request("{\"messages\": [{}], \"chat_template_kwargs\": {\"tools\": []}}",
                  "must not contain \"tools\"");
    check_request("{\"messages\": [{}], \"add_generation_prompt\": 1}", "must be true or false");
    check_request("{\"messages\": [{}], \"add_generation_prompt\": true, \"continue_final_message\": true}",
                  "remove one of them");
}

int main(void) { return run_all_tests(open_cases, json_fixture_free); }
