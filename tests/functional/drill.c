/* A build of the program in which one rank skips or delays its nth operation: DRILL="rank nth seconds" (0
 * seconds: skips it). Operations are counted as in comm_sabotage. DRILL_CLOCK="start rate" makes the clock
 * run `rate` times as fast from the time `start` (in nanoseconds). DRILL_SERVER="request ms" delays each
 * request to the server before it enters the queue, and DRILL_SERVER="step ms" delays each step of the engine.
 * The program itself needs no hook, because functions are replaced with ld --wrap. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "run/launch.h"
#include "server/queue.h"

typedef struct Drill {
    RankMain *fn;
    void *arg;
    int rank;
    CommSabotage sabotage;
} Drill;

Err __real_world_run(const Config *, RankMain *, void *);
Err __wrap_world_run(const Config *, RankMain *, void *);

static Err drill_rank(void *arg, Comm *comm) {
    const Drill *d = arg;
    if (comm && comm_rank(comm) == d->rank) comm_sabotage(comm, d->sabotage);
    return d->fn(d->arg, comm);
}

Err __wrap_world_run(const Config *c, RankMain *fn, void *arg) {
    Drill d = {.fn = fn, .arg = arg};
    long long nth;
    const char *text = getenv("DRILL");
    if (!text && (getenv("DRILL_CLOCK") || getenv("DRILL_SERVER"))) return __real_world_run(c, fn, arg);
    CHECK(text && sscanf(text, "%d %lld %lf", &d.rank, &nth, &d.sabotage.delay_s) == 3,
          "DRILL is not \"rank nth seconds\"");
    d.sabotage.nth = nth;
    return __real_world_run(c, drill_rank, &d);
}

int64_t __real_clock_ns(void);
int64_t __wrap_clock_ns(void);

int64_t __wrap_clock_ns(void) {
    long long start, rate;
    const char *text = getenv("DRILL_CLOCK");
    if (!text || sscanf(text, "%lld %lld", &start, &rate) != 2) return __real_clock_ns();
    return start + (__real_clock_ns() - start) * rate;
}

static void delay_server(const char *what) {
    char kind[16];
    unsigned ms;
    const char *text = getenv("DRILL_SERVER");
    if (text && sscanf(text, "%15s %u", kind, &ms) == 2 && !strcmp(kind, what)) usleep(1000 * ms);
}

QueueAnswer __real_queue_submit(Queue *, const Request *, int64_t, Ticket **);
QueueAnswer __wrap_queue_submit(Queue *, const Request *, int64_t, Ticket **);

QueueAnswer __wrap_queue_submit(Queue *q, const Request *requests, int64_t n, Ticket **out) {
    delay_server("request");
    return __real_queue_submit(q, requests, n, out);
}

bool __real_engine_step(Engine *, EngineSink *, void *);
bool __wrap_engine_step(Engine *, EngineSink *, void *);

bool __wrap_engine_step(Engine *e, EngineSink *sink, void *arg) {
    delay_server("step");
    return __real_engine_step(e, sink, arg);
}
