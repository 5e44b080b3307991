#include "data/sampler.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/random/mt19937.h"

struct Sampler {
    SamplerConfig config;
    int64_t consumed, step; /* step is mbs * dp samples */
    int64_t active;         /* cyclic: number of samples in an epoch */
    int64_t *order;         /* cyclic: the permutation for epoch `epoch` */
    int64_t epoch, order_length;
};

/* Returns how many consecutive samples a rank gets before the next rank's samples begin. */
static int64_t deal_of(const SamplerConfig *c) { return c->deal ? c->deal : c->micro_batch_size; }

static Err sampler_check(const SamplerConfig *c) {
    CHECK(c->micro_batch_size > 0 && c->dp_size > 0 && c->dp_rank >= 0 && c->dp_rank < c->dp_size &&
              c->consumed_samples >= 0,
          "invalid sampler: micro batch size %" PRId64 ", data-parallel rank %d of %d", c->micro_batch_size,
          c->dp_rank, c->dp_size);
    int64_t step, total = c->total_samples, consumed = c->consumed_samples;
    if (__builtin_mul_overflow(c->micro_batch_size, (int64_t)c->dp_size, &step))
        return err_user("the product of the micro batch size %" PRId64
                        " and the data-parallel size %d is too large",
                        c->micro_batch_size, c->dp_size);
    if (c->kind == SAMPLER_SINGLE) {
        if (consumed < total) return ERR_OK;
        return err_user("no samples are left: %" PRId64 " of %" PRId64
                        " are consumed; raise the number of samples or provide more data",
                        consumed, total);
    }
    step = deal_of(c) * c->dp_size;
    if (total < step)
        return err_user("%" PRId64 " samples do not fill one micro-step, which needs %" PRId64
                        " samples (micro batch size x data-parallel size); provide more data",
                        total, step);
    if (consumed % (total - total % step) % step)
        return err_user("the number of consumed samples, %" PRId64
                        ", is not a multiple of the micro-step's %" PRId64
                        " samples; resume a cyclic run with the micro batch size and data-parallel size with "
                        "which it was saved",
                        consumed, step);
    return ERR_OK;
}

Err sampler_open(const SamplerConfig *c, Sampler **out) {
    *out = NULL;
    ERR_RETURN(sampler_check(c));
    Sampler *s = mem_zero(1, sizeof *s);
    *s = (Sampler){
        .config = *c, .consumed = c->consumed_samples, .step = c->micro_batch_size * c->dp_size, .epoch = -1};
    if (c->kind == SAMPLER_CYCLIC) {
        const int64_t total = c->total_samples, deal = deal_of(c);
        s->active = total - total % (deal * c->dp_size);
        s->order_length = c->no_data_sharding ? total - total % deal : s->active / c->dp_size;
        s->order = mem_grow(NULL, (size_t)s->order_length, sizeof *s->order);
    }
    *out = s;
    return ERR_OK;
}

void sampler_free(Sampler *s) {
    if (!s) return;
    free(s->order);
    free(s);
}

static bool next_single(Sampler *s, int64_t *indices, int64_t *count) {
    const SamplerConfig *c = &s->config;
    const int64_t deal = deal_of(c);
    int64_t left = c->total_samples - s->consumed, taken = left < s->step ? left : s->step;
    if (left <= 0 || (taken < s->step && !c->keep_last)) return false;
    *count = 0;
    for (int64_t i = 0; i < c->micro_batch_size; i++) {
        const int64_t at = (i / deal * c->dp_size + c->dp_rank) * deal + i % deal;
        if (at < taken) indices[(*count)++] = s->consumed + at;
    }
    s->consumed += taken;
    return true;
}

static bool next_cyclic(Sampler *s, int64_t *indices, int64_t *count) {
    const SamplerConfig *c = &s->config;
    for (int64_t i = 0; i < c->micro_batch_size; i++) {
        const int64_t at = s->consumed + i * c->dp_size, epoch = at / s->active,
                      /* how many samples this rank has already drawn in the epoch */
            own = at % s->active / c->dp_size;
        if (epoch != s->epoch) mt19937_torch_randperm((uint32_t)epoch, s->order, s->order_length);
        s->epoch = epoch;
        indices[i] = c->no_data_sharding ? s->order[own * c->dp_size + c->dp_rank]
                                         : c->dp_rank * s->order_length + s->order[own];
    }
    *count = c->micro_batch_size;
    s->consumed += s->step;
    return true;
}

bool sampler_next(Sampler *s, int64_t *indices, int64_t *count) {
    return s->config.kind == SAMPLER_SINGLE ? next_single(s, indices, count) : next_cyclic(s, indices, count);
}

int64_t sampler_consumed(const Sampler *s) { return s->consumed; }
