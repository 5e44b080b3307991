#include "run/launch.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/version.h"
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
    const double s = 60 * (double)c->distributed_timeout_minutes;
    return (CommOptions){.deadline_s =
                             f64_is_set(c->distributed_timeout_seconds) ? c->distributed_timeout_seconds : s,
                         .meet_s = s,
                         .build = isotron_commit()};
}

/* Returns a hash of an option's value. All paths have the same hash, because paths may differ between hosts. */
static int64_t value_hash(const Config *c, int option) {
    const ArgType type = CONFIG_ROWS[option].type;
    Str text = {0};
    arg_print(&CONFIG_ROWS[option], config_value(c, option), &text);
    const bool is_path = (type == ARG_TEXT || type == ARG_TEXTS) && strchr(text.s, '/');
    const uint64_t hash = hash64(text.s, is_path ? 0 : text.len, is_path);
    str_free(&text);
    return (int64_t)hash;
}

/* Checks that all processes have the same options. Ranks with different options would train different
 * models. */
static Err check_same_options(Comm *comm, const Config *c) {
    int64_t hash[OPTIONS];
    for (int i = 0; i < OPTIONS; i++) hash[i] = value_hash(c, i);
    const int i = comm_first_difference(comm, hash, OPTIONS);
    if (i < 0) return ERR_OK;
    const Arg *row = &CONFIG_ROWS[i];
    Str value = {0};
    arg_print(row, config_value(c, i), &value);
    const Err e =
        err_user("--%.*s is %.200s on process %d, but differs on other processes: give all processes the "
                 "same options",
                 (int)arg_name_len(row), row->names, value.s, comm_rank(comm));
    str_free(&value);
    return e;
}

/* Checks that MPI connects all processes. MPI connects only processes that an mpirun of the same MPI library has
 * started. */
static Err check_same_world(const Comm *comm, const CommLaunch *launch) {
    if (comm_world(comm) == launch->processes) return ERR_OK;
    return err_user("the launcher started %d processes, but MPI connects %d: use mpirun from the MPI "
                    "library that isotron was built with, or torchrun, srun or --ranks",
                    launch->processes, comm_world(comm));
}

/* Runs fn as the only rank of this process. If an error occurs before all processes are connected, only this
 * process returns the error. */
static Err as_process(const Config *c, const CommLaunch *launch, const CommOptions *options, RankMain *fn,
                      void *arg) {
    Comm *comm;
    if (launch->by == COMM_TCP)
        ERR_RETURN(comm_tcp(launch, options, &comm));
    else
        comm = comm_mpi(options);
    Err e = check_same_world(comm, launch);
    if (!e.code) e = check_same_options(comm, c);
    if (!e.code) e = fn(arg, comm);
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

void world_raise_queues(void) {
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (!queues || atoi(queues) < 8) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

Err world_run(const Config *c, RankMain *fn, void *arg) {
    const CommOptions options = options_of(c);
    const int ranks = (int)config_ranks(c);
    CommLaunch launch;
    ERR_RETURN(comm_launch(&launch));
    if (c->device == ON_CUDA && ranks > 1) world_raise_queues();
    if (launch.processes > 1 && ranks > 1) return as_process(c, &launch, &options, fn, arg);
    return ranks == 1 ? fn(arg, NULL) : as_threads(ranks, &options, fn, arg);
}

Err world_size(Config *c) {
    CommLaunch launch;
    ERR_RETURN(comm_launch(&launch));
    if (launch.processes == 1) return ERR_OK;
    if (config_given(c, ranks) && c->ranks != launch.processes)
        return err_user(
            "--ranks %lld differs from the %d processes that the launcher started: remove --ranks",
            (long long)c->ranks, launch.processes);
    c->ranks = launch.processes;
    return ERR_OK;
}

/* Returns this rank's index on its host. The index selects the rank's GPU if the host has several GPUs. */
static int rank_on_host(const Comm *comm) {
    CommLaunch launch;
    if (!comm) return 0;
    return comm_launch(&launch).code || launch.processes == 1 ? comm_rank(comm) : launch.local;
}

DeviceSpec rank_device_spec(const Config *c, const Comm *comm) {
    DeviceSpec spec = map_device_spec(c, rank_on_host(comm));
    spec.has_neighbours = comm && comm_processes() == 1;
    spec.exports = comm && c->use_nccl_ub;
    return spec;
}

Err rank_open_device(const Config *c, Comm *comm, Device **out, char text[200]) {
    const DeviceSpec spec = rank_device_spec(c, comm);
    const CommDeviceOptions options = {.library = c->nccl_library,
                                       .required = config_given(c, distributed_backend) || c->use_nccl_ub ||
                                                   c->cuda_graph_impl == CUDA_GRAPH_LOCAL,
                                       .most_blocks = (int)c->gemm_sm_margin,
                                       .registers = c->use_nccl_ub};
    Device *device;
    *out = NULL;
    Err e = comm_agree(comm, device_open(&spec, &device));
    if (!e.code && c->distributed_backend == DISTRIBUTED_NCCL)
        e = comm_open_device(comm, device, &options, text);
    else
        comm_describe_host(comm, text);
    if (e.code)
        device_free(device);
    else
        *out = device;
    return e;
}

void rank_free_device(Comm *comm, Device *device) {
    /* A null device has no transport to close. */
    if (device && device->kind != DEVICE_NULL) comm_close_device(comm);
    device_free(device);
}

int64_t rank_sharing(const Comm *comm, const Device *device) {
    const int64_t ranks = !comm || comm_processes() > 1 ? 1 : comm_world(comm);
    return (ranks + device->n_devices - 1) / device->n_devices;
}

bool rank_is_printer(const Comm *comm) { return !comm || comm_rank(comm) == 0; }
