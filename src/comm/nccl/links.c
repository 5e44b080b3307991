/* Opens the communicators for a group's channels at the group's first operation, and plans their device memory. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "comm/nccl/state.h"

NcclLink *nccl_link_new(NcclState *s, CommChannel *ch) {
    NcclLink *l = mem_zero(1, sizeof *l);
    l->channel = ch;
    l->stream = device_stream_new(s->device);
    l->last = &l->first;
    ch->state = l;
    return l;
}

void nccl_link_publish(NcclState *s, NcclLink *l) {
    pthread_mutex_lock(&s->lock);
    l->next = s->links;
    s->links = l;
    pthread_mutex_unlock(&s->lock);
}

/* Creates `count` communicator ids on member 0 of the group, and sends them to all members. */
static void draw_ids(NcclState *s, Group g, NcclId *id, int count) {
    for (int i = 0; g.rank == 0 && i < count; i++) NCCL(s, NULL, GetUniqueId, &id[i]);
    nccl_set_calling_since(s, INT64_MAX);
    comm_run(s->comm, &(CommCall){.kind = COMM_BROADCAST,
                                  .dtype = U8,
                                  .group = g,
                                  .site = "nccl_id",
                                  .in = id,
                                  .out = id,
                                  .n = count * (int64_t)sizeof *id});
    nccl_set_calling_since(s, clock_ns());
}

/* Returns whether the group's all-gathers use copy engines. Copy engines occupy no multiprocessors, but they are slower
 * than NCCL's kernels, particularly in a CUDA graph. Only data-parallel all-gathers can afford to be slower, because
 * they overlap with entire layers. */
static bool uses_copy_engines(const NcclState *s, const Group *g) {
    return s->registers && g->axes != 1u << AXIS_TP;
}

static void join(const NcclState *s, NcclComm *comm, int members, NcclId id, int member, bool copy_engines) {
    NcclConfig config = nccl_config(s->most_blocks, copy_engines);
    if (s->most_blocks || copy_engines)
        NCCL(s, NULL, CommInitRankConfig, comm, members, id, member, &config);
    else
        NCCL(s, NULL, CommInitRank, comm, members, id, member);
}

void nccl_open_group(NcclState *s, CommChannel *ch, Group g) {
    NcclId id = {{0}};
    NcclLink *l = nccl_link_new(s, ch);
    draw_ids(s, g, &id, 1);
    join(s, &l->nccl, g.size, id, g.rank, uses_copy_engines(s, &g));
    nccl_link_publish(s, l);
}

/* Returns the number of ordered pairs of neighbours in a ring. */
static int pair_count(int size) { return size == 2 ? 2 : 2 * size; }

static CommKey pair_key(const CommKey *of, int pair) {
    const int size = of->group.size, a = pair / 2, b = (a + 1) % size;
    CommKey key = *of;
    key.src = pair % 2 ? b : a, key.dst = pair % 2 ? a : b;
    return key;
}

/* Sends an element through each link. At the first message of a communicator, the host waits until the other
 * side has also called NCCL. Two ranks whose first operations are sends to each other would therefore deadlock.
 * In a group call, NCCL connects all links at the same time. */
static void connect(NcclState *s, NcclLink *const *link, int n) {
    NCCL(s, NULL, GroupStart);
    for (int i = 0; i < n; i++) {
        NcclLink *l = link[i];
        void *stream = device_stream_handle(s->device, l->stream);
        device_stream_follow(s->device, l->stream);
        if (l->channel->member == 0)
            NCCL(s, l->nccl, Send, s->greeting + i, 1, NCCL_U8, 1, l->nccl, stream);
        else
            NCCL(s, l->nccl, Recv, s->greeting + i, 1, NCCL_U8, 0, l->nccl, stream);
    }
    NCCL(s, NULL, GroupEnd);
}

static bool is_in_pair(const CommKey *key, int r) { return key->src == r || key->dst == r; }

/* Opens the channels to all neighbours at the group's first message. Opening only one pair could deadlock: if every
 * rank first sent to the next rank, all ranks would wait in a cycle. */
