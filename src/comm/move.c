#include <string.h>

#include "comm/transport.h"

enum { BLOCK_BYTES = 4096 }; /* a reduced block is copied to all members while it is still in the cache */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t comm_units(const CommWork *const *work, int members) {
    const CommCall *call = &work[0]->call;
    switch (call->kind) {
    case COMM_BARRIER:
        return 0;
    case COMM_ALL_TO_ALL:
        return members;
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER:
        return members * call->n;
    default:
        return call->n;
    }
}

int64_t comm_traffic(const CommWork *const *work, int members) {
    const CommCall *call = &work[0]->call;
    const int64_t size = (int64_t)dtype_size(call->dtype);
    if (call->kind != COMM_ALL_TO_ALL)
        return comm_units(work, members) * size * (call->kind == COMM_ALL_REDUCE ? 2 * members : members + 1);
    int64_t elements = 0;
    for (int i = 0; i < members; i++)
        elements += work[i]->in_at[members - 1] + work[i]->call.in_counts[members - 1];
    return 2 * elements * size;
}

/* Writes elements [at, at + n) of a member's result. */
static void put(const CommWork *w, int64_t at, const void *from, int64_t n) {
    const size_t size = dtype_size(w->call.dtype);
    if (!n) return; /* an empty result may be NULL */
    char *to = (char *)w->call.out + (size_t)at * size;
    if (to != from) memcpy(to, from, (size_t)n * size);
}

/* Returns the address of element `at` of a member's input, or NULL if the member has no input. */
static const void *part(const CommWork *w, int64_t at) {
    return w->call.in ? (const char *)w->call.in + (size_t)at * dtype_size(w->call.dtype) : NULL;
}

/* Reduces in blocks. An all-reduce copies each block to all members. A reduce-scatter copies each block to the member
 * that owns it. */
static void reduce(const CommWork *const *work, int members, int64_t begin, int64_t end) {
    const CommCall *call = &work[0]->call;
    const void *in[members];
    for (int i = 0; i < members; i++) in[i] = work[i]->call.in;
    const int64_t block = BLOCK_BYTES / (int64_t)dtype_size(call->dtype);
    double sum[BLOCK_BYTES / sizeof(double)];
    for (int64_t at = begin, n; at < end; at += n) {
        const int64_t owner = call->kind == COMM_REDUCE_SCATTER ? at / call->n : -1;
        n = least(block, (owner < 0 ? end : least(end, (owner + 1) * call->n)) - at);
        comm_reduce(call->reduction, call->dtype, in, members, at, n, sum);
        if (owner >= 0)
            put(work[owner], at - owner * call->n, sum, n);
        else
            for (int i = 0; i < members; i++) put(work[i], at, sum, n);
    }
}

static void gather(const CommWork *const *work, int members, int64_t begin, int64_t end) {
    const int64_t each = work[0]->call.n;
    for (int64_t at = begin, n; at < end; at += n) {
        const int64_t owner = at / each;
        n = least(end, (owner + 1) * each) - at;
        for (int i = 0; i < members; i++) put(work[i], at, part(work[owner], at - owner * each), n);
    }
}

void comm_move(const CommWork *const *work, int members, int64_t begin, int64_t end) {
    const CommCall *call = &work[0]->call;
    const CommWork *root = work[call->kind == COMM_BROADCAST ? call->peer : 0];
    if (begin == end) return;
    switch (call->kind) {
    case COMM_ALL_REDUCE:
    case COMM_REDUCE_SCATTER:
        reduce(work, members, begin, end);
        break;
    case COMM_ALL_GATHER:
        gather(work, members, begin, end);
        break;
    case COMM_BROADCAST:
        for (int i = 0; i < members; i++)
            put(work[i], begin, (char *)root->call.out + (size_t)begin * dtype_size(call->dtype),
                end - begin);
        break;
    case COMM_ALL_TO_ALL:
        for (int64_t to = begin; to < end; to++)
            for (int i = 0; i < members; i++)
                put(work[to], work[to]->out_at[i], part(work[i], work[i]->in_at[to]),
                    work[i]->call.in_counts[to]);
        break;
    case COMM_SEND:
    case COMM_RECV:
        put(work[1], begin, part(work[0], begin), end - begin);
        break;
    default:
        break;
    }
}
