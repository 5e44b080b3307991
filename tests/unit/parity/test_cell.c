/* Tests that a cell in the exact lane is compared bitwise, and that its report names the differing element and its
 * rank. A layer's error and a row's description must be those of the worst tensor. */
#include <math.h>
#include <string.h>

#include "parity/cell.h"
#include "unit/err.h"

enum { STEPS = 2, ELEMENTS = 7, SECOND = 3 }; /* the tensors have 3 and 2 x 2 elements */

typedef struct Ours {
    GoldenStep steps[STEPS];
    double gradients[ELEMENTS], parameters[ELEMENTS], ranks[ELEMENTS];
    Trace trace;
} Ours;

static void fill(Ours *r) {
    memset(r, 0, sizeof *r);
    for (int i = 0; i < ELEMENTS; i++) {
        r->gradients[i] = 0.5 + i, r->parameters[i] = 0.25 - i;
        r->ranks[i] = 10 + i;
    }
    for (int i = 0; i < STEPS; i++) r->steps[i].loss = 4.0 - i;
    r->trace =
        (Trace){.steps = r->steps, .gradients = r->gradients, .parameters = r->parameters, .ranks = r->ranks};
}

static CellResult judged(Ours *ours) {
    static HfTensor tensors[] = {{.name = "a", .ndim = 1, .dim = {SECOND}},
                                 {.name = "b", .ndim = 2, .dim = {2, 2}}};
    static int64_t at[] = {0, SECOND};
    static const Golden golden = {.n_steps = STEPS};
    const Case c = {.golden = &golden, .map = {.tensors = tensors, .count = 2}, .at = at, .total = ELEMENTS};
    Ours one;
    Report oracle = {0};
    fill(&one);
    const Shared shared = {.alone = {[LANE_FP64] = &one.trace, [LANE_EXACT] = &one.trace}, .exact = &oracle};
    const Config config = {.lane = LANE_EXACT};
    CellResult r = {0};
    assert_ok(cell_judge(&c, &config, &ours->trace, &shared, &r));
    assert_int_equal(r.one_rank.n, 3);
    return r;
}

static void expect_row(const CellResult *r, int row, bool pass, const char *worst, int64_t index,
                       int64_t rank) {
    const Row *x = &r->one_rank.row[row];
    assert_int_equal(x->pass, pass);
    assert_string_equal(x->worst, worst);
    assert_int_equal(x->error.worst, index);
    assert_int_equal(x->rank, rank);
}

TEST(equal_runs_pass) {
    Ours ours;
    fill(&ours);
    const CellResult r = judged(&ours);
    assert_true(r.pass);
    for (int i = 0; i < 3; i++) assert_true(r.one_rank.row[i].pass);
}

TEST(one_bit_fails) {
    for (int i = 0; i < ELEMENTS; i++) {
        Ours ours;
        const bool second = i >= SECOND;
        fill(&ours);
        ours.gradients[i] = nextafter(ours.gradients[i], INFINITY);
        CellResult r = judged(&ours);
        assert_false(r.pass);
        expect_row(&r, 0, false, second ? "b" : "a", second ? i - SECOND : i, 10 + i);
        assert_true(r.one_rank.row[1].pass && r.one_rank.row[2].pass);
        fill(&ours);
        ours.parameters[i] = nextafter(ours.parameters[i], INFINITY);
        r = judged(&ours);
        assert_false(r.pass);
        expect_row(&r, 1, false, second ? "b" : "a", second ? i - SECOND : i, 10 + i);
        assert_false(r.one_rank.row[2].pass);
    }
}

TEST(losses_count) {
    for (int i = 0; i < STEPS; i++) {
        Ours ours;
        fill(&ours);
        ours.steps[i].loss = nextafter(ours.steps[i].loss, 0);
        const CellResult r = judged(&ours);
        assert_false(r.pass);
        assert_true(r.one_rank.row[0].pass && r.one_rank.row[1].pass);
        assert_int_equal(r.one_rank.row[2].rank, NO_RANK);
    }
}

TEST(a_number_that_is_not_finite_fails) {
    const double bad[] = {NAN, INFINITY};
    for (int k = 0; k < 2; k++) {
        Ours ours;
        fill(&ours);
        ours.gradients[4] = bad[k];
        const CellResult r = judged(&ours);
        assert_false(r.pass);
        expect_row(&r, 0, false, "b", 1, 14);
        assert_true(isinf(r.one_rank.row[0].error.relative));
        assert_ptr_equal(cell_worst(&r), &r.one_rank.row[0]);
    }
}

/* In the rows of both references, errors are grouped by layer, according to the names of tensors. The last
 * entry has the remaining tensors. */
TEST(layers_have_their_own_errors) {
    CellResult r = {0};
    Row *a = report_row(&r.oracle.rows, "gradient"), *b = report_row(&r.one_rank, "gradient");
    assert_false(a->pass); /* no tensors were compared */
    row_add(a, "model.layers.1.mlp.x", (TensorError){.relative = 3}, 4, INFINITY, 0);
    row_add(a, "transformer.h.1.attn.y", (TensorError){.relative = 1, .elementwise = 4}, 4, 8, 0);
    row_add(a, "lm_head.weight", (TensorError){.relative = 1}, 4, INFINITY, 0);
    row_add(b, "model.layers.0.mlp.x", (TensorError){.relative = 12}, 8, INFINITY, 0);
    row_add(b, "model.layers.40.mlp.x", (TensorError){.relative = 5}, 8, INFINITY, 0);
    row_add(b, "model.layers.2.mlp.x", (TensorError){.relative = NAN}, 8, INFINITY, 0);
    assert_true(cell_layer(&r, 0) == 1.5 && cell_layer(&r, 1) == 0.75 && isinf(cell_layer(&r, 2)));
    assert_false(b->pass);
    assert_true(cell_layer(&r, 3) == 0 && cell_layer(&r, ROW_LAYERS) == 0.625);
}

static void expect_text(TensorError e, double bound, double element, const char *text) {
    Row row = {
        .quantity = "gradient", .worst = "x", .error = e, .bound = bound, .elementwise_bound = element};
    Str out = {0};
    row_describe(&row, &out);
    assert_string_equal(out.s, text);
    str_free(&out);
}

TEST(rows_are_described_by_their_worst_error) {
    expect_text((TensorError){0.5, 3, 0}, 0.25, 4, "gradient of x: 0.5, 2 times its bound of 0.25");
    expect_text((TensorError){0.5, 12, 0}, 0.25, 4,
                "gradient of x: 12 in an element, 3 times its bound of 4");
    expect_text((TensorError){INFINITY, 0, 0}, 0.25, INFINITY, "gradient of x is not finite");
    expect_text((TensorError){INFINITY, INFINITY, 0}, 0.25, 4, "gradient of x is not finite");
    expect_text((TensorError){1e-9, 0, 0}, BOUND_EQUAL, INFINITY, "gradient of x differs, and must be equal");
}

TEST(power_is_that_of_gradients) {
    CellResult r = {0};
    assert_true(isnan(cell_power(&r)));
    row_add(report_row(&r.oracle.rows, "power: loss"), "all steps", (TensorError){.relative = 5}, 8, INFINITY,
            0);
    row_add(report_row(&r.oracle.rows, "power: gradient"), "layer 0", (TensorError){.relative = 3}, 8,
            INFINITY, 0);
    assert_true(cell_power(&r) == 3);
}
