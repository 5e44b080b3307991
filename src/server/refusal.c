#include "server/refusal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

Refusal refuse(int status, const char *param, const char *code, const char *format, ...) {
    Refusal r = {.status = status, .code = code};
    va_list args;
    va_start(args, format);
    vsnprintf(r.message, sizeof r.message, format, args);
    va_end(args);
    snprintf(r.param, sizeof r.param, "%s", param ? param : "");
    return r;
}

/* Returns a JSON string, even if the text ends inside a character. */
static json_t *text(const char *s) {
    Str valid = {0};
    utf8_repair(s, strlen(s), &valid);
    json_t *json = json_stringn(valid.s ? valid.s : "", valid.len);
    str_free(&valid);
    return json;
}

json_t *refusal_json(const Refusal *r) {
    const char *type = r->status == 401   ? "authentication_error"
                       : r->status == 404 ? "not_found_error"
                       : r->status == 429 ? "rate_limit_error"
                       : r->status >= 500 ? "server_error"
                                          : "invalid_request_error";
    return json_pack("{s:{s:o,s:s,s:o,s:s?}}", "error", "message", text(r->message), "type", type, "param",
                     *r->param ? text(r->param) : json_null(), "code", r->code);
}

json_t *refusal_message(const Refusal *r) { return json_pack("{s:o}", "message", text(r->message)); }
