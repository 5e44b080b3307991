/* The transport between ranks that are processes. A wire (MPI or TCP) carries bytes between them. Every
 * operation consists of messages between pairs. Each member first announces its operation to every other
 * member, and then sends its data. A report can therefore name a member that is late, or that starts a
 * different operation. Sums are computed here, in member order: a member receives its share from all members,
 * adds these parts and, in an all-reduce, sends the result to all members.
 *
 * comm_start and comm_wait advance all operations. While the rank computes, a second thread of each process
 * receives messages a few times a second. It also sends heartbeats to one process and watches another one. A
 * killed or stopped process therefore ends the world within seconds, even if the deadline is longer. */
#pragma once

#include "base/fault.h"
#include "comm/transport.h"

/* Kinds of announcements. */
typedef enum Say {
    STARTS,   /* an operation */
    RETURNED, /* the sender starts no more operations */
    ASKS,     /* asks for the receiver's state before the sender ends the world; key and seq name a device
                 operation, which members do not announce */
    TELLS,    /* the sender's state: its last operation */
    WONDERS,  /* asks, for a warning, whether the receiver has started a device operation; key, seq */
    REPLIES,  /* the answer to WONDERS */
    BEATS,    /* the sender is alive */
    ENDS,     /* the sender has printed a report, so the receiver ends without one */
    LOST,     /* sent by the wire itself, after the sender's last announcement: the sender can no longer be
                 reached */
    SAYS
} Say;

typedef struct Announcement {
    CommKey key;
    int64_t seq;
    CommFacts facts;
    int32_t what;    /* Say */
    int32_t member;  /* STARTS: the sender */
    int32_t tag;     /* STARTS: the tag of the data to this receiver */
    int32_t started; /* TELLS, REPLIES: 1: the sender has started the operation in question */
    int64_t started_ago, finished_ago; /* TELLS: age in ns, because clocks differ between machines; -1 if it
                                          has not started or has not finished */
} Announcement;

/* A message that is being sent or received. */
typedef struct WireMessage WireMessage;

/* Carries bytes between processes. `wire` is its state. Only one thread may call the wire at a time. No call
 * waits for another process. Announcements between two processes arrive in order, and so do messages with the
 * same tag. */
typedef struct Wire {
    const char *name;
    void (*say)(void *wire, const Announcement *, int to);
    bool (*hear)(void *wire, Announcement *, int *from); /* false: nothing has arrived */
    /* The memory must not change until the message is done. bytes > 0. */
    WireMessage *(*send)(void *wire, int to, int tag, const void *, int64_t bytes);
    WireMessage *(*receive)(void *wire, int from, int tag, void *, int64_t bytes);
    bool (*done)(void *wire, WireMessage *); /* frees the message if it is done */
    /* Waits a short time for a message, after `tries` attempts to receive one. Another thread may call the
     * wire meanwhile. */
    void (*rest)(void *wire, int tries);
    /* The time (clock_ns) at which the last bytes of a rank arrived. If it is NULL, only the times of
     * announcements are known. */
    int64_t (*heard)(void *wire, int rank);
    const char *(*lost)(void *wire, int rank); /* why a rank is LOST */
    void (*end)(void *wire);                   /* ends all processes; this one ends with ERR_INFRA */
    void (*free)(void *wire);                  /* called when all ranks have returned */
} Wire;

/* A Comm of the processes that the wire connects. Tags are 0 .. last_tag. */
Comm *comm_exchange(const Wire *, void *wire, int last_tag, int world, int rank, const CommOptions *);

/* ---- shared by exchange.c and watch.c ---- */

typedef struct Early { /* an operation announced before this rank has started it */
    Announcement said;
    struct Early *next;
} Early;

/* The value of a key in `early` (comm_lookup), which is a list and may be empty. */
typedef struct EarlyList {
    Early *first;
} EarlyList;

typedef enum Phase { COLLECT, PASS_ON, FINISHED } Phase;

typedef struct Exchange {
    CommWork *work;
    Phase phase;
    int heard;             /* members whose announcement has arrived, this one included */
    bool *arrived;         /* [members] */
    int *tag_in, *tag_out; /* [members] */
    char *parts;           /* in reductions: this rank's share, received from each member */
    WireMessage **message; /* [capacity]; the first `done` of them have completed */
    int *peer;             /* the member of each message */
    int messages, done, capacity;
    bool warned; /* a warning about late members was printed */
    struct Exchange *next;
} Exchange;

/* Asks all members which of them have started a device operation that is late. */
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
                             advances exchanges. The other thread changes an exchange only when a member
                             announces its operation */
    pthread_cond_t closing;
    pthread_t watcher;
    bool closed;
    int last_tag;
    int *next_tag;          /* [world], the next tag of data to each rank */
    bool *returned;         /* [world] */
    CommWitness *witness;   /* [world], states received from the ranks */
    bool *answered;         /* [world], whether the rank has answered ASKS */
    int64_t heard_ns;       /* time of the last sign of life of the watched rank; 0 if there was none yet */
    int lost;               /* a rank that was lost before it returned, or -1 if there is none */
    int64_t lost_ns;        /* when */
    bool ending;            /* this rank is about to report */
    const CommKey *end_key; /* the operation that it will report, or NULL if there is none */
    int64_t end_seq;
    bool *end_arrived; /* [members] */
    bool yields;       /* another rank will report */
    Question *questions;
    CommTable early; /* EarlyList */
    Exchange *active;
    FaultScope scope, *outer;
} Processes;

/* Handles a member's announcement of its operation. */
void exchange_take_start(Comm *, const Announcement *);

void watch_start(Comm *);
void watch_stop(Comm *);
bool watch_take_announcements(Comm *); /* returns true if there were any */
void watch_say(const Comm *, Say, int to);
/* Waits. Releases the lock, which the caller must hold, during the wait. */
void watch_rest(Processes *, int tries);
/* Ends the world if a member that an operation waits for has returned. */
void watch_check_returned(Comm *, const Exchange *);
/* Ends the world if an operation waits for a lost rank. */
void watch_check_lost(Comm *, const Exchange *);
/* Ends the world with a report about an operation, or about none if the CommWork is NULL. */
_Noreturn void watch_end_world(Comm *, const CommWork *, bool *arrived, const char *why);
/* CommTransport.end */
_Noreturn void watch_end(Comm *, const CommKey *, int64_t seq, const CommFacts *, const char *why);
/* CommTransport.warn */
void watch_warn(Comm *, const CommKey *, int64_t seq, const CommFacts *);
