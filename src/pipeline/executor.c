#include "pipeline/executor.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

/* A microbatch in flight. */
typedef struct Slot {
    Tape *tape;
    /* With zero-bubble, `transient` is a separate space for each slot, because gradients stay there until the
     * weight pass. Otherwise, `transient` is the executor's space for the current pass. */
    Space *space, *transient;
    Flow x, y;
} Slot;

/* A contiguous buffer for the tensors (one for each flow) that cross a border between stages. */
typedef struct Message {
    char *data;
    CommWork *work; /* the send or receive in progress, or NULL if there is none */
} Message;

typedef struct Messages {
    Message *at;
    int64_t n, next; /* next: index of the next buffer for sending */
} Messages;

struct Executor {
    const RunContext *context;
    const Model *model;
    ExecutorMemory memory;
    int64_t interleaved; /* number of passes that are interleaved */
    int64_t unit;        /* number of microbatches per schedule action */
    Fiber **fibers;      /* [interleaved] */
    int n_flows;
    struct {
        int64_t dim[3];
        SpmdType type;
    } flow[MODEL_FLOWS];  /* the tensors between stages */
    size_t message_bytes; /* size in bytes of the largest message that this rank sends or receives */
    Space **transient;    /* [interleaved] */
    Offload *offload;     /* NULL if no layer is offloaded */
    Offload *module[OFFLOAD_MODULES]; /* NULL for modules that are not offloaded */
    /* [n_slots, unit]: each slot of the schedule has memory for one unit of microbatches */
    Slot *slots;
    int64_t n_slots;
    Messages received[PIPELINE_WAYS], sent[PIPELINE_WAYS];
    /* [forward_only]: the largest number of microbatches in any run so far; the kernels of runs up to this size
     * are loaded */
    int64_t most[2];
    bool staged;    /* whether messages between stages pass through host memory */
    bool evaluates; /* true if the run has no backward pass */
    bool is_open;   /* whether the pipeline's channels are open */
    bool own_transients;
    int64_t allocations;
    TapeTrace *trace;
    void *trace_arg;
};

/* ---- memory ---- */

static Tensor flow_tensor(const Executor *e, int flow, void *data) {
    return tensor_make(data, e->context->dtype, 3, e->flow[flow].dim);
}

static bool crosses(const Executor *e, int flow, int64_t border) {
    const FlowSpec *f = &e->model->plan.flow[flow];
    return flow_crosses(f, border) && !(e->evaluates && f->auxiliary);
}

/* Returns the number of elements in the message at a border. */
static int64_t message_count(const Executor *e, int64_t border) {
    int64_t n = 0;
    for (int i = 0; i < e->n_flows; i++) {
        const Tensor t = flow_tensor(e, i, NULL);
        if (crosses(e, i, border)) n += tensor_count(&t);
    }
    return n;
}

static size_t largest_message(const Executor *e) {
    int64_t most = 0;
    for (int i = 0; i < 2 * e->model->n_stages; i++) {
        const StagePart *p = &e->model->stages[i / 2];
        const int64_t n = message_count(e, p->first_layer + (i % 2) * p->layers);
        if (n > most) most = n;
    }
    return (size_t)most * dtype_size(e->context->dtype);
}

/* Opens a space. If the space has a planned size, registers its memory. A dry run has no planned memory. */
static Space *open_space(const RunContext *context, const char *name, size_t bytes) {
    Space *s = space_new(context->device, name, bytes);
    if (!context->registered || !bytes) return s;
    const Group g = mesh_group(&context->layout->mesh, 1u << AXIS_TP);
    comm_register(context->comm, &g, space_base(s), space_capacity(s));
    return s;
}

static void close_space(const RunContext *context, Space *s) {
    if (context->registered) comm_unregister(context->comm, space_base(s));
    space_free(s);
}

