/* Tests the messages, states and signals of a fleet. */
#include "unit/infer/engine_alone.h"

#include "infer/fleet.h"
#include "infer/fleet_message.h"
#include "run/model_run.h"

/* ---- messages ---- */

static Words reader(const Words *w) { return (Words){.at = w->at, .n = w->n, .reads = true}; }

static void assert_same_request(const Request *a, const Request *b) {
    assert_memory_equal(a->prompt, b->prompt, (size_t)a->n * sizeof *a->prompt);
    assert_memory_equal(a->ends, b->ends, (size_t)a->n_ends * sizeof *a->ends);
    assert_int_equal(a->sampling.n_bias, b->sampling.n_bias);
    assert_memory_equal(a->salt, b->salt, (size_t)a->n_salt);
    assert_memory_equal(a->grammar, b->grammar, (size_t)a->n_grammar * sizeof *a->grammar);
    assert_memory_equal(a->sampling.allowed, b->sampling.allowed,
                        (size_t)a->sampling.n_allowed * sizeof(int32_t));
    assert_memory_equal(a->sampling.bad, b->sampling.bad, (size_t)a->sampling.n_bad * sizeof(int32_t));
    for (int64_t i = 0; i < a->sampling.n_bias; i++)
        assert_true(a->sampling.bias[i].id == b->sampling.bias[i].id &&
                    a->sampling.bias[i].bias == b->sampling.bias[i].bias);
    Request x = *a, y = *b;
    x.prompt = y.prompt, x.ends = y.ends, x.sampling.bias = y.sampling.bias, x.salt = y.salt,
    x.grammar = y.grammar;
    x.sampling.allowed = y.sampling.allowed, x.sampling.bad = y.sampling.bad;
    assert_memory_equal(&x, &y, sizeof x);
}

TEST(a_message_has_all_fields_of_an_order) {
    static const int32_t PROMPT[] = {7, -1, 30};
    static const int64_t ENDS[] = {3, INT64_MAX};
    static const TokenBias BIAS[] = {{7, 1.5}, {9, -100}};
    static const GrammarNode GRAMMAR[3] = {{.kind = 1, .next = -1}, {.low = 2, .other = 7}, {.high = 3}};
    Order orders[3];
    memset(orders, 0, sizeof orders); /* the padding of structs, too */
    Request *r = &orders[0].request;
    r->id = 5, r->prompt = PROMPT, r->n = 3, r->start = 4, r->seed = UINT64_MAX, r->stream = 8;
    r->sampling.temperature = 0.1, r->sampling.top_k = 2, r->sampling.top_p = 0.3, r->sampling.min_p = 0.4;
    r->sampling.presence = 0.5, r->sampling.frequency = -0.6, r->sampling.repetition = 0.7;
    r->sampling.bias = BIAS, r->sampling.n_bias = 2;
    r->sampling.allowed = PROMPT, r->sampling.n_allowed = 2, r->sampling.bad = PROMPT, r->sampling.n_bad = 3;
    r->min_new_tokens = 9, r->max_new_tokens = 10, r->ends = ENDS, r->n_ends = 2;
    r->salt = "salt of 17 bytes", r->n_salt = 17;
    r->grammar = GRAMMAR, r->n_grammar = 3;
    r->logprobs = true, r->prompt_logprobs = true, r->likeliest = 12;
    orders[1].kind = ORDER_ABORT, orders[1].number = 1, orders[1].replica = 6, orders[1].request.id = 5;
    orders[2].kind = ORDER_SIGNAL, orders[2].number = 2, orders[2].signal = SIGNAL_WEIGHTS;
    orders[2].path = "a path of 18 bytes", orders[2].n_path = 18;
    Words w = {0};
    for (int i = 0; i < 3; i++) order_write(&w, &orders[i]);
    Words all = reader(&w);
    for (int i = 0; i < 3; i++) {
        Order o;
        order_read(&all, &o);
        assert_true(!all.bad && o.kind == orders[i].kind && o.number == orders[i].number &&
                    o.replica == orders[i].replica && o.signal == orders[i].signal &&
                    o.n_path == orders[i].n_path);
        assert_memory_equal(o.path, orders[i].path, (size_t)o.n_path);
        assert_same_request(&orders[i].request, &o.request);
    }
    assert_int_equal(all.read, w.n);
    int64_t whole = 0;
    for (int64_t n = 0; n < w.n; n++) { /* a message that is too short */
        Words part = reader(&w);
        part.n = n;
        Order o;
        order_read(&part, &o);
        whole += !part.bad;
        assert_in_range(part.read, 0, n);
    }
    assert_int_equal(whole, w.n - 14 > 0 ? 14 : 0); /* those that lack only the orders of 5 and 9 words */
    for (int64_t i = 0; i < w.n; i++) {             /* any length or kind */
        for (int64_t value = -1; value; value = value < 0 ? INT64_MAX : value / 2) {
            const int64_t before = w.at[i];
            w.at[i] = value;
            Words changed = reader(&w);
            Order o;
            order_read(&changed, &o);
            assert_in_range(changed.read, 0, w.n);
            assert_true(changed.bad || (o.request.n <= 2 * w.n && o.request.n_ends <= w.n));
            w.at[i] = before;
        }
    }
    free(w.at);
}

