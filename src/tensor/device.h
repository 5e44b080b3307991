/* Where tensors live and kernels run. The null device runs everything but the arithmetic: a dry run on it
 * gives the sizes of all memory before any is taken. */
#ifndef ISOTRON_TENSOR_DEVICE_H
#define ISOTRON_TENSOR_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "base/thread.h"

typedef enum DeviceKind { DEVICE_CPU, DEVICE_NULL } DeviceKind;

/* Counts calls and time of each op while attached to a device; indexed by op number. */
typedef struct OpProfile {
    int64_t calls, ns;
} OpProfile;

typedef struct Device {
    DeviceKind kind;
    Pool *pool;         /* CPU: the threads that kernels split their loops over */
    OpProfile *profile; /* NULL, or one entry per op (owned by whoever measures) */
} Device;

/* `threads` <= 0: one for each core that this process may use. Also tells BLAS to leave threading to the
 * pool. */
Device *device_cpu(int threads);
Device *device_null(void);
void device_free(Device *);
/* Bytes of host memory that can still be taken without swapping. */
size_t device_memory_available(void);

/* Zeroed memory; running out of it is a fault that states the size and `what`. */
void *device_alloc(Device *, size_t bytes, const char *what);
void device_release(Device *, void *, size_t bytes);

/* A region of device memory with an allocator whose placement depends only on the sequence of calls: a dry
 * run on the null device and the real run get the same offsets and the same peak. */
typedef struct Space Space;
enum { SPACE_ALIGN = 256, SPACE_UNPLANNED = 0 };
/* `capacity` from a dry run's peak. SPACE_UNPLANNED: address space without a plan, backed page by page as it
 * is touched (tests, generation). */
Space *space_new(Device *, const char *name, size_t capacity);
void space_free(Space *);
void *space_take(Space *, size_t bytes); /* SPACE_ALIGN-aligned; more than the capacity is a fault */
void space_give(Space *, void *, size_t bytes);
void space_reset(Space *); /* forget all blocks */
size_t space_used(const Space *);
size_t space_peak(const Space *); /* highest end of any block since space_new */

#endif
