/* Where tensors live and kernels run. The null device runs everything but the arithmetic: a dry run on it
 * gives the sizes of all memory before any is taken. */
#ifndef ISOTRON_TENSOR_DEVICE_H
#define ISOTRON_TENSOR_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/thread.h"

typedef enum DeviceKind { DEVICE_CPU, DEVICE_NULL, DEVICE_CUDA } DeviceKind;

/* How a GPU chooses among the algorithms of a large GEMM: the fastest of those with the same bits, the
 * fastest of all, or what cuBLASLt proposes. */
typedef enum GemmTuning { GEMM_TUNING_SAME_BITS, GEMM_TUNING_FASTEST, GEMM_TUNING_OFF } GemmTuning;

/* Counts calls and time of each op while attached to a device; indexed by op number. What a GPU has done is
 * in it after device_wait, until which it must stay. */
typedef struct OpProfile {
    int64_t calls, ns;
} OpProfile;

typedef struct Device {
    DeviceKind kind;
    const struct DeviceBackend *backend; /* how the kind does it (backend.h) */
    Pool *pool;             /* the host's threads: kernels on the CPU split their loops over them */
    OpProfile *profile;     /* NULL, or one entry per op (owned by whoever measures) */
    GemmTuning gemm_tuning; /* of GEMMs that a null device plans; set before the first */
    int64_t gemm_sm_margin; /* a GPU's multiprocessors that products leave to others; set before the first */
    bool any_order;    /* sums may be taken in the order in which blocks are done (--no-deterministic-mode) */
    struct Cuda *cuda; /* tensor/cuda.h; of a null device: of the device that it plans for, or NULL */
    int n_devices;     /* of its kind that this process sees, itself included; ranks take them round-robin */
    /* Whether it multiplies FP8 numbers that share one scale; that have one for every 128 terms of a sum. */
    bool fp8_products, fp8_block_products;
    size_t scratch; /* null device: the most that a kernel of that device takes beside its operands */
    int64_t plays;  /* of recorded work (device_play) so far */
} Device;

/* `threads` <= 0: one for each core that this process may use. */
Device *device_cpu(int threads);
Device *device_null(void);
/* A null device that finds out, op by op, what they will need on `target` beside their operands (its plans
 * are made then; `scratch`). CPU: device_null. */
Device *device_null_for(const Device *target);
/* The device of a rank: with `cuda` the GPU rank modulo their number, with a stream of its own, so that ranks
 * may share one. A user error if this build or machine has none. */
Err device_open(bool cuda, int rank, int threads, Device **);
void device_free(Device *);
/* Takes memory for kernels that need some beside their operands, so that none is taken while they run. */
void device_provide(Device *, size_t scratch);
/* "NVIDIA H200 (GPU 0, sm_90, 132 multiprocessors, 140 GiB)"; of the CPU its threads. */
const char *device_describe(const Device *, char *buffer, size_t n);
/* Bytes of its memory that can still be taken; of the CPU: base/host_memory.h. */
size_t device_memory_available(const Device *);

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

/* Copies beside the kernels, in an order of their own, from or to memory of device_host_alloc. A copy begins
 * when all that was called before it is done; what is called after it does not wait for it, until
 * device_wait_event(done), whose callers begin when the last copy that was given that event is done. Recorded
 * work may have such copies, if it also waits for all of them. */
typedef struct DeviceEvent DeviceEvent;
DeviceEvent *device_event_new(Device *); /* NULL where copies are done at once */
void device_event_free(Device *, DeviceEvent *);
void device_copy_async(Device *, void *to, const void *from, size_t bytes, DeviceEvent *done);
void device_wait_event(Device *, DeviceEvent *);

/* Work that is recorded once and played often, with the operands and attributes of the recording: what is
 * called between record and recorded does not run. Of CUDA only; the host reads and writes no device memory
 * there. */
typedef struct DeviceGraph DeviceGraph;
void device_record(Device *);
DeviceGraph *device_recorded(Device *);
void device_play(Device *, DeviceGraph *);
void device_graph_free(Device *, DeviceGraph *); /* NULL is allowed */

/* Work that runs op by op the first time, which makes whatever is made at the first use, is recorded the
 * second time and played from then on. {0}: not yet. */
typedef struct DeviceRecording {
    bool warm;
    DeviceGraph *graph;
} DeviceRecording;
void device_replay(Device *, DeviceRecording *, void (*work)(void *arg), void *arg);
/* The next time it is recorded again. */
void device_recording_drop(Device *, DeviceRecording *);

/* Device memory as the host sees it: the memory itself, or a copy if it is apart, which device_view_end
 * writes back if the view is to WRITE. A view to WRITE only (VIEW_WRITE) must be written completely. What may
 * be large is viewed in pieces of about VIEW_BYTES. */
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