Executor *executor_new(const RunContext *context, const Model *model, int64_t samples, int64_t interleaved,
                       int64_t unit, ExecutorMemory memory) {
    Executor *e = mem_zero(1, sizeof *e);
    *e = (Executor){
        .context = context, .model = model, .memory = memory, .interleaved = interleaved, .unit = unit};
    e->n_flows = model->plan.n_flows;
    for (int i = 0; i < e->n_flows; i++) e->flow[i].type = model_flow(model, i, samples, e->flow[i].dim);
    e->message_bytes = largest_message(e);
    e->transient = mem_zero((size_t)interleaved, sizeof(Space *));
    e->fibers = mem_zero((size_t)interleaved, sizeof(Fiber *));
    for (int64_t i = 0; i < interleaved; i++) {
        e->transient[i] = open_space(context, "transient", memory.transient);
        e->fibers[i] = fiber_new();
    }
    const int64_t offloaded = model->plan.stack[0].offloaded; /* number of offloaded layers in all stacks */
    if (offloaded) e->offload = offload_new(context->device, offloaded, memory.offload);
    for (int m = 0; m < OFFLOAD_MODULES; m++)
        if (model->plan.stack[0].offloaded_modules & 1u << m)
            e->module[m] = offload_new(context->device, 0, memory.module[m]);
    return e;
}

static int64_t slot_count(const Executor *e) { return e->n_slots * e->unit; }

static void free_slots(Executor *e) {
    for (int64_t i = 0; i < slot_count(e); i++) {
        tape_free(e->slots[i].tape);
        close_space(e->context, e->slots[i].space);
        if (e->own_transients) close_space(e->context, e->slots[i].transient);
    }
    free(e->slots);
    e->slots = NULL, e->n_slots = 0;
}

static void free_messages(Executor *e, Messages *m) {
    for (int64_t i = 0; i < m->n; i++) device_release(e->context->device, m->at[i].data, e->message_bytes);
    free(m->at);
    *m = (Messages){0};
}

static void provide_messages(Executor *e, Messages *m, int64_t n) {
    if (n <= m->n) return;
    free_messages(e, m);
    e->allocations++;
    m->at = mem_zero((size_t)n, sizeof *m->at);
    for (; m->n < n; m->n++)
        m->at[m->n].data = device_alloc(e->context->device, e->message_bytes, "pipeline messages");
}

void executor_free(Executor *e) {
    if (!e) return;
    free_slots(e);
    for (int way = 0; way < PIPELINE_WAYS; way++)
        free_messages(e, &e->received[way]), free_messages(e, &e->sent[way]);
    for (int64_t i = 0; i < e->interleaved; i++)
        close_space(e->context, e->transient[i]), fiber_free(e->fibers[i]);
    free(e->transient);
    free(e->fibers);
    offload_free(e->offload);
    for (int m = 0; m < OFFLOAD_MODULES; m++) offload_free(e->module[m]);
    free(e);
}

void executor_provide(Executor *e, const PipelineSpec *spec, const RankSchedule *s) {
    const bool own_transients = spec->kind == SCHEDULE_ZERO_BUBBLE;
    if (s->slots > e->n_slots || own_transients != e->own_transients) {
        free_slots(e);
        e->allocations++;
        e->own_transients = own_transients;
        e->n_slots = s->slots;
        e->slots = mem_zero((size_t)slot_count(e), sizeof *e->slots);
        for (int64_t i = 0; i < slot_count(e); i++) {
            Slot *slot = &e->slots[i];
            slot->space = open_space(e->context, "activation", e->memory.slot);
            slot->transient = own_transients ? open_space(e->context, "transient", e->memory.transient)
                                             : e->transient[i % e->interleaved];
            slot->tape = tape_new(e->context, slot->space, slot->transient);
            tape_trace(slot->tape, e->trace, e->trace_arg);
            tape_offload_to(slot->tape, e->offload);
            for (int m = 0; m < OFFLOAD_MODULES; m++)
                tape_offload_module_to(slot->tape, (OffloadModule)m, e->module[m],
                                       e->model->plan.stack[0].offloaded_least);
        }
    }
    for (int way = 0; way < PIPELINE_WAYS; way++) {
        provide_messages(e, &e->received[way], s->received[way] * e->unit);
        provide_messages(e, &e->sent[way], s->sent[way] * e->unit);
    }
}

ExecutorMemory executor_peak(const Executor *e) {
    ExecutorMemory m = {.transient = space_peak(e->transient[0])};
    if (e->offload) m.offload = offload_peak(e->offload);
    for (int i = 0; i < OFFLOAD_MODULES; i++)
        if (e->module[i]) m.module[i] = offload_peak(e->module[i]);
    for (int64_t i = 0; i < slot_count(e); i++) {
        const size_t used = space_peak(e->slots[i].space), transient = space_peak(e->slots[i].transient);
        if (used > m.slot) m.slot = used;
        if (transient > m.transient) m.transient = transient;
    }
    return m;
}

