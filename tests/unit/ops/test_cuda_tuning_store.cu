/* Tests the tuning cache of GEMMs, without cuBLASLt or a GPU. It must return the records that were stored,
 * and only one process may have it open at a time. GEMMs whose choice is lost or cannot be used must be
 * measured again. */
#include "unit/ops/gemm_stand_in.cuh"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {
#include "base/fault.h"
#include "base/mem.h"
}

/* ---- files ---- */

static bool no_locks; /* the file system does not support locks */

extern "C" int flock(int fd, int how) noexcept {
    if (!no_locks) return (int)syscall(SYS_flock, fd, how);
    errno = ENOLCK;
    return -1;
}

static char *in_folder(const Run *r, const char *name) { return mem_printf("%s/%s", r->folder, name); }

/* Makes the store use this folder from now on. */
static void set_folder(const Run *r, const char *name) {
    char *path = in_folder(r, name);
    setenv("ISOTRON_CACHE_DIR", path, 1);
    free(path);
}

static void make_folder(const Run *r, const char *name) {
    char *path = in_folder(r, name);
    assert_int_equal(mkdir(path, 0777), 0);
    free(path);
}

static char *file_of(Run *r) {
    GemmStore s = gemm_store_open(&r->cuda, &r->state);
    char *path = mem_strdup(s.path);
    gemm_store_close(&s);
    return path;
}

/* ---- records ---- */

/* A record with a different number in every field except booleans. Some have more than 32 bits. */
static GemmRecord numbered(void) {
    GemmRecord r;
    uint64_t n = 3;
    memset(&r, 0, sizeof r);
    GemmKey *k = &r.key;
    k->m = (int64_t)5e9, k->n = (int64_t)6e9, k->k = (int64_t)7e9, k->multiprocessors = 132;
    k->type = 11, k->b_type = 12, k->c_type = 13, k->scaling = 14, k->epilogues = 15;
    k->align_a = 16, k->align_b = 8, k->align_c = 4, k->align_bias = 2;
    for (GemmChoice *c = r.choice; c < r.choice + GEMM_CHOICES; c++) {
        c->algo.fused = (uint8_t)(1 + (c - r.choice));
        for (uint64_t &word : c->algo.lt.data) word = n++ * 0x9e3779b97f4a7c15u;
        c->us = 100.25 + (double)(c - r.choice);
    }
    r.first_us = 200.75;
    return r;
}

static void keep(Run *r, const GemmRecord *x) {
    GemmStore s = gemm_store_open(&r->cuda, &r->state);
    assert_true(gemm_store_add(&s, &r->state, x));
    gemm_store_close(&s);
}

static void expect_kept(Run *r, const GemmRecord *want) {
    GemmRecord got;
    r->key = want->key;
    assert_true(is_kept(r, &got));
    assert_memory_equal(&got, want, sizeof got);
}

static int lines(Run *r) {
    int n = 0;
    GemmStore s = gemm_store_open(&r->cuda, &r->state);
    for (const char *at = s.text.s; *at; at++) n += *at == '\n';
    gemm_store_close(&s);
    return n;
}

/* ---- tests ---- */

static const Timing ALGOS[] = {{.70, .75}, {.69, .73}, {.60, .65, true}};

static Run run_of_algos(void) {
    Run r = run_new();
    gpu.algos = ALGOS, gpu.n = 3;
    return r;
}

static void expect_choice(Run *r, GemmTuning by, int algo, bool measured) {
    assert_int_equal(choose(r, by), algo);
    assert_int_equal(gpu.ms > 0, measured);
}

TEST(what_is_given_comes_back) {
    Run r = run_new();
    GemmRecord x[4];
    for (GemmRecord &each : x) each = numbered();
    x[1].key.transpose_a = x[2].key.transpose_b = x[3].key.accumulate = true;
    for (const GemmRecord &each : x) keep(&r, &each);
    for (const GemmRecord &each : x) expect_kept(&r, &each);
    assert_int_equal(lines(&r), 1 + 4);
    assert_false(r.state.warned);
    run_end(&r);
}

