#include "server/answer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/min_max.h"
#include "base/utf8.h"

/* One generated text in an answer. */
typedef struct Choice {
    TextStream text;
    ToolText tools;
    int64_t calls; /* number of calls that answer_stream has sent */
    const TokenList *prompt;
    /* text that answer_stream has not sent yet or, if the answer is not a stream, the entire text */
    Str fresh;
    /* log-probabilities that have not been sent yet or, for ENDPOINT_MEGATRON, those of all tokens; may be
     * NULL */
    json_t *logprobs;
    json_t *prompt_logprobs; /* NULL except for a prompt's first choice */
    json_t *ids;             /* new tokens that answer_stream has not sent yet, or NULL */
    /* [[first token, version], ...]: the versions of the weights that computed the tokens, as in Megatron-LM's
     * policy_epoch; or NULL */
    json_t *epochs;
    int64_t epoch;  /* the last version in the list, or -1 */
    int64_t tokens; /* number of generated tokens, including the token that ends the text */
    double logprob; /* if choices are compared, the sum of the log-probabilities of the generated tokens */
    int64_t cached; /* number of prompt tokens found in shared pages; -1 before the first event */
    /* begun, closed: whether the answer contains the choice's first part, and its last part */
    bool begun, ended, closed;
    Reason reason;
    int32_t end;  /* the token that ended the text, or -1 */
    int64_t last; /* time when the last token arrived, in ns (monotonic clock) */
} Choice;

struct Answer {
    const Served *served;
    Ask ask;
    Choice *choices; /* [n]: all choices for the first prompt, then all choices for the second, ... */
    int64_t n, created;
    char id[48];
    uint64_t seed;
    Latencies *latencies;
    int64_t began; /* time in ns (monotonic clock) */
};

static bool is_chat(const Answer *a) { return a->ask.endpoint == ENDPOINT_CHAT; }

/* Returns whether a choice is the first one for its prompt. */
static bool is_first(const Answer *a, const Choice *c) { return (c - a->choices) % a->ask.best_of == 0; }

static bool is_megatron(const Answer *a) { return a->ask.endpoint == ENDPOINT_MEGATRON; }

/* ---- log-probabilities ---- */

static json_t *new_logprobs(const Answer *a) {
    if (is_megatron(a)) return json_pack("{s:[],s:[],s:[]}", "tokens", "segments", "logprobs");
    if (!a->ask.logprobs) return NULL;
    if (is_chat(a)) return json_pack("{s:[]}", "content");
    return json_pack("{s:[],s:[],s:[],s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
}

/* Returns a log-probability as JSON. JSON has no infinity; like OpenAI's server, this server sends -9999
 * instead. */
static json_t *logprob_json(double x) { return json_real(isfinite(x) ? x : -9999.0); }

static json_t *repaired(const Str *bytes) {
    Str text = {0};
    utf8_repair(bytes->s ? bytes->s : "", bytes->len, &text);
    json_t *json = json_stringn(text.s ? text.s : "", text.len);
    str_free(&text);
    return json;
}

static json_t *chat_token(const TextStream *text, int32_t token, double logprob) {
    Str piece = {0};
    json_t *bytes = json_array();
    text_piece(text, token, &piece);
    for (size_t i = 0; i < piece.len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)piece.s[i]));
    json_t *json = json_pack("{s:o,s:o,s:o}", "token", repaired(&piece), "logprob", logprob_json(logprob),
                             "bytes", bytes);
    str_free(&piece);
    return json;
}

static void add_chat_logprob(Choice *c, const EngineEvent *e, const LikelyToken *likeliest, int64_t n) {
    json_t *entry = chat_token(&c->text, e->token, e->logprob), *top = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(top, chat_token(&c->text, likeliest[i].id, likeliest[i].logprob));
    json_object_set_new(entry, "top_logprobs", top);
    json_array_append_new(json_object_get(c->logprobs, "content"), entry);
}

/* Adds a token to a map from token texts to values. If several tokens have the same text, the map contains the most
 * likely one. */
static void add_to_map(json_t *map, const TextStream *text, int32_t token, double logprob) {
    Str piece = {0};
    text_piece(text, token, &piece);
    json_t *name = repaired(&piece);
    const char *key = json_string_value(name);
    const size_t n = json_string_length(name); /* because the text can contain a zero byte */
    const json_t *known = json_object_getn(map, key, n);
    if (!known || json_real_value(known) < logprob) json_object_setn_new(map, key, n, logprob_json(logprob));
    json_decref(name);
    str_free(&piece);
}

