/* A library with NCCL's functions that moves host memory between the threads of one process. With this
 * library, a machine without GPUs runs Isotron's NCCL code: layouts, the order of operations, and faults. A
 * `stream` is a HostStream.
 *
 * Every operation runs in the thread of its stream, and waits there until all of its members have arrived. The
 * operations of a group on one stream form one task. The task first joins all of its meetings, then moves its shares,
 * and then waits for the other members' shares. No step waits for a later one, so the order inside a group does not
 * matter. As in NCCL, a collective without elements does nothing.
 *
 * As in NCCL, members connect when they first use a communicator. The call that starts the first collective returns
 * when all members have started it. The first call that sends to a member or receives from it returns when both sides
 * have made their call. All operations of a group connect together.
 *
 * It is an error if members disagree on the kind, type, count, root or place in a window of an operation.
 * ncclCommGetAsyncError returns this error, and ncclGetLastError describes it. Operations that still lack members then
 * never end.
 *
 * Environment variables, which are read when the first member of a communicator joins (the version: when it is
 * requested):
 *   HOST_NCCL_VERSION=N        the reported version (22703 is 2.27.3); default: 22809
 *   HOST_NCCL_DELAY_US=N       operations wait N microseconds before they read their inputs. Outputs that do
 *                              not overlap the input are filled with 0xFF bytes when the operation is added to
 *                              its stream, so earlier operations must be done with these buffers.
 *   HOST_NCCL_FAULT=drop_tail  all-reduce, reduce-scatter and all-gather do not write the last 8 elements
 *                   half_sum   sums of F32 and F64 are rounded to BF16
 *                   lost:N     member 0 never joins operation N
 *                   slow:N:MS  member N sleeps MS milliseconds in every operation
 *                   error:N    operation N of any member is an asynchronous error, and never ends
 *                   refuse:N   the call of operation N of any member returns an error
 *                   window     no member can register a window
 *                   link:A:B:N messages from rank A to rank B take N times their time
 *                   rank:A:MS  rank A sleeps MS milliseconds in every operation
 *                   reverse    sums are computed from the last member to the first
 *   HOST_NCCL_LOG=FILE         each communicator appends the library's file name and the process to FILE
 *   HOST_NCCL_FAULT_IN=TEXT    the fault applies only to a library whose file name contains TEXT
 *   HOST_NCCL_FAULT_PROTO=TEXT the fault applies only to a process in which NCCL_PROTO is TEXT
 * Faults apply only to communicators of more than one member. Operations are counted from 0. Member numbers are those of
 * the communicator. Rank numbers are those of the first of the largest communicators that the thread has joined. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl/host_nccl.h"

extern const char nccl_host_memory;
const char nccl_host_memory = 1;
extern HostNcclJoined host_nccl_joined;
HostNcclJoined host_nccl_joined; /* guarded by `registry` */

enum {
    VERSION = 22809,
    SYSTEM_ERROR = 2,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6,
    TEXT = 256
};

typedef struct Fault {
    enum { NO_FAULT, DROP_TAIL, HALF_SUM, LOST, SLOW, ERROR, REFUSE, LINK, RANK, REVERSE, WINDOW } kind;
    int number, ms, receiver, times;
} Fault;

/* The part of a communicator that its members share. */
typedef struct World {
    NcclId id;
    int members, joined, destroyed; /* `registry` guards these and `next` */
    NcclComm *comm;                 /* [members]; NULL if the member has not joined */
    struct World *next;
    unsigned delay_us;
    Fault fault;
    pthread_mutex_t lock; /* guards the following fields, the meetings and `pending` */
    pthread_cond_t changed;
    Meeting *open;         /* meetings that wait for members */
    int begun;             /* members that have called a collective */
    int64_t window_number; /* number of the current or last registration of a window */
    int registering;       /* members that have entered this registration */
    size_t window_bytes;
    /* [members, members, 2]: whether the sender and the receiver of a pair have called a message */
    bool *asked;
    int error; /* NCCL_SUCCESS: none */
    char why[TEXT];
} World;

