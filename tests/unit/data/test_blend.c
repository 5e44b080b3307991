/* Compares splits and blends with vectors from Megatron-LM's helpers.cpp and
 * blended_megatron_dataset_{config,builder}.py. */
#include "fixture.h"

#include "data/blend.h"

static void assert_range(const SplitRange *r, int64_t n, int64_t begin, int64_t end) {
    int64_t b, e;
    split_elements(r, n, &b, &e);
    assert_int_equal(b, begin);
    assert_int_equal(e, end);
}

TEST(splits_divide_as_megatron_does) {
    SplitRange r[SPLIT_COUNT];
    assert_ok(split_parse("1,1,1", r));
    assert_range(&r[0], 100000, 0, 33333);
    assert_range(&r[1], 100000, 33333, 66667);
    assert_range(&r[2], 100000, 66667, 100000);
    assert_ok(split_parse("99 : 1", r));
    assert_true(r[1].used && !r[2].used);
    assert_range(&r[1], 1000, 990, 1000);
    assert_ok(split_parse("1", r));
    assert_true(r[0].used && !r[1].used && !r[2].used);
    assert_range(&r[0], 7, 0, 7);
    assert_ok(split_parse(".5,.5", r));
    assert_range(&r[0], 5, 0, 2); /* 2.5 rounds to even */
    assert_range(&r[0], 7, 0, 4); /* 3.5 rounds to even */
}

TEST(bad_splits_are_sentences) {
    SplitRange r[SPLIT_COUNT];
    assert_err(split_parse("", r), "assigns no data");
    assert_err(split_parse("0,0,0", r), "assigns no data");
    assert_err(split_parse("1,2,3,4", r), "more than three");
    assert_err(split_parse("1.2.3,1", r), "'1.2.3' in the split");
    static const char *const WORDS[] = {"90,x",    "1e2,5",   "nan,1,1", "90,-5,5",
                                        "0x5,1,1", "inf,1,1", "969;30;1"};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        assert_err(split_parse(WORDS[i], r), "is not a decimal number");
    char digits[400];
    memset(digits, '9', sizeof digits);
    digits[399] = 0;
    assert_err(split_parse(digits, r), "not a decimal number");
}

TEST(blend_lists_are_read_as_megatron_reads_them) {
    Blend b;
    assert_ok(blend_parse((const char *const[]){"30", " a ", "70", "b"}, 4, &b));
    assert_int_equal(b.n, 2);
    assert_string_equal(b.prefixes[0], "a");
    assert_true(b.weights[0] == 0.3 && b.weights[1] == 0.7);
    blend_free(&b);
    assert_ok(blend_parse((const char *const[]){"a", "b"}, 2, &b));
    assert_int_equal(b.n, 2);
    assert_null(b.weights);
    blend_free(&b);
    assert_ok(blend_parse((const char *const[]){" ", "b"}, 2, &b)); /* a blank is not a number */
    assert_int_equal(b.n, 2);
    assert_null(b.weights);
    blend_free(&b);
    assert_ok(blend_parse((const char *const[]){"1", "2", "c"}, 3,
                          &b)); /* an odd number of words: three prefixes */
    assert_int_equal(b.n, 3);
    assert_null(b.weights);
    blend_free(&b);
    assert_err(blend_parse((const char *const[]){"0.7", "a", "0.3"}, 3, &b), "ends with the weight 0.3");
    assert_err(blend_parse((const char *const[]){"a", "b", "1", "c"}, 4, &b), "mixes");
    assert_err(blend_parse((const char *const[]){"0.7", "a", "0.3"}, 3, &b), "ends with the weight 0.3");
    assert_err(blend_parse((const char *const[]){"0", "b", "1", "c"}, 4, &b), "positive");
    assert_err(blend_parse((const char *const[]){"-1", "b"}, 2, &b), "positive");
    assert_err(blend_parse((const char *const[]){"nan", "b"}, 2, &b), "positive");
    assert_err(blend_parse((const char *const[]){"inf", "b"}, 2, &b), "positive");
    assert_err(blend_parse(NULL, 0, &b), "empty");
}

TEST(indices_equal_helpers_cpp) {
    static const int16_t TWO[] = {1, 0, 1, 1, 0, 1, 1, 0, 1, 1}, THREE[] = {0, 1, 2, 0, 1, 0, 2, 0, 1, 0};
    static const int64_t SAMPLES[] = {0, 0, 1, 2, 1, 3, 4, 2, 5, 6};
    int16_t dataset[10];
    int64_t sample[10];
    blend_indices((const double[]){.3, .7}, 2, 10, dataset, sample);
    assert_memory_equal(dataset, TWO, sizeof dataset);
    assert_memory_equal(sample, SAMPLES, sizeof sample);
    blend_indices((const double[]){.5, .3, .2}, 3, 10, dataset, sample);
    assert_memory_equal(dataset, THREE, sizeof dataset);
    blend_indices((const double[]){.25, .25, .25, .25}, 4, 10, dataset, sample);
    for (int i = 0; i < 10; i++)
        assert_int_equal(dataset[i], i % 4); /* of equal values, the first is chosen */
}

TEST(exhaustive_indices_draw_every_sample_once) {
    const int64_t sizes[] = {3, 0, 6, 1};
    int16_t dataset[10];
    int64_t sample[10], drawn[4] = {0};
    blend_indices_exhaustive(sizes, 4, dataset, sample);
    for (int i = 0; i < 10; i++) assert_int_equal(sample[i], drawn[dataset[i]]++);
    assert_memory_equal(drawn, sizes, sizeof sizes);

    static const int16_t HELPERS[] = {0, 2, 1, 0, 2,
                                      0, 1, 2, 0}; /* the result of helpers.cpp for the sizes 4, 2, 3 */
    blend_indices_exhaustive((const int64_t[]){4, 2, 3}, 3, dataset, sample);
    assert_memory_equal(dataset, HELPERS, sizeof HELPERS);
}

/* The expected size is int(math.ceil(math.ceil(size * w) * 1.005)). */
TEST(sizes_round_up_twice) {
    assert_int_equal(blend_target(1000, .3), 300);
    assert_int_equal(blend_target(1001, .3), 301);
    assert_int_equal(blend_request(1000, .3, .005), 302);
    assert_int_equal(blend_request(10, .7, .005), 8);
    assert_int_equal(blend_request(10, .7, 0), 7);
}
