/* Tests that the encoder and the decoder share an embedding, but drop different elements of its output. */
#include "unit/model_helper.h"

#include "nn/embedding.h"

enum { B = 2, S = 8, HIDDEN = 16 };

TEST(the_decoder_drops_other_elements_than_the_encoder) {
    TestModel *m = test_model_new(
        setup_new("--fp64 --model t5 --seq-length %d --decoder-seq-length %d --hidden-dropout 0.5", S, S));
    const Ids *x = ids_new(m, B, S, 1);
    tape_begin(m->tape, &(MicrobatchContext){.training = true});
    const Stack *stack = m->model->stack;
    const double *a = words_input.forward(m->tape, stack[0].input, &x->feed)->data,
                 *again = words_input.forward(m->tape, stack[0].input, &x->feed)->data,
                 *b = words_input.forward(m->tape, stack[1].input, &x->feed)->data;
    int differ = 0;
    for (int i = 0; i < B * S * HIDDEN; i++) differ += (a[i] == 0) != (b[i] == 0);
    assert_memory_equal(a, again, B * S * HIDDEN * sizeof *a);
    assert_in_range(differ, B * S * HIDDEN / 3, B * S * HIDDEN * 2 / 3); /* about half of them, at random */
    test_model_free(m);
}
