#include "server/request.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/min_max.h"
#include "server/constraint.h"

enum { MAX_PROMPTS = 1024, MAX_STOPS = 64, MAX_STOP_BYTES = 1024, MAX_BAD_WORDS = 1024 };

Refusal request_model(const Served *served, const char *name) {
    if (!strcmp(name, served->name)) return SERVED;
    return refuse(404, "model", "model_not_found", "there is no model %s; this server has '%s'",
                  quote(name).s, served->name);
}

Refusal request_parse(const Served *served, Endpoint endpoint, const char *body, size_t n, json_t **out) {
    REFUSE_UNLESS_SERVED(fields_parse(endpoint, body, n, out));
    const json_t *model = json_object_get(*out, "model");
    if (!model || json_is_null(model)) return SERVED;
    return json_is_string(model) ? request_model(served, json_string_value(model))
                                 : field_wrong("model", "a string");
}

/* ---- prompts ---- */

Refusal request_ids(const Served *served, const char *field, const json_t *list, TokenList *out) {
    const size_t n = json_array_size(list);
    if (!json_is_array(list)) return field_wrong(field, "a list of token ids");
    out->at = mem_alloc((n + 1) * sizeof *out->at);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!field_whole(json_array_get(list, i), &id)) return field_wrong(field, "a list of token ids");
        if (id < 0 || id >= served->vocab)
            return refuse(400, field, NULL, "token %" PRId64 " of '%s' is outside the vocabulary of %" PRId64,
                          id, field, served->vocab);
        out->at[out->n++] = (int32_t)id;
    }
    return SERVED;
}

static TokenList *add_prompt(TokenList **list, int64_t *n) {
    *list = mem_grow(*list, (size_t)*n + 1, sizeof **list);
    (*list)[*n] = (TokenList){0};
    return &(*list)[(*n)++];
}

static Refusal read_text(const Served *served, const json_t *body, const json_t *text, TokenList *out) {
    const json_t *special = json_object_get(body, "add_special_tokens");
    const unsigned flags = json_is_true(special)    ? TOKENIZER_ADD_SPECIAL
                           : json_is_false(special) ? TOKENIZER_NO_SPECIAL
                                                    : 0;
    const Err e = tokenizer_encode_with(served->tokenizer, flags, json_string_value(text),
                                        json_string_length(text), &out->at, &out->n);
    return e.code ? refuse(400, "prompt", NULL, "%s", e.msg) : SERVED;
}

/* Reads one prompt: text or a list of ids. */
static Refusal read_prompt(const Served *served, const json_t *body, const json_t *prompt, TokenList **out,
                           int64_t *n) {
    TokenList *list = add_prompt(out, n);
    if (json_is_string(prompt)) return read_text(served, body, prompt, list);
    if (!json_is_array(prompt))
        return field_wrong("prompt", "a string, a list of strings, or one or more lists of token ids");
    return request_ids(served, "prompt", prompt, list);
}

static Refusal read_prompts(const Served *served, const json_t *body, const json_t *prompt, TokenList **out,
                            int64_t *n) {
    const json_t *first = json_array_get(prompt, 0), *one;
    size_t i;
    if (!json_is_array(prompt) || field_whole(first, &(int64_t){0}))
        return read_prompt(served, body, prompt, out, n);
    if (!first) return refuse(400, "prompt", NULL, "'prompt' is an empty list: add a prompt");
    if (json_array_size(prompt) > MAX_PROMPTS)
        return refuse(400, "prompt", NULL,
                      "'prompt' has %zu prompts, but a request can have at most %d: send several requests",
                      json_array_size(prompt), MAX_PROMPTS);
    json_array_foreach(prompt, i, one) REFUSE_UNLESS_SERVED(read_prompt(served, body, one, out, n));
    return SERVED;
}

/* ---- messages ---- */

