#include "tape/offload.h"

#include <stdlib.h>

#include "base/mem.h"

/* Minimum size of a block added to the host memory. */
enum { HOST_BLOCK = 32 << 20 };

typedef struct HostBlock {
    char *at;
    size_t bytes;
} HostBlock;

typedef struct Slot {
    Space *space;
    DeviceEvent *copied;
    bool copying; /* whether the last copy of the slot may still be running */
} Slot;

/* A range of host memory. Offsets are relative to the concatenation of all blocks. */
typedef struct Kept {
    size_t begin, bytes;
} Kept;

struct Offload {
    Device *device;
    int64_t layers;
    Slot slot[OFFLOAD_SLOTS];
    int slots; /* at most `layers`, if that number is known */
    Kept *kept;
    int64_t n_kept;
    /* planned memory is one block; otherwise, a block is added whenever the activations do not fit into the
     * existing blocks */
    HostBlock *blocks;
    size_t n_blocks, capacity, used, peak;
};

static void add_block(Offload *o, size_t bytes) {
    o->blocks = mem_grow(o->blocks, o->n_blocks + 1, sizeof *o->blocks);
    o->blocks[o->n_blocks++] =
        (HostBlock){.at = device_host_alloc(o->device, bytes, "offloaded activations"), .bytes = bytes};
    o->capacity += bytes;
}

Offload *offload_new(Device *d, int64_t layers, OffloadMemory memory) {
    Offload *o = mem_zero(1, sizeof *o);
    o->device = d;
    o->layers = layers;
    o->slots = layers && layers < OFFLOAD_SLOTS ? (int)layers : OFFLOAD_SLOTS;
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

/* Reserves host memory or, on the null device, only counts it. Copies to and from the host run in order, so a
 * forward pass can overwrite memory that the previous backward pass has read. */
static Kept host_memory(Offload *o, size_t bytes) {
    const Kept k = {o->used, bytes};
    o->used += bytes;
    if (o->used > o->peak) o->peak = o->used;
    if (o->device->kind == DEVICE_NULL || o->used <= o->capacity) return k;
    const size_t missing = o->used - o->capacity;
    add_block(o, missing > HOST_BLOCK ? missing : HOST_BLOCK);
    return k;
}

/* Copies between a slot and the blocks of host memory. A layer may span several blocks. */
static void copy_kept(Offload *o, const Slot *s, const Kept *k, bool away) {
    size_t begin = 0; /* the block's start */
    for (size_t i = 0; i < o->n_blocks; begin += o->blocks[i++].bytes) {
        const HostBlock *b = &o->blocks[i];
        const size_t from = k->begin > begin ? k->begin : begin, end = begin + b->bytes,
                     to = k->begin + k->bytes < end ? k->begin + k->bytes : end;
        if (from >= to) continue;
        char *host = b->at + (from - begin), *there = (char *)space_base(s->space) + (from - k->begin);
        device_copy_async(o->device, away ? host : there, away ? there : host, to - from, s->copied);
    }
}

static Slot *slot_of(Offload *o, int64_t layer) { return &o->slot[layer % OFFLOAD_SLOTS]; }

static void wait_for(Offload *o, Slot *s) {
    if (s->copying) device_wait_event(o->device, s->copied);
    s->copying = false;
}

void offload_begin(Offload *o) { o->used = 0; }

Space *offload_enter(Offload *o, int64_t layer) {
    Slot *s = slot_of(o, layer);
    wait_for(o, s);
    space_reset(s->space);
    return s->space;
}

void offload_leave(Offload *o, int64_t layer) {
    Slot *s = slot_of(o, layer);
    if (o->layers && layer + OFFLOAD_SLOTS >= o->layers) return;
    if (layer >= o->n_kept) o->kept = mem_grow(o->kept, (size_t)(o->n_kept = layer + 1), sizeof *o->kept);
    /* A layer frees none of its activations, so they are contiguous. */
    o->kept[layer] = host_memory(o, space_used(s->space));
    copy_kept(o, s, &o->kept[layer], true);
    s->copying = o->kept[layer].bytes;
}

void offload_need(Offload *o, int64_t layer) { wait_for(o, slot_of(o, layer)); }

void offload_finish(Offload *o, int64_t layer) {
    Slot *s = slot_of(o, layer);
    if (layer < OFFLOAD_SLOTS) return;
    copy_kept(o, s, &o->kept[layer - OFFLOAD_SLOTS], false);
    s->copying = o->kept[layer - OFFLOAD_SLOTS].bytes;
}
