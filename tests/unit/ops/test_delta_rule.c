/* Compares the chunked gated delta rule and its gradients with the recurrence, one position at a time, for random
 * shapes, chunks, documents and gates, some of which are exactly 0 or 1. The environment variable DELTA_RULE_SHAPES is
 * the number of shapes. */
#include "unit/cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

enum {
    QKV,
    ALPHA,
    BETA,
    A_LOG,
    DT_BIAS,
    INPUTS,
    DY = INPUTS,
    Y,
    DQKV,
    DALPHA,
    DBETA,
    DA_LOG,
    DDT_BIAS,
    TENSORS
};
static const char *const NAMES[TENSORS] = {"qkv", "alpha", "beta",   "a_log", "dt_bias", "dy",
                                           "y",   "dqkv",  "dalpha", "dbeta", "da_log",  "ddt_bias"};

/* The values of gates. FORGET decays to 0 at every third position. */
typedef enum Gates { ANY, ANY_AGAIN, BETA_0, BETA_1, DECAY_0, DECAY_1, FORGET, GATES } Gates;

typedef struct Shape {
    DeltaRuleAttr a;
    int64_t s, b, heads, document; /* the average length of a document; 0: there is no operand */
    Gates gates;
} Shape;

typedef struct Run {
    Shape x;
    Tensor t[TENSORS], start;
    double term; /* the largest term in the gradient of a row that is normalized; terms may cancel out */
} Run;

static double *data_of(const Run *r, int i) { return r->t[i].data; }

static double drawn(int i, int64_t e) { return 2 * philox_uniform(11, (uint64_t)i, (uint64_t)e) - 1; }

/* exp(-800) is 0 in double, and so is exp(-exp(2) * 800). */
static void fill(Run *r) {
    const Shape *x = &r->x;
    for (int i = 0; i <= DY; i++)
        for (int64_t e = 0; e < tensor_count(&r->t[i]); e++) data_of(r, i)[e] = drawn(i, e);
    for (int64_t e = 0; e < x->heads; e++)
        if (x->gates >= DECAY_0) data_of(r, A_LOG)[e] = 2;
    for (int64_t e = 0; e < x->s * x->b * x->heads; e++) {
        const bool third = e / x->b / x->heads % 3 == 2;
        if (x->gates == BETA_0 || x->gates == BETA_1) data_of(r, BETA)[e] = x->gates == BETA_0 ? -800 : 800;
        if (x->gates == DECAY_1) data_of(r, ALPHA)[e] = -800;
        if (x->gates == DECAY_0 || (x->gates == FORGET && third)) data_of(r, ALPHA)[e] = 800;
    }
    for (int64_t sample = 0; sample < x->b; sample++)
        for (int64_t t = 0, begin = 0; t < x->s; t++) {
            if (x->document && philox_u32(12, (uint64_t)sample, (uint64_t)t) % x->document == 0) begin = t;
            ((int64_t *)r->start.data)[sample * x->s + t] = begin;
        }
}

static Run run_new(Shape x) {
    Run r = {.x = x};
    const int64_t width = 2 * x.a.key_heads * x.a.key_dim + x.heads * x.a.value_dim,
                  gates[] = {x.s, x.b, x.heads}, rows[] = {x.s, x.b, width},
                  out[] = {x.s, x.b, x.heads * x.a.value_dim};
    const int64_t *const dims[TENSORS] = {rows, gates, gates, &x.heads, &x.heads, out,
                                          out,  rows,  gates, gates,    &x.heads, &x.heads};
    for (int i = 0; i < TENSORS; i++) {
        r.t[i] = tensor_make(NULL, F64, dims[i] == &x.heads ? 1 : 3, dims[i]);
        r.t[i].data = mem_zero(1, tensor_bytes(&r.t[i]) + 1);
    }
    r.start = tensor_make(NULL, I64, 2, (int64_t[]){x.b, x.s});
    r.start.data = mem_zero(1, tensor_bytes(&r.start) + 1);
    fill(&r);
    return r;
}

static void run_free(Run *r) {
    for (int i = 0; i < TENSORS; i++) free(r->t[i].data);
    free(r->start.data);
}

