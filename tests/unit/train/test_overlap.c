/* Tests that communication operations are in progress while ops compute, unless the option for this is off. The
 * flight recorder shows which operations have been started, but not waited for, when an op runs. */
#include "comm/transport.h"
#include "param/bucket.h"
#include "run/launch.h"
#include "unit/err.h"
#include "unit/train/ranks_step.h"

enum { RANKS = 2 };

typedef struct Claim {
    const char *layout, *off; /* off: the option that disables the overlap or the operation */
    CommKind kind;
    const char *site, *during; /* the op that runs meanwhile */
} Claim;

#define EXPERTS                                                                                              \
    "--num-experts 4 --disable-bias-linear --moe-shared-expert-intermediate-size 16 "                        \
    "--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall"

static const Claim CLAIMS[] = {
    {"--pipeline-model-parallel-size 2", "--no-overlap-p2p-communication", COMM_RECV, "pipeline_activation",
     "linear_wgrad"},
    {"--pipeline-model-parallel-size 2", "--no-overlap-p2p-communication", COMM_RECV, "pipeline_gradient",
     "linear"},
    {"--tensor-model-parallel-size 2 --sequence-parallel", "--no-tp-comm-overlap", COMM_ALL_GATHER,
     "all_gather", "linear_dgrad"},
    {"--tensor-model-parallel-size 2 --sequence-parallel", "--keep-gathered-inputs", COMM_ALL_GATHER,
     "all_gather", "linear_dgrad"},
    {"--tensor-model-parallel-size 2 --sequence-parallel", "--no-tp-comm-overlap", COMM_REDUCE_SCATTER,
     "reduce_scatter", "linear_wgrad"},
    {"--tensor-model-parallel-size 2 --sequence-parallel", "--no-tp-comm-overlap", COMM_ALL_GATHER,
     "all_gather", "linear_wgrad"},
    {"--tensor-model-parallel-size 2", "--no-tp-comm-overlap", COMM_ALL_REDUCE, "all_reduce", "linear_wgrad"},
    {"--context-parallel-size 2", "--no-cp-comm-overlap", COMM_RECV, "ring_keys", "attention"},
    {"--context-parallel-size 2", "--no-cp-comm-overlap", COMM_RECV, "ring_keys", "attention_grad"},
    {EXPERTS " --moe-shared-expert-overlap", NULL, COMM_ALL_TO_ALL, "send_to_experts", "linear"},
    {EXPERTS " --moe-shared-expert-overlap", NULL, COMM_ALL_TO_ALL, "return_from_experts", "linear"},
    {EXPERTS " --moe-shared-expert-overlap", NULL, COMM_ALL_TO_ALL, "send_to_experts", "linear_wgrad"},
    {EXPERTS " --moe-shared-expert-overlap", NULL, COMM_ALL_TO_ALL, "return_from_experts", "linear_wgrad"},
    {EXPERTS " --overlap-dispatch-backward-with-experts-wgrad", NULL, COMM_ALL_TO_ALL, "send_to_experts",
     "grouped_linear_wgrad"},
    {"--tensor-model-parallel-size 2 --sequence-parallel --interleaved-microbatches 2", NULL, COMM_ALL_GATHER,
     "all_gather", "linear"},
    {"--tensor-model-parallel-size 2 --sequence-parallel --interleaved-microbatches 2", NULL,
     COMM_REDUCE_SCATTER, "reduce_scatter", "linear"},
    {"--tensor-model-parallel-size 2 --interleaved-microbatches 2", NULL, COMM_ALL_REDUCE, "all_reduce",
     "attention"},
    {"--context-parallel-size 2 --cp-comm-type a2a --interleaved-microbatches 2", NULL, COMM_ALL_TO_ALL,
     "seq_to_heads", "linear"},
    {EXPERTS " --interleaved-microbatches 2", NULL, COMM_ALL_TO_ALL, "send_to_experts", "attention"},
    {EXPERTS " --interleaved-microbatches 2", NULL, COMM_ALL_TO_ALL, "return_from_experts", "attention_grad"},
    {"--overlap-grad-reduce --ddp-bucket-size 100", NULL, COMM_ALL_REDUCE, "grad_sum", "linear_dgrad"},
    {"--use-distributed-optimizer --ddp-bucket-size 100 --overlap-param-gather", NULL, COMM_ALL_GATHER,
     "param_gather", "linear"},
    {"--use-megatron-fsdp --overlap-param-gather", NULL, COMM_ALL_GATHER, "param_gather", "linear"},
    {"--use-megatron-fsdp --overlap-grad-reduce", NULL, COMM_REDUCE_SCATTER, "grad_sum", "linear_dgrad"},
    {"--num-layers 4 --use-megatron-fsdp --overlap-grad-reduce", NULL, COMM_REDUCE_SCATTER, "grad_sum",
     "attention_grad"},
};

