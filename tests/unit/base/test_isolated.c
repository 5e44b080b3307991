/* Tests that the report of a fault is found after any amount of other output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/isolated.h"
#include "unit/cmocka_all.h"

static void say(void *fault) {
    enum { LINES = 10000 };
    for (int i = 0; i < LINES; i++) fprintf(stderr, "host:1:1 [0] NCCL INFO channel %d of rank 0\n", i);
    fputs(fault, stderr);
    for (int i = 0; i < LINES; i++) fprintf(stderr, "host:1:1 [0] NCCL INFO abort %d\n", i);
    abort();
}

TEST(a_fault_is_found_behind_much_output) {
    static const struct {
        const char *fault, *line;
        int rank;
    } CASES[] = {{"COMM FAULT rank 0 has waited 3 s for an operation\n  ranks that did not: 2\n",
                  "COMM FAULT rank 0 has waited 3 s for an operation", 2},
                 {"COMM FAULT rank 2 has waited 3 s for an operation\n  ranks that did not: 0 1\n",
                  "COMM FAULT rank 2 has waited 3 s for an operation", -1},
                 {"FAULT nccl.c:85: [rank 1, op none] ncclSend fails: invalid usage\n",
                  "FAULT nccl.c:85: [rank 1, op none] ncclSend fails: invalid usage", 1},
                 {"", "host:1:1 [0] NCCL INFO channel 0 of rank 0", -1}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Isolated r = isolated_run(say, (void *)CASES[i].fault, 60, NULL);
        const Blame b = isolated_blame(&r);
        assert_int_equal(r.end, JOB_CRASHED);
        assert_string_equal(b.line, CASES[i].line);
        assert_int_equal(b.rank, CASES[i].rank);
        str_free(&r.said);
    }
}