static void compute(Run *r) {
    Device *cpu = device_cpu(1);
    Tensor *t = r->t, *start = r->x.document ? &r->start : NULL;
    call_run(&OPS[OP_gated_delta_rule],
             &(Call){.in = {&t[QKV], &t[ALPHA], &t[BETA], &t[A_LOG], &t[DT_BIAS], start},
                     .out = {&t[Y]},
                     .attr = &r->x.a,
                     .device = cpu});
    call_run(&OPS[OP_gated_delta_rule_grad],
             &(Call){.in = {&t[DY], &t[QKV], &t[ALPHA], &t[BETA], &t[A_LOG], &t[DT_BIAS], start},
                     .out = {&t[DQKV], &t[DALPHA], &t[DBETA], &t[DA_LOG], &t[DDT_BIAS]},
                     .attr = &r->x.a,
                     .device = cpu});
    device_free(cpu);
}

/* ---- the recurrence ---- */

/* One value head of one sample. */
typedef struct Naive {
    Run *r;
    int64_t sample, head;
    double *states;         /* [s+1,dk,dv]: the state before each position, and the last state */
    double *q, *k, *e;      /* [s,dk], [s,dk], [s,dv] */
    double *grad, *dq, *dk; /* the gradient of the state [dk,dv]; those of a position's q and k [dk] */
} Naive;

static int64_t at_q(const Naive *o, int64_t t) {
    const Shape *x = &o->r->x;
    return (t * x->b + o->sample) * o->r->t[QKV].dim[2] +
           o->head / (x->heads / x->a.key_heads) * x->a.key_dim;
}
static int64_t at_k(const Naive *o, int64_t t) {
    return at_q(o, t) + o->r->x.a.key_heads * o->r->x.a.key_dim;
}
static int64_t at_gate(const Naive *o, int64_t t) {
    return (t * o->r->x.b + o->sample) * o->r->x.heads + o->head;
}
static int64_t at_y(const Naive *o, int64_t t) { return at_gate(o, t) * o->r->x.a.value_dim; }
static int64_t at_v(const Naive *o, int64_t t) {
    const Shape *x = &o->r->x;
    return (t * x->b + o->sample) * o->r->t[QKV].dim[2] + 2 * x->a.key_heads * x->a.key_dim +
           o->head * x->a.value_dim;
}

static double raw(const Naive *o, int64_t t) {
    return data_of(o->r, ALPHA)[at_gate(o, t)] + data_of(o->r, DT_BIAS)[o->head];
}
static double log_decay(const Naive *o, int64_t t) {
    return -exp(data_of(o->r, A_LOG)[o->head]) * (raw(o, t) > 20 ? raw(o, t) : log1p(exp(raw(o, t))));
}
static double decay(const Naive *o, int64_t t) {
    const int64_t *start = o->r->start.data;
    return start[o->sample * o->r->x.s + t] == t ? 0 : exp(log_decay(o, t));
}
static double beta(const Naive *o, int64_t t) { return 1 / (1 + exp(-data_of(o->r, BETA)[at_gate(o, t)])); }

static double norm_of(const Naive *o, int64_t at) {
    double sum = o->r->x.a.eps;
    for (int64_t k = 0; k < o->r->x.a.key_dim; k++) sum += pow(data_of(o->r, QKV)[at + k], 2);
    return o->r->x.a.normalize ? sqrt(sum) : 1;
}

static void forward(Naive *o) {
    const int64_t d = o->r->x.a.key_dim, n = o->r->x.a.value_dim;
    const double *qkv = data_of(o->r, QKV);
    for (int64_t t = 0; t < o->r->x.s; t++) {
        double *before = o->states + t * d * n, *after = before + d * n, *k = o->k + t * d, *q = o->q + t * d;
        for (int64_t m = 0; m < d; m++) {
            q[m] = qkv[at_q(o, t) + m] / norm_of(o, at_q(o, t)) / sqrt((double)d);
            k[m] = qkv[at_k(o, t) + m] / norm_of(o, at_k(o, t));
        }
        for (int64_t c = 0; c < n; c++) {
            double e = qkv[at_v(o, t) + c], y = 0;
            for (int64_t m = 0; m < d; m++) e -= decay(o, t) * before[m * n + c] * k[m];
            for (int64_t m = 0; m < d; m++) {
                after[m * n + c] = decay(o, t) * before[m * n + c] + k[m] * beta(o, t) * e;
                y += after[m * n + c] * q[m];
            }
            o->e[t * n + c] = e;
            data_of(o->r, Y)[at_y(o, t) + c] = y;
        }
    }
}