typedef struct Watch {
    const Claim *claim;
    const Setup *setup;
    Comm *comm[RANKS];
    int64_t during[RANKS],
        ran[RANKS]; /* number of runs of the op: while the operation is in progress; in total */
} Watch;

typedef struct Eye {
    Watch *watch;
    int rank;
} Eye;

static bool is_in_progress(Comm *c, const Claim *claim) {
    CommRecorder *r = &c->recorder;
    bool found = false;
    pthread_mutex_lock(&r->lock);
    for (int64_t i = 0; i < r->count && i < COMM_RECORDS && !found; i++) {
        const CommRecord *at = &r->ring[i];
        found =
            !at->done_ns && at->facts.kind == (int32_t)claim->kind && !strcmp(at->facts.site, claim->site);
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}

static void look(void *arg, const OpDef *op, const Call *call) {
    const Eye *eye = arg;
    Watch *w = eye->watch;
    (void)call;
    if (strcmp(op->name, w->claim->during) != 0) return;
    w->ran[eye->rank]++;
    w->during[eye->rank] += is_in_progress(w->comm[eye->rank], w->claim);
}

static void train(void *arg, Comm *comm) {
    Watch *w = arg;
    const Setup *s = w->setup;
    Eye eye = {w, comm_rank(comm)};
    w->comm[eye.rank] = comm;
    Trainer *r = rank_trainer(s, NULL, comm);
    executor_trace(r->executor, look, &eye);
    rank_step(s, r);
    trainer_free(r);
}

/* Returns the number of runs of the op during which the operation is in progress. Unless `ran` is NULL, it
 * receives the total number of runs. */
static int64_t count(const Claim *claim, const char *more, int64_t *ran) {
    Watch w = {.claim = claim};
    Setup *s = setup_new("--ranks %d --cpu-threads 1 --micro-batch-size 1 --global-batch-size 8 %s %s", RANKS,
                         claim->layout, more);
    w.setup = s;
    comm_threads(RANKS, NULL, train, &w);
    assert_true(w.ran[0] + w.ran[1] > 0);
    if (ran) *ran = w.ran[0] + w.ran[1];
    setup_free(s);
    return w.during[0] + w.during[1];
}

TEST(operations_run_during_ops) {
    for (size_t i = 0; i < sizeof CLAIMS / sizeof *CLAIMS; i++) {
        const Claim *c = &CLAIMS[i];
        if (!count(c, "", NULL))
            fail_msg("%s: no %s is in progress during a %s", c->layout, c->site, c->during);
        if (c->off && count(c, c->off, NULL))
            fail_msg("%s %s: a %s is in progress during a %s", c->layout, c->off, c->site, c->during);
    }
}

/* A branch has two operations. Without the pauses halfway and the head start (tape_pause_halfway), the
 * operations of one microbatch would not overlap with any op, so that at most half of the ops would run
 * during an operation. */
TEST(both_microbatches_hide_operations) {
    const char *layout = "--tensor-model-parallel-size 2 --sequence-parallel --interleaved-microbatches 2 "
                         "--swiglu --ffn-hidden-size 16 --num-layers 8";
    static const char KEPT[] = "--keep-gathered-inputs";
    const struct {
        Claim claim;
        const char *more;
    } claims[] = {{{layout, NULL, COMM_ALL_GATHER, "all_gather", "activation"}, KEPT},
                  {{layout, NULL, COMM_REDUCE_SCATTER, "reduce_scatter", "attention_grad"}, KEPT},
                  {{layout, NULL, COMM_ALL_GATHER, "all_gather", "attention_grad"}, ""}};
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        int64_t ran;
        const int64_t during = count(&claims[i].claim, claims[i].more, &ran);
        print_message("a %s is in progress during %lld of %lld ops '%s'\n", claims[i].claim.site,
                      (long long)during, (long long)ran, claims[i].claim.during);
        assert_true(during > 3 * ran / 4);
    }
}

