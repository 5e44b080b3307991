/* The HTTP server, whose paths are in docs/tutorials/serve.md. Each connection has a thread, which reads a request and
 * writes its answer. */
#pragma once

#include "server/queue.h"
#include "server/request.h"

typedef struct Http Http;

typedef struct HttpOptions {
    const char *host;
    int64_t port;        /* 0: any */
    const char *api_key; /* NULL: none */
    bool control;        /* whether there are paths that pause the engine */
    int64_t timeout_s;   /* from the headers of a request to the end of its answer; 0: none */
} HttpOptions;

/* Returns an error if this build has no HTTP server. */
Err http_available(void);
/* Starts to listen. Served and the queue must outlive the server. *port is set to the port. */
Err http_start(const HttpOptions *, const Served *, Queue *, Http **out, int64_t *port);
/* Closes all connections, whose tickets are released. */
void http_stop(Http *);
