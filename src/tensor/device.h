/* A device stores tensors and runs kernels. The null device runs everything except the arithmetic. Before any
 * memory is allocated, a dry run on the null device determines the amount of memory that a run needs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/thread.h"

typedef enum DeviceKind {
#define DEVICE(constant, name)        DEVICE_##constant,
#define DEVICE_ABSENT(constant, name) DEVICE_##constant,
#include "tensor/devices.def"
} DeviceKind;

/* The algorithm that a GPU chooses for a large GEMM: the fastest algorithm whose result is bitwise equal to
 * that of cuBLASLt's first choice, the fastest of all algorithms, or cuBLASLt's first choice. */
typedef enum GemmTuning { GEMM_TUNING_SAME_BITS, GEMM_TUNING_FASTEST, GEMM_TUNING_OFF } GemmTuning;

/* Kinds of FP8 GEMMs: a scale applies to an entire operand, or to 128 terms of a sum; either, for experts. */
enum { FP8_GEMM_WHOLE = 1, FP8_GEMM_BLOCKS = 2, FP8_GEMM_EXPERTS = 4 };

/* Describes how to open a device. {0} is the CPU with one thread per core. */
typedef struct DeviceSpec {
    DeviceKind kind;
    int rank;            /* device_open opens the device with index `rank` modulo the number of devices */
    bool has_neighbours; /* whether other ranks of this process may use other devices */
    bool exports;        /* whether other ranks can map this GPU's memory, as comm_register requires */
    /* number of host threads; if <= 0, one thread per core that this process may use */
    int threads;
    bool any_order;         /* whether terms of a sum may be added in any order (--no-deterministic-mode) */
    GemmTuning gemm_tuning; /* also for the GEMMs that a null device plans for a GPU */
    int64_t gemm_sm_margin; /* number of multiprocessors that GEMMs leave for other work */
    unsigned fp8_gemms;     /* only on the CPU, for tests: the result of device_fp8_gemms */
} DeviceSpec;

/* An op's number of calls and total time. A profile is an array indexed by op number. While a device has a
 * profile, the device measures each op. Times of GPU ops are added to the profile by device_wait, so the
 * profile must be valid until then. */
typedef struct OpProfile {
    int64_t calls, ns;
} OpProfile;

struct OpDef;
struct Call;
typedef void CallObserver(void *arg, const struct OpDef *, const struct Call *);

/* Code outside src/tensor may assign only `profile`, `observer` and `observer_arg`. */
typedef struct Device {
    DeviceKind kind;
    const struct DeviceBackend *backend; /* the functions for this kind of device (backend.h) */
    void *state;                         /* the backend's state */
    const struct Device *target;         /* for a null device: the device for which it plans, or NULL */
    Pool *pool;                          /* the host threads among which CPU kernels divide their loops */
    OpProfile *profile;                  /* one entry per op, owned by the caller, or NULL */
    /* a null device calls this function for every op, and with NULL for device_wait; may be NULL */
    CallObserver *observer;
    void *observer_arg;
    bool any_order;       /* as in DeviceSpec */
    unsigned char id[16]; /* the unique id of a GPU; 0 for other devices */
    bool recording;       /* true between device_graph_begin and device_graph_end */
    bool exclusive;       /* whether only one process at a time can use this GPU */
    /* whether there is a visible GPU whose memory this GPU cannot access */
    bool lacks_peers;
    /* number of visible devices of this kind, including this device; ranks are assigned to the devices
     * round-robin */
    int n_devices;
    /* for a null device: the most scratch memory that any kernel of the target needs */
    size_t scratch;
    int64_t graph_replays; /* number of graph launches since the device was opened */
    /* current and peak numbers of allocated bytes, excluding reserved addresses without memory */
    size_t allocated, most_allocated;
} Device;

/* Opens a rank's device. Each rank has a separate stream on its GPU, so ranks can share a GPU. Returns a user
 * error if the device does not exist. */
