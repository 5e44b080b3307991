/* Runs some steps on ranks that are threads. Losses, norms, parameters and optimizer state must be bitwise
 * equal, however data-parallel ranks shard buffers and whenever they reduce gradients. */
#include <math.h>
#include <stdlib.h>

#include "unit/train/ranks_step.h"

#include "base/fault.h"
#include "base/hash.h"
#include "param/bucket.h"

#ifdef __SANITIZE_THREAD__ /* later steps synchronize in the same way */
enum { STEPS = 2, RANKS = 8 };
#else
enum { STEPS = 5, RANKS = 8 };
#endif

typedef struct Outcome {
    double loss[STEPS], norm[STEPS], clip[STEPS], zeros[STEPS], params_norm[STEPS];
    uint64_t print; /* hash of all master weights and optimizer state */
} Outcome;

typedef struct Trial {
    const Setup *setup;
    int steps; /* fewer than STEPS: only the bytes are compared */
    Outcome outcome[RANKS];
    size_t bytes[RANKS]; /* bytes of parameters and state on each rank */
    bool as_planned[RANKS];
} Trial;

/* ---- a run ---- */

/* The sum, over all elements, of a hash of name, global position and bits. It does not depend on the sharding. */
static uint64_t print_of(const Trainer *r, FlatBuffer which, void *flat, uint64_t seed) {
    const Registry *g = r->run.model->registry;
    uint64_t sum = 0;
    for (int i = 0; i < g->n; i++) {
        const Param *p = g->params[i];
        const bool matrix = p->spec.flags & PARAM_MATRIX;
        const FlatRange part = param_part_held(g, p);
        if (which == (matrix ? FLAT_STATE : FLAT_MATRIX_STATE)) continue;
        for (int64_t e = part.begin; e < part.end && param_is_primary(g, p); e++) {
            const int64_t at = e - p->offset, row = param_global_row(p, at / p->columns),
                          column = p->first_column + at % p->columns;
            struct {
                uint64_t name, element;
                double value;
            } x = {hash_name(p->spec.name), (uint64_t)(row << 20 | column), 0};
            dtype_convert(&x.value, F64, registry_slice(g, which, flat, p->bucket, e, 1).data, g->precise, 1);
            sum += hash64(&x, sizeof x, seed);
        }
    }
    return sum;
}

static void train(void *arg, Comm *comm) {
    Trial *t = arg;
    const Setup *s = t->setup;
    const int rank = comm_rank(comm);
    Outcome *o = &t->outcome[rank];
    const MemoryPlan plan = memory_plan_new(&s->config, comm, NULL);
    Trainer *r = rank_trainer(s, &plan, comm);
    for (int i = 0; i < t->steps; i++) {
        const StepReport report = rank_step(s, r);
        o->loss[i] = report.loss, o->norm[i] = report.optim.grad_norm, o->clip[i] = report.optim.clip;
        o->zeros[i] = report.optim.num_zeros, o->params_norm[i] = report.optim.params_norm;
    }
    if (t->steps == STEPS) {
        o->print = print_of(r, FLAT_MASTERS, r->run.model->registry->masters, 1);
        for (int i = 0; i < r->optimizer->n_buffers; i++)
            o->print +=
                print_of(r, r->optimizer->buffer[i].layout, r->optimizer->buffer[i].flat, (uint64_t)i + 2);
    }
    sync_world_sum(r->sync, I64, &o->print, 1);
    t->bytes[rank] = registry_bytes(r->run.model->registry) + sync_bytes(r->sync) + optim_bytes(r->optimizer);
    t->as_planned[rank] = t->bytes[rank] == memory_plan_state(&plan) + plan.part[MEMORY_gathered];
    trainer_free(r);
}

