#include "chat/conversation.h"

#include <string.h>

#include "base/min_max.h"
#include "chat/strings.h"

/* ---- requests ---- */

static bool is_list_of_objects(const json_t *json) {
    for (size_t i = 0; i < json_array_size(json); i++)
        if (!json_is_object(json_array_get(json, i))) return false;
    return json_is_array(json);
}

/* The maximum nesting depth of a request's values. Printing a value needs one nested function call per level. */
enum { DEEPEST = 400 };

static int64_t nesting(const json_t *json) {
    int64_t most = 0;
    const char *key;
    json_t *one;
    size_t i;
    json_array_foreach((json_t *)json, i, one) most = larger(most, nesting(one));
    json_object_foreach((json_t *)json, key, one) most = larger(most, nesting(one));
    return most + (json_is_array(json) || json_is_object(json));
}

static Err check_nesting(const char *where, const char *key, const json_t *json) {
    if (nesting(json) <= DEEPEST) return ERR_OK;
    return err_user("%s: \"%s\" has values that are nested too deeply: use at most %d levels", where, key,
                    DEEPEST);
}

static Err read_list(const char *where, const json_t *root, const char *key, const json_t **out) {
    const json_t *list = json_object_get(root, key);
    if (!list || json_is_null(list)) return ERR_OK;
    *out = list;
    if (!is_list_of_objects(list)) return err_user("%s: \"%s\" must be a list of objects", where, key);
    return check_nesting(where, key, list);
}

static Err read_flag(const char *where, const json_t *root, const char *key, bool *out) {
    const json_t *flag = json_object_get(root, key);
    if (flag && !json_is_boolean(flag)) return err_user("%s: \"%s\" must be true or false", where, key);
    *out = json_is_true(flag);
    return ERR_OK;
}

static Err check_keys(const char *where, const json_t *root) {
    static const char *const KEYS[] = {"messages",
                                       "tools",
                                       "documents",
                                       "chat_template",
                                       "chat_template_kwargs",
                                       "add_generation_prompt",
                                       "continue_final_message"};
    enum { COUNT = sizeof KEYS / sizeof *KEYS };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        int i = 0;
        while (i < COUNT && strcmp(key, KEYS[i])) i++;
        if (i == COUNT)
            return err_user(
                "%s: the key %s is unknown; put the template's variables into \"chat_template_kwargs\"",
                where, quote(key).s);
    }
    return ERR_OK;
}

static Err check_variables(const char *where, const json_t *variables) {
    static const char *const TAKEN[] = {"messages", "tools", "documents", "add_generation_prompt"};
    if (variables && !json_is_object(variables))
        return err_user(
            "%s: \"chat_template_kwargs\" must be an object that contains the template's variables", where);
    ERR_RETURN(check_nesting(where, "chat_template_kwargs", variables));
    for (size_t i = 0; i < sizeof TAKEN / sizeof *TAKEN; i++)
        if (json_object_get(variables, TAKEN[i]))
            return err_user(
                "%s: \"chat_template_kwargs\" must not contain \"%s\"; move this key one level up", where,
                TAKEN[i]);
    return ERR_OK;
}

Err chat_request(const char *where, const json_t *root, ChatRequest *out) {
    *out = (ChatRequest){.messages = root};
    if (json_is_object(root)) {
        const json_t *template = json_object_get(root, "chat_template");
        ERR_RETURN(check_keys(where, root));
        out->messages = json_object_get(root, "messages");
        out->variables = json_object_get(root, "chat_template_kwargs");
        out->template = json_string_value(template);
        ERR_RETURN(check_variables(where, out->variables));
        if (template && !json_is_string(template))
            return err_user("%s: \"chat_template\" must be the name or the text of a template", where);
        ERR_RETURN(read_list(where, root, "tools", &out->tools));
        ERR_RETURN(read_list(where, root, "documents", &out->documents));
        ERR_RETURN(read_flag(where, root, "add_generation_prompt", &out->add_generation_prompt));
        ERR_RETURN(read_flag(where, root, "continue_final_message", &out->continue_final_message));
    }
    if (!is_list_of_objects(out->messages) || !json_array_size(out->messages))
        return err_user(
            "%s must be a list of messages, such as [{\"role\": \"user\", \"content\": \"Hello\"}], or an "
            "object with \"messages\"",
            where);
    ERR_RETURN(check_nesting(where, "messages", out->messages));
    if (out->add_generation_prompt && out->continue_final_message)
        return err_user(
            "%s: \"add_generation_prompt\" begins a new message, but \"continue_final_message\" continues "
            "the last one: remove one of them",
            where);
    return ERR_OK;
}