/* Adds a token to the four lists in a choice's log-probabilities. `e` is NULL for the first token of a
 * prompt, because this token has no probability. */
static void add_completion_logprob(Choice *c, int32_t token, const EngineEvent *e,
                                   const LikelyToken *likeliest, int64_t n) {
    json_t *map = e ? json_object() : json_null();
    Str piece = {0};
    text_piece(&c->text, token, &piece);
    for (int64_t i = 0; i < n && e; i++) add_to_map(map, &c->text, likeliest[i].id, likeliest[i].logprob);
    if (e) add_to_map(map, &c->text, token, e->logprob);
    json_array_append_new(json_object_get(c->logprobs, "tokens"), repaired(&piece));
    json_array_append_new(json_object_get(c->logprobs, "token_logprobs"),
                          e ? logprob_json(e->logprob) : json_null());
    json_array_append_new(json_object_get(c->logprobs, "top_logprobs"), map);
    json_array_append_new(json_object_get(c->logprobs, "text_offset"),
                          json_integer(text_offset(&c->text, token)));
    str_free(&piece);
}

static void add_megatron_token(Choice *c, int32_t token) {
    Str piece = {0};
    text_piece(&c->text, token, &piece);
    json_array_append_new(json_object_get(c->logprobs, "tokens"), json_integer(token));
    json_array_append_new(json_object_get(c->logprobs, "segments"), repaired(&piece));
    str_free(&piece);
}

/* Adds a token to the choice's log-probabilities. The token's text must not have been added yet. */
static void add_logprob(const Answer *a, Choice *c, const EngineEvent *e, const LikelyToken *likeliest) {
    if (is_megatron(a)) {
        if (e->kind != EVENT_PROMPT) add_megatron_token(c, e->token);
        json_array_append_new(json_object_get(c->logprobs, "logprobs"), logprob_json(e->logprob));
        return;
    }
    if (!a->ask.logprobs) return;
    if (is_chat(a))
        add_chat_logprob(c, e, likeliest, a->ask.likeliest);
    else
        add_completion_logprob(c, e->token, e, likeliest, a->ask.likeliest);
}

/* Adds a prompt token, with the most likely tokens at its position: {ID: {"logprob", "rank",
 * "decoded_token"}}, as in vLLM. The rank of a token that is not among the most likely tokens is unknown. */
static void add_prompt_logprob(Choice *c, const EngineEvent *e, const LikelyToken *likeliest, int64_t n) {
    json_t *map = json_object();
    for (int64_t i = 0; i <= n; i++) {
        const LikelyToken token = i < n ? likeliest[i] : (LikelyToken){e->token, e->logprob};
        Str piece = {0};
        char id[16];
        snprintf(id, sizeof id, "%d", (int)token.id);
        if (json_object_get(map, id)) continue;
        text_piece(&c->text, token.id, &piece);
        json_object_set_new(map, id,
                            json_pack("{s:o,s:o,s:o}", "logprob", logprob_json(token.logprob), "rank",
                                      i < n ? json_integer(i + 1) : json_null(), "decoded_token",
                                      repaired(&piece)));
        str_free(&piece);
    }
    json_array_append_new(c->prompt_logprobs, map);
}

/* ---- choices ---- */

static const StopList NO_STOPS = {0};

/* Returns whether a choice's log-probabilities begin with the log-probabilities of its prompt. */
static bool repeats_prompt(const Answer *a) { return (a->ask.echo || is_megatron(a)) && a->ask.logprobs; }

