#include "server/http.h"

#ifndef ISOTRON_MICROHTTPD

Err http_available(void) {
    return err_user(
        "this build has no HTTP server: install libmicrohttpd-dev (ci/install-deps), and build again");
}
Err http_start(const HttpOptions *options, const Served *served, Queue *queue, Http **out, int64_t *port) {
    (void)options, (void)served, (void)queue, (void)out, (void)port;
    return http_available();
}
void http_stop(Http *http) { (void)http; }

#else

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/answer.h"
#include "server/openapi.h"

enum {
    MAX_BODY = 16 << 20,
    MAX_CONNECTIONS = 4096,
    TIMEOUT_S = 60, /* time after which a client that reads or sends nothing is disconnected */
    BODY_S = 600,   /* time limit for receiving a body, in addition to --request-timeout */
    /* time after which a stream without events receives a comment, so that no proxy closes the stream */
    PING_MS = 2000,
    STREAM_BLOCK = 16 << 10,
    PATH_BYTES = 4095
};

#define MEGATRON     "/api"
#define PAGE_TYPE    "text/html; charset=utf-8"
#define METRICS_TYPE "text/plain; version=0.0.4"

struct Http {
    struct MHD_Daemon *daemon;
    HttpOptions options;
    const Served *served;
    Queue *queue;
    Latencies latencies;
};

/* A request, from its first line to the last byte of its answer. */
typedef struct Exchange {
    Http *http;
    struct MHD_Connection *connection;
    const char *method, *path;
    int64_t began;     /* time in ns (monotonic clock) */
    const char *allow; /* the allowed methods of the path, if the request has a different method */
    Str body;
    Refusal refusal; /* the reason why the headers or the body are refused */
    Answer *answer;  /* the answer to a text-generation request, or NULL */
    Ticket *ticket;
    Str unsent;  /* a stream's unsent text */
    size_t sent; /* number of bytes of `unsent` that have been sent */
    bool ended;  /* whether `unsent` contains the end of the stream */
} Exchange;

typedef enum MHD_Result Handler(Exchange *);

static int socket_of(const Exchange *x) {
    return MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

/* ---- answers ---- */

static enum MHD_Result respond(Exchange *x, int status, const char *type, struct MHD_Response *response) {
    if (type) MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (x->answer) MHD_add_response_header(response, "X-Request-Id", answer_id(x->answer));
    if (x->allow) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, x->allow);
    if (status == 429) MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (status == 401) MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    const enum MHD_Result queued = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result respond_json(Exchange *x, int status, json_t *json) {
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    return respond(x, status, "application/json",
                   MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE));
}

/* Returns the path without /v1. Megatron-LM's server and others accept their paths with and without /v1. */
static const char *unversioned(const char *path) { return strncmp(path, "/v1/", 4) ? path : path + 3; }

/* Returns a refusal as JSON. Megatron-LM's client expects a different object. */
static json_t *refusal_of(const Exchange *x, const Refusal *r) {
    return strcmp(unversioned(x->path), MEGATRON) ? refusal_json(r) : refusal_message(r);
}

static enum MHD_Result respond_refusal(Exchange *x, const Refusal *r) {
    return respond_json(x, r->status, refusal_of(x, r));
}

/* ---- texts ---- */

/* Returns the deadline for a request, in ns (monotonic clock). */
static int64_t deadline(const Exchange *x) {
    return x->http->options.timeout_s ? x->began + x->http->options.timeout_s * 1000000000 : INT64_MAX;
}

/* Waits for events. The connection has no timeout before the deadline. */
static TicketState take_events(Exchange *x, Refusal *refusal) {
    const int64_t left = (deadline(x) - clock_ns()) / 1000000;
    TicketEvents events;
    Err refused;
    if (left <= 0) {
        *refusal =
            refuse(504, NULL, "timeout",
                   "the request has run for %lld s (--request-timeout): request fewer tokens, or try later",
                   (long long)x->http->options.timeout_s);
        return TICKET_QUIET;
    }
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    const TicketState state =
        ticket_wait(x->ticket, socket_of(x), left < PING_MS ? left : PING_MS, &events, &refused);
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)TIMEOUT_S);
    *refusal =
        state == TICKET_HAS_EVENTS ? answer_take(x->answer, x->ticket, &events)
        : state == TICKET_REFUSED  ? refuse(400, NULL, NULL, "%s", refused.msg)
        : state == TICKET_STOPPED
            ? refuse(503, NULL, "stopping", "the server is shutting down: send the request to another server")
            : SERVED;
    ticket_events_free(&events);
    return state;
}

