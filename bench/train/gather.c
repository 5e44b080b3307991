/* Combines the ranks' measurements. */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/statistics.h"
#include "bench/train/step.h"
#include "comm/agree.h"

bool steps_alone(const Steps *b) { return b->options->alone && (b->gpu || b->ranks == 1); }

double steps_over_ranks(const Steps *b, CommReduction how, double x) {
    if (b->comm) comm_all_reduce(b->comm, comm_everyone(b->comm), "bench", how, F64, &x, 1);
    return x;
}

/* ---- one rank ---- */

static double busy_ms(const Steps *b) {
    double *ms = mem_zero((size_t)b->n_profiled, sizeof *ms);
    for (int64_t i = 0; i < b->n_profiled; i++)
        for (int op = 0; op < OP_KERNELS; op++) ms[i] += (double)b->profiled[i].op_ns[op] * 1e-6;
    const double median = median_of(ms, b->n_profiled);
    free(ms);
    return median;
}

void steps_describe_rank(Steps *b) {
    b->rank = mem_zero((size_t)b->ranks, sizeof *b->rank);
    RankResult *own = &b->rank[b->comm ? comm_rank(b->comm) : 0];
    own->busy_ms = busy_ms(b);
    own->planned = b->planned;
    own->planned_communicators = b->plan.communicators;
    own->communicators = b->comm ? comm_communicators(b->comm, true) : 0;
    own->load = b->load;
    own->taken = b->gpu ? b->peak - b->before : b->peak;
    if (b->gpu)
        memcpy(own->device, b->device->id, sizeof b->device->id);
    else
        machine_host(own->device);
}

int steps_devices(const Steps *b) {
    int devices = 0;
    for (int i = 0; i < b->ranks; i++) {
        int k = 0;
        while (k < i && memcmp(b->rank[k].device, b->rank[i].device, sizeof b->rank[i].device)) k++;
        devices += k == i;
    }
    return devices;
}

/* ---- groups ---- */

void steps_find_groups(Steps *b, const CommProfile profile[COMM_PROFILE]) {
    for (unsigned axes = 0; axes < COMM_PROFILE; axes++) {
        if (steps_over_ranks(b, COMM_MAX, (double)profile[axes].exposed.calls) == 0) continue;
        CHECK(b->groups < COMM_GROUPS, "more than %d kinds of groups communicate", COMM_GROUPS);
        b->group[b->groups++] = axes;
    }
}

/* ---- all ranks ---- */

static void gather_ranks(Steps *b) {
    comm_run(b->comm, &(CommCall){.kind = COMM_ALL_GATHER,
                                  .dtype = U8,
                                  .group = comm_everyone(b->comm),
                                  .site = "bench",
                                  .in = &b->rank[comm_rank(b->comm)],
                                  .out = b->rank,
                                  .n = sizeof *b->rank});
}

static void sum(const Steps *b, int64_t *x, int64_t n) {
    comm_all_reduce(b->comm, comm_everyone(b->comm), "bench", COMM_SUM, I64, x, n);
}

static void average_step(const Steps *b, Step *s) {
    double *comm = &s->comm[0].exposed_ns;
    const int64_t n = sizeof s->comm / (sizeof *comm);
    sum(b, s->op_ns, OP_KERNELS);
    for (int op = 0; op < OP_KERNELS; op++) s->op_ns[op] /= b->ranks;
    comm_all_reduce(b->comm, comm_everyone(b->comm), "bench", COMM_SUM, F64, comm, n);
    for (int64_t i = 0; i < n; i++) comm[i] /= b->ranks;
}

void steps_gather(Steps *b) {
    if (!b->comm) return;
    gather_ranks(b);
    for (int64_t i = 0; i < b->n_profiled; i++) average_step(b, &b->profiled[i]);
    sum(b, b->op_calls, OP_KERNELS);
    sum(b, b->comm_calls, COMM_GROUPS);
    b->init_seconds = steps_over_ranks(b, COMM_MAX, b->init_seconds);
    b->roof_gemm = steps_over_ranks(b, COMM_SUM, b->roof_gemm);
    b->roof_copy = steps_over_ranks(b, COMM_SUM, b->roof_copy);
}
