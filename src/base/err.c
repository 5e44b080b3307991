#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

static Err make(ErrCode code, const char *fmt, va_list args) {
    Err e = {code, ""};
    vsnprintf(e.msg, sizeof e.msg, fmt, args);
    return e;
}

Err err_user(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    Err e = make(ERR_USER, fmt, args);
    va_end(args);
    return e;
}

Err err_infra(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    Err e = make(ERR_INFRA, fmt, args);
    va_end(args);
    return e;
}

Err err_failed(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    Err e = make(ERR_FAILED, fmt, args);
    va_end(args);
    return e;
}
