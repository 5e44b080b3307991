/* Tests that requests have the same tokens and log-probabilities in all layouts as alone on one rank. */
#include "unit/infer/engine_alone.h"

#include "run/model_run.h"

enum { MOST_RANKS = 4 };

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
    {6, 2, BITWISE, "--expert-model-parallel-size 2"},
    {6, 4, BITWISE, "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2"},
    {6, 2, ROUNDED, SEQUENCE "--tensor-model-parallel-size 2"},
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
    Result got[MOST_RANKS][REQUESTS];
} RanksRun;

/* The replica that computes request i. The first one has most requests. */
static int replica_of(const Config *c, int i) { return i % 3 % (int)c->derived.data_parallel_size; }

static void run_rank(void *arg, Comm *comm) {
    RanksRun *run = arg;
    Device *device = device_cpu(1);
    ModelRun r;
    Engine *e;
    model_run_new(&r, run->config, comm, device, MODEL_TRAINS);
    registry_init(r.model->registry, r.context.seed);
    const EngineLimits limits = {
        .page = PAGE, .pages = 9, .encoder_pages = 9, .requests = 5, .tokens = 40, .shares_prefixes = true};
    assert_ok(engine_new(r.model, &r.context, &limits, &e));
    for (int i = 0; i < REQUESTS; i++)
        if (replica_of(run->config, i) == r.layout.mesh.coordinate[AXIS_DP])
            assert_ok(engine_add(e, &run->c->request[i]));
    while (engine_step(e, take, run->got[comm_rank(comm)])) continue;
    engine_free(e);
    model_run_free(&r);
    device_free(device);
}

static void compare(const LayoutRow *row, const TestModel *m, const Result *got, const Result *want) {
    const double bound = row->agrees == ROUNDED ? logprob_bound(m, want) : 0;
    if (got->n != want->n || memcmp(got->tokens, want->tokens, sizeof got->tokens))
        fail_msg("%s: the tokens of style %d differ", row->words, row->style);
    for (int64_t k = 0; k < got->n; k++)
        if (!(fabs(got->logprobs[k] - want->logprobs[k]) <= bound))
            fail_msg("%s: log-probability %lld of style %d is %.17g, alone it is %.17g", row->words,
                     (long long)k, row->style, got->logprobs[k], want->logprobs[k]);
}

TEST(results_are_those_of_one_rank) {
    Case *c = mem_alloc(sizeof *c);
    RanksRun *run = mem_alloc(sizeof *run);
    for (const LayoutRow *row = ROWS; row < ROWS + sizeof ROWS / sizeof *ROWS; row++) {
        memset(c, 0, sizeof *c), memset(run, 0, sizeof *run);
        case_init(c, STYLES[row->style], device_cpu(1));
        run_alone(c);
        Setup *s = setup_new("%s %s --ranks %d", STYLES[row->style], row->words, row->ranks);
        run->c = c, run->config = &s->config;
        s->config.sequence_parallel = false;
        comm_threads(row->ranks, NULL, run_rank, run);
        for (int rank = 0; rank < row->ranks; rank++)
            for (int i = 0; i < REQUESTS; i++) {
                const Layout l = model_run_layout(&s->config, rank, row->ranks);
                if (replica_of(&s->config, i) == l.mesh.coordinate[AXIS_DP])
                    compare(row, c->m, &run->got[rank][i], &c->want[i]);
            }
        setup_free(s);
        case_free(c);
    }
    free(c), free(run);
}
