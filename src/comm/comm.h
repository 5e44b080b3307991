/* Communication between ranks. One Comm is one rank's endpoint. It has two transports, and a call takes the
 * one for the memory of its buffers:
 *
 *   host     the ranks of a world are threads of this process or MPI processes. Without one (comm_null) they
 *            are imaginary: a dry run asks for nothing to arrive
 *   device   for memory of a discrete device: staging through host memory and the host transport
 *
 * The order of sums: a host transport, and so staging, adds in the order of the group's members, element by
 * element, whatever the message size or the way the buffer is divided. All members get the same bits, and an
 * all-reduce gives the same bits as a reduce-scatter and an all-gather. 16-bit elements are added in float
 * and rounded once. Another device transport may add in an order of its own, which depends on group, count
 * and dtype alone; in the exact precision mode every order gives the same bits.
 *
 * Members of a group must start the same operations in the same order; groups with the same members in the
 * same order are one group, different groups are independent, and so are the two directions of each pair that
 * sends and receives. An operation that some member does not start within the deadline, or starts with
 * another kind, count, dtype or site, is a fault: it names the group, the sequence number, the ranks and what
 * each of them did, prints the recorder of this rank, and ends the whole world (exit status 3, ERR_INFRA). */
#ifndef ISOTRON_COMM_COMM_H
#define ISOTRON_COMM_COMM_H

#include <stdio.h>

#include "comm/mesh.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

typedef enum CommKind {
    COMM_BARRIER,
    COMM_BROADCAST,  /* root `peer` -> all: n elements, in place in `out` */
    COMM_ALL_REDUCE, /* n elements; in == out is allowed */
    COMM_ALL_GATHER, /* n elements of each member -> size * n, member-major; in == out + rank * n is allowed */
    COMM_REDUCE_SCATTER, /* size * n elements -> the n of this member; out == in + rank * n is allowed */
    COMM_ALL_TO_ALL,     /* in_counts[i] elements to member i, out_counts[i] from it; packed, member-major */
    COMM_SEND,           /* n elements to member `peer` */
    COMM_RECV,           /* n elements from member `peer` */
    COMM_KINDS
} CommKind;

typedef enum CommReduction { COMM_SUM, COMM_MAX, COMM_MIN } CommReduction; /* MAX, MIN: NaN if any is NaN */

typedef struct CommCall {
    CommKind kind;
    CommReduction reduction;
    DType dtype;
    Group group;
    const char *site; /* what communicates, for reports: an op's name; a string constant */
    const void *in;   /* contiguous; nothing changes it until the wait */
    void *out;        /* contiguous; undefined until the wait */
    int64_t n;        /* elements, see CommKind; 0 is allowed */
    const int64_t *in_counts, *out_counts; /* [group.size], ALL_TO_ALL only; read before comm_start returns */
    int peer;                              /* member number: SEND, RECV, BROADCAST */
    Device *device;                        /* whose memory in and out are; NULL: the host's */
} CommCall;

typedef struct Comm Comm;
typedef struct CommWork CommWork;

/* Starts an operation and returns at once where the transport can (it may finish the operation in the wait).
 * On a device it comes after all that was called on that device before.
 * Each work is waited for exactly once, by the rank that started it. Works may be waited for in any order. */
CommWork *comm_start(Comm *, const CommCall *);
/* For host memory: returns when the result is there. For a device: what is called on it from now on comes
 * after the operation; the host reads the result through device_read or device_view, which wait for the
 * device. */
void comm_wait(Comm *, CommWork *);
/* Both. A group of one member copies in to out. */
void comm_run(Comm *, const CommCall *);
/* x[n] reduced over the group's members, in place. */
void comm_all_reduce(Comm *, Group, const char *site, CommReduction, DType, void *x, int64_t n);

int comm_rank(const Comm *);
int comm_world(const Comm *);
Group comm_everyone(const Comm *); /* all ranks in their order */

/* ---- worlds ---- */

typedef struct CommOptions {
    double deadline_s; /* how long a member may be late; <= 0: 600 (--distributed-timeout-minutes 10) */
} CommOptions;

/* Runs fn(arg, comm) as ranks 0..world-1, one thread each (the caller's thread is rank 0), and returns when
 * all have returned. A rank that returns while another waits for it is found by the deadline's rule at once. */
typedef void CommMain(void *arg, Comm *);
void comm_threads(int world, const CommOptions *, CommMain *fn, void *arg);

/* Every operation finishes at once and leaves `out` as it is. */
Comm *comm_null(int world, int rank);
void comm_free(Comm *); /* of comm_null and comm_mpi */

/* What mpirun or srun tells the processes that it starts: how many they are (-1: it does not say), and the
 * number of this one, from 0. 1 and 0 without a launcher. */
int comm_processes(void);
int comm_process(void);
/* True if there are several processes and the program was built with MPI. */
bool comm_mpi_present(void);
/* The world of all MPI processes. The first call initialises MPI, the end of the process finalises it. */
Comm *comm_mpi(const CommOptions *);

/* ---- flight recorder ---- */

/* The last operations of this rank, at most so many of the COMM_RECORDS that are kept, newest last, one line
 * each: sequence number in its group, kind, site, group, count, dtype, state (started, done), time. */
enum { COMM_RECORDS = 1024 };
void comm_dump(const Comm *, int64_t last, FILE *);

/* Faults for tests of the watchdog: operation number `nth` (0-based, counted over all operations this rank
 * starts) is silently skipped, or delayed. */
typedef struct CommSabotage {
    int64_t nth;    /* -1: none */
    double delay_s; /* > 0: delayed by this much; 0: dropped */
} CommSabotage;
void comm_sabotage(Comm *, CommSabotage);

#endif