/* A member's part of a window, which all members register together. */
struct NcclWindowState {
    const char *memory;
    size_t bytes;
    int64_t number; /* equal for the windows of all members that were registered together */
    NcclWindow next;
};

struct ncclComm {
    World *world;
    NcclWindow windows;
    int64_t n_windows; /* registered so far */
    bool copies;       /* operations between windows need no thread blocks */
    int rank, global;  /* global: its rank in the largest communicator that its thread has joined */
    int64_t collectives, operations, *sent, *received; /* counts; [members] */
    int pending;                                       /* operations that are not done */
    bool has_begun;                                    /* has called a collective */
    NcclComm next; /* the next communicator of the group in which this one was created */
};

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t joined = PTHREAD_COND_INITIALIZER;
static World *worlds;
static uint64_t ids;

static _Thread_local struct {
    int depth, error;
    Op *ops, **last;
    NcclComm joining;
} group;
static _Thread_local char last_error[TEXT];
static _Thread_local struct { int members, rank; } largest; /* communicator that this thread has joined */

static const char *const KIND_NAME[] = {"all-reduce", "reduce-scatter", "all-gather",
                                        "broadcast",  "send",           "receive"};

static void *zeroed(size_t n, size_t size) {
    void *p = calloc(n, size);
    if (!p) abort();
    return p;
}

/* Keeps the error for ncclGetLastError and for the end of the group. */
static int refuse(int error, const char *why) {
    snprintf(last_error, sizeof last_error, "%s", why);
    if (group.depth) group.error = error;
    return error;
}

static void free_ops(Op *op) {
    for (Op *next; op; op = next) {
        next = op->next;
        free(op);
    }
}

/* Never returns; the process may end while a thread is here. */
static _Noreturn void hang(void) {
    for (;;) pause();
}

/* ---- faults ---- */

static _Noreturn void abort_on(const char *variable, const char *value) {
    fprintf(stderr, "host_nccl: %s=%s is unknown; tests/nccl/host_nccl.c has the list\n", variable, value);
    abort();
}

static void log_communicator(void) {
    const char *name = getenv("HOST_NCCL_LOG");
    Dl_info self;
    FILE *f = name ? fopen(name, "a") : NULL;
    if (!f) return;
    if (dladdr(&nccl_host_memory, &self)) fprintf(f, "%s\t%d\n", self.dli_fname, (int)getpid());
    fclose(f);
}

/* Whether faults apply to this library and this protocol. */
static bool is_meant(void) {
    const char *in = getenv("HOST_NCCL_FAULT_IN"), *proto = getenv("HOST_NCCL_FAULT_PROTO"),
               *now = getenv("NCCL_PROTO");
    Dl_info self;
    if (in && dladdr(&nccl_host_memory, &self) && !strstr(self.dli_fname, in)) return false;
    return !proto || (now && !strcmp(proto, now));
}

static Fault planted_fault(void) {
    const char *text = getenv("HOST_NCCL_FAULT");
    Fault f = {.kind = NO_FAULT};
    int end = -1;
    if (!text || !is_meant())
        return f;
    else if (!strcmp(text, "drop_tail"))
        f.kind = DROP_TAIL;
    else if (!strcmp(text, "half_sum"))
        f.kind = HALF_SUM;
    else if (!strcmp(text, "reverse"))
        f.kind = REVERSE;
    else if (!strcmp(text, "window"))
        f.kind = WINDOW;
    else if (sscanf(text, "link:%d:%d:%d%n", &f.number, &f.receiver, &f.times, &end) == 3 && !text[end])
        f.kind = LINK;
    else if (sscanf(text, "rank:%d:%d%n", &f.number, &f.ms, &end) == 2 && !text[end])
        f.kind = RANK;
    else if (sscanf(text, "lost:%d%n", &f.number, &end) == 1 && !text[end])
        f.kind = LOST;
    else if (sscanf(text, "slow:%d:%d%n", &f.number, &f.ms, &end) == 2 && !text[end])
        f.kind = SLOW;
    else if (sscanf(text, "error:%d%n", &f.number, &end) == 1 && !text[end])
        f.kind = ERROR;
    else if (sscanf(text, "refuse:%d%n", &f.number, &end) == 1 && !text[end])
        f.kind = REFUSE;
    else
        abort_on("HOST_NCCL_FAULT", text);
    return f;
}

