/* The measured steps (step.c) and the report on them (report.c). */
#ifndef ISOTRON_BENCH_STEP_H
#define ISOTRON_BENCH_STEP_H

#include "bench/train/gemms.h"
#include "bench/train/train.h"
#include "train/trainer.h"

typedef struct Step {
    int64_t wall_ns;
    int64_t blas_ns; /* of a replay of its GEMMs; CPU only */
    int64_t op_ns[OP_KERNELS];
} Step;

/* Times of the ops of one step, in the order of the calls. The time of a call goes to the profile that is
 * attached when the call runs. Each call on a tape switches to the next profile, so that GEMMs of one op can
 * be told apart. */
typedef struct Recorder {
    Device *device;
    StepGemms *gemms;
    bool counting; /* counting the calls of a step, else timing them */
    int64_t calls, at;
    OpProfile (*profile)[OP_KERNELS]; /* [calls + 1] */
    int *gemm;                        /* [calls] index in gemms; -1: none */
} Recorder;

typedef struct Steps {
    const BenchTrain *options;
    Config config;
    const Derived *derived;
    Trainer *run;
    Device *device; /* the run's */
    bool gpu;
    DType type;     /* of activations */
    char name[200]; /* of the device */
    int threads;
    Batch *batches;
    int64_t microbatches;
    MemoryPlan plan;
    double before, peak; /* bytes of memory in use: before the run, and after its steps */
    double flops;        /* of a step */
    double init_seconds, loss;
    double *wall; /* [n_plain] ns, without the times of ops; GPU only */
    int64_t n_plain;
    double back_to_back;  /* ns of a step without waits between steps; GPU only */
    double graph_replays; /* in each of these steps */
    Step *profiled;       /* [n_profiled] */
    int64_t n_profiled;
    int64_t op_calls[OP_KERNELS]; /* of a step */
    Recorder recorder;
    StepGemms gemms;
    double roof_gemm, roof_copy; /* GFLOP/s, GB/s; 0: not measured. GPU only */
} Steps;

/* The facts of the coming result: machine, device, work. */
struct json_t *report_facts(const Steps *);
/* *result: as in bench_train. */
Err report_steps(Steps *, struct json_t **result);

#endif
