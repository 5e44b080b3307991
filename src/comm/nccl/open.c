/* Loads NCCL, and opens it as the transport if all ranks can use it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/agree.h"
#include "comm/nccl/state.h"

/* A rank's properties, which all ranks compare. */
typedef struct Facts {
    unsigned char device[16];
    int32_t version; /* 0 if NCCL cannot be loaded */
    int32_t shares;  /* 1 if NCCL allows ranks to share a GPU */
    int32_t alone;   /* 1 if the rank runs as a thread, but NCCL needs one process per rank */
    int32_t lacks_peers;
} Facts;

/* Returns whether ranks may share a GPU. Since 2.30, NCCL allows shared GPUs if NCCL_MULTI_RANK_GPU_ENABLE is
 * set (see its init.cc). Tests set NCCL_MULTI_RANK_GPU_ENABLE on machines with fewer GPUs than ranks. */
static bool may_share(const Nccl *n) {
    const char *v = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return n->host_memory || (n->version >= 23000 && v && strcmp(v, "0") != 0);
}

static bool same_gpu(const Facts *a, const Facts *b) {
    return !memcmp(a->device, b->device, sizeof a->device);
}

/* Sets `why` to the reason why NCCL cannot be used, or to an empty string if it can. */
static Err agree_on(const Comm *c, const Facts *all, char why[200]) {
    enum { SIZE = 200 };
    char a[32], b[32];
    *why = 0;
    for (int i = 0; i < c->world; i++) {
        if (!all[i].version) snprintf(why, SIZE, "rank %d cannot load NCCL", i);
        if (all[i].version && all[0].version && all[i].version != all[0].version)
            return err_user("rank 0 has NCCL %s and rank %d has %s: use the same version on all ranks, for "
                            "example with --nccl-library",
                            nccl_version_text(&(Nccl){.version = all[0].version}, a), i,
                            nccl_version_text(&(Nccl){.version = all[i].version}, b));
        for (int k = 0; k < i; k++) {
            if (same_gpu(&all[i], &all[k]) && !(all[i].shares && all[k].shares))
                snprintf(why, SIZE, "ranks %d and %d share a GPU", k, i);
        }
        if (all[i].alone && c->world > 1)
            snprintf(why, SIZE,
                     "NCCL %s needs a process for each GPU: use mpirun or torchrun, or a newer NCCL",
                     nccl_version_text(&(Nccl){.version = all[i].version}, a));
    }
    return ERR_OK;
}

static void open_transport(Comm *c, const Nccl *n, Device *device, const CommDeviceOptions *o) {
    NcclState *s = mem_zero(1, sizeof *s);
    *s = (NcclState){
        .nccl = *n, .comm = c, .device = device, .most_blocks = o->most_blocks, .registers = o->registers};
    s->greeting = device_alloc(device, NCCL_PAIRS, "connections of NCCL");
    c->device = &NCCL_TRANSPORT, c->device_state = s;
    nccl_watch_begin(s);
}

static Err load(const char *library, bool discrete, Nccl *n) {
    ERR_RETURN(nccl_load(library, n));
    if (n->host_memory && discrete)
        return err_user("'%s' transfers only host memory: remove --device cuda", library);
    if (!n->host_memory && !discrete)
        return err_user(
            "NCCL transfers only GPU memory, so --nccl-library needs --device cuda: add this option");
    if (n->host_memory && comm_processes() > 1)
        return err_user("'%s' supports only one process: use --ranks without a launcher", library);
    return ERR_OK;
}

Err comm_check_library(const char *library, bool discrete) {
    Nccl n;
    return load(library, discrete, &n);
}

static void describe(const Comm *c, const Nccl *n, const Facts *all, const CommDeviceOptions *o,
                     char text[200]) {
    enum { SIZE = 200 };
    char version[32], limit[64] = "";
    bool shared = false, lacks_peers = false;
    for (int i = 0; i < c->world; i++) {
        lacks_peers |= all[i].lacks_peers;
        for (int k = 0; k < i; k++) shared |= !n->host_memory && same_gpu(&all[i], &all[k]);
    }
    if (o->most_blocks)
        snprintf(limit, sizeof limit, ", at most %d thread blocks for each operation", o->most_blocks);
    snprintf(text, SIZE, "NCCL %s%s%s%s%s", nccl_version_text(n, version), limit,
             o->registers ? ", registered buffers" : "", shared ? ", ranks share a GPU" : "",
             lacks_peers ? ", some GPUs have no peer access" : "");
}

static Facts facts_of(const Comm *c, const Device *device, const Nccl *n, bool loaded) {
    Facts f = {.version = loaded ? n->version : 0,
               .shares = loaded && may_share(n),
               .alone = loaded && !c->processes_by && !nccl_shares_a_process(n),
               .lacks_peers = device->lacks_peers};
    memcpy(f.device, device->id, sizeof f.device);
    return f;
}

/* Returns all ranks' properties. The caller must free the array. */
static Facts *gather_facts(Comm *c, Facts mine) {
    Facts *all = mem_zero((size_t)c->world, sizeof *all);
    comm_run(c, &(CommCall){.kind = COMM_ALL_GATHER,
                            .dtype = U8,
                            .group = comm_everyone(c),
                            .site = "nccl_facts",
                            .in = &mine,
                            .out = all,
                            .n = sizeof mine});
    return all;
}

static Err open_as_agreed(Comm *c, const Nccl *n, Device *device, const Facts *all,
                          const CommDeviceOptions *o, char text[200]) {
    enum { SIZE = 200 };
    char why[SIZE];
    ERR_RETURN(agree_on(c, all, why));
    if (*why && o->required)
        return err_user("NCCL cannot be used, because %s. To communicate through host memory, remove "
                        "--distributed-backend, --cuda-graph-impl and --use-nccl-ub",
                        why);
    if (*why) {
        snprintf(text + strlen(text), SIZE - strlen(text), ", because %s", why);
        return ERR_OK;
    }
    if (o->registers && !nccl_has_windows(n))
        return err_user("--use-nccl-ub needs NCCL 2.28 or later, but the loaded version is %s: remove the "
                        "option, or specify a newer library with --nccl-library",
                        nccl_version_text(n, why));
    open_transport(c, n, device, o);
    describe(c, n, all, o, text);
    return ERR_OK;
}

Err comm_open_device(Comm *c, Device *device, const CommDeviceOptions *o, char text[200]) {
    Nccl n = {0};
    comm_describe_host(c, text);
    if (!c || !c->host || (!o->library && !device_is_discrete(device))) return ERR_OK;
    Err e = load(o->library, device_is_discrete(device), &n);
    if (o->library || o->required) ERR_RETURN(comm_agree(c, e));
    Facts *all = gather_facts(c, facts_of(c, device, &n, !e.code));
    e = open_as_agreed(c, &n, device, all, o, text);
    free(all);
    return e;
}

void comm_close_device(Comm *c) {
    if (!c || !c->device) return;
    c->device->free(c);
    /* If ranks run as threads, the last rank to destroy a communicator frees all members' memory, so all their devices
     * must still be open. */
    comm_run(c, &(CommCall){.kind = COMM_BARRIER, .group = comm_everyone(c), .site = "device_close"});
}
