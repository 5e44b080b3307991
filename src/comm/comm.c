#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "comm/transport.h"

enum { DEADLINE_S = 600 }; /* default of Megatron-LM's --distributed-timeout-minutes */

static bool is_message(CommKind k) { return k == COMM_SEND || k == COMM_RECV; }
static bool reduces(CommKind k) { return k == COMM_ALL_REDUCE || k == COMM_REDUCE_SCATTER; }

int comm_rank(const Comm *c) { return c->rank; }
int comm_world(const Comm *c) { return c->world; }
Group comm_everyone(const Comm *c) {
    return (Group){
        .size = c->world, .rank = c->rank, .n_axes = 1, .axis_size = {c->world}, .axis_stride = {1}};
}
void comm_sabotage(Comm *c, CommSabotage s) { c->sabotage = s; }

void comm_describe_host(const Comm *c, char text[200]) {
    const char *by = c ? c->processes_by : NULL;
    snprintf(text, 200, "through host memory%s%s", by ? ", by " : "", by ? by : "");
}

void comm_init(Comm *c, const CommTransport *host, void *host_state, int world, int rank,
               const CommOptions *o) {
    CHECK(world > 0 && rank >= 0 && rank < world, "rank %d of %d", rank, world);
    *c =
        (Comm){.host = host, .host_state = host_state, .world = world, .rank = rank, .sabotage = {.nth = -1}};
    c->deadline_s = o && o->deadline_s > 0 ? o->deadline_s : DEADLINE_S;
    comm_recorder_init(&c->recorder);
}

void comm_set_deadline(Comm *c, double seconds) {
    CHECK(seconds > 0, "a deadline of %g s", seconds);
    c->deadline_s = seconds;
}

void comm_set_farewell(Comm *c, const CommFarewell *farewell) { c->farewell = farewell; }

void comm_say_farewell(const Comm *c) {
    const CommFarewell *farewell = c->farewell;
    if (farewell) farewell->fn(farewell->arg);
}

int64_t comm_deadline_ns(const Comm *c) { return (int64_t)(c->deadline_s * 1e9); }
int64_t comm_warning_ns(const Comm *c) { return comm_deadline_ns(c) / 10; }

void comm_close(Comm *c) {
    CHECK(c->open == 0, "rank %d returned without waiting for %d operations", c->rank, c->open);
    if (c->device) c->device->free(c);
    for (size_t i = 0; i < c->channels.capacity; i++) free(c->channels.entry[i].value);
    free(c->channels.entry);
    while (c->spare) {
        CommWork *w = c->spare;
        c->spare = w->next;
        free(w);
    }
    comm_recorder_free(&c->recorder);
}

CommChannel *comm_channel(Comm *c, const CommKey *key) {
    void **place = comm_lookup(&c->channels, key);
    if (!*place) {
        CommChannel *ch = mem_zero(1, sizeof *ch);
        *ch = (CommChannel){.key = *key, .members = comm_members(key), .number = (int)c->channels.count - 1};
        while (ch->member < ch->members && comm_member(key, ch->member) != c->rank) ch->member++;
        CHECK(ch->member < ch->members, "rank %d is not a member of its operation's group", c->rank);
        *place = ch;
    }
    return *place;
}

CommKey comm_key(const CommCall *call, bool device) {
    CommKey key = {.group = group_simplify(&call->group), .src = -1, .dst = -1, .device = device};
    key.group.rank = 0;
    if (call->kind == COMM_SEND) key.src = call->group.rank, key.dst = call->peer;
    if (call->kind == COMM_RECV) key.src = call->peer, key.dst = call->group.rank;
    return key;
}

static void check_call(const Comm *c, const CommCall *call) {
    const Group *g = &call->group;
    CHECK((unsigned)call->kind < COMM_KINDS && call->site, "an operation of kind %d has no call site",
          (int)call->kind);
    CHECK(g->size > 0 && g->rank >= 0 && g->rank < g->size && mesh_member(g, g->rank) == c->rank,
          "at '%s': rank %d is not member %d in this group of %d", call->site, c->rank, g->rank, g->size);
    CHECK(call->n >= 0, "at '%s': %lld is not a valid number of elements", call->site, (long long)call->n);
    if (is_message(call->kind) || call->kind == COMM_BROADCAST)
        CHECK(call->peer >= 0 && call->peer < g->size &&
                  (call->kind == COMM_BROADCAST || call->peer != g->rank),
              "at '%s': member %d of %d names the invalid peer %d", call->site, g->rank, g->size, call->peer);
    if (call->kind != COMM_ALL_TO_ALL) return;
    CHECK(call->in_counts && call->out_counts, "at '%s': all_to_all has no counts", call->site);
    for (int i = 0; i < g->size; i++)
        CHECK(call->in_counts[i] >= 0 && call->out_counts[i] >= 0, "at '%s': a count is negative",
              call->site);
}

