/* Tests the tape on a small residual network (net.h). */
#include "unit/cmocka_all.h"
#include "unit/recording.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "ops/activation.h"
#include "ops/embedding.h"
#include "ops/residual.h"
#include "tape/tape.h"
#include "tape/tape_ops.h"
#include "unit/expect_fault.h"
#include "unit/tape/net.h"

/* ---- the network, with and without recompute ---- */

/* In the last two, the norms' and activations' outputs are discarded; in NESTED_DISCARDED, inside a block. */
typedef enum Recompute {
    PLAIN,
    EACH_LAYER,
    ALL_LAYERS,
    NESTED,
    DISCARDED,
    NESTED_DISCARDED,
    RECOMPUTES
} Recompute;

typedef struct Part {
    Net *net;
    int first, count;
    bool blocks; /* each layer is a block */
    bool discards;
} Part;

static Tensor *layers(Tape *t, void *self, Tensor *x);

static Tensor *block_of(Tape *t, Part p, Tensor *x) {
    Part *self = tape_alloc(t, sizeof *self);
    *self = p;
    return tape_block(t, layers, self, x);
}

static Tensor *norm_of_net(Tape *t, void *net, Tensor *x) {
    return op_norm(t, x, &((Net *)net)->value[GAIN], NULL, (NormAttr){.rms = true, .eps = 1e-5});
}

static Tensor *gelu(Tape *t, void *self, Tensor *x) {
    (void)self;
    return op_activation(t, x, (ActivationAttr){.kind = ACT_GELU_TANH});
}

/* Does the same as branch_of_net, and reads the norm's output through a view. */
static Tensor *discarding_branch(Net *n, int64_t i, Tensor *x) {
    Tape *t = n->tape;
    Tensor *y = tape_block_discarded(t, norm_of_net, n, x), *view = tape_view(t, y, 0, 3, y->dim, y->stride);
    Tensor *pre = op_linear(t, view, &(LinearLayer){.w_oi = &n->value[WEIGHT], .bias_o = &n->value[BIAS]});
    Tensor *act = tape_block_discarded(t, gelu, NULL, pre), *branch = op_dropout(t, act, 0.25, (uint64_t)i);
    tape_discard(t, act);
    tape_discard(t, y);
    return branch;
}

static Tensor *layers(Tape *t, void *self, Tensor *x) {
    const Part *p = self;
    Net *n = p->net;
    for (int i = p->first; i < p->first + p->count; i++) {
        if (p->blocks) {
            x = block_of(t, (Part){n, i, 1, false, p->discards}, x);
            continue;
        }
        x = op_add(t, x, (p->discards ? discarding_branch : branch_of_net)(n, i, x));
    }
    return x;
}

static Tensor *forward(Net *n, Recompute how) {
    Part all = {n, 0, LAYERS, how == EACH_LAYER || how == NESTED || how == NESTED_DISCARDED,
                how == DISCARDED || how == NESTED_DISCARDED};
    Tensor *x = op_embedding(n->tape, &n->id, &n->value[TABLE]);
    return how == ALL_LAYERS || how == NESTED ? block_of(n->tape, all, x) : layers(n->tape, &all, x);
}

typedef struct Sweeps {
    Need first, second; /* second is 0 if there is one sweep */
} Sweeps;

static Tensor *step(Net *n, Recompute how, Sweeps sweeps) {
    tape_begin(n->tape, &RECORDING);
    Tensor *y = forward(n, how);
    tape_backward(n->tape, y, &n->dy, sweeps.first);
    if (sweeps.second) tape_backward(n->tape, y, NULL, sweeps.second);
    return y;
}

static void same_results(Net *a, Tensor *ya, Net *b, Tensor *yb) {
    assert_memory_equal(ya->data, yb->data, tensor_bytes(ya));
    for (int i = 0; i < PARAMS; i++)
        assert_memory_equal(a->grad[i].data, b->grad[i].data, tensor_bytes(&a->grad[i]));
}

static bool is_zero(const Tensor *t) {
    const unsigned char *p = t->data;
    for (size_t i = 0; i < tensor_bytes(t); i++)
        if (p[i]) return false;
    return true;
}

