/* Chat templates. The input is a template, a line with only \x1e, and a request (chat_request). A template must produce
 * valid UTF-8 or end with an error, whatever it and the conversation contain. */
#include "fuzz/fuzz.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/utf8.h"
#include "chat/conversation.h"

static const char BETWEEN[] = "\n\x1e\n";

static bool render(const Template *t, const json_t *root) {
    const TemplateLimits limits = {.steps = 100000, .bytes = 1 << 22, .output = 1 << 16, .depth = 1000};
    json_t *special = json_pack("{s:s,s:s}", "bos_token", "<s>", "eos_token", "</s>");
    ChatRequest request;
    Str text = {0};
    const bool ok = fuzz_ok(chat_request("'it'", root, &request)) &&
                    fuzz_ok(conversation_render(t, special, &request,
                                                &(struct tm){.tm_year = 126, .tm_mday = 4}, limits, &text));
    CHECK(!ok || utf8_valid(text.s ? text.s : "", text.len), "the text is not UTF-8");
    str_free(&text);
    json_decref(special);
    return ok;
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    const char *input = (const char *)bytes, *at = memmem(input, n, BETWEEN, 3);
    if (!at) return false;
    const size_t before = (size_t)(at - input);
    Template *t = NULL;
    bool ok = fuzz_ok(template_parse(input, before, &t));
    json_t *root = ok ? json_loadb(at + 3, n - before - 3, JSON_ALLOW_NUL, NULL) : NULL;
    ok = root && render(t, root);
    json_decref(root);
    template_free(t);
    return ok;
}

static void add(Corpus *c, const char *source, size_t n, const json_t *request) {
    Str seed = {0};
    char *json = json_dumps(request, 0);
    str_add(&seed, source, n);
    str_add(&seed, BETWEEN, 3);
    str_puts(&seed, json);
    if (fuzz_one((const uint8_t *)seed.s, seed.len)) corpus_add(c, seed.s, seed.len);
    free(json), str_free(&seed);
}

/* Adds each template of the tests with each conversation, and each snippet. */
void fuzz_seeds(Corpus *c) {
    glob_t found;
    json_t *cases = json_load_file("tests/data/chat/cases.json", 0, NULL), *conversation;
    const char *name;
    CHECK(cases && glob("tests/data/chat/*.jinja", 0, NULL, &found) == 0, "there are no chat templates");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        Str source = {0};
        CHECK(fuzz_ok(file_read(found.gl_pathv[i], &source)), "%s cannot be read", found.gl_pathv[i]);
        json_object_foreach(json_object_get(cases, "conversations"), name, conversation)
            add(c, source.s, source.len, conversation);
        str_free(&source);
    }
    globfree(&found);
    json_t *variables = json_object_get(cases, "variables"), *list = json_object_get(cases, "snippets"),
           *request = json_pack("{s:O,s:O}", "messages", json_object_get(variables, "messages"),
                                "chat_template_kwargs", variables);
    json_object_del(variables, "messages");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *source = json_array_get(json_array_get(list, i), 0);
        add(c, json_string_value(source), json_string_length(source), request);
    }
    CHECK(c->n > 300, "only %d templates are accepted", c->n);
    json_decref(request), json_decref(cases);
}
