/* Tests that ranks agree on the memory of the pools. The linker replaces device_memory_available. */
#include "unit/model_helper.h"

#include "comm/comm.h"
#include "infer/engine.h"

enum { RANKS = 3, LEAST = 600 };

static _Thread_local size_t available;

size_t __wrap_device_memory_available(const Device *d) {
    (void)d;
    return available;
}

static void run_rank(void *arg, Comm *comm) {
    double *room = arg;
    Device *d = device_cpu(1);
    available = LEAST * (size_t)(RANKS - comm_rank(comm)); /* the last rank has least */
    room[comm_rank(comm)] = engine_room(&(RunContext){.device = d, .comm = comm});
    device_free(d);
}

TEST(ranks_take_half_of_the_least_share) {
    double room[RANKS];
    comm_threads(RANKS, NULL, run_rank, room);
    for (int i = 0; i < RANKS; i++) assert_true(room[i] == LEAST / RANKS / 2);
}
