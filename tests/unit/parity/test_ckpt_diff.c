/* Tests that checkpoints with equal content compare equal, whichever layout wrote them, and that a difference
 * is found, measured and named. */
#include "unit/cmocka_all.h"

#include <math.h>

#include "parity/ckpt_diff.h"
#include "unit/ckpt/world.h"

static const CkptDiffOptions EXACT = {{.bound = NAN}, false};

/* Saves a checkpoint with the given layout and step, and returns its folder. */
static char *saved_by(int layout, int64_t iteration) {
    char *dir = scratch_new_in_memory();
    assert_ok(run((Trip){.layout = &CASES[layout], .save = dir, .iteration = iteration}));
    return dir;
}

static Diff diff_of(const char *a, const char *b, const CkptDiffOptions *o, Str *out) {
    Diff d;
    str_clear(out);
    assert_ok(ckpt_diff(a, b, o, &d, out));
    return d;
}

TEST(layouts_do_not_matter) {
    Str out = {0};
    char *one = saved_by(0, 3), *another = saved_by(0, 4);
    static const int LAYOUTS[] = {1, 4, 11}; /* tp2; pp3; all axes and sharded buffers */
    for (int i = 0; i < 3; i++) {
        char *other = saved_by(LAYOUTS[i], 3);
        const Diff d = diff_of(one, other, &EXACT, &out);
        if (!d.is_equal) fail_msg("%s: %s", CASES[LAYOUTS[i]].name, out.s);
        assert_non_null(strstr(out.s, "\nverdict: equal\n"));
        assert_false(diff_of(other, another, &EXACT, &out).is_within);
        scratch_remove(other);
    }
    scratch_remove(one), scratch_remove(another);
    str_free(&out);
}

/* ---- one element ---- */

typedef struct Change {
    int item;         /* index into SUFFIXES */
    const char *name; /* name of a parameter */
    int64_t element;
    float to;
    int items;     /* number of items that are saved */
    DType weights; /* stored type of parameters */
    int optimizer_step;
} Change;

/* Saves a checkpoint in which all elements are 2, except for the change. */
static char *saved_with(const Change *change) {
    char *dir = scratch_new_in_memory();
    Setup *s = model_of(&CASES[0]);
    Model *m = gpt_of(s, &CASES[0], 0);
    Device *device = device_cpu(1);
    model_allocate(m, device, F32, 1, true);
    const Registry *r = m->registry;
    float *flat[ITEMS];
    CkptItem items[ITEMS];
    for (int k = 0; k < ITEMS; k++) {
        flat[k] = mem_alloc((size_t)r->elements * sizeof **flat);
        for (int64_t i = 0; i < r->elements; i++) flat[k][i] = 2;
        items[k] = (CkptItem){.suffix = SUFFIXES[k], .flat = flat[k], .dtype = F32};
    }
    for (int i = 0; i < r->n; i++)
        if (change->name && !strcmp(r->params[i]->spec.name, change->name))
            flat[change->item][r->params[i]->offset + change->element] = change->to;
    uint16_t *narrow = mem_alloc((size_t)r->elements * sizeof *narrow);
    dtype_convert(narrow, BF16, flat[0], F32, (size_t)r->elements);
    if (change->weights == BF16) items[0].flat = narrow, items[0].dtype = BF16;
    json_t *state = json_pack("{s:{s:i, s:s}, s:{s:i}}", "config", "seed", change->optimizer_step, "lane",
                              "fp32", "progress", "optimizer_step", change->optimizer_step);
    assert_ok(ckpt_save(dir, &(CkptSaveOptions){.iteration = 7}, NULL, r, items, change->items, state));
    json_decref(state);
    free(narrow), free(flat[0]), free(flat[1]);
    model_free(m);
    device_free(device);
    setup_free(s);
    return dir;
}

static const char QKV[] = "decoder.layers.0.self_attention.linear_qkv.weight";
/* linear_qkv has 2 groups of 2 query heads, a key and a value of width 2: row 9 of 16 is row 5 of part q. */
enum { ELEMENT = 9 * 8 + 3 };