/* Adds the gradient of a row of q or k, given the gradient d of the normalized row. */
static void add_normalized(const Naive *o, int64_t at, double factor, const double *d) {
    const double *x = data_of(o->r, QKV) + at, norm = norm_of(o, at);
    double along = 0;
    for (int64_t m = 0; m < o->r->x.a.key_dim; m++) along += x[m] * d[m] / norm / norm;
    for (int64_t m = 0; m < o->r->x.a.key_dim; m++) {
        data_of(o->r, DQKV)[at + m] += factor / norm * (d[m] - (o->r->x.a.normalize ? along * x[m] : 0));
        o->r->term = fmax(o->r->term, fabs(factor / norm * d[m]));
    }
}

/* Adds the gradients of column c of position t. Returns the gradient of the decay. */
static double backward_column(Naive *o, int64_t t, int64_t c, double *dbeta) {
    const int64_t d = o->r->x.a.key_dim, n = o->r->x.a.value_dim;
    const double dy = data_of(o->r, DY)[at_y(o, t) + c], e = o->e[t * n + c], keep = decay(o, t);
    const double *before = o->states + t * d * n + c, *after = before + d * n;
    double du = 0, ddecay = 0;
    for (int64_t m = 0; m < d; m++) {
        o->grad[m * n + c] += dy * o->q[t * d + m];
        o->dq[m] += after[m * n] * dy;
        o->dk[m] += o->grad[m * n + c] * beta(o, t) * e;
        du += o->grad[m * n + c] * o->k[t * d + m];
    }
    const double de = beta(o, t) * du;
    *dbeta += du * e;
    data_of(o->r, DQKV)[at_v(o, t) + c] = de;
    for (int64_t m = 0; m < d; m++) {
        const double reduced = o->grad[m * n + c] - o->k[t * d + m] * de;
        o->dk[m] -= keep * before[m * n] * de;
        ddecay += reduced * before[m * n];
        o->grad[m * n + c] = keep * reduced;
    }
    return ddecay;
}

static void backward(Naive *o) {
    const int64_t d = o->r->x.a.key_dim;
    for (int64_t t = o->r->x.s - 1; t >= 0; t--) {
        double dbeta = 0, ddecay = 0;
        memset(o->dq, 0, (size_t)(2 * d) * sizeof(double));
        for (int64_t c = 0; c < o->r->x.a.value_dim; c++) ddecay += backward_column(o, t, c, &dbeta);
        add_normalized(o, at_q(o, t), 1 / sqrt((double)d), o->dq);
        add_normalized(o, at_k(o, t), 1, o->dk);
        const double dg = ddecay * decay(o, t), slope = raw(o, t) > 20 ? 1 : 1 / (1 + exp(-raw(o, t))),
                     draw = dg * -exp(data_of(o->r, A_LOG)[o->head]) * slope;
        data_of(o->r, DA_LOG)[o->head] += dg * log_decay(o, t);
        data_of(o->r, DDT_BIAS)[o->head] += draw;
        data_of(o->r, DALPHA)[at_gate(o, t)] = draw;
        data_of(o->r, DBETA)[at_gate(o, t)] = dbeta * beta(o, t) * (1 - beta(o, t));
    }
}

static void recurrence(Run *r) {
    const int64_t d = r->x.a.key_dim, n = r->x.a.value_dim, s = r->x.s;
    for (int64_t sample = 0; sample < r->x.b; sample++)
        for (int64_t head = 0; head < r->x.heads; head++) {
            double *room = mem_zero((size_t)((s + 2) * d * n + s * (2 * d + n) + 2 * d), sizeof(double));
            Naive o = {.r = r, .sample = sample, .head = head, .states = room};
            o.q = room + (s + 1) * d * n, o.k = o.q + s * d, o.e = o.k + s * d, o.grad = o.e + s * n;
            o.dq = o.grad + d * n, o.dk = o.dq + d;
            forward(&o);
            backward(&o);
            free(room);
        }
}

/* ---- tests ---- */

/* The bound is 8 standard deviations of a random walk of roundings. A result is a sum over at most s positions or a
 * head's elements. */
static void expect_near(const char *name, const Run *got, const Run *want) {
    const Shape *x = &got->x;
    const double terms = (double)(x->s * x->b + x->a.key_dim + x->a.value_dim);
    for (int i = Y; i < TENSORS; i++) {
        double largest = i == DQKV ? want->term : 0, worst = 0;
        for (int64_t e = 0; e < tensor_count(&want->t[i]); e++) {
            const double error = fabs(data_of(got, i)[e] - data_of(want, i)[e]);
            largest = fmax(largest, fabs(data_of(want, i)[e]));
            if (!(error <= worst)) worst = error;
        }
        const double bound = 8 * sqrt(terms) * dtype_roundoff(F64) * (1 + largest);
        if (!(worst <= bound))
            fail_msg("%s, %s: error %.3g > 8 sqrt(%g terms) u (1 + %.3g) = %.3g", name, NAMES[i], worst,
                     terms, largest, bound);
        print_message("    %-10s error %.3g, bound %.3g\n", NAMES[i], worst, bound);
    }
}

