/* Clients that send requests to an HTTP server and measure when the tokens of the streamed answers arrive. Each client
 * keeps one connection, and sends its next request when the answer to the previous one has ended. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* A request that streams `Load.tokens` tokens as server-sent events, with usage statistics in each event. */
typedef struct LoadRequest {
    Str text; /* the HTTP request */
    /* in ns: times at which the request was sent, its first token arrived, and its last token arrived */
    int64_t sent, first, last;
    int64_t tokens; /* number of tokens that have arrived */
} LoadRequest;

typedef struct Load {
    int64_t port; /* port on 127.0.0.1 */
    int64_t clients, each, tokens;
    LoadRequest *requests; /* [clients * each]: all requests of the first client come first */
    double *gaps;          /* [clients * each * (tokens - 1)]: times between the tokens of a request, in ns */
    int64_t n_gaps;
    int64_t start; /* time when the first request was sent */
} Load;

/* Returns the text of a POST request with a JSON body. */
Str load_post(const char *path, const Str *body);
/* Sends all requests and reads their answers. Returns an error if an answer is incomplete. */
Err load_run(Load *);
