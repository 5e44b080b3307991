/* Activations of dropless experts that wait in host memory: planned for balance, and never more than the
 * plan's most. */
#include "unit/train/ranks_step.h"

static const char MODEL[] = "--num-layers 4 --cpu-offloading-num-layers 3 --seq-length 8 --vocab-size 30 "
                            "--num-experts 4 --moe-router-topk 2 --disable-bias-linear "
                            "--expert-model-parallel-size 2 --global-batch-size 4 ";

typedef struct Trial {
    const Setup *setup;
    bool skewed;
    size_t planned[4], most[4], taken[4];
} Trial;

/* Parameters that nobody has set are zero: all experts look alike, and each token takes the first two. */
static void train(void *arg, Comm *comm) {
    Trial *t = arg;
    const int rank = comm_rank(comm);
    const MemoryPlan plan = run_plan_memory(&t->setup->config, &t->setup->derived, comm, NULL);
    Run *r = run_new(&t->setup->config, &t->setup->derived, &plan, comm, NULL);
    if (!t->skewed) registry_init(r->model->registry, r->context.seed);
    run_publish(r);
    rank_step(t->setup, r);
    t->planned[rank] = plan.offloaded, t->most[rank] = plan.offloaded_most;
    t->taken[rank] = executor_peak(r->executor).offload.host;
    run_free(r);
}

static Trial trial(const char *words, bool skewed) {
    Setup *s = setup_new("%s %s", MODEL, words);
    Trial t = {s, skewed, {0}, {0}, {0}};
    comm_threads((int)config_ranks(&s->config), NULL, train, &t);
    setup_free(s);
    return t;
}

static void one_rank_may_have_all_rows(void **state) {
    (void)state;
    static const char *const LAYOUTS[] = {
        "--ranks 2 --moe-token-dispatcher-type alltoall",
        "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --moe-token-dispatcher-type alltoall",
        "--ranks 4 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 2 --sequence-parallel "
        "--moe-token-dispatcher-type alltoall",
        "--ranks 2 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --sequence-parallel "
        "--moe-token-dispatcher-type allgather",
    };
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        const Trial t = trial(LAYOUTS[i], true);
        bool more = false, less = false;
        for (int rank = 0; rank < 4 && t.taken[rank]; rank++) {
            assert_int_equal(t.most[rank], 2 * t.planned[rank]);
            if (t.taken[rank] > t.most[rank])
                fail_msg("%s: %zu bytes of the host's memory, at most %zu", LAYOUTS[i], t.taken[rank],
                         t.most[rank]);
            more |= t.taken[rank] > t.planned[rank], less |= t.taken[rank] < t.planned[rank];
        }
        assert_true(more && less);
        const Trial even = trial(LAYOUTS[i], false);
        for (int rank = 0; rank < 4; rank++) assert_true(even.taken[rank] <= even.most[rank]);
    }
}

/* With a capacity sizes do not depend on the data. */
static void with_a_capacity_the_plan_is_the_most(void **state) {
    (void)state;
    const Trial t =
        trial("--ranks 2 --moe-token-dispatcher-type alltoall --moe-expert-capacity-factor 1.5", true);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(t.taken[rank], t.planned[rank]);
        assert_int_equal(t.most[rank], t.planned[rank]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_may_have_all_rows),
        cmocka_unit_test(with_a_capacity_the_plan_is_the_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
