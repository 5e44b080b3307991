/* Tests that the gradients of a sample's tokens with equal ids are summed first, and that this sum is then added to the
 * table's gradient. */
#include "unit/cmocka_all.h"

#include "kernels/attr.h"
#include "kernels/ops.h"

enum { TOKENS = 8, ROWS = 2 };

TEST(equal_tokens_of_a_sample_are_summed_first) {
    /* In F32, 2^24 + 1 is rounded to 2^24, however often 1 is added, but 2^24 + 4 is exact. */
    int64_t id[TOKENS] = {0, 1, 0, 1, 0, 1, 0, 1};
    float dw[ROWS] = {0x1p24f, 0x1p24f}, dy[TOKENS];
    for (int i = 0; i < TOKENS; i++) dy[i] = 1;
    Tensor ids = tensor_make(id, I64, 2, (int64_t[]){1, TOKENS}),
           gradient = tensor_make(dy, F32, 3, (int64_t[]){TOKENS, 1, 1}),
           table = tensor_make(dw, F32, 2, (int64_t[]){ROWS, 1});
    table.flags |= TENSOR_ACCUM;
    Device *d = device_cpu(1);
    call_run(&OPS[OP_embedding_grad], &(Call){.in = {&gradient, &ids},
                                              .out = {&table},
                                              .attr = &(EmbeddingAttr){.total = ROWS},
                                              .device = d});
    device_free(d);
    for (int i = 0; i < ROWS; i++) assert_true(dw[i] == 0x1p24f + 4);
}
