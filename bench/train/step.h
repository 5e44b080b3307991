/* Measures steps (step.c), combines the results of the ranks (gather.c), and reports them (report.c). */
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

/* A step's communication in one kind of group, averaged over the ranks. */
typedef struct StepComm {
    double exposed_ns, flight_ns, bytes; /* as in CommProfile */
} StepComm;

typedef struct Step {
    int64_t wall_ns; /* the slowest rank's time */
    int64_t blas_ns; /* time to replay the step's GEMMs in BLAS; only on the CPU */
    int64_t op_ns[OP_KERNELS];
    StepComm comm[COMM_GROUPS];
} Step;

/* Records the times of one step's op calls, in order. A call's time is added to the profile that is attached to the
 * device when the call runs. The recorder attaches a new profile for each call on a tape, so that different GEMMs
 * of one op are recorded separately. */
typedef struct Recorder {
    Device *device;
    StepGemms *gemms;
    bool counting; /* if true, counts a step's calls instead of timing them */
    /* room: capacity of the arrays; larger than the number of counted calls, because experts may have received
     * no tokens */
    int64_t calls, at, room;
    OpProfile (*profile)[OP_KERNELS]; /* [room + 1] */
    int *gemm;                        /* [room]: index of the call in gemms, or -1 if it is not a GEMM */
} Recorder;

/* One rank's part of the result. The struct is sent to other ranks as raw bytes. */
typedef struct RankResult {
    int planned_communicators, communicators;
    /* median time in ops per profiled step; excludes communication, because ops never wait for other ranks */
    double busy_ms;
    double planned, taken;     /* in bytes; on the CPU, for all ranks of the process */
    char device[MACHINE_TEXT]; /* ranks with equal texts share a device */
    NvmlLoad load;             /* the GPU's load during steps without op timing */
} RankResult;

typedef struct Steps {
    const BenchTrain *options;
    Config config;
    Comm *comm; /* NULL if there is only one rank */
    int ranks;
    bool prints; /* true on rank 0 */
    char transport[BENCH_TRANSPORT];
    Trainer *trainer;
    Device *device; /* the run's device */
    bool gpu;
    DType type;     /* the type of activations */
    char name[200]; /* the device's name */
    int threads;
    Batch *batches;       /* batches of full sequences; `step` has this rank's columns */
    int64_t microbatches; /* number of microbatches on this rank */
    Arena *step;
    MemoryPlan plan;
    double planned;      /* in bytes; on the CPU, for all ranks of the process */
    double before, peak; /* bytes of memory in use before the run, and after its steps */
    double flops;        /* FLOPs per step */
    double init_seconds, loss;
    /* [n_plain]: the slowest rank's time in ns for each step without op timing; only on a GPU */
    double *wall;
    int64_t n_plain;
    double back_to_back;  /* a step's time in ns without waits between steps; only on a GPU */
    double graph_replays; /* mean number of CUDA graphs that a step without op timing replays */
    NvmlLoad load;        /* load of this rank's GPU during steps without op timing */
    Step *profiled;       /* [n_profiled] */
    int64_t n_profiled;
    int64_t op_calls[OP_KERNELS]; /* number of calls per step */
    unsigned group[COMM_GROUPS];  /* masks of axes */
    int64_t comm_calls[COMM_GROUPS];
    int groups;
    /* [COMM_PROFILE]: the profile of the current step, or NULL if the step is not profiled */
    CommProfile *comm_profile;
    /* the schedule's idle time divided by the time of all passes, if all passes have equal durations */
    double bubble;
    Recorder recorder;
    StepGemms gemms;
    double roof_gemm, roof_copy; /* GFLOP/s and GB/s, summed over ranks; 0 if not measured */
    RankResult *rank;            /* [ranks]: valid after steps_gather */
} Steps;

/* Records this rank's RankResult. The device must be open. */
void steps_describe_rank(Steps *);
/* Combines the measurements of all ranks. All ranks must call this function. Op times are averaged over the
 * ranks. Call counts and roofs are summed. */
void steps_gather(Steps *);
/* Returns the number of devices on which the ranks run. Call this function after steps_gather. */
int steps_devices(const Steps *);
/* Finds the groups in which the operations of a step wait for communication. */
void steps_find_groups(Steps *, const CommProfile[COMM_PROFILE]);
/* Returns whether the GEMMs are also measured alone, which is impossible on a CPU that several ranks share. */
bool steps_alone(const Steps *);
/* Reduces a number over all ranks. */
double steps_over_ranks(const Steps *, CommReduction, double);

/* Returns the facts that are known before the measurement: machine, device and work. */
struct json_t *report_facts(const Steps *);
/* Prints the report. Call this function on rank 0. bench_train describes *result. */
Err report_steps(Steps *, struct json_t **result);
