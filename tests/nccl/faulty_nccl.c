/* A faulty NCCL for GPUs: calls the libnccl.so.2 on the loader's search path, and corrupts or delays its operations.
 *   FAULTY_NCCL=drop_tail    all-reduce, all-gather and reduce-scatter lose their last 8 elements
 *               half_sum     sums of F32 have the bits of BF16
 *               link:A:B     messages from GPU A to GPU B take twice their normal time over NVLink
 *               version:N    ncclGetVersion reports version N
 *               lost:N       member 0 starts neither collective N nor later ones
 *               error:N      collective N of any member is an asynchronous error, and does not end
 *               refuse:N     the call of collective N of any member returns an error
 * Faults apply only to communicators of more than one member. Collectives of a communicator are counted from 0. For a
 * slow link, both GPUs must belong to one process. Faults that act on the stream use functions of the driver, so they
 * become part of a CUDA graph. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl/exports.h"

enum { TAIL = 8, PENDING = 64, MEMBERS = 1024, INTERNAL_ERROR = 3, REMOTE_ERROR = 6 };
static const double LINK_BYTES_PER_US = 150e3, LONG_US = 900e6;

typedef struct Fault {
    enum { NO_FAULT, DROP_TAIL, HALF_SUM, LINK, VERSION, LOST, ERROR, REFUSE } kind;
    int a, b;
} Fault;

/* Damage to a result, done after the operation has been started, at the end of its group. */
typedef struct Damage {
    bool drops;
    char *out;
    size_t n, width;
    void *stream;
} Damage;

/* A rank of a communicator in this process. */
typedef struct Member {
    NcclComm comm;
    NcclId id;
    int rank, gpu, collectives; /* collectives: started so far */
    bool failed;
} Member;

static struct {
    pthread_mutex_t lock;
    int n;
    Member of[MEMBERS];
} members = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
    int depth, n;
    Damage pending[PENDING];
} group;

static struct {
    Nccl nccl;
    int (*members)(NcclComm, int *), (*gpu)(int *);
    int (*memset_bytes)(uintptr_t at, unsigned char, size_t n, void *stream);
    int (*memset_columns)(uintptr_t at, size_t pitch, unsigned short, size_t width, size_t height,
                          void *stream);
    int (*host_call)(void *stream, void (*)(void *), void *);
    Fault fault;
} real;

static _Noreturn void abort_on(const char *what, const char *text) {
    fprintf(stderr, "faulty_nccl: %s: %s\n", what, text ? text : "unknown");
    abort();
}

static void find(void *library, const char *name, void *function) {
    void *at = dlsym(library, name);
    if (!at) abort_on(name, dlerror());
    memcpy(function, &at, sizeof at);
}

static Fault planted(void) {
    const char *text = getenv("FAULTY_NCCL");
    Fault f = {NO_FAULT, 0, 0};
    int end = -1;
    if (!text) return f;
    if (!strcmp(text, "drop_tail"))
        f.kind = DROP_TAIL;
    else if (!strcmp(text, "half_sum"))
        f.kind = HALF_SUM;
    else if (sscanf(text, "link:%d:%d%n", &f.a, &f.b, &end) == 2 && !text[end])
        f.kind = LINK;
    else if (sscanf(text, "version:%d%n", &f.a, &end) == 1 && !text[end])
        f.kind = VERSION;
    else if (sscanf(text, "lost:%d%n", &f.a, &end) == 1 && !text[end])
        f.kind = LOST;
    else if (sscanf(text, "error:%d%n", &f.a, &end) == 1 && !text[end])
        f.kind = ERROR;
    else if (sscanf(text, "refuse:%d%n", &f.a, &end) == 1 && !text[end])
        f.kind = REFUSE;
    else
        abort_on("FAULTY_NCCL", text);
    return f;
}

__attribute__((constructor)) static void load(void) {
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL), *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!nccl || !driver) abort_on("a library cannot be loaded", dlerror());
#define FUNCTION(name, parameters) find(nccl, "nccl" #name, &real.nccl.name);
    NCCL_FUNCTIONS(FUNCTION)
    NCCL_WINDOW_FUNCTIONS(FUNCTION)
