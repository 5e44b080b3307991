/* Compares an MoE layer on several ranks (threads) with one rank, for both dispatchers: output, gradients of
 * tokens, router and experts, losses and counts. Also tests that the layer fails the type check if any one of
 * its collectives is omitted. */
#include "unit/cmocka_all.h"
#include "unit/recording.h"

#include "base/fault.h"
#include "ops/activation.h"
#include "ops/expert_parallel.h"
#include "ops/gather_tokens.h"
#include "ops/grouped.h"
#include "ops/redistribute.h"
#include "ops/residual.h"
#include "unit/nn/moe_world.h"

static const MoeLayout LAYOUTS[] = {
    /* tp cp dp etp ep */
    {1, 1, 2, 1, 2}, {1, 1, 4, 1, 4}, {1, 1, 4, 1, 2}, {1, 1, 2, 1, 1}, /* here dp = ep * edp */
    {2, 1, 1, 2, 1}, {2, 1, 1, 1, 2}, {2, 1, 1, 1, 1}, {4, 1, 1, 2, 2}, /* here tp = etp * ep * edp */
    {1, 2, 1, 1, 2}, {1, 2, 1, 2, 1}, {1, 4, 1, 1, 4},                  /* cp */
    {2, 1, 2, 2, 2}, {2, 1, 2, 1, 2}, {1, 1, 4, 2, 2}, {2, 2, 1, 1, 4}, {2, 2, 2, 2, 2}, {2, 2, 2, 1, 8},
};
enum { N_LAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS };

static void describe(const MoeCase *c, const char *what, char *out, size_t n) {
    const MoeLayout *l = &c->layout;
    snprintf(out, n, "tp %d cp %d dp %d etp %d ep %d %s%s%s%s%s, %s: %s", l->tp, l->cp, l->dp, l->etp, l->ep,
             c->spec.all_to_all ? "alltoall" : "allgather", c->spec.capacity_factor > 0 ? " capacity" : "",
             c->spec.pad ? " pad" : "", c->spec.shared_ffn ? " shared" : "",
             c->recomputed ? " recomputed" : "", dtype_name(c->dtype), what);
}

/* The bound: a sum has at most as many terms as the experts have rows, or as a row has elements. A value
 * depends on a chain of at most 10 ops. An op multiplies the errors of its inputs by at most the size of its
 * sums. */
static void near(const MoeCase *c, const char *what, Values got, Values want) {
    const double terms = (double)(c->layout.dp * SEQUENCE * SAMPLES * 2), depth = 10;
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < want.n; i++) {
        const double error = fabs(got.v[i] - want.v[i]);
        largest = fmax(largest, fabs(want.v[i]));
        if (!(error <= worst)) worst = error;
    }
    const double bound = depth * sqrt(terms) * dtype_roundoff(c->dtype) * largest;
    if (worst <= bound) return;
    char name[200];
    describe(c, what, name, sizeof name);
    fail_msg("%s: error %.3g > depth %g * sqrt(%g terms) * u * %.3g = %.3g", name, worst, depth, terms,
             largest, bound);
}

static void same(const MoeCase *c, const char *what, Values got, Values want) {
    char name[200];
    describe(c, what, name, sizeof name);
    for (int64_t i = 0; i < want.n; i++)
        if (memcmp(&got.v[i], &want.v[i], sizeof *got.v))
            fail_msg("%s: element %d is %.17g, not %.17g", name, (int)i, got.v[i], want.v[i]);
}

typedef void Compare(const MoeCase *, const char *what, Values got, Values want);

/* A loss is a sum over the tokens of a rank, then over ranks. In the exact lane, each complete sum is rounded
 * to the grid. */