/* Copies the counts, so that the caller can reuse its arrays, and computes the offsets. */
static void take_counts(CommWork *w) {
    const int size = w->call.group.size;
    int64_t *block = mem_alloc((size_t)(4 * size) * sizeof *block);
    int64_t *in = block, *out = block + size, in_at = 0, out_at = 0;
    w->in_at = block + 2 * size, w->out_at = block + 3 * size;
    for (int i = 0; i < size; i++) {
        in[i] = w->call.in_counts[i], out[i] = w->call.out_counts[i];
        w->in_at[i] = in_at, w->out_at[i] = out_at;
        in_at += in[i], out_at += out[i];
    }
    w->call.in_counts = in, w->call.out_counts = out;
}

CommFacts comm_facts_to(const CommWork *w, int member) {
    CommFacts f = w->facts;
    if (f.kind == COMM_ALL_TO_ALL)
        f.sends = w->call.in_counts[member], f.expects = w->call.out_counts[member];
    return f;
}

static CommWork *take_work(Comm *c, const CommCall *call) {
    CommWork *w = c->spare;
    if (w)
        c->spare = w->next;
    else
        w = mem_alloc(sizeof *w);
    *w = (CommWork){.call = *call, .open = true};
    const bool counted = call->kind != COMM_BARRIER && call->kind != COMM_ALL_TO_ALL;
    w->facts = (CommFacts){.kind = call->kind,
                           .reduction = reduces(call->kind) ? (int32_t)call->reduction : 0,
                           .dtype = call->kind == COMM_BARRIER ? 0 : (int32_t)call->dtype,
                           .peer = call->kind == COMM_BROADCAST ? call->peer : 0,
                           .n = counted ? call->n : 0};
    strncpy(w->facts.site, call->site, sizeof w->facts.site - 1);
    if (call->kind == COMM_ALL_TO_ALL) take_counts(w);
    c->open++;
    return w;
}

/* Copies the input to the output, which is all that an operation does in a one-member group. */
static void copy_own(const CommCall *call) {
    if (call->kind == COMM_BARRIER || call->kind == COMM_BROADCAST || call->in == call->out) return;
    const int64_t n = call->kind == COMM_ALL_TO_ALL ? call->in_counts[0] : call->n;
    CHECK(call->kind != COMM_ALL_TO_ALL || n == call->out_counts[0],
          "at '%s': a group of one rank sends %lld elements but expects %lld", call->site, (long long)n,
          (long long)call->out_counts[0]);
    const size_t bytes = (size_t)n * dtype_size(call->dtype);
    if (device_is_discrete(call->device))
        device_copy(call->device, call->out, call->in, bytes);
    else if (n)
        memcpy(call->out, call->in, bytes);
}

/* Delays the operation if CommSabotage requests a delay. Returns true if the operation must be skipped. */
static bool sabotaged(const Comm *c, int64_t number) {
    const double s = c->sabotage.delay_s;
    if (number != c->sabotage.nth) return false;
    if (s <= 0) return true;
    nanosleep(&(struct timespec){(time_t)s, (long)((s - (double)(time_t)s) * 1e9)}, NULL);
    return false;
}

static const CommTransport *transport_of(const Comm *c, const CommCall *call) {
    if (c->device && call->device && !call->staged && c->device->takes(c, call)) return c->device;
    return device_is_discrete(call->device) ? &COMM_STAGING : c->host;
}

/* ---- exposed time ---- */

void comm_profile(Comm *c, CommProfile profile[COMM_PROFILE], Device *computes) {
    c->profile = profile, c->computes = computes;
}

static bool on_device(const Comm *c, const CommWork *w) { return c->device && w->transport == c->device; }

static bool is_profiled(const Comm *c, const CommWork *w) {
    return c->profile && !(on_device(c, w) && device_is_recording(w->call.device));
}

static int64_t span_begin(const Comm *c, const CommWork *w) {
    if (!is_profiled(c, w)) return 0;
    if (on_device(c, w)) return device_span_begin(w->call.device, NULL);
    if (c->computes) device_wait(c->computes);
    return clock_ns();
}

