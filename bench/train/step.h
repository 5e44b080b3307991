/* The measured steps (step.c), sums over ranks (gather.c) and the report (report.c). */
#pragma once

#include "base/machine.h"
#include "base/statistics.h"
#include "bench/head.h"
#include "bench/train/gemms.h"
#include "bench/train/train.h"
#include "comm/comm.h"
#include "measure/nvml.h"
#include "train/trainer.h"

enum { COMM_GROUPS = 16 };

/* A step's operations in one kind of group; means over the ranks. */
typedef struct StepComm {
    double exposed_ns, flight_ns, bytes; /* as in CommProfile */
} StepComm;

typedef struct Step {
    int64_t wall_ns; /* of the slowest rank */
    int64_t blas_ns; /* time of a replay of the step's GEMMs; CPU only */
    int64_t op_ns[OP_KERNELS];
    StepComm comm[COMM_GROUPS];
} Step;

/* Times of the ops of one step, in the order of the calls. The time of a call goes to the profile that is
 * attached when the call runs. Each call on a tape switches to the next profile, so that GEMMs of one op can
 * be told apart. */
typedef struct Recorder {
    Device *device;
    StepGemms *gemms;
    bool counting;                    /* true: count the calls of a step; false: time them */
    int64_t calls, at, room;          /* room: more than a step's calls; experts may lack rows */
    OpProfile (*profile)[OP_KERNELS]; /* [room + 1] */
    int *gemm;                        /* [room] index in gemms; -1: none */
} Recorder;

/* One rank's part of the result, sent as bytes. */
typedef struct RankResult {
    int planned_communicators, communicators;
    double busy_ms;        /* time in ops, which never wait for other ranks: median of the profiled steps */
    double planned, taken; /* bytes of memory; on the host, of all ranks of the process */
    char device[MACHINE_TEXT]; /* equal for ranks that share a device */
    NvmlLoad load;             /* load of the GPU, in the steps without the times of ops */
} RankResult;

typedef struct Steps {
    const BenchTrain *options;
    Config config;
    Comm *comm; /* NULL: one rank */
    int ranks;
    bool prints; /* rank 0 */
    char transport[BENCH_TRANSPORT];
    Trainer *trainer;
    Device *device; /* device of the run */
    bool gpu;
    DType type;     /* type of activations */
    char name[200]; /* name of the device */
    int threads;
    Batch *batches;       /* batches of whole sequences; `step` has this rank's columns */
    int64_t microbatches; /* microbatches of this rank */
    Arena *step;
    MemoryPlan plan;
    double planned;      /* bytes; on the host, of all ranks of the process */
    double before, peak; /* bytes of memory in use: before the run, and after its steps */
    double flops;        /* FLOPs of a step */
    double init_seconds, loss;
    double *wall; /* [n_plain] ns of the slowest rank, without the times of ops; GPU only */
    int64_t n_plain;
    double back_to_back;  /* ns of a step without waits between steps; GPU only */
    double graph_replays; /* mean number in each of these steps */
    NvmlLoad load;        /* load of this rank's GPU during these steps */
    Step *profiled;       /* [n_profiled] */
    int64_t n_profiled;
    int64_t op_calls[OP_KERNELS]; /* calls of a step */
    unsigned group[COMM_GROUPS];  /* masks of axes */
    int64_t comm_calls[COMM_GROUPS];
    int groups;
    CommProfile *comm_profile; /* [COMM_PROFILE] of the current step; NULL: it is not profiled */
    double bubble;             /* idle time of the schedule over the time of all passes, if these are equal */
    Recorder recorder;
    StepGemms gemms;
    double roof_gemm, roof_copy; /* GFLOP/s, GB/s, summed over ranks; 0: not measured. GPU only */
    RankResult *rank;            /* [ranks], after steps_gather */
} Steps;

/* Records this rank's part; its device must be open. */
void steps_describe_rank(Steps *);
/* Combines the ranks' measurements; all ranks must call it. Times of ops become means over the ranks; numbers of calls
 * and roofs become sums. */
void steps_gather(Steps *);
/* Number of devices that the ranks run on; call after steps_gather. */
int steps_devices(const Steps *);
/* Chooses the groups from the operations of a step. */
void steps_find_groups(Steps *, const CommProfile[COMM_PROFILE]);
/* Whether the GEMMs are measured alone: not on a CPU that several ranks share. */
bool steps_alone(const Steps *);
/* Reduces a number over all ranks. */
double steps_over_ranks(const Steps *, CommReduction, double);

/* The facts that are known before the measurement: machine, device, work. */
struct json_t *report_facts(const Steps *);
/* Called on rank 0. *result: as in bench_train. */
Err report_steps(Steps *, struct json_t **result);
