/* Runs a test case (a row of tapes.def or kernels/cases.def) on a tape. Inputs are drawn from a grid that every float
 * type represents exactly, so that lanes differ only in arithmetic. A run is a forward pass and a backward pass from a
 * fixed dy; its results are doubles. */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernels/cases.h"
#include "tape/tape.h"
#include "tape/tape_backward.h"
#include "unit/ops/elements.h"

enum { CASE_INPUTS = 6 };

typedef enum Role {
    ROLE_NONE,
    ROLE_ACTIVATION, /* [s,b,...], storage type, requires a gradient */
    ROLE_PARAMETER,  /* storage type, gradient added to a main gradient */
    ROLE_TABLE,      /* arithmetic type, no gradient */
    ROLE_IDS,        /* I64 [b,s] in [0, range) */
} Role;

static inline Role role_of(const CaseOperand *in) {
    if (!in->ndim) return ROLE_NONE;
    if (in->parameter) return ROLE_PARAMETER;
    return in->dtype == I64 ? ROLE_IDS : in->ndim >= 3 ? ROLE_ACTIVATION : ROLE_TABLE;
}

static inline bool wants_gradient(const CaseOperand *in) {
    return role_of(in) == ROLE_ACTIVATION || role_of(in) == ROLE_PARAMETER;
}

typedef Tensor *BuildFn(Tape *, Tensor **in, const void *attr);

typedef struct OpCase {
    const char *name;
    BuildFn *build;
    const void *attr;
    CaseOperand in[CASE_INPUTS];
} OpCase;

/* Options for running a case. */
typedef struct OpLane {
    DType dtype;
    Device *device;        /* NULL: a new CPU device, with: */
    int threads;           /* 0 means 1; -1 means all cores */
    bool split;            /* the backward is a DX sweep, then a DW sweep */
    bool sample_by_sample; /* each sample on a separate tape */
    bool batch_invariant;
    bool coarse; /* 16-bit types represent the inputs exactly */
    bool forward_only;
    unsigned before; /* bit mask of inputs whose gradients exist before the backward */
    int moved_input; /* `move` is added to this element of this input */
    int64_t moved_element;
    double move;
    TapeTrace *trace;
    void *trace_arg;
} OpLane;

/* y and the gradient of each input. */
typedef struct Result {
    Values y, grad[CASE_INPUTS];
    /* Bit mask of activations that another op may also read, because no view or gradient shares their
     * memory. */
    unsigned joined;
} Result;

static inline void result_free(Result *r) {
    free(r->y.v);
    for (int i = 0; i < CASE_INPUTS; i++) free(r->grad[i].v);
}

static inline int64_t input_count(const CaseOperand *in) {
    int64_t n = 1;
    for (int i = 0; i < in->ndim; i++) n *= in->dim[i];
    return n;
}

static inline DType arithmetic_type(DType storage) { return storage == F64 ? F64 : F32; }

static inline int grid_bits(const OpLane *l) { return l->coarse ? GRID_COARSE : GRID_FINE; }

static inline int64_t samples_of(const OpCase *c) {
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (role_of(&c->in[i]) == ROLE_ACTIVATION) return c->in[i].dim[1];
        if (role_of(&c->in[i]) == ROLE_IDS) return c->in[i].dim[0];
    }
    return 1;
}

/* One run: a tape, its device, and the inputs of all samples or of one sample. All tensors are in device
 * memory. */
typedef struct Session {
    const OpCase *c;
    const OpLane *lane;
    int64_t first_sample, samples;
    RunContext run;
    Space *slot, *transient;
    Tape *tape;
    Tensor in[CASE_INPUTS], main_grad[CASE_INPUTS], *operands[CASE_INPUTS];
    Tensor before[CASE_INPUTS], dy; /* gradients may share the memory of these */
} Session;

/* Returns the index in the whole input of element e of this session's slice. */
static inline int64_t whole_element(const Session *s, const CaseOperand *in, int64_t e) {
    const Role role = role_of(in);
    const int axis = role == ROLE_ACTIVATION ? 1 : 0;
    if (role != ROLE_ACTIVATION && role != ROLE_IDS) return e;
    int64_t inner = 1;
    for (int i = axis + 1; i < in->ndim; i++) inner *= in->dim[i];
    const int64_t sample = e / inner % s->samples, outer = e / inner / s->samples;
    return (outer * in->dim[axis] + s->first_sample + sample) * inner + e % inner;
}

