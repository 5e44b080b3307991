#include "measure/exact.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { PIECE = 1 << 16 }; /* number of elements that the host processes together */

const Collective COLLECTIVES[N_COLLECTIVES] = {
    {"all_reduce", COMM_ALL_REDUCE, true, false, true, true, 2},
    {"all_gather", COMM_ALL_GATHER, false, true, true, true, 1},
    {"reduce_scatter", COMM_REDUCE_SCATTER, true, true, true, true, 1},
    {"broadcast", COMM_BROADCAST, false, false, true, false, 0},
    {"all_to_all", COMM_ALL_TO_ALL, false, true, false, true, 1},
    {"send_recv", COMM_SEND, false, false, false, true, 0},
};

const ExactType EXACT_TYPES[N_EXACT_TYPES] = {{"fp32", F32, 24}, {"bf16", BF16, 8},  {"fp16", F16, 11},
                                              {"fp64", F64, 53}, {"int64", I64, 53}, {"int32", I32, 30}};

double exact_bus_factor(const Collective *c, int members) {
    return c->per_step > 0 ? c->per_step * (members - 1) / members : 1;
}

static double value(const Exact *x, int member, int64_t at) {
    const uint64_t values = (UINT64_C(1) << x->type->bits) / (uint64_t)x->group.size + 1;
    uint64_t v =
        (uint64_t)at * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)member * UINT64_C(0xd1b54a32d192ed03);
    v ^= v >> 32;
    return (double)((v * UINT64_C(0x9e3779b97f4a7c15) >> 8) % values);
}

double exact_expected(const Exact *x, int64_t at) {
    const int n = x->group.size, me = x->group.rank;
    double sum = 0;
    switch (x->of->kind) {
    case COMM_BROADCAST:
        return value(x, 0, at);
    case COMM_SEND:
        return value(x, (me + n - 1) % n, at);
    case COMM_ALL_GATHER:
        return value(x, (int)(at / x->count), at % x->count);
    case COMM_ALL_TO_ALL:
        return value(x, (int)(at / x->count), me * x->count + at % x->count);
    default:
        at += x->of->kind == COMM_REDUCE_SCATTER ? me * x->count : 0;
        for (int m = 0; m < n; m++) sum += value(x, m, at);
        return sum;
    }
}

int64_t exact_in_count(const Exact *x) {
    const CommKind k = x->of->kind;
    return x->count * (k == COMM_REDUCE_SCATTER || k == COMM_ALL_TO_ALL ? x->group.size : 1);
}

int64_t exact_out_count(const Exact *x) {
    const CommKind k = x->of->kind;
    return x->count * (k == COMM_ALL_GATHER || k == COMM_ALL_TO_ALL ? x->group.size : 1);
}

CommCall exact_call(const Exact *x) {
    const size_t part = (size_t)(x->group.rank * x->count) * dtype_size(x->type->type);
    const CommKind kind = x->of->kind;
    CommCall call = {.kind = kind,
                     .dtype = x->type->type,
                     .group = x->group,
                     .site = x->of->name,
                     .in = x->in,
                     .out = x->out,
                     .n = x->count,
                     .device = x->device};
    if (x->in_place && kind == COMM_ALL_GATHER) call.in = x->out + part;
    if (x->in_place && kind == COMM_REDUCE_SCATTER) call.out = x->in + part;
    if (x->in_place && kind == COMM_ALL_REDUCE) call.in = x->out;
    if (kind == COMM_BROADCAST) call.in = x->out;
    return call;
}

void exact_fill(const Exact *x, const CommCall *call) {
    const size_t size = dtype_size(call->dtype);
    const int64_t n = exact_in_count(x);
    char *piece = mem_alloc(PIECE * size);
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t k = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = 0; i < k; i++) dtype_store(piece, call->dtype, i, value(x, x->group.rank, at + i));
        device_write(x->device, (char *)call->in + (size_t)at * size, piece, (size_t)k * size);
    }
    free(piece);
}

void exact_run(const Exact *x, CommCall call) {
    const int n = x->group.size;
    int64_t counts[EXACT_RANKS];
    if (call.kind == COMM_ALL_TO_ALL) {
        for (int i = 0; i < n; i++) counts[i] = call.n;
        call.in_counts = call.out_counts = counts;
    }
    if (call.kind != COMM_SEND) {
        comm_run(x->comm, &call);
        return;
    }
    call.peer = (call.group.rank + 1) % n;
    CommWork *send = comm_start(x->comm, &call);
    call.kind = COMM_RECV, call.peer = (call.group.rank + n - 1) % n;
    CommWork *receive = comm_start(x->comm, &call);
    comm_wait(x->comm, send), comm_wait(x->comm, receive);
}

/* ---- checking ---- */

bool exact_is_rounded(double got, double wanted, int members) {
    /* relative error of a truncating addition; BF16 has 8 significant bits */
    static const double EPS = 0x1p-7;
    /* The largest relative error that rounding can explain. A lost summand causes a relative error of 1. */
    static const double MOST = 0.25;
    static const double MOST_F16 = 65504;
    if (isinf(got)) return fabs(wanted) > MOST_F16;
    return (got == (double)bf16_to_float(bf16_from_float((float)got)) ||
            got == (double)f16_to_float(f16_from_float((float)got))) &&
           fabs(got - wanted) <= fmin(EPS * members, MOST) * fabs(wanted);
}

static void note_wrong(const Exact *x, ExactWrong *w, int64_t at, double got, double wanted) {
    if (!w->count++) w->first = at, w->got = got, w->wanted = wanted;
    w->last = at;
    w->rounded += exact_is_rounded(got, wanted, x->group.size);
}

ExactWrong exact_check(const Exact *x, const CommCall *call) {
    const size_t size = dtype_size(call->dtype);
    const int64_t n = exact_out_count(x);
    ExactWrong wrong = {0};
    char *piece = mem_alloc(PIECE * size);
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t k = n - at < PIECE ? n - at : PIECE;
        device_read(x->device, piece, (char *)call->out + (size_t)at * size, (size_t)k * size);
        for (int64_t i = 0; i < k; i++) {
            const double got = dtype_load(piece, call->dtype, i), wanted = exact_expected(x, at + i);
            if (got != wanted) note_wrong(x, &wrong, at + i, got, wanted);
        }
    }
    free(piece);
    return wrong;
}
