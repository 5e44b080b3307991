/* Worlds that must end with a fault: the actions of each rank, and the words that the report must contain.
 * The tests of threads, MPI and TCP share them. Each world runs in separate processes. */
#pragma once

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "unit/comm/world.h"

enum { FAULT_RANKS = 4, SAYS = 5 };
static const CommOptions FAULT_OPTIONS = {.deadline_s = 1};

static inline CommCall small_call(const Comm *c, CommKind kind, const char *site) {
    static const float IN[64];
    return (CommCall){.kind = kind,
                      .dtype = F32,
                      .group = world_group(c),
                      .site = site,
                      .in = IN,
                      .n = 3,
                      .device = world_device};
}

static inline void small_run(Comm *c, CommCall call) {
    float out[64];
    call.out = out;
    comm_run(c, &call);
}

static inline void barrier(Comm *c, const char *site) { small_run(c, small_call(c, COMM_BARRIER, site)); }

/* Rank 2 skips its second operation and stalls until it is ended. */
static inline void drop_and_stall(void *arg, Comm *c) {
    (void)arg;
    if (comm_rank(c) == 2) comm_sabotage(c, (CommSabotage){.nth = 1});
    barrier(c, "before");
    small_run(c, small_call(c, COMM_ALL_REDUCE, "dropped"));
    if (comm_rank(c) == 2) sleep(20);
    barrier(c, "after");
}

/* Rank 2 skips an operation, so its next operation is matched with the skipped one on the other ranks. */
static inline void drop_and_go_on(void *arg, Comm *c) {
    (void)arg;
    if (comm_rank(c) == 2) comm_sabotage(c, (CommSabotage){.nth = 1});
    barrier(c, "before");
    small_run(c, small_call(c, COMM_ALL_REDUCE, "dropped"));
    small_run(c, small_call(c, COMM_ALL_REDUCE, "next"));
}

/* Rank 2 returns while the other ranks wait in an operation. */
static inline void drop_the_last(void *arg, Comm *c) {
    (void)arg;
    if (comm_rank(c) == 2) comm_sabotage(c, (CommSabotage){.nth = 1});
    barrier(c, "before");
    barrier(c, "last");
    if (comm_rank(c) == 2) usleep(50 * 1000);
}

static inline void delay(void *arg, Comm *c) {
    (void)arg;
    if (comm_rank(c) == 1) comm_sabotage(c, (CommSabotage){.nth = 0, .delay_s = 20});
    small_run(c, small_call(c, COMM_ALL_GATHER, "delayed"));
}

static inline void late_message(void *arg, Comm *c) {
    (void)arg;
    CommCall call = small_call(c, COMM_RECV, "forward");
    call.peer = 2;
    if (comm_rank(c) == 3) small_run(c, call);
    sleep(comm_rank(c) == 2 ? 20 : 0);
    barrier(c, "end");
}

/* Rank 0 waits for 1, rank 1 for 2, and rank 2 for 3, which is absent. The report must contain each link. */
static inline void chain(void *arg, Comm *c) {
    (void)arg;
    const int rank = comm_rank(c);
    if (rank == 3) sleep(20);
    const Group pair = {
        .size = 2, .rank = 0, .first = rank, .n_axes = 1, .axis_size = {2}, .axis_stride = {1}};
    CommCall call = small_call(c, COMM_BARRIER, "chain");
    call.group = pair;
    small_run(c, call);
}

/* Rank 1 starts an operation that `change` makes different from that of the other ranks. */
static inline void differ(Comm *c, CommKind kind, void (*change)(CommCall *)) {
    CommCall call = small_call(c, kind, "same");
    int64_t counts[FAULT_RANKS] = {2, 2, 2, 2}, others[FAULT_RANKS] = {2, 2, 2, 2};
    call.in_counts = counts, call.out_counts = others;
    if (kind == COMM_SEND) {
        if (comm_rank(c) > 1)
            call = small_call(c, COMM_BARRIER, "same"),
            call.group = (Group){.size = 1, .first = comm_rank(c)};
        else
            call.peer = 1 - comm_rank(c), call.kind = comm_rank(c) ? COMM_RECV : COMM_SEND;
    }
    if (comm_rank(c) == 1) change(&call);
    small_run(c, call);
    sleep(comm_rank(c) > 1 ? 20 : 0);
    barrier(c, "end");
}

