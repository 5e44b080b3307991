/* Tests the properties of GPUs that NVML reports. The library nvml/host_nvml.c replaces the driver's and has
 * the same name. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "measure/nvml.h"
#include "unit/cmocka_all.h"

static void new_ids(unsigned char ids[3][16]) {
    static const int BYTES[] = {0xaa, 0xbb, 0xcc};
    for (int i = 0; i < 3; i++) memset(ids[i], BYTES[i], 16);
}

TEST(a_gpu_is_read) {
    unsigned char ids[3][16];
    NvmlFacts f;
    new_ids(ids);
    nvml_read(ids[0], &f);
    assert_true(f.known && f.ecc && !f.uncorrected && !*f.throttled);
    assert_string_equal(f.driver, "570.1");
    assert_true(f.nvlinks == 18 && f.switched == 18 && f.sm == 90);
    assert_true(f.width == 16 && f.most_width == 16 && f.pcie == 5);
    assert_true(f.watts == 300 && f.limit_watts == 700);
    nvml_read(ids[2], &f);
    assert_true(!f.known && !f.nvlinks);
}

TEST(a_gpu_is_watched) {
    unsigned char ids[3][16];
    new_ids(ids);
    setenv("HOST_NVML_LIMITS", "68", 1); /* bits of the power limit and of hardware thermal slowdown */
    const NvmlLoad load = nvml_watch_end(nvml_watch(ids[0], 20));
    NvmlFacts f;
    nvml_read(ids[0], &f);
    setenv("HOST_NVML_LIMITS", "1", 1);
    assert_false(nvml_watch_end(nvml_watch(ids[0], 20)).known); /* unknown, because the GPU is idle */
    unsetenv("HOST_NVML_LIMITS");
    assert_true(load.known && load.sm_mhz == 1700 && load.celsius == 40 && load.watts == 300);
    assert_string_equal(load.limits, "power limit, hardware thermal slowdown");
    assert_string_equal(f.throttled, "hardware thermal slowdown");
    assert_true(!nvml_watch(ids[2], 20) && !nvml_watch_end(NULL).known);
}

unsigned host_nvml_power_readings(void);

TEST(the_extremes_of_a_watch_are_kept) {
    static const struct timespec MS = {.tv_nsec = 1000 * 1000};
    unsigned char ids[3][16];
    new_ids(ids);
    setenv("HOST_NVML_VARIES", "1", 1);
    NvmlWatch *watch = nvml_watch(ids[0], 20);
    while (host_nvml_power_readings() < 3) nanosleep(&MS, NULL);
    const NvmlLoad load = nvml_watch_end(watch);
    unsetenv("HOST_NVML_VARIES");
    assert_true(load.sm_mhz == 1500 && load.celsius == 60 && load.watts == 500);
    assert_true(load.mean_mhz > 1500 && load.mean_mhz < 1700 && load.mean_watts > 300 &&
                load.mean_watts < 500);
}

/* Returns the properties of a GPU while the environment variable is set. */
static NvmlFacts facts_with(const char *variable, const char *value, int gpu) {
    unsigned char ids[3][16];
    NvmlFacts f;
    new_ids(ids);
    setenv(variable, value, 1);
    nvml_read(ids[gpu], &f);
    unsetenv(variable);
    return f;
}

TEST(links_that_are_down_do_not_count) {
    const NvmlFacts f = facts_with("HOST_NVML_LINKS", "5", 1);
    assert_true(f.nvlinks == 5 && f.switched == 5);
}

TEST(processes_are_named) {
    assert_int_equal(facts_with("HOST_NVML_PID", "4711", 0).n_processes, 0);
    const NvmlFacts f = facts_with("HOST_NVML_PID", "4711", 1);
    assert_true(f.n_processes == 1 && f.process[0].pid == 4711);
    assert_string_equal(f.process[0].name, "neighbour");
}

TEST(pairs_are_linked) {
    unsigned char ids[3][16];
    new_ids(ids);
    assert_true(nvml_all_linked((const unsigned char(*)[16])ids, 2));
    assert_false(nvml_all_linked((const unsigned char(*)[16])ids, 3)); /* the third GPU is on another host */
    memcpy(ids[1], ids[0], 16);
    assert_false(nvml_all_linked((const unsigned char(*)[16])ids, 2));
}
