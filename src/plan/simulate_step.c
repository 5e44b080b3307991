#include "plan/simulate_step.h"

#include <math.h>
#include <stdlib.h>

typedef struct Operation {
    double ready, begin, end; /* ready: when this rank could start it */
    int previous;             /* the previous operation of the channel, or -1 */
    int64_t round;            /* number of the meeting's round */
    bool done;
} Operation;

typedef struct Rank {
    double host, device; /* the times at which the host and the device have finished all earlier calls */
    int64_t at;
    Operation *operation;
    int *last;       /* [channels]: the channel's last operation, or -1 */
    int64_t *rounds; /* [meetings]: number of operations that this rank has started */
} Rank;

/* The members of a meeting's round that have arrived. */
typedef struct Member {
    int rank, operation;
} Member;

typedef struct Meeting {
    Member *member; /* [rounds, members] */
    int *arrived;   /* [rounds] */
    int64_t rounds, room;
} Meeting;

typedef struct Sim {
    const SimStep *step;
    Rank *rank;
    Meeting *meeting;
    SimTimes *times;
} Sim;

static const SimOperation *operation_of(const Sim *s, Member m) {
    return &s->step->rank[m.rank].operations[m.operation];
}

static Operation *state_of(const Sim *s, Member m) { return &s->rank[m.rank].operation[m.operation]; }

/* ---- operations ---- */

static void arrive(Sim *s, Member m) {
    const int k = operation_of(s, m)->meeting, members = s->step->members[k];
    Meeting *meeting = &s->meeting[k];
    const int64_t round = state_of(s, m)->round = s->rank[m.rank].rounds[k]++;
    if (round == meeting->room) {
        meeting->room = 2 * round + 16;
        meeting->member =
            mem_grow(meeting->member, (size_t)(meeting->room * members), sizeof *meeting->member);
        meeting->arrived = mem_grow(meeting->arrived, (size_t)meeting->room, sizeof *meeting->arrived);
    }
    if (round == meeting->rounds) meeting->arrived[meeting->rounds++] = 0;
    meeting->member[round * members + meeting->arrived[round]++] = m;
}

static void start(Sim *s, Member m) {
    const SimOperation *o = operation_of(s, m);
    Rank *r = &s->rank[m.rank];
    r->host += s->step->launch_ns;
    *state_of(s, m) =
        (Operation){.ready = o->host ? r->host : fmax(r->device, r->host), .previous = r->last[o->channel]};
    r->last[o->channel] = m.operation;
    if (o->meeting >= 0) arrive(s, m);
}

static bool finish(Sim *s, Member m);

/* Returns whether it is known when the member could begin; if so, sets *begin to the time if it is later. */
static bool could_begin(Sim *s, Member m, double *begin) {
    const Operation *o = state_of(s, m);
    const Member previous = {m.rank, o->previous};
    if (o->previous >= 0 && !finish(s, previous)) return false;
    *begin = fmax(*begin, fmax(o->ready, o->previous >= 0 ? state_of(s, previous)->end : 0));
    return true;
}

/* Finishes the operation on all members of its round if it is known when it ends. Otherwise, returns false. */
static bool finish(Sim *s, Member m) {
    if (state_of(s, m)->done) return true;
    const int k = operation_of(s, m)->meeting, members = k < 0 ? 1 : s->step->members[k];
    const int64_t round = state_of(s, m)->round;
    const Member *all = k < 0 ? &m : s->meeting[k].member + round * members;
    double begin = 0, ns = 0;
    if (k >= 0 && s->meeting[k].arrived[round] < members) return false;
    for (int i = 0; i < members; i++) {
        if (!could_begin(s, all[i], &begin)) return false;
        ns = fmax(ns, operation_of(s, all[i])->ns);
    }
    for (int i = 0; i < members; i++) {
        Operation *o = state_of(s, all[i]);
        o->begin = begin, o->end = begin + ns, o->done = true;
        if (s->step->draw)
            s->step->draw(s->step->arg, &(SimSpan){all[i].rank, operation_of(s, all[i])->channel,
                                                   all[i].operation, begin, begin + ns});
    }
    return true;
}