size_t executor_bytes(const Executor *e, const RankSchedule *s, bool zero_bubble, ExecutorMemory m) {
    int64_t messages = 0;
    for (int way = 0; way < PIPELINE_WAYS; way++) messages += s->received[way] + s->sent[way];
    const size_t of_one =
        (size_t)s->slots * (m.slot + (zero_bubble ? m.transient : 0)) + (size_t)messages * e->message_bytes;
    size_t offloaded = e->offload ? offload_bytes(e->offload, m.offload) : 0;
    for (int i = 0; i < OFFLOAD_MODULES; i++)
        if (e->module[i]) offloaded += offload_bytes(e->module[i], m.module[i]);
    return (size_t)e->unit * of_one + (size_t)e->interleaved * m.transient + offloaded;
}

size_t executor_host_bytes(const ExecutorMemory *m) {
    size_t sum = m->offload.host;
    for (int i = 0; i < OFFLOAD_MODULES; i++) sum += m->module[i].host;
    return sum;
}

int64_t executor_allocations(const Executor *e) { return e->allocations; }

void executor_trace(Executor *e, TapeTrace *trace, void *arg) {
    e->trace = trace, e->trace_arg = arg;
    for (int64_t i = 0; i < slot_count(e); i++) tape_trace(e->slots[i].tape, trace, arg);
}

/* ---- messages ---- */

/* Returns the pipeline's group of ranks. Gradients use the reversed group. The reversed group has separate
 * channels, so the two directions are independent, even with two ranks and several chunks. */
static Group group_of(const Executor *e, PipelineWay way) {
    Group g = mesh_group(&e->context->layout->mesh, 1 << AXIS_PP);
    if (way == PIPELINE_UP) return g;
    const int stride = g.axis_stride[0];
    g.first += (g.size - 1) * stride;
    g.axis_stride[0] = -stride;
    g.rank = g.size - 1 - g.rank;
    return g;
}

static CommCall message_call(const Executor *e, CommKind kind, PipelineWay way, int peer) {
    const Group g = group_of(e, way);
    return (CommCall){.kind = kind,
                      .dtype = e->context->dtype,
                      .group = g,
                      .site = way == PIPELINE_UP ? "pipeline_activation" : "pipeline_gradient",
                      .device = e->context->device,
                      .staged = e->staged,
                      .peer = way == PIPELINE_UP ? peer : g.size - 1 - peer};
}

static bool is_null(const Executor *e) { return e->context->device->kind == DEVICE_NULL; }

/* Opens the channels in advance. Otherwise, each group would open its channels at its first message, and early
 * receives would change the order, which must be the same on all ranks. */
static void open_channels(Executor *e) {
    char none;
    for (int way = 0; way < PIPELINE_WAYS; way++) {
        const Group g = group_of(e, way);
        const int next = (g.rank + 1) % g.size, last = (g.rank + g.size - 1) % g.size;
        CommCall send = message_call(e, COMM_SEND, way, 0), receive = message_call(e, COMM_RECV, way, 0);
        send.in = receive.out = &none;
        send.peer = next, receive.peer = last;
        CommWork *work = comm_start(e->context->comm, &send);
        comm_run(e->context->comm, &receive);
        comm_wait(e->context->comm, work);
    }
    e->is_open = true;
}

void executor_plan(const Executor *e, Comm *c) {
    for (int way = 0; way < PIPELINE_WAYS; way++) {
        CommCall call = message_call(e, COMM_SEND, way, 0);
        call.peer = (call.group.rank + 1) % call.group.size;
        comm_plan(c, &call);
    }
}

/* Returns the border that the action's input or result crosses. A border is identified by the number of layers below
 * it. */
static int64_t border_of(const Executor *e, const Action *a, bool result) {
    const StagePart *p = &e->model->stages[a->chunk];
    return p->first_layer + (result == (a->kind == ACTION_FORWARD) ? p->layers : 0);
}

/* Lists the tensors of a message. Entries of flows that do not cross the border are unchanged. */
static void message_tensors(const Executor *e, const Message *m, int64_t border, Tensor out[MODEL_FLOWS]) {
    char *at = m->data;
    for (int i = 0; i < e->n_flows; i++) {
        if (!crosses(e, i, border)) continue;
        out[i] = flow_tensor(e, i, at);
        at += tensor_bytes(&out[i]);
    }
}

