#include "pipeline/executor.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"

typedef struct Slot {
    Tape *tape;
    Space *space, *transient; /* transient: the executor's, or with zero-bubble this slot's own, for gradients
                                 wait in it for the weight pass */
    Tensor *x, *y;
    CommWork *sending; /* y; NULL: nothing on its way */
} Slot;

/* An input's gradient on its way. */
typedef struct Parcel {
    void *data;
    CommWork *sending;
} Parcel;

struct Executor {
    const RunContext *context;
    const Gpt *model;
    ExecutorMemory memory;
    int64_t dim[3]; /* of what goes from stage to stage */
    SpmdType type;
    Space *transient;
    Offload *offload; /* NULL: nothing is offloaded */
    Slot *slots;
    int64_t n_slots;
    Parcel *parcels;
    int64_t n_parcels, sent;
    bool own_transients;
    TapeTrace *trace;
    void *trace_arg;
};

/* ---- memory ---- */

static size_t message_bytes(const Executor *e) {
    const Tensor t = tensor_make(NULL, e->context->dtype, 3, e->dim);
    return tensor_bytes(&t);
}

Executor *executor_new(const RunContext *context, const Gpt *model, int64_t samples, ExecutorMemory memory) {
    Executor *e = mem_zero(1, sizeof *e);
    *e = (Executor){.context = context, .model = model, .memory = memory};
    e->type = gpt_boundary(model, samples, e->dim);
    e->transient = space_new(context->device, "transient", memory.transient);
    const int64_t offloaded = model->config->cpu_offloading_num_layers;
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

/* Input gradients on their way at once; none without a pipeline. */
static int64_t parcels_of(const Executor *e, const RankSchedule *s) {
    const Layout *l = e->context->layout;
    return l && l->mesh.size[AXIS_PP] > 1 ? s->gradients : 0;
}

static void provide(Executor *e, const RankSchedule *s, bool own_transients) {
    Device *d = e->context->device;
    if (s->slots > e->n_slots || own_transients != e->own_transients) {
        free_slots(e);
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

void executor_trace(Executor *e, TapeTrace *trace, void *arg) {
    e->trace = trace, e->trace_arg = arg;
    for (int64_t i = 0; i < e->n_slots; i++) tape_trace(e->slots[i].tape, trace, arg);
}

/* ---- messages ---- */

/* The ranks of the pipeline. Gradients take the group in reverse order: another group, so that with two ranks
 * and several chunks the two directions do not mix. */
static Group way(const Executor *e, bool back) {
    Group g = mesh_group(&e->context->layout->mesh, 1 << AXIS_PP);
    if (!back) return g;
    const int stride = g.axis_stride[0];
    g.first += (g.size - 1) * stride;
    g.axis_stride[0] = -stride;
    g.rank = g.size - 1 - g.rank;
    return g;
}

static CommCall message(const Executor *e, CommKind kind, bool back, int peer) {
    const Tensor t = tensor_make(NULL, e->context->dtype, 3, e->dim);
    const Group g = way(e, back);
    return (CommCall){.kind = kind,
                      .dtype = e->context->dtype,
                      .group = g,
                      .site = back ? "pipeline_gradient" : "pipeline_activation",
                      .n = tensor_count(&t),
                      .device = e->context->device,
                      .peer = back ? g.size - 1 - peer : peer};
}

static bool is_null(const Executor *e) { return e->context->device->kind == DEVICE_NULL; }

static void receive(Executor *e, bool back, int peer, void *out) {
    if (is_null(e)) return;
    CommCall call = message(e, COMM_RECV, back, peer);
    call.out = out;
    comm_run(e->context->comm, &call);
}

static CommWork *start_send(Executor *e, bool back, int peer, const void *in) {
    if (is_null(e)) return NULL;
    CommCall call = message(e, COMM_SEND, back, peer);
    call.in = in;
    return comm_start(e->context->comm, &call);
}

static void finish_send(Executor *e, CommWork **work) {
    if (*work) comm_wait(e->context->comm, *work);
    *work = NULL;
}

static void send_gradient(Executor *e, int peer, Tensor *dx) {
    Parcel *p = &e->parcels[e->sent++ % e->n_parcels];
    finish_send(e, &p->sending);
    Tensor copy = tensor_make(p->data, (DType)dx->dtype, 3, dx->dim);
    call_run(&OPS[OP_copy], &(Call){.in = {dx}, .out = {&copy}, .device = e->context->device});
    p->sending = start_send(e, true, peer, p->data);
}

/* ---- passes ---- */

static void end_slot(Executor *e, Slot *s) {
    finish_send(e, &s->sending);
    tape_end(s->tape);
    s->x = s->y = NULL;
}

static void forward(Executor *e, const PipelineSpec *spec, int rank, const Action *a, const Microbatch *mb,
                    Tensor *loss_sum) {
    Slot *s = &e->slots[a->slot];
    const StageRef source = pipeline_source(spec, rank, a), target = pipeline_target(spec, rank, a);
    finish_send(e, &s->sending);
    tape_begin(s->tape, &mb->context);
    s->x = NULL;
    if (source.rank >= 0) {
        s->x = tape_input(s->tape, e->context->dtype, 3, e->dim, e->type);
        receive(e, false, source.rank, s->x->data);
    }
    s->y = gpt_stage(s->tape, e->model, a->chunk, &mb->feed, s->x);
    if (e->model->stages[a->chunk].head && loss_sum)
        tape_call(s->tape, &OPS[OP_weighted_sum],
                  (Call){.in = {s->y, mb->feed.loss_mask}, .out = {loss_sum}});
    if (target.rank >= 0) {
        CHECK(tensor_is_contiguous(s->y) && s->y->spmd == e->type,
              "a stage's output is not what the next one takes");
        s->sending = start_send(e, false, target.rank, s->y->data);
    } else if (spec->forward_only) {
        end_slot(e, s);
    }
}

static void backward(Executor *e, const PipelineSpec *spec, int rank, const Action *a, const Microbatch *mb) {
    static const Need NEED[] = {
        [ACTION_BACKWARD] = NEED_ALL, [ACTION_BACKWARD_INPUT] = NEED_DX, [ACTION_BACKWARD_WEIGHT] = NEED_DW};
    Slot *s = &e->slots[a->slot];
    Tensor *dy = NULL;
    if (a->kind != ACTION_BACKWARD_WEIGHT) {
        const StageRef source = pipeline_source(spec, rank, a);
        if (source.rank >= 0) {
            dy = tape_scratch(s->tape, e->context->dtype, 3, e->dim);
            receive(e, true, source.rank, dy->data);
        } else {
            dy = mb->feed.dloss;
        }
    }
    tape_backward(s->tape, s->y, dy, NEED[a->kind]);
    const StageRef target = pipeline_target(spec, rank, a);
    if (target.rank >= 0 && a->kind != ACTION_BACKWARD_WEIGHT)
        send_gradient(e, target.rank, tape_grad(s->tape, s->x));
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
            backward(e, spec, rank, a, mb);
    }
    for (int64_t i = 0; i < e->n_slots; i++) end_slot(e, &e->slots[i]);
    for (int64_t i = 0; i < e->n_parcels; i++) finish_send(e, &e->parcels[i].sending);
}
