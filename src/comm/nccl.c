/* NCCL as the transport of device memory. Each channel has its own communicator and stream, so that operations
 * of different channels overlap. An operation runs after earlier calls on the device, and later calls wait for
 * its event. The host does not block.
 *
 * NCCL does not detect a missing member. On each rank, a watchdog thread polls the operations in flight. It warns if
 * one is late, and ends the world if one misses the deadline or if NCCL reports an error. Events of a CUDA graph
 * cannot be queried, so the launch of a graph is watched instead of its operations. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "comm/agree.h"
#include "comm/nccl_library.h"
#include "comm/transport.h"

enum { POLL_NS = 50000000, MOST_PAIRS = 4 }; /* links of a rank with its two neighbours in a ring */

/* An operation in flight. */
typedef struct Flight {
    DeviceEvent *done;
    int64_t record, seq, start_ns;
    CommFacts facts;
    bool watched; /* in its link's list */
    bool waited;  /* nothing else refers to it */
    bool warned;  /* that it is late */
    struct Flight *next;
} Flight;

/* The state of a channel. Launches of graphs have a channel without a communicator. */
typedef struct Link {
    CommChannel *channel;
    NcclComm nccl; /* NULL: none */
    DeviceStream *stream;
    Flight *first, **last; /* oldest first */
    int64_t swept_ns;      /* when the one before `first` ended */
    uint64_t places;       /* hash of operations' offsets in windows since the last comparison; 0: none */
    struct Link *next;
} Link;

/* Memory that is registered with a communicator. */
typedef struct Window {
    const char *memory;
    size_t bytes;
    Group group;
    Link *of;
    NcclWindow window;
    struct Window *next;
} Window;

typedef struct State {
    Nccl nccl;
    Comm *comm;
    Device *device;
    int most_blocks;      /* of a kernel; 0: NCCL chooses */
    bool registers;       /* windows */
    Link *links, *graphs; /* graphs: one of the links, or NULL */
    Window *windows;
    Flight *spare;
    Flight *calling; /* in a call of NCCL, which may wait for other members; NULL: none */
    CommKey calling_key;
    int64_t calling_ns; /* since when; INT64_MAX: in an operation of the host transport, which warns itself */
    char *greeting;     /* device memory [MOST_PAIRS] that neighbours send when they connect */
    pthread_mutex_t lock; /* of the lists, which the watchdog reads */
    pthread_cond_t closing;
    bool closed;
    FaultScope scope; /* of the watchdog: a fault there names the rank */
    pthread_t watchdog;
} State;

/* ---- errors ---- */

static _Noreturn void end_world(const State *s, const CommKey *key, const Flight *f, const char *why) {
    s->comm->host->end(s->comm, key, f->seq, &f->facts, why);
    abort();
}

static void check(const State *s, NcclComm comm, int result, const char *call) {
    char why[400];
    if (result == NCCL_SUCCESS) return;
    snprintf(why, sizeof why, "%s fails on rank %d: %s; %s", call, s->comm->rank,
             s->nccl.GetErrorString(result), s->nccl.GetLastError(comm));
    CHECK(s->calling, "%s", why);
    end_world(s, &s->calling_key, s->calling, why);
}

#define NCCL(s, comm, function, ...) check(s, comm, (s)->nccl.function(__VA_ARGS__), "nccl" #function)

/* ---- watchdog ---- */

/* Removes finished operations from the list. After comm_wait they become spare. */
static void sweep(State *s, Link *l) {
    for (Flight *f; (f = l->first) && device_event_happened(s->device, f->done);) {
        comm_record_done(&s->comm->recorder, f->record);
        l->first = f->next;
        if (!l->first) l->last = &l->first;
        l->swept_ns = clock_ns();
        f->watched = false;
        if (f->waited) f->next = s->spare, s->spare = f;
    }
}

static bool is_late(const State *s, const Flight *f) {
    return f && clock_ns() - f->start_ns >= (int64_t)(s->comm->deadline_s * 1e9);
}

/* Ends the world if the operation has missed the deadline. */
static void check_late(const State *s, const CommKey *key, const Flight *f, const char *what) {
    char why[400];
    if (!is_late(s, f)) return;
    snprintf(why, sizeof why, "rank %d has waited %g s for %s of NCCL", s->comm->rank, s->comm->deadline_s,
             what);
    end_world(s, key, f, why);
}

