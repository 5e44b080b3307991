/* Errors as values: mistakes of the user (options, paths, data files, checkpoints, prompts, missing devices)
 * and failures of the machine. A function that can encounter one returns Err. A bug in our own code is a
 * CHECK (fault.h). */
#pragma once

/* Every exit status of the program; docs/ci.md has the same table. A fault (fault.h) ends the program by
 * SIGABRT, which a shell reports as 134. */
typedef enum ErrCode {
    ERR_NONE = 0,         /* success; a requested verdict is PASS */
    ERR_FAILED = 1,       /* a requested check did not hold, or training diverged */
    ERR_USER = 2,         /* options, paths or input files are wrong */
    ERR_INFRA = 3,        /* the machine failed: disk full, no permission, a lost rank */
    ERR_INCONCLUSIVE = 4, /* measurements vary too much for a verdict */
    ERR_SIGNAL = 128      /* this, plus the number of the signal that stopped the run after it had saved or
                             reported */
} ErrCode;

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

/* Each returns an Err with the code in its name. */
Err err_user(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
Err err_infra(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
Err err_failed(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
