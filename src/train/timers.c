#include "train/timers.h"

#include <string.h>

#include "base/clock.h"

static const struct {
    const char *name;
    int64_t level;
} TIMER[TIMERS] = {
    [TIMER_BATCH] = {"batch-generator", 2}, [TIMER_FORWARD_BACKWARD] = {"forward-backward", 1},
    [TIMER_OPTIMIZER] = {"optimizer", 1},   [TIMER_EVALUATE] = {"evaluate", 1},
    [TIMER_SAVE] = {"save-checkpoint", 1},
};

void timer_start(Timers *t, Timer which) { t->started[which] = clock_ns(); }

void timer_stop(Timers *t, Timer which) { t->spent.ns[which] += clock_ns() - t->started[which]; }

const Times *timers_gather(Timers *t, Comm *comm, Arena *arena) {
    Times *all = arena_alloc(arena, (size_t)(comm ? comm_world(comm) : 1) * sizeof *all);
    *all = t->spent;
    if (comm)
        comm_run(comm, &(CommCall){.kind = COMM_ALL_GATHER,
                                   .dtype = I64,
                                   .group = comm_everyone(comm),
                                   .site = "timers",
                                   .in = &t->spent,
                                   .out = all,
                                   .n = TIMERS});
    t->spent = (Times){0};
    return all;
}

const char *timer_name(Timer which) { return TIMER[which].name; }

int64_t timers_longest(const Times *of, int ranks, Timer which, int64_t level) {
    int64_t most = 0;
    for (int r = 0; r < ranks && TIMER[which].level <= level; r++)
        if (of[r].ns[which] > most) most = of[r].ns[which];
    return most;
}

static void report_ranks(const Times *of, int ranks, int timer, double per_ms, Str *out) {
    str_printf(out, "\n  %s:", TIMER[timer].name);
    for (int r = 0; r < ranks; r++)
        if (of[r].ns[timer]) str_printf(out, "\n     rank %2d: %.2f", r, (double)of[r].ns[timer] / per_ms);
}

static void report_extremes(int64_t least, int64_t most, bool max_only, int timer, double per_ms, Str *out) {
    static const char DOTS[] = "................................................";
    int dots = 47 - (int)strlen(TIMER[timer].name); /* a timer's name, a blank and the dots fill 48 columns */
    str_printf(out, "\n    %s %.*s: ", TIMER[timer].name, dots, DOTS);
    if (max_only)
        str_printf(out, "%.2f", (double)most / per_ms);
    else
        str_printf(out, "(%.2f, %.2f)", (double)least / per_ms, (double)most / per_ms);
}

void timers_report(const Times *of, int ranks, TimingLogOption option, int64_t level, int64_t steps,
                   Str *out) {
    static const char *const TITLES[] = {[TIMING_MAX] = "max time across ranks (ms):",
                                         [TIMING_MINMAX] = "(min, max) time across ranks (ms):",
                                         [TIMING_ALL] = "times across ranks (ms):"};
    const double per_ms = 1e6 * (double)steps;
    str_puts(out, TITLES[option]);
    for (int i = 0; i < TIMERS; i++) {
        const int64_t most = timers_longest(of, ranks, (Timer)i, level);
        int64_t least = most; /* the minimum over the ranks that have run the timer */
        for (int r = 0; r < ranks; r++)
            if (of[r].ns[i] && of[r].ns[i] < least) least = of[r].ns[i];
        if (!most) continue;
        if (option == TIMING_ALL)
            report_ranks(of, ranks, i, per_ms, out);
        else
            report_extremes(least, most, option == TIMING_MAX, i, per_ms, out);
    }
    str_puts(out, "\n");
}