/* Begins a choice. The choice's text begins with the prompt if the answer must repeat the prompt. */
static void begin(const Answer *a, Choice *c) {
    const TokenList *p = c->prompt;
    const bool echo = a->ask.echo;
    text_begin(&c->text, a->served->tokenizer, &NO_STOPS, a->ask.special, p->at, echo ? 0 : p->n);
    c->tools.format = a->ask.tools, c->tools.tools = a->ask.functions, c->tools.single = a->ask.single;
    c->logprobs = new_logprobs(a);
    c->ids = a->ask.ids ? json_array() : NULL;
    c->epochs = a->served->stamps ? json_array() : NULL;
    c->end = c->cached = c->epoch = -1;
    if (a->ask.prompt_likeliest >= 0 && is_first(a, c)) c->prompt_logprobs = json_pack("[n]");
    for (size_t i = 0; i < p->n && is_megatron(a); i++) add_megatron_token(c, p->at[i]);
    if (!echo) return;
    if (a->ask.logprobs) add_completion_logprob(c, p->at[0], NULL, NULL, 0);
    for (size_t i = 0; i < (a->ask.logprobs ? 1 : p->n); i++) text_push(&c->text, p->at[i], &c->fresh);
}

/* Adds a token to the text, or ends the text if there is no token. */
static void add_text(Choice *c, const int32_t *token) {
    Str text = {0};
    if (token)
        text_push(&c->text, *token, &text);
    else
        text_end(&c->text, &text);
    tool_text_push(&c->tools, text.s, text.len, !token, &c->fresh);
    str_free(&text);
}

static void end(const Answer *a, Choice *c, Ticket *ticket, Reason reason) {
    add_text(c, NULL);
    c->ended = true;
    c->reason = c->text.stopped ? REASON_STOP : reason;
    ticket_end(ticket, c - a->choices, c->reason);
    latency_add(a->latencies, LATENCY_REQUEST, clock_ns() - a->began);
}

/* Stores values from a choice's first event, and from its first event with new weights. */
static void take_admission(const Answer *a, Choice *c, const EngineEvent *e) {
    if (c->cached < 0) latency_add(a->latencies, LATENCY_QUEUE, e->waited_ns);
    c->cached = e->cached;
    if (c->epoch == e->weights) return;
    c->epoch = e->weights;
    json_array_append_new(c->epochs, json_pack("[I,I]", (json_int_t)c->tokens, (json_int_t)c->epoch));
}

static Refusal take(const Answer *a, Choice *c, Ticket *ticket, const EngineEvent *e,
                    const LikelyToken *likeliest) {
    if (c->ended) return SERVED;
    take_admission(a, c, e);
    if (e->kind == EVENT_PROMPT && c->prompt_logprobs)
        add_prompt_logprob(c, e, likeliest, a->ask.prompt_likeliest);
    if (e->kind == EVENT_PROMPT && !repeats_prompt(a)) return SERVED;
    if (e->kind == EVENT_END && e->finish == FINISH_NAN) {
        ticket_end(ticket, c - a->choices, REASON_ERROR);
        return refuse(500, NULL, "not_finite",
                      "the model's logits are not finite after %lld tokens; check the model's parameters, or "
                      "use a higher precision (--lane)",
                      (long long)e->index);
    }
    if (e->kind == EVENT_END && e->finish == FINISH_NONE) {
        ticket_end(ticket, c - a->choices, REASON_ABORT);
        return refuse(400, NULL, "no_token_allowed",
                      "no token may follow %lld tokens, because of 'allowed_token_ids', 'bad_words' or "
                      "'response_format': "
                      "remove one of them",
                      (long long)e->index);
    }
    if (e->kind == EVENT_END && e->finish == FINISH_WIDE) {
        ticket_end(ticket, c - a->choices, REASON_ABORT);
        return refuse(400, NULL, "schema_too_large",
                      "after %lld tokens, 'response_format' or 'tools' allow more than %d different texts: "
                      "use fewer values, alternatives or functions",
                      (long long)e->index, GRAMMAR_WIDEST);
    }
    if (e->kind != EVENT_PROMPT && c->tokens >= a->ask.min_tokens) c->text.stops = &a->ask.stop;
    if (e->kind != EVENT_END || (e->finish == FINISH_STOP && e->token >= 0)) {
        add_logprob(a, c, e, likeliest);
        if (e->kind != EVENT_PROMPT) {
            const int64_t now = clock_ns();
            latency_add(a->latencies, c->tokens ? LATENCY_NEXT : LATENCY_FIRST,
                        now - (c->tokens ? c->last : a->began));
            c->last = now;
            c->tokens++, c->logprob += e->logprob;
            json_array_append_new(c->ids, json_integer(e->token));
        }
    }
    if (e->kind != EVENT_END && !(is_megatron(a) && e->kind == EVENT_PROMPT)) add_text(c, &e->token);
    if (e->kind == EVENT_END && e->finish == FINISH_STOP) c->end = e->token;
    const bool called = a->ask.single && c->tools.calls;
    if (e->kind == EVENT_END || c->text.stopped || called)
        end(a, c, ticket, called || e->finish == FINISH_STOP ? REASON_STOP : REASON_LENGTH);
    return SERVED;
}

