/* Tests that requests have the same tokens and log-probabilities in all layouts as alone on one rank. */
#include "unit/infer/engine_alone.h"

#include "infer/fleet.h"
#include "run/model_run.h"

/* When requests arrive: all before the first step, or one in each step. ALONE: there is only one request. */
typedef enum Arrival { AT_START, OVER_TIME, ALONE } Arrival;
enum {
    MOST_RUNNING = 4, /* over time */
    ODD_PASS = 203,   /* more tokens than a prompt has; TP ranks fill it to a multiple */
};

/* Sharded weights change the order of sums, so log-probabilities then differ by rounding. */
typedef struct LayoutRow {
    int style; /* of STYLES */
    int ranks;
    enum { BITWISE, ROUNDED } agrees;
    const char *words;
} LayoutRow;

/* In training, experts need it on tensor-parallel ranks. Generation does not use it. */
#define SEQUENCE "--sequence-parallel "

static const LayoutRow ROWS[] = {
    {0, 2, BITWISE, "--pipeline-model-parallel-size 2"},
    {1, 2, BITWISE, "--pipeline-model-parallel-size 2"},
    {5, 2, BITWISE, "--pipeline-model-parallel-size 2"},
    {6, 2, BITWISE, "--pipeline-model-parallel-size 2"},
    {7, 2, BITWISE, "--pipeline-model-parallel-size 2"},
    {7, 4, BITWISE, "--pipeline-model-parallel-size 4"},
    {0, 4, BITWISE, "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|t|t|L"},
    {0, 2, BITWISE, "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|||tL"},
    {3, 2, BITWISE,
     "--mtp-num-layers 1 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|tmL"},
    {0, 2, ROUNDED, "--tensor-model-parallel-size 2"},
    {0, 4, ROUNDED, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"},
    {0, 3, BITWISE, ""},
    {7, 2, BITWISE, ""},
    {1, 2, BITWISE, ""},
    {0, 4, ROUNDED, "--tensor-model-parallel-size 2"},
    {1, 4, BITWISE, "--pipeline-model-parallel-size 2"},
    {6, 2, BITWISE, "--expert-model-parallel-size 2"},
    {6, 4, BITWISE, "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2"},
    {6, 2, ROUNDED, SEQUENCE "--tensor-model-parallel-size 2"},
    {11, 2, BITWISE, "--pipeline-model-parallel-size 2"},
    {11, 2, ROUNDED, "--tensor-model-parallel-size 2"},
    {11, 4, ROUNDED, "--tensor-model-parallel-size 4"},
    {13, 4, BITWISE, "--pipeline-model-parallel-size 2"},
    {14, 2, BITWISE, "--pipeline-model-parallel-size 2"},
    {14, 2, ROUNDED, "--tensor-model-parallel-size 2"},
    {14, 4, ROUNDED, SEQUENCE "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"},
    {15, 4, BITWISE, "--pipeline-model-parallel-size 2"},
    {6, 4, ROUNDED, SEQUENCE "--tensor-model-parallel-size 4"},
    {6, 2, ROUNDED,
     SEQUENCE "--tensor-model-parallel-size 2 --expert-model-parallel-size 2 "
              "--expert-tensor-parallel-size 1"},
    {6, 4, ROUNDED, SEQUENCE "--tensor-model-parallel-size 2 --expert-model-parallel-size 2"},
};

/* Two evaluations of the same logits may differ by the rounding of the longest sum in the four GEMMs of each layer. A
 * log-probability is a logit minus the logarithm of a sum over the vocabulary. */
static double logprob_bound(const TestModel *m, const Result *r) {
    const Derived *d = &m->setup->config.derived;
    double sums = 4 * (double)(m->setup->config.num_layers * d->ffn_hidden_size) + 2 * (double)d->vocab_size,
           most = 1;
    for (int64_t i = 0; i < r->n; i++) most = fmax(most, fabs(r->logprobs[i]));
    return 2 * sums * dtype_roundoff(m->run.dtype) * most;
}

typedef struct RanksRun {
    const Case *c;
    Config *config;
    Arrival arrival;
    Result got[REQUESTS];
    bool aborted[REQUESTS];
    Fleet *fleet;
} RanksRun;

/* Aborts some requests at their third token. */
static void take_and_abort(void *arg, const EngineEvent *e) {
    RanksRun *run = arg;
    const int64_t i = 100 - e->id;
    assert_false(run->aborted[i]);
    take(run->got, e);
    if (i % 4 || e->kind != EVENT_TOKEN || e->index < run->c->request[i].n + 2) return;
    assert_true(fleet_abort(run->fleet, e->id));
    run->aborted[i] = true;
}

static int64_t requests_of(Arrival a) { return a == ALONE ? 1 : REQUESTS; }

/* One request is aborted while it waits. More requests run than one replica may have. */
static void run_requests(RanksRun *run, Fleet *f) {
    const int64_t n = requests_of(run->arrival);
    int64_t most = 0;
    run->fleet = f;
    for (int64_t i = 0; run->arrival == AT_START && i < n; i++) assert_ok(fleet_add(f, &run->c->request[i]));
    for (int64_t i = 0, busy = 1; busy || i < n; i++) {
        if (run->arrival != AT_START && i < n) assert_ok(fleet_add(f, &run->c->request[i]));
        if (i == 7) run->aborted[i] = fleet_abort(f, run->c->request[i].id);
        busy = fleet_step(f, take_and_abort, run);
        if (most < fleet_counts(f).running) most = fleet_counts(f).running;
    }
    const int64_t replicas = run->config->derived.data_parallel_size;
    if (run->arrival == OVER_TIME)
        assert_in_range(most, replicas > 1 ? MOST_RUNNING + 1 : 1, MOST_RUNNING * replicas);
    const EngineCounts counts = fleet_counts(f);
    assert_int_equal(counts.waiting + counts.running, 0);
    assert_int_equal(counts.free_pages, counts.pages);
    assert_false(fleet_abort(f, 100));
}

/* A run with initial values. */
static void run_new(ModelRun *r, const Config *c, Comm *comm, Device *device) {
    const bool quantized = c->quantization != QUANTIZATION_NONE;
    Config plain = *c;
    ModelRun values, *from = quantized ? &values : r;
    plain.quantization = QUANTIZATION_NONE;
    model_run_new(from, quantized ? &plain : c, comm, device, MODEL_TRAINS);
    registry_init(from->model->registry, from->context.seed);
    if (!quantized) return;
    model_run_new(r, c, comm, device, MODEL_COMPUTES);
    take_values(r->model->registry, comm, from->model->registry);
    model_run_free(from);
}

static void run_rank(void *arg, Comm *comm) {
    RanksRun *run = arg;
    Device *device = device_cpu(1);
    ModelRun r;
    Fleet *f;
    run_new(&r, run->config, comm, device);
    const bool drafts = run->config->mtp_num_layers && run->config->pipeline_model_parallel_size == 1;
    const bool all = run->arrival == AT_START;
    const EngineLimits limits = {.page = PAGE,
                                 .pages = all ? 3 * REQUESTS : 9,
                                 .encoder_pages = 10,
                                 .requests = all ? REQUESTS : MOST_RUNNING,
                                 .tokens = all ? ODD_PASS : 40,
                                 .shares_prefixes = true,
                                 .speculation = {drafts ? 3 : 0, r.model, &r.context}};
    assert_ok(fleet_new(r.model, &r.context, &limits, &f));
    if (fleet_leads(f))
        run_requests(run, f);
    else
        fleet_follow(f);
    fleet_free(f);
    model_run_free(&r);
    device_free(device);
}

static void compare(const LayoutRow *row, const TestModel *m, const Result *got, const Result *want) {
    const double bound = row->agrees == ROUNDED ? logprob_bound(m, want) : 0;
    if (got->n != want->n || memcmp(got->tokens, want->tokens, sizeof got->tokens))
        fail_msg("%s: the tokens of style %d differ", row->words, row->style);
    assert_true(row->agrees == ROUNDED || got->likeliest == want->likeliest);
    for (int64_t k = 0; k < got->n; k++)
        if (!(fabs(got->logprobs[k] - want->logprobs[k]) <= bound))
            fail_msg("%s: log-probability %lld of style %d is %.17g, alone it is %.17g", row->words,
                     (long long)k, row->style, got->logprobs[k], want->logprobs[k]);
}

/* With one request, all replicas except one are idle. */
static void check_row(const LayoutRow *row, const Case *c, RanksRun *run, Arrival arrival) {
    memset(run, 0, sizeof *run);
    Setup *s = setup_new("%s %s --ranks %d", STYLES[row->style], row->words, row->ranks);
    run->c = c, run->config = &s->config, run->arrival = arrival;
    s->config.sequence_parallel = false;
    comm_threads(row->ranks, NULL, run_rank, run);
    for (int i = 0; i < requests_of(arrival); i++)
        if (!run->aborted[i]) compare(row, c->m, &run->got[i], &c->want[i]);
    int aborted = 0;
    for (int i = 0; i < REQUESTS; i++) aborted += run->aborted[i];
    assert_true(arrival != OVER_TIME || (run->aborted[7] && aborted > 1));
    setup_free(s);
}

TEST(results_are_those_of_one_rank) {
    Case *c = mem_alloc(sizeof *c);
    RanksRun *run = mem_alloc(sizeof *run);
    for (const LayoutRow *row = ROWS; row < ROWS + sizeof ROWS / sizeof *ROWS; row++) {
        memset(c, 0, sizeof *c);
        case_init(c, STYLES[row->style], device_cpu(1));
        run_alone(c);
        for (Arrival a = AT_START; a <= ALONE; a++) check_row(row, c, run, a);
        case_free(c);
    }
    free(c), free(run);
}