TEST(the_last_of_a_gemm_counts) {
    Run r = run_new();
    GemmRecord x = numbered(), other = numbered();
    other.key.m++;
    keep(&r, &x), keep(&r, &other);
    x.choice[0].us++, x.choice[1].algo.lt.data[7]++, x.first_us++;
    keep(&r, &x);
    expect_kept(&r, &x), expect_kept(&r, &other);
    assert_int_equal(lines(&r), 1 + 2);
    run_end(&r);
}

TEST(nobody_else_has_it_open) {
    Run r = run_new();
    GemmStore s = gemm_store_open(&r.cuda, &r.state);
    char *path = in_folder(&r, "lock");
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && s.alone);
    assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), -1);
    assert_int_equal(errno, EWOULDBLOCK);
    gemm_store_close(&s);
    assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), 0);
    close(fd);
    free(path);
    run_end(&r);
}

TEST(another_version_is_measured_again) {
    Run r = run_of_algos();
    expect_choice(&r, GEMM_TUNING_SAME_BITS, 1, true);
    GemmStore s = gemm_store_open(&r.cuda, &r.state);
    char *version = strstr(s.text.s, " gemms ") + strlen(" gemms ");
    (*version)--;
    assert_int_equal(file_write_atomic(s.path, s.text.s, s.text.len).code, 0);
    gemm_store_close(&s);
    expect_choice(&r, GEMM_TUNING_SAME_BITS, 1, true);
    expect_choice(&r, GEMM_TUNING_SAME_BITS, 1, false);
    run_end(&r);
}

/* A line is damaged if any digit has changed, or if its end is missing. */
TEST(a_damaged_line_is_measured_again) {
    Run r = run_of_algos();
    expect_choice(&r, GEMM_TUNING_FASTEST, 2, true);
    char *path = file_of(&r);
    for (int i = 0; i < 4; i++) {
        Str text = {NULL, 0, 0};
        assert_int_equal(file_read(path, &text).code, 0);
        char *const digit[] = {strchr(text.s, '\n') + 1, strstr(text.s, " 0000") + 2, text.s + text.len - 2};
        if (i < 3) *digit[i] ^= 1;
        assert_int_equal(file_write_atomic(path, text.s, text.len - (i == 3)).code, 0);
        str_free(&text);
        expect_choice(&r, GEMM_TUNING_FASTEST, 2, true);
        expect_choice(&r, GEMM_TUNING_FASTEST, 2, false);
    }
    free(path);
    run_end(&r);
}

TEST(what_cannot_be_gone_is_measured_again) {
    Run r = run_of_algos();
    expect_choice(&r, GEMM_TUNING_FASTEST, 2, true);
    gpu.lost = 2;
    expect_choice(&r, GEMM_TUNING_SAME_BITS, 1, false);
    expect_choice(&r, GEMM_TUNING_FASTEST, 1, true);
    expect_choice(&r, GEMM_TUNING_FASTEST, 1, false);
    assert_int_equal(lines(&r), 1 + 1);
    run_end(&r);
}

/* If a rank lacks the memory for measurements, or has no choice of algorithms, its unmeasured algorithm is
 * stored only for GEMM_TUNING_FASTEST, so that other ranks, which may have the memory, use the same one. */
TEST(unmeasured_is_kept_for_fastest_alone) {
    GemmRecord kept;
    for (int one = 0; one < 2; one++) {
        Run r = run_of_algos();
        gpu.no_memory = !one, gpu.n = one ? 1 : 3, r.first = 1;
        expect_choice(&r, GEMM_TUNING_SAME_BITS, 1, false);
        assert_false(is_kept(&r, &kept));
        expect_choice(&r, GEMM_TUNING_FASTEST, 1, false);
        assert_true(is_kept(&r, &kept));
        for (const GemmChoice &c : kept.choice) assert_true(c.us == 0 && c.algo.lt.data[0] == 1);
        gpu.no_memory = false, gpu.n = 3, r.first = 0;
        expect_choice(&r, GEMM_TUNING_FASTEST, 1, false);
        assert_false(r.state.warned);
        run_end(&r);
    }
}