static void open_pairs(NcclState *s, const CommKey *of, Group g) {
    const int count = pair_count(g.size);
    NcclId *id = mem_zero((size_t)count, sizeof *id);
    NcclLink **own = mem_zero((size_t)count, sizeof *own);
    int n = 0;
    draw_ids(s, g, id, count);
    NCCL(s, NULL, GroupStart);
    for (int i = 0; i < count; i++) {
        const CommKey key = pair_key(of, i);
        if (!is_in_pair(&key, g.rank)) continue;
        own[n] = nccl_link_new(s, comm_channel(s->comm, &key));
        join(s, &own[n++]->nccl, 2, id[i], key.dst == g.rank, false);
    }
    NCCL(s, NULL, GroupEnd);
    connect(s, own, n);
    for (int i = 0; i < n; i++) nccl_link_publish(s, own[i]);
    free(own);
    free(id);
}

NcclLink *nccl_link_of(NcclState *s, const CommWork *w) {
    CommChannel *ch = w->channel;
    if (!ch->state && ch->key.src < 0) nccl_open_group(s, ch, w->call.group);
    if (!ch->state) open_pairs(s, &ch->key, w->call.group);
    CHECK(ch->state, "at '%s': members %d and %d of %d are not neighbours", w->call.site, ch->key.src,
          ch->key.dst, w->call.group.size);
    return ch->state;
}

/* ---- planning ---- */

bool nccl_has_operation(const CommCall *call) {
    if (call->kind == COMM_BARRIER) return false;
    if (call->kind != COMM_ALL_REDUCE && call->kind != COMM_REDUCE_SCATTER) return true;
    return call->reduction == COMM_SUM ? !dtype_is_fp8(call->dtype) : !dtype_is_float(call->dtype);
}

void comm_plan(Comm *c, const CommCall *call) {
    if (call->group.size == 1 || !nccl_has_operation(call)) return;
    const CommKey key = comm_key(call, true);
    if (key.src < 0) comm_channel(c, &key)->all_to_all |= call->kind == COMM_ALL_TO_ALL;
    for (int i = 0; key.src >= 0 && i < pair_count(call->group.size); i++) {
        const CommKey pair = pair_key(&key, i);
        if (is_in_pair(&pair, call->group.rank)) comm_channel(c, &pair);
    }
}

/* The device memory in MiB that NCCL allocates when it first connects ranks, and the additional memory for each other
 * member of an all-to-all. `bench train` measured these values as "taken" minus "planned", in runs with 1 to 6
 * communicators of NCCL 2.28.9 on H100 and H200 with NVLink. For a member on a different host, NCCL opens 2 channels
 * instead of 32 (ncclTopoComputeP2pChannels). */
enum { FIRST_MIB = 465, PEER_MIB = 402, REMOTE_PEER_MIB = PEER_MIB / 16 };

/* Returns how many MiB a communicator needs if its operations use at most `most_blocks` thread blocks. The formula fits
 * measurements for 8, 10, 16, 20 and 24 blocks. If `most_blocks` is 0, NCCL chooses 24. */
static int communicator_mib(int most_blocks) {
    const int blocks = most_blocks && most_blocks < 24 ? most_blocks : 24;
    return (blocks > 16 ? 123 : 36) + 12 * blocks;
}

size_t comm_device_bytes(const Comm *c, int most_blocks, int ranks_of_host) {
    int mib = 0;
    for (size_t i = 0; i < c->channels.capacity; i++) {
        const CommEntry *e = &c->channels.entry[i];
        const CommChannel *ch = e->value;
        if (!ch || e->key.device != 1) continue;
        mib += (mib ? 0 : FIRST_MIB) + communicator_mib(most_blocks);
        if (!ch->all_to_all) continue;
        const bool remote = comm_member(&e->key, ch->members - 1) - comm_member(&e->key, 0) >= ranks_of_host;
        mib += (ch->members - 1) * (remote ? REMOTE_PEER_MIB : PEER_MIB);
    }
    return (size_t)mib << 20;
}

int comm_communicators(const Comm *c, bool open) {
    int n = 0;
    for (size_t i = 0; i < c->channels.capacity; i++) {
        const CommEntry *e = &c->channels.entry[i];
        if (e->value && e->key.device == 1) n += !open || ((const CommChannel *)e->value)->state;
    }
    return n;
}
