/* Tests isolate.h: the report on a test that passes, fails, ends its process or never begins, and the exit
 * status. */
#include "unit/ops/isolate.h"

#include <stdlib.h>

enum { TESTS = 4 };

static const struct CMUnitTest NAMED[TESTS] = {{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}};

/* The outcome of a test: a TestEnd, or the end of the whole process in the test or before it. */
enum { ENDS_PROCESS = TEST_ENDS, STOPS_EARLY };

static struct {
    Isolated *ends;
    int fate[TESTS];
} all;

static int run_from(int first) {
    for (int i = first; i < TESTS && all.fate[i] != STOPS_EARLY; i++) {
        all.ends->begun = i;
        all.ends->end[i] = TEST_STARTED;
        if (all.fate[i] == ENDS_PROCESS) _exit(3);
        all.ends->end[i] = (unsigned char)all.fate[i];
    }
    return 0;
}

static void expect(const int fate[TESTS], int status, const char *said) {
    memcpy(all.fate, fate, sizeof all.fate);
    *all.ends = (Isolated){0};
    assert_int_equal(isolate(all.ends, NAMED, TESTS, run_from), status);
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(isolated_report(all.ends, NAMED, TESTS, out), status);
    fclose(out);
    assert_string_equal(text, said);
    free(text);
}

TEST(all_pass) {
    expect((int[]){TEST_PASSED, TEST_PASSED, TEST_PASSED, TEST_PASSED}, 0,
           "4 of 4 tests ran, 0 failed, 0 left out\n");
}

TEST(those_behind_a_failure_run) {
    expect((int[]){TEST_STARTED, ENDS_PROCESS, TEST_PASSED, ENDS_PROCESS}, 1,
           "FAILED a\nFAILED b\nFAILED d\n4 of 4 tests ran, 3 failed, 0 left out\n");
}

TEST(one_never_begun_has_failed) {
    expect((int[]){TEST_PASSED, TEST_PASSED, TEST_PASSED, STOPS_EARLY}, 1,
           "FAILED, never begun: d\n3 of 4 tests ran, 1 failed, 0 left out\n");
}

TEST(one_left_out_is_named) {
    expect((int[]){TEST_PASSED, TEST_LEFT_OUT, TEST_PASSED, TEST_PASSED}, 0,
           "left out: b\n3 of 4 tests ran, 0 failed, 1 left out\n");
}

TEST(all_left_out_show_nothing) {
    expect((int[]){TEST_LEFT_OUT, TEST_LEFT_OUT, TEST_LEFT_OUT, TEST_LEFT_OUT}, 1,
           "left out: a\nleft out: b\nleft out: c\nleft out: d\n0 of 4 tests ran, 0 failed, 4 left out\n");
}

int main(void) {
    all.ends = shared_memory(sizeof *all.ends);
    return run_all_tests(NULL, NULL);
}
