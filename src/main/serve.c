#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/text.h"
#include "ckpt/hf/tokens.h"
#include "comm/agree.h"
#include "main/draft.h"
#include "main/pools.h"
#include "run/launch.h"
#include "run/model_run.h"
#include "run/source.h"
#include "server/constraint.h"
#include "server/http.h"

enum {
    REQUESTS = 256, /* default number of concurrent requests */
    TURN_MS = 50,
    UNREAD_BYTES = 16 << 20,
    UNREAD_MS = 10000,
    GRACE_S = 2, /* seconds allowed for writing answers after the deadline */
};
static const int64_t NS_PER_S = 1000000000;

typedef struct ServeJob {
    Setup setup, draft;
    Chat *chat;
    Vocabulary *vocabulary;
    int64_t *ends, n_ends;
} ServeJob;

/* ---- the page pool ---- */

/* Sets the engine's limits. A replica's pool has pages for all requests that the replica can run, or as many pages as
 * fit into its memory. All ranks must call this function, and all ranks get the same result. */
static Err find_limits(const ServeJob *j, const ModelRun *r, const Speculation *speculation,
                       EngineLimits *out) {
    const Config *c = &j->setup.config;
    const int64_t page = c->inference_dynamic_batching_block_size,
                  requests = i64_or(c->inference_dynamic_batching_max_requests, REQUESTS),
                  each = engine_pages(r->model->plan.limit, page);
    const EngineLimits one = {.page = page, .pages = 1, .speculation = *speculation};
    const double bytes = engine_cache_bytes(r->model, &r->context, &one),
                 have = (double)device_memory_available(r->device),
                 states = engine_state_bytes(r->model, &r->context, requests),
                 most = pools_most_bytes(c, &r->context) - states;
    const double whole = (double)requests * (double)each, pages = most < whole * bytes ? most / bytes : whole;
    if (pages < 1)
        return err_user(
            "--inference-dynamic-batching-buffer-size-gb %g is less than one page of the KV cache, which "
            "takes %s for %s, and the states of %s, which take %s: raise it, or lower "
            "--inference-dynamic-batching-block-size or --inference-dynamic-batching-max-requests",
            c->inference_dynamic_batching_buffer_size_gb, bytes_text(bytes).s, amount(page, "token").s,
            amount(requests, "request").s, bytes_text(states).s);
    if (pages * bytes + states > have)
        return err_user(
            "--inference-dynamic-batching-buffer-size-gb %g is more than the available memory of %s: "
            "lower it",
            c->inference_dynamic_batching_buffer_size_gb, bytes_text(have).s);
    const int64_t checked = requests * (1 + speculation->tokens),
                  tokens = i64_or(c->inference_dynamic_batching_max_tokens,
                                  checked > ENGINE_PASS_TOKENS ? checked : ENGINE_PASS_TOKENS);
    *out = (EngineLimits){.page = page,
                          .pages = (int64_t)pages,
                          .requests = requests,
                          .tokens = tokens,
                          .shares_prefixes = true,
                          .speculation = *speculation,
                          .suspended = c->rl_kv_cache_management_mode,
                          .route = c->inference_dynamic_batching_prefix_caching_coordinator_policy,
                          .route_alpha = c->inference_dynamic_batching_prefix_caching_routing_alpha,
                          .vocabulary = j->vocabulary};
    return ERR_OK;
}

/* ---- serving ---- */

static Served served_of(const ServeJob *j, const ModelRun *r, const EngineLimits *limits, int64_t running) {
    const Config *c = &j->setup.config;
    const int64_t positions = r->model->plan.limit, room = limits->pages * limits->page;
    return (Served){.name = c->served_model_name ? c->served_model_name : c->load,
                    .created = (int64_t)time(NULL),
                    .tokenizer = j->setup.tokenizer,
                    .chat = j->chat,
                    .ends = j->ends,
                    .n_ends = j->n_ends,
                    .vocab = r->model->plan.vocab,
                    .context = positions < room ? positions : room,
                    .choices = running + c->max_queued_requests,
                    .seed = c->derived.random_seed,
                    .stamps = c->enable_control};
}

