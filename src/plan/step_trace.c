#include "plan/step_trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "train/trainer.h"

/* The facts about a channel that all its operations share. */
typedef struct Channel {
    TraceGroup group;
    int meeting;
} Channel;

/* The recording of one rank. */
typedef struct Recorder {
    Trace *trace;
    Comm *comm;
    SimRank *out;
    TraceOperation *operation;
    int64_t each, room, first; /* first: number of the step's first operation */
    int stage, per_stage, operation_room;
    Channel *channel;
    bool records;
} Recorder;

/* ---- ops ---- */

static bool same_work(const Rate *a, const Rate *b) {
    return !strcmp(a->name, b->name) && !memcmp(a->size, b->size, sizeof a->size);
}

static int *slot_of(const Trace *t, const Rate *r) {
    for (uint64_t i = hash64(r->size, sizeof r->size, hash_name(r->name));; i++) {
        int *slot = &t->slot[i & (uint64_t)(t->slots - 1)];
        if (*slot < 0 || same_work(&t->work[*slot].work, r)) return slot;
    }
}

static void grow(Trace *t) {
    t->room = t->room ? 2 * t->room : 256, t->slots = 2 * t->room;
    t->work = mem_grow(t->work, (size_t)t->room, sizeof *t->work);
    t->slot = mem_grow(t->slot, (size_t)t->slots, sizeof *t->slot);
    memset(t->slot, -1, (size_t)t->slots * sizeof *t->slot);
    for (int i = 0; i < t->n; i++) *slot_of(t, &t->work[i].work) = i;
}

static StepWork *work_of(Trace *t, const OpDef *op, const Call *c) {
    const Rate r = rate_of(op, c);
    if (t->n == t->room) grow(t);
    int *slot = slot_of(t, &r);
    if (*slot >= 0) return &t->work[*slot];
    StepWork *w = &t->work[ *slot = t->n++];
    *w = (StepWork){.work = r, .family = op->family};
    w->work.ns = (op->family == OP_FAMILY_GEMM ? t->gemms : 1) * rates_time(t->rates, op, c, &w->source);
    return w;
}

static void record(Recorder *r, SimEvent e) {
    SimRank *out = r->out;
    if (out->n == r->room)
        out->events = mem_grow(out->events, (size_t)(r->room = 2 * r->room + 1024), sizeof *out->events);
    out->events[out->n++] = e;
}

/* This function is a CallObserver. */
static void record_call(void *arg, const OpDef *op, const Call *c) {
    Recorder *r = arg;
    if (!r->records) return;
    if (!op) {
        record(r, (SimEvent){.kind = SIM_HOST_WAIT});
        return;
    }
    StepWork *w = work_of(r->trace, op, c);
    w->calls += r->each;
    record(r, (SimEvent){SIM_OP, (int)(w - r->trace->work), w->work.ns});
}

/* ---- operations between ranks ---- */

static bool is_message(const CommCall *c) { return c->kind == COMM_SEND || c->kind == COMM_RECV; }

static int stage_of(const Recorder *r, const Group *g, int member) {
    return mesh_member(g, member) / r->per_stage;
}

/* Finds the stages of a message's sender and receiver, or of a group's members. */
static TraceMeeting stages_of(const Recorder *r, const CommCall *c) {
    const Group *g = &c->group;
    if (is_message(c)) {
        const int peer = stage_of(r, g, c->peer);
        const bool sends = c->kind == COMM_SEND;
        return (TraceMeeting){.first = sends ? r->stage : peer,
                              .last = sends ? peer : r->stage,
                              .members = 1 + (peer != r->stage),
                              .way = g->axis_stride[0] > 0 ? 1 : -1};
    }
    TraceMeeting m = {.first = r->stage, .last = r->stage};
    bool *seen = mem_zero((size_t)r->trace->ranks, sizeof *seen);
    for (int i = 0; i < g->size; i++) {
        const int stage = stage_of(r, g, i);
        m.members += !seen[stage];
        seen[stage] = true;
        if (stage < m.first) m.first = stage;
        if (stage > m.last) m.last = stage;
    }
    free(seen);
    return m;
}

/* Returns the number of the meeting, or -1 if all members are in this stage. */
static int meeting_of(const Recorder *r, const CommCall *c) {
    Trace *t = r->trace;
    const TraceMeeting m = stages_of(r, c);
    int i = 0;
    if (m.members == 1) return -1;
    while (i < t->meetings && memcmp(&t->meeting[i], &m, sizeof m)) i++;
    if (i < t->meetings) return i;
    t->meeting = mem_grow(t->meeting, (size_t)++t->meetings, sizeof *t->meeting);
    t->meeting[i] = m;
    return i;
}

static Channel channel_for(const Recorder *r, const CommCall *c) {
    const Links *links = &r->trace->rates->links;
    const int of_host = links->described ? (int)links->host.ranks : comm_ranks_of_host(r->comm),
              host = comm_rank(r->comm) / of_host;
    Channel ch = {.group.members = is_message(c) ? 2 : c->group.size, .meeting = meeting_of(r, c)};
    if (is_message(c)) {
        ch.group.per_host = 1 + (mesh_member(&c->group, c->peer) / of_host == host);
        return ch;
    }
    for (int i = 0; i < c->group.size; i++) ch.group.per_host += mesh_member(&c->group, i) / of_host == host;
    return ch;
}

