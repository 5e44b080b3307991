/* Declarations for the transports: the endpoint and its channels, operations, records and reports.
 *
 * A channel is one sequence of operations: a group's collectives, or the messages from one member of a group to
 * another. A channel's members are numbered 0 .. members-1. In a message channel, the sender is 0 and the receiver
 * is 1. */
#pragma once

#include <pthread.h>

#include "comm/comm.h"

/* The key of a channel. Keys are compared and hashed as bytes, so they must not have padding. All fields are
 * therefore int. */
typedef struct CommKey {
    Group group;  /* the simplified group, with `rank` 0, so that the key is equal on all members */
    int src, dst; /* members of the group; -1, -1 means the channel for the group's collectives */
    /* 0 for the host transport, 1 for the device transport (numbered separately), 2 for the device transport's
     * graphs */
    int device;
} CommKey;

/* A hash table with CommKey keys. */
typedef struct CommTable {
    struct CommEntry *entry; /* [capacity], a power of two */
    size_t count, capacity;
} CommTable;

typedef struct CommEntry {
    CommKey key;
    void *value; /* NULL if the entry is free */
} CommEntry;

/* Returns the key's value. A new key's value is NULL, and the caller must replace it before the next look-up. */
void **comm_lookup(CommTable *, const CommKey *);

typedef struct CommChannel {
    CommKey key;
    int members, member; /* number of members, and this rank's index among them */
    int number;          /* index among this rank's channels */
    int64_t next;        /* sequence number of this rank's next operation */
    bool all_to_all;     /* whether an all-to-all is planned */
    void *state;         /* the state of the transport */
} CommChannel;

/* Returns the global rank of member `i` of a channel. */
int comm_member(const CommKey *, int i);
int comm_members(const CommKey *);

/* the value of CommFacts.kind for the launch of a graph that contains operations */
enum { COMM_GRAPH = COMM_KINDS };

/* The description of an operation, which a member sends to the other members. Processes exchange descriptions
 * as raw bytes. */
typedef struct CommFacts {
    int32_t kind, reduction, dtype; /* reduction is 0 if the kind has none; dtype is 0 for a barrier */
    int32_t peer;                   /* the root of a broadcast; 0 for other kinds */
    int64_t n;                      /* 0 for a barrier and for an all-to-all */
    int64_t sends, expects;         /* ALL_TO_ALL: number of elements to and from the other member */
    char site[48];                  /* truncated */
} CommFacts;

/* Returns the description that the CommWork's rank sends to a member of the channel. */
CommFacts comm_facts_to(const CommWork *, int member);
/* Returns true if the descriptions from two members contradict each other, and writes the error message to
 * `why`. */
bool comm_mismatch(const CommFacts *mine, int my_rank, const CommFacts *theirs, int their_rank,
                   char why[512]);

struct CommWork {
    CommCall call; /* the call, with copies of the counts */
    CommFacts facts;
    CommChannel *channel; /* NULL if there is nothing to wait for */
    int64_t seq;
    int64_t record;          /* number of the operation's record */
    int64_t begin_ns;        /* start time, by the host's clock */
    int64_t *in_at, *out_at; /* ALL_TO_ALL: the first element of each member's part */
    const struct CommTransport *transport;
    void *state;            /* the transport's state */
    bool open;              /* true from comm_start until comm_wait */
    void *staging, *staged; /* copies of a GPU's buffers, and the result's address, or NULL if there is
                               none */
    CommWork *next;         /* the next unused CommWork */
};

/* ---- recorder ---- */

typedef struct CommRecord {
    CommKey key;
    int64_t seq, started_ns, done_ns; /* done_ns is 0 until the operation is done */
    CommFacts facts;
} CommRecord;

typedef struct CommRecorder {
    pthread_mutex_t lock; /* needed because another thread may read the records for a report */
    int64_t count;        /* number of operations recorded so far; the ring holds the last COMM_RECORDS */
    CommRecord *ring;
} CommRecorder;

void comm_recorder_init(CommRecorder *);
void comm_recorder_free(CommRecorder *);
int64_t comm_record_start(CommRecorder *, const CommWork *); /* returns the number of the record */
void comm_record_done(CommRecorder *, int64_t number);
bool comm_record_last(CommRecorder *, CommRecord *out); /* returns false if there is none */
/* Returns whether the operation has started: whether it, or a later operation on its channel, is among the last
 * COMM_RECORDS records. */
bool comm_record_has(CommRecorder *, const CommKey *, int64_t seq);
void comm_record_print(const CommRecord *, FILE *);

/* ---- endpoint ---- */

/* A transport defines how operations move elements. start and wait implement comm_start and comm_wait for groups with
 * several members. */