static void compare_losses(const MoeCase *c, const MoeOutcome *got, const MoeOutcome *want) {
    const int sums = c->layout.dp * (c->microbatches ? c->microbatches : 1);
    const double rounded = c->exact ? 2 * sums * ldexp(1, -GRID_BITS - 1) : 0;
    for (int i = 2 * EXPERTS; i < 2 * EXPERTS + ROUTER_LOSSES; i++) {
        const double bound =
            rounded + 10 * sqrt(SEQUENCE * SAMPLES) * dtype_roundoff(c->dtype) * fabs(want->counters.v[i]);
        if (!(fabs(got->counters.v[i] - want->counters.v[i]) <= bound))
            fail_msg("loss %d is %.17g, not %.17g", i - 2 * EXPERTS, got->counters.v[i], want->counters.v[i]);
    }
}

static void compare(const MoeCase *c, Compare *with, const MoeOutcome *got, const MoeOutcome *want) {
    with(c, "y", got->y, want->y);
    with(c, "dx", got->dx, want->dx);
    for (int i = 0; i < MOE_PARAMS && want->grad[i].v; i++) with(c, "gradient", got->grad[i], want->grad[i]);
    compare_losses(c, got, want);
    same(c, "counts", (Values){got->counters.v, EXPERTS}, (Values){want->counters.v, EXPERTS});
}

static void check(MoeCase c, Compare *with) {
    for (int dispatcher = 0; dispatcher < 2; dispatcher++) {
        c.spec.all_to_all = dispatcher == 1;
        MoeOutcome got = moe_on_ranks(&c), want = moe_on_one(&c);
        compare(&c, with, &got, &want);
        moe_outcome_free(&got), moe_outcome_free(&want);
    }
}

static void check_every(MoeCase c, Compare *with, int nth) {
    for (int i = 0; i < N_LAYOUTS; i += nth) {
        c.layout = LAYOUTS[i];
        check(c, with);
    }
}

static void check_layouts(MoeCase c, Compare *with) { check_every(c, with, 1); }

/* Checks one layout of each kind. */
static void check_some(MoeCase c, Compare *with) { check_every(c, with, 4); }

static const MoeSpec DROPLESS = {.shared_ffn = 0}, DROPS = {.capacity_factor = 0.75},
                     PADS = {.capacity_factor = 1.25, .pad = true},
                     LAST = {.capacity_factor = 0.5, .drop_by_position = true},
                     SHARED = {.shared_ffn = 16, .shared_gate = true};

static MoeSpec router_with(RouterSpec r) { return (MoeSpec){.router = r}; }

TEST(dropless_is_one_rank) {
    check_layouts((MoeCase){.spec = DROPLESS}, near);
    check_some((MoeCase){.spec = DROPLESS, .two_sweeps = true, .microbatches = 2}, near);
}

TEST(drops_are_those_of_one_rank) {
    check_layouts((MoeCase){.spec = DROPS}, near);
    check_some((MoeCase){.spec = PADS}, near);
    check_some((MoeCase){.spec = LAST}, near);
}

TEST(shared_experts_are_tensor_parallel) { check_some((MoeCase){.spec = SHARED}, near); }

TEST(recomputed_and_in_other_types) {
    check_some((MoeCase){.spec = DROPS, .recomputed = true}, near);
    check_some((MoeCase){.spec = DROPLESS, .dtype = F32, .recomputed = true}, near);
}

TEST(exact_lane_is_bitwise) {
    check_layouts((MoeCase){.spec = DROPLESS, .exact = true}, same);
    check_layouts((MoeCase){.spec = PADS, .exact = true, .recomputed = true}, same);
    check_some((MoeCase){.spec = SHARED, .exact = true, .microbatches = 2}, same);
}

TEST(routers_decide_as_on_one_rank) {
    check_some((MoeCase){.spec = router_with(
                             (RouterSpec){.topk = 1, .sinkhorn = true, .route = {.score = ROUTER_SIGMOID}})},
               near);
    check_some((MoeCase){.spec = router_with((RouterSpec){.jitter = 0.3, .topk = 3})}, near);
    check_some((MoeCase){.spec = router_with((RouterSpec){.topk = 4,
                                                          .bias = true,
                                                          .route = {.score = ROUTER_SIGMOID,
                                                                    .groups = 4,
                                                                    .group_topk = 2,
                                                                    .group_scores = 2,
                                                                    .scaling = 2.5}})},
               near);
}

