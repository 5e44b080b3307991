/* The state of the NCCL transport, shared by the files of this folder. */
#pragma once

#include <pthread.h>

#include "base/fault.h"
#include "comm/nccl/library.h"
#include "comm/transport.h"

enum { NCCL_PAIRS = 4 }; /* links of a rank with its two neighbours in a ring */

/* An operation in flight. */
typedef struct NcclFlight {
    DeviceEvent *done;
    int64_t record, seq, start_ns;
    CommFacts facts;
    bool watched; /* in its link's list */
    bool waited;  /* nothing else refers to it */
    bool warned;  /* that it is late */
    struct NcclFlight *next;
} NcclFlight;

/* The state of a channel. Launches of graphs have a channel without a communicator. */
typedef struct NcclLink {
    CommChannel *channel;
    NcclComm nccl; /* NULL: none */
    DeviceStream *stream;
    NcclFlight *first, **last; /* oldest first */
    int64_t swept_ns;          /* when the one before `first` ended */
    uint64_t places;           /* hash of operations' offsets in windows since the last comparison; 0: none */
    struct NcclLink *next;
} NcclLink;

/* Memory that is registered with a communicator. */
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
    int most_blocks;          /* of a kernel; 0: NCCL chooses */
    bool registers;           /* windows */
    NcclLink *links, *graphs; /* graphs: one of the links, or NULL */
    NcclMemory *windows;
    NcclFlight *spare;
    NcclFlight *calling; /* in a call of NCCL, which may wait for other members; NULL: none */
    CommKey calling_key;
    int64_t calling_ns; /* since when; INT64_MAX: in an operation of the host transport, which warns itself */
    char *greeting;     /* device memory [NCCL_PAIRS] that neighbours send when they connect */
    pthread_mutex_t lock; /* guards the lists, which the watchdog reads */
    pthread_cond_t closing;
    bool closed;
    FaultScope scope; /* of the watchdog, so that a fault there names the rank */
    pthread_t watchdog;
} NcclState;

/* ---- watchdog.c ---- */

/* Ends the world if a call of NCCL has failed. */
void nccl_check(const NcclState *, NcclComm, int result, const char *call);
#define NCCL(s, comm, function, ...) nccl_check(s, comm, (s)->nccl.function(__VA_ARGS__), "nccl" #function)
NcclFlight *nccl_flight_new(NcclState *, const CommWork *);
void nccl_flights_free(const NcclState *, NcclFlight *first);
/* Appends an operation to the link's list, which the watchdog reads. */
void nccl_fly(NcclState *, NcclLink *, NcclFlight *);
/* Removes finished operations from the list. After comm_wait they become spare. The caller holds the lock. */
void nccl_sweep(NcclState *, NcclLink *);
/* Before and after (NULL) calls of NCCL for an operation. */
void nccl_set_calling(NcclState *, const CommKey *, NcclFlight *);
void nccl_set_calling_since(NcclState *, int64_t ns);
void nccl_watch_begin(NcclState *);
void nccl_watch_end(NcclState *);

/* ---- links.c ---- */

NcclLink *nccl_link_new(NcclState *, CommChannel *);
/* Shows the link to the watchdog. */
void nccl_link_publish(NcclState *, NcclLink *);
void nccl_open_group(NcclState *, CommChannel *, Group);
/* The link of an operation, which is opened if it is the first one. */
NcclLink *nccl_link_of(NcclState *, const CommWork *);
/* NCCL drops NaN in maxima and minima of floats, and it has neither barriers nor sums of FP8 values. */
bool nccl_has_operation(const CommCall *);

/* ---- windows.c ---- */

/* Other members read the inputs of reductions, and write the outputs of all operations except reduce-scatter. */
void nccl_note_places(const NcclState *, NcclLink *, const CommCall *);
void nccl_compare(Comm *);
void nccl_attach(Comm *, const Group *, void *memory, size_t bytes);
void nccl_detach(Comm *, const void *memory);

/* ---- transport.c ---- */

extern const CommTransport NCCL_TRANSPORT;