#undef FUNCTION
    find(nccl, "ncclGetErrorString", &real.nccl.GetErrorString);
    find(nccl, "ncclGetLastError", &real.nccl.GetLastError);
    find(nccl, "ncclCommCount", &real.members);
    find(driver, "cuCtxGetDevice", &real.gpu);
    find(driver, "cuMemsetD8Async", &real.memset_bytes);
    find(driver, "cuMemsetD2D16Async", &real.memset_columns);
    find(driver, "cuLaunchHostFunc", &real.host_call);
    real.fault = planted();
}

/* ---- faults ---- */

static void sleep_us(void *us) { usleep((useconds_t)(uintptr_t)us); }

static void delay(void *stream, double us) {
    if (real.host_call(stream, sleep_us, (void *)(uintptr_t)us)) abort_on("cuLaunchHostFunc", "failed");
}

static bool has_members(NcclComm c) {
    int n;
    return real.members(c, &n) == NCCL_SUCCESS && n > 1;
}

static void join(NcclComm c, NcclId id, int rank) {
    int gpu;
    if (real.gpu(&gpu)) abort_on("cuCtxGetDevice", "failed");
    pthread_mutex_lock(&members.lock);
    if (members.n == MEMBERS) abort_on("communicators", "there are too many");
    members.of[members.n++] = (Member){.comm = c, .id = id, .rank = rank, .gpu = gpu};
    pthread_mutex_unlock(&members.lock);
}

static void leave(NcclComm c) {
    pthread_mutex_lock(&members.lock);
    for (int i = 0; i < members.n; i++)
        if (members.of[i].comm == c) members.of[i--] = members.of[--members.n];
    pthread_mutex_unlock(&members.lock);
}

/* Whether member `peer` is on this GPU; -1 means this rank. */
static bool is_on(NcclComm c, int peer, int gpu) {
    const Member *own = NULL;
    bool found = false;
    pthread_mutex_lock(&members.lock);
    for (int i = 0; i < members.n; i++)
        if (members.of[i].comm == c) own = &members.of[i];
    for (int i = 0; own && i < members.n; i++) {
        const Member *m = &members.of[i];
        found |= m->gpu == gpu && !memcmp(&m->id, &own->id, sizeof m->id) &&
                 m->rank == (peer < 0 ? own->rank : peer);
    }
    pthread_mutex_unlock(&members.lock);
    return found && has_members(c);
}

static Member *member_of(NcclComm c) {
    for (int i = 0; i < members.n; i++)
        if (members.of[i].comm == c) return &members.of[i];
    abort_on("a communicator", NULL);
}

/* Counts a collective. If the result is true, the caller must not start it, and returns *status. */
static bool prevented(NcclComm c, void *stream, int *status) {
    const int kind = real.fault.kind;
    if (kind < LOST || !has_members(c)) return false;
    pthread_mutex_lock(&members.lock);
    Member *m = member_of(c);
    const bool hit = m->collectives++ == real.fault.a && (kind != LOST || m->rank == 0);
    m->failed |= hit && kind == ERROR;
    pthread_mutex_unlock(&members.lock);
    if (hit && kind != REFUSE) delay(stream, LONG_US);
    *status = kind == REFUSE ? INTERNAL_ERROR : NCCL_SUCCESS;
    return hit;
}

static bool has_failed(NcclComm c) {
    pthread_mutex_lock(&members.lock);
    const bool failed = member_of(c)->failed;
    pthread_mutex_unlock(&members.lock);
    return failed;
}

static void do_damage(const Damage *d) {
    const size_t lost = d->n < TAIL ? d->n : TAIL;
    const uintptr_t at = (uintptr_t)d->out;
    if (d->drops ? real.memset_bytes(at + (d->n - lost) * d->width, 0, lost * d->width, d->stream)
                 : real.memset_columns(at, sizeof(float), 0, 1, d->n, d->stream))
        abort_on("a fill of memory", "failed");
}

static void do_pending(void) {
    for (int i = 0; i < group.n; i++) do_damage(&group.pending[i]);
    group.n = 0;
}

