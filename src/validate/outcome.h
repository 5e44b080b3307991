/* A stage's result. An Outcome has no pointers, because a process passes it to its parent in shared memory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* The verdicts, in order of severity. */
typedef enum StageVerdict {
    VALIDATE_PASS,
    VALIDATE_INCONCLUSIVE,
    VALIDATE_INTERRUPTED,
    VALIDATE_DEGRADED,
    VALIDATE_FAIL,
    VALIDATE_VERDICTS
} StageVerdict;
extern const char *const STAGE_VERDICTS[]; /* for example "PASS" */

enum {
    OUTCOME_EVIDENCE = 24,
    OUTCOME_METRICS = 1536, /* 5 metrics for each of 256 ranks, plus some for the world */
    OUTCOME_SAMPLES = 64, /* two runs of the stage, with OUTCOME_ROUNDS rounds of at most two samples each */
    OUTCOME_ROUNDS = 16,
    OUTCOME_LIMITS = 24,
    OUTCOME_FACTS = 1280, /* 4 facts for each of 256 ranks, plus some for the world */
    OUTCOME_HASHES = 64
};

/* A fault and its suspect, for example "GPU 2", "link 1-2", "rank 3", "NCCL 2.28.9" or "driver". */
typedef struct Evidence {
    StageVerdict verdict;
    char suspect[96], text[400];
} Evidence;

/* A rate. Larger values are better. */
typedef struct Metric {
    char name[80], unit[16];
    double roof; /* the hardware's limit, in `unit`, or 0 if it is unknown */
    int n;
    double sample[OUTCOME_SAMPLES];
} Metric;

/* The name of the fact that lists the processes of other runs on a rank's GPU. */
#define OTHERS_OF_RANK "other processes of rank %d"
/* A fact about the machine. Lasting facts, which are equal in all runs on a machine, form the fingerprint. */
typedef struct Fact {
    char name[64], value[200];
    bool lasting;
} Fact;

/* The hash of a result that depends on the order of summation. */
typedef struct OrderHash {
    char name[64];
    uint64_t hash;
} OrderHash;

typedef struct Outcome {
    bool done; /* if true, the stage has ended; otherwise, `doing` describes its last activity */
    Err error; /* why the stage could not run; no error if it ran */
    double seconds;
    char doing[160], summary[240];
    /* the transport on which the result depends, or an empty text if the result depends on none */
    char transport[200];
    /* n_lost: number of pieces of evidence that did not fit */
    int n_evidence, n_metrics, n_limits, n_facts, n_hashes, n_lost;
    int devices;    /* inventory: number of devices of the --device kind that this process sees */
    bool exclusive; /* whether no other process can use the devices until this process ends */
    Evidence evidence[OUTCOME_EVIDENCE];
    Metric metric[OUTCOME_METRICS];
    char limit[OUTCOME_LIMITS][200]; /* the properties that are not certified */
    Fact fact[OUTCOME_FACTS];
    OrderHash hash[OUTCOME_HASHES];
} Outcome;

#define PRINTS(n) __attribute__((format(printf, n, n + 1)))
/* Adds evidence. If the list is full, the new evidence replaces less severe evidence. */
void outcome_add(Outcome *, StageVerdict, const char *suspect, const char *fmt, ...) PRINTS(4);
/* Adds a limitation, which states what is not certified. A repeated limitation is stored once. If the list of
 * facts, metrics or limitations is full, a limitation states that the list is full. */
void outcome_limit(Outcome *, const char *fmt, ...) PRINTS(2);
void outcome_fact(Outcome *, bool lasting, const char *name, const char *fmt, ...) PRINTS(4);
void outcome_doing(Outcome *, const char *fmt, ...) PRINTS(2);
void outcome_sum_up(Outcome *, const char *fmt, ...) PRINTS(2);
void outcome_hash(Outcome *, uint64_t hash, const char *name);
#undef PRINTS
bool outcome_has_limit(const Outcome *, const char *limit);
/* Adds a sample to the metric `name`, which is created if necessary. Samples beyond OUTCOME_SAMPLES are
 * dropped. */
void outcome_sample(Outcome *, const char *unit, double sample, const char *name);
/* Sets the roof of a metric that has samples. 0 means that the roof is unknown. */
void outcome_roof(Outcome *, double roof, const char *name);
const Metric *outcome_metric(const Outcome *, const char *name); /* returns NULL if there is no such metric */
/* Merges the results of another run of the same stage. Repeated evidence is stored once. */
void outcome_merge(Outcome *to, const Outcome *from);
double metric_median(const Metric *); /* returns 0 if the metric is NULL or has no samples */

/* Returns the worst verdict in the evidence. */
StageVerdict outcome_verdict(const Outcome *);