/* Copies the next part of a stream to libmicrohttpd. */
static ssize_t read_stream(void *arg, uint64_t at, char *to, size_t room) {
    Exchange *x = arg;
    (void)at;
    while (x->sent == x->unsent.len) {
        Refusal refusal = SERVED;
        str_clear(&x->unsent);
        x->sent = 0;
        if (x->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        const TicketState state = answer_done(x->answer) ? TICKET_HAS_EVENTS : take_events(x, &refusal);
        if (state == TICKET_LOST) return MHD_CONTENT_READER_END_WITH_ERROR;
        answer_stream(x->answer, &x->unsent);
        x->ended = refusal.status || answer_done(x->answer);
        if (state == TICKET_QUIET && !x->ended) str_puts(&x->unsent, ": waiting\n\n");
        if (x->ended) answer_end(x->answer, &refusal, &x->unsent);
    }
    const size_t left = x->unsent.len - x->sent, n = left < room ? left : room;
    memcpy(to, x->unsent.s + x->sent, n);
    x->sent += n;
    return (ssize_t)n;
}

static enum MHD_Result answer_streamed(Exchange *x) {
    answer_stream(x->answer, &x->unsent);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    return respond(x, 200, "text/event-stream; charset=utf-8", response);
}

static enum MHD_Result answer_whole(Exchange *x) {
    Refusal refusal = SERVED;
    while (!refusal.status && !answer_done(x->answer))
        if (take_events(x, &refusal) == TICKET_LOST) return MHD_NO;
    return refusal.status ? respond_refusal(x, &refusal) : respond_json(x, 200, answer_json(x->answer));
}

static Refusal submit(Exchange *x) {
    int64_t n;
    Request *requests = answer_requests(x->answer, &n);
    const QueueAnswer answer = queue_submit(x->http->queue, requests, n, &x->ticket);
    free(requests);
    if (answer == QUEUE_FULL)
        return refuse(429, NULL, "queue_full",
                      "too many requests are waiting (--max-queued-requests): try again later");
    if (answer == QUEUE_STOPS)
        return refuse(503, NULL, "stopping",
                      "the server is shutting down: send the request to another server");
    return SERVED;
}

static enum MHD_Result serve_texts(Exchange *x, Endpoint endpoint) {
    json_t *body = NULL;
    Ask ask = {0};
    Refusal refusal =
        request_parse(x->http->served, endpoint, x->body.s ? x->body.s : "", x->body.len, &body);
    if (!refusal.status) refusal = request_ask(x->http->served, endpoint, body, &ask);
    json_decref(body);
    const bool streamed = ask.stream;
    if (!refusal.status) {
        x->answer = answer_new(x->http->served, &ask, &x->http->latencies);
        refusal = submit(x);
    }
    ask_free(&ask);
    if (refusal.status) return respond_refusal(x, &refusal);
    return streamed ? answer_streamed(x) : answer_whole(x);
}

static enum MHD_Result serve_completions(Exchange *x) { return serve_texts(x, ENDPOINT_COMPLETIONS); }
static enum MHD_Result serve_chat(Exchange *x) { return serve_texts(x, ENDPOINT_CHAT); }
static enum MHD_Result serve_megatron(Exchange *x) { return serve_texts(x, ENDPOINT_MEGATRON); }

/* ---- the other endpoints ---- */

static enum MHD_Result serve_tokenize(Exchange *x) {
    const Served *served = x->http->served;
    json_t *body = NULL, *tokens = json_array();
    TokenList *lists = NULL;
    int64_t n = 0;
    Refusal refusal =
        request_parse(served, ENDPOINT_TOKENIZE, x->body.s ? x->body.s : "", x->body.len, &body);
    if (!refusal.status && json_is_array(json_object_get(body, "prompt")))
        refusal = refuse(400, "prompt", NULL, "'prompt' must be a string");
    if (!refusal.status) refusal = request_prompts(served, body, &lists, &n);
    for (size_t i = 0; !refusal.status && i < lists->n; i++)
        json_array_append_new(tokens, json_integer(lists->at[i]));
    for (int64_t i = 0; i < n; i++) free(lists[i].at);
    free(lists);
    json_decref(body);
    json_t *json = json_pack("{s:I,s:I,s:o}", "count", (json_int_t)json_array_size(tokens), "max_model_len",
                             (json_int_t)served->context, "tokens", tokens);
    if (!refusal.status) return respond_json(x, 200, json);
    json_decref(json);
    return respond_refusal(x, &refusal);
}

static Refusal detokenize(const Served *served, const json_t *body, json_t **out) {
    TokenList ids = {0};
    TextStream text;
    Str all = {0};
    const json_t *list = json_object_get(body, "tokens");
    const Refusal refusal = request_ids(served, "tokens", list, &ids);
    if (!refusal.status) {
        text_begin(&text, served->tokenizer, &(StopList){0}, false, NULL, 0);
        for (size_t i = 0; i < ids.n; i++) text_push(&text, ids.at[i], &all);
        text_end(&text, &all);
        text_free(&text);
        *out = json_pack("{s:o}", "prompt", json_stringn(all.s ? all.s : "", all.len));
    }
    str_free(&all);
    free(ids.at);
    return refusal;
}

static enum MHD_Result serve_detokenize(Exchange *x) {
    json_t *body = NULL, *json = NULL;
    Refusal refusal =
        request_parse(x->http->served, ENDPOINT_DETOKENIZE, x->body.s ? x->body.s : "", x->body.len, &body);
    if (!refusal.status) refusal = detokenize(x->http->served, body, &json);
    json_decref(body);
    return refusal.status ? respond_refusal(x, &refusal) : respond_json(x, 200, json);
}

/* Sends a page on which users can try the server. The page is self-contained, and may fetch only from this
 * server. */
static enum MHD_Result serve_page(Exchange *x) {
    static const unsigned char PAGE[] = {
#include "server/page.html.inc"
    };
    struct MHD_Response *response =
        MHD_create_response_from_buffer(sizeof PAGE, (void *)(uintptr_t)PAGE, MHD_RESPMEM_PERSISTENT);
    MHD_add_response_header(
        response, "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
    return respond(x, 200, PAGE_TYPE, response);
}

static json_t *model_json(const Served *s) {
    return json_pack("{s:s,s:s,s:I,s:s,s:I}", "id", s->name, "object", "model", "created",
                     (json_int_t)s->created, "owned_by", "isotron", "max_model_len", (json_int_t)s->context);
}

static enum MHD_Result serve_models(Exchange *x) {
    return respond_json(x, 200,
                        json_pack("{s:s,s:[o]}", "object", "list", "data", model_json(x->http->served)));
}

static enum MHD_Result serve_model(Exchange *x) {
    const Refusal refusal = request_model(x->http->served, unversioned(x->path) + strlen("/models/"));
    return refusal.status ? respond_refusal(x, &refusal) : respond_json(x, 200, model_json(x->http->served));
}

/* Sends the special tokens in the form that lm-evaluation-harness reads. */
static enum MHD_Result serve_tokenizer_info(Exchange *x) {
    const Tokenizer *t = x->http->served->tokenizer;
    const struct {
        const char *name;
        int32_t id;
    } known[] = {
        {"bos_token", tokenizer_bos(t)}, {"eos_token", tokenizer_eod(t)}, {"pad_token", tokenizer_pad(t)}};
    json_t *json = json_pack("{s:I}", "max_model_len", (json_int_t)x->http->served->context);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n;
        const char *text = known[i].id < 0 ? NULL : tokenizer_token_text(t, known[i].id, &n);
        json_object_set_new(json, known[i].name, text ? json_stringn(text, n) : json_null());
    }
    return respond_json(x, 200, json);
}

static enum MHD_Result serve_health(Exchange *x) {
    const bool stops = queue_counts(x->http->queue).closed;
    return respond_json(x, stops ? 503 : 200, json_pack("{s:s}", "status", stops ? "stopping" : "ok"));
}

static enum MHD_Result serve_metrics(Exchange *x) {
    const QueueCounts counts = queue_counts(x->http->queue);
    Str text = {0};
    metrics_print(&counts, &x->http->latencies, &text);
    return respond(x, 200, METRICS_TYPE,
                   MHD_create_response_from_buffer(text.len, text.s, MHD_RESPMEM_MUST_FREE));
}

/* ---- control ---- */

static enum MHD_Result respond_state(Exchange *x, FleetState state, int64_t weights) {
    return respond_json(
        x, 200,
        json_pack("{s:s,s:I}", "state", fleet_state_name(state), "weight_version", (json_int_t)weights));
}

static enum MHD_Result serve_state(Exchange *x) {
    const QueueCounts counts = queue_counts(x->http->queue);
    return respond_state(x, counts.state, counts.engine.weights);
}

/* Refuses a path that the engine's state does not allow. */
static Refusal refuse_state(const Exchange *x, FleetState state) {
    return refuse(409, NULL, "not_allowed", "%s is not allowed while the engine is %s: %s", x->path,
                  fleet_state_name(state),
                  state == FLEET_RUNNING     ? "send POST /pause first"
                  : state == FLEET_SUSPENDED ? "send POST /wake_up first"
                                             : "it only wakes up an engine after POST /sleep");
}

/* Sends a signal, and responds with the resulting state. Meanwhile, the connection has no timeout, because a
 * large model takes minutes to load. */
static enum MHD_Result send_signal(Exchange *x, FleetSignal signal, const char *path) {
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    const SignalResult result = queue_signal(x->http->queue, signal, path);
    MHD_set_connection_option(x->connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)TIMEOUT_S);
    const Err e = result.sent.code ? result.sent : result.loaded;
    const bool early = result.sent.code == ERR_USER;
    const int status = result.sent.code ? 503 : e.code == ERR_USER ? 400 : 500;
    const Refusal refusal =
        early ? refuse_state(x, result.state)
              : refuse(status, NULL, result.sent.code ? "not_allowed" : "not_loaded", "%s%s",
                       result.sent.code ? "" : "the weights are unchanged: ", e.msg);
    return e.code ? respond_refusal(x, &refusal) : respond_state(x, result.state, result.weights);
}