static void compare(const char *name, Shape x) {
    Run got = run_new(x), want = run_new(x);
    compute(&got);
    recurrence(&want);
    expect_near(name, &got, &want);
    run_free(&got), run_free(&want);
}

static int64_t between(int shape, uint64_t index, int64_t low, int64_t most) {
    return low + philox_u32(7, (uint64_t)shape, index) % (most - low + 1);
}

/* Rows that are not normalized have at most 2 elements. Otherwise, beta |k|^2 would be more than 2, and states would
 * grow exponentially. */
TEST(chunks_agree_with_the_recurrence) {
    const char *shapes = getenv("DELTA_RULE_SHAPES");
    for (int i = 0, n = shapes ? atoi(shapes) : 300; i < n; i++) {
        const bool normalize = i % 4 != 3;
        const int64_t key_heads = between(i, 0, 1, 3), s = between(i, 1, 1, 60);
        const Shape x = {.a = {key_heads, between(i, 2, 1, normalize ? 9 : 2), between(i, 3, 1, 9),
                               between(i, 4, 1, 70), normalize, 1e-6},
                         .s = s,
                         .b = between(i, 5, 1, 3),
                         .heads = key_heads * between(i, 6, 1, 3),
                         .document = i % 2 ? between(i, 7, 1, s) : 0,
                         .gates = (Gates)(i / 4 % GATES)};
        char name[32];
        snprintf(name, sizeof name, "shape %d", i);
        compare(name, x);
    }
}

/* Chunks that divide the sequence, chunks that do not, and chunks that are longer than it. */
TEST(chunk_borders) {
    for (int gates = ANY; gates < GATES; gates++) {
        const int64_t lengths[] = {1, 2, 7, 35, 64, 69, 70, 71, 128};
        for (int i = 0; i < 9; i++) {
            char name[32];
            snprintf(name, sizeof name, "gates %d, chunk %d", gates, (int)lengths[i]);
            compare(name, (Shape){.a = {2, 10, 12, lengths[i], true, 1e-6},
                                  .s = 70,
                                  .b = 2,
                                  .heads = 6,
                                  .document = i % 2 ? 30 : 0,
                                  .gates = (Gates)gates});
        }
    }
}

/* Changes the values of the first document, and expects bitwise equal results for the second. */
TEST(documents_are_separate) {
    enum { S = 50, FIRST = 37 };
    const Shape x = {.a = {2, 5, 7, 16, true, 1e-6}, .s = S, .b = 1, .heads = 4, .document = 1};
    Run one = run_new(x), other = run_new(x);
    for (int64_t t = 0; t < S; t++)
        ((int64_t *)one.start.data)[t] = ((int64_t *)other.start.data)[t] = t < FIRST ? 0 : FIRST;
    for (int i = QKV; i <= DY; i++)
        for (int64_t e = 0; other.t[i].ndim == 3 && e < FIRST * other.t[i].stride[0]; e++)
            data_of(&other, i)[e] *= -3;
    compute(&one), compute(&other);
    const int results[] = {Y, DQKV, DALPHA, DBETA};
    for (int i = 0; i < 4; i++) {
        const Tensor *a = &one.t[results[i]];
        const int64_t from = FIRST * a->stride[0];
        assert_memory_equal((double *)a->data + from, data_of(&other, results[i]) + from,
                            (size_t)(tensor_count(a) - from) * sizeof(double));
        assert_memory_not_equal(a->data, other.t[results[i]].data, (size_t)from * sizeof(double));
    }
    run_free(&one), run_free(&other);
}

/* ---- streams ---- */

/* Copies positions [from, from + count) of each sample into a stream, sample after sample. */
static Tensor rows_of(const Tensor *x, const int64_t *from, const int64_t *count, int64_t samples) {
    const int64_t width = x->dim[2];
    int64_t n = 0;
    for (int64_t i = 0; i < samples; i++) n += count[i];
    Tensor out = tensor_make(NULL, F64, 3, (int64_t[]){n, 1, width});
    double *to = out.data = mem_alloc(tensor_bytes(&out) + 1);
    for (int64_t i = 0; i < samples; i++)
        for (int64_t t = from[i]; t < from[i] + count[i]; t++, to += width)
            memcpy(to, (double *)x->data + (t * x->dim[1] + i) * width, (size_t)width * sizeof(double));
    return out;
}

