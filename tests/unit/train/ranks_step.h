/* The training step of a rank, on batches whose content depends only on the numbers of the samples. */
#pragma once

#include "unit/config_helper.h"

#include "base/philox.h"
#include "train/trainer.h"

/* Makes samples without padding. Only those of T5 have encoder fields, and all token types of BERT are
 * equal. */
static inline Batch numbered_batch(const Setup *s, const SampleShape *shape, int64_t first) {
    Batch x = batch_new(s->config.derived.micro_batch_size, *shape);
    batch_reset(&x);
    for (int64_t i = 0; i < x.b * x.shape.positions; i++) {
        const uint64_t at = (uint64_t)(first * x.shape.positions + i);
        x.tokens[i] = philox_u32(3, 1, at) % (uint32_t)s->config.derived.vocab_size;
        x.labels[i] = philox_u32(3, 2, at) % (uint32_t)s->config.derived.vocab_size;
    }
    for (int64_t i = 0; x.encoder_tokens && i < x.b * x.shape.encoder; i++)
        x.encoder_tokens[i] = x.tokens[i % (x.b * x.shape.positions)];
    return x;
}

/* Creates a trainer with random parameters. `plan` is NULL, or has its memory limits. The trainer takes
 * ownership of the device; NULL means the CPU. Release with trainer_free. */
static inline Trainer *rank_trainer_on(const Setup *s, const MemoryPlan *plan, Comm *comm, Device *device) {
    Trainer *r = trainer_new(&s->config, plan, comm, device);
    registry_init(r->run.model->registry, r->run.context.seed);
    trainer_publish(r);
    return r;
}

static inline Trainer *rank_trainer(const Setup *s, const MemoryPlan *plan, Comm *comm) {
    return rank_trainer_on(s, plan, comm, NULL);
}

/* Runs a step on the rank's microbatches in the order of the sampler, with the rank's positions. */
static inline StepReport rank_step(const Setup *s, Trainer *r) {
    enum { MOST = 16 };
    const Mesh *m = &r->run.layout.mesh;
    const int64_t micro = s->config.derived.micro_batch_size, ranks = s->config.derived.data_parallel_size,
                  n = config_batch_size(&s->config, r->consumed_samples) / (micro * ranks);
    Arena *arena = arena_new();
    Batch whole[MOST], batches[MOST];
    assert_in_range(n, 1, MOST);
    for (int64_t i = 0; i < n; i++) {
        whole[i] = numbered_batch(s, &r->run.model->plan.sample,
                                  r->consumed_samples + (i * ranks + m->coordinate[AXIS_DP]) * micro);
        batches[i] = batch_slice(&whole[i], m->size[AXIS_CP], m->coordinate[AXIS_CP], arena);
    }
    StepReport report = trainer_begin_step(r);
    trainer_microbatches(r, batches, n, n, &report);
    trainer_update(r, &report);
    for (int64_t i = 0; i < n; i++) batch_free(&whole[i]);
    arena_free(arena);
    return report;
}
