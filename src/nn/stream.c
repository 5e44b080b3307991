#include "nn/stream.h"

#include "ops/residual.h"

Tensor *stream_sum(Tape *t, Stream s) { return s.branch ? op_add(t, s.x, s.branch) : s.x; }

Tensor *stream_norm(Tape *t, const Norm *n, Stream *s) {
    Tensor *branch = s->branch;
    s->branch = NULL;
    return branch ? norm_forward_sum(t, n, &s->x, branch) : norm_forward(t, n, s->x);
}
