#include "pipeline/executor.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"

typedef struct Slot {
    Tape *tape;
    /* transient: the executor's; with zero-bubble this slot's own, because gradients wait there for the
     * weight pass. */
    Space *space, *transient;
    Flow x, y;
    CommWork *sending[MODEL_FLOWS]; /* y; NULL: no send in progress */
} Slot;

/* The gradients of a stage's input while they are sent. */
typedef struct Parcel {
    void *data;
    CommWork *sending[MODEL_FLOWS];
} Parcel;

struct Executor {
    const RunContext *context;
    const Model *model;
    ExecutorMemory memory;
    int n_flows;
    struct {
        int64_t dim[3];
        SpmdType type;
    } flow[MODEL_FLOWS]; /* the tensors between stages */
    Space *transient;
    Offload *offload; /* NULL: none */
    Slot *slots;
    int64_t n_slots;
    Parcel *parcels;
    int64_t n_parcels, sent;
    bool own_transients;
    int64_t allocations;
    TapeTrace *trace;
    void *trace_arg;
};

/* ---- memory ---- */

static Tensor message(const Executor *e, int flow, void *data) {
    return tensor_make(data, e->context->dtype, 3, e->flow[flow].dim);
}

/* Messages of all flows. */
static size_t message_bytes(const Executor *e) {
    size_t bytes = 0;
    for (int i = 0; i < e->n_flows; i++) {
        const Tensor t = message(e, i, NULL);
        bytes += tensor_bytes(&t);
    }
    return bytes;
}

Executor *executor_new(const RunContext *context, const Model *model, int64_t samples,
                       ExecutorMemory memory) {
    Executor *e = mem_zero(1, sizeof *e);
    *e = (Executor){.context = context, .model = model, .memory = memory};
    e->n_flows = model->plan.n_flows;
    for (int i = 0; i < e->n_flows; i++) e->flow[i].type = model_flow(model, i, samples, e->flow[i].dim);
    e->transient = space_new(context->device, "transient", memory.transient);
    const int64_t offloaded = model->plan.stack[0].offloaded;
    if (offloaded) e->offload = offload_new(context->device, offloaded, memory.offload);
    return e;
}

static void free_slots(Executor *e) {
    for (int64_t i = 0; i < e->n_slots; i++) {
        tape_free(e->slots[i].tape);
        space_free(e->slots[i].space);
        if (e->own_transients) space_free(e->slots[i].transient);
    }
    free(e->slots);
    e->slots = NULL, e->n_slots = 0;
}

static void free_parcels(Executor *e) {
    for (int64_t i = 0; i < e->n_parcels; i++)
        device_release(e->context->device, e->parcels[i].data, message_bytes(e));
    free(e->parcels);
    e->parcels = NULL, e->n_parcels = 0;
}

void executor_free(Executor *e) {
    if (!e) return;
    free_slots(e);
    free_parcels(e);
    space_free(e->transient);
    offload_free(e->offload);
    free(e);
}

/* Number of input gradients that are sent at once; 0 without a pipeline. */
static int64_t parcels_of(const Executor *e, const RankSchedule *s) {
    const Layout *l = e->context->layout;
    return l && l->mesh.size[AXIS_PP] > 1 ? s->gradients : 0;
}

static void provide(Executor *e, const RankSchedule *s, bool own_transients) {
    Device *d = e->context->device;
    if (s->slots > e->n_slots || own_transients != e->own_transients) {
        free_slots(e);
        e->allocations++;
        e->own_transients = own_transients;
        e->slots = mem_zero((size_t)s->slots, sizeof *e->slots);
        for (e->n_slots = 0; e->n_slots < s->slots; e->n_slots++) {
            Slot *slot = &e->slots[e->n_slots];
            slot->space = space_new(d, "activation", e->memory.slot);
            slot->transient = own_transients ? space_new(d, "transient", e->memory.transient) : e->transient;
            slot->tape = tape_new(e->context, slot->space, slot->transient);
            tape_trace(slot->tape, e->trace, e->trace_arg);
            tape_offload_to(slot->tape, e->offload);
        }
    }
    const int64_t parcels = parcels_of(e, s);
    if (parcels > e->n_parcels) {
        free_parcels(e);
        e->allocations++;
        e->parcels = mem_zero((size_t)parcels, sizeof *e->parcels);
        for (e->n_parcels = 0; e->n_parcels < parcels; e->n_parcels++)
            e->parcels[e->n_parcels].data = device_alloc(d, message_bytes(e), "pipeline messages");
    }
}

