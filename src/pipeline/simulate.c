#include "pipeline/simulate.h"

#include <math.h>
#include <stdio.h>

typedef struct Message {
    bool sent, received;
    double arrival, receipt;
    int64_t number; /* index among the messages from the same rank in the same direction */
} Message;

/* A microbatch in a stage. */
typedef struct Cell {
    bool forward, input, weight; /* completed passes */
    int64_t slot;
    Message message[PIPELINE_WAYS]; /* the messages that the forward and backward passes send */
} Cell;

typedef struct RankState {
    int64_t at; /* index of the next action */
    double clock;
    Message *unsent; /* the message of a pair's first action, until the second action ends */
    /* received: number of this rank's messages that have been received */
    int64_t held, sent[PIPELINE_WAYS], received[PIPELINE_WAYS];
    int64_t *next_input, *next_weight; /* [chunks]: the next microbatch */
    bool *taken;                       /* [slots] */
    int64_t *user[PIPELINE_WAYS];      /* [received]: 1 + the slot that uses the buffer, or 0 if it is free */
    Message **from[PIPELINE_WAYS];     /* [sent]: the last message from the buffer, initially NULL */
} RankState;

typedef struct Player {
    const PipelineSpec *spec;
    const RankSchedule *schedules;
    const PipelineTimes *times;
    Cell *cells;       /* [chunks * ranks, microbatches] */
    RankState *states; /* [ranks] */
    Simulation *out;
} Player;

static bool makes_input(const Action *a) {
    return a->kind == ACTION_BACKWARD || a->kind == ACTION_BACKWARD_INPUT;
}
static bool makes_weight(const Action *a) {
    return a->kind == ACTION_BACKWARD || a->kind == ACTION_BACKWARD_WEIGHT;
}

static Cell *cell_of(const Player *p, int rank, int chunk, int64_t microbatch) {
    return &p->cells[((int64_t)chunk * p->spec->ranks + rank) * p->spec->microbatches + microbatch];
}

double pipeline_duration(const PipelineSpec *s, const PipelineTimes *times, int rank, const Action *a) {
    const PassTimes *t = &times->stages[a->chunk * s->ranks + rank];
    if (a->kind == ACTION_FORWARD) return t->forward;
    return (makes_input(a) ? t->backward_input : 0) + (makes_weight(a) ? t->backward_weight : 0);
}

static Err wrong(const Player *p, int rank, const char *what) {
    static const char *const names[] = {"forward", "backward", "input gradient", "weight gradient"};
    const RankState *state = &p->states[rank];
    const Action *a = &p->schedules[rank].actions[state->at];
    return err_failed("pipeline rank %d, action %lld, %s of microbatch %lld, chunk %d, slot %lld: %s", rank,
                      (long long)state->at, names[a->kind], (long long)a->microbatch, a->chunk,
                      (long long)a->slot, what);
}

/* Checks whether the action may follow this rank's earlier actions. */
static Err judge(const Player *p, int rank, const Action *a) {
    const PipelineSpec *s = p->spec;
    const RankState *state = &p->states[rank];
    if (a->chunk < 0 || a->chunk >= s->chunks || a->microbatch < 0 || a->microbatch >= s->microbatches)
        return wrong(p, rank, "there is no such microbatch or chunk");
    if (a->slot < 0 || a->slot >= p->schedules[rank].slots) return wrong(p, rank, "there is no such slot");
    const Cell *cell = cell_of(p, rank, a->chunk, a->microbatch);
    if (a->kind == ACTION_FORWARD) {
        if (cell->forward) return wrong(p, rank, "this pass has already run");
        return state->taken[a->slot] ? wrong(p, rank, "the slot is in use") : ERR_OK;
    }
    if (s->forward_only) return wrong(p, rank, "the schedule is only for forward passes");
    if (!cell->forward) return wrong(p, rank, "its forward pass has not run");
    if (cell->slot != a->slot) return wrong(p, rank, "its forward pass used a different slot");
    if (makes_input(a) && a->microbatch != state->next_input[a->chunk])
        return wrong(p, rank, "backward passes must process the microbatches in order");
    if (makes_weight(a) && a->microbatch != state->next_weight[a->chunk])
        return wrong(p, rank, "weight passes must process the microbatches in order");
    if (!makes_input(a) && !cell->input) return wrong(p, rank, "its input gradient has not been computed");
    return ERR_OK;
}

/* Returns the last message sent from the action's send buffer, or NULL if the action sends no message. */
static Message **buffer_of(const Player *p, int rank, const Action *a) {
    const RankState *state = &p->states[rank];
    const PipelineWay way = pipeline_way(a);
    if (pipeline_target(p->spec, rank, a).rank < 0) return NULL;
    return &state->from[way][state->sent[way] % p->schedules[rank].sent[way]];
}

