#include "unit/cmocka_all.h"

#include <string.h>

#include "base/philox.h"
#include "tensor/backend.h"
#include "tensor/tensor.h"
#include "unit/expect_fault.h"

enum { A = SPACE_ALIGN };

TEST(first_fit_and_merging) {
    Device *d = device_null();
    Space *s = space_new(d, "test", 10 * A);
    char *a = space_take(s, 2 * A), *b = space_take(s, 1), *c = space_take(s, 3 * A), *e = space_take(s, A);
    assert_ptr_equal(b, a + 2 * A); /* sizes are rounded up */
    assert_ptr_equal(c, a + 3 * A);
    assert_ptr_equal(e, a + 6 * A);
    assert_int_equal(space_used(s), 7 * A);
    space_give(s, a, 2 * A);
    space_give(s, c, 3 * A);
    assert_ptr_equal(space_take(s, A), a);         /* the first hole that is sufficiently large */
    assert_ptr_equal(space_take(s, 2 * A), c);     /* the rest of the first hole is too small */
    space_give(s, b, 1);                           /* merges with the hole on its left */
    assert_ptr_equal(space_take(s, 2 * A), a + A); /* that hole now has two units */
    space_give(s, c, 2 * A);                       /* merges with the hole on its right */
    assert_ptr_equal(space_take(s, 3 * A), c);
    assert_int_equal(space_peak(s), 7 * A);
    space_reset(s);
    assert_int_equal(space_used(s), 0);
    assert_ptr_equal(space_take(s, 10 * A), a);
    assert_int_equal(space_peak(s), 10 * A);
    space_free(s), device_free(d);
}

/* After random operations, blocks must never overlap, must keep their content, and all memory must be a
 * single hole at the end. */
