/* Messages about given options. Remarks with the same kind and text share one message (args.h). */
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

/* Appends "--a, --b and --c have no effect: reason" for all options with the same message as `first`; returns
 * their number. */
static int64_t list(const Remark *first, const Remark *end, Str *out) {
    enum { SHOWN = 8 };
    int64_t all = 0, n = 0;
    for (const Remark *r = first; r < end; r++) all += is_same(r, first);
    for (const Remark *r = first; r < end && n < SHOWN; r++)
        if (is_same(r, first))
            n++, str_printf(out, "%s%s", n == 1 ? "" : n < all ? ", " : " and ", r->option);
    if (all > n) str_printf(out, " and %lld more", (long long)(all - n));
    str_printf(out, "%s%s", VERDICTS[first->kind][all > 1], first->text);
    return all;
}

void args_print_remarks(Args *a) {
    for (int64_t i = 0; i < a->num_remarks; i++) {
        const Remark *r = &a->remarks[i];
        int64_t before = 0;
        while (!is_same(&a->remarks[before], r)) before++;
        if (before < i) continue;
        Str message = {0};
        const int64_t n = list(r, a->remarks + a->num_remarks, &message);
        if (r->kind == REMARK_IDLE) a->idle += n;
        (r->kind == REMARK_REFUSED ? args_problem : args_note)(a, "%s", message.s);
        str_free(&message);
    }
    a->num_remarks = 0;
}