/* n elements of the result. */
static void damage(NcclComm c, void *out, size_t n, int type, bool sums, void *stream) {
    const bool drops = real.fault.kind == DROP_TAIL,
               rounds = real.fault.kind == HALF_SUM && sums && type == NCCL_F32;
    if (!n || !(drops || rounds) || !has_members(c)) return;
    if (group.n == PENDING) abort_on("a group", "it has too many operations");
    group.pending[group.n++] = (Damage){drops, out, n, type_size(type), stream};
    if (!group.depth) do_pending();
}

/* ---- NCCL ---- */

int ncclGetVersion(int *version) {
    const int status = real.nccl.GetVersion(version);
    if (real.fault.kind == VERSION) *version = real.fault.a;
    return status;
}

int ncclGetUniqueId(NcclId *id) { return real.nccl.GetUniqueId(id); }

int ncclCommInitRank(NcclComm *c, int ranks, NcclId id, int rank) {
    const int status = real.nccl.CommInitRank(c, ranks, id, rank);
    if (status == NCCL_SUCCESS || status == NCCL_IN_PROGRESS) join(*c, id, rank);
    return status;
}

int ncclCommInitRankConfig(NcclComm *c, int ranks, NcclId id, int rank, NcclConfig *config) {
    const int status = real.nccl.CommInitRankConfig(c, ranks, id, rank, config);
    if (status == NCCL_SUCCESS || status == NCCL_IN_PROGRESS) join(*c, id, rank);
    return status;
}

int ncclCommDestroy(NcclComm c) {
    leave(c);
    return real.nccl.CommDestroy(c);
}

int ncclCommGetAsyncError(NcclComm c, int *error) {
    const int status = real.nccl.CommGetAsyncError(c, error);
    if (has_failed(c)) *error = REMOTE_ERROR;
    return status;
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, NcclComm c, void *stream) {
    int status;
    if (prevented(c, stream, &status)) return status;
    status = real.nccl.AllReduce(in, out, n, type, op, c, stream);
    damage(c, out, n, type, true, stream);
    return status;
}

int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, NcclComm c, void *stream) {
    int status;
    if (prevented(c, stream, &status)) return status;
    return real.nccl.Broadcast(in, out, n, type, root, c, stream);
}

int ncclAllGather(const void *in, void *out, size_t n, int type, NcclComm c, void *stream) {
    int members = 0, status;
    if (prevented(c, stream, &status)) return status;
    status = real.nccl.AllGather(in, out, n, type, c, stream);
    if (real.members(c, &members) == NCCL_SUCCESS) damage(c, out, n * (size_t)members, type, false, stream);
    return status;
}

int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, NcclComm c, void *stream) {
    int status;
    if (prevented(c, stream, &status)) return status;
    status = real.nccl.ReduceScatter(in, out, n, type, op, c, stream);
    damage(c, out, n, type, true, stream);
    return status;
}

int ncclSend(const void *in, size_t n, int type, int peer, NcclComm c, void *stream) {
    if (real.fault.kind == LINK && is_on(c, -1, real.fault.a) && is_on(c, peer, real.fault.b))
        delay(stream, (double)n * (double)type_size(type) / LINK_BYTES_PER_US);
    return real.nccl.Send(in, n, type, peer, c, stream);
}

int ncclRecv(void *out, size_t n, int type, int peer, NcclComm c, void *stream) {
    return real.nccl.Recv(out, n, type, peer, c, stream);
}

int ncclGroupStart(void) {
    group.depth++;
    return real.nccl.GroupStart();
}

int ncclGroupEnd(void) {
    const int status = real.nccl.GroupEnd();
    if (--group.depth == 0) do_pending();
    return status;
}

int ncclCommWindowRegister(NcclComm c, void *at, size_t bytes, NcclWindow *window, int flags) {
    return real.nccl.CommWindowRegister(c, at, bytes, window, flags);
}

int ncclCommWindowDeregister(NcclComm c, NcclWindow window) {
    return real.nccl.CommWindowDeregister(c, window);
}

const char *ncclGetErrorString(int error) { return real.nccl.GetErrorString(error); }

const char *ncclGetLastError(NcclComm c) { return real.nccl.GetLastError(c); }