static enum MHD_Result send_bare_signal(Exchange *x, FleetSignal signal) {
    const Refusal refusal = refuse(400, NULL, NULL, "%s must not have a body: remove it", x->path);
    return x->body.len ? respond_refusal(x, &refusal) : send_signal(x, signal, NULL);
}

static enum MHD_Result serve_pause(Exchange *x) { return send_bare_signal(x, SIGNAL_PAUSE); }
static enum MHD_Result serve_resume(Exchange *x) { return send_bare_signal(x, SIGNAL_UNPAUSE); }
static enum MHD_Result serve_sleep(Exchange *x) { return send_bare_signal(x, SIGNAL_SUSPEND); }
static enum MHD_Result serve_wake_up(Exchange *x) { return send_bare_signal(x, SIGNAL_RESUME); }

/* Loads another checkpoint, like the path with the same name in SGLang. */
static enum MHD_Result serve_weights(Exchange *x) {
    json_t *body = NULL;
    Refusal refusal = fields_parse(ENDPOINT_WEIGHTS, x->body.s ? x->body.s : "", x->body.len, &body);
    const json_t *path = json_object_get(body, "model_path");
    const size_t n = json_string_length(path);
    if (!refusal.status && (!n || n > PATH_BYTES))
        refusal = refuse(400, "model_path", NULL,
                         "'model_path' must be the folder of a checkpoint, of at most %d bytes", PATH_BYTES);
    const enum MHD_Result result = refusal.status ? respond_refusal(x, &refusal)
                                                  : send_signal(x, SIGNAL_WEIGHTS, json_string_value(path));
    json_decref(body);
    return result;
}

