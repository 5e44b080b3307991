/* The transport between ranks that run as separate processes. A wire (MPI or TCP) carries bytes between these
 * processes. Every operation consists of messages between pairs of processes. Each member first announces its
 * operation to every other member, and then sends its data. A report can therefore name a member that is late
 * or that starts a different operation. This transport computes sums in member order. A member receives its
 * share of every member's input, adds these shares and, in an all-reduce, sends the result to all members.
 *
 * comm_start and comm_wait advance all operations. While the rank computes, a second thread in its process receives
 * messages a few times a second. Each process also sends heartbeats to one process and watches another. If a process is
 * killed or stopped, the world therefore ends within seconds, even if the deadline is longer. */
#pragma once

#include "base/fault.h"
#include "comm/transport.h"

/* Kinds of announcements. */
typedef enum Say {
    STARTS,   /* the sender starts an operation */
    RETURNED, /* the sender starts no more operations */
    /* requests the receiver's state before the sender aborts the run; if the report is about a device
     * operation, key and seq identify the operation, because members do not announce device operations */
    ASKS,
    TELLS, /* contains the sender's state: its last operation */
    /* asks whether the receiver has started the device operation that key and seq identify, so that a warning can name
     * the late members */
    WONDERS,
    REPLIES, /* answers WONDERS */
    BEATS,   /* the sender is alive */
    ENDS,    /* the sender has printed a report, so the receiver ends without one */
    /* created by the wire after the sender's last announcement: the sender can no longer be reached */
    LOST,
    SAYS
} Say;

typedef struct Announcement {
    CommKey key;
    int64_t seq;
    CommFacts facts;
    int32_t what;    /* a Say */
    int32_t member;  /* STARTS: member number of the sender */
    int32_t tag;     /* STARTS: the tag of the data for this receiver */
    int32_t started; /* TELLS, REPLIES: 1 if the sender has started the operation in question */
    /* TELLS: ages in ns instead of times, because clocks differ between machines; -1 if the operation has not started
     * or finished */
    int64_t started_ago, finished_ago;
} Announcement;

/* A message being sent or received. */
typedef struct WireMessage WireMessage;

/* A wire transfers bytes between processes. `wire` is its state. Only one thread may call the wire at a time. No call
 * waits for another process. Announcements between two processes arrive in order, as do messages with the same tag. */
typedef struct Wire {
    const char *name;
    void (*say)(void *wire, const Announcement *, int to);
    bool (*hear)(void *wire, Announcement *, int *from); /* returns false if no announcement has arrived */
    /* The memory must not change until the message has been sent. bytes must be > 0. */
    WireMessage *(*send)(void *wire, int to, int tag, const void *, int64_t bytes);
    WireMessage *(*receive)(void *wire, int from, int tag, void *, int64_t bytes);
    bool (*done)(void *wire, WireMessage *); /* returns whether the message is complete; if so, frees it */
    /* Waits briefly for a message; `tries` attempts to receive one have failed. Another thread may call the wire during
     * the wait. */
    void (*rest)(void *wire, int tries);
    /* Returns the time (clock_ns) at which the last bytes from a rank arrived. If this function is NULL, only the times
     * of announcements are known. */
    int64_t (*heard)(void *wire, int rank);
    const char *(*lost)(void *wire, int rank); /* returns the reason why a rank is LOST */
    void (*end)(void *wire);                   /* ends all processes; this process ends with ERR_INFRA */
    void (*free)(void *wire);                  /* called after all ranks have returned */
} Wire;

/* Returns a Comm for the processes that the wire connects. Tags range from 0 to last_tag. */
Comm *comm_exchange(const Wire *, void *wire, int last_tag, int world, int rank, const CommOptions *);

/* ---- shared by exchange.c and watch.c ---- */

typedef struct Early { /* an announced operation that this rank has not started yet */
    Announcement said;
    struct Early *next;
} Early;

/* A key's value in `early` (comm_lookup): a list, which may be empty. */
typedef struct EarlyList {
    Early *first;
} EarlyList;

typedef enum Phase { COLLECT, PASS_ON, FINISHED } Phase;

typedef struct Exchange {
    CommWork *work;
    Phase phase;
    int heard;             /* number of members whose announcement has arrived, including this member */
    bool *arrived;         /* [members] */
    int *tag_in, *tag_out; /* [members] */
    char *parts;           /* in reductions: this rank's share of each member's input */
    WireMessage **message; /* [capacity]; the first `done` of them have completed */
    int *peer;             /* the other member of each message */
    int messages, done, capacity;
    bool warned; /* whether a warning about late members was printed */
    struct Exchange *next;
} Exchange;

/* Asks all members whether they have started an overdue device operation. */
typedef struct Question {
    CommKey key;
    int64_t seq;
    CommFacts facts;
    bool *arrived; /* [members] */
    int unanswered;
    int64_t until_ns; /* time limit; members that have not answered by then count as late */
    struct Question *next;
} Question;

typedef struct Processes {
    const Wire *wire;
    void *line;           /* the wire's state */
    pthread_mutex_t lock; /* protects all fields and the wire. Only the rank's thread changes `active` and
                           * advances exchanges. The other thread changes an exchange only when a member
                           * announces its operation */
    pthread_cond_t closing;
    pthread_t watcher;
    bool closed;
    int last_tag;
    int *next_tag;          /* [world], the next tag for data to each rank */
    bool *returned;         /* [world] */
    CommWitness *witness;   /* [world], states received from the ranks */
    bool *answered;         /* [world], whether the rank has answered ASKS */
    int64_t heard_ns;       /* time of the watched rank's last message; 0 if there was none yet */
    int lost;               /* a rank that was lost before its function returned, or -1 if there is none */
    int64_t lost_ns;        /* time at which the rank `lost` was lost */
    bool ending;            /* whether this rank is about to print a fault report */
    const CommKey *end_key; /* the operation that the report is about, or NULL if there is none */
    int64_t end_seq;
    bool *end_arrived; /* [members] */
    bool yields;       /* whether another rank will print the report */
    Question *questions;
    CommTable early; /* a table whose values are EarlyLists */
    Exchange *active;
    FaultScope scope, *outer;
} Processes;

/* Handles a member's announcement of an operation. */
void exchange_take_start(Comm *, const Announcement *);

void watch_start(Comm *);
void watch_stop(Comm *);
bool watch_take_announcements(Comm *); /* returns true if any announcements have arrived */
void watch_say(const Comm *, Say, int to);
/* Waits for messages. The caller must hold the lock, which is released during the wait. */
void watch_rest(Processes *, int tries);
/* Aborts the run if an operation waits for a member that has returned. */
void watch_check_returned(Comm *, const Exchange *);
/* Aborts the run if an operation waits for a lost rank. */
void watch_check_lost(Comm *, const Exchange *);
/* Aborts the run with a report about an operation, or about none if the CommWork is NULL. */
_Noreturn void watch_end_world(Comm *, const CommWork *, bool *arrived, const char *why);
/* Implements CommTransport.end. */
_Noreturn void watch_end(Comm *, const CommKey *, int64_t seq, const CommFacts *, const char *why);
/* Implements CommTransport.warn. */
void watch_warn(Comm *, const CommKey *, int64_t seq, const CommFacts *);