TEST(losses_are_of_the_microbatch) {
    for (int i = 0; i < ROUTER_LOSSES; i++) {
        if (i == ROUTER_LOSS_GLOBAL_AUX) continue;
        RouterSpec r = {.bias = true, .route.score = ROUTER_SIGMOID};
        r.loss_coeff[i] = 0.7;
        check_some((MoeCase){.spec = router_with(r), .microbatches = 2}, near);
        check_some((MoeCase){.spec = router_with(r), .exact = true}, same);
    }
}

/* Counts include all data-parallel ranks, as if their microbatches were one. The loss is a mean over tokens,
 * so the sum of the ranks' losses is dp times the loss of the joined microbatch. */
TEST(global_loss_joins_data_parallel_ranks) {
    RouterSpec r = {0};
    r.loss_coeff[ROUTER_LOSS_GLOBAL_AUX] = 0.7;
    for (int i = 0; i < N_LAYOUTS; i++) {
        const MoeCase c = {.layout = LAYOUTS[i], .spec = router_with(r), .microbatches = 3, .joined = true};
        MoeOutcome got = moe_on_ranks(&c), want = moe_on_one(&c);
        want.counters.v[2 * EXPERTS + ROUTER_LOSS_GLOBAL_AUX] *= c.layout.dp;
        compare(&c, near, &got, &want);
        moe_outcome_free(&got), moe_outcome_free(&want);
    }
}

/* Runs in spaces whose sizes a dry run has measured. Sizes do not depend on the data if there is a
 * capacity, or if all experts are on one rank. */
TEST(planned_memory_is_enough) {
    check_layouts((MoeCase){.spec = DROPS, .planned = true}, near);
    check_layouts((MoeCase){.spec = PADS, .planned = true, .recomputed = true}, near);
    for (int i = 0; i < N_LAYOUTS; i++)
        if (LAYOUTS[i].ep == 1)
            check((MoeCase){.layout = LAYOUTS[i], .spec = DROPLESS, .planned = true}, near);
}

/* Every copy must be computed by exactly one of the expert-parallel ranks, on all of its
 * expert-tensor-parallel ranks. */
TEST(every_copy_has_one_rank) {
    for (int i = 0; i < 2 * N_LAYOUTS; i++) {
        MoeCase c = {.layout = LAYOUTS[i / 2], .spec = DROPLESS};
        c.spec.all_to_all = i % 2;
        MoeOutcome o = moe_on_ranks(&c);
        const MoeLayout *l = &c.layout;
        int64_t rows = 0;
        for (int r = 0; r < l->tp * l->cp * l->dp; r++) rows += o.first_held[r];
        assert_int_equal(rows, l->etp * l->dp * SEQUENCE * SAMPLES * 2);
        moe_outcome_free(&o);
    }
}

TEST(twice_is_the_same) {
    for (int i = 0; i < 2; i++) {
        MoeCase c = {.layout = {2, 2, 2, 2, 2}, .spec = DROPS, .dtype = F32};
        c.spec.all_to_all = i;
        MoeOutcome a = moe_on_ranks(&c), b = moe_on_ranks(&c);
        compare(&c, same, &a, &b);
        moe_outcome_free(&a), moe_outcome_free(&b);
    }
}

/* ---- SPMD types: the layer's dispatch, written out by hand, on the null device as rank 0. Each case
 * omits one collective, and the next op must report a type error ---- */

enum { SEND, SEND_PROBS, GATHER, GATHER_PROBS, SCATTER, RETURN, TO_ALL_STEPS };
enum { IDS_EP, X_EP, PROBS_EP, ROWS_ETP, PROBS_ETP, SCATTER_ETP, SCATTER_EP, CROSS_BACK, GATHER_STEPS };
enum { COUNT, WHOLE, WHOLE_PROBS, PLAIN_STEPS };