Refusal answer_take(Answer *a, Ticket *ticket, const TicketEvents *events) {
    for (int64_t i = 0; i < events->n; i++) {
        const TicketEvent *e = &events->at[i];
        const LikelyToken *likeliest = events->n_likeliest ? events->likeliest + e->likeliest : NULL;
        REFUSE_UNLESS_SERVED(take(a, &a->choices[e->event.id], ticket, &e->event, likeliest));
    }
    return SERVED;
}

bool answer_done(const Answer *a) {
    for (int64_t i = 0; i < a->n; i++)
        if (!a->choices[i].ended) return false;
    return true;
}

Answer *answer_new(const Served *served, Ask *ask, Latencies *latencies) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    Answer *a = mem_zero(1, sizeof *a);
    *a = (Answer){.served = served,
                  .ask = *ask,
                  .n = ask->n_prompts * ask->best_of,
                  .created = now.tv_sec,
                  .latencies = latencies,
                  .began = clock_ns()};
    *ask = (Ask){0};
    /* The answer's address distinguishes it from answers that begin at the same time. */
    const struct {
        uint64_t ns, address;
    } unique = {(uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec, (uint64_t)(uintptr_t)a};
    const uint64_t number = hash64(&unique, sizeof unique, served->seed);
    a->seed = a->ask.seeded ? a->ask.seed : number;
    snprintf(a->id, sizeof a->id, "%s-%016llx", is_chat(a) ? "chatcmpl" : "cmpl", (unsigned long long)number);
    a->choices = mem_zero((size_t)a->n, sizeof *a->choices);
    for (int64_t i = 0; i < a->n; i++) {
        a->choices[i].prompt = &a->ask.prompts[i / a->ask.best_of];
        begin(a, &a->choices[i]);
    }
    return a;
}

void answer_free(Answer *a) {
    for (int64_t i = 0; i < a->n; i++) {
        text_free(&a->choices[i].text), tool_text_free(&a->choices[i].tools);
        str_free(&a->choices[i].fresh);
        json_decref(a->choices[i].logprobs), json_decref(a->choices[i].ids);
        json_decref(a->choices[i].prompt_logprobs), json_decref(a->choices[i].epochs);
    }
    free(a->choices);
    ask_free(&a->ask);
    free(a);
}

const char *answer_id(const Answer *a) { return a->id; }

Request *answer_requests(const Answer *a, int64_t *n) {
    Request *requests = mem_zero((size_t)a->n, sizeof *requests);
    for (int64_t i = 0; i < a->n; i++) {
        const TokenList *p = a->choices[i].prompt;
        requests[i] = (Request){.prompt = p->at,
                                .n = (int64_t)p->n,
                                .sampling = a->ask.sampling,
                                .seed = a->seed + (uint64_t)i,
                                .grammar = a->ask.grammar,
                                .n_grammar = a->ask.n_grammar,
                                .salt = a->ask.salt,
                                .n_salt = a->ask.salt ? (int64_t)strlen(a->ask.salt) : 0,
                                .min_new_tokens = a->ask.min_tokens,
                                .max_new_tokens = ask_max_tokens(a->served, &a->ask, (int64_t)p->n),
                                .ends = a->ask.ends,
                                .n_ends = a->ask.n_ends,
                                .logprobs = a->ask.logprobs || a->ask.best_of > a->ask.n,
                                .prompt_logprobs = repeats_prompt(a) || a->choices[i].prompt_logprobs,
                                .likeliest = larger(a->ask.likeliest, a->ask.prompt_likeliest)};
    }
    *n = a->n;
    return requests;
}

/* ---- JSON ---- */

static json_t *usage(const Answer *a) {
    json_int_t prompt = 0, fresh = 0, cached = 0;
    for (int64_t i = 0; i < a->ask.n_prompts; i++) prompt += (json_int_t)a->ask.prompts[i].n;
    for (const Choice *c = a->choices; c < a->choices + a->n; c++) {
        fresh += c->tokens;
        if (is_first(a, c)) cached += larger(c->cached, 0);
    }
    return json_pack("{s:I,s:I,s:I,s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", fresh,
                     "total_tokens", prompt + fresh, "prompt_tokens_details", "cached_tokens", cached);
}

