#include "chat/machine.h"

#include <stdarg.h>
#include <string.h>

#include "chat/lexer.h"

void machine_fail(Machine *m, const char *fmt, ...) {
    if (m->err.code) return;
    va_list args;
    va_start(args, fmt);
    m->err = lexer_error(m->line, fmt, args);
    va_end(args);
}

bool machine_spend(Machine *m, size_t steps) {
    if (m->err.code) return false;
    if (steps > (size_t)m->left.steps) {
        machine_fail(m,
                     "the template needs too many steps; shorten the conversation or correct the template");
        return false;
    }
    m->left.steps -= (int64_t)steps;
    return true;
}

bool machine_reserve(Machine *m, size_t bytes) {
    if (!machine_spend(m, bytes / 64)) return false;
    if (bytes > m->left.bytes) {
        machine_fail(m,
                     "the template needs too much memory; shorten the conversation or correct the template");
        return false;
    }
    m->left.bytes -= bytes;
    return true;
}

void *machine_take(Machine *m, size_t bytes) {
    return machine_reserve(m, bytes + 16) ? arena_alloc(m->arena, bytes) : NULL;
}

bool machine_enter(Machine *m) {
    if (!machine_spend(m, 1)) return false;
    if (m->left.depth <= 0) {
        machine_fail(m, "values or calls are nested too deeply; remove the recursion from the template");
        return false;
    }
    m->left.depth--;
    return true;
}

void machine_leave(Machine *m) { m->left.depth++; }

void machine_add(Machine *m, Str *out, const char *s, size_t n) {
    if (n && machine_reserve(m, n)) str_add(out, s, n);
}

void machine_puts(Machine *m, Str *out, const char *s) { machine_add(m, out, s, strlen(s)); }