static Tensor *unless(bool left_out, Tensor *with, Tensor *without) { return left_out ? without : with; }

static Tensor *experts(Tape *t, const Moe *m, Tensor *rows, Tensor *probs, Tensor *offset) {
    Tensor *h = op_grouped_linear(t, rows, (GroupedLayer){.w_eoi = &m->fc1->value}, offset);
    h = op_scaled_activation(t, h, (ActivationAttr){.kind = ACT_SWIGLU}, probs);
    return op_grouped_linear(t, h, (GroupedLayer){.w_eoi = &m->fc2->value}, offset);
}

static void without_to_all(MoeRank *r, Tensor *x, int step) {
    Tape *t = r->tape;
    const Moe *m = &r->moe;
    Routing g = router_forward(t, &m->router, x);
    const Dispatch d = op_dispatch(t, &g, EXPERTS, (DispatchAttr){0});
    const Arrival to = op_plan_arrival(t, &d, EXPERTS / 2, (DispatchAttr){0});
    Tensor *rows = op_permute(t, x, &d), *probs = op_permute_probs(t, g.probs, &d);
    if (step != SEND) rows = op_arrive(t, op_send_to_experts(t, rows, &to));
    if (step != SEND_PROBS) probs = op_arrive(t, op_send_to_experts(t, probs, &to));
    if (step != GATHER) rows = op_redistribute(t, rows, AXIS_ETP, SPMD_R, 0);
    if (step != GATHER_PROBS) probs = op_redistribute(t, probs, AXIS_ETP, SPMD_R, 0);
    Tensor *y = experts(t, m, op_permute(t, rows, &to.sort), op_permute(t, probs, &to.sort), to.sort.offset);
    y = op_unpermute(t, y, &to.sort);
    if (step != SCATTER) y = op_redistribute(t, y, AXIS_ETP, SPMD_V, 0);
    if (step != RETURN) y = op_arrive(t, op_return_from_experts(t, y, &to));
    op_unpermute(t, y, &d);
}

static Tensor *gathered(Tape *t, Tensor *x, bool ep) {
    x = op_to_expert_view(t, x);
    return ep ? op_redistribute(t, x, AXIS_EP, SPMD_R, 0) : x;
}

static void without_gather(MoeRank *r, Tensor *x, int step) {
    Tape *t = r->tape;
    const Moe *m = &r->moe;
    Routing g = router_forward(t, &m->router, x);
    const Routing all = {gathered(t, g.probs, step != PROBS_EP), gathered(t, g.expert, step != IDS_EP)};
    const Dispatch d = op_dispatch(t, &all, EXPERTS / 2, (DispatchAttr){.local = true});
    Tensor *rows = op_permute(t, gathered(t, x, step != X_EP), &d),
           *probs = op_permute_probs(t, all.probs, &d);
    const Dispatch sort = op_plan_gathered(t, &d, (DispatchAttr){0});
    if (step != ROWS_ETP) rows = op_redistribute(t, rows, AXIS_ETP, SPMD_R, 0);
    if (step != PROBS_ETP) probs = op_redistribute(t, probs, AXIS_ETP, SPMD_R, 0);
    Tensor *y = experts(t, m, op_permute(t, rows, &sort), op_permute(t, probs, &sort), sort.offset);
    y = op_unpermute(t, y, &sort);
    if (step != SCATTER_ETP) y = op_redistribute(t, y, AXIS_ETP, SPMD_V, 0);
    y = op_unpermute(t, y, &d);
    if (step != SCATTER_EP) y = op_redistribute(t, y, AXIS_EP, SPMD_V, 0);
    if (step != CROSS_BACK) y = op_to_dense_view(t, y);
    op_add(t, x, y);
}