static json_t *stop_reason(const Choice *c, const Answer *a) {
    if (c->text.stopped) return json_string(c->text.stopped);
    for (int64_t i = 0; i < a->served->n_ends && c->end >= 0; i++)
        if (a->served->ends[i] == c->end) return json_null();
    return c->end >= 0 ? json_integer(c->end) : json_null();
}

static json_t *ids_json(const TokenList *list) {
    json_t *ids = json_array();
    for (size_t i = 0; i < list->n; i++) json_array_append_new(ids, json_integer(list->at[i]));
    return ids;
}

static bool is_calling(const Choice *c) { return (int64_t)json_array_size(c->tools.calls) > c->calls; }

/* Returns the calls that have not been sent yet. In a stream, calls are numbered. An id has nine digits,
 * because Mistral's templates require nine digits. */
static json_t *calls_json(const Answer *a, const Choice *c, int64_t choice) {
    json_t *list = json_array();
    for (int64_t i = c->calls; i < (int64_t)json_array_size(c->tools.calls); i++) {
        char id[10];
        const int64_t place[] = {choice, i};
        snprintf(id, sizeof id, "%09llx",
                 (unsigned long long)(hash64(place, sizeof place, hash_name(a->id)) & 0xFFFFFFFFF));
        json_t *call = json_pack("{s:s,s:s,s:O}", "id", id, "type", "function", "function",
                                 json_array_get(c->tools.calls, (size_t)i));
        if (a->ask.stream) json_object_set_new(call, "index", json_integer(i));
        json_array_append_new(list, call);
    }
    return list;
}

/* Returns a choice as a JSON object with the text that has not been sent yet. */
static json_t *choice_json(const Answer *a, const Choice *c, int64_t index, const char *chat_member) {
    json_t *text = json_stringn(c->fresh.s ? c->fresh.s : "", c->fresh.len),
           *json = json_pack("{s:I,s:O?,s:s?,s:o}", "index", (json_int_t)index, "logprobs", c->logprobs,
                             "finish_reason",
                             !c->ended                  ? NULL
                             : c->reason != REASON_STOP ? "length"
                             : c->tools.calls           ? "tool_calls"
                                                        : "stop",
                             "stop_reason", stop_reason(c, a));
    const Choice *first = c - (c - a->choices) % a->ask.best_of;
    if (c->ended && c->epochs) json_object_set(json, "policy_epoch", c->epochs);
    if (c->ids) json_object_set(json, "token_ids", c->ids);
    if (first->prompt_logprobs && !is_chat(a))
        json_object_set(json, "prompt_logprobs", first->prompt_logprobs);
    if (c->ids && !c->begun) json_object_set_new(json, "prompt_token_ids", ids_json(c->prompt));
    if (!is_chat(a)) {
        json_object_set_new(json, "text", text);
        return json;
    }
    json_t *message = json_pack("{s:o}", "content", text);
    if (is_calling(c)) {
        if (!c->fresh.len) json_object_set_new(message, "content", json_null());
        json_object_set_new(message, "tool_calls", calls_json(a, c, index));
    }
    if (!c->begun) json_object_set_new(message, "role", json_string("assistant"));
    json_object_set_new(json, chat_member, message);
    return json;
}

static json_t *envelope(const Answer *a, const char *chat_kind, json_t *choices) {
    return json_pack("{s:s,s:s,s:I,s:s,s:o}", "id", a->id, "object",
                     is_chat(a) ? chat_kind : "text_completion", "created", (json_int_t)a->created, "model",
                     a->served->name, "choices", choices);
}

static double mean_logprob(const Choice *c) { return c->tokens ? c->logprob / (double)c->tokens : 0; }

/* Returns the next choice of a prompt or, if the answer contains only the best choices, the most likely
 * remaining choice. */
static Choice *next_choice(const Answer *a, int64_t prompt) {
    Choice *first = a->choices + prompt * a->ask.best_of, *best = NULL;
    for (Choice *c = first; c < first + a->ask.best_of; c++)
        if (!c->closed && (!best || (a->ask.best_of > a->ask.n && mean_logprob(c) > mean_logprob(best))))
            best = c;
    best->closed = true;
    return best;
}

