/* The answer to a request that the server does not serve: an HTTP status and OpenAI's error object. */
#pragma once

#include <jansson.h>

typedef struct Refusal {
    int status;         /* 0 if the request is served */
    const char *code;   /* the error object's code, or NULL */
    char param[64];     /* the name of the body's invalid field, or empty */
    char message[1020]; /* states the problem, then the remedy */
} Refusal;

#define SERVED ((Refusal){0})
#define REFUSE_UNLESS_SERVED(expr)                                                                           \
    do {                                                                                                     \
        const Refusal refusal_ = (expr);                                                                     \
        if (refusal_.status) return refusal_;                                                                \
    } while (0)

/* Returns a refusal. param and code may be NULL. */
Refusal refuse(int status, const char *param, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
json_t *refusal_json(const Refusal *);
/* Returns {"message": ...}. */
json_t *refusal_message(const Refusal *);