static void expect_diff(const Change *change, const CkptDiffOptions *o, bool within, const char *text) {
    const Change none = {.items = ITEMS, .weights = F32};
    Str out = {0};
    char *a = saved_with(&none), *b = saved_with(change);
    const Diff d = diff_of(a, b, o, &out);
    assert_false(d.is_equal);
    if (d.is_within != within || !strstr(out.s, text)) fail_msg("no '%s' in\n%s", text, out.s);
    scratch_remove(a), scratch_remove(b);
    str_free(&out);
}

TEST(one_element_is_found) {
    const float next = nextafterf(2, 3); /* the relative difference is 1.19e-07 */
    const CkptDiffOptions wide = {{.bound = 1.2e-7}, false}, narrow = {{.bound = 1.1e-7}, false},
                          weights = {{.bound = NAN}, true};
    const Change weight = {0, QKV, ELEMENT, next, ITEMS, F32, 0},
                 moment = {1, QKV, ELEMENT, next, ITEMS, F32, 0};
    expect_diff(&weight, &EXACT, false,
                "verdict: differ, first at 'decoder.layers.0.self_attention.linear_qkv.weight' ('q') [5, 3], "
                "2 against 2.0000002\n");
    expect_diff(&weight, &EXACT, false, "1 of 64 elements, max |a - b| 2.38e-07, relative 1.19e-07");
    expect_diff(&moment, &EXACT, false, "linear_qkv.weight.exp_avg' ('q') [5, 3]");
    expect_diff(&weight, &narrow, false, "verdict: differ");
    expect_diff(&weight, &wide, true, "verdict: within 1.2e-07, the largest relative difference is 1.19e-07");
    expect_diff(&weight, &weights, false, "verdict: differ");
    const Change lost = {0, QKV, ELEMENT, NAN, ITEMS, F32, 0};
    expect_diff(&lost, &wide, false, "2 against nan");
}

TEST(what_is_missing_is_a_difference) {
    const CkptDiffOptions common = {{.bound = NAN, .common = true}, false}, weights = {{.bound = NAN}, true};
    Str out = {0};
    char *both = saved_with(&(Change){.items = 2, .weights = F32}),
         *one = saved_with(&(Change){.items = 1, .weights = F32});
    Diff d = diff_of(one, both, &EXACT, &out);
    assert_false(d.is_within);
    assert_non_null(strstr(out.s, "exp_avg' ('whole'), which is only in "));
    assert_true(diff_of(one, both, &common, &out).is_equal);
    assert_true(diff_of(one, both, &weights, &out).is_equal);
    scratch_remove(both), scratch_remove(one);
    str_free(&out);
}

TEST(storage_and_progress_count) {
    const CkptDiffOptions bound = {{.bound = 0}, false};
    expect_diff(&(Change){.items = ITEMS, .weights = BF16}, &EXACT, false, "stored as F32 and as BF16");
    expect_diff(&(Change){.items = ITEMS, .weights = BF16}, &bound, true,
                "verdict: within 0"); /* 2 is exact in both types */
    expect_diff(&(Change){.items = ITEMS, .weights = F32, .optimizer_step = 5}, &EXACT, false,
                "option seed: 0 and 5\nprogress optimizer_step: 0 and 5\n");
}

TEST(damage_is_an_error) {
    Str out = {0}, bytes = {0};
    Diff d;
    char *a = saved_with(&(Change){.items = 1, .weights = F32}),
         *b = saved_with(&(Change){.items = 1, .weights = F32}),
         *shard = mem_printf("%s/iter_0000007/shard_00000.bin", b), *step = mem_printf("%s/iter_0000007/", b);
    assert_true(diff_of(a, step, &EXACT, &out).is_equal);
    assert_ok(file_read(shard, &bytes));
    bytes.s[bytes.len - 1] ^= 1;
    assert_ok(file_write_atomic(shard, bytes.s, bytes.len));
    assert_err(ckpt_diff(a, b, &EXACT, &d, &out), "do not match its hash");
    assert_err(ckpt_diff(a, "/nowhere", &EXACT, &d, &out), "'/nowhere' contains no checkpoint");
    scratch_remove(a), scratch_remove(b);
    free(shard), free(step);
    str_free(&out), str_free(&bytes);
}
