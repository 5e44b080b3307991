/* Tests layers whose activations are offloaded to host memory (tape/offload.h). Results must be bitwise
 * equal, and memory must equal that of the dry run, whether asynchronous copies finish immediately or as late
 * as possible. */
#include "unit/cmocka_all.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "late_copies.h"
#include "ops/embedding.h"
#include "ops/residual.h"
#include "tensor/backend.h"
#include "unit/expect_fault.h"
#include "unit/recording.h"
#include "unit/tape/net.h"

/* ---- a CPU device whose asynchronous copies are late ---- */

typedef struct LateDevice {
    Device device; /* first member, so that device_free frees the struct */
    DeviceBackend backend;
    LateCopies waiting;
    int copies;  /* total number of copies */
    size_t host; /* bytes of host memory, if they are counted */
} LateDevice;

static void late_copy_async(Device *d, void *to, const void *from, size_t bytes, DeviceEvent *done) {
    LateDevice *l = (LateDevice *)d;
    late_add(&l->waiting, (LateCopy){to, from, bytes, done});
    l->copies++;
}

static void copy_now(Device *d, void *to, const void *from, size_t bytes) {
    (void)d;
    memcpy(to, from, bytes);
}

static void late_wait_event(Device *d, DeviceEvent *e) {
    late_do(&((LateDevice *)d)->waiting, e, d, copy_now);
}

static void *count_host(Device *d, size_t bytes) {
    ((LateDevice *)d)->host += bytes;
    return mem_alloc(bytes);
}

static void uncount_host(Device *d, void *p, size_t bytes) {
    ((LateDevice *)d)->host -= bytes;
    free(p);
}

static void late_close(Device *d) {
    free(((LateDevice *)d)->waiting.at);
    device_cpu_backend.close(d);
}

static LateDevice *late_device(void) {
    LateDevice *l = mem_zero(1, sizeof *l);
    Device *cpu = device_cpu(1);
    l->device = *cpu;
    l->backend = *cpu->backend;
    l->backend.event_new = late_event_new, l->backend.event_free = late_event_free;
    l->backend.copy_async = late_copy_async, l->backend.wait_event = late_wait_event;
    l->backend.close = late_close;
    l->device.backend = &l->backend;
    free(cpu);
    return l;
}

/* ---- the network ---- */

/* A network in which `layers` of the four layers are offloaded; 0 means without an Offload. */
typedef struct Chain {
    Net net;
    Offload *offload;
    int64_t layers;
} Chain;

static void open_chain(Chain *c, Device *d, DType dtype, int64_t layers, size_t slot, OffloadMemory memory) {
    open_net(&c->net, d, dtype, slot, SPACE_UNPLANNED);
    c->layers = layers;
    c->offload = layers ? offload_new(d, layers, memory) : NULL;
    tape_offload_to(c->net.tape, c->offload);
}

static void close_chain(Chain *c) {
    offload_free(c->offload);
    close_net(&c->net);
}

/* A layer's part of the tape begins with the sum of the previous layer, because its backward pass reads that sum. */
static Tensor *forward(Chain *c, bool recording) {
    Tape *t = c->net.tape;
    tape_begin(t, &(MicrobatchContext){.recording = recording, .training = true});
    Tensor *x = op_embedding(t, &c->net.id, &c->net.value[TABLE]), *branch = NULL;
    for (int64_t i = 0; i < LAYERS; i++) {
        if (i < c->layers) tape_offload_begin(t, i);
        if (branch) x = op_add(t, x, branch);
        branch = branch_of_net(&c->net, i, x);
        if (i < c->layers) tape_offload_end(t, i);
    }
    return op_add(t, x, branch);
}

static Tensor *step(Chain *c) {
    Tensor *y = forward(c, true);
    tape_backward(c->net.tape, y, &c->net.dy, NEED_ALL);
    return y;
}

static void same_gradients(const Chain *a, const Chain *b) {
    for (int i = 0; i < PARAMS; i++)
        assert_memory_equal(a->net.grad[i].data, b->net.grad[i].data, tensor_bytes(&a->net.grad[i]));
}

