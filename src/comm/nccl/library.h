/* Loads NCCL at run time, so that the program can be built without NCCL and can run with different NCCL versions. The
 * declarations follow NCCL 2.18's nccl.h; later versions preserve its ABI.
 *
 * A library for host memory exports `nccl_host_memory`; its streams are HostStreams (base/host_stream.h).
 * tests/nccl/host_nccl.c is such a library, for machines without GPUs. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct ncclComm *NcclComm;
typedef struct NcclWindowState *NcclWindow;
typedef struct NcclId {
    char bytes[128];
} NcclId;

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };   /* ncclResult_t */
enum { NCCL_SUM = 0, NCCL_MAX = 2, NCCL_MIN = 3 }; /* ncclRedOp_t */
enum { NCCL_U8 = 1, NCCL_I32 = 2, NCCL_I64 = 4, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9 };

#define NCCL_MAGIC     0xcafebeefU /* value of `magic` in every ncclConfig_t */
#define NCCL_UNDEFINED INT_MIN     /* value of an int field of ncclConfig_t that leaves the choice to NCCL */

enum { NCCL_SYMMETRIC = 1 }; /* ncclCommWindowRegister: all members register the same offsets */
/* `policy`: collectives that only copy between windows use no thread blocks */
enum { NCCL_COPY_ENGINES = 2 };

/* The first members of ncclConfig_t. NCCL copies the first `size` bytes, and `version` determines which members
 * these bytes contain (parseCommConfig in init.cc). Later members keep their defaults, so every version accepts
 * a prefix of the struct. */
typedef struct NcclConfig {
    size_t size;
    unsigned magic, version;
    /* minimum and maximum number of thread blocks (CTAs) per kernel */
    int blocking, cluster_size, least_blocks, most_blocks;
    const char *network;
    int split_share, traffic_class;
    const char *name;
    int collnet, policy; /* available since 2.27 */
} NcclConfig;

/* NCCL's functions: F(name, parameters). */
#define NCCL_FUNCTIONS(F)                                                                                    \
    F(GetVersion, (int *version))                                                                            \
    F(GetUniqueId, (NcclId *))                                                                               \
    F(CommInitRank, (NcclComm *, int ranks, NcclId, int rank))                                               \
    F(CommInitRankConfig, (NcclComm *, int ranks, NcclId, int rank, NcclConfig *))                           \
    F(CommDestroy, (NcclComm))                                                                               \
    F(CommGetAsyncError, (NcclComm, int *error))                                                             \
    F(AllReduce, (const void *in, void *out, size_t n, int type, int op, NcclComm, void *stream))            \
    F(Broadcast, (const void *in, void *out, size_t n, int type, int root, NcclComm, void *stream))          \
    F(AllGather, (const void *in, void *out, size_t n, int type, NcclComm, void *stream))                    \
    F(ReduceScatter, (const void *in, void *out, size_t n, int type, int op, NcclComm, void *stream))        \
    F(Send, (const void *in, size_t n, int type, int peer, NcclComm, void *stream))                          \
    F(Recv, (void *out, size_t n, int type, int peer, NcclComm, void *stream))                               \
    F(GroupStart, (void))                                                                                    \
    F(GroupEnd, (void))

/* Functions that are available since 2.27; NULL in older libraries. */
#define NCCL_WINDOW_FUNCTIONS(F)                                                                             \
    F(CommWindowRegister, (NcclComm, void *, size_t bytes, NcclWindow *, int flags))                         \
    F(CommWindowDeregister, (NcclComm, NcclWindow))

typedef struct Nccl {
    void *library;
    int version;      /* for example, 22809 is version 2.28.9 */
    bool host_memory; /* whether the library transfers host memory instead of GPU memory */
#define FUNCTION(name, parameters) int(*name) parameters;
    NCCL_FUNCTIONS(FUNCTION)
    NCCL_WINDOW_FUNCTIONS(FUNCTION)
#undef FUNCTION
    const char *(*GetErrorString)(int);
    const char *(*GetLastError)(NcclComm);
} Nccl;

/* Returns whether ranks may run as threads of one process. Before NCCL 2.24, the GPUs of ranks in the same
 * process access each other's buffers directly. Direct access fails, because a Space (tensor/device.h) is
 * mapped for only one GPU. Between processes, NCCL copies through its own buffers. */
bool nccl_shares_a_process(const Nccl *);
/* Returns whether copies between windows can run on copy engines, as in version 2.28 and later. */
bool nccl_has_windows(const Nccl *);
/* Loads a library; NULL means libnccl.so.2 on the loader's search path. Returns a user error if the library
 * cannot be used. The library stays loaded until the process ends. */
Err nccl_load(const char *file, Nccl *);
/* Returns a configuration with these two values. NCCL chooses all others, and also the number of blocks if most_blocks
 * is 0. */
NcclConfig nccl_config(int most_blocks, bool copy_engines);
/* Writes the version as text, such as "2.28.9", and returns the text. */
const char *nccl_version_text(const Nccl *, char text[32]);
