/* Makes the answer to an Ask from the events of its ticket: a JSON object, or a stream of server-sent events. */
#pragma once

#include "server/metrics.h"
#include "server/queue.h"
#include "server/request.h"

typedef struct Answer Answer;

/* Takes ownership of the Ask. Adds to the latencies. */
Answer *answer_new(const Served *, Ask *, Latencies *);
void answer_free(Answer *);
const char *answer_id(const Answer *);
/* The requests of the engine for each choice. The caller frees them; their tokens belong to the Answer. */
Request *answer_requests(const Answer *, int64_t *n);
/* Takes the events of the ticket, and tells the ticket which choices have ended. Returns a refusal if the model has
 * failed. */
Refusal answer_take(Answer *, Ticket *, const TicketEvents *);
bool answer_done(const Answer *);
/* The whole answer, when all choices have ended. */
json_t *answer_json(const Answer *);
/* For a stream: appends the server-sent events for what is new. Call it before the first events for the beginning.
 * answer_end appends the last ones, after the choices have ended or for a refusal. */
void answer_stream(Answer *, Str *out);
void answer_end(const Answer *, const Refusal *, Str *out);
