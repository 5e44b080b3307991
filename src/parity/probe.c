#include "parity/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/zigzag.h"
#include "kernels/ops.h"
#include "param/bucket.h"
#include "tape/tape_ops.h"

/* ---- records ---- */

static Record *probe_add(Log *log, Record value) {
    if (log->n == log->cap) {
        log->cap = log->cap ? 2 * log->cap : 1024;
        log->records = mem_grow(log->records, (size_t)log->cap, sizeof *log->records);
    }
    value.step = log->step;
    value.partial = -1;
    log->records[log->n] = value;
    return &log->records[log->n++];
}

DeviceView record_view(const Log *log, const Tensor *live, unsigned mode) {
    CHECK(tensor_lowest(live) == live->data, "a recorded value has a negative stride");
    return device_view(log->device, live->data, tensor_extent(live), mode);
}

int64_t record_place(const Tensor *live, int64_t k) {
    const int64_t width = tensor_width(live);
    return tensor_row_offset(live, k / width) + k % width * live->stride[live->ndim - 1];
}

/* Copies the strided tensor x to contiguous doubles. */
static void keep(Log *log, Record *r, const Tensor *x) {
    const int64_t n = tensor_count(x);
    const DType type = (DType)x->dtype;
    double *out = arena_alloc(log->arena, (size_t)(n ? n : 1) * sizeof *out);
    DeviceView view = record_view(log, x, VIEW_READ);
    for (int64_t k = 0; k < n; k++)
        dtype_convert(&out[k], F64, (const char *)view.data + (size_t)record_place(x, k) * dtype_size(type),
                      type, 1);
    device_view_end(&view);
    r->shape = tensor_make(out, F64, x->ndim, x->dim);
    r->shape.spmd = x->spmd;
    r->inside = "";
    for (int64_t i = 0; i < log->n_writers && i < WRITERS; i++)
        if (log->writers[i].data == x->data) r->inside = log->writers[i].op;
    r->at = x->data;
    r->bytes = (size_t)n * dtype_size((DType)x->dtype);
}

static void tell(Log *log, const Record *r, Tensor *live) {
    if (log->seen) log->seen(log->seen_arg, log, r, live);
}

/* Returns whether the record is an op's output in this microbatch, and the output's memory contains the
 * address. Messages between pipeline stages use the same memory for all microbatches. */
static bool has_value(const Log *log, const Record *r, const void *data) {
    const char *at = data, *first = r->at;
    return r->kind == RECORD_OUTPUT && r->sample == log->sample && at >= first && at < first + r->bytes;
}

/* Among the first n records, returns the last record that is an output of `op` (or of any op, if `op` is NULL)
 * at the given address. In-place ops write several outputs to one address. Returns NULL if the step has no such
 * record. */
static const Record *value_of(const Log *log, int64_t n, const char *op, const void *data) {
    while (n-- > 0) {
        const Record *r = &log->records[n];
        if (has_value(log, r, data) && (!op || !strcmp(op, r->op))) return r->step == log->step ? r : NULL;
    }
    return NULL;
}

static const Record *value_at(const Log *log, const void *data) { return value_of(log, log->n, NULL, data); }
/* Returns the output of the op whose backward pass is running. */
static const Record *output_of(const Log *log, const OpDef *op, const Call *call) {
    return value_of(log, log->n, op->name, call->out[0]->data);
}

static bool is_parameter(const Tensor *x) { return x && x->grad && x->grad->flags & TENSOR_MAIN_GRAD; }
static bool is_trained(const Tensor *x) { return is_parameter(x) && x->flags & TENSOR_NEEDS_GRAD; }
static bool is_value(const Tensor *x) { return x && dtype_is_float((DType)x->dtype) && !is_parameter(x); }
/* Returns whether x was received from a different pipeline stage. Excludes tables and loss weights, which need no
 * gradient. */
