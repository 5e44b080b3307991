#include "tape/offload.h"

#include <stdlib.h>

#include "base/mem.h"

/* Memory of the host that is handed out from its begin on. */
typedef struct HostBlock {
    char *at;
    size_t bytes, used;
} HostBlock;

typedef struct Slot {
    Space *space;
    DeviceEvent *copied;
    bool copying; /* nobody has waited for the last copy */
} Slot;

typedef struct Kept {
    char *host;
    size_t bytes;
} Kept;

struct Offload {
    Device *device;
    int64_t layers;
    Slot slot[OFFLOAD_SLOTS];
    int slots;         /* no more than layers */
    Kept *kept;        /* [layers] */
    HostBlock *blocks; /* one if it is planned; another when a microbatch's activations outgrow those there */
    size_t n_blocks, used, peak;
};

static void add_block(Offload *o, size_t bytes) {
    o->blocks = mem_grow(o->blocks, o->n_blocks + 1, sizeof *o->blocks);
    o->blocks[o->n_blocks++] =
        (HostBlock){.at = device_host_alloc(o->device, bytes, "offloaded activations"), .bytes = bytes};
}

Offload *offload_new(Device *d, int64_t layers, OffloadMemory memory) {
    Offload *o = mem_zero(1, sizeof *o);
    o->device = d;
    o->layers = layers;
    o->slots = layers < OFFLOAD_SLOTS ? (int)layers : OFFLOAD_SLOTS;
    o->kept = mem_zero((size_t)layers, sizeof *o->kept);
    for (int i = 0; i < o->slots; i++)
        o->slot[i] = (Slot){space_new(d, "offloaded activation", memory.slot), device_event_new(d), false};
    if (memory.host) add_block(o, memory.host);
    return o;
}

void offload_free(Offload *o) {
    if (!o) return;
    for (int i = 0; i < o->slots; i++) {
        device_event_free(o->device, o->slot[i].copied);
        space_free(o->slot[i].space);
    }
    for (size_t i = 0; i < o->n_blocks; i++)
        device_host_release(o->device, o->blocks[i].at, o->blocks[i].bytes);
    free(o->blocks);
    free(o->kept);
    free(o);
}

OffloadMemory offload_peak(const Offload *o) {
    OffloadMemory m = {.host = o->peak};
    for (int i = 0; i < o->slots; i++)
        if (space_peak(o->slot[i].space) > m.slot) m.slot = space_peak(o->slot[i].space);
    return m;
}

size_t offload_bytes(const Offload *o, OffloadMemory m) { return (size_t)o->slots * m.slot; }

/* The null device only counts. Copies to and from the host are in one order, so what the last backward has
 * read can be written. */
static char *host_memory(Offload *o, size_t bytes) {
    o->used += bytes;
    if (o->used > o->peak) o->peak = o->used;
    if (o->device->kind == DEVICE_NULL) return NULL;
    size_t i = 0;
    while (i < o->n_blocks && o->blocks[i].bytes - o->blocks[i].used < bytes) i++;
    if (i == o->n_blocks) add_block(o, bytes);
    o->blocks[i].used += bytes;
    return o->blocks[i].at + o->blocks[i].used - bytes;
}

static Slot *slot_of(Offload *o, int64_t layer) { return &o->slot[layer % OFFLOAD_SLOTS]; }

static void wait_for(Offload *o, Slot *s) {
    if (s->copying) device_after(o->device, s->copied);
    s->copying = false;
}

void offload_begin(Offload *o) {
    o->used = 0;
    for (size_t i = 0; i < o->n_blocks; i++) o->blocks[i].used = 0;
}

Space *offload_enter(Offload *o, int64_t layer) {
    Slot *s = slot_of(o, layer);
    wait_for(o, s);
    space_reset(s->space);
    return s->space;
}

void offload_leave(Offload *o, int64_t layer) {
    Slot *s = slot_of(o, layer);
    Kept *k = &o->kept[layer];
    if (layer + OFFLOAD_SLOTS >= o->layers) return;
    k->bytes = space_used(s->space); /* nothing was given back, so they lie together */
    k->host = host_memory(o, k->bytes);
    device_copy_beside(o->device, k->host, space_base(s->space), k->bytes, s->copied);
    s->copying = true;
}

void offload_need(Offload *o, int64_t layer) { wait_for(o, slot_of(o, layer)); }

void offload_finish(Offload *o, int64_t layer) {
    Slot *s = slot_of(o, layer);
    if (layer < OFFLOAD_SLOTS) return;
    const Kept *k = &o->kept[layer - OFFLOAD_SLOTS];
    device_copy_beside(o->device, space_base(s->space), k->host, k->bytes, s->copied);
    s->copying = true;
}
