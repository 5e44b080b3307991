/* Creates messages about options that the user gave. Remarks with the same kind and text share one message
 * (args.h). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/args.h"

static const char *const VERDICTS[][2] = {
    [REMARK_IDLE] = {" has no effect", " have no effect"},
    [REMARK_TAKEN] = {" is treated as", " are treated as"},
    [REMARK_REFUSED] = {" is not supported", " are not supported"},
};

static bool is_same(const Remark *a, const Remark *b) {
    return a->kind == b->kind && !strcmp(a->text, b->text);
}

void args_remark(Args *a, RemarkKind kind, const char *option, const char *fmt, ...) {
    char text[1000];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const Remark made = {kind, arena_printf(a->arena, "%s", option), arena_printf(a->arena, "%s", text)};
    for (int64_t i = 0; i < a->num_remarks; i++)
        if (is_same(&a->remarks[i], &made) && !strcmp(a->remarks[i].option, option)) return;
    a->remarks = mem_grow(a->remarks, (size_t)a->num_remarks + 1, sizeof *a->remarks);
    a->remarks[a->num_remarks++] = made;
}

/* Appends "--a, --b and --c have no effect: reason" for all options that have the same message as `first`. */
static void list(const Remark *first, const Remark *end, Str *out) {
    enum { SHOWN = 8 };
    int64_t all = 0, n = 0;
    for (const Remark *r = first; r < end; r++) all += is_same(r, first);
    for (const Remark *r = first; r < end && n < SHOWN; r++)
        if (is_same(r, first))
            n++, str_printf(out, "%s%s", n == 1 ? "" : n < all ? ", " : " and ", r->option);
    if (all > n) str_printf(out, " and %lld more", (long long)(all - n));
    str_printf(out, "%s%s", VERDICTS[first->kind][all > 1], first->text);
}

/* Returns whether remark i is the first one with its message. */
static bool is_first(const Args *a, int64_t i) {
    int64_t before = 0;
    while (!is_same(&a->remarks[before], &a->remarks[i])) before++;
    return before == i;
}

static void print(Args *a, const Remark *r) {
    Str message = {0};
    list(r, a->remarks + a->num_remarks, &message);
    (r->kind == REMARK_REFUSED ? args_problem : args_note)(a, "%s", message.s);
    str_free(&message);
}

void args_print_remarks(Args *a) {
    int64_t kept = 0;
    for (int64_t i = 0; i < a->num_remarks; i++)
        if (is_first(a, i) && !(a->keeps_idle && a->remarks[i].kind == REMARK_IDLE)) print(a, &a->remarks[i]);
    for (int64_t i = 0; i < a->num_remarks; i++)
        if (a->keeps_idle && a->remarks[i].kind == REMARK_IDLE) a->remarks[kept++] = a->remarks[i];
    a->num_remarks = kept;
}

void args_print_idle(Args *a, bool all) {
    enum { LINES = 3 };
    int64_t lines = 0;
    for (int64_t i = 0; i < a->num_remarks; i++) lines += is_first(a, i);
    if (!all && lines > LINES) {
        args_note(a, "%lld options have no effect; --check-options lists them.", (long long)a->num_remarks);
        return;
    }
    for (int64_t i = 0; i < a->num_remarks; i++)
        if (is_first(a, i)) print(a, &a->remarks[i]);
}