/* ---- folders that keep nothing ---- */

/* The bitwise equal choice must still work, and is measured each time unless `found`. The fastest choice must
 * be a fault. */
static void expect_fault(Run *r, bool warns, bool found) {
    jmp_buf jump;
    FaultScope scope = {"a test", "", &jump, ""};
    expect_choice(r, GEMM_TUNING_SAME_BITS, 1, true);
    expect_choice(r, GEMM_TUNING_SAME_BITS, 1, !found);
    assert_int_equal(r->state.warned, warns);
    FaultScope *old = fault_scope(&scope);
    if (!setjmp(jump)) {
        choose(r, GEMM_TUNING_FASTEST);
        fail_msg("nothing is said");
    }
    fault_scope(old);
    assert_non_null(strstr(scope.message, "linear: --gemm-tuning fastest needs a writable folder"));
}

TEST(a_folder_that_cannot_be) {
    Run r = run_of_algos();
    char *path = in_folder(&r, "file");
    assert_int_equal(file_write_atomic(path, "", 0).code, 0);
    free(path);
    set_folder(&r, "file/below");
    expect_fault(&r, true, false);
    run_end(&r);
}

TEST(a_lock_that_cannot_be_opened) {
    Run r = run_of_algos();
    make_folder(&r, "lock");
    GemmStore s = gemm_store_open(&r.cuda, &r.state);
    const GemmRecord x = numbered();
    assert_false(s.alone || gemm_store_add(&s, &r.state, &x));
    assert_false(file_exists(s.path));
    gemm_store_close(&s);
    expect_fault(&r, true, false);
    run_end(&r);
}

TEST(a_folder_that_can_only_be_read) {
    Run r = run_new();
    const GemmRecord x = numbered();
    keep(&r, &x);
    char *path = in_folder(&r, "lock");
    assert_int_equal(unlink(path), 0);
    free(path);
    make_folder(&r, "lock");
    expect_kept(&r, &x);
    assert_true(r.state.warned);
    run_end(&r);
}

TEST(a_file_that_cannot_be_written) {
    Run r = run_of_algos();
    char *path = file_of(&r);
    make_folder(&r, strrchr(path, '/') + 1);
    free(path);
    expect_fault(&r, true, false);
    run_end(&r);
}

TEST(a_file_system_without_locks) {
    Run r = run_of_algos();
    no_locks = true;
    expect_fault(&r, false, true);
    no_locks = false;
    run_end(&r);
}

/* The store's folder is that of the first variable that is set and not empty. If there is none, there is no
 * store. */
TEST(folders) {
    const char *const name[] = {"ISOTRON_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}, *const file[] = {
                                                                                    "", "/isotron",
                                                                                    "/.cache/isotron"};
    char *old[3];
    Run r = run_of_algos();
    for (int i = 0; i < 3; i++) {
        old[i] = getenv(name[i]) ? mem_strdup(getenv(name[i])) : NULL;
        setenv(name[i], r.folder, 1);
    }
    for (int i = 0; i < 3; i++) {
        char *path = file_of(&r), *want = mem_printf("%s%s/gemm-", r.folder, file[i]);
        assert_memory_equal(path, want, strlen(want));
        free(path), free(want);
        if (i == 1)
            unsetenv(name[i]);
        else
            setenv(name[i], "", 1);
    }
    expect_fault(&r, true, false);
    for (int i = 0; i < 3; i++) {
        if (old[i])
            setenv(name[i], old[i], 1);
        else
            unsetenv(name[i]);
        free(old[i]);
    }
    run_end(&r);
}