static json_t *with_prompt(const Answer *a, int64_t choice) {
    const Str *fresh = &a->choices[choice].fresh;
    Str text = {0};
    const json_t *prompt = json_array_get(a->ask.texts, (size_t)choice);
    str_add(&text, json_string_value(prompt), json_string_length(prompt));
    str_add(&text, fresh->s, fresh->len);
    json_t *json = json_stringn(text.s, text.len);
    str_free(&text);
    return json;
}

/* Adds the newest version of the weights that computed the answer, as in SGLang. */
static void add_version(const Answer *a, json_t *json) {
    int64_t newest = 0;
    for (const Choice *c = a->choices; c < a->choices + a->n; c++) newest = larger(newest, c->epoch);
    if (a->served->stamps)
        json_object_set_new(json, "metadata", json_pack("{s:I}", "weight_version", (json_int_t)newest));
}

/* Returns the lists of a Megatron-LM answer. Each list has one element for each prompt. */
static json_t *megatron_json(const Answer *a) {
    json_t *json = json_pack("{s:[]}", "text");
    add_version(a, json);
    static const char *const KEYS[] = {"tokens", "segments", "logprobs"};
    for (int64_t i = 0; i < a->n; i++)
        json_array_append_new(json_object_get(json, "text"), with_prompt(a, i));
    for (int k = 0; k < 2 + a->ask.logprobs; k++) {
        json_t *list = json_array();
        json_object_set_new(json, KEYS[k], list);
        for (int64_t i = 0; i < a->n; i++)
            json_array_append(list, json_object_get(a->choices[i].logprobs, KEYS[k]));
    }
    return json;
}

json_t *answer_json(const Answer *a) {
    if (is_megatron(a)) return megatron_json(a);
    json_t *choices = json_array();
    for (int64_t i = 0; i < a->ask.n_prompts * a->ask.n; i++)
        json_array_append_new(choices, choice_json(a, next_choice(a, i / a->ask.n), i, "message"));
    json_t *json = envelope(a, "chat.completion", choices);
    json_object_set_new(json, "usage", usage(a));
    add_version(a, json);
    if (is_chat(a) && a->choices->prompt_logprobs)
        json_object_set(json, "prompt_logprobs", a->choices->prompt_logprobs);
    return json;
}

/* ---- streams ---- */

static void send(json_t *json, Str *out) {
    char *line = json_dumps(json, JSON_COMPACT);
    str_printf(out, "data: %s\n\n", line);
    free(line);
    json_decref(json);
}

/* Returns whether a choice has anything to send. A log-probability is sent only once the text of its token is
 * known. */
static bool is_due(const Answer *a, const Choice *c) {
    return !c->closed && (c->fresh.len || c->ended || is_calling(c) || (is_chat(a) && !c->begun));
}

static bool all_are_closed(const Answer *a) {
    for (const Choice *c = a->choices; c < a->choices + a->n; c++)
        if (!c->closed) return false;
    return true;
}

void answer_stream(Answer *a, Str *out) {
    for (Choice *c = a->choices; c < a->choices + a->n; c++) {
        if (!is_due(a, c)) continue;
        c->closed = c->ended;
        json_t *json = envelope(a, "chat.completion.chunk",
                                json_pack("[o]", choice_json(a, c, c - a->choices, "delta")));
        if (a->ask.usage) json_object_set_new(json, "usage", a->ask.usage_always ? usage(a) : json_null());
        if (!a->ask.usage && all_are_closed(a)) add_version(a, json);
        send(json, out);
        c->begun = true;
        c->calls = (int64_t)json_array_size(c->tools.calls);
        str_clear(&c->fresh);
        json_decref(c->logprobs);
        c->logprobs = new_logprobs(a);
        if (c->ids) json_decref(c->ids), c->ids = json_array();
    }
}

void answer_end(const Answer *a, const Refusal *refusal, Str *out) {
    if (refusal->status) {
        send(refusal_json(refusal), out);
    } else if (a->ask.usage) {
        json_t *json = envelope(a, "chat.completion.chunk", json_array());
        json_object_set_new(json, "usage", usage(a));
        add_version(a, json);
        send(json, out);
    }
    str_puts(out, "data: [DONE]\n\n");
}
