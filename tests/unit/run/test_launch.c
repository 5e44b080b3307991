/* Tests how a rank's device is chosen by its number among the host's ranks or the process's threads, and the transport
 * for its memory. */
#include <stdlib.h>

#include "unit/cmocka_all.h"

#include "run/launch.h"

static bool device_opens;

/* Linked with --wrap=device_open: records the specification, and does not open the device. */
Err __wrap_device_open(const DeviceSpec *, Device **);
Err __wrap_device_open(const DeviceSpec *spec, Device **out) {
    *out = NULL;
    return device_opens ? ERR_OK : err_failed("%d", spec->rank);
}

/* Linked with --wrap=comm_open_device. */
Err __wrap_comm_open_device(Comm *, Device *, const CommDeviceOptions *, char text[200]);
Err __wrap_comm_open_device(Comm *c, Device *d, const CommDeviceOptions *o, char text[200]) {
    (void)c, (void)d, (void)text;
    return err_failed("%d blocks", o->most_blocks);
}

static void assert_says(const char *message, Comm *comm, int64_t gemm_sm_margin) {
    Arena *arena = arena_new();
    Config c;
    Device *device;
    char text[200];
    config_defaults(&c, arena);
    c.gemm_sm_margin = gemm_sm_margin, c.derived.cpu_threads = 1;
    assert_string_equal(rank_open_device(&c, comm, &device, text).msg, message);
    arena_free(arena);
}

static void assert_opens(const char *number, int world, int rank) {
    Comm *comm = world > 1 ? comm_null(world, rank) : NULL;
    assert_says(number, comm, 0);
    if (comm) comm_free(comm);
}

TEST(a_process_opens_the_device_of_its_local_rank) {
    assert_opens("0", 1, 0);
    assert_opens("5", 8, 5);
    setenv("RANK", "5", 1), setenv("WORLD_SIZE", "8", 1), setenv("LOCAL_RANK", "1", 1);
    setenv("MASTER_ADDR", "localhost", 1), setenv("MASTER_PORT", "1", 1);
    assert_opens("1", 8, 5);
    unsetenv("LOCAL_RANK");
    assert_opens("5", 8, 5);
}

TEST(operations_of_nccl_have_the_blocks_that_gemms_leave) {
    device_opens = true;
    assert_says("0 blocks", NULL, 0);
    assert_says("16 blocks", NULL, 16);
    device_opens = false;
}
