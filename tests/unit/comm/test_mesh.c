#include "unit/cmocka_all.h"

#include "comm/mesh.h"

static void assert_members(const Group *g, const int *expected, int n) {
    assert_int_equal(g->size, n);
    for (int i = 0; i < n; i++) assert_int_equal(mesh_member(g, i), expected[i]);
}

#define ASSERT_GROUP(mesh, mask, ...)                                                                        \
    do {                                                                                                     \
        const int expected_[] = {__VA_ARGS__};                                                               \
        Group g_ = mesh_group(&(mesh), mask);                                                                \
        assert_members(&g_, expected_, (int)(sizeof expected_ / sizeof *expected_));                         \
    } while (0)

/* Megatron-LM's parallel_state for 16 ranks, TP2 CP2 DP2 PP2, and EP4 ETP1 on the same ranks. */
static void groups_of_rank_0_are_megatrons(void **state) {
    (void)state;
    Mesh m = mesh_make(16, 0, (int[AXES]){2, 2, 0, 2, 1, 4, 0});
    ASSERT_GROUP(m, 1 << AXIS_TP, 0, 1);
    ASSERT_GROUP(m, 1 << AXIS_CP, 0, 2);
    ASSERT_GROUP(m, 1 << AXIS_DP, 0, 4);
    ASSERT_GROUP(m, 1 << AXIS_PP, 0, 8);
    ASSERT_GROUP(m, 1 << AXIS_DP | 1 << AXIS_CP, 0, 2, 4, 6);
    ASSERT_GROUP(m, 1 << AXIS_TP | 1 << AXIS_PP, 0, 1, 8, 9);
    ASSERT_GROUP(m, 1 << AXIS_EP, 0, 1, 2, 3);
    ASSERT_GROUP(m, 1 << AXIS_EDP, 0, 4);
}

static void every_rank_finds_itself_in_its_groups(void **state) {
    (void)state;
    for (int rank = 0; rank < 24; rank++) {
        Mesh m = mesh_make(24, rank, (int[AXES]){2, 3, 0, 2, 1, 3, 0});
        for (unsigned mask = 0; mask <= MASK_DENSE; mask++) {
            Group g = mesh_group(&m, mask & MASK_DENSE);
            assert_int_equal(mesh_member(&g, g.rank), rank);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_rank_0_are_megatrons),
        cmocka_unit_test(every_rank_finds_itself_in_its_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
