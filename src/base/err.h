/* User mistakes as values: options, paths, data files, checkpoints, prompts, missing devices. A function that
 * can meet one returns Err. A bug in our own code is a CHECK (fault.h). */
#ifndef ISOTRON_BASE_ERR_H
#define ISOTRON_BASE_ERR_H

/* The exit status of the program. */
typedef enum ErrCode { ERR_NONE = 0, ERR_FAILED = 1, ERR_USER = 2, ERR_INFRA = 3 } ErrCode;

typedef struct Err {
    ErrCode code;
    char msg[1020]; /* error message: what is wrong and what to do; empty when code is ERR_NONE */
} Err;

#define ERR_OK ((Err){ERR_NONE, ""})
#define ERR_RETURN(expr)                                                                                     \
    do {                                                                                                     \
        Err err_return_ = (expr);                                                                            \
        if (err_return_.code) return err_return_;                                                            \
    } while (0)

/* The user's input is wrong (exit status 2). */
Err err_user(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The machine failed: disk full, no permission, short read (exit status 3). */
Err err_infra(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A requested check failed: parity, verification (exit status 1). */
Err err_failed(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
