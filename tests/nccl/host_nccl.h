/* Declarations that the files of host_nccl.c's library share: operations, and the meetings in which their members
 * exchange data. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/host_stream.h"
#include "nccl/exports.h"

typedef enum Kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV } Kind;

/* One member's part of an operation. Buffers follow nccl.h: a reduce-scatter reads members * n elements, and
 * an all-gather writes as many. */
typedef struct Op {
    Kind kind;
    const void *in; /* NULL if there is no input, as for all members of a broadcast except the root */
    void *out;
    size_t n;
    int type, reduction;
    int peer;     /* the other member of a message, or the root of a broadcast */
    int slot;     /* its index in Meeting.op: the member's number, or 0 for a SEND and 1 for a RECV */
    int src, dst; /* the members of a message; -1, -1 for a collective */
    int64_t
        seq; /* its number among the collectives of the communicator, or among the messages from src to dst */
    int64_t number; /* its number among all operations of this member */
    int64_t
        place; /* offset in a window of the buffer that other members access (place_of), or -1 if it is in no
                  window */
    NcclComm comm;
    HostStream *stream;
    struct Meeting *meeting;
    struct Op *next; /* the next op of the same group */
} Op;

typedef struct Meeting {
    Op first; /* a copy of the op of the first member; the ops of the other members must agree with it */
    Op **op;  /* [members]; NULL if the member has not arrived */
    int members, arrived, moved, left;
    bool drop_tail, half_sum, reverse; /* planted faults */
    pthread_cond_t changed;
    struct Meeting *next; /* the next meeting that waits for members */
} Meeting;

size_t in_count(const Op *, int members);
size_t out_count(const Op *, int members);
/* Moves one member's share of the data. All members must have arrived. Each element of an output is in exactly one
 * share, and only that share reads an element that it overwrites. */
void move_share(const Meeting *, int slot);

/* Counts over all members: communicators with and without a limit on a kernel's thread blocks, registered windows,
 * and gathers between windows, which NCCL runs on copy engines. most_blocks is the last limit. The library exports
 * these counts for tests as host_nccl_joined. */
typedef struct HostNcclJoined {
    int limited, unlimited, most_blocks, windows, on_copy_engines;
} HostNcclJoined;