TEST(a_message_has_all_fields_of_an_event) {
    static const LikelyToken LIKELY[] = {{3, -0.5}, {4, -1.5}};
    static const EngineEvent EVENTS[] = {
        {EVENT_TOKEN, 1, 2, 3, -0.25, LIKELY, 2, FINISH_STOP, 4, 5, 6},
        {EVENT_END, INT64_MAX, 6, -7, 0, NULL, 0, FINISH_WIDE, 0, 0, -1},
    };
    Words w = {0};
    for (int i = 0; i < 2; i++) event_write(&w, &EVENTS[i]);
    Words all = reader(&w);
    for (int i = 0; i < 2; i++) {
        EngineEvent e;
        event_read(&all, &e);
        const EngineEvent *want = &EVENTS[i];
        assert_true(!all.bad && e.kind == want->kind && e.id == want->id && e.index == want->index &&
                    e.token == want->token && e.logprob == want->logprob && e.finish == want->finish &&
                    e.cached == want->cached && e.waited_ns == want->waited_ns &&
                    e.weights == want->weights && e.n_likeliest == want->n_likeliest);
        assert_int_equal(e.likeliest == NULL, want->likeliest == NULL);
        for (int64_t k = 0; k < e.n_likeliest; k++)
            assert_true(e.likeliest[k].id == LIKELY[k].id && e.likeliest[k].logprob == LIKELY[k].logprob);
    }
    assert_int_equal(all.read, w.n);
    w.at[0] = EVENT_END + 1;
    Words wrong = reader(&w);
    EngineEvent e;
    event_read(&wrong, &e);
    assert_true(wrong.bad);
    free(w.at);
}

