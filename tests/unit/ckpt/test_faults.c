/* Tests checkpoints of several ranks with a full disk, damage and SIGKILL, and saves during a run. */
#include "unit/ckpt/world.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"

static const Case *const MANY = &CASES[11], *const TWO = &CASES[1], *const THREE = &CASES[4];

/* Runs ranks in a process in which no file may exceed `limit` bytes, which simulates a full disk. Returns 0
 * if the result is a machine error whose message contains all texts, or 100 + i if texts[i] is missing. */
static int run_on_full_disk(Trip t, int64_t limit, const char *const *texts) {
    const pid_t child = fork();
    if (!child) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)limit, (rlim_t)limit});
        Err e = run(t);
        for (int i = 0; texts[i]; i++)
            if (!strstr(e.msg, texts[i])) _exit(100 + i);
        _exit(e.code == ERR_INFRA ? 0 : 1); /* a fault would exit with this code */
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The limits allow the files of only some ranks, the files of all ranks but not the manifest, or no file. */
TEST(a_full_disk_is_everyones_error) {
    static const char *const texts[] = {"File too large",
                                        "step 2 was not saved; earlier checkpoints are unchanged", NULL};
    char *dir = scratch_new(), *temporary = mem_printf("%s/iter_0000002.tmp", dir);
    assert_ok(run((Trip){.layout = MANY, .save = dir, .iteration = 1}));
    for (int i = 0; i <= MANY->world; i++) {
        char *path = i < MANY->world ? mem_printf("%s/iter_0000001/shard_%05d.bin", dir, i)
                                     : mem_printf("%s/iter_0000001/manifest.json", dir);
        const int64_t limit = file_size(path) - 1;
        Trip t = {.layout = MANY, .save = dir, .iteration = 2, .async = i % 2};
        assert_int_equal(run_on_full_disk(t, i ? limit : 0, texts), 0);
        assert_false(file_exists(temporary));
        free(path);
    }
    assert_ok(run((Trip){.layout = TWO, .load = dir, .iteration = 1}));
    free(temporary);
    scratch_remove(dir);
}

TEST(damage_is_everyones_error) {
    char *dir = scratch_new(), name[64];
    for (int i = 1; i <= 2; i++) assert_ok(run((Trip){.layout = MANY, .save = dir, .iteration = i}));
    for (int i = 0; i < MANY->world; i++) {
        Str bytes = {0};
        snprintf(name, sizeof name, "iter_0000002/shard_%05d.bin", i);
        char *path = mem_printf("%s/%s", dir, name);
        assert_ok(file_read(path, &bytes));
        const Trip t = {.layout = i % 2 ? TWO : THREE, .load = dir, .iteration = 2};
        bytes.s[bytes.len / 2 / 64 * 64] ^=
            16; /* the first byte of a tensor, or a byte inside a large tensor */
        assert_ok(file_write_atomic(path, bytes.s, bytes.len));
        assert_err(run(t), name, "is damaged: the bytes of tensor '", "do not match its hash",
                   "other intact checkpoint is '", "iter_0000001'");
        assert_ok(file_write_atomic(path, bytes.s, bytes.len - 1));
        assert_err(run(t), name, "is damaged: it has", "other intact checkpoint is '", "iter_0000001'");
        unlink(path);
        assert_err(run(t), name, "No such file", "other intact checkpoint is '", "iter_0000001'");
        bytes.s[bytes.len / 2 / 64 * 64] ^= 16;
        assert_ok(file_write_atomic(path, bytes.s, bytes.len));
        assert_ok(run(t));
        str_free(&bytes);
        free(path);
    }
    scratch_remove(dir);
}

/* Each rank knows only a part of the stored content. Content that no rank knows is an error. */
TEST(a_part_of_a_model_is_refused) {
    char *dir = scratch_new();
    assert_ok(run((Trip){.layout = MANY, .save = dir}));
    Case shorter = CASES[3];
    shorter.layers[1] = 1;
    assert_err(run((Trip){.layout = &shorter, .load = dir}), "holds tensor 'decoder.layers.4.",
               "which the model does not have");
    scratch_remove(dir);
}

