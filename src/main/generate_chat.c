#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/text.h"
#include "main/generate.h"
#include "main/pools.h"
#include "server/text.h"

enum { PATIENCE_S = 365 * 24 * 3600 /* a user may take this long to write the next message */ };

/* The conversation's state on rank 0. */
typedef struct Talk {
    const GenerateJob *job;
    Fleet *fleet;
    json_t *messages;
    int64_t context, turn; /* `context` is the maximum number of tokens */
    TextStream text;       /* the answer's text */
    Str answer;
    Finish finish;
} Talk;

/* ---- reading ---- */

/* Reads a line from standard input, without its newline (\n or \r\n). Returns false at the end. */
static bool read_line(Str *line) {
    char *text = NULL;
    size_t size = 0;
    if (isatty(STDIN_FILENO)) fputs("> ", stdout);
    fflush(stdout);
    ssize_t n = getline(&text, &size, stdin);
    if (n > 0 && text[n - 1] == '\n') n -= 1 + (n > 1 && text[n - 2] == '\r');
    if (n >= 0) str_add(line, text, (size_t)n);
    free(text);
    return n >= 0;
}

/* ---- an answer ---- */

static void take_event(void *arg, const EngineEvent *event) {
    Talk *t = arg;
    const size_t before = t->answer.len;
    if (event->kind == EVENT_TOKEN) text_push(&t->text, event->token, &t->answer);
    if (event->kind == EVENT_END) t->finish = event->finish;
    if (event->kind == EVENT_END) text_end(&t->text, &t->answer);
    if (t->answer.len > before) {
        fwrite(t->answer.s + before, 1, t->answer.len - before, stdout);
        fflush(stdout);
    }
    if (event->kind == EVENT_TOKEN && t->text.stopped) fleet_abort(t->fleet, event->id);
}

/* Tokenizes the conversation as the prompt for the next answer. */
static Err encode(const Talk *t, int32_t **ids, int64_t *n) {
    const ChatRequest request = {.messages = t->messages, .add_generation_prompt = true, .local = true};
    const time_t seconds = time(NULL);
    struct tm now;
    Str text = {0};
    TokenSpan *spans = NULL;
    size_t count = 0;
    Err e = chat_render(t->job->chat, &request, localtime_r(&seconds, &now), &text);
    if (!e.code) e = chat_encode(t->job->chat, &text, ids, &spans, &count);
    *n = (int64_t)count;
    free(spans);
    str_free(&text);
    if (e.code || *n < t->context) return e;
    free(*ids);
    return err_user("the conversation has %s, but the model has room for only %" PRId64
                    " tokens including the answer: /clear begins a new conversation",
                    amount(*n, "token").s, t->context);
}

/* Generates the answer to a prompt. */
static Err generate_answer(Talk *t, const int32_t *ids, int64_t n) {
    const GenerateJob *j = t->job;
    const Config *c = &j->setup.config;
    const int64_t room = t->context - n;
    const bool limited = config_given(c, tokens_to_generate) && c->tokens_to_generate < room;
    const Request request = {.id = t->turn,
                             .prompt = ids,
                             .n = n,
                             .sampling = generate_sampling(j),
                             .seed = c->derived.random_seed,
                             .stream = (uint64_t)t->turn,
                             .max_new_tokens = limited ? c->tokens_to_generate : room,
                             .ends = j->ends,
                             .n_ends = j->n_ends};
    ERR_RETURN(fleet_add(t->fleet, &request));
    str_clear(&t->answer);
    t->finish = FINISH_STOP;
    text_begin(&t->text, j->setup.tokenizer, &j->stops, false, ids, (size_t)n);
    while (fleet_step(t->fleet, take_event, t)) continue;
    text_free(&t->text);
    putchar('\n');
    if (t->finish == FINISH_NAN)
        return err_user(
            "the model's logits are not finite; check the model's parameters, or use a higher precision "
            "(--lane)");
    if (t->finish == FINISH_LENGTH && !limited)
        fprintf(stderr, "note: the answer ends because the context of %s is full\n",
                amount(t->context, "token").s);
    return ERR_OK;
}

static void add_message(Talk *t, const char *role, const Str *content) {
    json_array_append_new(t->messages, json_pack("{s:s,s:o}", "role", role, "content",
                                                 json_stringn(content->s ? content->s : "", content->len)));
}

/* Answers a message. After an error, the conversation is unchanged. */
static Err answer(Talk *t, const Str *line) {
    int32_t *ids;
    int64_t n;
    ERR_RETURN(text_check("the message", line->s, line->len));
    add_message(t, "user", line);
    Err e = encode(t, &ids, &n);
    if (!e.code) {
        e = generate_answer(t, ids, n);
        free(ids);
    }
    if (e.code)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    else
        add_message(t, "assistant", &t->answer);
    t->turn++;
    return e;
}

/* ---- the conversation ---- */

static void converse(Talk *t) {
    Str line = {0};
    bool more = true;
    while (more) {
        str_clear(&line);
        more = read_line(&line);
        if (!more || (line.len && !strcmp(line.s, "/exit"))) break;
        if (line.len && !strcmp(line.s, "/clear")) {
            json_array_clear(t->messages);
        } else if (line.len) {
            const Err e = answer(t, &line);
            if (e.code) fprintf(stderr, "isotron: %s\n", e.msg);
        }
    }
    if (!more && isatty(STDIN_FILENO)) putchar('\n');
    str_free(&line);
}

/* Opens the engine. Its pool has pages for the entire context, or as many as fit into memory. Sets *tokens to the
 * number of tokens that fit into these pages. */
static Err open_fleet(const Config *c, const ModelRun *run, int64_t *tokens, Fleet **out) {
    const Model *m = run->model;
    EngineLimits limits = {.page = ENGINE_PAGE,
                           .pages = 1,
                           .requests = 1,
                           .tokens = ENGINE_PASS_TOKENS,
                           .shares_prefixes = true};
    const double states = engine_state_bytes(m, &run->context, 1),
                 most = pools_most_bytes(c, &run->context) - states,
                 pages = most / (engine_cache_bytes(m, &run->context, &limits) - states);
    const int64_t whole = engine_pages(m->plan.limit, ENGINE_PAGE);
    limits.pages = pages < 1 ? 1 : pages < (double)whole ? (int64_t)pages : whole;
    *tokens = m->plan.limit < limits.pages * ENGINE_PAGE ? m->plan.limit : limits.pages * ENGINE_PAGE;
    return fleet_new(m, &run->context, &limits, out);
}

Err generate_chat(const GenerateJob *j, const ModelRun *run, Comm *comm) {
    Talk t = {.job = j};
    ERR_RETURN(open_fleet(&j->setup.config, run, &t.context, &t.fleet));
    if (comm) comm_set_deadline(comm, PATIENCE_S);
    if (fleet_leads(t.fleet)) {
        t.messages = json_array();
        converse(&t);
        json_decref(t.messages);
        str_free(&t.answer);
    } else {
        fleet_follow(t.fleet);
    }
    fleet_free(t.fleet);
    return ERR_OK;
}