Err device_open(const DeviceSpec *, Device **);
Device *device_cpu(int threads);
Device *device_null(void);
/* Opens a null device that determines the scratch memory that ops need on `target`. The null device creates plans on
 * `target`, which must outlive the null device. */
Device *device_null_for(const Device *target);
void device_free(Device *);
/* Allocates scratch memory for kernels in advance, so that no memory is allocated while the kernels run. */
void device_reserve_scratch(Device *, size_t bytes);
/* Describes the device, such as "NVIDIA H200 (GPU 0, sm_90, 132 multiprocessors, 140 GiB)". The description
 * of the CPU states the number of threads. */
const char *device_describe(const Device *, char *buffer, size_t n);
/* Returns the number of bytes of memory that are available. For the CPU, see base/host_memory.h. */
size_t device_memory_available(const Device *);
/* Returns a mask of the FP8 GEMMs that the device's ops may use: those of matrices with one scale, those with blocks,
 * and those of experts. */
unsigned device_fp8_gemms(const Device *);

/* Returns zeroed memory. Too little memory is a fault whose message states the size and `what`. */
void *device_alloc(Device *, size_t bytes, const char *what);
void device_release(Device *, void *, size_t bytes);
/* Returns host memory that the device's copies can read and write while kernels run. The memory is not zeroed.
 * For a GPU, the memory is pinned. The host must not access memory that a running copy uses. As in
 * device_alloc, too little memory is a fault. */
void *device_host_alloc(Device *, size_t bytes, const char *what);
void device_host_release(Device *, void *, size_t bytes);

/* Returns whether the host can access the device's memory only through device_read, device_write, copies and
 * views. A NULL device means the host, here and for views. */
bool device_is_discrete(const Device *);
/* Like kernels, device_read, device_write and device_wait take effect in the order of the calls. device_read
 * and device_write return when the host memory may be reused. device_wait returns once all work has finished.
 * On the null device, these three functions do nothing. */
void device_read(Device *, void *host, const void *at, size_t bytes);
void device_write(Device *, void *at, const void *host, size_t bytes);
void device_wait(Device *);

/* Copies data. Like kernels, copies take effect in the order of the calls. Each of `to` and `from` is in device memory,
 * or in host memory from device_host_alloc. The host may access this host memory again after the next device_wait. */
void device_copy(Device *, void *to, const void *from, size_t bytes);

/* Async copies run concurrently with kernels. Either `to` or `from` must be memory from device_host_alloc. A
 * copy begins once all earlier calls finish. Calls after device_wait_event(done) begin once the last copy with
 * the event `done` finishes. Calls before device_wait_event do not wait for the copy. A graph may contain async
 * copies if it also waits for all of these copies. */
typedef struct DeviceEvent DeviceEvent;
DeviceEvent *device_event_new(Device *); /* returns NULL if copies are synchronous */
void device_event_free(Device *, DeviceEvent *);
void device_copy_async(Device *, void *to, const void *from, size_t bytes, DeviceEvent *done);
void device_wait_event(Device *, DeviceEvent *);

/* Waits until the last copy with the event has finished. The host may then use the copy's host memory. */
void device_finish_event(Device *, DeviceEvent *);

/* A stream runs a library's work in order. The library receives the stream's handle. Work on the stream begins
 * once all calls before the last device_stream_follow finish. device_stream_record marks the end of the
 * stream's work with an event. Calls after the event's device_wait_event begin once the stream's work before
 * the event finishes. A graph may contain a stream's work if the graph also waits for all of this work. */
typedef struct DeviceStream DeviceStream;
/* Returns a stream with high priority, or NULL if this kind of device has no streams. */
DeviceStream *device_stream_new(Device *);
void device_stream_free(Device *, DeviceStream *);
/* Returns a cudaStream_t or, on a CPU, a HostStream * (base/host_stream.h). */
void *device_stream_handle(Device *, DeviceStream *);
void device_stream_follow(Device *, DeviceStream *);
void device_stream_record(Device *, DeviceStream *, DeviceEvent *);
/* Returns whether an event has happened. The last recording of the event must have been outside graph capture.
 * Any thread may call this function. */
