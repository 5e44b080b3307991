#include "unit/cmocka_all.h"

#include "unit/comm/world.h"

static void all_kinds_on_all_types_and_sizes(void **state) {
    (void)state;
    for (int world = 1; world <= 8; world += world < 4 ? 1 : 4) {
        int sizes = world == 4 ? 7 : 6; /* the largest is there to be cut into pieces */
        comm_threads(world, NULL, run_all_kinds, &sizes);
    }
}

static void sums_are_folds_in_member_order(void **state) {
    (void)state;
    for (int world = 1; world <= 8; world++) comm_threads(world, NULL, run_order, NULL);
}

static void messages_keep_their_order_on_each_pair(void **state) {
    (void)state;
    for (int world = 2; world <= 8; world *= 2) comm_threads(world, NULL, run_messages, NULL);
}

static void works_of_many_groups_interleave(void **state) {
    (void)state;
    comm_threads(16, NULL, run_interleaved, &(Layout){.size = {2, 2, 0, 2, 1, 4, 0}, .rounds = 10});
    comm_threads(64, NULL, run_interleaved, &(Layout){.size = {4, 2, 0, 4, 2, 2, 0}, .rounds = 3});
}

static void the_null_backend_leaves_results_alone(void **state) {
    (void)state;
    Comm *c = comm_null(6144, 17);
    const Group g = world_group(c);
    float x = 3;
    comm_run(c, &(CommCall){.kind = COMM_ALL_REDUCE,
                            .dtype = F32,
                            .group = g,
                            .site = "null",
                            .in = NULL,
                            .out = &x,
                            .n = 1});
    comm_run(c,
             &(CommCall){
                 .kind = COMM_ALL_GATHER, .dtype = F32, .group = g, .site = "null", .n = INT64_C(1) << 40});
    assert_true(x == 3);
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    comm_dump(c, f);
    fclose(f);
    assert_non_null(strstr(text, "all_reduce sum of 1 F32 at 'null', operation 0 of ranks 0 1 2"));
    assert_non_null(strstr(text, "all_gather of 1099511627776 F32 at 'null', operation 1 of ranks"));
    free(text);
    comm_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_on_all_types_and_sizes),
        cmocka_unit_test(sums_are_folds_in_member_order),
        cmocka_unit_test(messages_keep_their_order_on_each_pair),
        cmocka_unit_test(works_of_many_groups_interleave),
        cmocka_unit_test(the_null_backend_leaves_results_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