typedef struct CommTransport {
    void (*start)(Comm *, CommWork *);
    void (*wait)(Comm *, CommWork *);
    void (*free)(Comm *); /* releases the transport's state; NULL if it has no state */
    /* For device transports: whether the transport can run a call. Other calls are staged. The operation may still
     * run after comm_wait, so the transport marks the record as done. */
    bool (*takes)(const Comm *, const CommCall *);
    /* For device transports: implements comm_launched. */
    void (*launched)(Comm *, const char *site);
    /* For device transports: these implement comm_register and comm_unregister for groups with several members. */
    void (*attach)(Comm *, const Group *, void *memory, size_t bytes);
    void (*compare)(Comm *); /* implements comm_compare_places */
    void (*detach)(Comm *, const void *memory);
    /* For host transports: reports a device transport's failed operation and aborts the run. Any thread may
     * call this function. */
    void (*end)(Comm *, const CommKey *, int64_t seq, const CommFacts *, const char *why);
    /* For host transports: determines which members have started a device operation, and then calls comm_warn.
     * Returns immediately. Any thread may call this function. */
    void (*warn)(Comm *, const CommKey *, int64_t seq, const CommFacts *);
} CommTransport;

/* The transport for devices that have no other. Operations work on copies in host memory, which the host transport
 * moves. */
extern const CommTransport COMM_STAGING;

struct Comm {
    const CommTransport *host; /* NULL if no data moves */
    void *host_state;
    const CommTransport *device; /* if this is NULL, memory of a discrete device is staged */
    void *device_state;
    const char *processes_by; /* "MPI" or "TCP" if ranks run as processes, otherwise NULL */
    int rank, world;
    _Atomic double deadline_s; /* atomic, because the transports' threads read it */
    _Atomic(const CommFarewell *) farewell;
    CommSabotage sabotage;
    const CommObserver *observer; /* NULL if there is none */
    CommProfile *profile;         /* [COMM_PROFILE], or NULL if there is no profile */
    Device *computes;             /* device that the profile waits for, or NULL if there is none */
    int64_t started;              /* number of operations that this rank has started */
    int open;                     /* number of operations that have not been waited for */
    CommTable channels;
    CommWork *spare;
    CommRecorder recorder;
};

void comm_init(Comm *, const CommTransport *host, void *host_state, int world, int rank, const CommOptions *);
/* Frees the memory that comm_init and the operations allocated. It is a fault if an operation was never waited for. */
void comm_close(Comm *);
CommChannel *comm_channel(Comm *, const CommKey *);
/* Calls the farewell. A transport calls this function before it ends the process. */
void comm_say_farewell(const Comm *);
/* Return the times after which a late member is a fault and after which a warning is printed. */
int64_t comm_deadline_ns(const Comm *);
int64_t comm_warning_ns(const Comm *);
CommKey comm_key(const CommCall *, bool device);

/* ---- moving elements ---- */

/* Sets out[0, n) to the reduction of in[i][at, at + n) over the members i, in order. `out` may alias one of the
 * members' parts. MAX and MIN are NaN if an operand is NaN. */
void comm_reduce(CommReduction, DType, const void *const *in, int members, int64_t at, int64_t n, void *out);

/* Returns the number of units into which an operation can be split. All its buffers must be in this process. Any thread
 * can move units, in any order. A unit is an element of the larger buffer, except that in an all-to-all it is a
 * receiver. `work` has [members] elements. */
int64_t comm_units(const CommWork *const *work, int members);
/* Returns the number of bytes that all units together read and write. */
int64_t comm_traffic(const CommWork *const *work, int members);
void comm_move(const CommWork *const *work, int members, int64_t begin, int64_t end);

/* ---- reports ---- */

/* The facts that are known about a rank when the run is aborted. */
typedef struct CommWitness {
    const char *status; /* such as "is running" */
    bool any;           /* whether the rank has started an operation; if so, `last` is the newest */
    CommRecord last;
    bool is_in; /* whether the last operation is unfinished */
    /* true if the rank has not answered a query; such a rank is reported even if it has started the
     * operation */
    bool silent;
} CommWitness;

/* Prints a report with a single write, so that reports from several processes do not mix. The report contains the
 * error, the ranks that have started the operation (`arrived` [members]), the others' states (`witness` [world]), and
 * this rank's flight recorder. A NULL key means that the error is not about an operation. */
void comm_report(const Comm *, const char *why, const CommKey *, int64_t seq, const CommFacts *,
                 const bool *arrived, const CommWitness *witness);
/* Prints a warning that the operation waits for members that are late. Only the first waiting member prints the
 * warning. */
void comm_warn(const Comm *, const CommKey *, int64_t seq, const CommFacts *, const bool *arrived);
