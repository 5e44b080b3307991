#include "infer/fleet.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "infer/fleet_message.h"
#include "infer/placement.h"

static const int64_t POLL_NS = 500000000;

/* A request in rank 0's table. The index in the table is the request's id on all ranks. */
typedef struct Slot {
    int64_t id;      /* the caller's id */
    int64_t replica; /* -1 if the slot is free */
    int64_t next;    /* the next free slot, or -1 */
} Slot;

struct Fleet {
    Comm *comm; /* NULL if there is only one rank */
    Engine *engine;
    FleetState state;
    int (*poll)(void); /* may be NULL */
    FleetLoad *load;
    void *load_arg;
    char *path; /* the folder whose parameters are loaded at the next boundary, or NULL; owned */
    Err loaded; /* the result of the last load */
    int64_t replica, replicas;
    bool forgets;     /* whether engines forget pages while they are suspended */
    bool reports;     /* whether this rank is the first one in its replica */
    Group reporters;  /* the first ranks of all replicas, including this rank */
    int64_t applied;  /* number of orders applied so far */
    Words events;     /* this replica's events in the current step, if `reports` is true */
    int64_t numbered; /* number of orders that rank 0 has issued for the next boundary */
    /* The following members are used only on rank 0. */
    Words sent;     /* orders for the next boundary */
    int64_t polled; /* when the ranks were last polled for interrupts, in ns (clock_ns) */
    bool interrupted;
    Slot *slot; /* [slots] */
    int64_t slots, free_slot;
    int64_t *open; /* [replicas]: each replica's number of open requests */
    Placement *placement;
    EngineCounts *counts; /* [replicas] */
    EngineSink *sink;
    void *sink_arg;
};

bool fleet_leads(const Fleet *f) { return !f->comm || comm_rank(f->comm) == 0; }
FleetState fleet_state(const Fleet *f) { return f->state; }

void fleet_on_interrupt(Fleet *f, int (*poll)(void)) { f->poll = poll; }
bool fleet_interrupted(const Fleet *f) { return f->interrupted; }
void fleet_on_weights(Fleet *f, FleetLoad *load, void *arg) { f->load = load, f->load_arg = arg; }
Err fleet_loaded(const Fleet *f) { return f->loaded; }

/* ---- orders ---- */

static void send(Fleet *f, Order order) {
    order.number = f->numbered++;
    order_write(&f->sent, &order);
}

static int64_t take_slot(Fleet *f, int64_t id, int64_t replica) {
    int64_t at = f->free_slot;
    if (at < 0) {
        at = f->slots++;
        f->slot = mem_grow(f->slot, (size_t)f->slots, sizeof *f->slot);
    } else {
        f->free_slot = f->slot[at].next;
    }
    f->slot[at] = (Slot){.id = id, .replica = replica};
    f->open[replica]++;
    return at;
}

static void free_slot(Fleet *f, int64_t at) {
    f->open[f->slot[at].replica]--;
    f->slot[at] = (Slot){.replica = -1, .next = f->free_slot};
    f->free_slot = at;
}

Err fleet_add(Fleet *f, const Request *r) {
    if (!f->comm) return engine_add(f->engine, r);
    CHECK(!r->steered, "request %lld is steered", (long long)r->id);
    ERR_RETURN(engine_check(f->engine, r));
    Order order = {.kind = ORDER_ADD, .replica = placement_choose(f->placement, r, f->open), .request = *r};
    order.request.id = take_slot(f, r->id, order.replica);
    send(f, order);
    return ERR_OK;
}

bool fleet_abort(Fleet *f, int64_t id) {
    if (!f->comm) return engine_abort(f->engine, id);
    int64_t at = 0;
    while (at < f->slots && (f->slot[at].replica < 0 || f->slot[at].id != id)) at++;
    if (at == f->slots) return false;
    send(f, (Order){.kind = ORDER_ABORT, .replica = f->slot[at].replica, .request.id = at});
    free_slot(f, at);
    return true;
}

/* Changes this rank's state. The function settle then performs the signal's action. */
static Err take_signal(Fleet *f, FleetSignal signal, const char *path, int64_t n) {
    ERR_RETURN(fleet_state_signal(&f->state, signal));
    if (signal != SIGNAL_WEIGHTS) return ERR_OK;
    free(f->path);
    f->path = mem_printf("%.*s", (int)n, path);
    return ERR_OK;
}

Err fleet_signal(Fleet *f, FleetSignal signal, const char *path) {
    const int64_t n = signal == SIGNAL_WEIGHTS ? (int64_t)strlen(path) : 0;
    ERR_RETURN(take_signal(f, signal, path, n));
    if (f->comm) send(f, (Order){.kind = ORDER_SIGNAL, .signal = signal, .path = path, .n_path = n});
    return ERR_OK;
}

/* ---- a boundary between steps ---- */

static void broadcast(const Fleet *f, int64_t *words, int64_t n) {
    comm_run(f->comm, &(CommCall){.kind = COMM_BROADCAST,
                                  .dtype = I64,
                                  .group = comm_everyone(f->comm),
                                  .site = "orders",
                                  .in = words,
                                  .out = words,
                                  .n = n});
}