static bool is_received(const Log *log, const Tensor *x) {
    return is_value(x) && x->ndim == 3 && x->flags & TENSOR_NEEDS_GRAD && !value_at(log, x->data);
}

/* Returns the parameter after which an op is named. All layers in a T5 stack share one table of relative position
 * biases, so attention ops are named after their inputs instead. */
static const Param *parameter_of(const OpDef *op, const Call *call) {
    if (op == &OPS[OP_attention] || op == &OPS[OP_attention_unfused]) return NULL;
    for (int i = 0; i < CALL_IN; i++)
        if (is_parameter(call->in[i])) return param_of(call->in[i]);
    return NULL;
}

/* Maps this rank's rows to the rows of the full parameter. The same map applies to the columns of x w^T, and to the
 * channels of a convolution. */
static void map_rows(Log *log, Record *r, const Param *p) {
    r->n_map = p->rows;
    r->columns = p->columns;
    r->first_column = p->first_column;
    r->map = arena_alloc(log->arena, (size_t)p->rows * sizeof *r->map);
    for (int64_t i = 0; i < p->rows; i++) r->map[i] = param_global_row(p, i);
}

/* ---- names ---- */

static uint64_t mix(uint64_t a, uint64_t b) { return hash64(&a, sizeof a, b) | 1; }

static int64_t same_before(const Log *log, uint64_t name, int64_t sample, bool again) {
    int64_t n = 0;
    for (int64_t i = log->n; i-- > 0 && log->records[i].step == log->step;) {
        const Record *r = &log->records[i];
        n += r->kind == RECORD_OUTPUT && !r->moved && r->name == name && r->sample == sample &&
             r->again == again;
    }
    return n;
}

/* Names a linear layer's output. A row-parallel layer adds its bias after the sum over ranks, in a separate op. The
 * result of this op corresponds to the layer's result on one rank. */
static void name_linear(Record *r, const OpDef *op, const Call *call) {
    const Tensor *bias = call->in[op == &OPS[OP_bias] ? 1 : 2];
    if (op == &OPS[OP_linear]) r->gemm = r->name;
    if (bias) r->name = mix(hash_name("bias"), hash_name(param_of(bias)->spec.name));
}

/* Names a lookup's output. In T5, the encoder and the decoder use the same embedding tables, so their lookups
 * are distinguished by their sequence lengths. If the two lengths are equal, and other pipeline ranks also look
 * up rows, the output has no name. */
static void name_embedding(const Log *log, Record *r, const Call *call) {
    const int64_t positions = call->in[0]->dim[1] * log->mesh.size[AXIS_CP];
    r->name = log->alike && log->mesh.size[AXIS_PP] > 1 ? 0 : mix(r->name, (uint64_t)positions);
}

/* Sets the name and the place of an op's output. Several ops of one kind on one value, such as the rotary
 * embedding of queries and of keys, are distinguished by their order. */
static void name_output(Log *log, Record *r, const OpDef *op, const Call *call) {
    const Param *p = parameter_of(op, call);
    const Record *from = NULL;
    for (int i = CALL_IN; i-- > 0 && !from;)
        if (is_value(call->in[i]) && call->in[i]->flags & TENSOR_NEEDS_GRAD)
            from = value_at(log, call->in[i]->data);
    r->from = from ? from - log->records : -1;
    r->place = p ? arena_printf(log->arena, "%s", p->spec.name) : from ? from->place : "";
    r->ragged = op == &OPS[OP_permute] || (from && from->ragged && op != &OPS[OP_unpermute]);
    if (r->moved || op == &OPS[OP_copy]) {
        if (from) r->name = from->name, r->gemm = from->gemm, r->map = from->map, r->n_map = from->n_map;
        return;
    }
    if (!p && (!from || !from->name)) return;
    r->name = mix(hash_name(op->name), p ? hash_name(p->spec.name) : from->name);
    if (op == &OPS[OP_linear] || op == &OPS[OP_bias]) name_linear(r, op, call);
    if (op == &OPS[OP_embedding]) name_embedding(log, r, call);
    if (!r->name) return;
    for (int64_t n = same_before(log, r->name, r->sample, r->again); n > 0; n--) r->name = mix(r->name, 1);
    if (p && p->spec.ndim == 2 &&
        (op == &OPS[OP_linear] || op == &OPS[OP_grouped_linear] || op == &OPS[OP_causal_conv]))
        map_rows(log, r, p);
}

