#include "ops/choose.h"

#include "base/fault.h"
#include "kernels/choice.h"
#include "kernels/ops.h"
#include "tape/tape_ops.h"

Tensor *op_choose(Tape *t, Tensor *x, Tensor *how, int64_t n) {
    CHECK(!tape_is_recording(t) && x->ndim == 3, "choose: x has %d dimensions", x->ndim);
    CHECK(how->ndim == 2 && how->dim[0] == tensor_rows(x) && how->dim[1] == CHOICE_ROW_WORDS,
          "choose: there are %lld rows of logits, but %lld rows of parameters", (long long)tensor_rows(x),
          (long long)how->dim[0]);
    Tensor *choice = tape_tensor(t, I64, 3, (int64_t[]){x->dim[0], x->dim[1], CHOSEN_WORDS});
    tape_call(t, &OPS[OP_choose], (Call){.in = {x, how}, .out = {choice}, .attr = &(ChooseAttr){n}});
    return choice;
}
