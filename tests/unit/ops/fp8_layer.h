/* A weight with a quantizer, and a tape in double. */
#pragma once

#include "ops/fp8.h"
#include "tape/tape.h"
#include "unit/ops/fp8_reference.h"
#include "unit/recording.h"

typedef struct Layer {
    Device *device;
    Registry *registry;
    Param *w;
    const Quantiser *quantiser;
    Space *slot, *transient;
    RunContext context;
    Tape *tape;
} Layer;

/* `gemms` are the device's FP8 GEMMs (device_fp8_gemms). The weight's name and initial values are the same for all. */
static inline void layer_open(Layer *l, QuantSpec spec, ParamSpec weight, unsigned gemms) {
    *l = (Layer){.device = fp8_cpu(gemms), .registry = registry_new(NULL)};
    weight.name = "w", weight.ndim = 2, weight.tp_split = SPLIT_NONE, weight.init = (Init){INIT_NORMAL, 1};
    l->w = param_add(l->registry, weight);
    l->quantiser = quantize_new(l->registry, "layer", l->w, spec);
    registry_allocate(l->registry, l->device, F64, true);
    registry_init(l->registry, 7);
    l->slot = space_new(l->device, "slot", SPACE_UNPLANNED);
    l->transient = space_new(l->device, "transient", SPACE_UNPLANNED);
    l->context = (RunContext){.device = l->device, .dtype = F64};
    l->tape = tape_new(&l->context, l->slot, l->transient);
}

static inline void layer_close(Layer *l) {
    tape_free(l->tape);
    space_free(l->slot), space_free(l->transient);
    states_free(l->registry);
    registry_free(l->registry);
    device_free(l->device);
}
