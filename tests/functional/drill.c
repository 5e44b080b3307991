/* The program, in which one rank skips or delays one operation: DRILL="rank nth seconds" (0 seconds: skips),
 * counted as comm_sabotage counts. It is linked with --wrap=world_run, so that the program itself has no way
 * in. */
#include <stdio.h>
#include <stdlib.h>

#include "base/fault.h"
#include "train/launch.h"

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
    CHECK(text && sscanf(text, "%d %lld %lf", &d.rank, &nth, &d.sabotage.delay_s) == 3,
          "DRILL is not \"rank nth seconds\"");
    d.sabotage.nth = nth;
    return __real_world_run(c, drill_rank, &d);
}