static Handler serve_openapi;

#define ROUTE(method, path, handler, summary, ...)                                                           \
    { {method, path, summary, __VA_ARGS__}, handler }
static const struct Route {
    ApiPath api;
    Handler *handler;
} ROUTES[] = {
    ROUTE("GET", "/", serve_page, "Returns a page for trying the server in a browser.", .open = true,
          .type = PAGE_TYPE),
    ROUTE("POST", "/v1/completions", serve_completions, "Continues prompts.", .answer = "completion",
          .refused = "404 429 500 503 504", .has_body = true, .endpoint = ENDPOINT_COMPLETIONS,
          .required = "prompt"),
    ROUTE("POST", "/v1/chat/completions", serve_chat, "Continues messages.", .answer = "chat_completion",
          .refused = "404 429 500 503 504", .has_body = true, .endpoint = ENDPOINT_CHAT,
          .required = "messages"),
    ROUTE("PUT", MEGATRON, serve_megatron, "Continues prompts like Megatron-LM's server.",
          .answer = "megatron", .refused = "429 500 503 504", .refusal = "message", .has_body = true,
          .endpoint = ENDPOINT_MEGATRON, .required = "prompts"),
    ROUTE("GET", "/v1/models", serve_models, "Returns the model's name.", .answer = "models"),
    ROUTE("GET", "/v1/models/{model}", serve_model, "Returns a model.", .answer = "model_card",
          .refused = "404"),
    ROUTE("POST", "/tokenize", serve_tokenize, "Converts a text or messages to token ids.",
          .answer = "tokens", .refused = "404", .has_body = true, .endpoint = ENDPOINT_TOKENIZE),
    ROUTE("POST", "/detokenize", serve_detokenize, "Converts token ids to text.", .answer = "prompt",
          .refused = "404", .has_body = true, .endpoint = ENDPOINT_DETOKENIZE, .required = "tokens"),
    ROUTE("GET", "/tokenizer_info", serve_tokenizer_info, "Returns the special tokens.",
          .answer = "tokenizer_info"),
    ROUTE("GET", "/health", serve_health, "Returns status 200, or 503 if the server is shutting down.",
          .answer = "health", .also = "503", .open = true),
    ROUTE("GET", "/metrics", serve_metrics, "Returns metrics for Prometheus.", .open = true,
          .type = METRICS_TYPE),
    ROUTE("GET", "/openapi.json", serve_openapi, "Describes the server.", .answer = "openapi", .open = true),
    ROUTE("GET", "/state", serve_state, "Returns the engine's state.", .answer = "state", .control = true),
    ROUTE("POST", "/pause", serve_pause, "Stops the model's passes.", .answer = "state", .refused = "409 503",
          .control = true),
    ROUTE("POST", "/resume", serve_resume, "Continues after /pause.", .answer = "state", .refused = "409 503",
          .control = true),
    ROUTE("POST", "/sleep", serve_sleep, "Releases the KV cache of a paused engine.", .answer = "state",
          .refused = "409 503", .control = true),
    ROUTE("POST", "/wake_up", serve_wake_up, "Allocates the KV cache again. The engine is then paused.",
          .answer = "state", .refused = "409 503", .control = true),
    ROUTE("POST", "/update_weights_from_disk", serve_weights,
          "Loads another checkpoint's weights into a paused engine.", .answer = "state",
          .refused = "409 500 503", .control = true, .has_body = true, .endpoint = ENDPOINT_WEIGHTS,
          .required = "model_path"),
};
enum { N_ROUTES = sizeof ROUTES / sizeof *ROUTES };