static void message_start(Executor *e, CommKind kind, PipelineWay way, int peer, int64_t border, Message *m) {
    if (!comm_starts(e->context->comm, e->context->device)) return;
    CommCall call = message_call(e, kind, way, peer);
    call.in = call.out = m->data;
    call.n = message_count(e, border);
    m->work = comm_start(e->context->comm, &call);
}

static void message_finish(Executor *e, Message *m) {
    if (m->work) comm_wait(e->context->comm, m->work);
    m->work = NULL;
}

/* Returns the buffer that receives an action's message for a member of its unit. */
static Message *received(const Executor *e, const Action *a, int64_t member) {
    return &e->received[pipeline_way(a)].at[a->buffer * e->unit + member];
}

/* Return the first microbatch of an action's unit, and the number of microbatches in the unit. The last unit may be
 * smaller. */
static int64_t first_of(const Executor *e, const Action *a) { return a->microbatch * e->unit; }

static int64_t members_of(const Executor *e, const Action *a, int64_t microbatches) {
    const int64_t left = microbatches - first_of(e, a);
    return left < e->unit ? left : e->unit;
}

/* Starts the receives for the actions in one schedule step (pipeline_step), which begins with `action`. */
static void start_receives(Executor *e, const PipelineSpec *spec, int rank, const RankSchedule *schedule,
                           int64_t action, int64_t microbatches) {
    const int64_t end = action + pipeline_step(schedule, action);
    for (const Action *a = &schedule->actions[action]; a < &schedule->actions[end]; a++) {
        const StageRef source = pipeline_source(spec, rank, a);
        for (int64_t i = 0; source.rank >= 0 && i < members_of(e, a, microbatches); i++)
            message_start(e, COMM_RECV, pipeline_way(a), source.rank, border_of(e, a, false),
                          received(e, a, i));
    }
}

/* Waits until the next send buffer may be written, and returns the buffer. */
static Message *next_to_send(Executor *e, PipelineWay way) {
    Messages *all = &e->sent[way];
    Message *m = &all->at[all->next++ % all->n];
    message_finish(e, m);
    return m;
}

/* Sends an action's result. Copies the tensors that are not yet in the message. */
static void send_tensors(Executor *e, const Action *a, int peer, Message *m, const Flow *x) {
    const int64_t border = border_of(e, a, true);
    Tensor t[MODEL_FLOWS];
    message_tensors(e, m, border, t);
    for (int i = 0; i < e->n_flows; i++)
        if (crosses(e, i, border) && x->at[i]->data != t[i].data)
            call_run(&OPS[OP_copy], &(Call){.in = {x->at[i]}, .out = {&t[i]}, .device = e->context->device});
    message_start(e, COMM_SEND, pipeline_way(a), peer, border, m);
}

/* ---- passes ---- */

/* The part of an action that processes one microbatch. */
typedef struct Pass {
    Executor *executor;
    const PipelineSpec *spec;
    const Action *action;
    const Microbatch *microbatch;
    Tensor *loss_sum;
    int64_t member; /* index of the member in the unit */
    int rank;       /* rank in the pipeline */
    bool is_done;
} Pass;

static Slot *slot_of(const Pass *p) {
    return &p->executor->slots[p->action->slot * p->executor->unit + p->member];
}