/* ---- the tape ---- */

static bool writes_down(const Log *log) { return log->step >= log->first && log->step <= log->last; }

/* Records kernel outputs that are one rank's summand in a sum over tensor- or context-parallel ranks. */
static void trace(void *arg, const OpDef *op, const Call *call) {
    Log *log = arg;
    Tensor *y = call->out[0];
    for (int i = 0; i < CALL_OUT && writes_down(log); i++)
        if (call->out[i]) log->writers[log->n_writers++ % WRITERS] = (Writer){call->out[i]->data, op->name};
    if (!writes_down(log) || !y || op_is_collective(op) || y->flags & TENSOR_MAIN_GRAD ||
        !dtype_is_float((DType)y->dtype))
        return;
    bool partial = false;
    for (int a = 0; a < AXES; a++) partial |= log->mesh.size[a] > 1 && spmd_on(y->spmd, a) == SPMD_P;
    if (!partial) return;
    Record *r = probe_add(log, (Record){.kind = RECORD_PARTIAL, .op = op->name});
    keep(log, r, y);
    log->pending = log->n - 1;
}

static void take_partial(Log *log, Record *r) {
    r->partial = log->pending;
    log->pending = -1;
}

/* Returns true if the one-rank run has no counterpart to an op's tensors, as for a router loss: its tensors cover only
 * a rank's part of the microbatch. */
static bool is_of_a_share(const OpDef *op) { return op == &OPS[OP_router_loss]; }

static void on_ran(Log *log, const Tape *t, const OpDef *op, const Call *call) {
    Tensor *y = call->out[0];
    if (!is_value(y) || is_of_a_share(op)) return;
    for (int i = 0; i < CALL_IN; i++) {
        if (!is_received(log, call->in[i])) continue;
        Record *in = probe_add(log, (Record){.kind = RECORD_OUTPUT,
                                             .sample = log->sample,
                                             .moved = true,
                                             .received = true,
                                             .from = -1,
                                             .op = "pipeline_activation",
                                             .place = ""});
        keep(log, in, call->in[i]);
        tell(log, in, call->in[i]);
    }
    Record r = {.kind = RECORD_OUTPUT,
                .sample = log->sample,
                .again = tape_in_backward(t),
                .moved = op_is_collective(op),
                .op = op->name};
    name_output(log, &r, op, call);
    Record *kept = probe_add(log, r);
    take_partial(log, kept);
    keep(log, kept, y);
    tell(log, kept, y);
    log->n_writers = 0;
}

static Record *add_backward(Log *log, const Record *of, RecordKind kind, int which, const OpDef *op) {
    Record r = *of;
    r.kind = kind, r.which = which, r.op = op->name, r.again = false;
    if (kind != RECORD_GRADIENT) r.map = NULL, r.n_map = 0;
    if (kind == RECORD_INPUT && op == &OPS[OP_linear]) r.name = r.gemm;
    if (kind == RECORD_INPUT && op == &OPS[OP_bias]) r.name = 0;
    return probe_add(log, r);
}

/* Returns whether the next gradient of w begins a new sum, because it overwrites the main gradient or gets a new
 * slot. */
static bool begins_sum(const Tape *t, const Tensor *w) {
    const Sync *sync = tape_context(t)->sync;
    return grad_is_unwritten(w->grad) || (sync && !sync_is_adding(sync, param_of(w)));
}