static size_t rounded(size_t bytes) { return (bytes + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN; }

static size_t slot_of(DType dtype, int64_t layers) {
    Chain c;
    open_chain(&c, device_null(), dtype, layers, SPACE_UNPLANNED, (OffloadMemory){0});
    step(&c);
    const size_t bytes = layers ? offload_peak(c.offload).slot : space_peak(c.net.slot);
    close_chain(&c);
    return bytes;
}

/* The expected memory for `layers` offloaded layers; the first of them has no sum. */
typedef struct Expected {
    size_t slot;
    OffloadMemory offload;
} Expected;

static Expected expected(DType dtype, int64_t layers) {
    const size_t first = slot_of(dtype, 1), other = slot_of(dtype, 2),
                 sum = rounded(S * B * H * dtype_size(dtype));
    assert_int_equal(other, first + sum);
    assert_int_equal(slot_of(dtype, 0),
                     first + (LAYERS - 1) * other + 2 * sum); /* the sums of embedding and network */
    Expected e = {.slot = 2 * sum + (size_t)(LAYERS - layers) * other,
                  .offload.slot = layers > 1 ? other : first};
    if (layers > OFFLOAD_SLOTS) e.offload.host = first + (size_t)(layers - OFFLOAD_SLOTS - 1) * other;
    return e;
}

/* Runs two steps, so that host memory is reused. The plan must be exact to the byte. */
static void check_chain(const Chain *plain, const Tensor *want, DType dtype, int64_t layers,
                        LateDevice *late) {
    const Expected e = expected(dtype, layers);
    Chain c;
    open_chain(&c, late ? &late->device : device_cpu(1), dtype, layers, e.slot, e.offload);
    step(&c);
    const Tensor *y = step(&c);
    assert_memory_equal(y->data, want->data, tensor_bytes(want));
    same_gradients(&c, plain);
    assert_int_equal(offload_peak(c.offload).slot, e.offload.slot);
    assert_int_equal(offload_peak(c.offload).host, e.offload.host);
    assert_int_equal(offload_bytes(c.offload, e.offload), (layers > 1 ? 2 : 1) * e.offload.slot);
    if (late) {
        assert_int_equal(late->copies, layers > OFFLOAD_SLOTS ? 2 * 2 * (layers - OFFLOAD_SLOTS) : 0);
        assert_int_equal(late->waiting.n, 0); /* a CUDA graph requires that no copy is waiting */
    }
    close_chain(&c);
}

TEST(offloading_changes_nothing) {
    for (DType dtype = F64; dtype <= BF16; dtype++) {
        Chain plain;
        open_chain(&plain, device_cpu(1), dtype, 0, SPACE_UNPLANNED, (OffloadMemory){0});
        step(&plain);
        const Tensor *want = step(&plain);
        for (int64_t layers = 1; layers <= LAYERS; layers++) {
            check_chain(&plain, want, dtype, layers, NULL);
            check_chain(&plain, want, dtype, layers, late_device());
        }
        close_chain(&plain);
    }
}

TEST(a_dry_run_measures_it) {
    for (int64_t layers = 1; layers <= LAYERS; layers++) {
        const Expected e = expected(F32, layers);
        Chain dry;
        open_chain(&dry, device_null(), F32, layers, SPACE_UNPLANNED, (OffloadMemory){0});
        step(&dry);
        assert_int_equal(space_peak(dry.net.slot), e.slot);
        assert_int_equal(offload_peak(dry.offload).slot, e.offload.slot);
        assert_int_equal(offload_peak(dry.offload).host, e.offload.host);
        close_chain(&dry);
    }
}

/* Without recording, no activations are kept, so none may be copied. */
TEST(without_recording_nothing_is_copied) {
    LateDevice *l = late_device();
    Chain plain, c;
    open_chain(&plain, device_cpu(1), F32, 0, SPACE_UNPLANNED, (OffloadMemory){0});
    open_chain(&c, &l->device, F32, LAYERS - 1, SPACE_UNPLANNED, (OffloadMemory){0});
    step(&c); /* the next step must not wait for the copies of this one again */
    l->copies = 0;
    const Tensor *want = forward(&plain, false), *got = forward(&c, false);
    assert_memory_equal(got->data, want->data, tensor_bytes(want));
    assert_int_equal(l->copies, 0);
    close_chain(&c), close_chain(&plain);
}

/* If the end of a layer is not in the same block as its beginning, the layer is copied in two pieces. */
TEST(a_plan_that_is_too_small_is_added_to) {
    const Expected e = expected(F32, LAYERS);
    Chain plain;
    open_chain(&plain, device_cpu(1), F32, 0, SPACE_UNPLANNED, (OffloadMemory){0});
    step(&plain);
    for (size_t host = SPACE_ALIGN; host < e.offload.host; host += SPACE_ALIGN) {
        LateDevice *late = late_device();
        Chain c;
        open_chain(&c, &late->device, F32, LAYERS, e.slot, (OffloadMemory){e.offload.slot, host});
        step(&c);
        same_gradients(&c, &plain);
        assert_int_equal(offload_peak(c.offload).host, e.offload.host);
        assert_in_range(late->copies, 2 * (LAYERS - OFFLOAD_SLOTS), 2 * (LAYERS - OFFLOAD_SLOTS) + 2);
        close_chain(&c);
    }
    close_chain(&plain);
}

/* Layers of 1, 2, ... MiB never find a sufficiently large free block. */
TEST(the_hosts_memory_is_bounded_by_its_highest_use) {
    enum { KEPT = 6, ROUNDS = 40, MIB = 1 << 20 };
    LateDevice *late = late_device();
    late->backend.host_alloc = count_host, late->backend.host_free = uncount_host;
    Offload *o = offload_new(&late->device, KEPT + OFFLOAD_SLOTS, (OffloadMemory){0});
    for (size_t round = 1; round <= ROUNDS; round++) {
        offload_begin(o);
        for (int i = 0; i < KEPT; i++) {
            space_take(offload_enter(o, i), round * MIB);
            offload_leave(o, i);
        }
        assert_int_equal(offload_peak(o).host, KEPT * round * MIB);
        assert_true(late->host <= offload_peak(o).host + 32 * MIB);
    }
    for (int i = 0; i < OFFLOAD_SLOTS; i++) offload_need(o, i);
    offload_free(o);
    assert_int_equal(late->host, 0);
    device_free(&late->device);
}

/* Without a plan, host memory grows on request. */
TEST(layers_may_grow_from_step_to_step) {
    Chain plain, c;
    open_chain(&plain, device_cpu(1), F32, 0, SPACE_UNPLANNED, (OffloadMemory){0});
    open_chain(&c, device_cpu(1), F32, LAYERS, SPACE_UNPLANNED, (OffloadMemory){0});
    for (int64_t b = 1; b <= B; b++) {
        Chain *const both[] = {&plain, &c};
        for (int i = 0; i < 2; i++) {
            both[i]->net.id.dim[0] = b;
            both[i]->net.dy = tensor_make(both[i]->net.dy.data, F32, 3, (int64_t[]){S, b, H});
            step(both[i]);
        }
        same_gradients(&c, &plain);
    }
    close_chain(&c), close_chain(&plain);
}

/* ---- misuse ---- */

typedef void Misuse(Chain *);

static void sweep_twice(Chain *c) {
    Tensor *y = forward(c, true);
    tape_backward(c->net.tape, y, &c->net.dy, NEED_DX);
}

static void nest(Chain *c) {
    tape_begin(c->net.tape, &RECORDING);
    tape_offload_begin(c->net.tape, 0);
    tape_offload_begin(c->net.tape, 1);
}

static void expect_fault(Misuse *run, const char *sentence) {
    Chain c;
    open_chain(&c, device_cpu(1), F32, 3, SPACE_UNPLANNED, (OffloadMemory){0});
    EXPECT_FAULT(sentence, run(&c));
    close_chain(&c);
}

TEST(misuse_is_a_fault) {
    expect_fault(sweep_twice, "available for only one sweep");
    expect_fault(nest, "inside another");
}
