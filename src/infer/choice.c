/* The choice of a token from logits. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/philox.h"
#include "infer/engine_state.h"

void choice_read_row(const Engine *e, const Tensor *logits, int64_t i) {
    const DType type = (DType)logits->dtype;
    const size_t n = (size_t)e->model->plan.vocab;
    DeviceView row = device_view(e->context->device, tensor_at(logits, i * logits->stride[0]),
                                 n * dtype_size(type), VIEW_READ);
    dtype_convert(e->row, F64, row.data, type, n);
    device_view_end(&row);
}

static bool may_end(const Live *live, int64_t at) {
    return !live->request.n_ends || at - live->n_first >= live->request.min_new_tokens;
}

bool choice_is_best(const Live *live, int64_t at) {
    const Sampling *s = &live->request.sampling;
    return (s->temperature == 0 || s->top_k == 1) && !sampling_adjusts(s) && may_end(live, at);
}

/* Copies the logits in e->row to e->scratch, and applies what the request adds to those of token `at`. */
static void adjust(Engine *e, const Live *live, int64_t at) {
    const Request *r = &live->request;
    const int64_t vocab = e->model->plan.vocab;
    memcpy(e->scratch, e->row, (size_t)vocab * sizeof *e->scratch);
    sampling_adjust(&r->sampling, live->tokens, at, live->n_first, e->scratch, vocab);
    if (may_end(live, at)) return;
    for (int64_t i = 0; i < r->n_ends; i++)
        if (r->ends[i] >= 0 && r->ends[i] < vocab) e->scratch[r->ends[i]] = -INFINITY;
}

/* The model's logits are finite, so a token is allowed unless e->scratch excludes it. */
static bool any_is_allowed(const Engine *e) {
    for (int64_t i = 0; i < e->model->plan.vocab; i++)
        if (e->scratch[i] > -INFINITY) return true;
    return false;
}

int32_t choice_token(Engine *e, const Live *live, int64_t at, int64_t best) {
    const Request *r = &live->request;
    if (choice_is_best(live, at)) return (int32_t)best;
    const double uniform = philox_uniform(r->seed, hash_name("generate"), r->stream << 32 | (uint64_t)at);
    adjust(e, live, at);
    if (!any_is_allowed(e)) return -1;
    return (int32_t)sampling_choose(&r->sampling, e->scratch, e->model->plan.vocab, uniform);
}