static inline void other_kind(CommCall *c) { c->kind = COMM_ALL_REDUCE; }
static inline void other_count(CommCall *c) { c->n++; }
static inline void other_dtype(CommCall *c) { c->dtype = BF16; }
static inline void other_reduction(CommCall *c) { c->reduction = COMM_MAX; }
static inline void other_root(CommCall *c) { c->peer = 1; }
static inline void other_site(CommCall *c) { c->site = "other"; }
static inline void other_pair_count(CommCall *c) { ((int64_t *)(uintptr_t)c->in_counts)[3] = 5; }

static inline void differ_kind(void *a, Comm *c) { (void)a, differ(c, COMM_ALL_GATHER, other_kind); }
static inline void differ_count(void *a, Comm *c) { (void)a, differ(c, COMM_ALL_REDUCE, other_count); }
static inline void differ_dtype(void *a, Comm *c) { (void)a, differ(c, COMM_REDUCE_SCATTER, other_dtype); }
static inline void differ_reduction(void *a, Comm *c) {
    (void)a, differ(c, COMM_ALL_REDUCE, other_reduction);
}
static inline void differ_root(void *a, Comm *c) { (void)a, differ(c, COMM_BROADCAST, other_root); }
static inline void differ_site(void *a, Comm *c) { (void)a, differ(c, COMM_BARRIER, other_site); }
static inline void differ_pair(void *a, Comm *c) { (void)a, differ(c, COMM_ALL_TO_ALL, other_pair_count); }
static inline void differ_message(void *a, Comm *c) { (void)a, differ(c, COMM_SEND, other_count); }

static inline void return_early(void *arg, Comm *c) {
    (void)arg;
    barrier(c, "all");
    if (comm_rank(c) == 2) return;
    usleep(50 * 1000); /* waits until rank 2 has ended */
    barrier(c, "one too many");
}

typedef struct Fault {
    const char *name;
    CommMain *program;
    bool at_once;           /* true: the fault must be reported immediately; false: at the deadline */
    const char *says[SAYS]; /* the report must contain all of these words */
} Fault;

static const Fault FAULTS[] = {
    {"drop_and_stall",
     drop_and_stall,
     false,
     {"all_reduce sum of 3 F32 at 'dropped', operation 1 of ranks 0 1 2 3", "ranks that did not: 2\n",
      "barrier at 'before', operation 0 of ranks 0 1 2 3", "has waited 1 s"}},
    {"drop_and_go_on",
     drop_and_go_on,
     true,
     {"the site differs", "rank 2 starts all_reduce sum of 3 F32 at 'next'", "operation 1 of"}},
    {"drop_the_last", drop_the_last, true, {"rank 2 has returned", "barrier at 'last', operation 1"}},
    {"delay", delay, false, {"all_gather of 3 F32 at 'delayed', operation 0", "ranks that did not: 1\n"}},
    {"late_message",
     late_message,
     false,
     {"recv of 3 F32 at 'forward', message 0 from rank 2 to rank 3 in the group of ranks 0 1 2 3",
      "\n  rank 2 ", "; its last operation is not known"}},
    {"chain",
     chain,
     false,
     {"barrier at 'chain', operation 0 of ranks", "rank 3 ", "; its last operation is not known",
      "    members that are not in this operation: ranks "}},
    {"differ_kind",
     differ_kind,
     true,
     {"the kind differs", "rank 1 starts all_reduce", "all_gather of 3 F32 at 'same'"}},
    {"differ_count",
     differ_count,
     true,
     {"the count differs", "rank 1 starts all_reduce sum of 4", "all_reduce sum of 3 F32 at 'same'"}},
    {"differ_dtype",
     differ_dtype,
     true,
     {"the dtype differs", "rank 1 starts reduce_scatter sum of 3 BF16", "3 F32 at 'same'"}},
    {"differ_reduction",
     differ_reduction,
     true,
     {"the reduction differs", "rank 1 starts all_reduce max", "all_reduce sum"}},
    {"differ_root", differ_root, true, {"the root differs", "rank 1 starts broadcast"}},
    {"differ_site", differ_site, true, {"the site differs", "rank 1 starts barrier at 'other'"}},
    {"differ_pair",
     differ_pair,
     true,
     {"the count differs", "rank 1 starts all_to_all at 'same'", "rank 3 starts all_to_all"}},
    {"differ_message",
     differ_message,
     true,
     {"the count differs", "rank 1 starts recv of 4", "rank 0 starts send of 3"}},
    {"return_early", return_early, true, {"rank 2 has returned", "barrier at 'one too many', operation 1"}},
};
