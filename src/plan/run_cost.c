#include "plan/run_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "config/args.h"

double tokens_parse(const char *text) {
    static const struct {
        const char *suffix;
        double unit;
    } UNITS[] = {{"", 1}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
    char *end;
    const double n = strtod(text, &end);
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++)
        if (end != text && !strpbrk(text, "xX") && !strcmp(end, UNITS[i].suffix) && n > 0 &&
            isfinite(n * UNITS[i].unit))
            return n * UNITS[i].unit;
    return NAN;
}

/* ---- goodput ---- */

/* The times of the formula, in units of the mean time between failures. */
typedef struct Failures {
    double step, save, restart;
} Failures;

static double goodput_of(const Failures *f, int64_t steps) {
    const double train = (double)steps * f->step;
    return train / (exp(f->restart) * expm1(train + f->save));
}

/* Bisects 1 - t = exp(-(t + d)). */
static double best_time(double save) {
    enum { BITS = 100 };
    double low = 0, high = 1;
    for (int i = 0; i < BITS; i++) {
        const double t = (low + high) / 2;
        *(-expm1(-(t + save)) > t ? &low : &high) = t;
    }
    return low;
}

static int64_t best_interval(const Failures *f) {
    const int64_t n = (int64_t)fmin(fmax(1, best_time(f->save) / f->step), 0x1p62);
    return goodput_of(f, n + 1) > goodput_of(f, n) ? n + 1 : n;
}

RunCost run_cost(const RunTerms *t, int64_t ranks, double step_ns, double tokens_per_second) {
    RunCost c = {.goodput = 1, .failure_hours = t->gpu_failure_hours / (double)ranks};
    if (f64_is_set(c.failure_hours)) {
        const double unit = 1 / (c.failure_hours * 3600);
        const Failures f = {step_ns * 1e-9 * unit, t->save_seconds * unit, t->restart_seconds * unit};
        c.best_interval = best_interval(&f), c.best_goodput = goodput_of(&f, c.best_interval);
        c.interval = i64_or(t->save_interval, c.best_interval), c.goodput = goodput_of(&f, c.interval);
    }
    const double seconds_per_token = 1 / (tokens_per_second * c.goodput);
    c.days = t->tokens * seconds_per_token / 86400;
    c.per_million_tokens = 1e6 * seconds_per_token * (double)ranks * t->price / 3600;
    c.cost = c.per_million_tokens * t->tokens * 1e-6;
    return c;
}

/* ---- text ---- */

static void print_interval(const char *name, int64_t steps, double step_ns, double goodput, Str *out) {
    str_printf(out, "%s %s (%.1f minutes), goodput %.2f %%\n", name, amount(steps, "step").s,
               (double)steps * step_ns * 1e-9 / 60, 100 * goodput);
}

void run_cost_print(const RunCost *c, const RunTerms *t, int64_t ranks, double step_ns, Str *out) {
    if (f64_is_set(c->failure_hours)) {
        str_printf(out, "failures: one per %.4g hours; a checkpoint takes %.4g s, a restart %.4g s\n",
                   c->failure_hours, t->save_seconds, t->restart_seconds);
        print_interval("best checkpoint interval:", c->best_interval, step_ns, c->best_goodput, out);
        if (i64_is_set(t->save_interval))
            print_interval("--save-interval:", c->interval, step_ns, c->goodput, out);
    }
    if (f64_is_set(c->days))
        str_printf(out, "%.4g tokens: %.4g days, %.4g GPU-hours", t->tokens, c->days,
                   c->days * 24 * (double)ranks);
    if (f64_is_set(c->cost)) str_printf(out, ", cost %.4g", c->cost);
    if (f64_is_set(c->days)) str_puts(out, "\n");
    if (f64_is_set(t->price)) str_printf(out, "cost per million tokens: %.4g\n", c->per_million_tokens);
}
