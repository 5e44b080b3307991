#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit/cmocka_all.h"

#include "base/amount.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/str.h"
#include "base/terminal.h"
#include "base/thread.h"

/* The expected values are known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10). */
TEST(philox_matches_random123) {
    Philox4 zero = philox4x32(0, 0, 0);
    assert_int_equal(zero.v[0], 0x6627e8d5u);
    assert_int_equal(zero.v[1], 0xe169c58du);
    assert_int_equal(zero.v[2], 0xbc57ac4cu);
    assert_int_equal(zero.v[3], 0x9b00dbd8u);
    Philox4 ones = philox4x32(~0ull, ~0ull, ~0ull);
    assert_int_equal(ones.v[0], 0x408f276du);
    assert_int_equal(ones.v[1], 0x41c83b0eu);
    assert_int_equal(ones.v[2], 0xa20bc7c6u);
    assert_int_equal(ones.v[3], 0x6d5451fdu);
}

TEST(philox_normal_has_unit_moments) {
    enum { N = 200000 };
    double sum = 0, square = 0;
    for (int i = 0; i < N; i++) {
        double x = philox_normal(1234, 7, (uint64_t)i);
        sum += x, square += x * x;
    }
    double bound =
        5 / sqrt(N); /* five standard errors of the mean; that of the variance is sqrt(2) times larger */
    assert_true(fabs(sum / N) < bound);
    assert_true(fabs(square / N - 1) < bound * sqrt(2));
}

typedef struct Cover {
    atomic_int hits[1000];
} Cover;

static void hit(void *arg, int64_t begin, int64_t end) {
    Cover *c = arg;
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&c->hits[i], 1);
}

TEST(pool_covers_each_item_once) {
    for (int threads = 1; threads <= 4; threads++) {
        Pool *pool = pool_new(threads);
        for (int n = 0; n < 300; n++) {
            Cover *c = mem_zero(1, sizeof *c);
            pool_for(pool, n, 3, hit, c);
            for (int i = 0; i < 1000; i++) assert_int_equal(c->hits[i], i < n);
            free(c);
        }
        pool_free(pool);
    }
}

TEST(fault_names_the_place) {
    FaultScope scope = {.where = "rank 3", .op = "norm"};
    jmp_buf jump;
    scope.catch_jmp = &jump;
    FaultScope *old = fault_scope(&scope);
    if (!setjmp(jump)) {
        CHECK(1 == 2, "the width is %d", 17);
        fail();
    }
    fault_scope(old);
    assert_non_null(strstr(scope.message, "[rank 3, op norm]"));
    assert_non_null(strstr(scope.message, "the width is 17"));
    assert_non_null(strstr(scope.message, "1 == 2"));
}

TEST(nearest_suggests_only_what_is_near) {
    const char *names[] = {"hidden-size", "num-layers", "seq-length"};
    assert_string_equal(str_nearest("hiden-size", names, 3), "hidden-size");
    assert_string_equal(str_nearest("num-layrs", names, 3), "num-layers");
    assert_string_equal(str_nearest("num-layeers", names, 3), "num-layers");
    assert_string_equal(str_nearest("seq-lenght", names, 3), "seq-length");
    assert_null(str_nearest("bananas", names, 3));
    const char *shorter[] = {"load", "lr", "seed", "ranks"};
    assert_string_equal(str_nearest("laod", shorter, 4), "load");
    assert_string_equal(str_nearest("esed", shorter, 4), "seed");
    assert_string_equal(str_nearest("arnks", shorter, 4), "ranks");
    assert_null(str_nearest("aldo", shorter, 4));
}

TEST(arena_blocks_do_not_overlap) {
    Arena *a = arena_new();
    for (int round = 0; round < 2; round++) {
        unsigned char *blocks[200];
        for (int i = 0; i < 200; i++) {
            blocks[i] = arena_alloc(a, (size_t)i * 37);
            memset(blocks[i], i, (size_t)i * 37);
        }
        for (int i = 0; i < 200; i++)
            for (int j = 0; j < i * 37; j++) assert_int_equal(blocks[i][j], i);
        arena_reset(a);
    }
    arena_free(a);
}

TEST(hash_depends_on_every_byte) {
    char text[] = "isotron", hex[33], hex2[33];
    hash_hex(hash128(text, 7), hex);
    text[6] ^= 1;
    hash_hex(hash128(text, 7), hex2);
    assert_string_not_equal(hex, hex2);
    assert_int_equal(strlen(hex), 32);
}