static enum MHD_Result serve_openapi(Exchange *x) {
    const Served *served = x->http->served;
    json_t *paths = json_object();
    for (const struct Route *r = ROUTES; r < ROUTES + N_ROUTES; r++) {
        ApiPath path = r->api;
        if (path.control && !x->http->options.control) continue;
        path.open = path.open || !x->http->options.api_key;
        json_object_set_new(paths, path.path, openapi_path(&path));
    }
    return respond_json(x, 200, openapi_document(paths, served->name, served->vocab));
}

/* ---- requests ---- */

/* Compares strings in time that does not depend on the position of the first difference. */
static bool is_key(const char *key, const char *header) {
    static const char SCHEME[] = "Bearer ";
    if (!header || strncasecmp(header, SCHEME, strlen(SCHEME))) return false;
    const char *given = header + strlen(SCHEME);
    const size_t n = strlen(given), length = strlen(key);
    unsigned differs = n != length;
    for (size_t i = 0; i < n; i++) differs |= (unsigned char)(given[i] ^ key[i % length]);
    return !differs;
}

/* Returns whether a route serves a path. A route that ends in {model} serves every path with a text instead of
 * {model}. */
static bool is_route(const struct Route *route, const char *path) {
    const char *own = unversioned(route->api.path), *given = unversioned(path);
    const size_t n = strcspn(own, "{");
    return !strncmp(own, given, n) && !own[n] == !given[n];
}

