/* Communication between ranks. A Comm is one rank's endpoint, and has two transports. The memory that
 * contains a call's buffers determines which transport the call uses:
 *
 *   host     the ranks run as threads of this process, or as processes that MPI or TCP connects. With comm_null, this
 *            rank runs alone and no data arrive, as in a dry run
 *   device   for the memory of a discrete device: NCCL, or staging through host memory and the host transport
 *
 * A host transport, and so also staging, adds elements in member order, regardless of message sizes and the division of
 * the buffer. All members get bitwise equal results, and an all-reduce is bitwise equal to a reduce-scatter and an
 * all-gather. 16-bit elements are added in float and rounded once. NCCL may add in a different order, which depends
 * only on the group, the count and the dtype. In the exact lane, all orders give bitwise equal results.
 *
 * Members of a group must start the same operations in the same order. Groups with the same members in the
 * same order are treated as one group. Different groups are independent. So are the two directions of messages between
 * two ranks. NCCL adds two conditions. A group's first collective, first all-to-all and first message block until all
 * members have started that operation, so all ranks must start these operations in the same order. Only neighbours in
 * the group can exchange messages; the last and first members are neighbours.
 *
 * It is a fault if a member does not start an operation within the deadline, or starts it with a different kind, count,
 * dtype or site. If ranks run as processes, it is also a fault if a process ends early or stops running. The fault
 * report contains the group, the sequence number, each rank's state, and this rank's flight recorder. After the report,
 * all processes in the world end (exit status 3, ERR_INFRA). */
#pragma once

#include <stdio.h>

#include "base/err.h"
#include "comm/mesh.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

typedef enum CommKind {
    COMM_BARRIER,
    COMM_BROADCAST,  /* copies n elements of `out`, in place, from the root `peer` to all members */
    COMM_ALL_REDUCE, /* reduces n elements; in == out is allowed */
    /* gathers n elements from each member, in member order; in == out + rank * n is allowed */
    COMM_ALL_GATHER,
    /* reduces size * n elements; this member receives n of them; out == in + rank * n is allowed */
    COMM_REDUCE_SCATTER,
    /* sends in_counts[i] elements to member i, and receives out_counts[i] elements from member i; buffers are
     * packed in member order */
    COMM_ALL_TO_ALL,
    COMM_SEND, /* sends n elements to member `peer` */
    COMM_RECV, /* receives n elements from member `peer` */
    COMM_KINDS
} CommKind;
const char *comm_kind_name(CommKind); /* such as "all_reduce" */

/* The results of COMM_MAX and COMM_MIN are NaN if any operand is NaN. */
typedef enum CommReduction { COMM_SUM, COMM_MAX, COMM_MIN } CommReduction;

typedef struct CommCall {
    CommKind kind;
    CommReduction reduction;
    DType dtype;
    Group group;
    const char *site; /* name of the op that communicates, for reports; must be a string constant */
    const void *in;   /* contiguous; must not change until comm_wait returns */
    void *out;        /* contiguous; undefined until comm_wait returns */
    int64_t n;        /* number of elements (CommKind), which may be 0 */
    const int64_t *in_counts, *out_counts; /* [group.size], ALL_TO_ALL only; read before comm_start returns */
    int peer;       /* SEND, RECV, BROADCAST: index of the other member, or of the root */
    Device *device; /* the device of in and out; NULL means the host */
    /* whether to copy data through host memory even if the device has a transport; must be equal on all members */
    bool staged;
} CommCall;

typedef struct Comm Comm;
typedef struct CommWork CommWork;

/* Starts an operation. Usually returns before the operation finishes; comm_wait may complete it. On a device, the
 * operation runs after all earlier calls on that device. The rank that started an operation must wait for it exactly
 * once. A rank can wait for its operations in any order. */
CommWork *comm_start(Comm *, const CommCall *);
/* Waits for an operation. For host memory, returns once the result is available. For a device, returns
 * earlier, but later calls on the device run after the operation. The host must then read the result with
 * device_read or device_view, which wait for the device. */
void comm_wait(Comm *, CommWork *);
/* Calls comm_start and comm_wait. In a one-member group, copies `in` to `out`. */
void comm_run(Comm *, const CommCall *);
/* Reduces x[n] over the group's members, in place. */
void comm_all_reduce(Comm *, Group, const char *site, CommReduction, DType, void *x, int64_t n);

/* Call this function after launching a graph with operations of `comm`, so that a missing member is detected. The
 * deadline then applies to the entire graph. A graph must not contain staged operations. */
void comm_launched(Comm *comm, const char *site);

/* Replaces the deadline of CommOptions for all operations that this rank starts later. All ranks should call
 * this function, because the first rank that exceeds its deadline aborts the run. No device operation may be
 * in flight. */