static void span_end(const Comm *c, const CommWork *w, int64_t begin, bool is_done) {
    if (!is_profiled(c, w)) return;
    OpProfile *to = &c->profile[w->call.group.axes].exposed;
    if (on_device(c, w))
        device_span_end(w->call.device, NULL, begin, to);
    else
        to->calls += is_done, to->ns += clock_ns() - begin;
}

static double bus_bytes(const CommCall *call) {
    const double size = (double)dtype_size(call->dtype), members = call->group.size;
    double elements = (double)call->n;
    switch (call->kind) {
    case COMM_ALL_REDUCE:
        return 2 * (members - 1) / members * elements * size;
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER:
        return (members - 1) * elements * size;
    case COMM_ALL_TO_ALL:
        elements = 0;
        for (int i = 0; i < call->group.size; i++)
            if (i != call->group.rank) elements += (double)call->in_counts[i];
        return elements * size;
    case COMM_BROADCAST:
    case COMM_SEND:
        return elements * size;
    default:
        return 0;
    }
}

/* Returns whether the host measures the operation's time. A GPU transport measures time on its streams. */
static bool is_timed_here(const Comm *c, const CommWork *w) {
    return is_profiled(c, w) && w->begin_ns && !(on_device(c, w) && device_is_discrete(w->call.device));
}

static void add_flight(Comm *c, const CommWork *w) {
    OpProfile *to = &c->profile[w->call.group.axes].flight;
    to->calls++, to->ns += clock_ns() - w->begin_ns;
}

/* ---- operations ---- */

static void start(Comm *c, CommWork *w) {
    w->begin_ns = is_profiled(c, w) ? clock_ns() : 0;
    if (w->begin_ns) c->profile[w->call.group.axes].bytes += bus_bytes(&w->call);
    if (on_device(c, w)) { /* comm_wait does not block for such operations */
        w->transport->start(c, w);
        return;
    }
    const int64_t begin = span_begin(c, w);
    w->transport->start(c, w);
    span_end(c, w, begin, false);
}

static void wait(Comm *c, CommWork *w) {
    const int64_t begin = span_begin(c, w);
    w->transport->wait(c, w);
    span_end(c, w, begin, true);
    if (is_timed_here(c, w)) add_flight(c, w);
}

CommWork *comm_start(Comm *c, const CommCall *call) {
    check_call(c, call);
    CommWork *w = take_work(c, call);
    if (sabotaged(c, c->started++)) return w;
    if (call->group.size == 1) {
        if (c->host) copy_own(&w->call);
        return w;
    }
    w->transport = transport_of(c, call);
    const CommKey key = comm_key(call, w->transport == c->device);
    w->channel = comm_channel(c, &key);
    w->seq = w->channel->next++;
    w->record = comm_record_start(&c->recorder, w);
    if (c->host)
        start(c, w);
    else if (c->observer)
        c->observer->start(c->observer->arg, &w->call, w->channel->number, w->record);
    return w;
}

void comm_wait(Comm *c, CommWork *w) {
    CHECK(w->open, "the operation at '%s' is waited for twice", w->facts.site);
    if (w->channel) {
        if (c->host)
            wait(c, w);
        else if (c->observer)
            c->observer->wait(c->observer->arg, w->record);
        if (!w->transport || w->transport != c->device) comm_record_done(&c->recorder, w->record);
    }
    if (w->call.kind == COMM_ALL_TO_ALL) free((int64_t *)w->call.in_counts);
    w->open = false;
    w->next = c->spare;
    c->spare = w;
    c->open--;
}

void comm_register(Comm *c, const Group *g, void *memory, size_t bytes) {
    if (c && c->device && g->size > 1 && bytes) c->device->attach(c, g, memory, bytes);
}

void comm_compare_places(Comm *c) {
    if (c && c->device) c->device->compare(c);
}

void comm_unregister(Comm *c, const void *memory) {
    if (c && c->device) c->device->detach(c, memory);
}

void comm_launched(Comm *c, const char *site) {
    if (c->device && c->device->launched) c->device->launched(c, site);
}

void comm_run(Comm *c, const CommCall *call) { comm_wait(c, comm_start(c, call)); }

Comm *comm_null(int world, int rank) {
    Comm *c = mem_alloc(sizeof *c);
    comm_init(c, NULL, NULL, world, rank, NULL);
    return c;
}

bool comm_is_null(const Comm *c) { return !c->host; }

void comm_observe(Comm *c, const CommObserver *observer) { c->observer = observer; }

bool comm_starts(const Comm *c, const Device *device) {
    return c && (device->kind != DEVICE_NULL || c->observer);
}

void comm_free(Comm *c) {
    if (c->host) c->host->free(c);
    comm_close(c);
    free(c);
}