static void on_plays(Log *log, const Tape *t, const OpDef *op, const Call *call, Need need) {
    const Record *y = output_of(log, op, call);
    for (int i = 0; i < CALL_IN && need & NEED_DW; i++) {
        if (!is_trained(call->in[i]) || i >= OPERANDS) continue;
        const Tensor *grad = call->in[i]->grad;
        const int64_t n = tensor_count(grad);
        log->before[i] = mem_grow(log->before[i], (size_t)n, sizeof **log->before);
        if (begins_sum(t, call->in[i])) {
            memset(log->before[i], 0, (size_t)n * sizeof **log->before);
            continue;
        }
        DeviceView view = record_view(log, grad, VIEW_READ);
        dtype_convert(log->before[i], F64, view.data, (DType)grad->dtype, (size_t)n);
        device_view_end(&view);
    }
    log->pending = -1;
    log->n_writers = 0;
    if (!y || !y->name || !(need & NEED_DX)) return;
    Record *r = add_backward(log, y, RECORD_GRADIENT, 0, op);
    keep(log, r, call->out[0]->grad);
    tell(log, r, call->out[0]->grad);
}

/* Returns whether the op reads a table. Several ops in a stage may add to the gradient of one table. */
static bool is_table(const OpDef *op) {
    return op == &OPS[OP_embedding] || op == &OPS[OP_attention] || op == &OPS[OP_attention_unfused];
}

/* Records the value that an op's backward pass has added to a main gradient. The value has the sum's type. */
static void weight_played(Log *log, const Record *y, const OpDef *op, Tensor *w, int which) {
    if (!w->grad->data || !log->before[which]) return;
    Record *r = add_backward(log, y, RECORD_WEIGHT, 0, op);
    keep(log, r, w->grad);
    double *x = r->shape.data;
    for (int64_t k = 0; k < tensor_count(&r->shape); k++) x[k] -= log->before[which][k];
    r->shape.spmd = spmd_dual_type(w->spmd);
    map_rows(log, r, param_of(w));
    r->place = arena_printf(log->arena, "%s", param_of(w)->spec.name);
    r->name = mix(hash_name(r->place), hash_name(w->ndim == 1 ? "vector" : op->name));
    if (is_table(op)) r->name = mix(r->name, y->name);
    r->operand = which;
    tell(log, r, w->grad);
}

static void on_played(Log *log, const OpDef *op, const Call *call, Need need) {
    const Record *found = output_of(log, op, call);
    if (!found || !found->name || is_of_a_share(op)) return;
    const Record y = *found;
    const int64_t at = found - log->records, partial = log->pending;
    for (int i = 0; i < CALL_IN && i < OPERANDS; i++) {
        Tensor *x = call->in[i];
        if (is_parameter(x)) {
            if (need & NEED_DW && is_trained(x)) weight_played(log, &y, op, x, i);
        } else if (need & NEED_DX && is_value(x) && x->grad && x->grad->data) {
            Record *r = add_backward(log, &y, RECORD_INPUT, i, op);
            r->moved = y.moved;
            r->partial = partial;
            const Record *from = value_of(log, at, NULL, x->data);
            if (from && from->n_map && x->ndim == 3) r->map = from->map, r->n_map = from->n_map;
            keep(log, r, x->grad);
            tell(log, r, x->grad);
        }
    }
    log->pending = -1;
    log->n_writers = 0;
}

static void probe(void *arg, const Tape *t, TapePoint point, const OpDef *op, const Call *call, Need need) {
    Log *log = arg;
    if (!writes_down(log) || !tape_microbatch(t)->training) return;
    log->sample = tape_microbatch(t)->first_sample;
    if (point == TAPE_RAN)
        on_ran(log, t, op, call);
    else if (point == TAPE_PLAYS)
        on_plays(log, t, op, call, need);
    else
        on_played(log, op, call, need);
}

/* ---- per-step records: parameters, gradients, update ---- */

static Log *log_of(void *arg, const Trainer *t) { return (Log *)arg + t->run.layout.mesh.rank; }