/* Turns an error into a fault, because its cause is a bug or a rank that runs a different program. */
static void check(Err e) { CHECK(!e.code, "%s", e.msg); }

/* Returns whether it is time to poll all ranks for interrupts. Only rank 0 reads a clock. */
static bool must_poll(Fleet *f) {
    const int64_t now = clock_ns();
    if (!fleet_leads(f) || now - f->polled < POLL_NS) return false;
    f->polled = now;
    return true;
}

static void poll_ranks(Fleet *f) {
    int64_t interrupted = f->poll && f->poll();
    comm_all_reduce(f->comm, comm_everyone(f->comm), "interrupts", COMM_MAX, I64, &interrupted, 1);
    f->interrupted |= interrupted;
}

/* Sends rank 0's orders to all ranks. The caller frees the words. */
static Words share_orders(Fleet *f) {
    Words w = f->sent;
    int64_t head[FLEET_HEAD] = {FLEET_PROTOCOL, f->numbered, must_poll(f), w.n};
    f->sent = (Words){0};
    broadcast(f, head, FLEET_HEAD);
    check(head_check(head, FLEET_HEAD, 0));
    f->numbered = head[1], w.n = head[3];
    if (head[2]) poll_ranks(f);
    if (!fleet_leads(f)) w.at = mem_alloc((size_t)w.n * sizeof *w.at + 1);
    if (w.n) broadcast(f, w.at, w.n);
    w.reads = true;
    return w;
}

static void apply(Fleet *f, const Order *o) {
    const bool own = o->replica == f->replica;
    if (o->kind == ORDER_ADD && own) check(engine_add(f->engine, &o->request));
    if (o->kind == ORDER_ABORT && own) engine_abort(f->engine, o->request.id);
    if (o->kind != ORDER_SIGNAL || fleet_leads(f)) return;
    check(take_signal(f, o->signal, o->path, o->n_path));
}

static void apply_orders(Fleet *f) {
    Words w = share_orders(f);
    while (f->applied < f->numbered) {
        Order o;
        order_read(&w, &o);
        CHECK(!w.bad && o.number == f->applied, "order %lld of rank 0 is not valid", (long long)f->applied);
        apply(f, &o);
        f->applied++;
    }
    CHECK(w.read == w.n, "rank 0 sends %lld words after its last order", (long long)(w.n - w.read));
    free(w.at);
}

static void settle(Fleet *f) {
    if (f->state == FLEET_SUSPENDING) engine_suspend(f->engine);
    if (f->state == FLEET_SUSPENDING && f->forgets) placement_forget(f->placement);
    if (f->state == FLEET_RESUMING) engine_wake(f->engine);
    f->state = fleet_state_settled(f->state);
    if (!f->path) return;
    f->loaded = f->load(f->load_arg, f->path);
    if (!f->loaded.code) engine_new_weights(f->engine), placement_forget(f->placement);
    free(f->path);
    f->path = NULL;
}

/* ---- events ---- */

/* Passes an event to rank 0's caller, unless the caller has aborted the request. */
static void pass_on(void *arg, const EngineEvent *event) {
    Fleet *f = arg;
    EngineEvent e = *event;
    if (f->slot[e.id].replica < 0) return;
    e.id = f->slot[e.id].id;
    if (e.kind == EVENT_END) free_slot(f, event->id);
    f->sink(f->sink_arg, &e);
}

static void keep(void *arg, const EngineEvent *event) {
    Fleet *f = arg;
    if (f->reports) event_write(&f->events, event);
}

/* Passes on the events that a replica has sent. */
static void pass_on_all(Fleet *f, const int64_t *words, int64_t n, int rank) {
    Words w = {.at = (int64_t *)(uintptr_t)words, .n = n, .reads = true};
    while (w.read < w.n) {
        EngineEvent e;
        event_read(&w, &e);
        CHECK(!w.bad && e.id >= 0 && e.id < f->slots, "an event that rank %d sent is not valid", rank);
        pass_on(f, &e);
    }
}

static void gather_heads(const Fleet *f, bool worked, int64_t *head) {
    int64_t *own = head + f->reporters.rank * FLEET_REPLY;
    const EngineCounts counts = engine_counts(f->engine);
    own[0] = FLEET_PROTOCOL, own[1] = worked, own[FLEET_REPLY - 1] = f->events.n;
    memcpy(own + 2, &counts, sizeof counts);
    comm_run(f->comm, &(CommCall){.kind = COMM_ALL_GATHER,
                                  .dtype = I64,
                                  .group = f->reporters,
                                  .site = "replies",
                                  .in = own,
                                  .out = head,
                                  .n = FLEET_REPLY});
    for (int i = 0; i < f->reporters.size; i++)
        check(head_check(head + i * FLEET_REPLY, FLEET_REPLY, mesh_member(&f->reporters, i)));
}

