/* Communication between ranks. A Comm is the endpoint of one rank. It has two transports. The memory of a
 * call's buffers selects the transport:
 *
 *   host the ranks of a world are threads of this process, or processes that MPI or TCP connects. With
 *   comm_null, this rank runs alone and no data arrive, as in a dry run
 *   device   for memory of a discrete device: NCCL, or staging through host memory and the host transport
 *
 * Order of sums: a host transport, and so staging, adds in the order of the group's members, element by
 * element, regardless of message sizes and of how the buffer is divided. All members get bitwise equal
 * results, and an all-reduce is bitwise equal to a reduce-scatter and an all-gather. 16-bit elements are
 * added in float and rounded once. NCCL may add in a different order, which depends only on group, count and
 * dtype. In the exact lane, the results of all orders are bitwise equal.
 *
 * Members of a group must start the same operations in the same order. Groups with the same members in the
 * same order are one group. Different groups are independent, and so are the two directions of messages
 * between a pair of ranks. NCCL adds two conditions. The first collective, the first all-to-all and the first
 * message of a group block until all members have started them, so all ranks must do these in the same order.
 * Messages may be sent only between neighbours in the group; its last and first members are neighbours.
 *
 * It is a fault if a member does not start an operation within the deadline, or starts it with a different
 * kind, count, dtype or site. If ranks are processes, a process that ends early or does not run is also a
 * fault. The fault report contains the group, the sequence number, the state of each rank, and this rank's
 * flight recorder. The whole world then ends (exit status 3, ERR_INFRA). */
#pragma once

#include <stdio.h>

#include "base/err.h"
#include "comm/mesh.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

typedef enum CommKind {
    COMM_BARRIER,
    COMM_BROADCAST,      /* root `peer` -> all: n elements, in place in `out` */
    COMM_ALL_REDUCE,     /* n elements; in == out is allowed */
    COMM_ALL_GATHER,     /* n elements of each member -> size * n, member-major; in == out + rank * n is
                        allowed */
    COMM_REDUCE_SCATTER, /* size * n elements -> n elements of this member; out == in + rank * n is allowed */
    COMM_ALL_TO_ALL,     /* in_counts[i] elements to member i, out_counts[i] from it; packed, member-major */
    COMM_SEND,           /* n elements to member `peer` */
    COMM_RECV,           /* n elements from member `peer` */
    COMM_KINDS
} CommKind;

/* COMM_MAX and COMM_MIN are NaN if any operand is NaN. */
typedef enum CommReduction { COMM_SUM, COMM_MAX, COMM_MIN } CommReduction;

typedef struct CommCall {
    CommKind kind;
    CommReduction reduction;
    DType dtype;
    Group group;
    const char *site;                      /* the op that communicates, for reports; a string constant */
    const void *in;                        /* contiguous; must not change until the wait */
    void *out;                             /* contiguous; undefined until the wait */
    int64_t n;                             /* elements, see CommKind; 0 is allowed */
    const int64_t *in_counts, *out_counts; /* [group.size], ALL_TO_ALL only; read before comm_start returns */
    int peer;                              /* member number: SEND, RECV, BROADCAST */
    Device *device;                        /* the device of in and out; NULL means the host */
    bool staged; /* whether data go through host memory even if the device has a transport; must be equal on
                    all members */
} CommCall;

typedef struct Comm Comm;
typedef struct CommWork CommWork;

/* Starts an operation. Usually returns before the operation is done; comm_wait may then do the rest of it. On
 * a device, it runs after all earlier calls on that device. The rank that started an operation must wait for
 * it exactly once. A rank may wait for its operations in any order. */
CommWork *comm_start(Comm *, const CommCall *);
/* For host memory: returns when the result is available. For a device: later calls on it run after the operation,
 * and the host reads the result through device_read or device_view, which wait for the device. */
void comm_wait(Comm *, CommWork *);
/* comm_start and comm_wait. A group of one member copies in to out. */
void comm_run(Comm *, const CommCall *);
/* Reduces x[n] over the group's members, in place. */
void comm_all_reduce(Comm *, Group, const char *site, CommReduction, DType, void *x, int64_t n);

/* Call it after the launch of a graph that has operations of `comm`, so that a missing member is detected. The deadline
 * then applies to the graph as a whole. A graph must not contain staged operations. */