static enum MHD_Result dispatch(Exchange *x) {
    const char *key = x->http->options.api_key,
               *header =
                   MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const struct Route *route = ROUTES;
    while (route < ROUTES + N_ROUTES && !is_route(route, x->path)) route++;
    const bool closed = route < ROUTES + N_ROUTES && route->api.control && !x->http->options.control;
    Refusal refusal = SERVED;
    if (x->refusal.status)
        refusal = x->refusal;
    else if (closed || route == ROUTES + N_ROUTES)
        refusal = refuse(404, NULL, NULL, "this server has no path %s%s", quote(x->path).s,
                         closed ? ": start it with --enable-control" : "");
    else if (key && !route->api.open && !is_key(key, header))
        refusal = refuse(401, NULL, "invalid_api_key",
                         "the request needs the server's key: add the header \"Authorization: Bearer KEY\"");
    else if (strcmp(x->method, route->api.method) &&
             (strcmp(x->method, "HEAD") || strcmp(route->api.method, "GET")))
        x->allow = strcmp(route->api.method, "GET") ? route->api.method : "GET, HEAD",
        refusal = refuse(405, NULL, NULL, "%s needs the method %s", route->api.path, route->api.method);
    return refusal.status ? respond_refusal(x, &refusal) : route->handler(x);
}

static Refusal refuse_long(void) {
    return refuse(413, NULL, NULL, "the body is longer than %d MiB: send a shorter body", MAX_BODY >> 20);
}

typedef struct BodyHeaders {
    int ends;           /* number of headers that describe where the body ends */
    const char *coding; /* a Content-Encoding that is not supported, or NULL */
} BodyHeaders;

static enum MHD_Result read_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    BodyHeaders *headers = arg;
    (void)kind;
    headers->ends += !strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) ||
                     !strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    if (!strcasecmp(name, MHD_HTTP_HEADER_CONTENT_ENCODING) && (!value || strcasecmp(value, "identity")))
        headers->coding = value ? value : "";
    return MHD_YES;
}

/* Checks the headers that describe the body. If there were several such headers, a proxy could see a different end of
 * the body (request smuggling). */
static Refusal check_headers(struct MHD_Connection *c) {
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH),
               *transfer = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    BodyHeaders headers = {0};
    MHD_get_connection_values(c, MHD_HEADER_KIND, read_header, &headers);
    if (headers.ends > 1 || (transfer && strcasecmp(transfer, "chunked")))
        return refuse(
            400, NULL, NULL,
            "it is not clear where the body ends: send one Content-Length, or the Transfer-Encoding "
            "chunked");
    if (headers.coding)
        return refuse(415, NULL, NULL, "the body has the Content-Encoding %s: send it without",
                      quote(headers.coding).s);
    return length && strtoull(length, NULL, 10) > MAX_BODY ? refuse_long() : SERVED;
}

