/* The device of a rank: its number among the ranks of its host, or among the threads of its process. */
#include <stdlib.h>

#include "unit/cmocka_all.h"

#include "train/launch.h"

/* Linked with --wrap=device_open: keeps the specification, and opens nothing. */
Err __wrap_device_open(const DeviceSpec *, Device **);
Err __wrap_device_open(const DeviceSpec *spec, Device **out) {
    *out = NULL;
    return err_failed("%d", spec->rank);
}

static void assert_opens(const char *number, int world, int rank) {
    Arena *arena = arena_new();
    Config c;
    const Derived d = {.cpu_threads = 1};
    Device *device;
    char text[200];
    config_defaults(&c, arena);
    Comm *comm = world > 1 ? comm_null(world, rank) : NULL;
    assert_string_equal(rank_open_device(&c, &d, comm, &device, text).msg, number);
    if (comm) comm_free(comm);
    arena_free(arena);
}

static void a_process_opens_the_device_of_its_local_rank(void **state) {
    (void)state;
    assert_opens("0", 1, 0);
    assert_opens("5", 8, 5);
    setenv("RANK", "5", 1), setenv("WORLD_SIZE", "8", 1), setenv("LOCAL_RANK", "1", 1);
    setenv("MASTER_ADDR", "localhost", 1), setenv("MASTER_PORT", "1", 1);
    assert_opens("1", 8, 5);
    unsetenv("LOCAL_RANK");
    assert_opens("5", 8, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_opens_the_device_of_its_local_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