void comm_launched(Comm *comm, const char *site);

/* Replaces the deadline of CommOptions for all operations that this rank starts later. All ranks should call
 * it, because the first rank that exceeds its deadline ends the world. No device operation may be in
 * flight. */
void comm_set_deadline(Comm *, double seconds);

/* A function that a fault of the world calls on this rank's process after its report, before the process ends. It may
 * run on any thread, may take a few seconds, and must not use the Comm. Not called for a CHECK. */
typedef struct CommFarewell {
    void (*fn)(void *arg);
    void *arg;
} CommFarewell;
/* NULL: none. It must remain valid until it is replaced. */
void comm_set_farewell(Comm *, const CommFarewell *);

int comm_rank(const Comm *);
int comm_world(const Comm *);
Group comm_everyone(const Comm *); /* all ranks, in order */

typedef struct CommDeviceOptions {
    const char *library; /* the file name of NCCL; NULL means the library that the loader finds */
    bool required;       /* returns a user error if GPU memory would have to be staged */
    int most_blocks;     /* maximum number of thread blocks of an NCCL kernel; 0 if NCCL chooses it */
    bool registers;      /* comm_register will be called; it is a user error if the library has no windows */
} CommDeviceOptions;

/* "through host memory", followed by MPI or TCP if the ranks are processes. A NULL Comm is one rank. */
void comm_describe_host(const Comm *, char text[200]);
/* Selects the transport for memory of `device`: NCCL if no two ranks share a GPU and NCCL can be loaded, staging
 * otherwise. All ranks must call it with the same options. All get the same result. Returns a user error if a
 * named library cannot be used, or if its version differs between ranks. `text` describes the transport and
 * the reason. Call comm_close_device before the device is freed. A NULL Comm is one rank. */
Err comm_open_device(Comm *, Device *, const CommDeviceOptions *, char text[200]);
/* Checks that comm_open_device accepts this library for discrete devices or, if `discrete` is false, for
 * other devices. The library stays loaded. */
Err comm_check_library(const char *library, bool discrete);
/* All ranks must call it. It returns when all ranks have closed the transport. */
void comm_close_device(Comm *);
/* Registers memory of the device with the communicator of the group as a symmetric window of NCCL.
 * All-gathers and sums whose input and output are registered then need fewer thread blocks. All-gathers run
 * on copy engines, without thread blocks, unless the group is the tensor-parallel group. All members must
 * call it together, with the same number of bytes. For each operation, all members must use the same offsets
 * in their windows. The device must be opened with DeviceSpec.exports. Does nothing if the group has one
 * member, or unless the transport is NCCL and was opened with `registers`. */
void comm_register(Comm *, const Group *, void *memory, size_t bytes);
/* Checks that all members of each group have used the same offsets in their windows since the last call. NCCL
 * does not check the offsets; if they differ, it writes data to wrong addresses. All ranks must call it. */
void comm_compare_places(Comm *);
/* Removes the windows that begin at `memory`. Call it before the memory is freed; no operation may be in flight. */
void comm_unregister(Comm *, const void *memory);

/* ---- worlds ---- */

typedef struct CommOptions {
    double deadline_s; /* how long a member may be late; <= 0 means 600 (--distributed-timeout-minutes 10).
                          After a tenth of it, a warning names the member */
    double meet_s;     /* time limit for all processes to connect at the start; <= 0 means 600 */
    const char *build; /* must be equal in all processes that TCP connects; NULL disables the comparison */
} CommOptions;

/* Runs fn(arg, comm) as ranks 0..world-1, each in a separate thread (rank 0 in the caller's), and returns
 * when all ranks have returned. A rank that returns while another waits for it is a fault immediately. */
typedef void CommMain(void *arg, Comm *);
void comm_threads(int world, const CommOptions *, CommMain *fn, void *arg);

/* A Comm whose operations finish immediately and leave `out` unchanged. */
Comm *comm_null(int world, int rank);
bool comm_is_null(const Comm *);
void comm_free(Comm *); /* frees a Comm of comm_null, comm_mpi or comm_tcp */

/* ---- processes ---- */

