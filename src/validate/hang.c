/* Runs drills in child worlds: one rank does not start an operation, or exits while the others continue. The
 * fault must abort the run within 10 s, and the report must name the faulty rank. Opening devices and NCCL
 * communicators can take longer even without a fault, so the short deadline applies only after the first
 * operation. */
#include "validate/hang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/isolated.h"
#include "run/launch.h"
#include "validate/stage.h"

enum { LIMIT_S = 10, START_S = 60, DEADLINE_S = 3, ELEMENTS = 64, OPERATIONS = 4, LAST = 2, DRILLS = 2 };

typedef struct Drill {
    const char *what;
    bool dies; /* if true, the victim exits; otherwise, it sleeps */
    Config config;
    int victim;
    int64_t start_ns; /* time at which the process started */
    int64_t fault_ns; /* time at which the victim should have joined the operation */
} Drill;

static void one_operation(Comm *comm, Device *device, float *x) {
    comm_run(comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                               .dtype = F32,
                               .group = comm_everyone(comm),
                               .site = "drill",
                               .in = x,
                               .out = x,
                               .n = ELEMENTS,
                               .device = device});
    device_wait(device);
}

static Err on_rank(void *arg, Comm *comm) {
    Drill *drill = arg;
    Config one_thread = drill->config;
    one_thread.derived.cpu_threads = 1;
    char transport[200];
    Device *device;
    ERR_RETURN(rank_open_device(&one_thread, comm, &device, transport));
    float *x = device_alloc(device, ELEMENTS * sizeof *x, "a drill");
    const bool victim = comm_rank(comm) == drill->victim;
    for (int i = 0; i < OPERATIONS; i++) {
        if (victim && i == LAST) drill->fault_ns = clock_ns();
        if (victim && i == LAST && drill->dies) return ERR_OK;
        if (victim && i == LAST) sleep(2 * LIMIT_S + START_S);
        one_operation(comm, device, x);
        comm_set_deadline(comm, DEADLINE_S);
    }
    return ERR_OK;
}

static void run_drill(void *arg) {
    Drill *d = arg;
    d->start_ns = clock_ns();
    const Err e = world_run(&d->config, on_rank, d);
    if (e.code) fprintf(stderr, "%s\n", e.msg);
}

static void judge(const StageInput *in, const Drill *d, const Isolated *i) {
    char suspect[32];
    const double seconds = i->seconds - (double)(d->fault_ns - d->start_ns) * 1e-9;
    const Blame b = isolated_blame(i);
    snprintf(suspect, sizeof suspect, "rank %d", d->victim);
    if (!d->fault_ns)
        outcome_add(in->out, VALIDATE_FAIL, "transport", "the drill in which %s %s did not begin: %s",
                    suspect, d->what,
                    *b.line              ? b.line
                    : i->end == JOB_LATE ? "its ranks did not start"
                                         : "no reason was reported");
    else if (i->end == JOB_LATE || (i->end == JOB_CRASHED && seconds > LIMIT_S))
        outcome_add(in->out, VALIDATE_FAIL, "transport", "%s %s, but no fault was reported within %d s",
                    suspect, d->what, (int)LIMIT_S);
    else if (i->end == JOB_DONE)
        outcome_add(in->out, VALIDATE_FAIL, "transport", "%s %s, but the other ranks continued; output: %s",
                    suspect, d->what, b.line);
    else if (b.rank != d->victim)
        outcome_add(in->out, VALIDATE_FAIL, "transport",
                    "%s %s, but the fault report does not name this rank: %s", suspect, d->what, b.line);
    else
        outcome_fact(in->out, false, d->what, "diagnosed after %.1f s: %s", seconds, b.line);
}

/* Returns the number of drills that run concurrently: all of them, or one if only one process at a time can use
 * a device. */
static int drills_at_once(bool exclusive) { return exclusive ? 1 : DRILLS; }

double hang_most_seconds(bool exclusive) {
    return (double)(LIMIT_S + START_S) * DRILLS / drills_at_once(exclusive);
}

static void run_drills(const StageInput *in, Drill *drills, Isolated *results) {
    void *args[DRILLS];
    for (int i = 0; i < DRILLS; i++) args[i] = &drills[i];
    const int at_once = drills_at_once(in->exclusive);
    for (int i = 0; i < DRILLS; i += at_once)
        isolated_run_all(run_drill, &args[i], &results[i], at_once, LIMIT_S + START_S, NULL);
}

Err stage_hang(const StageInput *in) {
    const int world = stage_world(in);
    Isolated results[DRILLS];
    Drill *drills = isolated_memory(DRILLS * sizeof *drills);
    drills[0] = (Drill){.what = "is late for an operation", .dies = false, .victim = world / 2};
    drills[1] = (Drill){.what = "ends early", .dies = true, .victim = world - 1};
    for (int i = 0; i < DRILLS; i++) {
        drills[i].config = in->config;
        drills[i].config.distributed_timeout_seconds = START_S;
    }
    outcome_doing(in->out, "drills: a rank is late, and a rank ends");
    run_drills(in, drills, results);
    for (int i = 0; i < DRILLS; i++) {
        judge(in, &drills[i], &results[i]);
        str_free(&results[i].said);
    }
    outcome_sum_up(in->out, "%d drills of %s", (int)DRILLS, amount(world, "rank").s);
    isolated_free(drills, DRILLS * sizeof *drills);
    return ERR_OK;
}