/* The order of some ops on a rank: E is the embedding, f attention, G the gradient of the loss, b the
 * gradient of attention. */
typedef struct Order {
    const Setup *setup;
    Str ops[RANKS];
} Order;

static void note(void *arg, const OpDef *op, const Call *call) {
    static const struct {
        const char *op, *letter;
    } NOTED[] = {
        {"embedding", "E"}, {"attention", "f"}, {"cross_entropy_grad", "G"}, {"attention_grad", "b"}};
    (void)call;
    for (size_t i = 0; i < sizeof NOTED / sizeof *NOTED; i++)
        if (!strcmp(op->name, NOTED[i].op)) str_puts(arg, NOTED[i].letter);
}

static void train_in_order(void *arg, Comm *comm) {
    Order *o = arg;
    Trainer *r = rank_trainer(o->setup, NULL, comm);
    executor_trace(r->executor, note, &o->ops[comm_rank(comm)]);
    rank_step(o->setup, r);
    trainer_free(r);
}

/* Number of times that an op `second` directly follows an op `first`, ignoring ops of other kinds. */
static int64_t follows(const char *ops, char first, char second) {
    int64_t n = 0;
    char last = 0;
    for (const char *op = ops; *op; op++) {
        if (*op != first && *op != second) continue;
        n += last == first && *op == second;
        last = *op;
    }
    return n;
}

/* With --interleave-forward-backward, a forward pass begins after the backward pass with which it is paired, and their
 * layers alternate. */
TEST(forwards_run_between_backwards) {
    enum { LAYERS = 8, MICROBATCHES = 8, PAIRS = MICROBATCHES - 2 };
    for (int mixed = 0; mixed < 2; mixed++) {
        Order o = {.setup = setup_new("--ranks %d --cpu-threads 1 --micro-batch-size 1 --global-batch-size "
                                      "%d --tensor-model-parallel-size 2 --sequence-parallel --num-layers %d "
                                      "--interleaved-microbatches 2 --keep-gathered-inputs %s",
                                      RANKS, (int)MICROBATCHES, (int)LAYERS,
                                      mixed ? "--interleave-forward-backward" : "")};
        comm_threads(RANKS, NULL, train_in_order, &o);
        for (int rank = 0; rank < RANKS; rank++) {
            const char *ops = o.ops[rank].s;
            assert_int_equal(follows(ops, 'G', 'E'), mixed ? PAIRS : MICROBATCHES / 2 - 1);
            assert_true(mixed ? follows(ops, 'b', 'f') >= PAIRS * (LAYERS - 1)
                              : follows(ops, 'b', 'f') < MICROBATCHES);
            str_free(&o.ops[rank]);
        }
        setup_free((Setup *)o.setup);
    }
}

/* The order of started operations and ops on a rank: s is a reduction of gradients, g an all-gather of
 * parameters, f attention, b its gradient, x any other op. */
typedef struct Starts {
    Str order;
    Comm *comm;
    int64_t seen; /* number of flight-recorder records */
} Starts;

static void note_starts(void *arg, const OpDef *op, const Call *call) {
    Starts *s = arg;
    CommRecorder *r = &s->comm->recorder;
    (void)call;
    pthread_mutex_lock(&r->lock);
    for (; s->seen < r->count; s->seen++) {
        const char *site = r->ring[s->seen % COMM_RECORDS].facts.site;
        if (!strcmp(site, "grad_sum")) str_puts(&s->order, "s");
        if (!strcmp(site, "param_gather")) str_puts(&s->order, "g");
    }
    pthread_mutex_unlock(&r->lock);
    str_puts(&s->order, !strcmp(op->name, "attention")        ? "f"
                        : !strcmp(op->name, "attention_grad") ? "b"
                                                              : "x");
}

typedef struct StartsRun {
    const Setup *setup;
    Starts rank[RANKS];
} StartsRun;

static void train_and_note_starts(void *arg, Comm *comm) {
    StartsRun *run = arg;
    Starts *s = &run->rank[comm_rank(comm)];
    s->comm = comm;
    Trainer *r = rank_trainer(run->setup, NULL, comm);
    executor_trace(r->executor, note_starts, s);
    for (int step = 0; step < 2; step++) rank_step(run->setup, r);
    trainer_free(r);
}

