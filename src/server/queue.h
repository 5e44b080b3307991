/* The queue between the connection threads and the engine's thread. A connection submits a ticket, which contains one
 * engine request for each choice, and waits for the ticket's events. Only queue_turn calls the fleet, in the queue's
 * order. A third thread, which belongs to the queue, delivers the events and wakes the connections.
 *
 * When a connection releases its ticket, the ticket ends, and requests that are still running are aborted. */
#pragma once

#include "infer/fleet.h"

typedef struct Queue Queue;
typedef struct Ticket Ticket;

typedef struct QueueLimits {
    int64_t running, waiting; /* number of engine requests */
    /* A ticket is lost if its pending events exceed unread_bytes, and its connection has read no event for
     * unread_ms. */
    int64_t unread_bytes, unread_ms;
} QueueLimits;

typedef struct TicketEvent {
    EngineEvent event; /* event.id is the choice's number, and event.likeliest is NULL */
    int64_t likeliest; /* index of the first of the event's most likely tokens */
} TicketEvent;

typedef struct TicketEvents {
    TicketEvent *at; /* [n] */
    LikelyToken *likeliest;
    int64_t n, n_likeliest;
} TicketEvents;

typedef enum QueueAnswer { QUEUE_TAKEN, QUEUE_FULL, QUEUE_STOPS } QueueAnswer;

typedef enum TicketState {
    TICKET_HAS_EVENTS,
    TICKET_QUIET,   /* there are no new events */
    TICKET_LOST,    /* the client has closed the connection, or does not read */
    TICKET_STOPPED, /* the server is shutting down */
    TICKET_REFUSED, /* the engine has refused a request */
} TicketState;

typedef enum Reason { REASON_STOP, REASON_LENGTH, REASON_ABORT, REASON_ERROR, REASONS } Reason;

typedef struct QueueCounts {
    EngineCounts engine;
    FleetState state; /* the state after the last turn */
    bool closed, stopped;
    int64_t tickets, waiting; /* waiting: number of requests that have not started to run */
    int64_t connected;        /* number of tickets that their connections have not released */
    int64_t undelivered;      /* number of events that have not reached their tickets yet */
    int64_t prompt_tokens, new_tokens, ended[REASONS];
} QueueCounts;

Queue *queue_new(QueueLimits);
void queue_free(Queue *);
QueueCounts queue_counts(Queue *);

/* ---- for connections ---- */

/* Submits copies of the requests and their tokens under new ids. Sets *out if the result is QUEUE_TAKEN. */
QueueAnswer queue_submit(Queue *, const Request *, int64_t n, Ticket **out);
/* Waits at most `ms` milliseconds for events, and moves them to *out; ticket_events_free frees them. Returns
 * TICKET_LOST if the client closes its end of `socket`. Sets *refused if the result is TICKET_REFUSED. */
TicketState ticket_wait(Ticket *, int socket, int64_t ms, TicketEvents *out, Err *refused);
void ticket_events_free(TicketEvents *);
/* Counts a choice as ended, and aborts the choice if the engine has not ended it. */
void ticket_end(Ticket *, int64_t choice, Reason);
void ticket_release(Ticket *);

typedef struct SignalResult {
    Err sent;   /* a user error if the signal is not allowed, an infra error if the server exits */
    Err loaded; /* an error if SIGNAL_WEIGHTS failed, in which case no parameter has changed */
    FleetState state;
    int64_t weights; /* EngineCounts.weights */
} SignalResult;

/* Sends a signal to the fleet (fleet_signal), and waits until it has taken effect. */
SignalResult queue_signal(Queue *, FleetSignal, const char *path);

/* ---- for the engine's thread ---- */

/* Processes the queue's entries and runs a pass. If there is nothing to do, waits at most `ms` milliseconds. */
void queue_turn(Queue *, Fleet *, int ms);
/* From this call on, queue_submit returns QUEUE_STOPS. */
void queue_close(Queue *);
/* Stops all tickets. From this call on, queue_turn runs no pass. */
void queue_stop(Queue *);