/* Starts to receive the message for an action. */
static Err claim_buffer(const Player *p, int rank, const Action *a) {
    const PipelineWay way = pipeline_way(a);
    if ((pipeline_source(p->spec, rank, a).rank < 0) != (a->buffer < 0) ||
        a->buffer >= p->schedules[rank].received[way])
        return wrong(p, rank, "there is no such buffer");
    if (a->buffer < 0) return ERR_OK;
    int64_t *user = &p->states[rank].user[way][a->buffer];
    if (*user) return wrong(p, rank, "the message's buffer is in use");
    *user = 1 + a->slot;
    return ERR_OK;
}

/* Starts the receives for the next action's step or, with `overlap`, for the step after it. */
static Err claim_buffers(const Player *p, int rank) {
    const RankSchedule *r = &p->schedules[rank];
    const int64_t at = p->states[rank].at, end = at + pipeline_step(r, at);
    /* the receive was started with the pair's first action */
    if (at > 0 && r->actions[at - 1].pair) return ERR_OK;
    const int64_t first = at == 0 || !p->spec->overlap ? at : end,
                  next = p->spec->overlap ? end + pipeline_step(r, end) : end;
    for (int64_t i = first; i < next; i++) ERR_RETURN(claim_buffer(p, rank, &r->actions[i]));
    return ERR_OK;
}

static void release_buffers(const Player *p, int rank, int64_t slot) {
    for (int way = 0; way < PIPELINE_WAYS; way++)
        for (int64_t i = 0; i < p->schedules[rank].received[way]; i++)
            if (p->states[rank].user[way][i] == 1 + slot) p->states[rank].user[way][i] = 0;
}

/* Returns the time at which the action can start. Sets *waits_for to the reason why the action must wait, or to
 * NULL if there is none. */
static Err ready_at(const Player *p, int rank, const Action *a, double *ready, const char **waits_for) {
    RankState *state = &p->states[rank];
    StageRef source = pipeline_source(p->spec, rank, a);
    *ready = state->clock;
    *waits_for = NULL;
    if (a->kind == ACTION_BACKWARD_WEIGHT) return ERR_OK;
    Message *const *last = buffer_of(p, rank, a);
    if (p->times->rendezvous && last && *last) {
        if (!(*last)->received) *waits_for = "the last message from its buffer to be received";
        *ready = fmax(*ready, (*last)->receipt);
    }
    if (*waits_for || source.rank < 0) return ERR_OK; /* a message is received only when its action can run */
    Message *m = &cell_of(p, source.rank, source.chunk, a->microbatch)->message[pipeline_way(a)];
    if (!m->sent) *waits_for = "a message to be sent";
    if (!m->sent) return ERR_OK;
    *ready = fmax(*ready, m->arrival);
    if (m->number != p->states[source.rank].received[pipeline_way(a)]++)
        return wrong(p, rank, "it receives a message before another message that was sent earlier");
    m->received = true;
    m->receipt = *ready;
    return ERR_OK;
}

static void send(const Player *p, const RankState *state, Message *m) {
    if (m) m->sent = true, m->arrival = state->clock + p->times->latency;
}

static void perform(Player *p, int rank, const Action *a, double start) {
    RankState *state = &p->states[rank];
    RankTrace *trace = &p->out->ranks[rank];
    Cell *cell = cell_of(p, rank, a->chunk, a->microbatch);
    double takes = pipeline_duration(p->spec, p->times, rank, a);
    trace->start[state->at++] = start;
    trace->busy += takes;
    state->clock = start + takes;
    p->out->makespan = fmax(p->out->makespan, state->clock);
    Message **buffer = buffer_of(p, rank, a);
    Message *m = buffer ? *buffer = &cell->message[pipeline_way(a)] : NULL;
    if (m) *m = (Message){.number = state->sent[pipeline_way(a)]++};
    if (a->pair) {
        state->unsent = m;
    } else {
        send(p, state, m), send(p, state, state->unsent);
        state->unsent = NULL;
    }
    if (a->kind == ACTION_FORWARD) {
        cell->forward = state->taken[a->slot] = true;
        cell->slot = a->slot;
        if (++state->held > trace->peak_slots) trace->peak_slots = state->held;
    }
    if (makes_input(a)) cell->input = true, state->next_input[a->chunk]++;
    if (makes_weight(a)) cell->weight = true, state->next_weight[a->chunk]++;
    if (!pipeline_ends_slot(p->spec, a)) return;
    state->taken[a->slot] = false, state->held--;
    release_buffers(p, rank, a->slot);
}

/* Runs a rank until it must wait. Sets *moved if the rank made progress. Sets *waits_for to NULL if all actions
 * of the rank have finished. */