static void forward(const Pass *p) {
    Executor *e = p->executor;
    const ModelPlan *plan = &e->model->plan;
    const PipelineSpec *spec = p->spec;
    const Action *a = p->action;
    const Microbatch *mb = p->microbatch;
    Slot *s = slot_of(p);
    const StageRef source = pipeline_source(spec, p->rank, a), target = pipeline_target(spec, p->rank, a);
    const int64_t below = border_of(e, a, false), above = border_of(e, a, true);
    Message *out = target.rank >= 0 ? next_to_send(e, PIPELINE_UP) : NULL;
    s->x = (Flow){{NULL}};
    tape_begin(s->tape, &mb->context);
    tape_output_to(s->tape, out ? out->data : NULL);
    if (source.rank >= 0) {
        Tensor x[MODEL_FLOWS];
        message_finish(e, received(e, a, p->member));
        message_tensors(e, received(e, a, p->member), below, x);
        for (int i = 0; i < e->n_flows; i++)
            if (crosses(e, i, below))
                s->x.at[i] =
                    tape_input(s->tape, x[i].data, e->context->dtype, 3, e->flow[i].dim, e->flow[i].type);
    }
    s->y = model_stage(s->tape, e->model, a->chunk, &mb->feed, s->x);
    if (e->model->stages[a->chunk].head && p->loss_sum)
        for (int i = 0; i < model_sums(plan) && s->y.at[i]; i++)
            tape_call(s->tape, &OPS[OP_weighted_sum],
                      (Call){.in = {s->y.at[i], (Tensor *)&mb->weights[i]}, .out = {&p->loss_sum[i]}});
    if (out) {
        for (int i = 0; i < e->n_flows; i++)
            CHECK(!crosses(e, i, above) ||
                      (s->y.at[i] && tensor_is_contiguous(s->y.at[i]) && s->y.at[i]->spmd == e->flow[i].type),
                  "the %s of stack \"%s\" after %lld layers is missing, strided, or not of the type that the "
                  "next stage expects",
                  i < plan->n_stacks ? "stream" : "output", plan->stack[plan->flow[i].stack].name,
                  (long long)above);
        send_tensors(e, a, target.rank, out, &s->y);
    }
    if (spec->forward_only) tape_end(s->tape);
}

static void executor_backward(const Pass *p) {
    static const Need NEED[] = {
        [ACTION_BACKWARD] = NEED_ALL, [ACTION_BACKWARD_INPUT] = NEED_DX, [ACTION_BACKWARD_WEIGHT] = NEED_DW};
    Executor *e = p->executor;
    const Action *a = p->action;
    Slot *s = slot_of(p);
    const StageRef source = pipeline_source(p->spec, p->rank, a),
                   target = pipeline_target(p->spec, p->rank, a);
    if (source.rank >= 0) {
        const int64_t above = border_of(e, a, false);
        Tensor dy[MODEL_FLOWS];
        message_finish(e, received(e, a, p->member));
        message_tensors(e, received(e, a, p->member), above, dy);
        for (int i = 0; i < e->n_flows; i++)
            if (crosses(e, i, above)) tape_give(s->tape, s->y.at[i], &dy[i]);
    } else if (a->kind != ACTION_BACKWARD_WEIGHT) {
        for (int i = 0; i < e->model->plan.n_losses; i++)
            tape_give(s->tape, s->y.at[i], p->microbatch->feed.dloss[i]);
    }
    tape_play(s->tape, NEED[a->kind]);
    if (target.rank >= 0) {
        Flow dx = {{NULL}};
        for (int i = 0; i < e->n_flows; i++)
            if (s->x.at[i]) dx.at[i] = tape_grad(s->tape, s->x.at[i]);
        send_tensors(e, a, target.rank, next_to_send(e, PIPELINE_DOWN), &dx);
    }
    if (pipeline_ends_slot(p->spec, a)) tape_end(s->tape);
}

static void run_pass(void *arg) {
    const Pass *p = arg;
    if (p->action->kind == ACTION_FORWARD)
        forward(p);
    else
        executor_backward(p);
}

/* Returns the number of pauses by which the first microbatch runs ahead of the other. With sequence
 * parallelism, the first microbatch computes half a branch while the other microbatch runs its norm
 * (tape_pause_halfway). A backward pass that gathers its inputs again runs two pauses ahead, so that its
 * reduce-scatter overlaps with the dgrad of the other microbatch. */
static int head_start(const Executor *e, const Action *a) {
    if (!layout_is_sequence_parallel(e->context->layout)) return 0;
    return a->kind == ACTION_FORWARD || e->context->keeps_gathered ? 1 : 2;
}

/* Runs the passes alternately in a fixed order. Each pass runs until it must wait for an operation between
 * ranks. The ops of a microbatch keep their order, and the first pass always runs ahead of the other passes.
 * Gradients are therefore added in the order of the microbatches, as without interleaving. */
static void run_interleaved(Executor *e, Pass *passes, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        tape_pauses(slot_of(&passes[i])->tape, e->fibers[i]);
        fiber_begin(e->fibers[i], run_pass, &passes[i]);
    }
    for (int i = head_start(e, passes->action); i > 0 && !passes->is_done; i--)
        passes->is_done = !fiber_resume(e->fibers[0]);
    for (int64_t left = n - passes->is_done; left > 0;)
        for (int64_t i = 0; i < n; i++)
            if (!passes[i].is_done && !fiber_resume(e->fibers[i])) passes[i].is_done = true, left--;
}

