/* Measures steps (step.c), combines the ranks' results (gather.c) and reports them (report.c). */
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

/* Communication of a step in one kind of group; means over the ranks. */
typedef struct StepComm {
    double exposed_ns, flight_ns, bytes; /* as in CommProfile */
} StepComm;

typedef struct Step {
    int64_t wall_ns; /* time of the slowest rank */
    int64_t blas_ns; /* time of a replay of the step's GEMMs in BLAS; CPU only */
    int64_t op_ns[OP_KERNELS];
    StepComm comm[COMM_GROUPS];
} Step;

/* Records the times of the ops of one step, in the order of their calls. The time of a call is added to the
 * profile that is attached to the device when the call runs. Each call on a tape attaches the next profile,
 * so that different GEMMs of one op are recorded separately. */
typedef struct Recorder {
    Device *device;
    StepGemms *gemms;
    bool counting;           /* true: count the calls of a step; false: time them */
    int64_t calls, at, room; /* room: larger than the counted calls, because experts may have lacked tokens */
    OpProfile (*profile)[OP_KERNELS]; /* [room + 1] */
    int *gemm;                        /* [room] index of the call in gemms; -1: no GEMM */
} Recorder;

/* One rank's part of the result. It is sent to other ranks as raw bytes. */
typedef struct RankResult {
    int planned_communicators, communicators;
    double busy_ms;            /* median time in ops per profiled step; ops never wait for other ranks */
    double planned, taken;     /* bytes of memory; on the CPU, of all ranks of the process */
    char device[MACHINE_TEXT]; /* ranks share a device if this is equal */
    NvmlLoad load;             /* load of the GPU during the steps without timing of ops */
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
    double planned;      /* bytes of memory; on the CPU, of all ranks of the process */
    double before, peak; /* bytes of memory in use: before the run, and after its steps */
    double flops;        /* FLOPs of a step */
    double init_seconds, loss;
    double *wall; /* [n_plain] ns of the slowest rank in each step without timing of ops; GPU only */
    int64_t n_plain;
    double back_to_back;  /* ns of a step without waits between steps; GPU only */
    double graph_replays; /* mean number of replayed CUDA graphs in each of these steps */
    NvmlLoad load;        /* load of this rank's GPU during these steps */
    Step *profiled;       /* [n_profiled] */
    int64_t n_profiled;
    int64_t op_calls[OP_KERNELS]; /* calls of a step */
    unsigned group[COMM_GROUPS];  /* masks of axes */
    int64_t comm_calls[COMM_GROUPS];
    int groups;
    CommProfile
        *comm_profile; /* [COMM_PROFILE]; profile of the current step, or NULL if it is not profiled */
    double bubble;     /* idle time of the schedule / time of all passes, if passes take equal times */
    Recorder recorder;
    StepGemms gemms;
    double roof_gemm, roof_copy; /* GFLOP/s and GB/s, summed over ranks; 0: not measured */
    RankResult *rank;            /* [ranks], after steps_gather */
} Steps;

/* Records this rank's RankResult. The device must be open. */
void steps_describe_rank(Steps *);
/* Combines the ranks' measurements; all ranks must call it. Times of ops become means over the ranks; numbers of calls
 * and roofs become sums. */
void steps_gather(Steps *);
/* Number of devices that the ranks run on; call after steps_gather. */
int steps_devices(const Steps *);
/* Finds the groups in which the operations of a step wait for communication. */
void steps_find_groups(Steps *, const CommProfile[COMM_PROFILE]);
/* Whether the GEMMs are also measured alone, which is not possible on a CPU that several ranks share. */
bool steps_alone(const Steps *);
/* Reduces a number over all ranks. */
double steps_over_ranks(const Steps *, CommReduction, double);

/* Returns the facts that are known before the measurement: machine, device and work. */
struct json_t *report_facts(const Steps *);
/* Must be called on rank 0. For *result, see bench_train. */
Err report_steps(Steps *, struct json_t **result);
