/* Planted bugs in the prediction of a step, which unit/plan/test_step_time.c must find: it compares with times
 * calculated by hand. */
#include "measure/links.h"
#include "mutants/mutants.h"
#include "param/sync.h"
#include "plan/simulate_step.h"

static void change(const SimRank *r, SimEvent *e) {
    const bool starts = e->kind == SIM_START && r->operations[e->what].meeting < 0;
    if (mutant_is_named(M_plan_ignores_overlap) && starts)
        *e = (SimEvent){SIM_OP, 0, r->operations[e->what].ns};
    else if (mutant_is_named(M_plan_ignores_overlap) && e->kind == SIM_WAIT &&
             r->operations[e->what].meeting < 0)
        *e = (SimEvent){SIM_OP, 0, 0};
    else if (mutant_is_named(M_plan_drops_waits) && e->kind == SIM_WAIT)
        *e = (SimEvent){SIM_OP, 0, 0};
}

HOOK(Err, simulate_step, const SimStep *step, Arena *arena, SimTimes *times) {
    for (int i = 0; i < step->ranks; i++)
        for (int64_t k = 0; k < step->rank[i].n; k++) change(&step->rank[i], &step->rank[i].events[k]);
    return __real_simulate_step(step, arena, times);
}

HOOK(double, links_time, const Links *l, CommKind kind, double bytes, int members, int per_host) {
    const bool gathers = kind == COMM_ALL_GATHER || kind == COMM_REDUCE_SCATTER;
    if (mutant_is_named(M_plan_counts_own_bytes) && gathers) bytes /= members;
    if (mutant_is_named(M_plan_ignores_hosts)) per_host = members;
    return __real_links_time(l, kind, bytes, members, per_host);
}

HOOK(void, sync_finish, Sync *s) {
    if (!mutant_is_named(M_plan_forgets_last_sums)) __real_sync_finish(s);
}