static int64_t latest_in(const char *dir) {
    int64_t latest;
    assert_ok(ckpt_latest(dir, &latest));
    return latest < 0 ? 0 : latest;
}

/* In every second round, the process is killed only after its first save, so that the test makes progress on
 * any machine. After that, it is killed at an arbitrary moment. */
TEST(a_kill_leaves_a_sound_checkpoint) {
    char *dir = scratch_new();
    int64_t latest = 0, save_us = 0;
    for (int round = 0; round < 20; round++) {
        const int64_t before = latest, start = clock_ns();
        const pid_t child = fork();
        if (!child)
            for (int64_t i = latest + 1;; i++)
                if (run((Trip){.layout = MANY, .save = dir, .iteration = i, .async = i % 2}).code) _exit(1);
        while (round % 2 == 0 && latest_in(dir) == before) usleep(1000);
        if (!round) save_us = (clock_ns() - start) / 1000;
        usleep((useconds_t)(philox_u32(6, 0, (uint64_t)round) % (uint32_t)(2 * save_us + 1)));
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        latest = latest_in(dir);
        assert_true(latest >= before + (round % 2 == 0));
        assert_ok(run((Trip){.layout = round % 2 ? TWO : THREE, .load = dir, .iteration = latest}));
    }
    scratch_remove(dir);
}

/* ---- saving during the run ---- */

typedef struct Large {
    Device *device;
    Registry *r;
    CkptItem item;
    json_t *state;
} Large;

enum {
    LARGE = 1 << 22
}; /* number of elements, so large that the writer is still busy when the start of the save returns */

static Large large_new(void) {
    Large l = {device_cpu(1), registry_new(NULL), {.suffix = "", .dtype = F32}, json_object()};
    param_add(l.r, (ParamSpec){.name = "w", .ndim = 2, .dim = {LARGE / 64, 64}, .tp_split = SPLIT_NONE});
    registry_allocate(l.r, l.device, F32, true);
    l.item.flat = l.r->masters;
    memset(l.item.flat, 1, LARGE * sizeof(float));
    return l;
}

static void large_free(Large *l) {
    registry_free(l->r);
    device_free(l->device);
    json_decref(l->state);
}

TEST(what_is_saved_is_of_the_start) {
    char *dir = scratch_new();
    Large l = large_new();
    CkptSaving *s;
    int64_t latest;
    assert_ok(ckpt_save_start(dir, &(CkptSaveOptions){.iteration = 3}, NULL, l.r, &l.item, 1, l.state, &s));
    memset(l.item.flat, 2, LARGE * sizeof(float));
    assert_ok(ckpt_latest(dir, &latest));
    assert_int_equal(latest, -1);
    while (!ckpt_save_is_written(s)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_ok(ckpt_save_finish(s));
    Ckpt *c;
    assert_ok(ckpt_open(dir, -1, NULL, &c));
    assert_ok(ckpt_load(c, l.r, &l.item, 1));
    for (size_t i = 0; i < LARGE * sizeof(float); i++) assert_int_equal(((char *)l.item.flat)[i], 1);
    ckpt_close(c);
    large_free(&l);
    scratch_remove(dir);
}

TEST(the_finish_reports_the_writer) {
    char *dir = scratch_new();
    const pid_t child = fork();
    if (!child) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){LARGE, LARGE});
        Large l = large_new();
        CkptSaving *s;
        Err e = ckpt_save_start(dir, &(CkptSaveOptions){.iteration = 3}, NULL, l.r, &l.item, 1, l.state, &s);
        if (e.code) _exit(1);
        e = ckpt_save_finish(s);
        _exit(e.code == ERR_INFRA && strstr(e.msg, "step 3 was not saved") ? 0 : 2);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    scratch_remove(dir);
}
