/* Where tensors live and kernels run. The null device runs everything but the arithmetic: a dry run on it
 * gives the sizes of all memory before any is taken. */
#ifndef ISOTRON_TENSOR_DEVICE_H
#define ISOTRON_TENSOR_DEVICE_H

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

/* How a GPU chooses among the algorithms of a large GEMM: the fastest of those with the same bits, the
 * fastest of all, or what cuBLASLt proposes. */
typedef enum GemmTuning { GEMM_TUNING_SAME_BITS, GEMM_TUNING_FASTEST, GEMM_TUNING_OFF } GemmTuning;

/* GEMMs of FP8 values, by how many of them share a scale. */
enum { FP8_GEMM_WHOLE = 1, FP8_GEMM_BLOCKS = 2 }; /* a whole operand; 128 terms of a sum */

/* What a device is opened with. {0}: the CPU, a thread for each core. */
typedef struct DeviceSpec {
    DeviceKind kind;
    int rank;               /* of several devices it opens number `rank` modulo their count */
    int threads;            /* of the host; <= 0: one for each core that this process may use */
    bool any_order;         /* sums may be taken in any order (--no-deterministic-mode) */
    GemmTuning gemm_tuning; /* of the GEMMs that a null device plans for a GPU */
    int64_t gemm_sm_margin; /* a GPU's multiprocessors that GEMMs leave to other work */
    unsigned fp8_gemms;     /* of a CPU, for tests: ops use these FP8 GEMMs, as on a GPU that has them */
} DeviceSpec;

/* Counts calls and time of each op while attached to a device; indexed by op number. What a GPU has done is
 * in it after device_wait, until which it must stay. */
typedef struct OpProfile {
    int64_t calls, ns;
} OpProfile;

/* Nothing here is assigned from outside but `profile`. */
typedef struct Device {
    DeviceKind kind;
    const struct DeviceBackend *backend; /* how the kind does it (backend.h) */
    void *state;                         /* the backend's own */
    const struct Device *target;         /* null device: the device that it plans for, or NULL */
    Pool *pool;         /* the host's threads: kernels on the CPU split their loops over them */
    OpProfile *profile; /* NULL, or one entry per op (owned by whoever measures) */
    bool any_order;     /* as in DeviceSpec */
    int n_devices;      /* of its kind that this process sees, itself included; ranks take them round-robin */
    size_t scratch;     /* null device: the most that a kernel of the target takes besides its operands */
    int64_t graph_replays; /* launches of graphs so far */
} Device;

/* The device of a rank. On a GPU it has a separate stream, so ranks may share a GPU. A user error if this
 * build or machine has no such device. */
Err device_open(const DeviceSpec *, Device **);
Device *device_cpu(int threads);
Device *device_null(void);
/* A null device that finds out, op by op, what they will need on `target` besides their operands. The plans
 * of `target` are made then. `target` outlives it. */
Device *device_null_for(const Device *target);
void device_free(Device *);
/* Takes memory for kernels that need some besides their operands, so that none is taken while they run. */
void device_reserve_scratch(Device *, size_t bytes);
/* "NVIDIA H200 (GPU 0, sm_90, 132 multiprocessors, 140 GiB)"; of the CPU its threads. */
const char *device_describe(const Device *, char *buffer, size_t n);
/* Bytes of its memory that can still be taken; of the CPU: base/host_memory.h. */
size_t device_memory_available(const Device *);
/* Which GEMMs of FP8 values its ops may use: a sum of FP8_GEMM_WHOLE and FP8_GEMM_BLOCKS. */
unsigned device_fp8_gemms(const Device *);

/* Zeroed memory; running out of it is a fault that states the size and `what`. */
void *device_alloc(Device *, size_t bytes, const char *what);
void device_release(Device *, void *, size_t bytes);
/* Host memory that the device's copies read and write while kernels run (of a GPU: pinned), not zeroed. The
 * host may touch what no copy is under way to or from. Running out of it is a fault, as above. */
void *device_host_alloc(Device *, size_t bytes, const char *what);
void device_host_release(Device *, void *, size_t bytes);

/* Whether the host cannot touch its memory, but through what follows. NULL is the host itself, here and where
 * memory is viewed. */
bool device_is_discrete(const Device *);
/* Kernels run in the order of the calls, and so do these. read and write return when the host's memory may be
 * used again; wait, when all is done. Nothing happens on the null device. */
void device_read(Device *, void *host, const void *at, size_t bytes);
void device_write(Device *, void *at, const void *host, size_t bytes);
void device_wait(Device *);

/* In the order of the kernels. to and from are the device's, or one is memory of device_host_alloc: then the
 * host may write what is copied from, and read what is copied to, after the next wait. */
void device_copy(Device *, void *to, const void *from, size_t bytes);

/* Async copies, in an order of their own, from or to memory of device_host_alloc. A copy begins when all that
 * was called before it is done. What is called after it does not wait for it, until device_wait_event(done):
 * what is called after that begins when the last copy with that event is done. A graph may have such copies,
 * if it also waits for all of them. */
typedef struct DeviceEvent DeviceEvent;
DeviceEvent *device_event_new(Device *); /* NULL where copies are done at once */
void device_event_free(Device *, DeviceEvent *);
void device_copy_async(Device *, void *to, const void *from, size_t bytes, DeviceEvent *done);
void device_wait_event(Device *, DeviceEvent *);

/* A graph (CUDA graph) is what is called between begin and end. It does not run then; each launch runs it,
 * with the operands and attributes that it was recorded with. While it is recorded, the host reads and writes
 * no device memory. A device without graphs refuses to begin one. */
typedef struct DeviceGraph DeviceGraph;
void device_graph_begin(Device *);
DeviceGraph *device_graph_end(Device *);
void device_graph_launch(Device *, DeviceGraph *);
void device_graph_free(Device *, DeviceGraph *); /* NULL is allowed */

/* Work that runs op by op the first time, which makes whatever is made at the first use. The second time it
 * is recorded as a graph, and from then on the graph is launched. {0}: not yet. */
typedef struct DeviceRecording {
    bool warm;
    DeviceGraph *graph;
} DeviceRecording;
void device_replay(Device *, DeviceRecording *, void (*work)(void *arg), void *arg);
/* The next time it is recorded again. */
void device_recording_drop(Device *, DeviceRecording *);

/* Device memory as the host sees it: the memory itself, or a copy if the device is discrete, which
 * device_view_end writes back if the view is to WRITE. A view to WRITE only (VIEW_WRITE) must be written
 * completely. What may be large is viewed in pieces of about VIEW_BYTES. */
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

/* A region of device memory with an allocator whose placement depends only on the sequence of calls: a dry
 * run on the null device and the real run get the same offsets and the same peak. */
typedef struct Space Space;
enum { SPACE_ALIGN = 256, SPACE_UNPLANNED = 0 };
/* `capacity` from a dry run's peak. SPACE_UNPLANNED: address space without a plan, backed page by page as it
 * is touched (tests, generation); on a CPU at most 32 GiB. */
Space *space_new(Device *, const char *name, size_t capacity);
void space_free(Space *);
void *space_take(Space *, size_t bytes); /* SPACE_ALIGN-aligned; more than the capacity is a fault */
void space_give(Space *, void *, size_t bytes);
void space_reset(Space *);       /* forget all blocks */
void *space_base(const Space *); /* where its first block begins */
size_t space_used(const Space *);
size_t space_peak(const Space *); /* highest end of any block since space_new */

#endif
