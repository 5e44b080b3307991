/* NCCL as the transport for device memory. Each channel has its own communicator and stream, so that operations on
 * different channels overlap. An operation runs after earlier calls on the device, and later calls wait for the
 * operation's event. The host does not block. */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "comm/nccl/state.h"

static int type_of(DType t) {
    static const int TYPES[] = {
        [F64] = NCCL_F64, [F32] = NCCL_F32, [BF16] = NCCL_BF16, [F16] = NCCL_F16,  [I64] = NCCL_I64,
        [I32] = NCCL_I32, [U8] = NCCL_U8,   [F8E4M3] = NCCL_U8, [F8E5M2] = NCCL_U8};
    return TYPES[t];
}

static int reduction_of(CommReduction r) {
    static const int REDUCTIONS[] = {[COMM_SUM] = NCCL_SUM, [COMM_MAX] = NCCL_MAX, [COMM_MIN] = NCCL_MIN};
    return REDUCTIONS[r];
}

static void all_to_all(NcclState *s, const NcclLink *l, const CommWork *w) {
    const CommCall *c = &w->call;
    const size_t size = dtype_size(c->dtype);
    const int type = type_of(c->dtype);
    void *stream = device_stream_handle(s->device, l->stream);
    NCCL(s, l->nccl, GroupStart);
    for (int i = 0; i < c->group.size; i++) {
        const char *in = (const char *)c->in + (size_t)w->in_at[i] * size;
        char *out = (char *)c->out + (size_t)w->out_at[i] * size;
        if (c->in_counts[i]) NCCL(s, l->nccl, Send, in, (size_t)c->in_counts[i], type, i, l->nccl, stream);
        if (c->out_counts[i]) NCCL(s, l->nccl, Recv, out, (size_t)c->out_counts[i], type, i, l->nccl, stream);
    }
    NCCL(s, l->nccl, GroupEnd);
}

static void launch(NcclState *s, const NcclLink *l, const CommWork *w) {
    const CommCall *c = &w->call;
    const size_t n = (size_t)c->n;
    const int type = type_of(c->dtype);
    NcclComm comm = l->nccl;
    void *stream = device_stream_handle(s->device, l->stream);
    switch (c->kind) {
    case COMM_BROADCAST:
        NCCL(s, comm, Broadcast, c->out, c->out, n, type, c->peer, comm, stream);
        break;
    case COMM_ALL_REDUCE:
        NCCL(s, comm, AllReduce, c->in, c->out, n, type, reduction_of(c->reduction), comm, stream);
        break;
    case COMM_ALL_GATHER:
        NCCL(s, comm, AllGather, c->in, c->out, n, type, comm, stream);
        break;
    case COMM_REDUCE_SCATTER:
        NCCL(s, comm, ReduceScatter, c->in, c->out, n, type, reduction_of(c->reduction), comm, stream);
        break;
    case COMM_ALL_TO_ALL:
        all_to_all(s, l, w);
        break;
    case COMM_SEND: /* member 1 of a pair is the receiver */
        NCCL(s, comm, Send, c->in, n, type, 1, comm, stream);
        break;
    case COMM_RECV:
        NCCL(s, comm, Recv, c->out, n, type, 0, comm, stream);
        break;
    default:
        CHECK(false, "kind %d", (int)c->kind);
    }
}

/* ---- start and wait ---- */

static void nccl_start(Comm *c, CommWork *w) {
    NcclState *s = c->device_state;
    NcclFlight *f = nccl_flight_new(s, w);
    nccl_set_calling(s, &w->channel->key, f);
    NcclLink *l = nccl_link_of(s, w);
    device_stream_follow(s->device, l->stream);
    const bool timed = c->profile && device_is_discrete(s->device) && !device_is_recording(s->device);
    const int64_t begin = timed ? device_span_begin(s->device, l->stream) : 0;
    if (s->windows) nccl_note_places(s, l, &w->call);
    if (w->call.n || w->call.kind == COMM_ALL_TO_ALL) launch(s, l, w);
    if (timed) device_span_end(s->device, l->stream, begin, &c->profile[w->call.group.axes].flight);
    device_stream_record(s->device, l->stream, f->done);
    w->state = f;
    nccl_set_calling(s, &w->channel->key, NULL);
    if (!device_is_recording(s->device)) nccl_fly(s, l, f);
}

static void nccl_wait(Comm *c, CommWork *w) {
    NcclState *s = c->device_state;
    NcclFlight *f = w->state;
    device_wait_event(s->device, f->done);
    pthread_mutex_lock(&s->lock);
    f->waited = true;
    if (f->watched && !device_is_recording(s->device)) {
        nccl_sweep(s, w->channel->state);
    } else if (!f->watched) {
        comm_record_done(&c->recorder, f->record);
        f->next = s->spare, s->spare = f;
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- graphs ---- */

static void open_graphs(NcclState *s) {
    Comm *c = s->comm;
    CommKey key = {.group = comm_everyone(c), .src = -1, .dst = -1, .device = 2};
    key.group.rank = 0;
    NcclLink *l = nccl_link_new(s, comm_channel(c, &key));
    nccl_link_publish(s, l);
    pthread_mutex_lock(&s->lock);
    s->graphs = l;
    pthread_mutex_unlock(&s->lock);
}

static void nccl_launched(Comm *c, const char *site) {
    NcclState *s = c->device_state;
    if (!s->graphs) open_graphs(s);
    NcclLink *l = s->graphs;
    CommWork w = {.facts = {.kind = COMM_GRAPH}, .channel = l->channel, .seq = l->channel->next++};
    strncpy(w.facts.site, site, sizeof w.facts.site - 1);
    w.record = comm_record_start(&c->recorder, &w);
    NcclFlight *f = nccl_flight_new(s, &w);
    f->waited = true;
    device_stream_follow(s->device, l->stream);
    device_stream_record(s->device, l->stream, f->done);
    nccl_fly(s, l, f);
    pthread_mutex_lock(&s->lock);
    nccl_sweep(s, l);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the transport ---- */

static bool nccl_takes(const Comm *c, const CommCall *call) {
    const NcclState *s = c->device_state;
    return call->device == s->device && nccl_has_operation(call);
}

static void nccl_free(Comm *c) {
    NcclState *s = c->device_state;
    device_wait(s->device);
    nccl_watch_end(s);
    while (s->windows) nccl_detach(c, s->windows->memory);
    for (NcclLink *l = s->links, *next; l; l = next) {
        next = l->next;
        if (l->nccl) NCCL(s, l->nccl, CommDestroy, l->nccl);
        l->channel->state = NULL; /* the transport may be opened again */
        device_stream_free(s->device, l->stream);
        nccl_flights_free(s, l->first);
        free(l);
    }
    nccl_flights_free(s, s->spare);
    device_release(s->device, s->greeting, NCCL_PAIRS);
    free(s);
    c->device = NULL, c->device_state = NULL;
}

const CommTransport NCCL_TRANSPORT = {.start = nccl_start,
                                      .wait = nccl_wait,
                                      .free = nccl_free,
                                      .takes = nccl_takes,
                                      .launched = nccl_launched,
                                      .attach = nccl_attach,
                                      .compare = nccl_compare,
                                      .detach = nccl_detach};
