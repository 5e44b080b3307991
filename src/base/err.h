/* Errors as values. An error is a user error (invalid options, paths, data files, checkpoints or prompts, or a missing
 * device) or a machine failure. A function that can fail returns an Err. Bugs in Isotron are detected by CHECK
 * (fault.h). */
#pragma once

/* The program's exit statuses. docs/ci.md contains the same table. A fault (fault.h) ends the program with SIGABRT,
 * which a shell reports as 134. */
typedef enum ErrCode {
    ERR_NONE = 0,         /* success; the verdict, if one was requested, is PASS */
    ERR_FAILED = 1,       /* a requested check failed, or training diverged */
    ERR_USER = 2,         /* options, paths or input files are wrong */
    ERR_INFRA = 3,        /* the machine failed: disk full, no permission, a lost rank */
    ERR_INCONCLUSIVE = 4, /* measurements vary too much for a verdict */
    ERR_SIGNAL = 128      /* 128 + n: signal n ended the run after a checkpoint or report was written */
} ErrCode;

typedef struct Err {
    ErrCode code;
    /* the error message, which states what is wrong and what to do; empty if code is ERR_NONE */
    char msg[1020];
} Err;

#define ERR_OK ((Err){ERR_NONE, ""})
#define ERR_RETURN(expr)                                                                                     \
    do {                                                                                                     \
        Err err_return_ = (expr);                                                                            \
        if (err_return_.code) return err_return_;                                                            \
    } while (0)

/* Each of these functions returns an Err with the code in the function's name. */
Err err_user(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
Err err_infra(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
Err err_failed(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
