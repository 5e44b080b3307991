#include "unit/cmocka_all.h"

#include <math.h>

#include "unit/comm/world.h"

TEST(all_kinds_on_all_types_and_sizes) {
    for (int world = 1; world <= 8; world += world < 4 ? 1 : 4) {
        int sizes = world == 4 ? 7 : 6; /* the largest size is cut into pieces */
        comm_threads(world, NULL, run_all_kinds, &sizes);
    }
}

TEST(sums_are_folds_in_member_order) {
    for (int world = 1; world <= 8; world++) comm_threads(world, NULL, run_order, NULL);
}

TEST(messages_keep_their_order_on_each_pair) {
    for (int world = 2; world <= 8; world *= 2) comm_threads(world, NULL, run_messages, NULL);
}

TEST(works_of_many_groups_interleave) {
    comm_threads(16, NULL, run_interleaved, &(Layout){.size = {2, 2, 0, 2, 1, 4, 0}, .rounds = 10});
    comm_threads(64, NULL, run_interleaved, &(Layout){.size = {4, 2, 0, 4, 2, 2, 0}, .rounds = 3});
}

TEST(the_null_backend_leaves_results_alone) {
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
    comm_dump(c, COMM_RECORDS, f);
    fclose(f);
    assert_non_null(strstr(text, "all_reduce sum of 1 F32 at 'null', operation 0 of ranks 0 1 2"));
    assert_non_null(strstr(text, "all_gather of 1099511627776 F32 at 'null', operation 1 of ranks"));
    free(text);
    comm_free(c);
}

static void a_nan_of_any_member_is_the_result(void *arg, Comm *c) {
    (void)arg;
    static const DType TYPES[] = {F64, F32, BF16, F16};
    const int n = comm_world(c);
    for (int t = 0; t < 4; t++)
        for (int r = COMM_SUM; r <= COMM_MIN; r++) {
            char in[8 * 8], out[8 * 8]; /* element i is NaN on member i only */
            for (int i = 0; i < n; i++)
                dtype_store(in, TYPES[t], i, i == comm_rank(c) ? (double)NAN : value(comm_rank(c), i));
            comm_run(c, &(CommCall){.kind = COMM_ALL_REDUCE,
                                    .reduction = (CommReduction)r,
                                    .dtype = TYPES[t],
                                    .group = world_group(c),
                                    .site = "nan",
                                    .in = in,
                                    .out = out,
                                    .n = n});
            for (int i = 0; i < n; i++)
                CHECK(isnan(dtype_load(out, TYPES[t], i)), "a NaN of member %d is lost", i);
        }
}

TEST(no_nan_is_lost) {
    for (int world = 2; world <= 4; world++)
        comm_threads(world, NULL, a_nan_of_any_member_is_the_result, NULL);
}

/* Neighbours on a ring wait for operations in opposite orders, so a waiting rank must make progress on all of
 * its operations. */
static void waits_crosswise(void *arg, Comm *c) {
    (void)arg;
    enum { ROUNDS = 50, N = 40000 }; /* so many elements that an operation is cut into pieces */
    const int n = comm_world(c), me = comm_rank(c);
    float *in = mem_alloc(N * sizeof *in),
          *out[2] = {mem_alloc(N * sizeof(float)), mem_alloc(N * sizeof(float))};
    for (int round = 0; round < ROUNDS; round++) {
        CommWork *work[2];
        for (int i = 0; i < N; i++) in[i] = (float)(me + round);
        for (int k = 0; k < 2; k++) { /* the pair that begins at this rank, and the pair that ends here */
            const bool first = k == me % 2; /* all ranks start even pairs first */
            const int low = first ? me : me - 1;
            const Group pair = {
                .size = 2, .rank = me - low, .first = low, .n_axes = 1, .axis_size = {2}, .axis_stride = {1}};
            const Group alone = {.size = 1, .first = me};
            work[k] = comm_start(c, &(CommCall){.kind = COMM_ALL_REDUCE,
                                                .dtype = F32,
                                                .group = low < 0 || low + 1 == n ? alone : pair,
                                                .site = "crosswise",
                                                .in = in,
                                                .out = out[k],
                                                .n = N});
        }
        for (int k = 0; k < 2; k++) comm_wait(c, work[me % 3 ? k : 1 - k]);
        for (int k = 0; k < 2; k++) {
            const int other = k == me % 2 ? me + 1 : me - 1;
            const float want = (float)(me + round) + (other < 0 || other == n ? 0 : (float)(other + round));
            CHECK(out[k][0] == want && out[k][N - 1] == want, "%g, not %g", (double)out[k][0], (double)want);
        }
    }
    free(in), free(out[0]), free(out[1]);
}

TEST(works_are_waited_for_in_any_order) {
    comm_threads(7, &(CommOptions){.deadline_s = 60}, waits_crosswise, NULL);
}

TEST(time_in_which_the_host_waits_is_exposed) { comm_threads(3, NULL, run_exposed, NULL); }

TEST(the_recorder_keeps_the_newest) {
    Comm *c = comm_null(2, 0);
    for (int i = 0; i < COMM_RECORDS + 7; i++)
        comm_run(c, &(CommCall){.kind = COMM_BARRIER, .group = world_group(c), .site = "ring"});
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    comm_dump(c, COMM_RECORDS, f);
    fclose(f);
    int lines = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1, lines++) {
        char want[80];
        snprintf(want, sizeof want, "barrier at 'ring', operation %d of ranks 0 1: started", lines + 7);
        assert_int_equal(strncmp(line + strspn(line, " "), want, strlen(want)), 0);
    }
    assert_int_equal(lines, COMM_RECORDS);
    free(text);
    comm_free(c);
}
