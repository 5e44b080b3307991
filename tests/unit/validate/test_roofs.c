/* Tests that a device is reported if it is slower than its siblings, or than the vendor's rate, by more than
 * the tolerance. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "unit/cmocka_all.h"
#include "validate/roofs.h"

enum { DEVICES = 4 };
static const Roof COPY = {.name = "copy", .unit = "GB/s", .copy = true},
                  GEMM = {.name = "GEMM bf16", .unit = "GFLOP/s", .type = BF16};

static const char WHY[] =
    "(clock down to 345 MHz, up to 82 C and 175 W; clock lowered by: hardware thermal slowdown)";

/* Gives the last device this rate, and the others 1000. Returns the number of faults, which must all name the
 * last device. */
static int faults(const Roof *roof, double rate, double stated) {
    Outcome *out = mem_zero(1, sizeof *out);
    const double best[DEVICES] = {1000, 1000, 1000, rate};
    Suspect suspect[DEVICES];
    for (int i = 0; i < DEVICES; i++) snprintf(suspect[i].s, sizeof suspect[i].s, "GPU %d", i);
    const NvmlLoad load[DEVICES] = {[DEVICES - 1] = {.known = true,
                                                     .sm_mhz = 345,
                                                     .celsius = 82,
                                                     .watts = 175,
                                                     .limits = "hardware thermal slowdown"}};
    roofs_judge(out, roof, best, suspect, load, DEVICES, stated);
    const int n = out->n_evidence;
    for (int i = 0; i < n; i++) {
        assert_int_equal(out->evidence[i].verdict, VALIDATE_DEGRADED);
        assert_string_equal(out->evidence[i].suspect, "GPU 3");
        assert_true(!strncmp(out->evidence[i].text, roof->name, strlen(roof->name)));
        assert_non_null(strstr(out->evidence[i].text, WHY));
    }
    free(out);
    return n;
}

TEST(slow_devices_are_reported) {
    static const struct {
        const Roof *roof;
        double rate, stated;
        int faults;
    } CASES[] = {
        /* Comparison with siblings. On one host, the GEMM rates of four healthy H100 differed by 6 %. */
        {&COPY, 951, 0, 0},
        {&COPY, 949, 0, 1},
        {&GEMM, 940, 0, 0},
        {&GEMM, 901, 0, 0},
        {&GEMM, 899, 0, 1},
        {&GEMM, 2000, 0, 0},
        /* Comparison with the vendor's rate. 1000 is 71 % of 1400 and 61 % of 1650, so the other devices
         * pass. */
        {&COPY, 981, 1400, 0},
        {&COPY, 979, 1400, 1},
        {&GEMM, 991, 1650, 0},
        {&GEMM, 989, 1650, 1},
        {&GEMM, 100, 1650, 2},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        assert_int_equal(faults(CASES[i].roof, CASES[i].rate, CASES[i].stated), CASES[i].faults);
}