/* Sends this replica's events to rank 0, which receives counts[i] words from replica i. */
static void gather_events(Fleet *f, const int64_t *counts, int64_t all) {
    int64_t *sends = mem_zero((size_t)f->replicas, sizeof *sends),
            *words = mem_alloc((size_t)all * sizeof *words), *at = words;
    sends[0] = f->events.n;
    comm_run(f->comm, &(CommCall){.kind = COMM_ALL_TO_ALL,
                                  .dtype = I64,
                                  .group = f->reporters,
                                  .site = "events",
                                  .in = f->events.at,
                                  .out = words,
                                  .in_counts = sends,
                                  .out_counts = counts});
    for (int i = 0; i < f->replicas; at += counts[i++])
        pass_on_all(f, at, counts[i], mesh_member(&f->reporters, i));
    free(sends), free(words);
}

/* Exchanges a step's results among the first ranks of the replicas. Returns whether any replica has computed
 * anything. */
static bool share_results(Fleet *f, bool worked) {
    int64_t *head = mem_alloc((size_t)f->replicas * FLEET_REPLY * sizeof *head),
            *counts = mem_zero((size_t)f->replicas, sizeof *counts), all = 0;
    gather_heads(f, worked, head);
    for (int i = 0; i < f->replicas; i++) {
        const int64_t *h = head + i * FLEET_REPLY;
        worked |= h[1] != 0, all += h[FLEET_REPLY - 1];
        if (!fleet_leads(f)) continue;
        memcpy(&f->counts[i], h + 2, sizeof *f->counts);
        counts[i] = h[FLEET_REPLY - 1];
    }
    if (all) gather_events(f, counts, all);
    f->events.n = 0;
    free(head), free(counts);
    return worked;
}

/* ---- steps ---- */

/* Runs this rank's step. */
static bool run(Fleet *f) {
    if (f->comm) apply_orders(f);
    settle(f);
    if (f->state != FLEET_RUNNING) return false;
    if (!f->comm) return engine_step(f->engine, f->sink, f->sink_arg);
    const bool worked = engine_step(f->engine, fleet_leads(f) ? pass_on : keep, f);
    return f->reports && f->replicas > 1 ? share_results(f, worked) : worked;
}

bool fleet_step(Fleet *f, EngineSink *sink, void *arg) {
    CHECK(fleet_leads(f) && f->state != FLEET_STOPPED, "a step cannot run while the fleet is %s",
          fleet_state_name(f->state));
    f->sink = sink, f->sink_arg = arg;
    return run(f);
}

void fleet_follow(Fleet *f) {
    CHECK(!fleet_leads(f), "rank 0 follows itself");
    while (f->state != FLEET_STOPPED) run(f);
}

EngineCounts fleet_counts(const Fleet *f) {
    if (f->replicas == 1) return engine_counts(f->engine);
    EngineCounts all = {0};
    for (int64_t i = 0; i < f->replicas; i++) {
        const EngineCounts *c = &f->counts[i];
        all.waiting += c->waiting, all.running += c->running, all.free_pages += c->free_pages;
        all.preemptions += c->preemptions, all.shared += c->shared, all.pages += c->pages;
        all.drafts += c->drafts, all.accepted += c->accepted, all.prompt_tokens += c->prompt_tokens;
        if (all.passes < c->passes) all.passes = c->passes;
        if (all.model_ns < c->model_ns) all.model_ns = c->model_ns;
    }
    all.weights = engine_counts(f->engine).weights; /* equal on all ranks, and current even without a pass */
    return all;
}

/* ---- the fleet ---- */

Err fleet_new(const Model *m, const RunContext *c, const EngineLimits *l, Fleet **out) {
    Engine *engine;
    ERR_RETURN(engine_new(m, c, l, &engine));
    Fleet *f = *out = mem_zero(1, sizeof *f);
    *f = (Fleet){.engine = engine, .replicas = 1, .free_slot = -1, .forgets = l->suspended != KV_PERSIST};
    if (c->comm && comm_world(c->comm) > 1) {
        const Mesh *mesh = &c->layout->mesh;
        f->comm = c->comm;
        f->replica = mesh->coordinate[AXIS_DP], f->replicas = mesh->size[AXIS_DP];
        f->reporters = mesh_group(mesh, 1u << AXIS_DP);
        f->reports = mesh_member(&f->reporters, 0) == 0;
    }
    f->open = mem_zero((size_t)f->replicas, sizeof *f->open);
    f->placement = placement_new(f->replicas, l);
    f->counts = mem_zero((size_t)f->replicas, sizeof *f->counts);
    for (int64_t i = 0; i < f->replicas; i++) f->counts[i] = engine_counts(engine);
    return ERR_OK;
}

static void stop(Fleet *f) {
    while (f->state != FLEET_STOPPED) {
        if (f->state == FLEET_RUNNING)
            check(fleet_signal(f, SIGNAL_PAUSE, NULL));
        else if (f->state == FLEET_PAUSED || f->state == FLEET_SUSPENDED)
            check(fleet_signal(f, SIGNAL_STOP, NULL));
        run(f);
    }
}

void fleet_free(Fleet *f) {
    if (f->comm && fleet_leads(f)) stop(f);
    engine_free(f->engine);
    placement_free(f->placement);
    free(f->sent.at), free(f->events.at), free(f->slot), free(f->open), free(f->counts), free(f->path);
    free(f);
}