/* Returns the size of the rank's larger buffer. */
static double bytes_of(const CommCall *c) {
    double n = (double)c->n, in = 0, out = 0;
    if (c->kind == COMM_ALL_GATHER || c->kind == COMM_REDUCE_SCATTER) n *= c->group.size;
    for (int i = 0; c->kind == COMM_ALL_TO_ALL && i < c->group.size; i++)
        in += (double)c->in_counts[i], out += (double)c->out_counts[i];
    return fmax(n, fmax(in, out)) * (double)dtype_size(c->dtype);
}

/* NCCL starts no kernel for an operation without data. */
static void add_time(const Recorder *r, const Channel *ch, const TraceOperation *what, SimOperation *o) {
    Trace *t = r->trace;
    const TraceGroup *g = &ch->group;
    if (what->bytes <= 0) return;
    const LinkSource source =
        links_source(&t->rates->links, what->kind, what->bytes, g->members, g->per_host);
    o->ns = links_time(&t->rates->links, what->kind, what->bytes, g->members, g->per_host);
    t->link_ns[source] += o->ns * (double)r->each / t->ranks;
    if (source == LINK_NONE && !t->lacks.members) t->lacks = *g, t->lacks_kind = what->kind;
}

/* These two functions form a CommObserver. */
static void record_start(void *arg, const CommCall *c, int channel, int64_t number) {
    Recorder *r = arg;
    SimRank *out = r->out;
    if (!r->records) return;
    if (!out->n_operations) r->first = number;
    if (channel >= out->n_channels) {
        r->channel = mem_grow(r->channel, (size_t)channel + 1, sizeof *r->channel);
        while (out->n_channels <= channel) r->channel[out->n_channels++].group.members = 0;
    }
    Channel *ch = &r->channel[channel];
    if (!ch->group.members) *ch = channel_for(r, c);
    const int i = out->n_operations++;
    if (i == r->operation_room) {
        r->operation_room = 2 * i + 256;
        out->operations = mem_grow(out->operations, (size_t)r->operation_room, sizeof *out->operations);
        r->operation = mem_grow(r->operation, (size_t)r->operation_room, sizeof *r->operation);
    }
    const Trace *t = r->trace;
    SimOperation *o = &out->operations[i];
    *o = (SimOperation){.channel = channel,
                        .meeting = ch->meeting,
                        .axes = c->group.axes,
                        .host = !c->device,
                        .load = c->device ? t->load : 0};
    r->operation[i] = (TraceOperation){c->site, c->kind, bytes_of(c)};
    add_time(r, ch, &r->operation[i], o);
    record(r, (SimEvent){.kind = SIM_START, .what = i});
}

static void record_wait(void *arg, int64_t number) {
    Recorder *r = arg;
    /* an operation of the step before has ended */
    if (r->records && number >= r->first)
        record(r, (SimEvent){.kind = SIM_WAIT, .what = (int)(number - r->first)});
}

/* ---- steps ---- */

static void record_stage(Trace *t, const RunPlan *p, const Device *target, int stage, int64_t microbatches,
                         int64_t each) {
    const int world = p->layout.mesh.world, per_stage = world / t->ranks;
    Recorder r = {.trace = t,
                  .comm = world > 1 ? comm_null(world, stage * per_stage) : NULL,
                  .out = &t->rank[stage],
                  .first = INT64_MAX,
                  .each = each,
                  .stage = stage,
                  .per_stage = per_stage};
    const CommObserver observer = {record_start, record_wait, &r};
    Device *null = device_null_for(target);
    null->any_order = !p->config->deterministic_mode;
    if (r.comm) comm_observe(r.comm, &observer);
    Trainer *trainer = trainer_new(p->config, NULL, r.comm, null);
    null->observer = record_call, null->observer_arg = &r;
    /* The first step determines which passes of the buckets have attention ops. */
    if (r.comm && p->config->overlap_with_attention) trainer_dry_step(trainer, pipeline_unit(p->config));
    r.records = true;
    trainer_dry_step(trainer, microbatches);
    r.records = false;
    null->observer = NULL;
    trainer_free(trainer);
    if (r.comm) comm_free(r.comm);
    free(r.channel);
    t->operation[stage] = r.operation;
}

/* Frees the recorded step, but not the work. */
static void forget(Trace *t) {
    for (int i = 0; i < t->ranks; i++)
        free(t->rank[i].events), free(t->rank[i].operations), free(t->operation[i]);
    free(t->rank), free(t->operation), free(t->meeting);
    t->rank = NULL, t->operation = NULL, t->meeting = NULL, t->meetings = t->ranks = 0;
}

/* Sets the effects of the multiprocessors that operations use. */
static void assume(Trace *t, const Config *c) {
    const int margin = (int)fmin((double)c->gemm_sm_margin, TRACE_MULTIPROCESSORS - 1);
    t->blocks = c->device == ON_CPU ? 0 : margin ? margin : TRACE_BLOCKS;
    const double slower = (double)TRACE_MULTIPROCESSORS / (TRACE_MULTIPROCESSORS - t->blocks);
    t->gemms = margin ? slower : 1;
    t->load = margin ? 0 : slower - 1;
}

void step_trace_record(Trace *t, const RunPlan *p, const Device *target, int64_t microbatches, int64_t each) {
    forget(t);
    assume(t, p->config);
    t->ranks = p->pipeline.ranks;
    t->rank = mem_zero((size_t)t->ranks, sizeof *t->rank);
    t->operation = mem_zero((size_t)t->ranks, sizeof *t->operation);
    for (int i = 0; i < t->ranks; i++) record_stage(t, p, target, i, microbatches, each);
}

void step_trace_free(Trace *t) {
    forget(t);
    free(t->work);
    free(t->slot);
}
