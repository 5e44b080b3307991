/* A device stores tensors and runs kernels. The null device runs everything except the arithmetic: a dry run
 * on it gives the sizes of all memory before any is allocated. */
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

/* How a GPU chooses the algorithm of a large GEMM: the fastest one that is bitwise equal to cuBLASLt's first
 * choice, the fastest of all, or cuBLASLt's first choice. */
typedef enum GemmTuning { GEMM_TUNING_SAME_BITS, GEMM_TUNING_FASTEST, GEMM_TUNING_OFF } GemmTuning;

/* Kinds of FP8 GEMMs. The values that share a scale are the whole operand, or 128 terms of a sum. */
enum { FP8_GEMM_WHOLE = 1, FP8_GEMM_BLOCKS = 2 };

/* Describes how to open a device. {0} means the CPU, with one thread per core. */
typedef struct DeviceSpec {
    DeviceKind kind;
    int rank;               /* opens the device with index `rank` modulo the number of devices */
    bool has_neighbours;    /* whether other ranks of this process may use other devices */
    bool exports;           /* whether other ranks can map memory of this GPU, which comm_register requires */
    int threads;            /* number of host threads; <= 0 means one per core that this process may use */
    bool any_order;         /* whether sums may be computed in any order (--no-deterministic-mode) */
    GemmTuning gemm_tuning; /* for the GEMMs that a null device plans for a GPU */
    int64_t gemm_sm_margin; /* number of multiprocessors that GEMMs leave to other work */
    unsigned fp8_gemms;     /* CPU only, for tests: result of device_fp8_gemms */
} DeviceSpec;

/* Counts calls and time. A device counts each op while it has a profile, an array indexed by op number. The
 * profile includes GPU work only after device_wait, and must stay valid until then. */
typedef struct OpProfile {
    int64_t calls, ns;
} OpProfile;

/* Only `profile` may be assigned by code outside of src/tensor. */
typedef struct Device {
    DeviceKind kind;
    const struct DeviceBackend *backend; /* functions of the kind (backend.h) */
    void *state;                         /* state of the backend */
    const struct Device *target;         /* for a null device: the device for which it plans, or NULL */
    Pool *pool;                          /* host threads; kernels on the CPU split their loops over them */
    OpProfile *profile;                  /* one entry per op, owned by the caller; or NULL */
    bool any_order;                      /* as in DeviceSpec */
    unsigned char id[16];                /* unique id of a GPU; 0 for other devices */
    bool recording;                      /* between device_graph_begin and device_graph_end */
    bool exclusive;                      /* a GPU that only one process at a time can use */
    bool lacks_peers;                    /* a GPU that cannot access the memory of every other visible GPU */
    int n_devices;         /* number of visible devices of this kind, including this one; assigned to ranks
                              round-robin */
    size_t scratch;        /* for a null device: the most memory that a kernel of the target needs in addition
                              to its operands */
    int64_t graph_replays; /* number of graph launches so far */
    size_t allocated, most_allocated; /* current and peak number of bytes, excluding reserved addresses
                                         without memory */
} Device;

/* Opens the device of a rank. Each rank has a separate stream on its GPU, so ranks may share a GPU. A missing
 * device is a user error. */
Err device_open(const DeviceSpec *, Device **);
Device *device_cpu(int threads);
Device *device_null(void);
/* A null device that finds the memory that ops need on `target` in addition to their operands. It creates plans on
 * `target`, which must outlive the null device. */
Device *device_null_for(const Device *target);
void device_free(Device *);
/* Allocates scratch memory for kernels, so that none is allocated while they run. */
void device_reserve_scratch(Device *, size_t bytes);
/* Describes the device: "NVIDIA H200 (GPU 0, sm_90, 132 multiprocessors, 140 GiB)" or, for the CPU, the
 * number of threads. */
const char *device_describe(const Device *, char *buffer, size_t n);
/* The number of bytes of memory that are available. For the CPU, see base/host_memory.h. */
size_t device_memory_available(const Device *);
/* Returns the FP8 GEMMs that the device's ops may use, as a mask of FP8_GEMM_WHOLE and FP8_GEMM_BLOCKS. */
unsigned device_fp8_gemms(const Device *);

/* Zeroed memory. If there is not enough memory, this is a fault whose message states the size and `what`. */
void *device_alloc(Device *, size_t bytes, const char *what);
void device_release(Device *, void *, size_t bytes);
/* Host memory that the device's copies read and write while kernels run (pinned for a GPU), not zeroed. The
 * host must not touch memory that a running copy uses. If there is not enough memory, this is a fault, as
 * above. */
void *device_host_alloc(Device *, size_t bytes, const char *what);
void device_host_release(Device *, void *, size_t bytes);

/* Whether the host can access the device's memory only through the functions below. Here and for views, NULL means
 * the host. */
bool device_is_discrete(const Device *);
/* These run in the order of the calls, like kernels. device_read and device_write return when the host memory
 * may be reused, and device_wait when all work is done. On the null device, they do nothing. */
