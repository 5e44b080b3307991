/* The choice of a token from logits. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/philox.h"
#include "infer/engine_state.h"

bool choice_read_row(const Engine *e, const Tensor *logits, const char *data, int64_t i) {
    const DType type = (DType)logits->dtype;
    const size_t n = (size_t)e->model->plan.vocab;
    double outside = 0; /* NaN if a logit is not finite */
    dtype_convert(e->row, F64, data + (size_t)(i * logits->dim[2]) * dtype_size(type), type, n);
    for (size_t k = 0; k < n; k++) outside += e->row[k] * 0;
    return outside == 0;
}

/* Copies the logits in e->row to e->scratch, and applies what the request adds to those of token `at`. */
static void adjust(Engine *e, const Live *live, int64_t at) {
    const Request *r = &live->request;
    const int64_t vocab = e->model->plan.vocab;
    memcpy(e->scratch, e->row, (size_t)vocab * sizeof *e->scratch);
    sampling_adjust(&r->sampling, live->tokens, at, live->n_first, e->scratch, vocab);
    if (at - live->n_first >= r->min_new_tokens) return;
    for (int64_t i = 0; i < r->n_ends; i++)
        if (r->ends[i] >= 0 && r->ends[i] < vocab) e->scratch[r->ends[i]] = -INFINITY;
}

int32_t choice_token(Engine *e, const Live *live, int64_t at) {
    const Request *r = &live->request;
    const double uniform = philox_uniform(r->seed, hash_name("generate"), r->stream << 32 | (uint64_t)at);
    adjust(e, live, at);
    return (int32_t)sampling_choose(&r->sampling, e->scratch, e->model->plan.vocab, uniform);
}
