/* Tests saves that are interrupted by a signal, a full disk or a bad path. */
#include "unit/cmocka_all.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "unit/ckpt/fixture.h"

static void save_forever(Fixture *f, int64_t first) {
    for (int64_t i = first;; i++) {
        refill(f, (uint64_t)i * 2);
        CkptSaveOptions o = {.iteration = i, .keep_newest = 2};
        if (i % 3 == 0) o.iteration = i - 1; /* overwrites an existing checkpoint */
        if (ckpt_save(f->dir, &o, NULL, f->r, f->items, 2, f->state).code) _exit(1);
    }
}

TEST(a_kill_leaves_a_sound_checkpoint) {
    Fixture f = setup();
    int64_t latest = 1;
    for (int round = 0; round < 25; round++) {
        pid_t child = fork();
        if (!child) save_forever(&f, latest + 1);
        usleep(2000 + philox_u32(5, 0, (uint64_t)round) % 40000);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        int64_t before = latest;
        assert_ok(ckpt_latest(f.dir, &latest));
        if (latest < 0) { /* the process was killed before its first save was complete */
            latest = before;
            continue;
        }
        assert_ok(load(&f, -1));
        assert_true(holds(&f, (uint64_t)latest * 2) || holds(&f, (uint64_t)(latest + 1) * 2));
        assert_true(latest >= before - 1);
    }
    assert_true(latest > 1);
    assert_ok(save(&f, latest + 1));
    teardown(&f);
}

/* A limit on the file size makes writes fail as on a full disk. The limits range from 0 to the size of the
 * largest file. */
TEST(a_full_disk_loses_nothing) {
    Fixture f = setup();
    assert_ok(save(&f, 3));
    char *shard = path_of(&f, "iter_0000003/shard_00000.bin"),
         *manifest = path_of(&f, "iter_0000003/manifest.json");
    char *temporary = path_of(&f, "iter_0000004.tmp");
    int64_t largest = file_size(shard) > file_size(manifest) ? file_size(shard) : file_size(manifest);
    for (int64_t limit = 0; limit < largest; limit += 333) {
        pid_t child = fork();
        if (!child) {
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)limit, (rlim_t)limit});
            refill(&f, 30);
            Err e = save(&f, 4);
            _exit(e.code == ERR_INFRA && strstr(e.msg, "was not saved") && strstr(e.msg, "File too large")
                      ? 0
                      : 1);
        }
        int status;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
        assert_false(file_exists(temporary));
        int64_t latest;
        assert_ok(ckpt_latest(f.dir, &latest));
        assert_int_equal(latest, 3);
    }
    refill(&f, 90);
    assert_ok(load(&f, -1));
    assert_true(holds(&f, 1));
    free(shard), free(manifest), free(temporary);
    teardown(&f);
}

TEST(unwritable_folders_are_sentences) {
    Fixture f = setup();
    char *file = path_of(&f, "file"), *below = path_of(&f, "file/below");
    spew(file, "x", 1);
    assert_err(ckpt_save(file, &(CkptSaveOptions){.iteration = 1}, NULL, f.r, f.items, 2, f.state), "file",
               "not a folder");
    assert_err(ckpt_save(below, &(CkptSaveOptions){.iteration = 1}, NULL, f.r, f.items, 2, f.state),
               "file/below");
    free(file), free(below);
    teardown(&f);
}