/* The state for the thread that ends the server after a signal. */
typedef struct Ending {
    Queue *queue;
    int64_t timeout_s;
    atomic_bool interrupted; /* whether another rank has received the signal */
    atomic_bool done;        /* whether the engine's thread has finished its work */
} Ending;

/* Prints a line, or skips it if writing would block, for example because stderr is a full pipe. */
static void tell(const char *line) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) == 1 && out.revents & POLLOUT) fputs(line, stderr);
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); }

/* The thread that ends the server after a signal, even during a long forward pass. */
static void *end_after_signal(void *arg) {
    Ending *x = arg;
    while (!x->interrupted && !interrupt_poll()) nap();
    const int64_t deadline = clock_ns() + x->timeout_s * NS_PER_S;
    char line[100];
    snprintf(line, sizeof line, "  the server ends when its requests have ended, or after %lld s\n",
             (long long)x->timeout_s);
    tell(line);
    queue_close(x->queue);
    while (queue_counts(x->queue).tickets && clock_ns() < deadline) nap();
    queue_stop(x->queue);
    const int64_t last = clock_ns() + 2 * GRACE_S * NS_PER_S;
    while (!x->done && clock_ns() < last) nap();
    if (!x->done) {
        tell("  the server ends during a model pass\n");
        fflush(NULL);
        _exit(0);
    }
    return NULL;
}

/* Runs passes until a signal has arrived and the time limit after the signal has expired. Then the last
 * answers are sent. */
static void serve_until_signal(const Config *c, Queue *queue, Fleet *fleet, Http *http) {
    Ending ending = {.queue = queue, .timeout_s = c->shutdown_timeout};
    pthread_t thread;
    const int e = pthread_create(&thread, NULL, end_after_signal, &ending);
    CHECK(!e, "cannot start a thread: %s", strerror(e));
    while (!queue_counts(queue).stopped) {
        queue_turn(queue, fleet, TURN_MS);
        ending.interrupted = fleet_interrupted(fleet);
    }
    const int64_t last = clock_ns() + GRACE_S * NS_PER_S;
    do queue_turn(queue, fleet, TURN_MS); /* at least once, for signals that connections are waiting for */
    while (queue_counts(queue).tickets && clock_ns() < last);
    http_stop(http);
    queue_turn(queue, fleet, 0); /* removes the tickets of connections that http_stop has closed */
    ending.done = true;
    pthread_join(thread, NULL);
}

/* Called if a rank is lost. Makes the connections answer their requests before the process ends. */
static void answer_all(void *arg) {
    Queue *queue = arg;
    const int64_t last = clock_ns() + GRACE_S * NS_PER_S;
    queue_stop(queue);
    while (queue_counts(queue).connected && clock_ns() < last) nap();
}

/* Runs the server on rank 0. The other ranks follow rank 0. */
static Err serve_with(ServeJob *j, const ModelRun *r, const EngineLimits *limits, Fleet *fleet) {
    const Config *c = &j->setup.config;
    const int64_t replicas = c->derived.data_parallel_size, running = limits->requests * replicas;
    const Served served = served_of(j, r, limits, running);
    const HttpOptions options = {c->host, c->port, c->api_key, c->enable_control, c->request_timeout};
    Queue *queue = queue_new((QueueLimits){running, c->max_queued_requests, UNREAD_BYTES, UNREAD_MS});
    const CommFarewell farewell = {answer_all, queue};
    Http *http = NULL;
    int64_t port;
    queue_turn(queue, fleet, 0); /* so that the first metrics contain the engine's numbers */
    const Err e = http_start(&options, &served, queue, &http, &port);
    if (!e.code) {
        const bool is_ipv6 = strchr(c->host, ':');
        printf("serving %s at http://%s%s%s:%lld: a context of %s, %s of the KV cache, %s at a time\n",
               served.name, is_ipv6 ? "[" : "", c->host, is_ipv6 ? "]" : "", (long long)port,
               amount(served.context, "token").s, amount(limits->pages * replicas, "page").s,
               amount(running, "request").s);
        fflush(stdout);
        if (r->comm) comm_set_farewell(r->comm, &farewell);
        serve_until_signal(c, queue, fleet, http);
        if (r->comm) comm_set_farewell(r->comm, NULL);
    }
    queue_free(queue);
    return e;
}