/* Number of operations of the kind `start` after which `op` is the next op. */
static int64_t starts_before(const char *order, char start, char op) {
    int64_t n = 0;
    for (const char *at = order; *at; at++) n += *at == start && at[strspn(at, "sg")] == op;
    return n;
}

typedef struct Together {
    int64_t sums,
        gathers; /* operations that start directly before an attention, on both ranks in two steps */
} Together;

static Together starts_with_attention(const char *layout, int layers, const char *more) {
    StartsRun run = {.setup =
                         setup_new("--ranks %d --cpu-threads 1 --micro-batch-size 1 --global-batch-size 8 "
                                   "--num-layers %d %s --overlap-grad-reduce --overlap-param-gather %s",
                                   RANKS, layers, layout, more)};
    Together t = {0};
    comm_threads(RANKS, NULL, train_and_note_starts, &run);
    for (int rank = 0; rank < RANKS; rank++) {
        const char *order = run.rank[rank].order.s;
        t.sums += starts_before(order, 's', 'b');
        t.gathers += starts_before(order, 'g', 'f') + starts_before(order, 'g', 'b');
        str_free(&run.rank[rank].order);
    }
    print_message("%s %s: %lld sums and %lld gathers start with an attention\n", layout, more,
                  (long long)t.sums, (long long)t.gathers);
    setup_free((Setup *)run.setup);
    return t;
}

TEST(data_parallelism_starts_with_attention) {
    enum { LAYERS = 4, SWEEPS = 2 * RANKS * 4 };
    static const char EARLY[] = "--no-overlap-with-attention", ZERO3[] = "--use-megatron-fsdp",
                      ZERO1[] = "--use-distributed-optimizer --ddp-num-buckets 5";
    Together early = starts_with_attention(ZERO3, LAYERS, EARLY),
             late = starts_with_attention(ZERO3, LAYERS, "");
    assert_true(early.sums == 0 && early.gathers == 0);
    /* Gradients are summed in the backward sweeps, and values are gathered in both. */
    assert_true(late.sums >= SWEEPS * (LAYERS - 1) && late.gathers >= 2 * SWEEPS * (LAYERS - 1));
    /* An early reduction may also start before an attention op, because a bucket may end at the output projection. */
    early = starts_with_attention(ZERO1, LAYERS, EARLY);
    late = starts_with_attention(ZERO1, LAYERS, "");
    assert_true(late.gathers > early.gathers && late.sums > early.sums);
}

/* Compares the sizes of the operations, because successive buckets differ in size. */
static void train_and_check_buckets(void *arg, Comm *comm) {
    Trainer *r = rank_trainer(arg, NULL, comm);
    const Registry *g = r->run.model->registry;
    const int n = g->n_buckets;
    int gathers = 0, sums = 0;
    rank_step(arg, r);
    for (int i = 1; i < n; i++) assert_int_not_equal(g->buckets[i].shard, g->buckets[i - 1].shard);
    pthread_mutex_lock(&comm->recorder.lock);
    assert_true(comm->recorder.count < COMM_RECORDS);
    for (int64_t i = 0; i < comm->recorder.count; i++) {
        const CommFacts *at = &comm->recorder.ring[i].facts;
        if (!strcmp(at->site, "param_gather"))
            assert_int_equal(at->n, g->buckets[n - 1 - gathers++ % n].shard);
        if (!strcmp(at->site, "grad_sum")) assert_int_equal(at->n, g->buckets[sums++ % n].shard);
    }
    pthread_mutex_unlock(&comm->recorder.lock);
    assert_true(n > 2 && gathers == 2 * n && sums == n);
    trainer_free(r);
}

/* A forward pass uses the last bucket first, and a backward pass completes the first bucket first. */
TEST(buckets_are_gathered_and_summed_in_order_of_use) {
    Setup *s = setup_new("--ranks %d --cpu-threads 1 --micro-batch-size 1 --global-batch-size 4 "
                         "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 300",
                         RANKS);
    comm_threads(RANKS, NULL, train_and_check_buckets, s);
    setup_free(s);
}

/* ---- loading kernels ---- */

enum { WORLD = 4, PIPELINE = 2, MICROBATCHES = 10, TURNS = 5 }; /* MICROBATCHES: per rank */

/* Numbers of operations that a rank has started so far. */
typedef struct Started {
    int64_t staged, direct; /* pipeline messages through host memory, and through NCCL */
    int64_t barriers;       /* barriers after kernels were loaded */
    int64_t opened_late;    /* channels opened after the first of these barriers */
} Started;