/* Runs a pass over the given positions of each sample, and writes their outputs to Y. */
static void pass(Run *r, Tensor *state, const int64_t *from, const int64_t *count) {
    Tensor in[] = {rows_of(&r->t[QKV], from, count, r->x.b), rows_of(&r->t[ALPHA], from, count, r->x.b),
                   rows_of(&r->t[BETA], from, count, r->x.b), rows_of(&r->t[Y], from, count, r->x.b)};
    const int64_t n = in[0].dim[0], width = in[3].dim[2];
    int64_t *slots = mem_alloc((size_t)(2 * n + 1) * sizeof(int64_t)), *positions = slots + n, row = 0;
    for (int64_t i = 0; i < r->x.b; i++)
        for (int64_t t = from[i]; t < from[i] + count[i]; t++, row++)
            slots[row] = r->x.b - i, positions[row] = t;
    Tensor slot = tensor_make(slots, I64, 1, &n),
           position = tensor_make(positions, I64, 2, (int64_t[]){1, n});
    Device *cpu = device_cpu(2);
    call_run(&OPS[OP_stream_delta_rule],
             &(Call){.in = {&in[0], &in[1], &in[2], &r->t[A_LOG], &r->t[DT_BIAS], &slot, &position},
                     .out = {&in[3], state},
                     .attr = &r->x.a,
                     .device = cpu});
    device_free(cpu);
    row = 0;
    for (int64_t i = 0; i < r->x.b; i++)
        for (int64_t t = from[i]; t < from[i] + count[i]; t++, row++)
            memcpy(data_of(r, Y) + (t * r->x.b + i) * width, (double *)in[3].data + row * width,
                   (size_t)width * sizeof(double));
    for (int i = 0; i < 4; i++) free(in[i].data);
    free(slots);
}

/* Returns the outputs of streams in passes over at most `most` positions of each sample. The states are NaN at first. */
static Run streamed(Shape x, int shape, int64_t most) {
    Run r = run_new(x);
    Tensor state = tensor_make(NULL, F64, 5, (int64_t[]){x.b + 1, 1, x.heads, x.a.key_dim, x.a.value_dim});
    double *values = state.data = mem_alloc(tensor_bytes(&state));
    for (int64_t e = 0; e < tensor_count(&state); e++) values[e] = NAN;
    int64_t from[3] = {0}, count[3], left = 1;
    for (int number = 0; left; number++) {
        left = 0;
        for (int i = 0; i < x.b; i++) {
            const int64_t rest = x.s - from[i],
                          drawn_count = between(shape, (uint64_t)(100 + 3 * number + i), 0, most);
            count[i] = drawn_count < rest ? drawn_count : rest;
        }
        pass(&r, &state, from, count);
        for (int i = 0; i < x.b; i++) from[i] += count[i], left += x.s - from[i];
    }
    free(state.data);
    return r;
}

TEST(streams_in_parts_are_whole_requests) {
    for (int i = 0; i < 100; i++) {
        const int64_t key_heads = between(i, 0, 1, 3), s = between(i, 1, 1, 40);
        const Shape x = {.a = {key_heads, between(i, 2, 1, 9), between(i, 3, 1, 9), 16, true, 1e-6},
                         .s = s,
                         .b = between(i, 5, 1, 3),
                         .heads = key_heads * between(i, 6, 1, 3),
                         .gates = (Gates)(i % GATES)};
        Run whole = run_new(x), parts = streamed(x, i, between(i, 7, 1, s)), other = streamed(x, i + 1000, 3);
        compute(&whole);
        const double terms = (double)(s * x.b + x.a.key_dim + x.a.value_dim),
                     bound = 8 * sqrt(terms) * dtype_roundoff(F64) * 2;
        for (int64_t e = 0; e < tensor_count(&whole.t[Y]); e++) {
            if (!(fabs(data_of(&parts, Y)[e] - data_of(&whole, Y)[e]) <= bound))
                fail_msg("shape %d: element %d is %g, not %g", i, (int)e, data_of(&parts, Y)[e],
                         data_of(&whole, Y)[e]);
            assert_true(data_of(&parts, Y)[e] == data_of(&other, Y)[e]);
        }
        run_free(&whole), run_free(&parts), run_free(&other);
    }
}