/* Lets the device wait for a finished operation. */
static void wait(Sim *s, Member m) {
    const SimOperation *o = operation_of(s, m);
    const Operation *state = state_of(s, m);
    Rank *r = &s->rank[m.rank];
    SimParts *parts = &s->times->parts[m.rank];
    const double flight = state->end - state->begin, load = o->load * flight, waits = state->end - r->device;
    if (waits > load) {
        const double late = fmin(fmax(0, r->host - r->device), waits), idle = waits - late,
                     exposed = o->meeting < 0 ? idle : fmin(idle, flight);
        parts->host += late, parts->exposed[o->axes] += exposed, parts->bubble += idle - exposed;
        r->device = state->end;
    } else {
        parts->load += load;
        r->device += load;
    }
    if (o->host) r->host = fmax(r->host, state->end);
}

/* ---- ranks ---- */

static void run_op(Sim *s, int rank, const SimEvent *e) {
    Rank *r = &s->rank[rank];
    SimParts *parts = &s->times->parts[rank];
    r->host += s->step->launch_ns;
    parts->host += fmax(0, r->host - r->device);
    parts->ops += e->ns;
    const double begin = fmax(r->device, r->host);
    r->device = begin + e->ns;
    if (s->step->draw) s->step->draw(s->step->arg, &(SimSpan){rank, -1, e->what, begin, r->device});
}

/* Runs a rank until it waits for an operation that has not started on another rank. Returns the number of events. */
static int64_t advance(Sim *s, int rank) {
    const SimRank *of = &s->step->rank[rank];
    Rank *r = &s->rank[rank];
    const int64_t first = r->at;
    for (; r->at < of->n; r->at++) {
        const SimEvent *e = &of->events[r->at];
        const Member m = {rank, e->what};
        if (e->kind == SIM_OP) {
            run_op(s, rank, e);
        } else if (e->kind == SIM_START) {
            start(s, m);
        } else if (e->kind == SIM_HOST_WAIT) {
            r->host = fmax(r->host, r->device);
        } else {
            if (!finish(s, m)) break;
            wait(s, m);
        }
    }
    return r->at - first;
}

static void end_step(const Sim *s) {
    for (int i = 0; i < s->step->ranks; i++) s->times->ns = fmax(s->times->ns, s->rank[i].device);
    for (int i = 0; i < s->step->ranks; i++) s->times->parts[i].bubble += s->times->ns - s->rank[i].device;
}

static Err run(Sim *s) {
    for (;;) {
        int64_t moved = 0;
        int stuck = -1;
        for (int i = 0; i < s->step->ranks; i++) {
            moved += advance(s, i);
            if (stuck < 0 && s->rank[i].at < s->step->rank[i].n) stuck = i;
        }
        if (stuck < 0) break;
        if (!moved)
            return err_failed("the simulated pipeline rank %d waits forever at event %lld", stuck,
                              (long long)s->rank[stuck].at);
    }
    end_step(s);
    return ERR_OK;
}

Err simulate_step(const SimStep *step, Arena *arena, SimTimes *times) {
    Sim s = {.step = step, .times = times};
    *times = (SimTimes){.parts = arena_alloc(arena, (size_t)step->ranks * sizeof *times->parts)};
    s.rank = arena_alloc(arena, (size_t)step->ranks * sizeof *s.rank);
    s.meeting = arena_alloc(arena, (size_t)step->meetings * sizeof *s.meeting);
    for (int i = 0; i < step->ranks; i++) {
        const SimRank *of = &step->rank[i];
        Rank *r = &s.rank[i];
        r->operation = arena_alloc(arena, (size_t)of->n_operations * sizeof *r->operation);
        r->last = arena_alloc(arena, (size_t)of->n_channels * sizeof *r->last);
        r->rounds = arena_alloc(arena, (size_t)step->meetings * sizeof *r->rounds);
        for (int k = 0; k < of->n_channels; k++) r->last[k] = -1;
    }
    const Err e = run(&s);
    for (int i = 0; i < step->meetings; i++) free(s.meeting[i].member), free(s.meeting[i].arrived);
    return e;
}
