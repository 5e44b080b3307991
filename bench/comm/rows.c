#include "bench/comm/rows.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "measure/exact.h"

int comm_rows(CommRow rows[COMM_ROWS]) {
    static const int RANKS[] = {2, 4};
    static const int64_t BYTES[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
    enum { N_RANKS = sizeof RANKS / sizeof *RANKS, N_BYTES = sizeof BYTES / sizeof *BYTES };
    _Static_assert(N_COLLECTIVES * N_RANKS * N_BYTES <= COMM_ROWS, "COMM_ROWS is too small");
    int n = 0;
    for (int c = 0; c < N_COLLECTIVES; c++)
        for (int r = 0; r < N_RANKS; r++)
            for (int b = 0; b < N_BYTES; b++, n++) {
                rows[n] = (CommRow){.collective = c, .ranks = RANKS[r], .bytes = BYTES[b]};
                snprintf(rows[n].name, sizeof rows[n].name, "%s/ranks:%d/bytes:%lld", COLLECTIVES[c].name,
                         RANKS[r], (long long)BYTES[b]);
            }
    return n;
}

typedef struct Run {
    const CommRow *row;
    int64_t times;
    bool (*next)(void *);
    void *arg;
} Run;

static void rank_main(void *arg, Comm *comm) {
    const Run *run = arg;
    const CommRow *row = run->row;
    const Collective *of = &COLLECTIVES[row->collective];
    Exact x = {.comm = comm,
               .group = comm_everyone(comm),
               .device = device_cpu(1),
               .in = mem_zero((size_t)row->bytes, 1),
               .out = mem_zero((size_t)row->bytes, 1),
               .of = of,
               .type = &EXACT_TYPES[0],
               .count = row->bytes / (int64_t)sizeof(float) / (of->splits ? row->ranks : 1),
               .in_place = !of->out_of_place};
    const CommCall call = exact_call(&x);
    exact_fill(&x, &call);
    exact_run(&x, call);
    if (comm_rank(comm) == 0)
        while (run->next(run->arg)) exact_run(&x, call);
    else
        for (int64_t i = 0; i < run->times; i++) exact_run(&x, call);
    free(x.in), free(x.out);
    device_free(x.device);
}

void comm_row_run(const CommRow *row, int64_t times, bool (*next)(void *), void *arg) {
    Run run = {row, times, next, arg};
    comm_threads(row->ranks, &(CommOptions){.deadline_s = 0}, rank_main, &run);
}
