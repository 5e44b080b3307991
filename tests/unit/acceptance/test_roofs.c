/* A device is reported if it is slower than its siblings, or than the vendor's rate, by more than the tolerance. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acceptance/roofs.h"
#include "base/mem.h"
#include "unit/cmocka_all.h"

enum { DEVICES = 4 };
static const Roof COPY = {.name = "copy", .unit = "GB/s", .copy = true},
                  GEMM = {.name = "GEMM bf16", .unit = "GFLOP/s", .type = BF16};

/* The last device has this rate, the others 1000. Returns the number of faults, which all name the last device. */
static int faults(const Roof *roof, double rate, double stated) {
    Outcome *out = mem_zero(1, sizeof *out);
    const double best[DEVICES] = {1000, 1000, 1000, rate};
    Suspect suspect[DEVICES];
    for (int i = 0; i < DEVICES; i++) snprintf(suspect[i].s, sizeof suspect[i].s, "GPU %d", i);
    roofs_judge(out, roof, best, suspect, DEVICES, stated);
    const int n = out->n_evidence;
    for (int i = 0; i < n; i++) {
        assert_int_equal(out->evidence[i].verdict, ACCEPT_DEGRADED);
        assert_string_equal(out->evidence[i].suspect, "GPU 3");
        assert_true(!strncmp(out->evidence[i].text, roof->name, strlen(roof->name)));
    }
    free(out);
    return n;
}

/* Four healthy H100 of one host differed by 6 % in GEMMs. */
static void siblings_are_compared(void **unused) {
    (void)unused;
    assert_int_equal(faults(&COPY, 951, 0), 0);
    assert_int_equal(faults(&COPY, 949, 0), 1);
    assert_int_equal(faults(&GEMM, 940, 0), 0);
    assert_int_equal(faults(&GEMM, 901, 0), 0);
    assert_int_equal(faults(&GEMM, 899, 0), 1);
    assert_int_equal(faults(&GEMM, 2000, 0), 0);
}

/* 1000 is 71 % of 1400 and 61 % of 1650, so the other devices pass. */
static void the_stated_rate_is_compared(void **unused) {
    (void)unused;
    assert_int_equal(faults(&COPY, 981, 1400), 0);
    assert_int_equal(faults(&COPY, 979, 1400), 1);
    assert_int_equal(faults(&GEMM, 991, 1650), 0);
    assert_int_equal(faults(&GEMM, 989, 1650), 1);
    assert_int_equal(faults(&GEMM, 100, 1650), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(siblings_are_compared),
                                       cmocka_unit_test(the_stated_rate_is_compared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