ExecutorMemory executor_peak(const Executor *e) {
    ExecutorMemory m = {.transient = space_peak(e->transient)};
    if (e->offload) m.offload = offload_peak(e->offload);
    for (int64_t i = 0; i < e->n_slots; i++) {
        const size_t used = space_peak(e->slots[i].space), transient = space_peak(e->slots[i].transient);
        if (used > m.slot) m.slot = used;
        if (transient > m.transient) m.transient = transient;
    }
    return m;
}

size_t executor_bytes(const Executor *e, const RankSchedule *s, bool zero_bubble, ExecutorMemory m) {
    return (size_t)s->slots * (m.slot + (zero_bubble ? m.transient : 0)) + m.transient +
           (size_t)parcels_of(e, s) * message_bytes(e) +
           (e->offload ? offload_bytes(e->offload, m.offload) : 0);
}

int64_t executor_allocations(const Executor *e) { return e->allocations; }

void executor_trace(Executor *e, TapeTrace *trace, void *arg) {
    e->trace = trace, e->trace_arg = arg;
    for (int64_t i = 0; i < e->n_slots; i++) tape_trace(e->slots[i].tape, trace, arg);
}

/* ---- messages ---- */

/* The ranks of the pipeline. Gradients use the group in reverse order, which is another group, so that with
 * two ranks and several chunks the two directions do not mix. */
static Group way(const Executor *e, bool back) {
    Group g = mesh_group(&e->context->layout->mesh, 1 << AXIS_PP);
    if (!back) return g;
    const int stride = g.axis_stride[0];
    g.first += (g.size - 1) * stride;
    g.axis_stride[0] = -stride;
    g.rank = g.size - 1 - g.rank;
    return g;
}

static CommCall message_call(const Executor *e, CommKind kind, bool back, int peer, const Tensor *t) {
    const Group g = way(e, back);
    return (CommCall){.kind = kind,
                      .dtype = e->context->dtype,
                      .group = g,
                      .site = back ? "pipeline_gradient" : "pipeline_activation",
                      .n = tensor_count(t),
                      .device = e->context->device,
                      .peer = back ? g.size - 1 - peer : peer};
}

static bool is_null(const Executor *e) { return e->context->device->kind == DEVICE_NULL; }

static void receive(Executor *e, bool back, int peer, const Flow *out) {
    for (int i = 0; i < e->n_flows && !is_null(e); i++) {
        CommCall call = message_call(e, COMM_RECV, back, peer, out->at[i]);
        call.out = out->at[i]->data;
        comm_run(e->context->comm, &call);
    }
}

static void start_send(Executor *e, bool back, int peer, const Flow *in, CommWork *work[MODEL_FLOWS]) {
    for (int i = 0; i < e->n_flows && !is_null(e); i++) {
        CommCall call = message_call(e, COMM_SEND, back, peer, in->at[i]);
        call.in = in->at[i]->data;
        work[i] = comm_start(e->context->comm, &call);
    }
}

static void finish_send(Executor *e, CommWork *work[MODEL_FLOWS]) {
    for (int i = 0; i < e->n_flows; i++) {
        if (work[i]) comm_wait(e->context->comm, work[i]);
        work[i] = NULL;
    }
}

static void send_gradients(Executor *e, int peer, Slot *s) {
    Parcel *p = &e->parcels[e->sent++ % e->n_parcels];
    Tensor copy[MODEL_FLOWS];
    Flow flow;
    char *at = p->data;
    finish_send(e, p->sending);
    for (int i = 0; i < e->n_flows; at += tensor_bytes(&copy[i++])) {
        copy[i] = message(e, i, at);
        flow.at[i] = &copy[i];
        call_run(
            &OPS[OP_copy],
            &(Call){.in = {tape_grad(s->tape, s->x.at[i])}, .out = {&copy[i]}, .device = e->context->device});
    }
    start_send(e, true, peer, &flow, p->sending);
}