/* Joins content that is a list of text parts into one string, as templates require. */
static Refusal join_content(json_t *message) {
    const json_t *parts = json_object_get(message, "content"), *part;
    size_t i;
    Str text = {0};
    if (!json_is_string(json_object_get(message, "role")))
        return field_wrong("messages", "a list of objects with a role");
    if (!parts || json_is_null(parts) || json_is_string(parts)) return SERVED;
    if (!json_is_array(parts))
        return field_wrong("messages",
                           "a list of messages whose content is a text, a list of text parts or null");
    json_array_foreach(parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *one = json_object_get(part, "text");
        if (!type || strcmp(type, "text") || !json_is_string(one)) {
            str_free(&text);
            return refuse(
                400, "messages", NULL,
                "part %zu of a message's content is not {\"type\": \"text\", \"text\": TEXT}: only texts are "
                "supported",
                i + 1);
        }
        if (i) str_puts(&text, "\n");
        str_add(&text, json_string_value(one), json_string_length(one));
    }
    json_object_set_new(message, "content", json_stringn(text.s ? text.s : "", text.len));
    str_free(&text);
    return SERVED;
}

/* Replaces the arguments of calls, which are JSON strings, with their parsed values, as templates require. */
static Refusal read_arguments(json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls");
    json_t *call;
    size_t i;
    if (!calls || json_is_null(calls)) return SERVED;
    if (!json_is_array(calls))
        return field_wrong("messages", "a list of messages whose tool_calls are lists");
    /* many templates would begin a part for calls even if the list is empty */
    if (!json_array_size(calls)) {
        json_object_del(message, "tool_calls");
        return SERVED;
    }
    json_array_foreach(calls, i, call) {
        json_t *function = json_object_get(call, "function"),
               *arguments = json_object_get(function, "arguments");
        if (!json_is_string(json_object_get(function, "name")))
            return refuse(400, "messages", NULL, "a call in 'tool_calls' has no function with a name");
        if (!json_is_string(arguments)) continue;
        json_t *value = json_string_length(arguments)
                            ? json_loadb(json_string_value(arguments), json_string_length(arguments),
                                         JSON_ALLOW_NUL, NULL)
                            : json_object();
        if (!json_is_object(value)) {
            json_decref(value);
            return refuse(400, "messages", NULL,
                          "the arguments of a call in 'tool_calls' are not a JSON object: %s",
                          quote(json_string_value(arguments)).s);
        }
        json_object_set_new(function, "arguments", value);
    }
    return SERVED;
}

static bool is_choice(const json_t *body, const char *choice) {
    const char *given = json_string_value(json_object_get(body, "tool_choice"));
    return given && !strcmp(given, choice);
}

static Refusal check_tools(const json_t *tools) {
    const json_t *tool;
    size_t i;
    if (!tools || json_is_null(tools)) return SERVED;
    if (!json_array_size(tools)) return field_wrong("tools", "a list of tools that is not empty");
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function"),
                     *about = json_object_get(function, "description"),
                     *parameters = json_object_get(function, "parameters");
        const char *type = json_string_value(json_object_get(tool, "type")),
                   *name = json_string_value(json_object_get(function, "name"));
        if (!type || strcmp(type, "function") || !name || !*name || (about && !json_is_string(about)) ||
            (parameters && !json_is_object(parameters)))
            return refuse(400, "tools", NULL,
                          "tool %zu is not {\"type\": \"function\", \"function\": {\"name\": NAME, "
                          "\"description\": TEXT, \"parameters\": SCHEMA}}",
                          i + 1);
    }
    return SERVED;
}

/* The fields that chat_request reads. The first field is required; the last field is `tools`. */
static const char *const CHAT_FIELDS[] = {
    "messages",  "chat_template",          "chat_template_kwargs", "add_generation_prompt",
    "documents", "continue_final_message", "reasoning_effort",     "tools"};
enum { N_CHAT_FIELDS = sizeof CHAT_FIELDS / sizeof *CHAT_FIELDS };

/* Refuses a field that the chat template would ignore, because the template contains no variable with this name. */
static Refusal need_variable(const Served *served, const json_t *chat, const char *field) {
    const ChatRequest request = {.template = json_string_value(json_object_get(chat, "chat_template")),
                                 .tools = json_object_get(chat, "tools")};
    if (chat_has_variable(served->chat, &request, field)) return SERVED;
    return refuse(400, field, "unsupported", "the chat template has no variable '%s': remove it", field);
}

