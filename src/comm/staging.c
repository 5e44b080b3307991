/* Operations on the memory of a device that has no transport. Starting an operation copies the input to host
 * memory, where the host transport runs the operation. Waiting for the operation copies the result back to
 * the device. The host blocks during both copies. Staging is slow, but it is a reference for faster
 * transports. */
#include <stdlib.h>

#include "base/mem.h"
#include "comm/transport.h"

static int64_t sum(const int64_t *x, int n) {
    int64_t total = 0;
    for (int i = 0; i < n; i++) total += x[i];
    return total;
}

/* Returns the number of elements in the buffer `in`. A broadcast has no such buffer, because it works in
 * place on `out`. */
static int64_t in_count(const CommCall *c) {
    switch (c->kind) {
    case COMM_ALL_REDUCE:
    case COMM_ALL_GATHER:
    case COMM_SEND:
        return c->n;
    case COMM_REDUCE_SCATTER:
        return c->group.size * c->n;
    case COMM_ALL_TO_ALL:
        return sum(c->in_counts, c->group.size);
    default:
        return 0;
    }
}

static int64_t out_count(const CommCall *c) {
    switch (c->kind) {
    case COMM_BROADCAST:
    case COMM_ALL_REDUCE:
    case COMM_REDUCE_SCATTER:
    case COMM_RECV:
        return c->n;
    case COMM_ALL_GATHER:
        return c->group.size * c->n;
    case COMM_ALL_TO_ALL:
        return sum(c->out_counts, c->group.size);
    default:
        return 0;
    }
}

static void stage(CommWork *w) {
    CommCall *c = &w->call;
    const size_t size = dtype_size(c->dtype), in = (size_t)in_count(c) * size,
                 out = (size_t)out_count(c) * size;
    const void *from = c->in;
    w->staged = c->out;
    w->staging = mem_alloc(in + out + 1);
    if (in) device_read(c->device, w->staging, from, in);
    c->in = w->staging;
    c->out = (char *)w->staging + in;
    if (c->kind == COMM_BROADCAST) device_read(c->device, c->out, w->staged, out);
}

static void unstage(CommWork *w) {
    const CommCall *c = &w->call;
    const size_t out = (size_t)out_count(c) * dtype_size(c->dtype);
    if (out) device_write(c->device, w->staged, c->out, out);
    free(w->staging);
    w->staging = NULL;
}

static void staging_start(Comm *c, CommWork *w) {
    stage(w);
    c->host->start(c, w);
}

static void staging_wait(Comm *c, CommWork *w) {
    c->host->wait(c, w);
    unstage(w);
}

const CommTransport COMM_STAGING = {.start = staging_start, .wait = staging_wait};