/* Names the late members of an operation once, a tenth of the deadline after it became the oldest of its channel. */
static void check_slow(const State *s, const CommKey *key, Flight *f, int64_t since_ns) {
    if (!f || f->warned || clock_ns() - since_ns < comm_warning_ns(s->comm)) return;
    f->warned = true;
    s->comm->host->warn(s->comm, key, f->seq, &f->facts);
}

/* `busy`: the link whose operation is reported if the communicator of `l` has an error. */
static void check_async(const State *s, const Link *l, const Link *busy) {
    char why[400];
    int error = NCCL_SUCCESS;
    NCCL(s, l->nccl, CommGetAsyncError, l->nccl, &error);
    if (error == NCCL_SUCCESS || error == NCCL_IN_PROGRESS) return;
    snprintf(why, sizeof why, "NCCL reports on rank %d: %s; %s", s->comm->rank, s->nccl.GetErrorString(error),
             s->nccl.GetLastError(l->nccl));
    end_world(s, &busy->channel->key, busy->first, why);
}

static void look_at(State *s, Link *l) {
    sweep(s, l);
    const Link *busy = l->first ? l : s->graphs && s->graphs->first ? s->graphs : NULL;
    if (busy && l->nccl) check_async(s, l, busy);
    check_late(s, &l->channel->key, l->first, l->nccl ? "an operation" : "a CUDA graph with operations");
    if (l->first)
        check_slow(s, &l->channel->key, l->first,
                   l->swept_ns > l->first->start_ns ? l->swept_ns : l->first->start_ns);
}

