/* Tests offloading of the activations of dropless experts. Host memory is planned for balanced experts, and
 * must never exceed the plan's maximum. */
#include "unit/train/ranks_step.h"

#include <stdlib.h>

#include "base/mem.h"
#include "tensor/backend.h"

static const char MODEL[] = "--num-layers 4 --cpu-offloading-num-layers 3 --seq-length 8 --vocab-size 30 "
                            "--num-experts 4 --moe-router-topk 2 --disable-bias-linear "
                            "--expert-model-parallel-size 2 --global-batch-size 4 ";

typedef struct Trial {
    const Setup *setup;
    bool skewed;
    int ranks;
    size_t planned[4], most[4], taken[4], added[4]; /* bytes added to host memory during the step */
} Trial;

/* ---- a CPU device that counts allocations of host memory separately ---- */

typedef struct Counting {
    DeviceBackend backend;
    size_t host;
} Counting;

static void *count_host(Device *d, size_t bytes) {
    ((Counting *)d->backend)->host += bytes;
    return mem_zero(1, bytes);
}

static void free_host(Device *d, void *p, size_t bytes) {
    (void)d, (void)bytes;
    free(p);
}

static Device *counting_device(Counting *c) {
    Device *d = device_cpu(1);
    c->backend = *d->backend, c->host = 0;
    c->backend.host_alloc = count_host, c->backend.host_free = free_host;
    d->backend = &c->backend;
    return d;
}

/* ---- runs ---- */

/* Parameters are not initialized, so they are zero. Router logits are then equal, and each token selects the
 * first two experts. */
static void train(void *arg, Comm *comm) {
    Trial *t = arg;
    const int rank = comm_rank(comm);
    MemoryPlan plan = memory_plan_new(&t->setup->config, comm, NULL);
    memory_plan_worst(&plan, &t->setup->config, comm, NULL);
    Counting counting;
    Trainer *r = trainer_new(&t->setup->config, &plan, comm, counting_device(&counting));
    const size_t begin = counting.host;
    if (!t->skewed) registry_init(r->run.model->registry, r->run.context.seed);
    trainer_publish(r);
    rank_step(t->setup, r);
    t->planned[rank] = plan.part[MEMORY_offloaded], t->most[rank] = plan.most[MEMORY_offloaded];
    t->taken[rank] = executor_peak(r->executor).offload.host;
    t->added[rank] = counting.host - begin;
    trainer_free(r);
}

static Trial trial(const char *words, bool skewed) {
    Setup *s = setup_new("%s %s", MODEL, words);
    Trial t = {.setup = s, .skewed = skewed, .ranks = (int)config_ranks(&s->config)};
    comm_threads(t.ranks, NULL, train, &t);
    setup_free(s);
    return t;
}

/* If the plan suffices, only the planned memory may be allocated; otherwise a block of 32 MiB must have been
 * added. */
static void expect_bounded(const Trial *t, const char *layout) {
    for (int rank = 0; rank < t->ranks; rank++) {
        const size_t most = t->most[rank], planned = t->planned[rank], taken = t->taken[rank];
        if (most <= planned || taken > most)
            fail_msg("%s: planned %zu bytes of the host's memory, at most %zu, taken %zu", layout, planned,
                     most, taken);
        assert_int_equal(t->added[rank], taken > planned ? 32 << 20 : 0);
    }
}

TEST(one_rank_may_have_all_rows) {
    static const char *const LAYOUTS[] = {
        "--ranks 2 --moe-token-dispatcher-type alltoall",
        "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --moe-token-dispatcher-type alltoall",
        "--ranks 4 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 2 --sequence-parallel "
        "--moe-token-dispatcher-type alltoall",
        "--ranks 2 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --sequence-parallel "
        "--moe-token-dispatcher-type allgather",
    };
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        const Trial t = trial(LAYOUTS[i], true), even = trial(LAYOUTS[i], false);
        bool more = false, less = false;
        for (int rank = 0; rank < t.ranks; rank++)
            more |= t.taken[rank] > t.planned[rank], less |= t.taken[rank] < t.planned[rank];
        assert_true(more && less);
        assert_int_equal(t.taken[0], t.most[0]);
        expect_bounded(&t, LAYOUTS[i]);
        expect_bounded(&even, LAYOUTS[i]);
    }
}

/* With a capacity, sizes do not depend on the data, so the plan equals the maximum. */
TEST(with_a_capacity_the_plan_is_the_most) {
    const Trial t =
        trial("--ranks 2 --moe-token-dispatcher-type alltoall --moe-expert-capacity-factor 1.5", true);
    for (int rank = 0; rank < t.ranks; rank++) {
        assert_int_equal(t.taken[rank], t.planned[rank]);
        assert_int_equal(t.most[rank], 0); /* the plan is not an estimate */
        assert_int_equal(t.added[rank], 0);
    }
}
