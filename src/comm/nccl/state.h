/* The NCCL transport's state, shared by the files in this folder. */
#pragma once

#include <pthread.h>

#include "base/fault.h"
#include "comm/nccl/library.h"
#include "comm/transport.h"

enum { NCCL_PAIRS = 4 }; /* a rank's links to its two neighbours in a ring, one per direction */

/* An operation in flight. */
typedef struct NcclFlight {
    DeviceEvent *done;
    int64_t record, seq, start_ns;
    CommFacts facts;
    bool watched; /* whether the operation is in the link's list */
    bool waited;  /* whether comm_wait has returned; if so, only the list refers to the operation */
    bool warned;  /* whether a warning that the operation is late was printed */
    struct NcclFlight *next;
} NcclFlight;

/* A channel's state. Graph launches use a channel without a communicator. */
typedef struct NcclLink {
    CommChannel *channel;
    NcclComm nccl; /* the communicator, or NULL if there is none */
    DeviceStream *stream;
    NcclFlight *first, **last; /* list of operations in flight, oldest first */
    int64_t swept_ns;          /* the time at which the operation before `first` ended */
    uint64_t places; /* hash of the window offsets used since the last comparison, or 0 if there are none */
    struct NcclLink *next;
} NcclLink;

/* Memory registered with a communicator. */
typedef struct NcclMemory {
    const char *memory;
    size_t bytes;
    Group group;
    NcclLink *of;
    NcclWindow window;
    struct NcclMemory *next;
} NcclMemory;

typedef struct NcclState {
    Nccl nccl;
    Comm *comm;
    Device *device;
    int most_blocks;          /* maximum number of thread blocks per kernel; 0 if NCCL chooses the number */
    bool registers;           /* whether memory is registered as windows */
    NcclLink *links, *graphs; /* graphs: the link for graph launches, or NULL */
    NcclMemory *windows;
    NcclFlight *spare;
    NcclFlight *calling; /* the operation of the NCCL call that is running and may block, or NULL */
    CommKey calling_key;
    /* start of the call; INT64_MAX during a host operation, which prints warnings itself */
    int64_t calling_ns;
    char *greeting;       /* device memory [NCCL_PAIRS] that neighbours send when they connect */
    pthread_mutex_t lock; /* guards the links' lists, which the watchdog reads */
    pthread_cond_t closing;
    bool closed;
    FaultScope scope; /* the watchdog's scope, so that a fault in the watchdog names the rank */
    pthread_t watchdog;
} NcclState;

/* ---- watchdog.c ---- */

/* Aborts the run if an NCCL call has failed. */
void nccl_check(const NcclState *, NcclComm, int result, const char *call);
#define NCCL(s, comm, function, ...) nccl_check(s, comm, (s)->nccl.function(__VA_ARGS__), "nccl" #function)
NcclFlight *nccl_flight_new(NcclState *, const CommWork *);
void nccl_flights_free(const NcclState *, NcclFlight *first);
/* Appends an operation to the link's list of operations in flight, which the watchdog reads. */
void nccl_fly(NcclState *, NcclLink *, NcclFlight *);
/* Removes finished operations from the list. Operations whose comm_wait has returned become reusable. The
 * caller must hold the lock. */
void nccl_sweep(NcclState *, NcclLink *);
/* Records which operation the next NCCL calls are for. Call this function with the operation before those calls, and
 * with NULL after them. */
void nccl_set_calling(NcclState *, const CommKey *, NcclFlight *);
void nccl_set_calling_since(NcclState *, int64_t ns);
void nccl_watch_begin(NcclState *);
void nccl_watch_end(NcclState *);

/* ---- links.c ---- */

NcclLink *nccl_link_new(NcclState *, CommChannel *);
/* Makes the link visible to the watchdog. */
void nccl_link_publish(NcclState *, NcclLink *);
void nccl_open_group(NcclState *, CommChannel *, Group);
/* Returns an operation's link, which is opened for its first operation. */
NcclLink *nccl_link_of(NcclState *, const CommWork *);
/* Returns whether NCCL can run the call. NCCL ignores NaN in float maxima and minima, and supports neither barriers nor
 * FP8 sums. */
bool nccl_has_operation(const CommCall *);

/* ---- windows.c ---- */

/* Adds the operation's window offsets to the link's hash: the input's offset if other members read the input
 * (in reductions), and the output's offset if they write the output (in all operations except
 * reduce-scatter). */
void nccl_note_places(const NcclState *, NcclLink *, const CommCall *);
void nccl_compare(Comm *);
void nccl_attach(Comm *, const Group *, void *memory, size_t bytes);
void nccl_detach(Comm *, const void *memory);

/* ---- transport.c ---- */

extern const CommTransport NCCL_TRANSPORT;