/* Turns reasoning_effort into a variable of the chat template, as vLLM does. */
static Refusal read_effort(const Served *served, json_t *chat) {
    static const char FIELD[] = "reasoning_effort", *const VALUES[] = {"none", "minimal", "low", "medium",
                                                                       "high", "xhigh",   "max"};
    json_t *effort = json_object_get(chat, FIELD), *variables = json_object_get(chat, "chat_template_kwargs");
    const size_t count = sizeof VALUES / sizeof *VALUES;
    size_t i = 0;
    if (!effort) return SERVED;
    while (i < count && (!json_is_string(effort) || strcmp(VALUES[i], json_string_value(effort)))) i++;
    if (i == count)
        return field_wrong(FIELD,
                           "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
    REFUSE_UNLESS_SERVED(need_variable(served, chat, FIELD));
    if (json_object_get(variables, FIELD))
        return refuse(400, FIELD, NULL, "'%s' is also in 'chat_template_kwargs': remove one of them", FIELD);
    if (!variables) json_object_set_new(chat, "chat_template_kwargs", variables = json_object());
    json_object_set(variables, FIELD, effort);
    json_object_del(chat, FIELD);
    return SERVED;
}

/* Copies to *out the part of the body that chat_request reads. If tools must not be called, omits the tools,
 * so that the template does not list them. */
static Refusal chat_body(const Served *served, const json_t *body, json_t *out) {
    json_t *message;
    size_t i;
    for (int k = 0; k < N_CHAT_FIELDS - is_choice(body, "none"); k++) {
        json_t *value = json_object_get(body, CHAT_FIELDS[k]);
        if (value && !json_is_null(value)) json_object_set_new(out, CHAT_FIELDS[k], json_deep_copy(value));
    }
    REFUSE_UNLESS_SERVED(check_tools(json_object_get(body, "tools")));
    REFUSE_UNLESS_SERVED(read_effort(served, out));
    if (json_array_size(json_object_get(out, "documents")))
        REFUSE_UNLESS_SERVED(need_variable(served, out, "documents"));
    const json_t *begins = json_object_get(body, "add_generation_prompt");
    const bool continues = field_truth(body, "continue_final_message");
    json_object_set_new(out, "add_generation_prompt",
                        json_boolean(json_is_boolean(begins) ? json_is_true(begins) : !continues));
    json_t *messages = json_object_get(out, "messages");
    if (!json_is_array(messages) || !json_array_size(messages))
        return field_wrong("messages", "a list of messages");
    json_array_foreach(messages, i, message) {
        REFUSE_UNLESS_SERVED(join_content(message));
        REFUSE_UNLESS_SERVED(read_arguments(message));
    }
    return SERVED;
}

/* Returns the name of the function that tool_choice names, or NULL. */
static const char *chosen_function(const json_t *body) {
    const json_t *choice = json_object_get(body, "tool_choice");
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (!type || strcmp(type, "function")) return NULL;
    return json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
}

static Refusal refuse_format(void) {
    Str names = {0};
    tool_format_names(&names);
    const Refusal refusal = refuse(400, "tools", "unsupported",
                                   "the chat template has no format of calls that this server knows (%s): "
                                   "remove 'tools', or set 'tool_choice' to \"none\"",
                                   names.s);
    str_free(&names);
    return refusal;
}

/* Sets a->tools to the format of calls in the text. */
static Refusal read_tools(const Served *served, const json_t *body, Ask *a) {
    const json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
    const bool none = is_choice(body, "none");
    const char *name = chosen_function(body);
    if (json_is_null(choice)) choice = NULL;
    if (choice && !none && !is_choice(body, "auto") && !is_choice(body, "required") && !name)
        return field_wrong("tool_choice", "\"auto\", \"none\", \"required\", or "
                                          "{\"type\": \"function\", \"function\": {\"name\": NAME}}");
    if (!tools || json_is_null(tools))
        return choice && !none ? refuse(400, "tool_choice", NULL, "'tool_choice' needs 'tools': add them")
                               : SERVED;
    REFUSE_UNLESS_SERVED(check_tools(tools));
    if (none || !served->chat) return SERVED;
    a->tools = chat_tool_format(served->chat, json_string_value(json_object_get(body, "chat_template")));
    a->functions = json_incref((json_t *)tools);
    a->special = true; /* call markers can be special tokens */
    if (!a->tools) return refuse_format();
    const bool single = name || json_is_false(json_object_get(body, "parallel_tool_calls"));
    if (name || is_choice(body, "required")) return constraint_call(served, name, !single, a);
    a->single = single;
    return SERVED;
}

static Refusal render(const Served *served, const json_t *body, TokenList *out) {
    ChatRequest request;
    Str text = {0};
    TokenSpan *spans = NULL;
    struct tm now;
    const time_t seconds = time(NULL);
    Err e = chat_request("the request", body, &request);
    if (!e.code) e = chat_render(served->chat, &request, localtime_r(&seconds, &now), &text);
    if (!e.code) e = chat_encode(served->chat, &text, &out->at, &spans, &out->n);
    free(spans);
    str_free(&text);
    return e.code ? refuse(400, "messages", NULL, "%s", e.msg) : SERVED;
}

static Refusal read_messages(const Served *served, const json_t *body, TokenList **out, int64_t *n) {
    if (!served->chat)
        return refuse(
            400, "messages", "no_chat_template",
            "the tokenizer of this server has no chat template: send a 'prompt' instead, for example "
            "to /v1/completions");
    json_t *chat = json_object();
    Refusal refusal = chat_body(served, body, chat);
    if (!refusal.status) refusal = render(served, chat, add_prompt(out, n));
    json_decref(chat);
    return refusal;
}

Refusal request_prompts(const Served *served, const json_t *body, TokenList **out, int64_t *n) {
    const json_t *prompt = json_object_get(body, "prompt"), *messages = json_object_get(body, "messages");
    if (json_is_null(prompt)) prompt = NULL;
    if (json_is_null(messages)) messages = NULL;
    if (messages && prompt)
        return refuse(400, "messages", NULL, "a request has 'prompt' or 'messages', not both");
    if (messages && field_truth(body, "add_special_tokens"))
        return refuse(400, "add_special_tokens", NULL, "'add_special_tokens' needs 'prompt': remove it");
    if (messages) return read_messages(served, body, out, n);
    if (!prompt) return refuse(400, "prompt", NULL, "the request has no 'prompt'");
    for (int i = 1; i < N_CHAT_FIELDS; i++)
        if (json_object_get(body, CHAT_FIELDS[i]) && !json_is_null(json_object_get(body, CHAT_FIELDS[i])))
            return refuse(400, CHAT_FIELDS[i], NULL, "'%s' needs 'messages': remove it", CHAT_FIELDS[i]);
    return read_prompts(served, body, prompt, out, n);
}

/* ---- the end of a text ---- */

static Refusal add_stop(Ask *a, const json_t *stop) {
    const char *text = json_string_value(stop);
    if (!text || !*text) return field_wrong("stop", "a text that is not empty, or a list of such texts");
    if (strlen(text) > MAX_STOP_BYTES)
        return refuse(400, "stop", NULL, "a text in 'stop' has %zu bytes, but can have at most %d",
                      strlen(text), MAX_STOP_BYTES);
    a->stop.at = mem_grow(a->stop.at, (size_t)a->stop.n + 1, sizeof *a->stop.at);
    a->stop.at[a->stop.n++] = mem_strdup(text);
    return SERVED;
}

static Refusal read_stops(Ask *a, const json_t *body) {
    const json_t *stop = json_object_get(body, "stop"), *one;
    size_t i;
    if (!stop || json_is_null(stop)) return SERVED;
    if (!json_is_array(stop)) return add_stop(a, stop);
    if (json_array_size(stop) > MAX_STOPS)
        return refuse(400, "stop", NULL, "'stop' has %zu texts, but can have at most %d",
                      json_array_size(stop), MAX_STOPS);
    json_array_foreach(stop, i, one) REFUSE_UNLESS_SERVED(add_stop(a, one));
    return SERVED;
}

/* Returns whether all tokens that can be sampled are end tokens. */
static bool all_end(const Served *served, const Ask *a) {
    const Sampling *s = &a->sampling;
    bool *continues = mem_zero((size_t)served->vocab, sizeof *continues), any = false;
    for (int64_t i = 0; i < served->vocab; i++) continues[i] = !s->n_allowed;
    for (int64_t i = 0; i < s->n_allowed; i++) continues[s->allowed[i]] = true;
    for (int64_t i = 0; i < a->n_ends; i++)
        if (a->ends[i] >= 0 && a->ends[i] < served->vocab) continues[a->ends[i]] = false;
    for (int64_t i = 0; i < served->vocab; i++) any |= continues[i];
    free(continues);
    return !any;
}

/* Reads end tokens. `list` contains the token ids in `field`, or is NULL. */
static Refusal read_ends(const Served *served, Ask *a, const char *field, const json_t *list,
                         bool ignore_eos) {
    TokenList ids = {0};
    const Refusal refusal = list && !json_is_null(list) ? request_ids(served, field, list, &ids) : SERVED;
    a->ends = mem_alloc((ids.n + (size_t)served->n_ends + 1) * sizeof *a->ends);
    for (size_t i = 0; i < ids.n; i++) a->ends[a->n_ends++] = ids.at[i];
    for (int64_t i = 0; i < served->n_ends && !ignore_eos; i++) a->ends[a->n_ends++] = served->ends[i];
    free(ids.at);
    REFUSE_UNLESS_SERVED(refusal);
    return a->min_tokens && all_end(served, a)
               ? refuse(400, "min_tokens", NULL,
                        "'min_tokens' needs a token that is not in 'stop_token_ids' and that can be sampled")
               : SERVED;
}

/* ---- the other fields ---- */

/* Reads an object that maps token ids to biases. */
static Refusal read_bias(const Served *served, const json_t *body, Sampling *out) {
    json_t *map = json_object_get(body, "logit_bias"), *value;
    const char *name;
    if (!map || json_is_null(map)) return SERVED;
    if (!json_is_object(map)) return field_wrong("logit_bias", "an object of token ids and numbers");
    TokenBias *bias = mem_alloc((json_object_size(map) + 1) * sizeof *bias);
    out->bias = bias;
    json_object_foreach(map, name, value) {
        const long long id = strtoll(name, NULL, 10); /* at most LLONG_MAX */
        if (!*name || name[strspn(name, "0123456789")] || id >= served->vocab)
            return refuse(400, "logit_bias", NULL,
                          "token %s in 'logit_bias' is not in the vocabulary of %" PRId64, quote(name).s,
                          served->vocab);
        if (!json_is_number(value) || fabs(json_number_value(value)) > 100)
            return refuse(400, "logit_bias", NULL, "the bias of token %s must be a number from -100 to 100",
                          name);
        bias[out->n_bias++] = (TokenBias){(int32_t)id, json_number_value(value)};
    }
    return SERVED;
}

static Refusal read_allowed(const Served *served, const json_t *body, Sampling *out) {
    const json_t *list = json_object_get(body, "allowed_token_ids");
    TokenList ids = {0};
    if (!list || json_is_null(list)) return SERVED;
    const Refusal refusal = request_ids(served, "allowed_token_ids", list, &ids);
    out->allowed = ids.at, out->n_allowed = (int64_t)ids.n;
    REFUSE_UNLESS_SERVED(refusal);
    return ids.n ? SERVED : field_wrong("allowed_token_ids", "a list of token ids that is not empty");
}

/* Appends the tokens of a bad word to the list. Returns false if the word has no tokens, or if the model
 * lacks one of the tokens. */
static bool add_bad(const Served *served, const char *word, Sampling *out) {
    TokenList ids = {0};
    int32_t *bad = (int32_t *)(uintptr_t)out->bad;
    if (tokenizer_encode_with(served->tokenizer, TOKENIZER_NO_SPECIAL, word, strlen(word), &ids.at, &ids.n)
            .code)
        return false;
    out->bad = bad = mem_grow(bad, (size_t)out->n_bad + ids.n + 1, sizeof *bad);
    int32_t *at = bad + out->n_bad;
    bool valid = ids.n > 0;
    for (size_t i = 0; i < ids.n; i++) at[i + 1] = ids.at[i], valid = valid && ids.at[i] < served->vocab;
    *at = (int32_t)ids.n;
    free(ids.at);
    out->n_bad += valid ? *at + 1 : 0;
    return valid;
}

/* Reads words as vLLM does (SamplingParams.update_from_tokenizer). Also bans the tokens of the word with a
 * leading space if the two spellings have the same number of tokens, and their first tokens differ. */
static Refusal read_bad_words(const Served *served, const json_t *body, Sampling *out) {
    const json_t *list = json_object_get(body, "bad_words"), *one;
    size_t i;
    if (!list || json_is_null(list)) return SERVED;
    if (!json_is_array(list) || json_array_size(list) > MAX_BAD_WORDS)
        return field_wrong("bad_words", "a list of at most 1024 texts");
    json_array_foreach(list, i, one) {
        const char *word = json_string_value(one);
        if (!word || !*word || strlen(word) > MAX_STOP_BYTES)
            return field_wrong("bad_words", "a list of texts of 1 to 1024 bytes");
        const char *bare = word + strspn(word, " ");
        char *blank = mem_printf(" %s", bare);
        const int64_t first = out->n_bad;
        bool valid = add_bad(served, *bare ? bare : word, out);
        const int64_t second = out->n_bad;
        valid = valid && add_bad(served, blank, out);
        free(blank);
        if (!valid)
            return refuse(400, "bad_words", NULL, "the word %s has no tokens: remove it", quote(word).s);
        const int32_t *a = out->bad + first, *b = out->bad + second;
        if (*a != *b || a[1] == b[1]) out->n_bad = second;
    }
    return SERVED;
}

static Refusal read_sampling(const Served *served, Ask *a, const json_t *body) {
    const double top_p = field_number(body, "top_p", 1);
    const int64_t top_k = field_integer(body, "top_k", 0);
    a->sampling = (Sampling){.temperature = field_number(body, "temperature", 1),
                             .top_k = top_k > 0 ? top_k : 0,
                             .top_p = top_p < 1 ? top_p : 0,
                             .min_p = field_number(body, "min_p", 0),
                             .presence = field_number(body, "presence_penalty", 0),
                             .frequency = field_number(body, "frequency_penalty", 0),
                             .repetition = field_number(body, "repetition_penalty", 0)};
    a->seeded = json_is_number(json_object_get(body, "seed"));
    a->seed = (uint64_t)field_integer(body, "seed", 0);
    REFUSE_UNLESS_SERVED(read_bias(served, body, &a->sampling));
    REFUSE_UNLESS_SERVED(read_allowed(served, body, &a->sampling));
    return read_bad_words(served, body, &a->sampling);
}

static Refusal read_numbers_of_choices(Ask *a, const json_t *body) {
    a->n = field_integer(body, "n", 1);
    a->best_of = field_integer(body, "best_of", a->n);
    if (a->best_of < a->n) return refuse(400, "best_of", NULL, "'best_of' must be at least 'n'");
    if (a->best_of > a->n && a->stream)
        return refuse(400, "best_of", NULL,
                      "'best_of' above 'n' compares complete texts: remove it, or set 'stream' to false");
    return SERVED;
}

static Refusal read_outputs(Ask *a, const json_t *body) {
    const json_t *options = json_object_get(body, "stream_options"), *value;
    const char *name;
    a->echo = field_truth(body, "echo"), a->stream = field_truth(body, "stream");
    a->ids = field_truth(body, "return_token_ids");
    a->prompt_likeliest = field_integer(body, "prompt_logprobs", -1);
    if (a->prompt_likeliest >= 0 && a->stream)
        return refuse(400, "prompt_logprobs", NULL,
                      "'prompt_logprobs' is not streamed: set 'stream' to false");
    a->special = json_is_false(json_object_get(body, "skip_special_tokens"));
    a->stop.kept = field_truth(body, "include_stop_str_in_output");
    if (a->endpoint == ENDPOINT_CHAT) {
        a->logprobs = field_truth(body, "logprobs");
        a->likeliest = field_integer(body, "top_logprobs", 0);
        if (a->likeliest && !a->logprobs)
            return refuse(400, "top_logprobs", NULL, "'top_logprobs' needs 'logprobs': set it to true");
    } else {
        a->likeliest = field_integer(body, "logprobs", -1);
        a->logprobs = a->likeliest >= 0;
        if (!a->logprobs) a->likeliest = 0;
    }
    if (!options || json_is_null(options)) return SERVED;
    if (!a->stream)
        return refuse(400, "stream_options", NULL, "'stream_options' needs 'stream': set it to true");
    if (!json_is_object(options)) return field_wrong("stream_options", "an object");
    json_object_foreach((json_t *)options, name, value) {
        if (!strcmp(name, "include_obfuscation") && json_is_false(value)) continue;
        if (strcmp(name, "include_usage") && strcmp(name, "continuous_usage_stats"))
            return refuse(400, "stream_options", "unknown_field",
                          "the server does not know %s in 'stream_options'", quote(name).s);
        if (!json_is_boolean(value))
            return refuse(400, "stream_options", NULL, "'%s' must be true or false", name);
    }
    a->usage = field_truth(options, "include_usage");
    a->usage_always = field_truth(options, "continuous_usage_stats");
    if (a->usage_always && !a->usage)
        return refuse(400, "stream_options", NULL,
                      "'continuous_usage_stats' needs 'include_usage': set it to true");
    return SERVED;
}

/* Keeps only the last tokens of each prompt. */
static void truncate_prompts(Ask *a, size_t most) {
    for (TokenList *p = a->prompts; p < a->prompts + a->n_prompts; p++) {
        if (p->n <= most) continue;
        memmove(p->at, p->at + p->n - most, most * sizeof *p->at);
        p->n = most;
    }
}

int64_t ask_max_tokens(const Served *served, const Ask *a, int64_t prompt) {
    return a->max_tokens >= 0 ? a->max_tokens : served->context - prompt;
}

static Refusal check_lengths(const Served *served, const Ask *a) {
    const bool generates = a->max_tokens != 0;
    if (a->n_prompts * a->best_of > served->choices)
        return refuse(400, a->endpoint == ENDPOINT_MEGATRON ? "prompts" : "n", NULL,
                      "the request has %" PRId64 " choices, but can have at most %" PRId64
                      ": send several requests",
                      a->n_prompts * a->best_of, served->choices);
    for (int64_t i = 0; i < a->n_prompts; i++) {
        const int64_t n = (int64_t)a->prompts[i].n, fresh = ask_max_tokens(served, a, n);
        const char *field = a->endpoint == ENDPOINT_CHAT       ? "messages"
                            : a->endpoint == ENDPOINT_MEGATRON ? "prompts"
                                                               : "prompt";
        if (n < 1) return refuse(400, field, NULL, "a prompt has no tokens: add a text");
        if (n > served->context || fresh > served->context - n || (generates && fresh < 1))
            return refuse(400, field, "context_length_exceeded",
                          "This model's maximum context length was exceeded: it is %" PRId64
                          " tokens, and the request has %" PRId64 " in the prompt and %" PRId64
                          " to generate; shorten the prompt or lower '%s'",
                          served->context, n, generates && fresh < 1 ? 1 : fresh,
                          a->endpoint == ENDPOINT_MEGATRON ? "tokens_to_generate" : "max_tokens");
        if (a->min_tokens > fresh)
            return refuse(400, "min_tokens", NULL,
                          "'min_tokens' is %" PRId64 ", but at most %" PRId64
                          " tokens are generated: lower it",
                          a->min_tokens, fresh);
    }
    return SERVED;
}

static Refusal ask_openai(const Served *served, Endpoint endpoint, const json_t *body, Ask *out) {
    const int64_t most = field_integer(body, "max_tokens", endpoint == ENDPOINT_CHAT ? -1 : 16);
    *out = (Ask){.endpoint = endpoint,
                 .min_tokens = field_integer(body, "min_tokens", 0),
                 .max_tokens = field_integer(body, "max_completion_tokens", most)};
    const json_t *salt = json_object_get(body, "cache_salt");
    if (json_is_string(salt)) out->salt = mem_strdup(json_string_value(salt));
    REFUSE_UNLESS_SERVED(read_sampling(served, out, body));
    REFUSE_UNLESS_SERVED(read_outputs(out, body));
    out->likeliest = smaller(out->likeliest, served->vocab);
    out->prompt_likeliest = smaller(out->prompt_likeliest, served->vocab);
    REFUSE_UNLESS_SERVED(read_numbers_of_choices(out, body));
    if (!out->max_tokens && !out->echo)
        return refuse(400, "max_tokens", NULL, "'max_tokens' 0 needs 'echo': the answer would have no text");
    REFUSE_UNLESS_SERVED(read_stops(out, body));
    REFUSE_UNLESS_SERVED(read_ends(served, out, "stop_token_ids", json_object_get(body, "stop_token_ids"),
                                   field_truth(body, "ignore_eos")));
    if (endpoint == ENDPOINT_CHAT) REFUSE_UNLESS_SERVED(read_tools(served, body, out));
    REFUSE_UNLESS_SERVED(constraint_format(body, out));
    REFUSE_UNLESS_SERVED(endpoint == ENDPOINT_CHAT
                             ? read_messages(served, body, &out->prompts, &out->n_prompts)
                             : request_prompts(served, body, &out->prompts, &out->n_prompts));
    truncate_prompts(out, (size_t)field_integer(body, "truncate_prompt_tokens", INT32_MAX));
    return SERVED;
}

/* ---- Megatron-LM's /api ---- */

/* Makes the prompt start with exactly one beginning-of-sequence token. */
static Refusal add_bos(const Served *served, TokenList *prompt) {
    const int32_t bos = tokenizer_bos(served->tokenizer);
    size_t known = 0;
    if (bos < 0)
        return refuse(400, "add_BOS", NULL,
                      "the tokenizer has no token that begins a text: remove 'add_BOS'");
    while (known < prompt->n && prompt->at[known] == bos) known++;
    const size_t rest = prompt->n - known;
    prompt->at = mem_grow(prompt->at, prompt->n + 1, sizeof *prompt->at);
    memmove(prompt->at + 1, prompt->at + known, rest * sizeof *prompt->at);
    prompt->at[0] = bos;
    prompt->n = rest + 1;
    return SERVED;
}

static Refusal read_megatron_prompts(const Served *served, const json_t *body, Ask *out) {
    json_t *prompts = json_object_get(body, "prompts"), *one;
    const bool begins = field_truth(body, "add_BOS");
    size_t i;
    if (!prompts || !json_is_array(prompts)) return field_wrong("prompts", "a list of strings");
    if (!json_array_size(prompts) || json_array_size(prompts) > 128)
        return field_wrong("prompts", "a list of 1 to 128 strings");
    json_array_foreach(prompts, i, one) {
        if (!json_is_string(one)) return field_wrong("prompts", "a list of strings");
        if (!json_string_length(one) && !begins)
            return refuse(400, "prompts", NULL, "an empty prompt needs 'add_BOS': set it to true");
        TokenList *list = add_prompt(&out->prompts, &out->n_prompts);
        REFUSE_UNLESS_SERVED(read_text(served, body, one, list));
        if (begins) REFUSE_UNLESS_SERVED(add_bos(served, list));
    }
    out->texts = json_incref(prompts);
    return SERVED;
}

/* Reads a body as Megatron-LM's core/inference/text_generation_server/text_generation_server.py does. */
static Refusal ask_megatron(const Served *served, const json_t *body, Ask *out) {
    json_t *stop = json_object_get(body, "stop_token");
    *out = (Ask){.endpoint = ENDPOINT_MEGATRON,
                 .n = 1,
                 .best_of = 1,
                 .max_tokens = field_integer(body, "tokens_to_generate", 64),
                 .sampling = {.temperature = field_number(body, "temperature", 1),
                              .top_k = field_integer(body, "top_k", 0),
                              .top_p = field_number(body, "top_p", 0)},
                 .seeded = json_is_number(json_object_get(body, "random_seed")),
                 .seed = (uint64_t)field_integer(body, "random_seed", 0),
                 .logprobs = field_truth(body, "logprobs"),
                 .prompt_likeliest = -1};
    if (out->sampling.top_k && out->sampling.top_p > 0)
        return refuse(400, "top_k", NULL, "'top_k' and 'top_p' are mutually exclusive: remove one");
    if (!out->max_tokens && !out->logprobs)
        return refuse(400, "tokens_to_generate", NULL,
                      "'tokens_to_generate' 0 needs 'logprobs': set it to true");
    json_t *ends = json_is_number(stop) ? json_pack("[O]", stop) : NULL;
    const Refusal refusal = read_ends(served, out, "stop_token", ends, false);
    json_decref(ends);
    REFUSE_UNLESS_SERVED(refusal);
    return read_megatron_prompts(served, body, out);
}

Refusal request_ask(const Served *served, Endpoint endpoint, const json_t *body, Ask *out) {
    REFUSE_UNLESS_SERVED(endpoint == ENDPOINT_MEGATRON ? ask_megatron(served, body, out)
                                                       : ask_openai(served, endpoint, body, out));
    return check_lengths(served, out);
}

void ask_free(Ask *a) {
    for (int64_t i = 0; i < a->n_prompts; i++) free(a->prompts[i].at);
    for (int64_t i = 0; i < a->stop.n; i++) free(a->stop.at[i]);
    json_decref(a->texts), json_decref(a->functions);
    free(a->prompts), free(a->stop.at), free(a->ends), free(a->salt), free(a->grammar),
        sampling_free(&a->sampling);
}
