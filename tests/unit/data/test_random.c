/* Compares MD5 and the random number generators with RFC 1321, numpy and torch. */
#include "fixture.h"
#include "vectors.h"

#include "data/blend.h"
#include "data/random/mt19937.h"
#include "data/random/pcg64.h"

TEST(md5_matches_rfc1321) {
    static const char *const CASES_MD5[][2] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"abc", "900150983cd24fb0d6963f7d28e17f72"},
        {"abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"},
        {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
         "d174ab98d277d9f5a5611c2c9f419d9f"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"},
    };
    for (size_t i = 0; i < sizeof CASES_MD5 / sizeof *CASES_MD5; i++) {
        char md5[33];
        md5_hex(CASES_MD5[i][0], strlen(CASES_MD5[i][0]), md5);
        assert_string_equal(md5, CASES_MD5[i][1]);
    }
}

static void assert_bytes_md5(const void *bytes, size_t n, const char *expected) {
    char md5[33];
    md5_hex(bytes, n, md5);
    assert_string_equal(md5, expected);
}

/* Expected: numpy.random.RandomState(1234), shuffle(arange(10)), then shuffle(arange(12)). */
TEST(shuffles_match_numpy) {
    static const int32_t FIRST[] = {7, 2, 9, 1, 0, 8, 4, 5, 6, 3};
    static const uint32_t SECOND[] = {3, 11, 2, 1, 7, 5, 4, 0, 8, 6, 10, 9};
    Mt19937 g;
    mt19937_seed(&g, 1234);
    int32_t a[10];
    uint32_t b[12];
    for (int i = 0; i < 10; i++) a[i] = i;
    for (uint32_t i = 0; i < 12; i++) b[i] = i;
    mt19937_shuffle_i32(&g, a, 10);
    mt19937_shuffle_u32(&g, b, 12);
    assert_memory_equal(a, FIRST, sizeof a);
    assert_memory_equal(b, SECOND, sizeof b);

    enum { N = 100000 };
    int64_t *big = mem_alloc(N * sizeof *big);
    for (int64_t i = 0; i < N; i++) big[i] = i;
    mt19937_seed(&g, 99);
    mt19937_shuffle_i64(&g, big, N);
    assert_bytes_md5(big, N * sizeof *big, SHUFFLE_99_100000_MD5);
    for (int i = 0; i < 4; i++) assert_int_equal(mt19937_bounded(&g, (1ull << 40) + 4), BOUNDED_99[i]);
    for (int64_t i = 0; i < N; i++) big[i] = mt19937_geometric(&g, 0.2);
    assert_bytes_md5(big, N * sizeof *big, GEOMETRIC_99_MD5);
    free(big);
}

TEST(permutations_match_torch) {
    int64_t order[1000];
    mt19937_torch_randperm(0, order, 10);
    assert_memory_equal(order, RANDPERM_10_0, sizeof RANDPERM_10_0);
    mt19937_torch_randperm(3, order, 10);
    assert_memory_equal(order, RANDPERM_10_3, sizeof RANDPERM_10_3);
    mt19937_torch_randperm(7, order, 1000);
    assert_memory_equal(order, RANDPERM_1000_7, sizeof RANDPERM_1000_7);
    assert_bytes_md5(order, sizeof order, RANDPERM_1000_7_MD5);
}

/* Expected: raw outputs of numpy.random.default_rng(0), and its integers(1, 4096, 100000, int32). */
TEST(pcg64_matches_numpy) {
    static const uint64_t RAW[] = {11749869230777074271ull, 4976686463289251617ull, 755828109848996024ull};
    static const int32_t LENGTHS[] = {3484, 2609, 2094, 1105, 1261, 168, 309, 68, 718, 3331, 2660, 3738};
    Pcg64 g;
    pcg64_seed(&g, 0);
    for (int i = 0; i < 3; i++) assert_true(pcg64_u64(&g) == RAW[i]);
    pcg64_seed(&g, 0);
    int64_t sum = 0;
    for (int i = 0; i < 100000; i++) {
        int32_t length = pcg64_integer(&g, 1, 4096);
        if (i < 12) assert_int_equal(length, LENGTHS[i]);
        sum += length;
    }
    assert_int_equal(sum, 204637097);
}

TEST(weights_are_normalised_as_numpy_does) {
    static const struct {
        int n;
        const double *first;
    } SIZES[] = {{3, NORMALIZED_3}, {8, NORMALIZED_8}, {17, NORMALIZED_17}, {300, NORMALIZED_300}};
    for (int k = 0; k < 4; k++) {
        double w[300];
        for (int i = 0; i < SIZES[k].n; i++) w[i] = (i * 37 % 101 + 1) / 7.0;
        blend_normalize(w, SIZES[k].n);
        assert_memory_equal(w, SIZES[k].first, 3 * sizeof *w);
    }
}