/* Ends a request whose body arrives too slowly, because libmicrohttpd sends no answer before the end of a body. */
static enum MHD_Result end_slow_body(Exchange *x) {
    const Refusal refusal =
        refuse(408, NULL, "timeout", "the body was not complete in time: send the request again");
    json_t *json = refusal_of(x, &refusal);
    char *text = json_dumps(json, JSON_COMPACT),
         *answer = mem_printf("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
                              "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                              strlen(text), text);
    send(socket_of(x), answer, strlen(answer), MSG_DONTWAIT | MSG_NOSIGNAL);
    free(answer), free(text);
    json_decref(json);
    return MHD_NO;
}

/* libmicrohttpd calls this function after the headers, for each part of the body, and at the end of the body. */
static enum MHD_Result receive(void *arg, struct MHD_Connection *connection, const char *path,
                               const char *method, const char *version, const char *data, size_t *n,
                               void **state) {
    (void)version;
    Exchange *x = *state;
    if (!x) {
        *state = x = mem_zero(1, sizeof *x);
        *x = (Exchange){
            .http = arg, .connection = connection, .method = method, .path = path, .began = clock_ns()};
        x->refusal = check_headers(connection);
        return x->refusal.status ? dispatch(x) : MHD_YES;
    }
    if (!*n) return dispatch(x);
    const int64_t until = x->began + BODY_S * INT64_C(1000000000);
    if (clock_ns() > (until < deadline(x) ? until : deadline(x))) return end_slow_body(x);
    if (*n > MAX_BODY - x->body.len) x->refusal = refuse_long();
    if (!x->refusal.status) str_add(&x->body, data, *n);
    *n = 0;
    return MHD_YES;
}

static void complete(void *arg, struct MHD_Connection *connection, void **state,
                     enum MHD_RequestTerminationCode code) {
    (void)arg, (void)connection, (void)code;
    Exchange *x = *state;
    if (!x) return;
    if (x->ticket) ticket_release(x->ticket);
    if (x->answer) answer_free(x->answer);
    str_free(&x->body), str_free(&x->unsent);
    free(x);
    *state = NULL;
}

/* Decodes %-sequences in place, unless one represents a zero byte, which would end the path. Returns the
 * length. */
static size_t unescape(void *arg, struct MHD_Connection *connection, char *s) {
    (void)arg, (void)connection;
    return strstr(s, "%00") ? strlen(s) : MHD_http_unescape(s);
}

/* ---- the server ---- */

Err http_available(void) { return ERR_OK; }

/* Raises the limit on descriptors, because each connection needs up to two. */
static void raise_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static Err resolve(const HttpOptions *options, struct addrinfo **out) {
    char port[8];
    snprintf(port, sizeof port, "%d", (int)options->port);
    const struct addrinfo hints = {
        .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const int e = getaddrinfo(options->host, port, &hints, out);
    return e ? err_user("--host %s is not an address of this machine: %s", quote(options->host).s,
                        gai_strerror(e))
             : ERR_OK;
}

Err http_start(const HttpOptions *options, const Served *served, Queue *queue, Http **out, int64_t *port) {
    struct addrinfo *address;
    ERR_RETURN(resolve(options, &address));
    raise_descriptors();
    Http *http = mem_zero(1, sizeof *http);
    http->options = *options, http->served = served, http->queue = queue;
    const unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL |
                           (address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0u);
    http->daemon = MHD_start_daemon(flags, (uint16_t)options->port, NULL, NULL, receive, http,
                                    MHD_OPTION_SOCK_ADDR, address->ai_addr, MHD_OPTION_NOTIFY_COMPLETED,
                                    complete, NULL, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
                                    MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
                                    MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_END);
    const int why = errno;
    freeaddrinfo(address);
    if (!http->daemon) {
        free(http);
        return err_user(
            "cannot listen on --host %s --port %lld: %s; choose another port, or 0 for any free port",
            quote(options->host).s, (long long)options->port, strerror(why));
    }
    *port = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    *out = http;
    return ERR_OK;
}

void http_stop(Http *http) {
    MHD_stop_daemon(http->daemon);
    free(http);
}

#endif
