/* Keeps the activations of layers in host memory between their forward and backward passes (Megatron-LM's
 * --cpu-offloading-num-layers). An Offload can also contain only the activations of a module of each layer
 * (--offload-modules). `layer` is then the number of times that the module has run in the pass.
 *
 * Device memory has two equal slots. The activations of layer i are in slot i mod 2. After the forward pass of
 * layer i, its activations are copied to the host while kernels run, before layer i + 2 writes to the slot.
 * Once the backward pass of layer i + 2 finishes, the activations are copied back to the same addresses while
 * the backward pass of layer i + 1 runs. No tensor's address ever changes. The last two layers need no copy,
 * because their activations are still in the slots. If the number of layers is unknown, they are also copied. */
#pragma once

#include "tensor/device.h"

enum { OFFLOAD_SLOTS = 2 };

/* The sizes in bytes of one slot and of the host memory. The sizes are 0 if there is no plan. */
typedef struct OffloadMemory {
    size_t slot, host;
} OffloadMemory;

/* Modules whose activations can be offloaded. The norm modules are the inputs of the norms before attention or another
 * mixer of tokens, and before an MLP. QKV_LINEAR is the normalized input of a mixer. CORE_ATTN is attention's queries,
 * keys, values and output. EXPERT_FC1 is the rows that experts receive, and MOE_ACT is the input of their activation. */
typedef enum OffloadModule {
    OFFLOAD_ATTN_NORM,
    OFFLOAD_MLP_NORM,
    OFFLOAD_QKV_LINEAR,
    OFFLOAD_CORE_ATTN,
    OFFLOAD_EXPERT_FC1,
    OFFLOAD_MOE_ACT,
    OFFLOAD_MODULES
} OffloadModule;

typedef struct Offload Offload;

/* `layers` is the number of layers, or 0 if it is unknown. Only one tape may use the Offload at a time. offload_new
 * allocates the planned host memory. If there is no plan, host memory grows on demand, up to the peak use plus
 * 32 MiB. */
Offload *offload_new(Device *, int64_t layers, OffloadMemory);
void offload_free(Offload *);
/* Returns the peak use of a slot and of the host memory. */
OffloadMemory offload_peak(const Offload *);
/* Returns the number of bytes of device memory that all slots need for the slot size in OffloadMemory. */
size_t offload_bytes(const Offload *, OffloadMemory);

/* ---- called by the tape, in this order ---- */

void offload_begin(Offload *); /* begins a forward pass; discards the contents of the host memory */
Space *offload_enter(Offload *, int64_t layer);
/* Call this function after the layer's forward pass. The activations of layer i can be read until layer i + 2
 * begins. */
void offload_leave(Offload *, int64_t layer);
/* Call this function before the first op of the layer's backward pass. */
void offload_need(Offload *, int64_t layer);
/* Call this function after the last op of the layer's backward pass. */
void offload_finish(Offload *, int64_t layer);
