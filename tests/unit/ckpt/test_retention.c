/* Tests which older checkpoints a save deletes. */
#include "unit/cmocka_all.h"

#include "unit/ckpt/fixture.h"

static void expect_kept(int64_t newest, int64_t interval, const char *want) {
    Fixture f = setup();
    for (int64_t i = 1; i <= 7; i++) {
        CkptSaveOptions o = {.iteration = i * 10, .keep_newest = newest, .retain_interval = interval};
        assert_ok(ckpt_save(f.dir, &o, NULL, f.r, f.items, 2, f.state));
    }
    int64_t *all, n;
    assert_ok(ckpt_list(f.dir, &all, &n));
    Str kept = {0};
    for (int64_t i = 0; i < n; i++) str_printf(&kept, "%lld ", (long long)all[i]);
    assert_string_equal(kept.s, want);
    assert_ok(load(&f, -1));
    str_free(&kept);
    free(all);
    teardown(&f);
}

TEST(retention_keeps_what_it_says) {
    expect_kept(-1, 0, "10 20 30 40 50 60 70 ");
    expect_kept(2, 0, "60 70 ");
    expect_kept(-1, 30, "30 60 70 ");
    expect_kept(3, 20, "20 40 50 60 70 ");
}

/* If a run restarts from step 10 and saves step 15, neither that checkpoint nor the later ones of the
 * abandoned run may be deleted. */
TEST(later_checkpoints_are_left_alone) {
    Fixture f = setup();
    assert_ok(save(&f, 10));
    assert_ok(save(&f, 20));
    CkptSaveOptions o = {.iteration = 15, .keep_newest = 1};
    assert_ok(ckpt_save(f.dir, &o, NULL, f.r, f.items, 2, f.state));
    int64_t *all, n, latest;
    assert_ok(ckpt_list(f.dir, &all, &n));
    assert_int_equal(n, 2);
    assert_int_equal(all[0], 15);
    assert_int_equal(all[1], 20);
    assert_ok(ckpt_latest(f.dir, &latest));
    assert_int_equal(latest, 15);
    free(all);
    teardown(&f);
}