static void begin(void *arg, Trainer *t) {
    Log *log = log_of(arg, t);
    log->mesh = t->run.layout.mesh;
    log->device = t->run.device;
    const ModelPlan *plan = &t->run.model->plan;
    log->alike = plan->n_stacks > 1 && plan->stack[0].positions == plan->stack[1].positions;
    t->run.context.probe = probe;
    t->run.context.probe_arg = log;
    executor_trace(t->executor, trace, log);
}

static void add_parameter(Log *log, RecordKind kind, const char *op, const Param *p, Tensor *x, int64_t begin,
                          double scale) {
    Record *r = probe_add(log, (Record){.kind = kind,
                                        .name = hash_name(p->spec.name) | 1,
                                        .sample = kind == RECORD_START ? (int64_t)-1 : END_OF_STEP,
                                        .from = -1,
                                        .begin = begin,
                                        .tied = param_is_tied(p),
                                        .op = op});
    r->place = arena_printf(log->arena, "%s", p->spec.name);
    keep(log, r, x);
    for (int64_t k = 0; k < tensor_count(&r->shape); k++) ((double *)r->shape.data)[k] *= scale;
    r->shape.spmd = p->value.spmd;
    map_rows(log, r, p);
    tell(log, r, x);
}

/* Adds the values of parameters whose complete shard this rank holds. For gradients and masters, adds the part that
 * this rank updates. */
static void add_parameters(Log *log, Trainer *t, RecordKind kind, double scale) {
    Registry *r = t->run.model->registry;
    const FlatBuffer buffer = kind == RECORD_SUM ? FLAT_GRADS : FLAT_MASTERS;
    log->scale = scale;
    for (int i = 0; writes_down(log) && i < r->n; i++) {
        Param *p = r->params[i];
        const FlatRange held = param_part_held(r, p);
        if (kind == RECORD_START) {
            if (t->sync && t->run.layout.data.stage < 3) sync_use(t->sync, &p, 1);
            if (p->value.data && !p->fp8) add_parameter(log, kind, "parameter", p, &p->value, 0, 1);
        } else if (held.end > held.begin && !(p->spec.flags & PARAM_BUFFER)) {
            Tensor part = registry_slice(r, buffer, kind == RECORD_SUM ? r->grads : r->masters, p->bucket,
                                         held.begin, held.end - held.begin);
            const char *update = optim_op_name(t->run.config, p);
            add_parameter(log, kind, kind == RECORD_SUM ? "gradient" : update, p, &part,
                          held.begin - p->offset, scale);
        }
    }
}

static void add_number(Log *log, const char *op, const char *place, double x) {
    if (!writes_down(log)) return;
    Record *r = probe_add(
        log,
        (Record){.kind = RECORD_NUMBER, .name = hash_name(place) | 1, .sample = END_OF_STEP, .from = -1});
    double *kept = arena_alloc(log->arena, sizeof *kept);
    *kept = x;
    r->op = op, r->place = place, r->inside = "";
    r->shape = tensor_make(kept, F64, 1, (int64_t[]){1});
}

static void step(void *arg, Trainer *t, int64_t number) {
    Log *log = log_of(arg, t);
    log->step = number;
    log->pending = -1;
    add_parameters(log, t, RECORD_START, 1);
}

static void gradients(void *arg, Trainer *t, const StepReport *report) {
    Log *log = log_of(arg, t);
    add_number(log, "loss", "loss", report->loss);
    add_parameters(log, t, RECORD_SUM, report->grad_scale);
}

static void updated(void *arg, Trainer *t, const StepReport *report) {
    Log *log = log_of(arg, t);
    add_number(log, "optimizer", "gradient norm", report->optim.grad_norm);
    add_number(log, "optimizer", "clip coefficient", report->optim.clip);
    add_number(log, "learning rate", "learning rate", report->lr);
    add_parameters(log, t, RECORD_UPDATED, 1);
}

