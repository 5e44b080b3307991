/* The data movement of host_nccl.c. A sum is the left fold over the members in their order: in double for
 * F64, in 64-bit integers for integers, and otherwise in float, rounded once to nearest even at the end.
 * Isotron's host transport (src/comm/reduce.c) adds in the same way, so results are bitwise equal. */
#include <string.h>

#include "nccl/host_nccl.h"
#include "tensor/float_bits.h"

enum { BLOCK = 512, TAIL = 8 }; /* elements */

typedef union Sum {
    double f64[BLOCK];
    float f32[BLOCK];
    uint64_t i64[BLOCK]; /* the low bits of a sum do not depend on the sign or on higher bits */
} Sum;

size_t in_count(const Op *op, int members) {
    return op->kind == RECV ? 0 : op->kind == REDUCE_SCATTER ? op->n * (size_t)members : op->n;
}

size_t out_count(const Op *op, int members) {
    return op->kind == SEND ? 0 : op->kind == ALL_GATHER ? op->n * (size_t)members : op->n;
}

/* ---- 16-bit floats ---- */

static uint16_t bf16_of(float x) {
    const uint32_t u = float_bits(x);
    if (x != x) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float of_bf16(uint16_t x) { return float_of_bits((uint32_t)x << 16); }

/* An addition rounds to a multiple of the spacing of F16 at x: 2^-24 for subnormals, otherwise 2^-10 of x's
 * power of two. */
static uint16_t f16_of(float x) {
    const uint32_t u = float_bits(x), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    if (x != x) return (uint16_t)(sign | 0x7e00);
    if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 2^16 */
    const uint32_t exponent = size < 0x38800000 ? 113 : size >> 23;
    const float spacing = float_of_bits((exponent - 10) << 23), big = spacing * 0x1p23f;
    const uint32_t steps = (uint32_t)((float_of_bits(size) + big - big) / spacing); /* at most 2^11 */
    return (uint16_t)(sign | (steps + ((exponent - 113) << 10)));
}

static float of_f16(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    return float_of_bits(sign | float_bits((float)fraction * 0x1p-24f));
}

/* ---- reductions ---- */

static void widen(Sum *to, int type, const void *from, size_t n) {
    const uint16_t *bits = from;
    const int32_t *i32 = from;
    const uint8_t *u8 = from;
    if (type == NCCL_BF16)
        for (size_t i = 0; i < n; i++) to->f32[i] = of_bf16(bits[i]);
    else if (type == NCCL_F16)
        for (size_t i = 0; i < n; i++) to->f32[i] = of_f16(bits[i]);
    else if (type == NCCL_I32)
        for (size_t i = 0; i < n; i++) to->i64[i] = (uint64_t)i32[i];
    else if (type == NCCL_U8)
        for (size_t i = 0; i < n; i++) to->i64[i] = u8[i];
    else
        memcpy(to, from, n * type_size(type));
}

static void narrow(void *to, int type, const Sum *from, size_t n) {
    uint16_t *bits = to;
    uint32_t *i32 = to;
    uint8_t *u8 = to;
    if (type == NCCL_BF16)
        for (size_t i = 0; i < n; i++) bits[i] = bf16_of(from->f32[i]);
    else if (type == NCCL_F16)
        for (size_t i = 0; i < n; i++) bits[i] = f16_of(from->f32[i]);
    else if (type == NCCL_I32)
        for (size_t i = 0; i < n; i++) i32[i] = (uint32_t)from->i64[i];
    else if (type == NCCL_U8)
        for (size_t i = 0; i < n; i++) u8[i] = (uint8_t)from->i64[i];
    else
        memcpy(to, from, n * type_size(type));
}

/* `widen` has kept the signs of the integers. */
static void extreme(Sum *sum, bool largest, const Sum *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (((int64_t)x->i64[i] > (int64_t)sum->i64[i]) == largest) sum->i64[i] = x->i64[i];
}

static void add(Sum *sum, int type, const Sum *x, size_t n) {
    if (type == NCCL_F64)
        for (size_t i = 0; i < n; i++) sum->f64[i] += x->f64[i];
    else if (type == NCCL_F32 || type == NCCL_F16 || type == NCCL_BF16)
        for (size_t i = 0; i < n; i++) sum->f32[i] += x->f32[i];
    else
        for (size_t i = 0; i < n; i++) sum->i64[i] += x->i64[i];
}

/* A planted fault. */
static void round_to_bf16(Sum *sum, int type, size_t n) {
    if (type == NCCL_F64)
        for (size_t i = 0; i < n; i++) sum->f64[i] = (double)of_bf16(bf16_of((float)sum->f64[i]));
    if (type == NCCL_F32)
        for (size_t i = 0; i < n; i++) sum->f32[i] = of_bf16(bf16_of(sum->f32[i]));
}

/* ---- moves ---- */

static const char *input(const Op *op, size_t at) { return (const char *)op->in + at * type_size(op->type); }

/* Writes elements [at, at + n) of a member's result. */
static void put(const Meeting *m, int slot, size_t at, const void *from, size_t n) {
    const Op *op = m->op[slot];
    size_t end = out_count(op, m->members);
    if (m->drop_tail) end = end < TAIL ? 0 : end - TAIL;
    char *to = (char *)op->out + at * type_size(op->type);
    if (at + n > end) n = at < end ? end - at : 0;
    if (n && to != from) memcpy(to, from, n * type_size(op->type));
}

/* Reduces elements [begin, end) of all inputs, and writes them to the results of members [first, last),
 * starting at element `at`. */
static void reduce(const Meeting *m, size_t begin, size_t end, int first, int last, size_t at) {
    const int type = m->first.type;
    Sum sum, next;
    char result[sizeof sum];
    for (size_t i = begin; i < end; i += BLOCK) {
        const size_t n = end - i < BLOCK ? end - i : BLOCK;
        const int from = m->reverse ? m->members - 1 : 0, step = m->reverse ? -1 : 1;
        widen(&sum, type, input(m->op[from], i), n);
        for (int k = 1; k < m->members; k++) {
            widen(&next, type, input(m->op[from + k * step], i), n);
            if (m->first.reduction == NCCL_SUM)
                add(&sum, type, &next, n);
            else
                extreme(&sum, m->first.reduction == NCCL_MAX, &next, n);
        }
        if (m->half_sum) round_to_bf16(&sum, type, n);
        narrow(result, type, &sum, n);
        for (int k = first; k < last; k++) put(m, k, at + i - begin, result, n);
    }
}

void move_share(const Meeting *m, int slot) {
    const size_t n = m->first.n, me = (size_t)slot, members = (size_t)m->members;
    const size_t begin = n / members * me + n % members * me / members;
    const size_t end = n / members * (me + 1) + n % members * (me + 1) / members;
    switch (m->first.kind) {
    case ALL_REDUCE:
        reduce(m, begin, end, 0, m->members, begin);
        break;
    case REDUCE_SCATTER:
        reduce(m, me * n, (me + 1) * n, slot, slot + 1, 0);
        break;
    case ALL_GATHER:
        for (int k = 0; k < m->members; k++) put(m, slot, (size_t)k * n, m->op[k]->in, n);
        break;
    case BROADCAST:
        put(m, slot, 0, m->op[m->first.peer]->in, n);
        break;
    case SEND:
    case RECV:
        if (slot == 1) put(m, 1, 0, m->op[0]->in, n);
        break;
    }
}
