/* Code that the stages share: worlds of ranks with devices, time budgets, and the names of suspects. */
#pragma once

#include "comm/comm.h"
#include "tensor/device.h"
#include "validate/validate.h"

typedef struct StageInput {
    const ValidateOptions *options;
    Config config; /* the options, with this run's number of ranks, library and deadline */
    double seconds;
    Outcome *out;
    const char *variant; /* collectives: the algorithm and protocol of NCCL; NULL if NCCL chooses them */
    bool exclusive;      /* whether only one process at a time can use a device */
    void *state;         /* owned by the stage, and shared by all its worlds in this process */
} StageInput;

/* The stages of stages.def. Each function writes its result to `out` and returns an error only for invalid options. */
#define STAGE(name, share, least, ranks, on_library, starts_processes, what)                                 \
    Err stage_##name(const StageInput *);
#include "validate/stages.def"

/* Returns the folder of the golden cases of `parity`: `given` or, if `given` is NULL, the folder of this
 * installation or source tree. If there is no such folder, returns "golden". The caller frees the path. If a
 * case is incomplete, the error names the first such case. */
Err parity_find_golden(const char *given, char **out);

/* A rank within a stage. */
typedef struct StageRank {
    const StageInput *in;
    Comm *comm; /* NULL if there is only one rank */
    Device *device;
    int rank, world;
    int sharing;    /* number of ranks, including this one, on this rank's device */
    Outcome *out;   /* NULL on ranks other than 0 */
    int64_t end_ns; /* the time at which the budget ends */
    char described[200], transport[200];
} StageRank;

/* Opens the world with its devices and transport, and runs fn on each rank. */
Err stage_on_ranks(const StageInput *, Err (*fn)(StageRank *));
/* Returns the number of ranks in the world. */
int stage_world(const StageInput *);
bool stage_on_gpu(const StageInput *);

/* stage_gather, stage_reduce and stage_barrier exchange data between all ranks through the host. All ranks must
 * call these functions. */
void stage_gather(const StageRank *, const void *mine, void *all, size_t bytes); /* all: [world] */
double stage_reduce(const StageRank *, CommReduction, double);
void stage_barrier(const StageRank *);
/* Returns whether less than the given fraction of the budget has passed. Rank 0 decides for all ranks. */
bool stage_has_time(const StageRank *, double fraction);
/* Describes what the stage is doing. Only rank 0 records the description. */
#define STAGE_DOING(r, ...) ((r)->out ? outcome_doing((r)->out, __VA_ARGS__) : (void)0)

typedef struct Suspect {
    char s[96];
} Suspect;
/* Returns "GPU 2 (rank 2)", or "rank 2" on a CPU. */
Suspect stage_suspect(const StageRank *, int rank);
/* Returns whether a transport, as described by rank_open_device, is NCCL. */
bool stage_is_nccl(const char *transport);
/* Records in the stage's result that the result depends on the transport. */
void stage_note_transport(const StageRank *);
/* Returns "NCCL 2.28.9", or a description of the transport through host memory. */
Suspect stage_transport(const StageRank *);