/* Runs the passes interleaved. If the tape has an observer (TapeProbe), the passes run one after another
 * instead. */
static void run_passes(Executor *e, Pass *passes, int64_t n) {
    for (int64_t i = 0; i < n && !e->own_transients; i++)
        tape_transient_to(slot_of(&passes[i])->tape, e->transient[i]);
    if (n > 1 && !e->context->probe)
        run_interleaved(e, passes, n);
    else
        for (int64_t i = 0; i < n; i++) tape_pauses(slot_of(&passes[i])->tape, NULL), run_pass(&passes[i]);
}

static void run_unit(Executor *e, const PipelineSpec *spec, int rank, const Action *a,
                     const Microbatch *microbatches, int64_t n, Tensor *loss_sum) {
    const int64_t first = first_of(e, a), members = members_of(e, a, n);
    Pass *passes = mem_zero((size_t)members, sizeof *passes);
    for (int64_t i = 0; i < members; i++)
        passes[i] = (Pass){e, spec, a, &microbatches[first + i], loss_sum, i, rank, false};
    run_passes(e, passes, members);
    free(passes);
}

/* Runs an action interleaved with the next action. A backward pass starts first, because it computes more between two
 * operations than a forward pass does. */
static void run_pair(Executor *e, const PipelineSpec *spec, int rank, const Action *a,
                     const Microbatch *microbatches, Tensor *loss_sum) {
    const bool swapped = a[0].kind == ACTION_FORWARD && a[1].kind != ACTION_FORWARD;
    Pass passes[2];
    CHECK(a[0].slot != a[1].slot, "two passes that run interleaved have the same slot");
    for (int i = 0; i < 2; i++)
        passes[swapped ? 1 - i : i] =
            (Pass){e, spec, &a[i], &microbatches[a[i].microbatch], loss_sum, 0, rank, false};
    run_passes(e, passes, 2);
}

/* Returns whether the run loads kernels. The first gradient of a step and later gradients need different
 * kernels, which write and add, respectively. Both kinds of kernels are loaded after two microbatches have
 * run. */
bool executor_loads(const Executor *e, const PipelineSpec *spec, int64_t n) {
    if (spec->ranks == 1 || is_null(e)) return false;
    return e->most[spec->forward_only] < (spec->forward_only || n < 2 ? 1 : 2);
}

static void end_loading(const Executor *e, const PipelineSpec *spec) {
    Comm *c = e->context->comm;
    if (!spec->forward_only && e->context->sync) sync_prepare(e->context->sync);
    comm_run(c, &(CommCall){.kind = COMM_BARRIER, .group = comm_everyone(c), .site = "kernels_loaded"});
}

void executor_run(Executor *e, const PipelineSpec *spec, const RankSchedule *schedule,
                  const Microbatch *microbatches, int64_t n, Tensor *loss_sum) {
    const int rank = e->context->layout ? e->context->layout->mesh.coordinate[AXIS_PP] : 0;
    CHECK(!(e->offload || e->model->plan.stack[0].offloaded_modules) || spec->forward_only ||
              (schedule->slots == 1 && e->interleaved == 1),
          "two microbatches offload their activations");
    executor_provide(e, spec, schedule);
    e->evaluates = spec->forward_only;
    if (spec->ranks > 1 && !e->is_open && !is_null(e)) open_channels(e);
    e->staged = executor_loads(e, spec, n);
    for (int64_t i = 0, next; i < schedule->count; i = next) {
        const Action *a = &schedule->actions[i];
        next = i + pipeline_step(schedule, i);
        if (i == 0 || !spec->overlap) start_receives(e, spec, rank, schedule, i, n);
        if (spec->overlap) start_receives(e, spec, rank, schedule, next, n);
        if (a->pair)
            run_pair(e, spec, rank, a, microbatches, loss_sum);
        else
            run_unit(e, spec, rank, a, microbatches, n, loss_sum);
    }
    for (int64_t i = 0; i < slot_count(e); i++) tape_end(e->slots[i].tape);
    for (int way = 0; way < PIPELINE_WAYS; way++)
        for (int64_t i = 0; i < e->sent[way].n; i++) message_finish(e, &e->sent[way].at[i]);
    if (e->staged) end_loading(e, spec);
    if (n > e->most[spec->forward_only]) e->most[spec->forward_only] = n;
}