void comm_set_deadline(Comm *, double seconds);

/* A function that runs in this rank's process when a communication fault aborts the run, after the report and
 * before the process ends. A farewell may run on any thread and for a few seconds, and must not use the Comm. A failed
 * CHECK does not call the farewell. */
typedef struct CommFarewell {
    void (*fn)(void *arg);
    void *arg;
} CommFarewell;
/* Sets the farewell, which must remain valid until it is replaced. NULL removes it. */
void comm_set_farewell(Comm *, const CommFarewell *);

int comm_rank(const Comm *);
int comm_world(const Comm *);
Group comm_everyone(const Comm *); /* the group of all ranks, in order */

typedef struct CommDeviceOptions {
    const char *library; /* file name of the NCCL library; NULL means the library that the loader finds */
    bool required;       /* whether staging of GPU memory is a user error */
    int most_blocks;     /* maximum number of thread blocks per NCCL kernel; 0 if NCCL chooses the number */
    /* whether comm_register will be called; if so, a library that lacks windows is a user error */
    bool registers;
} CommDeviceOptions;

/* Writes "through host memory", followed by MPI or TCP if the ranks run as processes. A NULL Comm means that there is
 * only one rank. */
void comm_describe_host(const Comm *, char text[200]);
/* Selects the transport for memory of `device`: NCCL if no two ranks share a GPU and NCCL can be loaded, and
 * staging otherwise. All ranks must call this function with the same options, and all ranks get the same
 * result. Returns a user error if a specified library cannot be used, or if NCCL's version differs between
 * ranks. `text` describes the transport and the reason. Call comm_close_device before the device is freed. A
 * NULL Comm means that there is only one rank. */
Err comm_open_device(Comm *, Device *, const CommDeviceOptions *, char text[200]);
/* Returns an error if comm_open_device would reject this library; `discrete` states whether the device is
 * discrete. The library stays loaded. */
Err comm_check_library(const char *library, bool discrete);
/* All ranks must call this function. The call returns when all ranks have closed the transport. */
void comm_close_device(Comm *);
/* Registers device memory with the group's communicator as a symmetric NCCL window. All-gathers and sums
 * whose inputs and outputs are in such windows need fewer thread blocks. All-gathers run on copy engines,
 * without thread blocks, unless the group is the tensor-parallel group. All members must call this function
 * together, with the same number of bytes. For each operation, all members must use the same offsets in their
 * windows. The device must be opened with DeviceSpec.exports. The call has no effect if the group has only
 * one member, if the transport is not NCCL, or if the transport was opened without `registers`. */
void comm_register(Comm *, const Group *, void *memory, size_t bytes);
/* Checks that all members of each group have used the same offsets in their windows since the last call. NCCL does not
 * check the offsets: if they differ, it writes data to wrong addresses. All ranks must call this function. */
void comm_compare_places(Comm *);
/* Removes the windows that start at `memory`. Call this function before freeing the memory, while no operation is in
 * flight. */
void comm_unregister(Comm *, const void *memory);

/* ---- worlds ---- */

typedef struct CommOptions {
    /* how many seconds late a member may be; <= 0 means 600 (--distributed-timeout-minutes 10). After a tenth of this
     * time, a warning names the late member */
    double deadline_s;
    double meet_s; /* time limit in seconds for all processes to connect at startup; <= 0 means 600 */
    /* the program's version, which must be equal in all processes that TCP connects; NULL disables the comparison */
    const char *build;
} CommOptions;

/* Runs fn(arg, comm) as ranks 0..world-1, each in a separate thread (rank 0 in the caller's thread), and
 * returns once all ranks have returned. It is a fault if a rank returns while another rank waits for it. */
typedef void CommMain(void *arg, Comm *);
void comm_threads(int world, const CommOptions *, CommMain *fn, void *arg);

/* Returns a Comm whose operations finish immediately and leave `out` unchanged. */
Comm *comm_null(int world, int rank);
bool comm_is_null(const Comm *);

/* Functions that a Comm from comm_null calls when an operation in a group with several members starts, and when this
 * rank waits for the operation. Operations are numbered. The operations of a channel (a group's collectives, or the
 * messages from one member to another) run in sequence. */
typedef struct CommObserver {
    void (*start)(void *arg, const CommCall *, int channel, int64_t number);
    void (*wait)(void *arg, int64_t number);
    void *arg;
} CommObserver;
/* Sets the observer, which must remain valid as long as the Comm. Call this function before the Comm is used. */
void comm_observe(Comm *, const CommObserver *);
/* Returns whether operations on the device's memory start. On a null device, they start only if they are observed. A
 * NULL Comm means that there is only one rank. */