TEST(random_traffic) {
    enum { BLOCKS = 40, STEPS = 5000 };
    Device *d = device_cpu(1);
    Space *s = space_new(d, "test", SPACE_UNPLANNED);
    unsigned char *block[BLOCKS] = {0};
    size_t size[BLOCKS] = {0};
    for (uint64_t i = 0; i < STEPS; i++) {
        const uint32_t which = philox_u32(1, 2, 2 * i) % BLOCKS;
        if (block[which]) {
            for (size_t j = 0; j < size[which]; j++) assert_int_equal(block[which][j], which);
            space_give(s, block[which], size[which]);
            block[which] = NULL;
            continue;
        }
        size[which] = philox_u32(1, 2, 2 * i + 1) % 3000;
        block[which] = space_take(s, size[which]);
        assert_int_equal((uintptr_t)block[which] % A, 0);
        memset(block[which], (int)which, size[which]);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (block[i]) space_give(s, block[i], size[i]);
    assert_int_equal(space_used(s), 0);
    const size_t peak = space_peak(s);
    char *first = space_take(s, 1);
    space_give(s, first, 1);
    assert_ptr_equal(space_take(s, peak), first);
    assert_int_equal(space_peak(s), peak);
    space_free(s), device_free(d);
}

TEST(a_full_space_is_a_fault_that_names_it) {
    Device *d = device_null();
    Space *s = space_new(d, "activation", 2 * A);
    space_take(s, A);
    EXPECT_FAULT("activation memory is full: 257 bytes requested, 256 of 512 in use", space_take(s, A + 1));
    space_free(s), device_free(d);
}

/* ---- address space whose memory comes in pages ---- */

enum { PAGE = 4 * A };

typedef struct Paged {
    Device device; /* first member, so that this is a Device */
    DeviceBackend backend;
    size_t pages, left; /* number of pages that have memory; number that still can */
    int calls;
} Paged;

static size_t memory(const Device *d) {
    (void)d;
    return 16 * PAGE + A - 1;
}

static void *reserve(Device *d, size_t bytes) {
    (void)d;
    assert_int_equal(bytes, 16 * PAGE);
    return (void *)(uintptr_t)PAGE; /* never accessed */
}

static size_t commit(Device *d, char *base, size_t from, size_t to) {
    Paged *p = (Paged *)d;
    size_t at = from;
    assert_int_equal((uintptr_t)base, PAGE);
    assert_int_equal(from, p->pages * PAGE);
    for (; at < to && p->left > 0; at += PAGE) p->pages++, p->left--;
    p->calls++;
    return at - from;
}

static void unreserve(Device *d, char *base, size_t bytes, size_t committed) {
    Paged *p = (Paged *)d;
    assert_true((uintptr_t)base == PAGE && bytes == 16 * PAGE);
    assert_int_equal(committed, p->pages * PAGE);
    p->pages = 0;
}

/* The sizes are those of a layout with 64 ranks and many microbatches. Without the limit on addresses, the
 * test would fail on machines with more than 32 GiB. */
TEST(thousands_of_spaces_fit) {
#ifdef __SANITIZE_THREAD__
    skip(); /* the thread sanitizer leaves less address space */
#endif
    enum { SPACES = 4000 };
    Device *d = device_cpu(1);
    static Space *space[SPACES];
    for (int i = 0; i < SPACES; i++) space[i] = space_new(d, "test", SPACE_UNPLANNED);
    for (int i = 0; i < SPACES; i++) space_free(space[i]);
    device_free(d);
}

TEST(memory_comes_as_it_is_reached) {
    Paged p = {.backend = {.memory = memory, .reserve = reserve, .commit = commit, .unreserve = unreserve},
               .left = 7};
    p.device = (Device){.kind = DEVICE_CUDA, .backend = &p.backend};
    Space *s = space_new(&p.device, "cache", SPACE_UNPLANNED);
    assert_int_equal(p.pages, 0);
    char *first = space_take(s, A);
    assert_int_equal(p.pages, 1);
    space_take(s, 3 * A); /* from the same page */
    assert_true(p.pages == 1 && p.calls == 1);
    space_take(s, A);
    assert_true(p.pages == 2 && p.calls == 2);
    space_reset(s);
    assert_ptr_equal(space_take(s, 8 * A), first); /* pages keep their memory */
    assert_true(p.pages == 2 && p.calls == 2);
    space_take(s, 2 * PAGE + 1); /* several pages in one call */
    assert_true(p.pages == 5 && p.calls == 3);
    EXPECT_FAULT("cannot allocate 8.0 KiB for cache memory: only 7.0 KiB could be allocated",
                 space_take(s, 4 * PAGE - A));
    space_reset(s);
    EXPECT_FAULT("cache memory is full: 16385 bytes requested, 0 of 16384 in use; the device has no more",
                 space_take(s, 16 * PAGE + 1));
    space_free(s);
    assert_int_equal(p.pages, 0);
}

/* An unplanned space reserves gigabytes of addresses, but only memory that its blocks reached may be
 * counted. */
TEST(addresses_are_not_counted) {
    Device *d = device_cpu(1);
    Space *planned = space_new(d, "planned", 4 * A), *s = space_new(d, "test", SPACE_UNPLANNED);
    assert_int_equal(d->allocated, 4 * A);
    char *a = space_take(s, 3 * A);
    space_give(s, a, 3 * A);
    space_take(s, 2 * A);
    assert_int_equal(d->allocated, 7 * A);
    space_free(s);
    assert_int_equal(d->allocated, 4 * A);
    assert_int_equal(d->most_allocated, 7 * A);
    space_free(planned), device_free(d);
}

TEST(rows_of_strided_views) {
    Tensor t = tensor_make(NULL, F32, 4, (int64_t[]){3, 2, 5, 7});
    assert_true(tensor_is_contiguous(&t));
    assert_int_equal(tensor_count(&t), 210);
    assert_int_equal(tensor_bytes(&t), 840);
    assert_int_equal(tensor_rows(&t), 30);
    for (int64_t r = 0; r < 30; r++) assert_int_equal(tensor_row_offset(&t, r), 7 * r);
    Tensor v = t; /* three of the five rows */
    v.dim[2] = 3;
    assert_false(tensor_is_contiguous(&v));
    assert_int_equal(tensor_row_offset(&v, 4), 5 * 7 + 7);
    assert_int_equal(tensor_row_offset(&v, 17), (2 * 10 + 5 + 2) * 7);
    v.dim[0] = v.dim[1] = 1; /* strides of dimensions of size 1 have no effect */
    assert_true(tensor_is_contiguous(&v));
    char text[64];
    assert_string_equal(tensor_describe(&v, text, sizeof text), "F32 [1, 1, 3, 7]");
    assert_false(tensor_same_shape(&t, &v));
}
