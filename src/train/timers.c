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

void timer_stop(Timers *t, Timer which) { t->ns[which] += clock_ns() - t->started[which]; }

void timers_report(Timers *t, int64_t level, int64_t steps, Str *out) {
    static const char DOTS[] = "................................................";
    str_puts(out, "(min, max) time across ranks (ms):");
    for (int i = 0; i < TIMERS; i++) {
        if (!t->ns[i] || TIMER[i].level > level) continue;
        double ms = 1e-6 * (double)t->ns[i] / (double)steps;
        int dots = 47 - (int)strlen(TIMER[i].name); /* name, a blank and dots fill 48 columns */
        str_printf(out, "\n    %s %.*s: (%.2f, %.2f)", TIMER[i].name, dots, DOTS, ms, ms);
    }
    str_puts(out, "\n");
    memset(t->ns, 0, sizeof t->ns);
}