TEST(a_message_of_another_version_or_length_is_refused) {
    static const struct {
        int64_t version, words;
        const char *says;
    } CASES[] = {{FLEET_PROTOCOL, 0, NULL},
                 {FLEET_PROTOCOL, FLEET_MOST_WORDS, NULL},
                 {FLEET_PROTOCOL + 1, 0, "rank 3 sends messages of version"},
                 {0, 0, "rank 3 sends messages of version 0"},
                 {FLEET_PROTOCOL, -1, "rank 3 sends a message of -1 words"},
                 {FLEET_PROTOCOL, (int64_t)FLEET_MOST_WORDS + 1, "not a valid length"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const int64_t head[FLEET_HEAD] = {CASES[i].version, 0, 0, CASES[i].words};
        const Err e = head_check(head, FLEET_HEAD, 3);
        assert_int_equal(e.code, CASES[i].says ? (int)ERR_INFRA : 0);
        if (CASES[i].says && !strstr(e.msg, CASES[i].says))
            fail_msg("'%s' does not say '%s'", e.msg, CASES[i].says);
    }
}

/* ---- states ---- */

/* Megatron-LM's table: the state after each signal and the next step boundary. -: the signal is not allowed. */
TEST(each_signal_has_its_states) {
    static const struct {
        FleetState from;
        const char *pause, *unpause, *suspend, *resume, *stop, *weights, *boundary;
    } ROWS[] = {
        {FLEET_RUNNING, "pausing", "-", "-", "-", "-", "-", "running"},
        {FLEET_PAUSING, "-", "-", "-", "-", "-", "-", "paused"},
        {FLEET_PAUSED, "paused", "unpausing", "suspending", "-", "stopping", "paused", "paused"},
        {FLEET_UNPAUSING, "-", "-", "-", "-", "-", "-", "running"},
        {FLEET_SUSPENDING, "-", "-", "-", "-", "-", "-", "suspended"},
        {FLEET_SUSPENDED, "suspended", "-", "-", "resuming", "stopping", "suspended", "suspended"},
        {FLEET_RESUMING, "-", "-", "-", "-", "-", "-", "resumed"},
        {FLEET_RESUMED, "-", "-", "-", "-", "-", "-", "paused"},
        {FLEET_STOPPING, "-", "-", "-", "-", "-", "-", "stopped"},
        {FLEET_STOPPED, "-", "-", "-", "-", "-", "-", "stopped"},
    };
    _Static_assert(sizeof ROWS / sizeof *ROWS == FLEET_STATES, "a row for each state");
    for (int i = 0; i < FLEET_STATES; i++) {
        const char *const own = fleet_state_name(ROWS[i].from), *const want[SIGNALS] = {
                                                                    ROWS[i].pause,   ROWS[i].unpause,
                                                                    ROWS[i].suspend, ROWS[i].resume,
                                                                    ROWS[i].stop,    ROWS[i].weights};
        assert_int_equal(ROWS[i].from, i);
        for (int signal = 0; signal < SIGNALS; signal++) {
            FleetState s = ROWS[i].from;
            const Err e = fleet_state_signal(&s, (FleetSignal)signal);
            const bool refused = !strcmp(want[signal], "-");
            assert_int_equal(e.code, refused ? (int)ERR_USER : 0);
            assert_string_equal(fleet_state_name(s), refused ? own : want[signal]);
            if (refused && !strstr(e.msg, own)) fail_msg("'%s' does not name the state %s", e.msg, own);
        }
        assert_string_equal(fleet_state_name(fleet_state_settled(ROWS[i].from)), ROWS[i].boundary);
    }
}

/* ---- signals ---- */

enum { SUSPENDED_STEPS = 3, NEW_SEED = 77 };

typedef struct SignalRun {
    const Case *c;
    Case *next; /* with the parameters after SIGNAL_WEIGHTS */
    Config *config;
    Device *device; /* of rank 0 */
    double pools;   /* bytes of the pools */
    bool weights;
    KvCacheMode mode;
    RoutePolicy route;
    int64_t shared; /* number of prompt tokens that were in shared pages */
    Result got[REQUESTS];
    int64_t old[REQUESTS],
        stamped[REQUESTS]; /* number of tokens of the earlier parameters, first later one or 0 */
    int64_t events, suspensions;
} SignalRun;

static void take_stamped(void *arg, const EngineEvent *e) {
    SignalRun *run = arg;
    const int64_t i = 100 - e->id;
    if (e->weights && !run->stamped[i]) run->stamped[i] = e->index;
    assert_int_equal(e->weights, run->stamped[i] > 0);
    run->old[i] += !e->weights;
    run->events++;
    take(run->got, e);
}

static void signal_and_step(SignalRun *run, Fleet *f, FleetSignal signal, FleetState state) {
    const int64_t events = run->events;
    const FleetState before = fleet_state(f);
    assert_ok(fleet_signal(f, signal, NULL));
    assert_true(signal == SIGNAL_PAUSE || fleet_state(f) != before);
    const FleetState during = fleet_state(f);
    assert_int_equal(fleet_signal(f, SIGNAL_RESUME, NULL).code, ERR_USER);
    assert_int_equal(fleet_state(f), during);
    fleet_step(f, take_stamped, run);
    assert_int_equal(fleet_state(f), state);
    if (state != FLEET_RUNNING) assert_int_equal(run->events, events);
}

static void suspend(SignalRun *run, Fleet *f) {
    signal_and_step(run, f, SIGNAL_PAUSE, FLEET_PAUSED);
    const size_t before = run->device->allocated;
    signal_and_step(run, f, SIGNAL_SUSPEND, FLEET_SUSPENDED);
    const size_t suspended = run->device->allocated;
    const double pools = run->mode == KV_PERSIST ? 0 : run->pools;
    assert_true((double)(before - suspended) >= pools && run->pools > 0);
    for (int i = 0; i < SUSPENDED_STEPS; i++) assert_false(fleet_step(f, take_stamped, run));
    const EngineCounts counts = fleet_counts(f);
    if (run->config->derived.data_parallel_size == 1 && run->mode == KV_RECOMPUTE)
        assert_int_equal(counts.free_pages, counts.pages);
    signal_and_step(run, f, SIGNAL_RESUME, FLEET_RESUMED);
    fleet_step(f, take_stamped, run);
    assert_int_equal(fleet_state(f), FLEET_PAUSED);
    assert_true((double)(run->device->allocated - suspended) >= pools);
    signal_and_step(run, f, SIGNAL_UNPAUSE, FLEET_RUNNING);
    run->suspensions++;
}

/* A load that fails changes nothing. A running fleet loads nothing. */
static void change_weights(SignalRun *run, Fleet *f) {
    static const struct {
        const char *path;
        int code;
        int64_t weights;
    } LOADS[] = {{"missing", ERR_USER, 0}, {"new", 0, 1}};
    assert_int_equal(fleet_signal(f, SIGNAL_WEIGHTS, "new").code, ERR_USER);
    signal_and_step(run, f, SIGNAL_PAUSE, FLEET_PAUSED);
    if (run->mode == KV_OFFLOAD) signal_and_step(run, f, SIGNAL_SUSPEND, FLEET_SUSPENDED);
    for (size_t i = 0; i < sizeof LOADS / sizeof *LOADS; i++) {
        assert_ok(fleet_signal(f, SIGNAL_WEIGHTS, LOADS[i].path));
        assert_false(fleet_step(f, take_stamped, run));
        assert_int_equal(fleet_loaded(f).code, LOADS[i].code);
        assert_int_equal(fleet_counts(f).weights, LOADS[i].weights);
    }
    if (run->mode == KV_OFFLOAD) {
        signal_and_step(run, f, SIGNAL_RESUME, FLEET_RESUMED);
        fleet_step(f, take_stamped, run);
    }
    signal_and_step(run, f, SIGNAL_UNPAUSE, FLEET_RUNNING);
}

static void run_requests(SignalRun *run, Fleet *f) {
    int64_t steps = 0;
    for (int64_t i = 0, busy = 1; busy || i < REQUESTS; i++) {
        if (i < REQUESTS) assert_ok(fleet_add(f, &run->c->request[i]));
        if (run->weights && i == REQUESTS / 2) change_weights(run, f), steps++;
        if (!run->weights && i % 9 == 5) suspend(run, f);
        steps += busy = fleet_step(f, take_stamped, run);
    }
    /* The replicas run a step's passes at the same time. */
    const int64_t passes = fleet_counts(f).passes;
    run->shared = fleet_counts(f).shared;
    assert_true(passes > 0 && (!run->weights || passes <= steps));
}

static Err load(void *registry, const char *path) {
    if (strcmp(path, "new")) return err_user("'%s' contains no checkpoint", path);
    registry_init(registry, NEW_SEED);
    return ERR_OK;
}

static void run_rank(void *arg, Comm *comm) {
    SignalRun *run = arg;
    Device *device = device_cpu(1);
    ModelRun r;
    Fleet *f;
    model_run_new(&r, run->config, comm, device, MODEL_TRAINS);
    registry_init(r.model->registry, r.context.seed);
    const EngineLimits limits = {.page = PAGE,
                                 .pages = 9,
                                 .requests = 5,
                                 .tokens = 40,
                                 .shares_prefixes = true,
                                 .suspended = run->mode,
                                 .route = run->route,
                                 .route_alpha = 1};
    assert_ok(fleet_new(r.model, &r.context, &limits, &f));
    fleet_on_weights(f, load, r.model->registry);
    const double pools = engine_cache_bytes(r.model, &r.context, &limits);
    if (fleet_leads(f)) run->device = device, run->pools = pools;
    if (fleet_leads(f))
        run_requests(run, f);
    else
        fleet_follow(f);
    fleet_free(f);
    model_run_free(&r);
    device_free(device);
}

/* A request without tokens of the earlier parameters has the result of a new engine. Any other request has the earlier
 * parameters' tokens until the parameters change. */
static void compare(const SignalRun *run, int i) {
    const Result *got = &run->got[i], *want = &(run->old[i] ? run->c : run->next)->want[i];
    assert_int_equal(got->ended, 1);
    if (!run->old[i] || !run->stamped[i])
        assert_memory_equal(got, want, sizeof *got);
    else
        assert_memory_equal(got->tokens, want->tokens, (size_t)run->stamped[i] * sizeof *got->tokens);
}

TEST(signals_change_no_token_except_new_weights) {
    static const struct {
        int style, ranks;
        const char *words;
    } LAYOUTS[] = {{0, 1, ""},
                   {0, 3, ""},
                   {0, 2, "--pipeline-model-parallel-size 2"},
                   {6, 2, "--expert-model-parallel-size 2"},
                   {15, 2, "--pipeline-model-parallel-size 2"}};
    static const struct {
        bool weights;
        KvCacheMode mode;
        RoutePolicy route;
    } VARIANTS[] = {{false, KV_RECOMPUTE, 0},
                    {true, KV_RECOMPUTE, 0},
                    {false, KV_OFFLOAD, 0},
                    {true, KV_OFFLOAD, 0},
                    {false, KV_PERSIST, ROUTE_LOAD_BALANCED},
                    {false, KV_PERSIST, ROUTE_LONGEST_PREFIX}};
    SignalRun *run = mem_alloc(sizeof *run);
    Case *c = mem_alloc(sizeof *c), *next = mem_alloc(sizeof *next);
    for (size_t k = 0; k < sizeof LAYOUTS / sizeof *LAYOUTS; k++) {
        const char *const style = STYLES[LAYOUTS[k].style];
        memset(c, 0, sizeof *c), memset(next, 0, sizeof *next);
        case_init(c, style, device_cpu(1)), case_init(next, style, device_cpu(1));
        assert_ok(load(next->m->model->registry, "new"));
        run_alone(c), run_alone(next);
        int64_t shared[ROUTE_LONGEST_PREFIX + 1];
        for (size_t v = 0; v < sizeof VARIANTS / sizeof *VARIANTS; v++) {
            const bool weights = VARIANTS[v].weights;
            Setup *s = setup_new("%s %s --ranks %d", style, LAYOUTS[k].words, LAYOUTS[k].ranks);
            memset(run, 0, sizeof *run);
            run->c = c, run->next = next, run->config = &s->config, run->weights = weights;
            run->mode = VARIANTS[v].mode, run->route = VARIANTS[v].route;
            comm_threads(LAYOUTS[k].ranks, NULL, run_rank, run);
            int64_t old = 0, both = 0, fresh = 0;
            for (int i = 0; i < REQUESTS; i++) {
                compare(run, i);
                *(!run->old[i] ? &fresh : run->stamped[i] ? &both : &old) += 1;
            }
            assert_true(weights ? old && both && fresh : old == REQUESTS && run->suspensions > 5);
            if (VARIANTS[v].mode == KV_PERSIST) shared[run->route] = run->shared;
            setup_free(s);
        }
        if (LAYOUTS[k].ranks == 3) assert_true(shared[ROUTE_LONGEST_PREFIX] > shared[ROUTE_LOAD_BALANCED]);
        case_free(c), case_free(next);
    }
    free(c), free(next), free(run);
}