typedef struct LoadingRun {
    const Setup *one, *all; /* steps of one microbatch, and of all */
    Started after[WORLD][TURNS];
} LoadingRun;

static Started count_started(Comm *c) {
    CommRecorder *r = &c->recorder;
    Started n = {0};
    pthread_mutex_lock(&r->lock);
    assert_true(r->count < COMM_RECORDS);
    for (int64_t i = 0; i < r->count; i++) {
        const CommRecord *at = &r->ring[i];
        if (!strncmp(at->facts.site, "pipeline_", strlen("pipeline_")))
            at->key.device ? n.direct++ : n.staged++;
        n.barriers += !strcmp(at->facts.site, "kernels_loaded");
        n.opened_late += n.barriers && !strcmp(at->facts.site, "nccl_id");
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

static void evaluate(const Setup *s, Trainer *r) {
    LossSum sum[MODEL_LOSSES] = {{0}};
    Batch b = numbered_batch(s, &r->run.model->plan.sample, 0);
    trainer_evaluate(r, &b, sum);
    batch_free(&b);
}

static void train_over_nccl(void *arg, Comm *comm) {
    LoadingRun *run = arg;
    const Setup *s = run->all;
    Device *device;
    char text[200];
    int64_t allocations = 0;
    assert_ok(rank_open_device(&s->config, comm, &device, text));
    Trainer *r = rank_trainer_on(s, NULL, comm, device);
    for (int turn = 0; turn < TURNS; turn++) {
        if (turn < 3)
            rank_step(turn ? run->all : run->one, r);
        else
            evaluate(s, r);
        run->after[comm_rank(comm)][turn] = count_started(comm);
        if (turn == 1) allocations = executor_allocations(r->executor);
    }
    assert_int_equal(executor_allocations(r->executor),
                     allocations); /* a CUDA graph requires that the addresses do not change */
    trainer_free(r);
}

/* Kernels are loaded in the first step of one microbatch, in the first group of the first step of several microbatches,
 * and in the first evaluation. NCCL must then have no messages, and must not open channels later. */
TEST(kernels_are_loaded_without_nccl) {
    static const struct {
        const char *options;
        int group; /* number of microbatches */
        int each;  /* messages per rank and microbatch; half of them are activations */
    } CASES[] = {{"", 2, 2},
                 {"--interleaved-microbatches 2", 4, 2},
                 {"--interleaved-microbatches 2 --interleave-forward-backward", 4, 2},
                 {"--pipeline-schedule zero-bubble", 2, 2},
                 {"--num-layers 4 --num-virtual-stages-per-pipeline-rank 2", 2, 6},
                 {"--num-layers 4 --num-virtual-stages-per-pipeline-rank 2 --interleaved-microbatches 2 "
                  "--interleave-forward-backward",
                  4, 6},
                 {"--use-megatron-fsdp", 2, 2}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        LoadingRun run;
        const int each = CASES[i].each, group = CASES[i].group, greetings = 2 * PIPELINE_WAYS;
        const int staged = each * (1 + group), direct = greetings + each * (MICROBATCHES - group);
        const Started want[TURNS] = {{each, greetings, 1, 0},
                                     {staged, direct, 2, 0},
                                     {staged, direct + each * MICROBATCHES, 2, 0},
                                     {staged + each / 2, direct + each * MICROBATCHES, 3, 0},
                                     {staged + each / 2, direct + each * MICROBATCHES + each / 2, 3, 0}};
        Setup *setup[2];
        for (int k = 0; k < 2; k++)
            setup[k] =
                setup_new("--ranks %d --cpu-threads 1 --pipeline-model-parallel-size %d --micro-batch-size 1 "
                          "--global-batch-size %d --overlap-grad-reduce --nccl-library " HOST_NCCL " %s",
                          WORLD, PIPELINE, WORLD / PIPELINE * (k ? MICROBATCHES : 1), CASES[i].options);
        run.one = setup[0], run.all = setup[1];
        comm_threads(WORLD, NULL, train_over_nccl, &run);
        for (int rank = 0; rank < WORLD; rank++)
            for (int turn = 0; turn < TURNS; turn++)
                assert_memory_equal(&run.after[rank][turn], &want[turn], sizeof *want);
        setup_free(setup[0]), setup_free(setup[1]);
    }
}