TEST(hash_does_not_depend_on_pieces) {
    enum { BYTES = 3000 };
    char text[BYTES];
    for (int i = 0; i < BYTES; i++) text[i] = (char)(i * 37);
    const int sizes[] = {1, 240, 999, BYTES};
    for (int k = 0; k < 4; k++) {
        HashStream *s = hash128_begin();
        hash128_add(s, text, 0);
        for (int at = 0, n; at < BYTES; at += n) {
            n = sizes[k] < BYTES - at ? sizes[k] : BYTES - at;
            hash128_add(s, text + at, (size_t)n);
        }
        const Hash128 h = hash128_end(s), want = hash128(text, BYTES);
        assert_true(h.hi == want.hi && h.lo == want.lo);
    }
}

TEST(bytes_have_a_unit_that_suits_them) {
    assert_string_equal(bytes_text(0).s, "0 B");
    assert_string_equal(bytes_text(1023).s, "1023 B");
    assert_string_equal(bytes_text(1024).s, "1.0 KiB");
    assert_string_equal(bytes_text(1024 * 1024 - 1).s, "1.0 MiB"); /* not 1024.0 KiB */
    assert_string_equal(bytes_text(1.5 * (1 << 30)).s, "1.5 GiB");
    assert_string_equal(bytes_text(0x1p60 * 2000).s, "2000.0 EiB");
}

TEST(nouns_follow_their_number) {
    assert_string_equal(amount(0, "step").s, "0 steps");
    assert_string_equal(amount(1, "step").s, "1 step");
    assert_string_equal(amount(1, "microbatch").s, "1 microbatch");
    assert_string_equal(amount(2, "microbatch").s, "2 microbatches");
    assert_string_equal(amount(-1, "token").s, "-1 tokens");
}

TEST(a_line_is_cut_before_the_character_that_does_not_fit) {
    const struct {
        const char *text;
        int columns;
        size_t bytes;
    } rows[] = {
        {"", 5, 0},
        {"abc", 0, 0},
        {"abc", -1, 0},
        {"abc", 2, 2},
        {"abc", 3, 3},
        {"abc", 99, 3},
        {"\xc3\xa9tat", 3, 4}, /* e with an accent */
        {"\xe5\xad\xa6x", 1, 0},
        {"\xe5\xad\xa6x", 2, 3},
        {"\xe5\xad\xa6x", 3, 4},     /* a wide character */
        {"\xf0\x9f\x9a\x80x", 2, 4}, /* an emoji, which is wide */
        {"e\xcc\x81x", 1, 3},        /* a combining accent, which occupies no column */
        {"\xff\xfex", 2, 2},
        {"a\xe5\xad", 2, 2},
        {"a\xe5\xad", 3, 3}, /* not UTF-8 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(terminal_fit(rows[i].text, rows[i].columns), rows[i].bytes);
}

/* Verdicts are coloured at the beginning of a line, after a colon, and between runs of blanks. Elsewhere they
 * are ordinary words. */
TEST(verdicts_have_colours) {
    static const struct {
        const char *text, *shown;
    } CASES[] = {{"verdict: DEGRADED, 1\n", "verdict: \033[33mDEGRADED\033[0m, 1\r\n"},
                 {"speed  FAIL  x\n", "speed  \033[31mFAIL\033[0m  x\r\n"},
                 {"FAIL: it is\n", "\033[31mFAIL\033[0m: it is\r\n"},
                 {"equal sums\n", "equal sums\r\n"},
                 {"a FAIL\n", "a FAIL\r\n"}};
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0 && !grantpt(terminal) && !unlockpt(terminal));
    FILE *to = fopen(ptsname(terminal), "w");
    assert_non_null(to);
    setenv("TERM", "xterm", 1), unsetenv("NO_COLOR");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char got[200] = "";
        terminal_report(to, CASES[i].text), fflush(to);
        for (ssize_t n = 0, more; !strchr(got, '\n'); n += more) { /* a read can return a part of the line */
            more = read(terminal, got + n, sizeof got - 1 - (size_t)n);
            assert_true(more > 0);
        }
        assert_string_equal(got, CASES[i].shown);
    }
    fclose(to), close(terminal);
}