static void *watchdog(void *arg) {
    State *s = arg;
    fault_scope(&s->scope);
    pthread_mutex_lock(&s->lock);
    while (!s->closed) {
        const int64_t ns = clock_ns() + POLL_NS;
        const struct timespec until = {ns / 1000000000, ns % 1000000000};
        if (pthread_cond_clockwait(&s->closing, &s->lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT) continue;
        check_late(s, &s->calling_key, s->calling, "the connection for an operation");
        check_slow(s, &s->calling_key, s->calling, s->calling_ns);
        for (Link *l = s->links; l; l = l->next) look_at(s, l);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- links ---- */

static Link *link_new(State *s, CommChannel *ch) {
    Link *l = mem_zero(1, sizeof *l);
    l->channel = ch;
    l->stream = device_stream_new(s->device);
    l->last = &l->first;
    ch->state = l;
    return l;
}

static void link_publish(State *s, Link *l) {
    pthread_mutex_lock(&s->lock);
    l->next = s->links;
    s->links = l;
    pthread_mutex_unlock(&s->lock);
}

static void set_calling_since(State *s, int64_t ns) {
    pthread_mutex_lock(&s->lock);
    s->calling_ns = ns;
    pthread_mutex_unlock(&s->lock);
}

/* Member 0 of the group creates `count` ids of communicators, and all members get them. */
static void draw_ids(State *s, Group g, NcclId *id, int count) {
    for (int i = 0; g.rank == 0 && i < count; i++) NCCL(s, NULL, GetUniqueId, &id[i]);
    set_calling_since(s, INT64_MAX);
    comm_run(s->comm, &(CommCall){.kind = COMM_BROADCAST,
                                  .dtype = U8,
                                  .group = g,
                                  .site = "nccl_id",
                                  .in = id,
                                  .out = id,
                                  .n = count * (int64_t)sizeof *id});
    set_calling_since(s, clock_ns());
}

/* Copy engines leave the multiprocessors to computation, but they are slower than NCCL's kernels, most of all in a CUDA
 * graph. The gathers of data parallelism overlap with whole layers, so they may be slower. The gathers of tensor parallelism may not. */
static bool uses_copy_engines(const State *s, const Group *g) {
    return s->registers && g->axes != 1u << AXIS_TP;
}

static void join(const State *s, NcclComm *comm, int members, NcclId id, int member, bool copy_engines) {
    NcclConfig config = nccl_config(s->most_blocks, copy_engines);
    if (s->most_blocks || copy_engines)
        NCCL(s, NULL, CommInitRankConfig, comm, members, id, member, &config);
    else
        NCCL(s, NULL, CommInitRank, comm, members, id, member);
}

static void open_group(State *s, CommChannel *ch, Group g) {
    NcclId id = {{0}};
    Link *l = link_new(s, ch);
    draw_ids(s, g, &id, 1);
    join(s, &l->nccl, g.size, id, g.rank, uses_copy_engines(s, &g));
    link_publish(s, l);
}

/* Number of ordered pairs of neighbours in a ring. */
static int pair_count(int size) { return size == 2 ? 2 : 2 * size; }

static CommKey pair_key(const CommKey *of, int pair) {
    const int size = of->group.size, a = pair / 2, b = (a + 1) % size;
    CommKey key = *of;
    key.src = pair % 2 ? b : a, key.dst = pair % 2 ? a : b;
    return key;
}

/* Sends an element through each link. The host waits in the first message of a communicator until the other
 * side has called too, so if two ranks first sent to each other, both would wait forever. In a group NCCL connects
 * all at once. */
static void connect(State *s, Link *const *link, int n) {
    NCCL(s, NULL, GroupStart);
    for (int i = 0; i < n; i++) {
        Link *l = link[i];
        void *stream = device_stream_handle(s->device, l->stream);
        device_stream_follow(s->device, l->stream);
        if (l->channel->member == 0)
            NCCL(s, l->nccl, Send, s->greeting + i, 1, NCCL_U8, 1, l->nccl, stream);
        else
            NCCL(s, l->nccl, Recv, s->greeting + i, 1, NCCL_U8, 0, l->nccl, stream);
    }
    NCCL(s, NULL, GroupEnd);
}

static bool is_in_pair(const CommKey *key, int r) { return key->src == r || key->dst == r; }

/* Opens the channels of all neighbours at the group's first message. Opening only one pair could deadlock: if
 * every rank first sends to the next one, each would wait for a rank that waits for another. */
static void open_pairs(State *s, const CommKey *of, Group g) {
    const int count = pair_count(g.size);
    NcclId *id = mem_zero((size_t)count, sizeof *id);
    Link **own = mem_zero((size_t)count, sizeof *own);
    int n = 0;
    draw_ids(s, g, id, count);
    NCCL(s, NULL, GroupStart);
    for (int i = 0; i < count; i++) {
        const CommKey key = pair_key(of, i);
        if (!is_in_pair(&key, g.rank)) continue;
        own[n] = link_new(s, comm_channel(s->comm, &key));
        join(s, &own[n++]->nccl, 2, id[i], key.dst == g.rank, false);
    }
    NCCL(s, NULL, GroupEnd);
    connect(s, own, n);
    for (int i = 0; i < n; i++) link_publish(s, own[i]);
    free(own);
    free(id);
}

static Link *link_of(State *s, const CommWork *w) {
    CommChannel *ch = w->channel;
    if (!ch->state && ch->key.src < 0) open_group(s, ch, w->call.group);
    if (!ch->state) open_pairs(s, &ch->key, w->call.group);
    CHECK(ch->state, "at '%s': members %d and %d of %d are not neighbours", w->call.site, ch->key.src,
          ch->key.dst, w->call.group.size);
    return ch->state;
}

/* ---- operations ---- */

static int type_of(DType t) {
    static const int TYPES[] = {
        [F64] = NCCL_F64, [F32] = NCCL_F32, [BF16] = NCCL_BF16, [F16] = NCCL_F16,  [I64] = NCCL_I64,
        [I32] = NCCL_I32, [U8] = NCCL_U8,   [F8E4M3] = NCCL_U8, [F8E5M2] = NCCL_U8};
    return TYPES[t];
}

static int reduction_of(CommReduction r) {
    static const int REDUCTIONS[] = {[COMM_SUM] = NCCL_SUM, [COMM_MAX] = NCCL_MAX, [COMM_MIN] = NCCL_MIN};
    return REDUCTIONS[r];
}

static void all_to_all(State *s, const Link *l, const CommWork *w) {
    const CommCall *c = &w->call;
    const size_t size = dtype_size(c->dtype);
    const int type = type_of(c->dtype);
    void *stream = device_stream_handle(s->device, l->stream);
    NCCL(s, l->nccl, GroupStart);
    for (int i = 0; i < c->group.size; i++) {
        const char *in = (const char *)c->in + (size_t)w->in_at[i] * size;
        char *out = (char *)c->out + (size_t)w->out_at[i] * size;
        if (c->in_counts[i]) NCCL(s, l->nccl, Send, in, (size_t)c->in_counts[i], type, i, l->nccl, stream);
        if (c->out_counts[i]) NCCL(s, l->nccl, Recv, out, (size_t)c->out_counts[i], type, i, l->nccl, stream);
    }
    NCCL(s, l->nccl, GroupEnd);
}

static void launch(State *s, const Link *l, const CommWork *w) {
    const CommCall *c = &w->call;
    const size_t n = (size_t)c->n;
    const int type = type_of(c->dtype);
    NcclComm comm = l->nccl;
    void *stream = device_stream_handle(s->device, l->stream);
    switch (c->kind) {
    case COMM_BROADCAST:
        NCCL(s, comm, Broadcast, c->out, c->out, n, type, c->peer, comm, stream);
        break;
    case COMM_ALL_REDUCE:
        NCCL(s, comm, AllReduce, c->in, c->out, n, type, reduction_of(c->reduction), comm, stream);
        break;
    case COMM_ALL_GATHER:
        NCCL(s, comm, AllGather, c->in, c->out, n, type, comm, stream);
        break;
    case COMM_REDUCE_SCATTER:
        NCCL(s, comm, ReduceScatter, c->in, c->out, n, type, reduction_of(c->reduction), comm, stream);
        break;
    case COMM_ALL_TO_ALL:
        all_to_all(s, l, w);
        break;
    case COMM_SEND: /* member 1 of a pair receives */
        NCCL(s, comm, Send, c->in, n, type, 1, comm, stream);
        break;
    case COMM_RECV:
        NCCL(s, comm, Recv, c->out, n, type, 0, comm, stream);
        break;
    default:
        CHECK(false, "kind %d", (int)c->kind);
    }
}

static Flight *flight_new(State *s, const CommWork *w) {
    pthread_mutex_lock(&s->lock);
    Flight *f = s->spare;
    if (f) s->spare = f->next;
    pthread_mutex_unlock(&s->lock);
    DeviceEvent *done = f ? f->done : device_event_new(s->device);
    if (!f) f = mem_alloc(sizeof *f);
    *f =
        (Flight){.done = done, .record = w->record, .seq = w->seq, .start_ns = clock_ns(), .facts = w->facts};
    return f;
}

static void fly(State *s, Link *l, Flight *f) {
    pthread_mutex_lock(&s->lock);
    f->watched = true;
    *l->last = f;
    l->last = &f->next;
    pthread_mutex_unlock(&s->lock);
}

static void set_calling(State *s, const CommKey *key, Flight *f) {
    pthread_mutex_lock(&s->lock);
    s->calling_key = *key, s->calling = f, s->calling_ns = clock_ns();
    pthread_mutex_unlock(&s->lock);
}

/* ---- places in windows ---- */

/* Whether all members of the group have this value; their least and largest one. */
static bool is_same_on_all(Comm *c, Group g, const char *site, int64_t value, int64_t range[2]) {
    int64_t most[] = {~value, value};
    comm_all_reduce(c, g, site, COMM_MAX, I64, most, 2);
    range[0] = ~most[0], range[1] = most[1];
    return range[0] == range[1];
}

/* The window of the link that holds an address, NULL if there is none. */
static const Window *window_of(const State *s, const Link *l, const void *p) {
    const Window *w = s->windows;
    while (w && (w->of != l || (const char *)p < w->memory || (const char *)p >= w->memory + w->bytes))
        w = w->next;
    return w;
}

static void note_place(const State *s, Link *l, const void *p) {
    const Window *w = window_of(s, l, p);
    if (w) l->places = (l->places ^ (uint64_t)((const char *)p - w->memory + 1)) * 0x100000001b3; /* FNV-1 */
}

/* Other members read the inputs of reductions, and write the outputs of all operations except reduce-scatter. */
static void note_places(const State *s, Link *l, const CommCall *c) {
    const bool reduces = c->kind == COMM_ALL_REDUCE || c->kind == COMM_REDUCE_SCATTER;
    if (reduces) note_place(s, l, c->in);
    if (c->kind != COMM_REDUCE_SCATTER) note_place(s, l, c->out);
}

static bool is_first_of_link(const State *s, const Window *w) {
    const Window *first = s->windows;
    while (first->of != w->of) first = first->next;
    return first == w;
}

static void nccl_compare(Comm *c) {
    State *s = c->device_state;
    for (const Window *w = s->windows; w; w = w->next) {
        if (!is_first_of_link(s, w) || !w->of->places) continue;
        int64_t range[2];
        CHECK(
            is_same_on_all(c, w->group, "places", (int64_t)w->of->places, range),
            "rank %d and other members of a group have used different offsets in memory that is registered "
            "with NCCL, so results are wrong: run without --use-nccl-ub, and report this as a bug of Isotron",
            c->rank);
        w->of->places = 0;
    }
}

/* ---- start and wait ---- */

static void nccl_start(Comm *c, CommWork *w) {
    State *s = c->device_state;
    Flight *f = flight_new(s, w);
    set_calling(s, &w->channel->key, f);
    Link *l = link_of(s, w);
    device_stream_follow(s->device, l->stream);
    const bool timed = c->profile && device_is_discrete(s->device) && !device_is_recording(s->device);
    const int64_t begin = timed ? device_span_begin(s->device, l->stream) : 0;
    if (s->windows) note_places(s, l, &w->call);
    if (w->call.n || w->call.kind == COMM_ALL_TO_ALL) launch(s, l, w);
    if (timed) device_span_end(s->device, l->stream, begin, &c->profile[w->call.group.axes].flight);
    device_stream_record(s->device, l->stream, f->done);
    w->state = f;
    set_calling(s, &w->channel->key, NULL);
    if (!device_is_recording(s->device)) fly(s, l, f);
}

static void nccl_wait(Comm *c, CommWork *w) {
    State *s = c->device_state;
    Flight *f = w->state;
    device_wait_event(s->device, f->done);
    pthread_mutex_lock(&s->lock);
    f->waited = true;
    if (f->watched && !device_is_recording(s->device)) {
        sweep(s, w->channel->state);
    } else if (!f->watched) {
        comm_record_done(&c->recorder, f->record);
        f->next = s->spare, s->spare = f;
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- windows ---- */

/* NCCL does not detect a missing member, or windows of different sizes. The host transport does the first, and
 * compares the largest and the smallest size. */
static void nccl_attach(Comm *c, const Group *g, void *memory, size_t bytes) {
    State *s = c->device_state;
    if (!s->registers) return;
    int64_t range[2];
    CHECK(is_same_on_all(c, *g, "register", (int64_t)bytes, range),
          "rank %d registers %zu bytes, and other members of the group from %lld to %lld", c->rank, bytes,
          (long long)range[0], (long long)range[1]);
    const CommKey key = comm_key(&(CommCall){.kind = COMM_ALL_GATHER, .group = *g}, true);
    CommChannel *ch = comm_channel(c, &key);
    CommWork work = {.facts = {.kind = COMM_BARRIER, .site = "register"}, .channel = ch, .seq = ch->next++};
    work.record = comm_record_start(&c->recorder, &work);
    Flight *f = flight_new(s, &work);
    set_calling(s, &key, f);
    if (!ch->state) open_group(s, ch, *g);
    Window *w = mem_zero(1, sizeof *w);
    *w = (Window){.memory = memory, .bytes = bytes, .group = *g, .of = ch->state, .next = s->windows};
    NCCL(s, w->of->nccl, CommWindowRegister, w->of->nccl, memory, bytes, &w->window, NCCL_SYMMETRIC);
    s->windows = w;
    set_calling(s, &key, NULL);
    comm_record_done(&c->recorder, work.record);
    pthread_mutex_lock(&s->lock);
    f->next = s->spare, s->spare = f;
    pthread_mutex_unlock(&s->lock);
}

static void nccl_detach(Comm *c, const void *memory) {
    State *s = c->device_state;
    for (Window **at = &s->windows, *w; (w = *at);) {
        if (w->memory != memory) {
            at = &w->next;
            continue;
        }
        NCCL(s, w->of->nccl, CommWindowDeregister, w->of->nccl, w->window);
        *at = w->next;
        free(w);
    }
}

/* ---- graphs ---- */

static void open_graphs(State *s) {
    Comm *c = s->comm;
    CommKey key = {.group = comm_everyone(c), .src = -1, .dst = -1, .device = 2};
    key.group.rank = 0;
    Link *l = link_new(s, comm_channel(c, &key));
    link_publish(s, l);
    pthread_mutex_lock(&s->lock);
    s->graphs = l;
    pthread_mutex_unlock(&s->lock);
}

static void nccl_launched(Comm *c, const char *site) {
    State *s = c->device_state;
    if (!s->graphs) open_graphs(s);
    Link *l = s->graphs;
    CommWork w = {.facts = {.kind = COMM_GRAPH}, .channel = l->channel, .seq = l->channel->next++};
    strncpy(w.facts.site, site, sizeof w.facts.site - 1);
    w.record = comm_record_start(&c->recorder, &w);
    Flight *f = flight_new(s, &w);
    f->waited = true;
    device_stream_follow(s->device, l->stream);
    device_stream_record(s->device, l->stream, f->done);
    fly(s, l, f);
    pthread_mutex_lock(&s->lock);
    sweep(s, l);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the transport ---- */

/* NCCL drops NaN in maxima and minima of floats, and it has neither barriers nor sums of FP8 values. */
static bool has_operation(const CommCall *call) {
    if (call->kind == COMM_BARRIER) return false;
    if (call->kind != COMM_ALL_REDUCE && call->kind != COMM_REDUCE_SCATTER) return true;
    return call->reduction == COMM_SUM ? !dtype_is_fp8(call->dtype) : !dtype_is_float(call->dtype);
}

static bool nccl_takes(const Comm *c, const CommCall *call) {
    const State *s = c->device_state;
    return call->device == s->device && has_operation(call);
}

static void stop_watchdog(State *s) {
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    pthread_cond_signal(&s->closing);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->watchdog, NULL);
}

static void flights_free(const State *s, Flight *f) {
    for (Flight *next; f; f = next) {
        next = f->next;
        device_event_free(s->device, f->done);
        free(f);
    }
}

static void nccl_free(Comm *c) {
    State *s = c->device_state;
    device_wait(s->device);
    stop_watchdog(s);
    while (s->windows) nccl_detach(c, s->windows->memory);
    for (Link *l = s->links, *next; l; l = next) {
        next = l->next;
        if (l->nccl) NCCL(s, l->nccl, CommDestroy, l->nccl);
        l->channel->state = NULL; /* the transport may be opened again */
        device_stream_free(s->device, l->stream);
        flights_free(s, l->first);
        free(l);
    }
    flights_free(s, s->spare);
    device_release(s->device, s->greeting, MOST_PAIRS);
    pthread_cond_destroy(&s->closing);
    pthread_mutex_destroy(&s->lock);
    free(s);
    c->device = NULL, c->device_state = NULL;
}

static const CommTransport NCCL_TRANSPORT = {.start = nccl_start,
                                             .wait = nccl_wait,
                                             .free = nccl_free,
                                             .takes = nccl_takes,
                                             .launched = nccl_launched,
                                             .attach = nccl_attach,
                                             .compare = nccl_compare,
                                             .detach = nccl_detach};

/* ---- opening ---- */

/* The facts about a rank that all ranks compare. */
typedef struct Facts {
    unsigned char device[16];
    int32_t version; /* 0: NCCL cannot be loaded */
    int32_t shares;  /* 1: NCCL lets ranks share a GPU */
    int32_t alone;   /* 1: the rank is a thread, and NCCL needs a process for each */
    int32_t lacks_peers;
} Facts;

/* NCCL's own switch, for tests on a machine with fewer GPUs than ranks: init.cc of NCCL 2.30. */
static bool may_share(const Nccl *n) {
    const char *v = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return n->host_memory || (n->version >= 23000 && v && strcmp(v, "0") != 0);
}

static bool same_gpu(const Facts *a, const Facts *b) {
    return !memcmp(a->device, b->device, sizeof a->device);
}

/* Writes the reason why NCCL cannot be used to `why`; empty: it can be used. */
static Err agree_on(const Comm *c, const Facts *all, char why[200]) {
    enum { SIZE = 200 };
    char a[32], b[32];
    *why = 0;
    for (int i = 0; i < c->world; i++) {
        if (!all[i].version) snprintf(why, SIZE, "rank %d has no NCCL", i);
        if (all[i].version && all[0].version && all[i].version != all[0].version)
            return err_user("rank 0 has NCCL %s and rank %d has %s: use the same version on all ranks, for "
                            "example with --nccl-library",
                            nccl_version_text(&(Nccl){.version = all[0].version}, a), i,
                            nccl_version_text(&(Nccl){.version = all[i].version}, b));
        for (int k = 0; k < i; k++) {
            if (same_gpu(&all[i], &all[k]) && !(all[i].shares && all[k].shares))
                snprintf(why, SIZE, "ranks %d and %d share a GPU", k, i);
        }
        if (all[i].alone && c->world > 1)
            snprintf(why, SIZE,
                     "NCCL %s needs a process for each GPU: use mpirun or torchrun, or a newer NCCL",
                     nccl_version_text(&(Nccl){.version = all[i].version}, a));
    }
    return ERR_OK;
}

static void open_transport(Comm *c, const Nccl *n, Device *device, const CommDeviceOptions *o) {
    State *s = mem_zero(1, sizeof *s);
    *s = (State){
        .nccl = *n, .comm = c, .device = device, .most_blocks = o->most_blocks, .registers = o->registers};
    s->greeting = device_alloc(device, MOST_PAIRS, "connections of NCCL");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->closing, NULL);
    c->device = &NCCL_TRANSPORT, c->device_state = s;
    snprintf(s->scope.where, sizeof s->scope.where, "rank %d", c->rank);
    const int rc = pthread_create(&s->watchdog, NULL, watchdog, s);
    CHECK(rc == 0, "cannot start the watchdog thread of NCCL: error %d", rc);
}

static Err load(const char *library, bool discrete, Nccl *n) {
    ERR_RETURN(nccl_load(library, n));
    if (n->host_memory && discrete)
        return err_user("'%s' moves only host memory: remove --device cuda", library);
    if (!n->host_memory && !discrete)
        return err_user("--nccl-library: NCCL moves only GPU memory: add --device cuda");
    if (n->host_memory && comm_processes() > 1)
        return err_user("'%s' supports only one process: use --ranks without a launcher", library);
    return ERR_OK;
}

Err comm_check_library(const char *library, bool discrete) {
    Nccl n;
    return load(library, discrete, &n);
}

static void describe(const Comm *c, const Nccl *n, const Facts *all, const CommDeviceOptions *o,
                     char text[200]) {
    enum { SIZE = 200 };
    char version[32], limit[64] = "";
    bool shared = false, lacks_peers = false;
    for (int i = 0; i < c->world; i++) {
        lacks_peers |= all[i].lacks_peers;
        for (int k = 0; k < i; k++) shared |= !n->host_memory && same_gpu(&all[i], &all[k]);
    }
    if (o->most_blocks)
        snprintf(limit, sizeof limit, ", at most %d thread blocks for each operation", o->most_blocks);
    snprintf(text, SIZE, "NCCL %s%s%s%s%s", nccl_version_text(n, version), limit,
             o->registers ? ", registered buffers" : "", shared ? ", ranks share a GPU" : "",
             lacks_peers ? ", some GPUs have no peer access" : "");
}

static Facts facts_of(const Comm *c, const Device *device, const Nccl *n, bool loaded) {
    Facts f = {.version = loaded ? n->version : 0,
               .shares = loaded && may_share(n),
               .alone = loaded && !c->processes_by && !nccl_shares_a_process(n),
               .lacks_peers = device->lacks_peers};
    memcpy(f.device, device->id, sizeof f.device);
    return f;
}

/* The caller frees the facts of all ranks. */
static Facts *gather_facts(Comm *c, Facts mine) {
    Facts *all = mem_zero((size_t)c->world, sizeof *all);
    comm_run(c, &(CommCall){.kind = COMM_ALL_GATHER,
                            .dtype = U8,
                            .group = comm_everyone(c),
                            .site = "nccl_facts",
                            .in = &mine,
                            .out = all,
                            .n = sizeof mine});
    return all;
}

static Err open_as_agreed(Comm *c, const Nccl *n, Device *device, const Facts *all,
                          const CommDeviceOptions *o, char text[200]) {
    enum { SIZE = 200 };
    char why[SIZE];
    ERR_RETURN(agree_on(c, all, why));
    if (*why && o->required)
        return err_user("NCCL cannot be used, because %s. To communicate through host memory, remove "
                        "--distributed-backend, --cuda-graph-impl and --use-nccl-ub",
                        why);
    if (*why) {
        snprintf(text + strlen(text), SIZE - strlen(text), ", because %s", why);
        return ERR_OK;
    }
    if (o->registers && !nccl_has_windows(n))
        return err_user(
            "--use-nccl-ub needs NCCL 2.28 or later, and this is %s: remove the option or give a newer "
            "library with --nccl-library",
            nccl_version_text(n, why));
    open_transport(c, n, device, o);
    describe(c, n, all, o, text);
    return ERR_OK;
}

Err comm_open_device(Comm *c, Device *device, const CommDeviceOptions *o, char text[200]) {
    Nccl n = {0};
    comm_describe_host(c, text);
    if (!c || !c->host || (!o->library && !device_is_discrete(device))) return ERR_OK;
    Err e = load(o->library, device_is_discrete(device), &n);
    if (o->library || o->required) ERR_RETURN(comm_agree(c, e));
    Facts *all = gather_facts(c, facts_of(c, device, &n, !e.code));
    e = open_as_agreed(c, &n, device, all, o, text);
    free(all);
    return e;
}

/* ---- planning ---- */

void comm_plan(Comm *c, const CommCall *call) {
    if (call->group.size == 1 || !has_operation(call)) return;
    const CommKey key = comm_key(call, true);
    if (key.src < 0) comm_channel(c, &key)->all_to_all |= call->kind == COMM_ALL_TO_ALL;
    for (int i = 0; key.src >= 0 && i < pair_count(call->group.size); i++) {
        const CommKey pair = pair_key(&key, i);
        if (is_in_pair(&pair, call->group.rank)) comm_channel(c, &pair);
    }
}

/* MiB of device memory that NCCL takes when it first connects ranks, and for each other member of an all-to-all. Measured
 * with NCCL 2.28.9 on H100 and H200 with NVLink, by `bench train`: "taken" minus "planned" of runs with 1 to 6
 * communicators. If a member is on another host, NCCL gives each 2 channels, not 32 (ncclTopoComputeP2pChannels). */
enum { FIRST_MIB = 465, PEER_MIB = 402, REMOTE_PEER_MIB = PEER_MIB / 16 };

/* MiB of a communicator whose operations have at most so many thread blocks, measured for 8, 10, 16, 20 and 24. NCCL
 * chooses 24; 0 is its choice. */
static int communicator_mib(int most_blocks) {
    const int blocks = most_blocks && most_blocks < 24 ? most_blocks : 24;
    return (blocks > 16 ? 123 : 36) + 12 * blocks;
}

size_t comm_device_bytes(const Comm *c, int most_blocks, int ranks_of_host) {
    int mib = 0;
    for (size_t i = 0; i < c->channels.capacity; i++) {
        const CommEntry *e = &c->channels.entry[i];
        const CommChannel *ch = e->value;
        if (!ch || e->key.device != 1) continue;
        mib += (mib ? 0 : FIRST_MIB) + communicator_mib(most_blocks);
        if (!ch->all_to_all) continue;
        const bool remote = comm_member(&e->key, ch->members - 1) - comm_member(&e->key, 0) >= ranks_of_host;
        mib += (ch->members - 1) * (remote ? REMOTE_PEER_MIB : PEER_MIB);
    }
    return (size_t)mib << 20;
}

int comm_communicators(const Comm *c, bool open) {
    int n = 0;
    for (size_t i = 0; i < c->channels.capacity; i++) {
        const CommEntry *e = &c->channels.entry[i];
        if (e->value && e->key.device == 1) n += !open || ((const CommChannel *)e->value)->state;
    }
    return n;
}

void comm_close_device(Comm *c) {
    if (!c || !c->device) return;
    c->device->free(c);
    /* If ranks are threads, the last to destroy a communicator frees the memory of all its members, whose devices
     * must still be open. */
    comm_run(c, &(CommCall){.kind = COMM_BARRIER, .group = comm_everyone(c), .site = "device_close"});
}
