/* Creates a model from the words of a command line, with a device, a tape and token ids as its input. */
#pragma once

#include "unit/config_helper.h"

#include "unit/recording.h"

#include "base/philox.h"
#include "models/model.h"
#include "param/quantized.h"

typedef struct TestModel {
    Setup *setup;
    Device *device;
    RunContext run;
    MicrobatchContext microbatch;
    Model *model;
    Space *slot, *transient;
    Tape *tape;
} TestModel;

/* Gives a model with quantized weights the values of the same model without quantization. */
static inline void take_values(Registry *to, Comm *comm, const Registry *from) {
    for (int i = 0; i < to->n; i++) {
        Param *p = to->params[i];
        void *values = from->params[i]->value.data;
        if (param_is_quantized(p))
            quantized_cast(to, comm, p, values);
        else
            device_copy(to->device, p->value.data, values, tensor_bytes(&p->value));
    }
    device_wait(to->device);
}

/* The model for quantized weights. Its initial values are those of a model for training. */
static inline Model *quantized_model(Setup *s, Device *device, DType storage, uint64_t seed) {
    Setup plain = *s;
    plain.config.quantization = QUANTIZATION_NONE;
    Model *from = model_new(&plain.config, NULL), *to = model_new(&s->config, NULL);
    model_allocate(from, device, storage, s->config.derived.max_position_embeddings, true);
    model_allocate(to, device, storage, s->config.derived.max_position_embeddings, false);
    registry_init(from->registry, seed);
    take_values(to->registry, NULL, from->registry);
    model_free(from);
    return to;
}

/* Takes ownership of the setup and the device. */
static inline TestModel *test_model_on(Setup *s, Device *device) {
    static const DType STORAGE[] = {
        [LANE_FP32] = F32, [LANE_FP64] = F64, [LANE_BF16] = BF16, [LANE_FP16] = F16, [LANE_EXACT] = F64};
    TestModel *m = arena_alloc(s->arena, sizeof *m);
    *m = (TestModel){.setup = s, .device = device};
    m->run = (RunContext){.device = m->device,
                          .dtype = STORAGE[s->config.lane],
                          .batch_invariant = s->config.batch_invariant_mode,
                          .seed = (uint64_t)s->config.seed};
    m->microbatch = RECORDING;
    if (s->config.quantization != QUANTIZATION_NONE) {
        m->model = quantized_model(s, device, m->run.dtype, m->run.seed);
    } else {
        m->model = model_new(&s->config, NULL);
        model_allocate(m->model, m->device, m->run.dtype, s->config.derived.max_position_embeddings, true);
        registry_init(m->model->registry, m->run.seed);
    }
    m->slot = space_new(m->device, "activation", SPACE_UNPLANNED);
    m->transient = space_new(m->device, "transient", SPACE_UNPLANNED);
    m->tape = tape_new(&m->run, m->slot, m->transient);
    return m;
}

static inline TestModel *test_model_new(Setup *s) { return test_model_on(s, device_cpu(2)); }

static inline void test_model_free(TestModel *m) {
    tape_free(m->tape);
    space_free(m->slot), space_free(m->transient);
    model_free(m->model);
    device_free(m->device);
    setup_free(m->setup);
}

/* Returns random token ids with labels and positions 0, 1, 2, .... The arrays are in the arena of the
 * setup. */
typedef struct Ids {
    int64_t b, s;
    Tensor tokens, labels, position;
    Feed feed, labelled; /* without and with labels */
} Ids;

static inline Ids *ids_new(const TestModel *m, int64_t b, int64_t s, uint64_t site) {
    Ids *x = arena_alloc(m->setup->arena, sizeof *x);
    int64_t *data = arena_alloc(m->setup->arena, 3 * (size_t)(b * s) * sizeof *data), dim[] = {b, s};
    uint32_t vocab = (uint32_t)m->setup->config.derived.vocab_size;
    for (int64_t i = 0; i < b * s; i++) {
        data[i] = philox_u32(99, site, (uint64_t)i) % vocab;
        data[b * s + i] = philox_u32(99, site + 1, (uint64_t)i) % vocab;
        data[2 * b * s + i] = i % s;
    }
    *x = (Ids){.b = b,
               .s = s,
               .tokens = tensor_make(data, I64, 2, dim),
               .labels = tensor_make(data + b * s, I64, 2, dim),
               .position = tensor_make(data + 2 * b * s, I64, 2, dim)};
    x->feed = x->labelled = (Feed){.tokens = &x->tokens, .position_ids = &x->position};
    x->labelled.labels = &x->labels;
    return x;
}