static Err load_weights(void *arg, const char *path) { return model_run_reload(arg, path); }

static Err serve_model(ServeJob *j, ModelRun *r, const Speculation *speculation) {
    EngineLimits limits;
    Fleet *fleet;
    ERR_RETURN(comm_agree(r->comm, find_limits(j, r, speculation, &limits)));
    ERR_RETURN(fleet_new(r->model, &r->context, &limits, &fleet));
    fleet_on_weights(fleet, load_weights, r);
    Err e = ERR_OK;
    if (!fleet_leads(fleet) && comm_processes() > 1) fleet_on_interrupt(fleet, interrupt_poll);
    if (fleet_leads(fleet))
        e = serve_with(j, r, &limits, fleet);
    else
        fleet_follow(fleet);
    fleet_free(fleet);
    return comm_agree(r->comm, e);
}

static Err serve_on_rank(void *arg, Comm *comm) {
    ServeJob *j = arg;
    ModelRun r, draft;
    Speculation speculation;
    ERR_RETURN(model_run_open(&r, &j->setup.config, comm));
    Err e = draft_open(&j->setup, &j->draft, &r, &draft, &speculation);
    if (!e.code) {
        e = serve_model(j, &r, &speculation);
        draft_close(&j->setup, &draft);
    }
    model_run_close(&r);
    return e;
}

static Err find_ends(ServeJob *j) {
    Ckpt *c;
    ERR_RETURN(setup_checkpoint(j->setup.config.load, j->setup.config.ckpt_step, &c));
    const json_t *ids = json_object_get(ckpt_manifest(c)->state, HF_TOKENS);
    setup_ends(&j->setup, ids, &j->ends, &j->n_ends);
    if (comm_process() <= 0) setup_note_special(&j->setup, ids);
    ckpt_close(c);
    return ERR_OK;
}

static Err serve_run(void *arg) {
    ServeJob *j = arg;
    Setup *s = &j->setup;
    const char *name = s->config.served_model_name ? s->config.served_model_name : s->config.load;
    ERR_RETURN(http_available());
    ERR_RETURN(text_check("--served-model-name", name, strlen(name)));
    ERR_RETURN(setup_finish_for_text(s));
    ERR_RETURN(draft_setup(s, &j->draft));
    ERR_RETURN(find_ends(j));
    ERR_RETURN(chat_open(s->config.tokenizer_model, s->tokenizer, &j->chat));
    j->vocabulary = constraint_vocabulary(s->tokenizer);
    interrupt_block();
    return world_run(&s->config, serve_on_rank, j);
}

int command_serve(int argc, char **argv) {
    ServeJob j = {.setup = {.arena = arena_new()}, .draft = {.arena = arena_new()}};
    Setup *s = &j.setup;
    Args args;
    args_init(
        &args, s->arena,
        "isotron serve --load DIR [options]\n\n"
        "Answers HTTP requests with the model of a checkpoint: POST /v1/completions and "
        "/v1/chat/completions, GET /v1/models, as in OpenAI's API; POST /tokenize and /detokenize; "
        "GET /health and /metrics. After SIGTERM, the server completes its current requests and ends.\n\n"
        "example: isotron serve --load checkpoints --port 5000",
        NULL);
    Err e = config_parse(&s->config, &args, USE_SERVE, 0, argc, argv);
    Err loaded = args.help ? ERR_OK : source_args(&s->config, s->arena, &args.notes);
    if (!args.help && !loaded.code) loaded = world_size(&s->config);
    if (!args.help && !loaded.code) {
        config_check(&s->config, CHECK_MODEL | CHECK_SERVE, &args);
        e = args_end(&args);
    } else if (!e.code) {
        e = loaded;
    }
    const int status = command_finish(&args, e, serve_run, &j);
    chat_free(j.chat);
    vocabulary_free(j.vocabulary);
    free(j.ends);
    setup_free(s), setup_free(&j.draft);
    return status;
}