/* ---- messages ---- */

/* Copies a message, except for keys whose values are null. If a message contains reasoning under one of three
 * keys, the copy contains the reasoning under two of these keys, "thinking" and "reasoning_content". "thinking"
 * precedes all other keys unless the message already contains this key. */
static json_t *normal_message(const json_t *message) {
    static const char *const NAMES[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *made = json_object(), *value, *reasoning = NULL;
    const char *key;
    for (int i = 2; i >= 0; i--) {
        json_t *one = json_object_get(message, NAMES[i]);
        if (one && !json_is_null(one)) reasoning = one;
    }
    if (reasoning) json_object_set(made, "thinking", reasoning);
    json_object_foreach((json_t *)message, key, value) if (!json_is_null(value))
        json_object_set(made, key, value);
    if (reasoning) json_object_set(made, "reasoning_content", reasoning);
    return made;
}

static const char TAG[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* Appends TAG to the last text in the last message, and sets *text to the text without the tag. If there is no text,
 * leaves *text unchanged. */
static void tag_last(json_t *messages, Str *text) {
    const size_t last = json_array_size(messages) - 1;
    json_t *message = json_deep_copy(json_array_get(messages, last)),
           *content = json_object_get(message, "content"), *holder = message;
    const char *key = "content";
    json_array_set_new(messages, last, message);
    for (size_t i = json_array_size(content); i-- && holder == message;)
        if (json_object_get(json_array_get(content, i), "text"))
            holder = json_array_get(content, i), key = "text";
    const json_t *old = json_object_get(holder, key);
    if (!json_is_string(old)) return;
    str_puts(text, "");
    str_add(text, json_string_value(old), json_string_length(old));
    Str tagged = {0};
    str_add(&tagged, text->s, text->len);
    str_puts(&tagged, TAG);
    json_object_set_new(holder, key, json_stringn(tagged.s, tagged.len));
    str_free(&tagged);
}

/* Truncates the text at the tag. If the template has stripped the tag's trailing space, the template also
 * strips spaces around messages, and the text ends before the message's trailing spaces. */
static Err cut_at_tag(const Str *message, size_t begin, Str *out) {
    const size_t bare = sizeof TAG - 2;
    Machine m = {.left = TEMPLATE_LIMITS};
    const Value inside =
        string_strip(&m, value_view(message->s, message->len), value_none(), STRIP_LEFT | STRIP_RIGHT);
    size_t at = out->len;
    for (size_t i = begin; i + bare <= out->len; i++)
        if (!memcmp(out->s + i, TAG, bare)) at = i;
    if (at == out->len || (inside.n && !memmem(out->s + begin, out->len - begin, inside.s, inside.n)))
        return err_user("the template does not print the last message unchanged, so this message cannot be "
                        "continued: remove \"continue_final_message\"");
    const bool spaced = out->len - at > bare && out->s[at + bare] == ' ';
    const Value kept = value_view(out->s + begin, at - begin);
    out->len = begin + (spaced ? kept : string_strip(&m, kept, value_none(), STRIP_RIGHT)).n;
    out->s[out->len] = '\0';
    return m.err;
}

Err conversation_render(const Template *template, const json_t *special, const ChatRequest *r,
                        const struct tm *now, TemplateLimits limits, Str *out) {
    json_t *messages = json_array(), *variables = json_object();
    const size_t begin = out->len;
    Str last = {0};
    Err e = ERR_OK;
    for (size_t i = 0; i < json_array_size(r->messages); i++)
        json_array_append_new(messages, normal_message(json_array_get(r->messages, i)));
    if (r->continue_final_message) {
        tag_last(messages, &last);
        if (!last.s)
            e = err_user("the last message has no text that \"continue_final_message\" could continue");
    }
    json_object_update(variables, (json_t *)special);
    if (r->variables) json_object_update(variables, (json_t *)r->variables);
    json_object_set_new(variables, "messages", messages);
    json_object_set_new(variables, "tools", r->tools ? json_incref((json_t *)r->tools) : json_null());
    json_object_set_new(variables, "documents",
                        r->documents ? json_incref((json_t *)r->documents) : json_null());
    json_object_set_new(variables, "add_generation_prompt", json_boolean(r->add_generation_prompt));
    if (!e.code) e = template_render(template, variables, now, limits, out);
    if (!e.code && r->continue_final_message) e = cut_at_tag(&last, begin, out);
    json_decref(variables);
    str_free(&last);
    return e;
}