TEST(recompute_changes_nothing) {
    for (DType dtype = F64; dtype <= BF16; dtype++) {
        Net plain;
        open_net(&plain, device_cpu(2), dtype, SPACE_UNPLANNED, SPACE_UNPLANNED);
        Tensor *want = step(&plain, PLAIN, (Sweeps){NEED_ALL, 0});
        for (int i = 0; i < PARAMS; i++) assert_false(is_zero(&plain.grad[i]));
        for (Recompute how = EACH_LAYER; how < RECOMPUTES; how++) {
            Net other;
            open_net(&other, device_cpu(2), dtype, SPACE_UNPLANNED, SPACE_UNPLANNED);
            same_results(&other, step(&other, how, (Sweeps){NEED_ALL, 0}), &plain, want);
            if (how != PLAIN) assert_true(space_peak(other.slot) < space_peak(plain.slot));
            close_net(&other);
        }
        close_net(&plain);
    }
}

static size_t rounded(size_t bytes) { return (bytes + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN; }

/* Per layer: the norm's output and its factors, and the activation. The backward pass has at most one layer's. */
TEST(discarded_outputs_need_no_memory_of_the_slot) {
    for (DType dtype = F64; dtype <= BF16; dtype++) {
        const size_t x = rounded(S * B * H * dtype_size(dtype)),
                     factors = rounded(S * B * (dtype == F64 ? 8 : 4));
        Net plain, other;
        open_net(&plain, device_null(), dtype, SPACE_UNPLANNED, SPACE_UNPLANNED);
        open_net(&other, device_null(), dtype, SPACE_UNPLANNED, SPACE_UNPLANNED);
        step(&plain, PLAIN, (Sweeps){NEED_ALL, 0}), step(&other, DISCARDED, (Sweeps){NEED_ALL, 0});
        assert_int_equal(space_peak(plain.slot) - space_peak(other.slot), LAYERS * (2 * x + factors));
        assert_true(space_peak(other.transient) <= space_peak(plain.transient) + 2 * x + factors);
        close_net(&plain), close_net(&other);
    }
}

TEST(two_sweeps_are_one) {
    for (Recompute how = PLAIN; how < RECOMPUTES; how++) {
        Net one, two;
        open_net(&one, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
        open_net(&two, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
        Tensor *want = step(&one, how, (Sweeps){NEED_ALL, 0});
        same_results(&two, step(&two, how, (Sweeps){NEED_DX, NEED_DW}), &one, want);
        close_net(&one), close_net(&two);
    }
}

TEST(a_dx_sweep_leaves_parameters_alone) {
    Net n;
    open_net(&n, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
    step(&n, PLAIN, (Sweeps){NEED_DX, 0});
    for (int i = 0; i < PARAMS; i++) assert_true(is_zero(&n.grad[i]));
    assert_true(space_used(n.transient) > 0); /* the memory that the DW sweep needs */
    close_net(&n);
}

TEST(backward_gives_back_what_it_took) {
    for (DType dtype = F64; dtype <= BF16; dtype++)
        for (Recompute how = PLAIN; how < RECOMPUTES; how++)
            for (int two = 0; two < 2; two++) {
                Net n;
                open_net(&n, device_cpu(1), dtype, SPACE_UNPLANNED, SPACE_UNPLANNED);
                step(&n, how, two ? (Sweeps){NEED_DX, NEED_DW} : (Sweeps){NEED_ALL, 0});
                assert_int_equal(space_used(n.transient), 0);
                close_net(&n);
            }
}

TEST(without_recording_only_outputs_are_kept) {
    Net recorded, not ;
    open_net(&recorded, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
    open_net(&not, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
    tape_begin(recorded.tape, &RECORDING);
    tape_begin(not .tape, &(MicrobatchContext){.training = true});
    Tensor *want = forward(&recorded, PLAIN), *got = forward(&not, EACH_LAYER);
    assert_memory_equal(got->data, want->data, tensor_bytes(want));
    assert_int_equal(space_used(not .transient), 0);
    assert_int_equal(space_used(not .slot),
                     (1 + LAYERS) * ((S * B * H * 4 + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN));
    close_net(&recorded), close_net(&not );
}

static Tensor *forward_into(Net *n, void *memory, bool block) {
    tape_begin(n->tape, &RECORDING);
    tape_output_to(n->tape, memory);
    Part most = {n, 0, LAYERS - 1, block, false};
    Tensor *x = layers(n->tape, &most, op_embedding(n->tape, &n->id, &n->value[TABLE]));
    Tensor *branch = block ? NULL : branch_of_net(n, LAYERS - 1, x);
    tape_output_next(n->tape);
    return block ? block_of(n->tape, (Part){n, LAYERS - 1, 1, false, false}, x) : op_add(n->tape, x, branch);
}

/* The output is not in the slot, so it may be overwritten before the backward pass. */
TEST(an_output_takes_no_memory_of_the_slot) {
    for (int block = 0; block < 2; block++) {
        Net want, got;
        float memory[S * B * H];
        open_net(&want, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
        open_net(&got, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
        Tensor *y = step(&want, block ? EACH_LAYER : PLAIN, (Sweeps){NEED_ALL, 0}),
               *z = forward_into(&got, memory, block);
        assert_ptr_equal(z->data, memory);
        assert_memory_equal(memory, y->data, sizeof memory);
        assert_int_equal(space_peak(want.slot) - space_peak(got.slot),
                         (sizeof memory + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN);
        memset(memory, 0xff, sizeof memory);
        tape_backward(got.tape, z, &got.dy, NEED_ALL);
        for (int i = 0; i < PARAMS; i++)
            assert_memory_equal(want.grad[i].data, got.grad[i].data, tensor_bytes(&want.grad[i]));
        close_net(&want), close_net(&got);
    }
}

TEST(dry_run_measures_the_real_run) {
    for (DType dtype = F64; dtype <= BF16; dtype++)
        for (Recompute how = PLAIN; how < RECOMPUTES; how++) {
            const Sweeps sweeps = how % 2 ? (Sweeps){NEED_ALL, 0} : (Sweeps){NEED_DX, NEED_DW};
            Net dry, real;
            open_net(&dry, device_null(), dtype, SPACE_UNPLANNED, SPACE_UNPLANNED);
            step(&dry, how, sweeps);
            const size_t slot = space_peak(dry.slot), transient = space_peak(dry.transient);
            assert_true(slot > 0 && transient > 0);
            open_net(&real, device_cpu(1), dtype, slot,
                     transient); /* an allocation beyond these sizes would be a fault */
            step(&real, how, sweeps);
            assert_int_equal(space_peak(real.slot), slot);
            assert_int_equal(space_peak(real.transient), transient);
            close_net(&dry), close_net(&real);
        }
}

TEST(too_little_memory_is_a_fault) {
    Net n;
    open_net(&n, device_cpu(1), F32, SPACE_ALIGN * 8, SPACE_UNPLANNED);
    EXPECT_FAULT("slot memory is full", step(&n, PLAIN, (Sweeps){NEED_ALL, 0}));
    close_net(&n);
}

TEST(a_tape_is_used_again) {
    Net once, again;
    open_net(&once, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
    open_net(&again, device_cpu(1), F32, SPACE_UNPLANNED, SPACE_UNPLANNED);
    step(&again, NESTED, (Sweeps){NEED_ALL, 0});
    for (int i = 0; i < PARAMS; i++) memset(again.grad[i].data, 0, tensor_bytes(&again.grad[i]));
    Tensor *want = step(&once, PLAIN, (Sweeps){NEED_ALL, 0});
    same_results(&again, step(&again, PLAIN, (Sweeps){NEED_ALL, 0}), &once, want);
    close_net(&once), close_net(&again);
}

/* ---- gradients that are shared ---- */

/* Inputs [1,1,3] with known gradients. */
typedef struct Leaves {
    Net net;
    double x_data[3], u_data[3], dy_data[3];
    Tensor x, u, dy;
} Leaves;

static void open_leaves(Leaves *l) {
    open_net(&l->net, device_cpu(1), F64, SPACE_UNPLANNED, SPACE_UNPLANNED);
    const int64_t dim[3] = {1, 1, 3};
    for (int i = 0; i < 3; i++) l->x_data[i] = i + 1, l->u_data[i] = i + 4, l->dy_data[i] = 10 * (i + 1);
    l->x = tensor_make(l->x_data, F64, 3, dim);
    l->u = tensor_make(l->u_data, F64, 3, dim);
    l->dy = tensor_make(l->dy_data, F64, 3, dim);
    l->x.flags = l->u.flags = TENSOR_NEEDS_GRAD;
    tape_begin(l->net.tape, &RECORDING);
}

/* y = (x + x^2) + u^2: both sums pass dy on without a copy, and a second gradient is then added to that of
 * x. */
TEST(sharing_is_never_visible) {
    Leaves l;
    open_leaves(&l);
    Tape *t = l.net.tape;
    Tensor *square = op_activation(t, &l.x, (ActivationAttr){.kind = ACT_SQUARED_RELU}),
           *other = op_activation(t, &l.u, (ActivationAttr){.kind = ACT_SQUARED_RELU});
    Tensor *y = op_add(t, op_add(t, &l.x, square), other);
    tape_backward(t, y, &l.dy, NEED_ALL);
    for (int i = 0; i < 3; i++) {
        assert_true(l.dy_data[i] == 10 * (i + 1)); /* the gradient of the caller must not be written */
        assert_true(((double *)l.x.grad->data)[i] == l.dy_data[i] * (1 + 2 * l.x_data[i]));
        assert_true(((double *)l.u.grad->data)[i] == l.dy_data[i] * 2 * l.u_data[i]);
    }
    close_net(&l.net);
}

TEST(a_tensor_may_be_added_to_itself) {
    Leaves l;
    open_leaves(&l);
    Tape *t = l.net.tape;
    Tensor *two = op_add(t, &l.x, &l.x), *four = op_add(t, two, two), *y = op_add(t, four, &l.x);
    tape_backward(t, y, &l.dy, NEED_ALL);
    for (int i = 0; i < 3; i++) {
        assert_true(l.dy_data[i] == 10 * (i + 1));
        assert_true(((double *)l.x.grad->data)[i] == 5 * l.dy_data[i]);
    }
    close_net(&l.net);
}

/* ---- views ---- */

/* z = 2x has a view of each element; y = z0 + z0^2 + z1^2 + z2^2. */
TEST(views_write_into_their_tensor) {
    Leaves l;
    open_leaves(&l);
    Tape *t = l.net.tape;
    Tensor *z = op_add(t, &l.x, &l.x), *y = NULL;
    const int64_t one[3] = {1, 1, 1}, stride[3] = {3, 3, 1};
    for (int i = 0; i < 3; i++) {
        Tensor *v = tape_view(t, z, i, 3, one, stride),
               *square = op_activation(t, v, (ActivationAttr){.kind = ACT_SQUARED_RELU});
        y = i ? op_add(t, y, square) : op_add(t, v, square);
    }
    Tensor dy = tensor_make(l.dy_data, F64, 3, one);
    tape_backward(t, y, &dy, NEED_ALL);
    for (int i = 0; i < 3; i++) {
        const double dz = l.dy_data[0] * (2 * 2 * l.x_data[i] + (i == 0));
        assert_true(((double *)l.x.grad->data)[i] == 2 * dz);
    }
    close_net(&l.net);
}

static void use_one_of_two_views(Leaves *l) {
    Tape *t = l->net.tape;
    Tensor *z = op_activation(t, &l->x, (ActivationAttr){.kind = ACT_SQUARED_RELU});
    const int64_t one[3] = {1, 1, 1}, two[3] = {1, 1, 2}, stride[3] = {3, 3, 1};
    Tensor *first = tape_view(t, z, 0, 3, one, stride);
    tape_view(t, z, 1, 3, two, stride);
    Tensor dy = tensor_make(l->dy_data, F64, 3, one);
    tape_backward(t, op_add(t, first, first), &dy, NEED_ALL);
}

TEST(a_view_without_gradient_is_a_fault) {
    Leaves l;
    open_leaves(&l);
    EXPECT_FAULT("1 views of this output have no gradient", use_one_of_two_views(&l));
    close_net(&l.net);
}

/* ---- passes without a backward pass ---- */

static Tensor *filled(Tape *t, double value) {
    Tensor *x = tape_tensor(t, F64, 1, (int64_t[]){8});
    for (int i = 0; i < 8; i++) ((double *)x->data)[i] = value;
    return x;
}

TEST(only_tensors_that_are_kept_stay_allocated) {
    Leaves l;
    open_leaves(&l);
    Tape *t = l.net.tape;
    Space *space = l.net.transient;
    tape_begin(t, &(MicrobatchContext){.recording = false});
    const size_t before = space_used(space);
    tape_frees_begin(t);
    Tensor *x = filled(t, 1);
    const size_t each = space_used(space) - before;
    Tensor *y = filled(t, 2), *z = filled(t, 3);
    const Tensor *end = tape_view(t, z, 7, 1, (int64_t[]){1}, (int64_t[]){1});
    tape_free_except(t, (const Tensor *[]){x, end}, 2);
    assert_int_equal(space_used(space) - before, 2 * each);
    assert_ptr_equal(filled(t, 4)->data, y->data); /* the only hole */
    assert_true(*(double *)x->data == 1 && *(double *)end->data == 3);
    tape_free_except(t, (const Tensor *[]){NULL, end}, 2);
    assert_int_equal(space_used(space) - before, each);
    tape_frees_end(t);
    close_net(&l.net);
}
