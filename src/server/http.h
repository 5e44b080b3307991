/* The HTTP server. docs/tutorials/serve.md lists the server's paths. Each connection has a thread that reads
 * requests and writes answers. */
#pragma once

#include "server/queue.h"
#include "server/request.h"

typedef struct Http Http;

typedef struct HttpOptions {
    const char *host;
    int64_t port;        /* 0 means any free port */
    const char *api_key; /* NULL if clients need no key */
    bool control;        /* whether the server has the paths that pause the engine */
    /* maximum time from a request's headers to the end of its answer; 0 means no limit */
    int64_t timeout_s;
} HttpOptions;

/* Returns an error if this build has no HTTP server. */
Err http_available(void);
/* Starts listening, and sets *port to the port number. The Served and the queue must outlive the server. */
Err http_start(const HttpOptions *, const Served *, Queue *, Http **out, int64_t *port);
/* Closes all connections, and releases their tickets. */
void http_stop(Http *);
