/* Creates the answer to an Ask from the events of its ticket: a JSON object, or a stream of server-sent events. */
#pragma once

#include "server/metrics.h"
#include "server/queue.h"
#include "server/request.h"

typedef struct Answer Answer;

/* Creates an answer. The answer owns the Ask, and adds its times to the Latencies. */
Answer *answer_new(const Served *, Ask *, Latencies *);
void answer_free(Answer *);
const char *answer_id(const Answer *);
/* Returns an engine request for each choice. The caller frees the requests, but not the tokens, which belong to
 * the Answer. */
Request *answer_requests(const Answer *, int64_t *n);
/* Processes a ticket's events, and ends the choices whose text is complete. Returns a refusal if the model
 * has failed. */
Refusal answer_take(Answer *, Ticket *, const TicketEvents *);
bool answer_done(const Answer *);
/* Returns the entire answer. All choices must have ended. */
json_t *answer_json(const Answer *);
/* For a stream, appends the server-sent events for new parts of the answer. A call before the first events appends the
 * start of the stream. answer_end appends the last events, once all choices have ended or a refusal has occurred. */
void answer_stream(Answer *, Str *out);
void answer_end(const Answer *, const Refusal *, Str *out);