/* ---- passes ---- */

static void end_slot(Executor *e, Slot *s) {
    finish_send(e, s->sending);
    tape_end(s->tape);
}

static void forward(Executor *e, const PipelineSpec *spec, int rank, const Action *a, const Microbatch *mb,
                    Tensor *loss_sum) {
    Slot *s = &e->slots[a->slot];
    const StageRef source = pipeline_source(spec, rank, a), target = pipeline_target(spec, rank, a);
    finish_send(e, s->sending);
    tape_begin(s->tape, &mb->context);
    if (source.rank >= 0) {
        for (int i = 0; i < e->n_flows; i++)
            s->x.at[i] = tape_input(s->tape, e->context->dtype, 3, e->flow[i].dim, e->flow[i].type);
        receive(e, false, source.rank, &s->x);
    }
    s->y = model_stage(s->tape, e->model, a->chunk, &mb->feed, s->x);
    if (e->model->stages[a->chunk].head && loss_sum)
        tape_call(s->tape, &OPS[OP_weighted_sum],
                  (Call){.in = {s->y.at[0], mb->feed.loss_mask}, .out = {loss_sum}});
    if (target.rank >= 0) {
        for (int i = 0; i < e->n_flows; i++)
            CHECK(tensor_is_contiguous(s->y.at[i]) && s->y.at[i]->spmd == e->flow[i].type,
                  "a stage's output '%s' is not what the next one takes", e->model->plan.flow[i].name);
        start_send(e, false, target.rank, &s->y, s->sending);
    } else if (spec->forward_only) {
        end_slot(e, s);
    }
}

static void executor_backward(Executor *e, const PipelineSpec *spec, int rank, const Action *a,
                              const Microbatch *mb) {
    static const Need NEED[] = {
        [ACTION_BACKWARD] = NEED_ALL, [ACTION_BACKWARD_INPUT] = NEED_DX, [ACTION_BACKWARD_WEIGHT] = NEED_DW};
    Slot *s = &e->slots[a->slot];
    const StageRef source = pipeline_source(spec, rank, a), target = pipeline_target(spec, rank, a);
    const bool gives = a->kind != ACTION_BACKWARD_WEIGHT;
    if (gives && source.rank >= 0) {
        Flow dy;
        for (int i = 0; i < e->n_flows; i++)
            dy.at[i] = tape_scratch(s->tape, e->context->dtype, 3, e->flow[i].dim);
        receive(e, true, source.rank, &dy);
        for (int i = 0; i < e->n_flows; i++) tape_give(s->tape, s->y.at[i], dy.at[i]);
    } else if (gives) {
        tape_give(s->tape, s->y.at[0], mb->feed.dloss);
    }
    tape_play(s->tape, NEED[a->kind]);
    if (gives && target.rank >= 0) send_gradients(e, target.rank, s);
    if (a->kind != ACTION_BACKWARD_INPUT) end_slot(e, s);
}

void executor_run(Executor *e, const PipelineSpec *spec, const RankSchedule *schedule,
                  const Microbatch *microbatches, Tensor *loss_sum) {
    const int rank = e->context->layout ? e->context->layout->mesh.coordinate[AXIS_PP] : 0;
    CHECK(!e->offload || spec->forward_only || schedule->slots == 1,
          "two microbatches offload their activations");
    provide(e, schedule, spec->kind == SCHEDULE_ZERO_BUBBLE);
    for (int64_t i = 0; i < schedule->count; i++) {
        const Action *a = &schedule->actions[i];
        const Microbatch *mb = &microbatches[a->microbatch];
        if (a->kind == ACTION_FORWARD)
            forward(e, spec, rank, a, mb, loss_sum);
        else
            executor_backward(e, spec, rank, a, mb);
    }
    for (int64_t i = 0; i < e->n_slots; i++) end_slot(e, &e->slots[i]);
    for (int64_t i = 0; i < e->n_parcels; i++) finish_send(e, e->parcels[i].sending);
}