/* bytes: if it is not NULL, set to the bytes of rank 0 after one step. */
static Outcome outcome(const char *model, const char *words, size_t *bytes) {
    Trial *t = mem_zero(1, sizeof *t);
    Setup *s = setup_new("%s %s", model, words);
    const int ranks = (int)config_ranks(&s->config);
    t->setup = s, t->steps = bytes ? 1 : STEPS;
    comm_threads(ranks, NULL, train, t);
    for (int i = 0; i < ranks; i++) {
        if (memcmp(&t->outcome[i], &t->outcome[0], sizeof(Outcome)))
            fail_msg("%s: rank %d has another outcome than rank 0", words, i);
        if (!t->as_planned[i])
            fail_msg("%s: rank %d takes %zu bytes, not what was planned", words, i, t->bytes[i]);
    }
    const Outcome o = t->outcome[0];
    if (bytes) *bytes = t->bytes[0];
    setup_free(s), free(t);
    return o;
}

static void expect_same(const Outcome *a, const Outcome *b, const char *words) {
    if (!memcmp(a, b, sizeof *a)) return;
    print_message("fingerprints %016llx %016llx\n", (unsigned long long)a->print,
                  (unsigned long long)b->print);
    for (int i = 0; i < STEPS; i++)
        print_message("%.17g %.17g | %.17g %.17g | %.17g %.17g | %g %g\n", a->loss[i], b->loss[i], a->norm[i],
                      b->norm[i], a->params_norm[i], b->params_norm[i], a->zeros[i], b->zeros[i]);
    fail_msg("'%s' changes bits", words);
}

/* ---- the tests ---- */

#define STEP                                                                                                 \
    " --global-batch-size 8 --clip-grad 0.5 --weight-decay 0.1 --lr 0.01 --log-params-norm "                 \
    "--log-num-zeros-in-grad "
#define MODEL      "--num-layers 3 --make-vocab-size-divisible-by 1 --vocab-size 30 --seq-length 8 " STEP
#define SHARED     "--use-distributed-optimizer "
#define FSDP       "--use-megatron-fsdp "
#define GRADS_ONLY FSDP "--data-parallel-sharding-strategy optim_grads "
#define OVERLAP    "--overlap-grad-reduce "
#define GATHER     "--overlap-param-gather "
#define SMALL      "--ddp-bucket-size 200 "
#define RECOMPUTE  "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2 "

/* With the options in BY_STEP, microbatches are summed before ranks; with those in BY_MICROBATCH, ranks are
 * summed first. Parentheses show that adjacent strings are one option, and that no comma is missing. */
static const char *const BY_STEP[] = {(OVERLAP "--ddp-num-buckets 4 "), (SHARED SMALL OVERLAP GATHER),
                                      (SHARED OVERLAP RECOMPUTE SMALL),
                                      (FSDP "--data-parallel-sharding-strategy optim ")};
static const char *const BY_MICROBATCH[] = {(GRADS_ONLY OVERLAP), FSDP,
                                            (FSDP OVERLAP GATHER SMALL RECOMPUTE)};
enum {
    N_BY_STEP = sizeof BY_STEP / sizeof *BY_STEP,
    N_BY_MICROBATCH = sizeof BY_MICROBATCH / sizeof *BY_MICROBATCH
};

static Outcome compare(const char *const *ways, int n, const char *layout, const Outcome *want) {
    Outcome first = want ? *want : outcome(MODEL, layout, NULL);
    for (int i = 0; i < n; i++) {
        char words[512];
        snprintf(words, sizeof words, "%s %s", layout, ways[i]);
        const Outcome o = outcome(MODEL, words, NULL);
        if (i == 0 && !want && ways == BY_MICROBATCH) first = o;
        expect_same(&first, &o, words);
    }
    return first;
}

static const char *const LAYOUTS[] = {
    "--fp64 --ranks 2",
    "--bf16 --ranks 4 --optimizer sgd",
    "--bf16 --ranks 2 --grad-reduce-in-bf16",
    "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel",
    "--fp64 --ranks 4 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1",
};
enum { N_LAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS };

TEST(buckets_overlap_and_stages_change_no_bit) {
    for (int i = 0; i < N_LAYOUTS; i++) {
        const Outcome whole = compare(BY_STEP, N_BY_STEP, LAYOUTS[i], NULL),
                      by_microbatch = compare(BY_MICROBATCH, N_BY_MICROBATCH, LAYOUTS[i], NULL);
        assert_true(whole.clip[0] < 1);
        /* The bound: every element of the first gradient is a sum over 8 samples, in a different order. */
        const double u = strstr(LAYOUTS[i], "fp64")             ? 0x1p-53
                         : strstr(LAYOUTS[i], "reduce-in-bf16") ? 0x1p-8
                                                                : 0x1p-24;
        if (!(fabs(whole.norm[0] - by_microbatch.norm[0]) <= 8 * u * whole.norm[0] * 8))
            fail_msg("%s: norms %.17g and %.17g", LAYOUTS[i], whole.norm[0], by_microbatch.norm[0]);
    }
}

/* Ranks that share Muon's state each update whole matrices. --use-megatron-fsdp is refused. */
TEST(ranks_with_whole_matrices_change_no_bit) {
    compare(BY_STEP, N_BY_STEP - 1, "--fp64 --ranks 4 --optimizer muon", NULL);
    compare(BY_STEP, N_BY_STEP - 1, "--bf16 --ranks 4 --tensor-model-parallel-size 2 --optimizer muon", NULL);
}

/* With a single microbatch, there is only one order of summation. */
TEST(one_microbatch_gives_all_stages_the_same_bits) {
    const char *layout = "--fp64 --ranks 4 --micro-batch-size 2";
    const Outcome whole = outcome(MODEL, layout, NULL);
    compare(BY_MICROBATCH, N_BY_MICROBATCH, layout, &whole);
}

/* In the exact lane, sums do not depend on their order, so stages, instances and the number of ranks must
 * have no effect. */
TEST(exact_sums_are_the_same_on_any_ranks) {
    static const char *const WAYS[] = {
        "--ranks 2",
        ("--ranks 4 " SHARED "--num-distributed-optimizer-instances 2 " GATHER OVERLAP),
        ("--ranks 4 " FSDP "--num-distributed-optimizer-instances 2 "),
        ("--ranks 8 " FSDP OVERLAP GATHER),
        ("--ranks 4 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1 " FSDP),
    };
    const char *lane = MODEL "--lane exact --calculate-per-token-loss ";
    const Outcome one = outcome(lane, "--ranks 1", NULL);
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        const Outcome o = outcome(lane, WAYS[i], NULL);
        expect_same(&one, &o, WAYS[i]);
    }
}

TEST(stages_save_memory) {
    static const char *const STAGES[] = {"", SHARED, GRADS_ONLY, FSDP};
    const char *model =
        "--num-layers 12 --hidden-size 64 --make-vocab-size-divisible-by 1 --seq-length 8 --bf16 " STEP;
    size_t before = 0;
    for (int i = 0; i < 4; i++) {
        char words[200];
        size_t bytes;
        snprintf(words, sizeof words, "--ranks 4 %s", STAGES[i]);
        outcome(model, words, &bytes);
        if (i && bytes >= before) fail_msg("stage %d takes %zu bytes, the one before %zu", i, bytes, before);
        before = bytes;
    }
    /* Four ranks get 3 of the 12 equal layers each, so that 3/4 of the F32 masters and momentum are saved, and at least
     * 7/10 with the gaps. */
    const size_t matrices = 12 * 12 * 64 * 64 * 2 * sizeof(float);
    size_t bytes;
    outcome(model, "--ranks 4 --optimizer muon", &before);
    outcome(model, "--ranks 4 --optimizer muon " SHARED, &bytes);
    if (bytes + matrices * 7 / 10 > before) fail_msg("Muon takes %zu bytes, and %zu sharded", before, bytes);
}
