/* Registers memory with communicators as windows. */
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "comm/nccl/state.h"

/* Returns whether the value is equal on all members of the group. Sets `range` to the smallest and the largest
 * value. */
static bool is_same_on_all(Comm *c, Group g, const char *site, int64_t value, int64_t range[2]) {
    int64_t most[] = {~value, value};
    comm_all_reduce(c, g, site, COMM_MAX, I64, most, 2);
    range[0] = ~most[0], range[1] = most[1];
    return range[0] == range[1];
}

/* Returns the link's window that contains the address, or NULL if there is none. */
static const NcclMemory *window_of(const NcclState *s, const NcclLink *l, const void *p) {
    const NcclMemory *w = s->windows;
    while (w && (w->of != l || (const char *)p < w->memory || (const char *)p >= w->memory + w->bytes))
        w = w->next;
    return w;
}

static void note_place(const NcclState *s, NcclLink *l, const void *p) {
    const NcclMemory *w = window_of(s, l, p);
    if (w) l->places = (l->places ^ (uint64_t)((const char *)p - w->memory + 1)) * 0x100000001b3; /* FNV-1 */
}

void nccl_note_places(const NcclState *s, NcclLink *l, const CommCall *c) {
    const bool reduces = c->kind == COMM_ALL_REDUCE || c->kind == COMM_REDUCE_SCATTER;
    if (reduces) note_place(s, l, c->in);
    if (c->kind != COMM_REDUCE_SCATTER) note_place(s, l, c->out);
}

static bool is_first_of_link(const NcclState *s, const NcclMemory *w) {
    const NcclMemory *first = s->windows;
    while (first->of != w->of) first = first->next;
    return first == w;
}

void nccl_compare(Comm *c) {
    NcclState *s = c->device_state;
    for (const NcclMemory *w = s->windows; w; w = w->next) {
        if (!is_first_of_link(s, w) || !w->of->places) continue;
        int64_t range[2];
        CHECK(is_same_on_all(c, w->group, "places", (int64_t)w->of->places, range),
              "rank %d and other members of a group have used different offsets in memory that is registered "
              "with NCCL, "
              "so results are wrong: run without --use-nccl-ub, and report this as a bug in Isotron",
              c->rank);
        w->of->places = 0;
    }
}

/* Registers the memory. NCCL detects neither a missing member nor windows of different sizes; a collective on the host
 * transport detects both. */
void nccl_attach(Comm *c, const Group *g, void *memory, size_t bytes) {
    NcclState *s = c->device_state;
    if (!s->registers) return;
    int64_t range[2];
    CHECK(is_same_on_all(c, *g, "register", (int64_t)bytes, range),
          "rank %d registers %zu bytes, but other members of the group register %lld to %lld bytes", c->rank,
          bytes, (long long)range[0], (long long)range[1]);
    const CommKey key = comm_key(&(CommCall){.kind = COMM_ALL_GATHER, .group = *g}, true);
    CommChannel *ch = comm_channel(c, &key);
    CommWork work = {.facts = {.kind = COMM_BARRIER, .site = "register"}, .channel = ch, .seq = ch->next++};
    work.record = comm_record_start(&c->recorder, &work);
    NcclFlight *f = nccl_flight_new(s, &work);
    nccl_set_calling(s, &key, f);
    if (!ch->state) nccl_open_group(s, ch, *g);
    NcclMemory *w = mem_zero(1, sizeof *w);
    *w = (NcclMemory){.memory = memory, .bytes = bytes, .group = *g, .of = ch->state, .next = s->windows};
    NCCL(s, w->of->nccl, CommWindowRegister, w->of->nccl, memory, bytes, &w->window, NCCL_SYMMETRIC);
    s->windows = w;
    nccl_set_calling(s, &key, NULL);
    comm_record_done(&c->recorder, work.record);
    pthread_mutex_lock(&s->lock);
    f->next = s->spare, s->spare = f;
    pthread_mutex_unlock(&s->lock);
}

void nccl_detach(Comm *c, const void *memory) {
    NcclState *s = c->device_state;
    for (NcclMemory **at = &s->windows, *w; (w = *at);) {
        if (w->memory != memory) {
            at = &w->next;
            continue;
        }
        NCCL(s, w->of->nccl, CommWindowDeregister, w->of->nccl, w->window);
        *at = w->next;
        free(w);
    }
}