/* The steps whose decisions need the tokens of the whole microbatch. */
static void without_tokens(MoeRank *r, Tensor *x, int step) {
    Tape *t = r->tape;
    Tensor *logits = op_gate_logits(t, x, &r->moe.router.weight->value, NULL);
    const Routing g = op_route(t, logits, NULL, NULL, 2, (RouteAttr){.scaling = 1});
    Tensor *count = tape_tensor(t, F64, 2, (int64_t[]){1, EXPERTS});
    op_expert_count(t, &g, count);
    if (step != COUNT) tokens_sum(t, count, 1u << AXIS_TP);
    op_router_loss(t, logits, count, (RouterLossAttr){0});
    const Routing whole = {unless(step == WHOLE_PROBS, tokens_whole(t, g.probs), g.probs),
                           unless(step == WHOLE, tokens_whole(t, g.expert), g.expert)};
    op_dispatch(t, &whole, EXPERTS, (DispatchAttr){.capacity = 5});
}

typedef void Flow(MoeRank *, Tensor *x, int step);

/* Runs a flow without one step, and returns the message of the fault, or "" if there is none. */
static void fault_without(Flow *flow, int step, char message[1024]) {
    const MoeCase c = {.layout = {2, 1, 2, 2, 2}};
    const Layout layout = moe_layout(&c.layout, 4, 0);
    MoeOutcome out;
    MoeRank r = {.c = &c, .out = &out, .layout = &layout, .rows = SEQUENCE / 2, .samples = SAMPLES};
    FaultScope scope = {.where = "test"};
    jmp_buf jump;
    scope.catch_jmp = &jump;
    moe_open(&r, device_null(), SPACE_UNPLANNED, SPACE_UNPLANNED);
    FaultScope *old = fault_scope(&scope);
    message[0] = 0;
    if (setjmp(jump))
        snprintf(message, 1024, "%s", scope.message);
    else {
        tape_begin(r.tape, &RECORDING);
        flow(&r, tape_input(r.tape, NULL, F64, 3, (int64_t[]){r.rows, SAMPLES, HIDDEN}, moe_dense_type(&r)),
             step);
    }
    fault_scope(old);
    moe_close(&r);
}

static void expect_fault(Flow *flow, int step, const char *op, const char *axis) {
    char message[1024], names[64];
    fault_without(flow, step, message);
    snprintf(names, sizeof names, "op '%s', axis %s", op, axis);
    if (!strstr(message, names)) fail_msg("step %d: no \"%s\" in \"%s\"", step, names, message);
}

TEST(a_collective_left_out_is_a_type_error) {
    static const struct {
        Flow *flow;
        int step;
        const char *op, *axis;
    } FAULTS[] = {
        {without_to_all, SEND, "permute", "tp"},
        {without_to_all, SEND_PROBS, "permute", "tp"},
        {without_to_all, GATHER, "permute", "etp"},
        {without_to_all, GATHER_PROBS, "permute", "etp"},
        {without_to_all, SCATTER, "return_from_experts", "etp"},
        {without_to_all, RETURN, "unpermute", "tp"},
        {without_gather, IDS_EP, "permute", "ep"},
        {without_gather, X_EP, "permute", "ep"},
        {without_gather, ROWS_ETP, "permute", "etp"},
        {without_gather, PROBS_EP, "permute", "ep"},
        {without_gather, PROBS_ETP, "permute", "etp"},
        {without_gather, SCATTER_EP, "to_dense_view", "ep"},
        {without_gather, SCATTER_ETP, "unpermute", "etp"},
        {without_gather, CROSS_BACK, "add", "tp"},
        {without_tokens, COUNT, "router_loss", "tp"},
        {without_tokens, WHOLE, "dispatch", "tp"},
        {without_tokens, WHOLE_PROBS, "dispatch", "tp"},
    };
    _Static_assert(sizeof FAULTS / sizeof *FAULTS == TO_ALL_STEPS + GATHER_STEPS + PLAIN_STEPS, "every step");
    char message[1024];
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++) {
        fault_without(FAULTS[i].flow, -1, message);
        assert_string_equal(message, "");
        expect_fault(FAULTS[i].flow, FAULTS[i].step, FAULTS[i].op, FAULTS[i].axis);
    }
}
