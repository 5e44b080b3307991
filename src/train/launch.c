#include "train/launch.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/agree.h"
#include "models/option_map.h"

typedef struct World {
    RankMain *fn;
    void *arg;
    Err *errors; /* [ranks] */
} World;

static void rank_main(void *arg, Comm *comm) {
    World *w = arg;
    w->errors[comm_rank(comm)] = w->fn(w->arg, comm);
}

static CommOptions options_of(const Config *c) {
    return (CommOptions){.deadline_s = f64_is_set(c->distributed_timeout_seconds)
                                           ? c->distributed_timeout_seconds
                                           : 60 * (double)c->distributed_timeout_minutes};
}

static Err as_mpi_process(const CommOptions *options, RankMain *fn, void *arg) {
    Comm *comm = comm_mpi(options);
    Err e = fn(arg, comm);
    if (!rank_is_printer(comm)) e.msg[0] = 0;
    comm_free(comm);
    return e;
}

static Err as_threads(int ranks, const CommOptions *options, RankMain *fn, void *arg) {
    World w = {fn, arg, mem_zero((size_t)ranks, sizeof *w.errors)};
    comm_threads(ranks, options, rank_main, &w);
    Err e = ERR_OK;
    for (int i = ranks; i-- > 0;)
        if (w.errors[i].code) e = w.errors[i];
    free(w.errors);
    return e;
}

Err world_run(const Config *c, RankMain *fn, void *arg) {
    const CommOptions options = options_of(c);
    const int ranks = (int)config_ranks(c);
    if (comm_mpi_present() && ranks > 1) return as_mpi_process(&options, fn, arg);
    return ranks == 1 ? fn(arg, NULL) : as_threads(ranks, &options, fn, arg);
}

Err world_size(Config *c) {
    const int processes = comm_processes();
    if (processes == 1) return ERR_OK;
    if (processes < 1)
        return err_user("this process was started by a launcher that does not say how many there are: use "
                        "mpirun, or --ranks without a launcher");
    if (!comm_mpi_present())
        return err_user(
            "%d processes were launched, but this isotron was built without MPI, so each would be a "
            "separate run: install Open MPI (ci/install-deps) and build again, or use --ranks",
            processes);
    if (config_given(c, ranks) && c->ranks != processes)
        return err_user("--ranks %lld, but mpirun started %d processes: remove it", (long long)c->ranks,
                        processes);
    c->ranks = processes;
    return ERR_OK;
}

Err rank_open_device(const Config *c, const Derived *d, Comm *comm, Device **out, char text[200]) {
    const DeviceSpec spec = map_device_spec(c, d, comm ? comm_rank(comm) : 0);
    Device *device;
    *out = NULL;
    Err e = comm_agree(comm, device_open(&spec, &device));
    if (!e.code && c->distributed_backend == DISTRIBUTED_NCCL)
        e = comm_open_device(comm, device, c->nccl_library,
                             config_given(c, distributed_backend) || c->cuda_graph_impl == CUDA_GRAPH_LOCAL,
                             text);
    else
        strcpy(text, "through host memory");
    if (e.code)
        device_free(device);
    else
        *out = device;
    return e;
}

void rank_free_device(Comm *comm, Device *device) {
    if (device && device->kind != DEVICE_NULL) comm_close_device(comm); /* a plan's device has no transport */
    device_free(device);
}

bool rank_is_printer(const Comm *comm) { return !comm || comm_rank(comm) == 0; }
