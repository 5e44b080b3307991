#include "validate/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "run/launch.h"

typedef struct World {
    const StageInput *in;
    Err (*fn)(StageRank *);
    int64_t start_ns;
} World;

static int count_sharing(const StageRank *r) {
    enum { ID = sizeof r->device->id };
    unsigned char(*all)[ID] = mem_zero((size_t)r->world, ID);
    int n = 0;
    stage_gather(r, r->device->id, all, ID);
    for (int i = 0; i < r->world; i++) n += !memcmp(all[i], r->device->id, ID);
    free(all);
    return n;
}

static Err rank_main(void *arg, Comm *comm) {
    const World *w = arg;
    Config one_thread = w->in->config;
    one_thread.derived.cpu_threads = 1;
    StageRank r = {.in = w->in,
                   .comm = comm,
                   .rank = comm ? comm_rank(comm) : 0,
                   .world = comm ? comm_world(comm) : 1,
                   .end_ns = w->start_ns + (int64_t)(w->in->seconds * 1e9)};
    if (r.rank == 0) r.out = w->in->out;
    ERR_RETURN(rank_open_device(&one_thread, comm, &r.device, r.transport));
    if (r.out) r.out->exclusive = r.device->exclusive;
    device_describe(r.device, r.described, sizeof r.described);
    r.sharing = count_sharing(&r);
    const Err e = w->fn(&r);
    rank_free_device(comm, r.device);
    return e;
}

Err stage_on_ranks(const StageInput *in, Err (*fn)(StageRank *)) {
    World w = {in, fn, clock_ns()};
    outcome_doing(in->out, "opening the devices and the transport");
    return world_run(&in->config, rank_main, &w);
}

int stage_world(const StageInput *in) { return (int)config_ranks(&in->config); }

bool stage_on_gpu(const StageInput *in) { return in->config.device == ON_CUDA; }

void stage_gather(const StageRank *r, const void *mine, void *all, size_t bytes) {
    if (!r->comm) {
        memcpy(all, mine, bytes);
        return;
    }
    comm_run(r->comm, &(CommCall){.kind = COMM_ALL_GATHER,
                                  .dtype = U8,
                                  .group = comm_everyone(r->comm),
                                  .site = "validate",
                                  .in = mine,
                                  .out = all,
                                  .n = (int64_t)bytes});
}

double stage_reduce(const StageRank *r, CommReduction how, double x) {
    if (r->comm) comm_all_reduce(r->comm, comm_everyone(r->comm), "validate", how, F64, &x, 1);
    return x;
}

void stage_barrier(const StageRank *r) { stage_reduce(r, COMM_MAX, 0); }

bool stage_has_time(const StageRank *r, double fraction) {
    const double left = (double)(r->end_ns - clock_ns()) * 1e-9;
    return stage_reduce(r, COMM_MAX, r->rank == 0 && left > (1 - fraction) * r->in->seconds) > 0;
}

Suspect stage_suspect(const StageRank *r, int rank) {
    Suspect s;
    if (stage_on_gpu(r->in) && r->device->n_devices > 0)
        snprintf(s.s, sizeof s.s, "GPU %d (rank %d)", rank % r->device->n_devices, rank);
    else
        snprintf(s.s, sizeof s.s, "rank %d", rank);
    return s;
}

bool stage_is_nccl(const char *transport) { return !strncmp(transport, "NCCL", 4); }

void stage_note_transport(const StageRank *r) {
    if (r->out) memcpy(r->out->transport, r->transport, sizeof r->out->transport);
}

Suspect stage_transport(const StageRank *r) {
    Suspect s;
    snprintf(s.s, sizeof s.s, "%s%s%s",
             stage_is_nccl(r->transport) ? r->transport : "transport through host memory",
             r->in->variant ? " with " : "", r->in->variant ? r->in->variant : "");
    return s;
}
