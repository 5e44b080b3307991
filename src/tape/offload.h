/* Host memory for the activations of layers between their forward and their backward (Megatron-LM's
 * --cpu-offloading-num-layers; the last two of the layers need none, see below).
 *
 * Activations of layer i are in one of two equal slots of device memory, i mod 2. After its forward they are
 * copied to the host beside the kernels, before layer i + 2 writes there; when the backward of layer i + 2
 * has ended they are copied back to where they were, while that of layer i + 1 runs. So no tensor ever
 * changes its address. The last two layers find their activations still in the slots. */
#ifndef ISOTRON_TAPE_OFFLOAD_H
#define ISOTRON_TAPE_OFFLOAD_H

#include "tensor/device.h"

enum { OFFLOAD_SLOTS = 2 };

/* Bytes of one slot, and of the host; 0: unplanned. */
typedef struct OffloadMemory {
    size_t slot, host;
} OffloadMemory;

typedef struct Offload Offload;

/* For layers 0 to `layers` - 1, at least one, of one tape at a time. Takes the host's memory here if it is
 * planned, else when it is first needed: no more than the highest use so far and 32 MiB. */
Offload *offload_new(Device *, int64_t layers, OffloadMemory);
void offload_free(Offload *);
/* The highest use so far. */
OffloadMemory offload_peak(const Offload *);
/* Bytes of device memory that all slots take at this size of one. */
size_t offload_bytes(const Offload *, OffloadMemory);

/* ---- for the tape, in this order ---- */

void offload_begin(Offload *); /* a forward: what the host has is forgotten */
Space *offload_enter(Offload *, int64_t layer);
/* Its activations stay readable until the layer after next is entered. */
void offload_leave(Offload *, int64_t layer);
void offload_need(Offload *, int64_t layer);   /* before the first op of its backward */
void offload_finish(Offload *, int64_t layer); /* after the last one */

#endif