typedef enum CommLauncher { COMM_ALONE, COMM_MPI, COMM_TCP } CommLauncher;

/* The environment variables of a launcher: mpirun, srun, torchrun, or a compatible launcher. */
typedef struct CommLaunch {
    CommLauncher by;               /* COMM_ALONE if there is no launcher, or only one process */
    int processes, process, local; /* number of processes; index of this process, in the world and on its
                                      host */
    int of_host;                   /* number of processes on this host, or 0 if it is unknown */
    char host[256];                /* with COMM_TCP: the address at which process 0 listens */
    int port;
    char run[128]; /* with COMM_TCP: the name of the run; empty if the launcher sets none */
} CommLaunch;

/* Returns a user error if variables are missing, or if the launcher needs MPI and this program was built without it. */
Err comm_launch(CommLaunch *);
/* The number of processes and the index of this process. Without a launcher, they are 1 and 0. -1:
 * unknown. */
int comm_processes(void);
int comm_process(void);

/* The world of all MPI processes. The first call initialises MPI; the end of the process finalises it. */
Comm *comm_mpi(const CommOptions *);
bool comm_mpi_built(void); /* if this is false, calling comm_mpi is a fault */
/* The world of processes that meet at a TCP address. Returns an error if a process does not connect in time, or if
 * the processes run different builds. */
Err comm_tcp(const CommLaunch *, const CommOptions *, Comm **);
/* A process must call this before it ends with an error, so that processes that are still connecting end too.
 * Returns true if process 0 prints this error or an error that occurred there; *error then has the code of
 * the printed error. */
bool comm_tcp_give_up(const CommLaunch *, const CommOptions *, Err *error);

/* ---- exposed communication ---- */

/* `exposed` is the time in which this rank's computation waits for operations. For NCCL it is the time in which the
 * device waits, otherwise the host's time in comm_start and comm_wait; staging waits for the device first. `flight`
 * is the duration of operations, including waits for members that start late. For NCCL on GPUs it is measured on the
 * operation's stream, otherwise from comm_start to the end of comm_wait. */
typedef struct CommProfile {
    OpProfile exposed, flight;
    double bytes; /* number of bytes that this rank would send in a ring algorithm (the bus bytes of
                     nccl-tests) */
} CommProfile;

/* Starts to add the operations of this rank to profile[axes of the group] (mesh_axes_text). Operations in a CUDA graph
 * are not counted. After device_wait, the sums are complete. NULL: stops. An operation in host memory first
 * waits for the device `computes`, unless it is NULL, so that its exposed time excludes the work of this
 * device. */
enum { COMM_PROFILE = 1 << AXES };
void comm_profile(Comm *, CommProfile profile[COMM_PROFILE], Device *computes);

/* ---- planning ---- */

/* Records the communicators that NCCL would open on this rank for an operation on GPU memory, without starting the
 * operation. The Comm must be from comm_null. */
void comm_plan(Comm *, const CommCall *);
/* The number of open communicators or, if `open` is false, of recorded ones. */
int comm_communicators(const Comm *, bool open);
/* The number of ranks on a host: all ranks if they are threads, otherwise the number that the launcher
 * reports. If that is unknown, and with comm_null, it is 8, the usual number of GPUs per host. */
int comm_ranks_of_host(const Comm *);
/* The bytes of device memory that the buffers of all recorded communicators need. An operation has at most
 * `most_blocks` thread blocks (CommDeviceOptions), and a host `ranks_of_host` ranks. */
size_t comm_device_bytes(const Comm *, int most_blocks, int ranks_of_host);

/* ---- flight recorder ---- */

/* Prints the last `last` operations of this rank, newest last. The recorder keeps COMM_RECORDS operations.
 * Each operation is one line: its sequence number in its group, kind, site, group, count, dtype, state
 * (started, done) and time. */
enum { COMM_RECORDS = 1024 };
void comm_dump(const Comm *, int64_t last, FILE *);

/* Injects faults for tests of the watchdog: silently skips or delays the `nth` operation that this rank starts,
 * counted from 0. */
typedef struct CommSabotage {
    int64_t nth;    /* -1: none */
    double delay_s; /* > 0: the operation is delayed; 0: it is skipped */
} CommSabotage;
void comm_sabotage(Comm *, CommSabotage);