CaseWatch logs_watch(Log *logs) {
    return (CaseWatch){.begin = begin, .step = step, .gradients = gradients, .updated = updated, .arg = logs};
}

Log *logs_new(int ranks, int64_t first, int64_t last) {
    Log *logs = mem_zero((size_t)ranks, sizeof *logs);
    for (int i = 0; i < ranks; i++)
        logs[i] = (Log){.first = first, .last = last, .pending = -1, .arena = arena_new()};
    return logs;
}

void logs_free(Log *logs, int ranks) {
    for (int i = 0; logs && i < ranks; i++) {
        arena_free(logs[i].arena);
        free(logs[i].records);
        free(logs[i].table);
        for (int k = 0; k < OPERANDS; k++) free(logs[i].before[k]);
    }
    free(logs);
}

/* ---- look-up ---- */

static uint64_t identity(const Record *r) {
    const int64_t parts[] = {(int64_t)r->name, (int64_t)r->kind, r->which, r->step, r->sample, r->again};
    return hash64(parts, sizeof parts, 0);
}

static bool same(const Record *a, const Record *b) {
    return a->name == b->name && a->kind == b->kind && a->which == b->which && a->step == b->step &&
           a->sample == b->sample && a->again == b->again;
}

/* Builds the index. Collectives create additional records for the same value in other forms. log_find returns
 * the first of these records. */
void log_index(Log *log) {
    log->slots = 64;
    while (log->slots < 2 * log->n) log->slots *= 2;
    log->table = mem_zero((size_t)log->slots, sizeof *log->table);
    for (int64_t i = 0; i < log->n; i++) {
        if (!log->records[i].name || log->records[i].moved) continue;
        int64_t at = (int64_t)(identity(&log->records[i]) & (uint64_t)(log->slots - 1));
        while (log->table[at] && !same(&log->records[log->table[at] - 1], &log->records[i]))
            at = (at + 1) & (log->slots - 1);
        if (!log->table[at]) log->table[at] = i + 1;
    }
}

const Record *log_find(const Log *log, const Record *like) {
    if (!like->name) return NULL;
    for (int64_t at = (int64_t)(identity(like) & (uint64_t)(log->slots - 1)); log->table[at];
         at = (at + 1) & (log->slots - 1))
        if (same(&log->records[log->table[at] - 1], like)) return &log->records[log->table[at] - 1];
    return NULL;
}

/* ---- shards ---- */

static int ranks_if(const Record *r, const Mesh *m, Axis axis) {
    return spmd_on(r->shape.spmd, axis) == SPMD_V ? m->size[axis] : 1;
}

/* Returns whether ranks share key heads. If there are fewer groups of heads than tensor-parallel ranks,
 * several ranks hold the same key head, and the query heads of its group are divided among these ranks. */
static bool shares_heads(const Record *r, const Tensor *whole, int tp) {
    return r->shape.ndim == 5 && r->shape.dim[2] == 1 && tp > whole->dim[2];
}

static int64_t shared_head(const Tensor *here, const Tensor *whole, int d, int64_t i, int tp, int64_t t) {
    const int64_t groups = whole->dim[2], sharing = tp / groups;
    if (d == 2) return t / sharing;
    return here->dim[3] == whole->dim[3] ? i : t % sharing * here->dim[3] + i;
}

/* Returns the global index of index i of dimension d. Returns -1 for padding, and -2 if the global index is
 * unknown. */