bool comm_starts(const Comm *, const Device *);
void comm_free(Comm *); /* frees a Comm from comm_null, comm_mpi or comm_tcp */

/* ---- processes ---- */

typedef enum CommLauncher { COMM_ALONE, COMM_MPI, COMM_TCP } CommLauncher;

/* Information from the environment variables of a launcher: mpirun, srun, torchrun, or a compatible one. */
typedef struct CommLaunch {
    CommLauncher by;               /* COMM_ALONE if there is no launcher, or only one process */
    int processes, process, local; /* number of processes; index of this process, in the world and on its
                                      host */
    int of_host;                   /* number of processes on this host, or 0 if it is unknown */
    char host[256];                /* with COMM_TCP: the address on which process 0 listens */
    int port;
    char run[128]; /* with COMM_TCP: the run's name; empty if the launcher sets none */
} CommLaunch;

/* Returns a user error if variables are missing, or if the launcher needs MPI and this program was built without it. */
Err comm_launch(CommLaunch *);
/* Return the number of processes and this process's index. Without a launcher, the number is 1 and the index
 * is 0. -1 means that the value is unknown. */
int comm_processes(void);
int comm_process(void);

/* Returns the world that consists of all MPI processes. The first call initializes MPI. MPI is finalized when the
 * process ends. */
Comm *comm_mpi(const CommOptions *);
bool comm_mpi_built(void); /* calling comm_mpi is a fault if this returns false */
/* Creates a world of processes that connect through a TCP address. Returns an error if a process does not connect in
 * time, or if the processes run different builds. */
Err comm_tcp(const CommLaunch *, const CommOptions *, Comm **);
/* A process must call this function before it ends with an error, so that processes that are still connecting also end.
 * Returns true if process 0 prints this error or an error that occurred on process 0. *error then contains the printed
 * error's code. */
bool comm_tcp_give_up(const CommLaunch *, const CommOptions *, Err *error);

/* ---- exposed communication ---- */

/* `exposed` is how long this rank's computation waits for operations. For NCCL, this is the time that the
 * device waits; for other transports, it is the time that the host spends in comm_start and comm_wait. A staged
 * operation first waits for the device, so that the exposed time excludes earlier work on the device. `flight`
 * is how long operations take, including waits for members that start late. NCCL on GPUs measures the flight
 * time on the operation's stream; other transports measure it from comm_start until comm_wait returns. */
typedef struct CommProfile {
    OpProfile exposed, flight;
    /* number of bytes that a ring algorithm would send from this rank (nccl-tests' bus bytes) */
    double bytes;
} CommProfile;

/* Starts adding up the times of this rank's operations in profile[axes of the group] (mesh_axes_text). Operations in a
 * CUDA graph are not counted. The sums are complete after device_wait. A NULL profile ends the measurement. If
 * `computes` is not NULL, an operation in host memory first waits for this device, so that the exposed time excludes
 * the device's work. */
enum { COMM_PROFILE = 1 << AXES };
void comm_profile(Comm *, CommProfile profile[COMM_PROFILE], Device *computes);

/* ---- planning ---- */

/* Records the communicators that NCCL would open on this rank for an operation on GPU memory, without
 * starting the operation. The Comm must come from comm_null. */
void comm_plan(Comm *, const CommCall *);
/* Returns the number of open communicators if `open` is true, and otherwise the number that comm_plan has recorded. */
int comm_communicators(const Comm *, bool open);
/* Returns the number of ranks on a host: all ranks if they run as threads, and the number that the launcher reports if
 * they run as processes. With comm_null, or if the launcher reports none, returns 8, the usual number of GPUs per
 * host. */
int comm_ranks_of_host(const Comm *);
/* Returns how many bytes of device memory all recorded communicators need for their buffers. An operation uses at most
 * `most_blocks` thread blocks (CommDeviceOptions), and a host runs `ranks_of_host` ranks. */
size_t comm_device_bytes(const Comm *, int most_blocks, int ranks_of_host);

/* ---- flight recorder ---- */

/* Prints up to `last` of this rank's most recent operations, oldest first. The recorder keeps COMM_RECORDS operations.
 * Each operation takes one line: its sequence number in its group, kind, site, group, count, dtype, state (started,
 * done) and time. */
enum { COMM_RECORDS = 1024 };
void comm_dump(const Comm *, int64_t last, FILE *);

/* Injects faults to test the watchdog: silently skips or delays the `nth` operation that this rank starts, counted from
 * 0. */
typedef struct CommSabotage {
    int64_t nth;    /* if -1, no fault is injected */
    double delay_s; /* seconds by which the operation is delayed; 0 means that the operation is skipped */
} CommSabotage;
void comm_sabotage(Comm *, CommSabotage);