static unsigned planted_delay(void) {
    const char *text = getenv("HOST_NCCL_DELAY_US");
    unsigned us = 0;
    int end = -1;
    if (text && (sscanf(text, "%u%n", &us, &end) != 1 || text[end])) abort_on("HOST_NCCL_DELAY_US", text);
    return us;
}

/* Records the error, unless the communicator already has one, and releases the lock. */
__attribute__((format(printf, 3, 4))) static _Noreturn void fail(World *w, int error, const char *why, ...) {
    if (w->error == NCCL_SUCCESS) {
        va_list args;
        va_start(args, why);
        vsnprintf(w->why, sizeof w->why, why, args);
        va_end(args);
        w->error = error;
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    hang();
}

static void suffer(const Op *op) {
    World *w = op->comm->world;
    const int rank = op->comm->rank;
    if (w->fault.kind == SLOW && w->fault.number == rank) usleep((useconds_t)w->fault.ms * 1000);
    if (w->fault.kind == RANK && w->fault.number == op->comm->global) usleep((useconds_t)w->fault.ms * 1000);
    if (w->fault.kind == LOST && rank == 0 && w->fault.number == op->number) hang();
    if (w->fault.kind == ERROR && w->fault.number == op->number) {
        pthread_mutex_lock(&w->lock);
        fail(w, REMOTE_ERROR, "planted fault in operation %d of member %d", w->fault.number, rank);
    }
}

/* ---- meetings ---- */

static Meeting *meeting_of(World *w, const Op *op) {
    Meeting *m = w->open;
    while (m && (m->first.src != op->src || m->first.dst != op->dst || m->first.seq != op->seq)) m = m->next;
    if (m) return m;
    m = zeroed(1, sizeof *m);
    *m = (Meeting){.first = *op, .members = op->src < 0 ? w->members : 2, .next = w->open};
    m->op = zeroed((size_t)m->members, sizeof(Op *));
    m->drop_tail = w->fault.kind == DROP_TAIL && op->kind < BROADCAST;
    m->half_sum = w->fault.kind == HALF_SUM;
    m->reverse = w->fault.kind == REVERSE;
    pthread_cond_init(&m->changed, NULL);
    return w->open = m;
}

static void check_alike(World *w, const Op *a, const Op *b) {
    const bool kind = a->kind == b->kind || a->src >= 0;
    const char *what = !kind                                        ? "kind"
                       : a->type != b->type                         ? "type"
                       : a->n != b->n                               ? "count"
                       : a->kind == BROADCAST && a->peer != b->peer ? "root"
                       : a->src < 0 && a->place != b->place         ? "place in a window"
                                                                    : NULL;
    if (what)
        fail(w, INVALID_USAGE,
             "the %s differs: member %d starts %s of %zu, type %d, peer %d; member %d starts %s of %zu, "
             "type %d, peer %d",
             what, b->comm->rank, KIND_NAME[b->kind], b->n, b->type, b->peer, a->comm->rank,
             KIND_NAME[a->kind], a->n, a->type, a->peer);
}

static void come(Op *op) {
    World *w = op->comm->world;
    suffer(op);
    pthread_mutex_lock(&w->lock);
    if (w->error) fail(w, w->error, "%s", w->why);
    Meeting *m = op->meeting = meeting_of(w, op);
    check_alike(w, &m->first, op);
    m->op[op->slot] = op;
    if (++m->arrived == m->members) {
        Meeting **at = &w->open;
        while (*at != m) at = &(*at)->next;
        *at = m->next;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&w->lock);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Moves a share. On a slow link, it then sleeps until a multiple of the time taken has passed. */
static void move_at_speed(const World *w, const Meeting *m, int slot) {
    const int64_t start = now_ns();
    move_share(m, slot);
    if (w->fault.kind == LINK && slot == 1 && m->first.src >= 0 &&
        m->op[0]->comm->global == w->fault.number && m->op[1]->comm->global == w->fault.receiver)
        for (const int64_t end = start + w->fault.times * (now_ns() - start); now_ns() < end;) usleep(1);
}

static void move(Op *op) {
    World *w = op->comm->world;
    Meeting *m = op->meeting;
    pthread_mutex_lock(&w->lock);
    while (m->arrived < m->members) pthread_cond_wait(&m->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    move_at_speed(w, m, op->slot);
    pthread_mutex_lock(&w->lock);
    if (++m->moved == m->members) pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&w->lock);
}

static void leave(Op *op) {
    World *w = op->comm->world;
    Meeting *m = op->meeting;
    pthread_mutex_lock(&w->lock);
    while (m->moved < m->members) pthread_cond_wait(&m->changed, &w->lock);
    const bool last = ++m->left == m->members;
    if (--op->comm->pending == 0) pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (!last) return;
    pthread_cond_destroy(&m->changed);
    free(m->op);
    free(m);
}

/* The task of a stream. */
static void run(void *arg) {
    Op *ops = arg;
    const unsigned delay_us = ops->comm->world->delay_us;
    if (delay_us) usleep(delay_us);
    for (Op *op = ops; op; op = op->next) come(op);
    for (Op *op = ops; op; op = op->next) move(op);
    for (Op *op = ops; op; op = op->next) leave(op);
    free_ops(ops);
}

/* ---- groups ---- */

static void poison(const Op *op) {
    const int members = op->comm->world->members;
    const size_t size = type_size(op->type), n = out_count(op, members) * size;
    const uintptr_t in = (uintptr_t)op->in, out = (uintptr_t)op->out;
    const bool overlaps = in && in < out + n && out < in + in_count(op, members) * size;
    if (op->comm->world->delay_us && n && !overlaps) memset(op->out, 0xff, n);
}

static void number(Op *op) {
    NcclComm c = op->comm;
    op->number = c->operations++;
    op->seq = op->src < 0        ? c->collectives++
              : op->kind == SEND ? c->sent[op->peer]++
                                 : c->received[op->peer]++;
    pthread_mutex_lock(&c->world->lock);
    c->pending++;
    pthread_mutex_unlock(&c->world->lock);
}

static bool *asked(const Op *op) {
    const World *w = op->comm->world;
    return &w->asked[2 * (op->src * w->members + op->dst)];
}

static void ask(const Op *op) {
    World *w = op->comm->world;
    pthread_mutex_lock(&w->lock);
    if (op->src >= 0) {
        asked(op)[op->slot] = true;
    } else if (!op->comm->has_begun) {
        op->comm->has_begun = true;
        w->begun++;
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void wait_for_answer(const Op *op) {
    World *w = op->comm->world;
    pthread_mutex_lock(&w->lock);
    while (op->src >= 0 ? !asked(op)[!op->slot] : w->begun < w->members)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* Adds one task to each stream of the group. */
static void launch(Op *ops) {
    for (Op *op = ops; op; op = op->next) ask(op);
    for (Op *op = ops; op; op = op->next) wait_for_answer(op);
    for (Op *op = ops; op; op = op->next) {
        poison(op);
        number(op);
    }
    while (ops) {
        HostStream *stream = ops->stream;
        Op *list[2], **end[2] = {&list[0], &list[1]}; /* ops of this stream, ops of other streams */
        for (Op *op = ops; op; op = op->next) {
            const bool other = op->stream != stream;
            *end[other] = op;
            end[other] = &op->next;
        }
        *end[0] = *end[1] = NULL;
        stream->add(stream, run, list[0]);
        ops = list[1];
    }
}

int ncclGroupStart(void) {
    if (group.depth++ == 0) {
        group.error = NCCL_SUCCESS;
        group.joining = NULL;
        group.ops = NULL;
        group.last = &group.ops;
    }
    return NCCL_SUCCESS;
}

int ncclGroupEnd(void) {
    if (group.depth == 0) return refuse(INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth) return NCCL_SUCCESS;
    pthread_mutex_lock(&registry);
    for (NcclComm c = group.joining; c; c = c->next)
        while (!group.error && c->world->joined < c->world->members) pthread_cond_wait(&joined, &registry);
    pthread_mutex_unlock(&registry);
    if (group.error)
        free_ops(group.ops);
    else
        launch(group.ops);
    return group.error;
}

/* The number of the window that contains p, combined with the offset in it, or -1 if no window contains p. */
static int64_t place_of(const struct ncclComm *c, const void *p) {
    enum { LARGEST = 40 }; /* bits of an offset */
    for (NcclWindow w = c->windows; w; w = w->next)
        if ((const char *)p >= w->memory && (const char *)p < w->memory + w->bytes)
            return w->number << LARGEST | ((const char *)p - w->memory);
    return -1;
}

static void find_place(Op *op) {
    const NcclComm c = op->comm;
    const int64_t in = place_of(c, op->in), out = place_of(c, op->out);
    op->place = op->kind == REDUCE_SCATTER ? in : out;
    if (op->kind != ALL_GATHER || in < 0 || out < 0 || !c->copies) return;
    pthread_mutex_lock(&registry);
    host_nccl_joined.on_copy_engines++;
    pthread_mutex_unlock(&registry);
}

/* Maxima and minima of floats are not supported, because NCCL ignores NaN in them, so no code should use them. */
static bool is_integer_extreme(const Op *op) {
    return (op->reduction == NCCL_MAX || op->reduction == NCCL_MIN) &&
           (op->type == NCCL_I64 || op->type == NCCL_I32 || op->type == NCCL_U8);
}

/* The reason why the operation is not valid, or NULL if it is valid. */
static const char *bad_argument(const Op *op) {
    if (!op->comm) return "the communicator is NULL";
    if (!op->stream) return "the stream is NULL";
    const World *w = op->comm->world;
    const bool reads = op->kind == BROADCAST ? op->peer == op->comm->rank : op->kind != RECV;
    if (!type_size(op->type)) return "the type is unknown";
    if (op->reduction != NCCL_SUM && !is_integer_extreme(op)) return "no such reduction of this type";
    if (op->peer < 0 || op->peer >= w->members) return "the peer or root is not a member";
    if (op->n && reads && !op->in) return "the send buffer is NULL";
    if (op->n && op->kind != SEND && !op->out) return "the receive buffer is NULL";
    return NULL;
}

static int submit(Op op, void *stream) {
    op.stream = stream;
    ncclGroupStart();
    const char *bad = bad_argument(&op);
    const bool collective = op.kind < SEND;
    int error = bad ? refuse(INVALID_ARGUMENT, bad) : NCCL_SUCCESS;
    const Fault *f = bad ? NULL : &op.comm->world->fault;
    if (f && f->kind == REFUSE && f->number == op.comm->operations)
        error = refuse(SYSTEM_ERROR, "planted fault");
    if (!error && (op.n || !collective)) {
        const int rank = op.comm->rank;
        if (op.kind == BROADCAST && rank != op.peer) op.in = NULL;
        op.src = collective ? -1 : op.kind == SEND ? rank : op.peer;
        op.dst = collective ? -1 : op.kind == SEND ? op.peer : rank;
        op.slot = collective ? rank : op.kind == RECV;
        find_place(&op);
        *group.last = zeroed(1, sizeof op);
        **group.last = op;
        group.last = &(*group.last)->next;
    }
    const int end = ncclGroupEnd();
    return error ? error : end;
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, NcclComm comm, void *stream) {
    return submit((Op){ALL_REDUCE, in, out, n, type, .reduction = op, .comm = comm}, stream);
}

int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, NcclComm comm, void *stream) {
    return submit((Op){REDUCE_SCATTER, in, out, n, type, .reduction = op, .comm = comm}, stream);
}

int ncclAllGather(const void *in, void *out, size_t n, int type, NcclComm comm, void *stream) {
    return submit((Op){ALL_GATHER, in, out, n, type, .comm = comm}, stream);
}

int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, NcclComm comm, void *stream) {
    return submit((Op){BROADCAST, in, out, n, type, .peer = root, .comm = comm}, stream);
}

int ncclSend(const void *in, size_t n, int type, int peer, NcclComm comm, void *stream) {
    return submit((Op){SEND, in, NULL, n, type, .peer = peer, .comm = comm}, stream);
}

int ncclRecv(void *out, size_t n, int type, int peer, NcclComm comm, void *stream) {
    return submit((Op){RECV, NULL, out, n, type, .peer = peer, .comm = comm}, stream);
}

/* ---- communicators ---- */

static World *world_new(const NcclId *id, int members) {
    World *w = zeroed(1, sizeof *w);
    *w = (World){.id = *id, .members = members, .delay_us = planted_delay(), .next = worlds};
    log_communicator();
    const Fault fault = planted_fault();
    if (members > 1) w->fault = fault;
    w->comm = zeroed((size_t)members, sizeof(NcclComm));
    w->asked = zeroed(2 * (size_t)members * (size_t)members, sizeof(bool));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    return worlds = w;
}

static NcclComm comm_new(World *w, int rank) {
    NcclComm c = zeroed(1, sizeof *c);
    if (w->members > largest.members) largest.members = w->members, largest.rank = rank;
    *c = (struct ncclComm){.world = w, .rank = rank, .global = largest.rank, .next = group.joining};
    c->sent = zeroed(2 * (size_t)w->members, sizeof(int64_t));
    c->received = c->sent + w->members;
    return c;
}

static void count_joined(int most_blocks) {
    HostNcclJoined *to = &host_nccl_joined;
    if (most_blocks == NCCL_UNDEFINED)
        to->unlimited++;
    else
        to->limited++, to->most_blocks = most_blocks;
}

int ncclGetVersion(int *version) {
    const char *text = getenv("HOST_NCCL_VERSION");
    *version = text ? (int)strtol(text, NULL, 10) : VERSION;
    return NCCL_SUCCESS;
}

int ncclGetUniqueId(NcclId *id) {
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&registry);
    snprintf(id->bytes, sizeof id->bytes, "host_nccl %llu", (unsigned long long)ids++);
    pthread_mutex_unlock(&registry);
    return NCCL_SUCCESS;
}

static int join(NcclComm *comm, int members, NcclId id, int rank, int most_blocks, bool copies) {
    if (!comm || rank < 0 || rank >= members)
        return refuse(INVALID_ARGUMENT, "the rank is not below the number of ranks, or the pointer is NULL");
    ncclGroupStart();
    pthread_mutex_lock(&registry);
    World *w = worlds;
    while (w && memcmp(&w->id, &id, sizeof id)) w = w->next;
    if (!w) w = world_new(&id, members);
    int error = NCCL_SUCCESS;
    if (w->members != members || w->comm[rank])
        error = refuse(INVALID_ARGUMENT, "this id has another number of ranks, or the rank has joined");
    else {
        *comm = group.joining = w->comm[rank] = comm_new(w, rank);
        (*comm)->copies = copies;
        w->joined++;
        count_joined(most_blocks);
        pthread_cond_broadcast(&joined);
    }
    pthread_mutex_unlock(&registry);
    const int end = ncclGroupEnd();
    return error ? error : end;
}

int ncclCommInitRank(NcclComm *comm, int members, NcclId id, int rank) {
    return join(comm, members, id, rank, NCCL_UNDEFINED, false);
}

/* As in NCCL, the first bytes of the caller's structure overwrite the defaults. */
int ncclCommInitRankConfig(NcclComm *comm, int members, NcclId id, int rank, NcclConfig *given) {
    enum { FIRST_VERSION = 21700, POLICY_VERSION = 22700 };
    NcclConfig c = {.least_blocks = NCCL_UNDEFINED, .most_blocks = NCCL_UNDEFINED, .policy = NCCL_UNDEFINED};
    if (!given) return refuse(INVALID_ARGUMENT, "the configuration is NULL");
    memcpy(&c, given, given->size < sizeof c ? given->size : sizeof c);
    if (c.magic != NCCL_MAGIC) return refuse(INVALID_ARGUMENT, "the configuration is not initialized");
    if (c.version < FIRST_VERSION) c.least_blocks = c.most_blocks = NCCL_UNDEFINED;
    if ((c.least_blocks != NCCL_UNDEFINED && c.least_blocks <= 0) ||
        (c.most_blocks != NCCL_UNDEFINED && c.most_blocks <= 0) || c.least_blocks > c.most_blocks)
        return refuse(INVALID_ARGUMENT, "the limits on thread blocks contradict each other");
    return join(comm, members, id, rank, c.most_blocks,
                c.version >= POLICY_VERSION && c.policy == NCCL_COPY_ENGINES);
}

/* Returns when all members have called it. */
int ncclCommWindowRegister(NcclComm c, void *memory, size_t bytes, NcclWindow *window, int flags) {
    if (!c || !memory || !window || flags != NCCL_SYMMETRIC)
        return refuse(INVALID_ARGUMENT, "the memory is NULL, or the window is not symmetric");
    World *w = c->world;
    if (w->fault.kind == WINDOW) return refuse(SYSTEM_ERROR, "planted fault in a window");
    pthread_mutex_lock(&w->lock);
    const int64_t number = ++c->n_windows;
    if (w->window_number < number) w->window_number = number, w->registering = 0, w->window_bytes = bytes;
    w->registering++;
    const bool alike = w->window_bytes == bytes;
    pthread_cond_broadcast(&w->changed);
    while (w->registering < w->members && w->window_number == number)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    if (!alike) return refuse(INVALID_ARGUMENT, "the members' windows have different sizes");
    *window = zeroed(1, sizeof **window);
    **window = (struct NcclWindowState){memory, bytes, number, c->windows};
    c->windows = *window;
    pthread_mutex_lock(&registry);
    host_nccl_joined.windows++;
    pthread_mutex_unlock(&registry);
    return NCCL_SUCCESS;
}

int ncclCommWindowDeregister(NcclComm c, NcclWindow window) {
    for (NcclWindow *at = &c->windows; *at; at = &(*at)->next)
        if (*at == window) {
            *at = window->next;
            free(window);
            return NCCL_SUCCESS;
        }
    return refuse(INVALID_ARGUMENT, "the communicator has no such window");
}

/* Waits for the operations of this member. After an error they never end, so the memory is not freed. */
int ncclCommDestroy(NcclComm c) {
    if (!c) return NCCL_SUCCESS;
    World *w = c->world;
    pthread_mutex_lock(&w->lock);
    while (c->pending && !w->error) pthread_cond_wait(&w->changed, &w->lock);
    const bool failed = w->error;
    pthread_mutex_unlock(&w->lock);
    if (failed) return NCCL_SUCCESS;
    pthread_mutex_lock(&registry);
    const bool last = ++w->destroyed == w->members;
    World **at = &worlds;
    while (last && *at != w) at = &(*at)->next;
    if (last) *at = w->next;
    pthread_mutex_unlock(&registry);
    free(c->sent);
    free(c);
    if (!last) return NCCL_SUCCESS;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w->comm);
    free(w->asked);
    free(w);
    return NCCL_SUCCESS;
}

int ncclCommGetAsyncError(NcclComm c, int *error) {
    if (!c || !error) return refuse(INVALID_ARGUMENT, "the communicator or the pointer is NULL");
    pthread_mutex_lock(&c->world->lock);
    *error = c->world->error;
    pthread_mutex_unlock(&c->world->lock);
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int error) {
    static const char *const TEXTS[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return error >= 0 && error < 8 ? TEXTS[error] : "unknown result code";
}

/* The communicator's error, or else that of this thread's last call that returned one. */
const char *ncclGetLastError(NcclComm c) {
    int error = NCCL_SUCCESS;
    if (c) ncclCommGetAsyncError(c, &error);
    return error ? c->world->why : last_error;
}