static Err advance(Player *p, int rank, bool *moved, const char **waits_for) {
    const RankSchedule *mine = &p->schedules[rank];
    *waits_for = NULL;
    for (RankState *state = &p->states[rank]; state->at < mine->count; *moved = true) {
        const Action *a = &mine->actions[state->at];
        double start;
        ERR_RETURN(judge(p, rank, a));
        ERR_RETURN(ready_at(p, rank, a, &start, waits_for));
        if (*waits_for) return ERR_OK;
        ERR_RETURN(claim_buffers(p, rank));
        perform(p, rank, a, start);
    }
    return ERR_OK;
}

static Err all_made(const Player *p) {
    const PipelineSpec *s = p->spec;
    for (int64_t i = 0; i < (int64_t)s->ranks * s->chunks * s->microbatches; i++) {
        const Cell *cell = &p->cells[i];
        if (cell->forward && (s->forward_only || (cell->input && cell->weight))) continue;
        int64_t stage = i / s->microbatches;
        return err_failed("pipeline rank %lld never runs the %s of microbatch %lld, chunk %lld",
                          (long long)(stage % s->ranks),
                          !cell->forward ? "forward"
                          : !cell->input ? "input gradient"
                                         : "weight gradient",
                          (long long)(i % s->microbatches), (long long)(stage / s->ranks));
    }
    return ERR_OK;
}

static Player player_new(const PipelineSpec *s, const RankSchedule *schedules, const PipelineTimes *times,
                         Arena *arena, Simulation *out) {
    Player p = {.spec = s, .schedules = schedules, .times = times, .out = out};
    p.cells =
        arena_alloc(arena, (size_t)s->chunks * (size_t)s->ranks * (size_t)s->microbatches * sizeof *p.cells);
    p.states = arena_alloc(arena, (size_t)s->ranks * sizeof *p.states);
    *out = (Simulation){.ranks = arena_alloc(arena, (size_t)s->ranks * sizeof *out->ranks)};
    for (int rank = 0; rank < s->ranks; rank++) {
        RankState *state = &p.states[rank];
        size_t slots = (size_t)schedules[rank].slots, chunks = (size_t)s->chunks;
        state->next_input = arena_alloc(arena, chunks * sizeof *state->next_input);
        state->next_weight = arena_alloc(arena, chunks * sizeof *state->next_weight);
        state->taken = arena_alloc(arena, slots * sizeof *state->taken);
        for (int way = 0; way < PIPELINE_WAYS; way++) {
            state->user[way] =
                arena_alloc(arena, (size_t)schedules[rank].received[way] * sizeof *state->user[way]);
            state->from[way] =
                arena_alloc(arena, (size_t)schedules[rank].sent[way] * sizeof *state->from[way]);
        }
        out->ranks[rank].start = arena_alloc(arena, (size_t)schedules[rank].count * sizeof(double));
    }
    return p;
}

Err pipeline_simulate(const PipelineSpec *s, const RankSchedule *schedules, const PipelineTimes *times,
                      Arena *arena, Simulation *out) {
    Player p = player_new(s, schedules, times, arena, out);
    for (;;) {
        const char *waits_for, *first_wait = NULL;
        bool moved = false;
        int stuck = -1;
        for (int rank = 0; rank < s->ranks; rank++) {
            ERR_RETURN(advance(&p, rank, &moved, &waits_for));
            if (waits_for && stuck < 0) stuck = rank, first_wait = waits_for;
        }
        if (stuck < 0) return all_made(&p);
        if (moved) continue;
        char what[128];
        snprintf(what, sizeof what, "a deadlock: it waits for %s", first_wait);
        return wrong(&p, stuck, what);
    }
}

/* Returns whether a chunk's next microbatch has always arrived by the end of a pair. */
static bool fills_pairs(const PipelineSpec *s) {
    const int64_t m = s->microbatches, p = s->ranks, group = s->group < m ? s->group : m;
    if (s->chunks == 1) return m % 2 == 0 || m >= 2 * p;
    return group % 2 == 0 && group >= 2 * p && m % group == 0;
}

double pipeline_bubble(const PipelineSpec *s, PassTimes t) {
    int64_t m = s->microbatches, p = s->ranks;
    bool gpipe = s->kind == SCHEDULE_GPIPE && !s->forward_only;
    const bool pairs = s->mixed && !s->forward_only;
    if (s->chunks > 1 && (gpipe ? m < p : m % p)) return NAN;
    if (pairs && !fills_pairs(s)) return NAN;
    if (s->forward_only) return (double)(p - 1) * t.forward;
    double bubble = (double)(p - 1) * (t.forward + t.backward_input);
    if (pairs) return 2 * (bubble + (double)(p - 1) * t.backward_weight);
    if (s->kind != SCHEDULE_ZERO_BUBBLE) return bubble + (double)(p - 1) * t.backward_weight;
    /* If `fits` is true, weight passes delay no other rank, and delayed weight passes fill gaps at the
     * end. */
    bool fits = t.backward_weight <= t.forward && t.backward_weight <= t.backward_input;
    return fits ? bubble - (double)((m < p ? m : p) - 1) * t.backward_weight : NAN;
}