bool device_event_happened(Device *, DeviceEvent *);
/* device_span_end adds the device time since device_span_begin to a profile. The time is measured on the given
 * stream or, if it is NULL, on the stream of ops. The profile must remain valid until a device_wait that follows
 * device_span_end has returned. Between begin and end, no op may run, no other span may begin and no graph may be
 * recorded. device_span_begin returns the `begin` argument for device_span_end. */
int64_t device_span_begin(Device *, DeviceStream *);
void device_span_end(Device *, DeviceStream *, int64_t begin, OpProfile *);
/* Returns whether calls are being recorded into a graph. */
bool device_is_recording(const Device *);

/* A graph (CUDA graph) records the calls between begin and end, without running them. Each launch runs the
 * recorded calls with the recorded operands and attributes. During recording, the host must not read or write
 * device memory. Calling device_graph_begin on a device that does not support graphs is a fault. */
typedef struct DeviceGraph DeviceGraph;
bool device_has_graphs(const Device *);
void device_graph_begin(Device *);
DeviceGraph *device_graph_end(Device *);
void device_graph_launch(Device *, DeviceGraph *);
void device_graph_free(Device *, DeviceGraph *); /* the graph may be NULL */

/* The state of work that is run repeatedly. The first time, the work runs op by op, so that ops create their
 * plans and other state. The second time, the work is recorded as a graph. From then on, the graph is launched.
 * The initial state is {0}. */
typedef struct DeviceRecording {
    bool warm;
    DeviceGraph *graph;
} DeviceRecording;
void device_replay(Device *, DeviceRecording *, void (*work)(void *arg), void *arg);
/* Drops the graph, so that the next device_replay records the work again. */
void device_recording_drop(Device *, DeviceRecording *);

/* Gives the host access to device memory. A view is the memory itself or, for a discrete device, a copy.
 * device_view_end writes the copy back if the mode includes VIEW_WRITE. If the mode is VIEW_WRITE alone, the
 * host must write the entire view. Large memory should be viewed in pieces of about VIEW_BYTES. */
enum { VIEW_READ = 1, VIEW_WRITE = 2, VIEW_BYTES = 8 << 20 };
typedef struct DeviceView {
    void *data;
    Device *device;
    void *at;
    size_t bytes;
    unsigned mode;
} DeviceView;
DeviceView device_view(Device *, const void *at, size_t bytes, unsigned mode);
void device_view_end(DeviceView *);

/* A region of device memory. The offsets of blocks depend only on the sequence of calls, so a dry run on the
 * null device and the real run have equal offsets and an equal peak. */
typedef struct Space Space;
enum { SPACE_ALIGN = 256, SPACE_UNPLANNED = 0 };
/* `capacity` is the peak of a dry run. SPACE_UNPLANNED means address space whose pages receive memory when they are
 * first used (in tests and generation). On a CPU, such a space has at most 32 GiB. */
Space *space_new(Device *, const char *name, size_t capacity);
/* Checks that addresses for `count` unplanned spaces can be reserved; `ulimit -v` may prevent this. */
Err space_check(Device *, int count);
void space_free(Space *);
/* Returns a block that is aligned to SPACE_ALIGN. Exceeding the capacity is a fault. */
void *space_take(Space *, size_t bytes);
void space_give(Space *, void *, size_t bytes);
void space_reset(Space *);       /* frees all blocks */
void *space_base(const Space *); /* returns the address of the first block */
size_t space_capacity(const Space *);
size_t space_used(const Space *);
size_t space_peak(const Space *); /* returns the highest end that any block has had since space_new */