void device_read(Device *, void *host, const void *at, size_t bytes);
void device_write(Device *, void *at, const void *host, size_t bytes);
void device_wait(Device *);

/* Copies data in order with the kernels. Either side may be memory of device_host_alloc; the host may then
 * reuse or read it after the next device_wait. All other memory must be device memory. */
void device_copy(Device *, void *to, const void *from, size_t bytes);

/* Async copies run concurrently with kernels; one side must be memory of device_host_alloc. A copy begins
 * when all earlier calls are done. Calls after device_wait_event(done) begin when the last copy with that
 * event is done. Earlier calls do not wait for the copy. A graph may have such copies if it also waits for
 * all of them. */
typedef struct DeviceEvent DeviceEvent;
DeviceEvent *device_event_new(Device *); /* it is NULL if copies are synchronous */
void device_event_free(Device *, DeviceEvent *);
void device_copy_async(Device *, void *to, const void *from, size_t bytes, DeviceEvent *done);
void device_wait_event(Device *, DeviceEvent *);

/* A stream runs a library's work in order; the library receives the stream's handle. Work on the stream begins when
 * all calls before the last device_stream_follow are done. device_stream_record marks the end of the stream's work
 * with an event; calls after the event's device_wait_event begin when that work is done. A graph may contain such
 * work if it also waits for all of it. */
typedef struct DeviceStream DeviceStream;
DeviceStream *device_stream_new(Device *); /* with high priority; NULL if this kind of device has no
                                              streams */
void device_stream_free(Device *, DeviceStream *);
/* a cudaStream_t or, on a CPU, a HostStream * (base/host_stream.h) */
void *device_stream_handle(Device *, DeviceStream *);
void device_stream_follow(Device *, DeviceStream *);
void device_stream_record(Device *, DeviceStream *, DeviceEvent *);
/* Whether an event has happened. Its last record must be outside of a graph. It may be called on any
 * thread. */
bool device_event_happened(Device *, DeviceEvent *);
/* Adds the device time from begin to end to a profile. It is measured on a stream, or on the stream of ops if
 * the stream is NULL. The profile must stay valid until a device_wait after the end. Between begin and end,
 * no op may run, no other span may begin and no graph may be recorded. begin returns the argument of end. */
int64_t device_span_begin(Device *, DeviceStream *);
void device_span_end(Device *, DeviceStream *, int64_t begin, OpProfile *);
/* Whether calls are being recorded into a graph. */
bool device_is_recording(const Device *);

/* A graph (CUDA graph) records the calls between begin and end, without running them. Each launch runs them with the
 * recorded operands and attributes. During recording, the host must not read or write device memory. Calling
 * device_graph_begin on a device that does not support graphs is a fault. */
typedef struct DeviceGraph DeviceGraph;
bool device_has_graphs(const Device *);
void device_graph_begin(Device *);
DeviceGraph *device_graph_end(Device *);
void device_graph_launch(Device *, DeviceGraph *);
void device_graph_free(Device *, DeviceGraph *); /* NULL is allowed */

/* Work that is run repeatedly. The first time it runs op by op, so that ops create their plans and other state. The
 * second time it is recorded as a graph. From then on, the graph is launched. {0} is a new Replay. */
typedef struct DeviceRecording {
    bool warm;
    DeviceGraph *graph;
} DeviceRecording;
void device_replay(Device *, DeviceRecording *, void (*work)(void *arg), void *arg);
/* Drops the graph, so that the work is recorded again the next time. */
void device_recording_drop(Device *, DeviceRecording *);

/* Device memory as the host sees it: the memory itself or, for a discrete device, a copy, which device_view_end writes
 * back if the mode includes VIEW_WRITE. A view with only VIEW_WRITE must be written completely. View large memory in
 * pieces of about VIEW_BYTES. */
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

/* A region of device memory. The offsets of blocks depend only on the sequence of calls. A dry run on the null device
 * and the real run therefore have equal offsets and an equal peak. */
typedef struct Space Space;
enum { SPACE_ALIGN = 256, SPACE_UNPLANNED = 0 };
/* `capacity` is the peak of a dry run. SPACE_UNPLANNED means address space whose pages get memory when they
 * are first used (in tests and generation). On a CPU, it is at most 32 GiB. */
Space *space_new(Device *, const char *name, size_t capacity);
/* Whether addresses for `count` unplanned spaces can be reserved; ulimit -v may prevent it. */
Err space_check(Device *, int count);
void space_free(Space *);
void *space_take(Space *, size_t bytes); /* aligned to SPACE_ALIGN; exceeding the capacity is a fault */
void space_give(Space *, void *, size_t bytes);
void space_reset(Space *);       /* frees all blocks */
void *space_base(const Space *); /* address of the first block */
size_t space_capacity(const Space *);
size_t space_used(const Space *);
size_t space_peak(const Space *); /* highest end of any block since space_new */