static int64_t place(const Record *r, const Mesh *m, const Tensor *whole, int d, int64_t i, int tp, int cp) {
    const int64_t here = r->shape.dim[d], all = whole->dim[d], t = m->coordinate[AXIS_TP],
                  c = m->coordinate[AXIS_CP];
    if ((d == 2 || d == 3) && shares_heads(r, whole, tp)) return shared_head(&r->shape, whole, d, i, tp, t);
    if (here == all) return i;
    if (d < 2 && cp > 1 && (here * cp == all || here * cp * tp == all)) { /* the sequence, in zigzag order */
        SequenceSlice s = slice_zigzag(all, cp, (int)c);
        s.first = here * cp == all ? 0 : t * here;
        return slice_position(&s, i);
    }
    if (tp > 1 && here * tp == all) return t * here + i;
    if (cp > 1 && here * cp == all) return c * here + i;
    if (tp > 1 && cp > 1 && here * tp * cp == all) return (t * cp + c) * here + i;
    if (tp > 1 && here * tp > all) return t * here + i < all ? t * here + i : -1;
    return -2;
}

static bool is_parameter_record(const Record *r) {
    return r->kind == RECORD_WEIGHT || r->kind == RECORD_SUM || r->kind == RECORD_START ||
           r->kind == RECORD_UPDATED;
}

static int64_t in_parameter(const Record *r, const Record *whole, int64_t k) {
    const int64_t element = r->begin + k, row = r->map[element / r->columns];
    if (row < 0 || row >= whole->n_map) return -1;
    const int64_t at = row * whole->columns + r->first_column + element % r->columns - whole->begin;
    return at < tensor_count(&whole->shape) ? at : -1;
}

/* Returns whether the rows' positions differ from those on one rank. The positions of rows that are grouped
 * by expert differ if ranks have different tokens or experts. */
static bool is_regrouped(const Record *r, const Mesh *m) {
    bool cut = false;
    for (int a = AXIS_ETP; a <= AXIS_EP; a++)
        cut |= m->size[a] > 1 && !is_parameter_record(r) && spmd_on(r->shape.spmd, a) != SPMD_I;
    return cut || (r->ragged && (m->size[AXIS_TP] > 1 || m->size[AXIS_CP] > 1 || m->size[AXIS_EP] > 1));
}

/* Returns true if a record is empty because it belongs to a sample's first position, which only the first
 * context-parallel rank holds. Examples are the output of BERT's pooler and its gradient. */
static bool is_of_no_position(const Record *r, const Mesh *m, const Record *whole) {
    return !is_parameter_record(r) && m->coordinate[AXIS_CP] > 0 &&
           spmd_on(r->shape.spmd, AXIS_CP) != SPMD_P &&
           tensor_count(&r->shape) == tensor_count(&whole->shape);
}

int64_t *record_index(const Record *r, const Mesh *m, const Record *whole) {
    const Tensor *s = &r->shape, *w = &whole->shape;
    const int64_t n = tensor_count(s);
    if (s->ndim != w->ndim || is_regrouped(r, m)) return NULL;
    /* each rank holds only a summand of a shared key head's gradient */
    if (r->kind != RECORD_OUTPUT && shares_heads(r, w, ranks_if(r, m, AXIS_TP))) return NULL;
    int64_t *out = mem_zero((size_t)(n ? n : 1), sizeof *out);
    const int tp = ranks_if(r, m, AXIS_TP), cp = ranks_if(r, m, AXIS_CP);
    const bool none = is_of_no_position(r, m, whole);
    const bool by_map = r->map && s->ndim == 3 && s->dim[2] == r->n_map;
    for (int64_t k = 0; k < n; k++) {
        if (none) {
            out[k] = -1;
            continue;
        }
        if (is_parameter_record(r)) {
            out[k] = in_parameter(r, whole, k);
            continue;
        }
        int64_t rest = k, at = 0, stride = 1;
        for (int d = s->ndim; d-- > 0 && at >= 0;) {
            const int64_t i = rest % s->dim[d];
            const int64_t to = d == 2 && by_map ? r->map[i] : place(r, m, w, d, i, tp, cp);
            rest /= s->dim[d];
            if (to == -2 || to >= w->dim[d]) {
                free(out);
                return NULL;
            }
            at = to < 0 ? -1 : at + to * stride;
            stride *= w->dim[d];
        }
        out[k] = at;
    }
    return out;
}
