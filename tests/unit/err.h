/* Assertions on errors. */
#pragma once

#include <string.h>

#include "unit/cmocka_all.h"

#include "base/err.h"

#define assert_ok(expr)                                                                                      \
    do {                                                                                                     \
        Err ok_ = (expr);                                                                                    \
        if (ok_.code) fail_msg("%s: %s", #expr, ok_.msg);                                                    \
    } while (0)

/* Asserts that the error is a user error, and that its message contains every given text. */
#define assert_err(expr, ...) check_err((expr), #expr, __LINE__, (const char *[]){__VA_ARGS__, NULL})
static inline void check_err(Err e, const char *expr, int line, const char *const *texts) {
    if (e.code != ERR_USER)
        fail_msg("line %d: %s is %d, not a user error: '%s'", line, expr, (int)e.code, e.msg);
    if (!strchr(e.msg, ' ')) fail_msg("line %d: '%s' is no sentence", line, e.msg);
    for (; *texts; texts++)
        if (!strstr(e.msg, *texts)) fail_msg("line %d: '%s' does not say '%s'", line, e.msg, *texts);
}
