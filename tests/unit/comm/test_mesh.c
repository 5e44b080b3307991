#include "unit/cmocka_all.h"

#include <stdbool.h>
#include <string.h>

#include "base/fault.h"
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

/* The expected groups are those of Megatron-LM's parallel_state for 16 ranks with TP2 CP2 DP2 PP2, and EP4
 * ETP1 for experts. */
TEST(groups_of_rank_0_are_megatrons) {
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

TEST(groups_know_their_axes) {
    const Mesh m = mesh_make(8, 0, (int[AXES]){2, 1, 0, 2, 1, 2, 0});
    static const struct {
        unsigned mask;
        const char *axes;
    } CASES[] = {{1 << AXIS_TP, "tp"},
                 {MASK_DENSE, "tp-dp-pp"}, /* CP is omitted, because its size is 1 */
                 {1 << AXIS_EP, "ep"},     /* these are also the ranks of TP */
                 {1 << AXIS_ETP | 1 << AXIS_EDP, "edp"},
                 {1 << AXIS_CP, "world"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char text[32];
        const Group g = mesh_group(&m, CASES[i].mask);
        assert_string_equal(mesh_axes_text(g.axes, text), CASES[i].axes);
    }
    const Group whole = mesh_group(&m, 1 << AXIS_TP | 1 << AXIS_DP);
    assert_int_equal(group_inner(&whole, 2).axes, whole.axes);
    assert_int_equal(group_outer(&whole, 2).axes, whole.axes);
}

TEST(every_rank_finds_itself_in_its_groups) {
    for (int rank = 0; rank < 24; rank++) {
        Mesh m = mesh_make(24, rank, (int[AXES]){2, 3, 0, 2, 1, 3, 0});
        for (unsigned mask = 0; mask <= MASK_DENSE; mask++) {
            Group g = mesh_group(&m, mask & MASK_DENSE);
            assert_int_equal(mesh_member(&g, g.rank), rank);
        }
    }
}

static bool same_members(const Group *a, const Group *b) {
    if (a->size != b->size) return false;
    for (int i = 0; i < a->size; i++)
        if (mesh_member(a, i) != mesh_member(b, i)) return false;
    return true;
}

static bool same_key(Group a, Group b) {
    a.rank = b.rank = 0;
    return !memcmp(&a, &b, sizeof a);
}

/* Checks, for every pair of groups of a mesh, that groups with equal rank lists have equal simplified
 * forms. */
TEST(equal_lists_have_one_simplified_form) {
    enum { WORLD = 24, GROUPS = 2 * WORLD * 16 };
    (void)state;
    static Group g[GROUPS];
    int n = 0, equal = 0;
    for (int k = 0; k < 2; k++)
        for (int rank = 0; rank < WORLD; rank++) {
            Mesh m = mesh_make(WORLD, rank,
                               k ? (int[AXES]){2, 3, 0, 2, 1, 3, 0} : (int[AXES]){4, 1, 0, 3, 2, 2, 0});
            for (unsigned mask = 0; mask < 16; mask++) {
                g[n] = mesh_group(&m, mask);
                Group s = group_simplify(&g[n]);
                assert_true(same_members(&s, &g[n]));
                assert_int_equal(s.rank, g[n].rank);
                n++;
            }
        }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            const bool same = same_members(&g[i], &g[j]);
            equal += same;
            assert_true(same == same_key(group_simplify(&g[i]), group_simplify(&g[j])));
        }
    assert_in_range(equal, n, n * n / 4);
}

/* Inner blocks are members [size * b, size * (b + 1)), outer blocks members p, p + size, ... of the group's
 * list. */
TEST(blocks_cut_a_group_by_member_number) {
    const struct {
        unsigned mask;
        int size;
    } cuts[] = {{1 << AXIS_CP, 2},
                {1 << AXIS_CP, 4},
                {1 << AXIS_CP, 1},
                {1 << AXIS_TP | 1 << AXIS_DP, 2},
                {1 << AXIS_TP | 1 << AXIS_DP, 6},
                {1 << AXIS_CP | 1 << AXIS_DP, 12},
                {MASK_DENSE, 16},
                {1 << AXIS_TP | 1 << AXIS_CP, 8}};
    for (int rank = 0; rank < 48; rank++) {
        Mesh m = mesh_make(48, rank, (int[AXES]){2, 4, 0, 2, 1, 1, 0});
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            const int size = cuts[k].size;
            Group g = mesh_group(&m, cuts[k].mask), in = group_inner(&g, size), out = group_outer(&g, size);
            assert_int_equal(in.size, size);
            assert_int_equal(out.size, g.size / size);
            assert_int_equal(mesh_member(&in, in.rank), rank);
            assert_int_equal(mesh_member(&out, out.rank), rank);
            for (int i = 0; i < size; i++)
                assert_int_equal(mesh_member(&in, i), mesh_member(&g, g.rank / size * size + i));
            for (int i = 0; i < out.size; i++)
                assert_int_equal(mesh_member(&out, i), mesh_member(&g, g.rank % size + i * size));
        }
    }
}

TEST(blocks_that_do_not_divide_are_refused) {
    Mesh m = mesh_make(12, 0, (int[AXES]){2, 2, 0, 1, 1, 1, 0});
    Group g = mesh_group(
        &m, 1 << AXIS_TP | 1 << AXIS_DP); /* 0 1 4 5 8 9: blocks of 3 do not match the size of an axis */
    const int sizes[] = {3, 4, 0};
    for (int i = 0; i < 3; i++) {
        jmp_buf jump;
        FaultScope scope = {.catch_jmp = &jump}, *old = fault_scope(&scope);
        volatile bool refused = true;
        if (!setjmp(jump)) {
            group_inner(&g, sizes[i]);
            refused = false;
        }
        fault_scope(old);
        assert_true(refused);
    }
}