static inline Tensor tensor_new(DType dtype, int ndim, const int64_t *dim) {
    Tensor t = tensor_make(NULL, dtype, ndim, dim);
    t.data = mem_zero(1, tensor_bytes(&t) + 1);
    return t;
}

/* Moves the tensor to device memory. */
static inline void move_in(Device *d, Tensor *t) {
    if (!t->data) return;
    void *host = t->data;
    t->data = device_alloc(d, tensor_bytes(t), "an operand");
    device_write(d, t->data, host, tensor_bytes(t));
    free(host);
}

static inline void operand_free(Device *d, Tensor *t) { device_release(d, t->data, tensor_bytes(t)); }

static inline void input_open(Session *s, int i, Values grad_before) {
    const CaseOperand *in = &s->c->in[i];
    const Role role = role_of(in);
    int64_t dim[TENSOR_DIMS];
    memcpy(dim, in->dim, sizeof dim);
    if (role == ROLE_ACTIVATION) dim[1] = s->samples;
    if (role == ROLE_IDS) dim[0] = s->samples;
    Tensor *t = &s->in[i];
    *t = tensor_new(case_dtype(in, s->lane->dtype), in->ndim, dim);
    const uint64_t seed = hash_name(s->c->name);
    Grid grid = {.seed = seed, .tensor = (uint64_t)i, .bits = grid_bits(s->lane)};
    for (int64_t e = 0, n = tensor_count(t); e < n; e++) {
        const int64_t whole = whole_element(s, in, e);
        if (role == ROLE_IDS) {
            ((int64_t *)t->data)[e] = case_integer(in, whole, input_count(in), seed, (uint64_t)i);
            continue;
        }
        double x = grid_at(&grid, whole);
        if (i == s->lane->moved_input && whole == s->lane->moved_element) x += s->lane->move;
        store_element(t, e, x);
    }
    if (wants_gradient(in)) t->flags = TENSOR_NEEDS_GRAD;
    if (role == ROLE_PARAMETER) {
        s->main_grad[i] = tensor_new(arithmetic_type(s->lane->dtype), in->ndim, dim);
        s->main_grad[i].flags = TENSOR_ACCUM | TENSOR_MAIN_GRAD;
        for (int64_t e = 0; e < grad_before.n; e++) store_element(&s->main_grad[i], e, grad_before.v[e]);
        t->grad = &s->main_grad[i];
        move_in(s->run.device, t->grad);
    }
    move_in(s->run.device, t);
    s->operands[i] = t;
}

/* The initial main gradients are those in `before`, if it has any. */
static inline void session_open(Session *s, const OpCase *c, const OpLane *lane, int64_t first_sample,
                                int64_t samples, const Result *before) {
    *s = (Session){.c = c, .lane = lane, .first_sample = first_sample, .samples = samples};
    s->run =
        (RunContext){.device = lane->device ? lane->device : device_cpu(lane->threads ? lane->threads : 1),
                     .dtype = lane->dtype,
                     .batch_invariant = lane->batch_invariant,
                     .seed = 1234};
    s->slot = space_new(s->run.device, "slot", SPACE_UNPLANNED);
    s->transient = space_new(s->run.device, "transient", SPACE_UNPLANNED);
    s->tape = tape_new(&s->run, s->slot, s->transient);
    tape_trace(s->tape, lane->trace, lane->trace_arg);
    for (int i = 0; i < CASE_INPUTS; i++)
        if (c->in[i].ndim) input_open(s, i, before->grad[i]);
    tape_begin(s->tape,
               &(MicrobatchContext){.recording = true, .training = true, .first_sample = first_sample});
}

static inline void session_close(Session *s) {
    tape_free(s->tape);
    space_free(s->slot);
    space_free(s->transient);
    operand_free(s->run.device, &s->dy);
    for (int i = 0; i < CASE_INPUTS; i++)
        operand_free(s->run.device, &s->in[i]), operand_free(s->run.device, &s->main_grad[i]),
            operand_free(s->run.device, &s->before[i]);
    if (!s->lane->device) device_free(s->run.device);
}

static inline Values values_of(Device *d, const Tensor *t) {
    Values v = {mem_alloc((size_t)(tensor_count(t) + 1) * sizeof(double)), tensor_count(t)};
    DeviceView view = device_view(d, t->data, tensor_bytes(t), VIEW_READ);
    Tensor host = *t;
    host.data = view.data;
    for (int64_t e = 0; e < v.n; e++) v.v[e] = load_element(&host, e);
    device_view_end(&view);
    return v;
}

/* Sets the gradient of an input to ones, as if another op had read the input. */
static inline void give_gradient(Session *s, int i) {
    Tensor *x = &s->in[i], *ones = &s->before[i];
    *ones = tensor_new((DType)x->dtype, x->ndim, x->dim);
    for (int64_t e = 0, n = tensor_count(x); e < n; e++) store_element(ones, e, 1);
    move_in(s->run.device, ones);
    ones->refs = 1;
    tape_grad_share(s->tape, x, ones, NEED_DX);
}

/* Outputs of losses are [b,s], all others [s,b,...]. */
static inline void backward_from(Session *s, Tensor *y) {
    operand_free(s->run.device, &s->dy);
    s->dy = tensor_new((DType)y->dtype, y->ndim, y->dim);
    CaseOperand whole = {.dtype = y->ndim == 2 ? I64 : CASE_STORAGE,
                         .ndim = y->ndim,
                         .dim = {y->dim[0], y->dim[1], y->dim[2], y->dim[3], y->dim[4]}};
    whole.dim[y->ndim == 2 ? 0 : 1] = samples_of(s->c);
    Grid grid = {.seed = hash_name(s->c->name), .tensor = CASE_INPUTS, .bits = grid_bits(s->lane)};
    for (int64_t e = 0, n = tensor_count(y); e < n; e++)
        store_element(&s->dy, e, grid_at(&grid, whole_element(s, &whole, e)));
    move_in(s->run.device, &s->dy);
    tape_backward(s->tape, y, &s->dy, s->lane->split ? NEED_DX : NEED_ALL);
    if (s->lane->split) tape_backward(s->tape, y, NULL, NEED_DW);
}

/* Returns the row with another builder. */
static inline OpCase built_by(const OpCase *c, BuildFn *build) {
    OpCase other = *c;
    other.build = build;
    return other;
}

/* Runs the row forward and backward, and passes every call to `trace`. Returns the memory of the tensors that the forward
 * pass keeps. */
static inline size_t run_traced(const OpCase *c, DType dtype, bool exact, TapeTrace *trace, void *arg) {
    Session s;
    const OpLane lane = {.dtype = dtype, .trace = trace, .trace_arg = arg};
    const Result nothing = {0};
    session_open(&s, c, &lane, 0, samples_of(c), &nothing);
    s.run.exact = exact;
    backward_from(&s, c->build(s.tape, s.operands, c->attr));
    const size_t kept = space_peak(s.slot);
    session_close(&s);
    return kept;
}

/* Runs samples [first, first + n); main gradients are added to the gradients in `r`. */
static inline void run_samples(const OpCase *c, const OpLane *lane, int64_t first, int64_t n, Result *r) {
    Session s;
    session_open(&s, c, lane, first, n, r);
    Tensor *y = c->build(s.tape, s.operands, c->attr);
    result_free(r);
    *r = (Result){.y = values_of(s.run.device, y)};
    if (!lane->forward_only) {
        for (int i = 0; i < CASE_INPUTS; i++) {
            if (role_of(&c->in[i]) == ROLE_ACTIVATION && !s.in[i].refs) r->joined |= 1u << i;
            if (lane->before & 1u << i) give_gradient(&s, i);
        }
        backward_from(&s, y);
        for (int i = 0; i < CASE_INPUTS; i++) {
            if (s.in[i].grad) r->grad[i] = values_of(s.run.device, s.in[i].grad);
            if (s.in[i].grad && s.in[i].grad->data == s.in[i].data) r->joined &= ~(1u << i);
        }
    }
    session_close(&s);
}

static inline Result run_case(const OpCase *c, OpLane lane) {
    Result r = {0};
    const int64_t samples = samples_of(c);
    if (!lane.sample_by_sample) run_samples(c, &lane, 0, samples, &r);
    for (int64_t b = 0; lane.sample_by_sample && b < samples; b++) run_samples(c, &lane, b, 1, &r);
    return r;
}
