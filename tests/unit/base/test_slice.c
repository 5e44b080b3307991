/* Compares the functions for sequence slices with positions that are computed row by row. */
#include "unit/cmocka_all.h"

#include "base/zigzag.h"

/* Checks a slice of one or two chunks, from each row on. */
static void check(SequenceSlice s, int64_t rows) {
    for (int64_t row = 0; row < rows; row++) {
        const int64_t j = s.first + row,
                      want = s.chunk ? (j < s.chunk ? s.at[0] + j : s.at[1] + j - s.chunk) : j;
        assert_int_equal(slice_position(&s, row), want);
        for (int64_t n = 1; n <= rows - row; n++) {
            int64_t run = 1;
            while (run < n && (!s.chunk || j / s.chunk == (j + run) / s.chunk)) run++;
            assert_int_equal(slice_run(&s, row, n), run);
        }
    }
    for (int64_t position = -3; position < 60; position++) {
        int64_t before = 0;
        for (int64_t row = 0; row < rows; row++) before += slice_position(&s, row) < position;
        assert_int_equal(slice_before(&s, rows, position), before);
    }
}

TEST(rows_are_positions) {
    for (int64_t first = 0; first <= 9; first++) check((SequenceSlice){.first = first}, 12);
    for (int64_t first = 0; first < 10;
         first++) /* a slice that is sharded further over tensor-parallel ranks */
        check((SequenceSlice){.first = first, .chunk = 5, .at = {10, 35}}, 10 - first);
}

TEST(zigzag_slices_cover_the_sequence) {
    for (int n = 1; n <= 5; n++) {
        const int64_t total = 6 * n;
        int64_t held[30] = {0};
        for (int r = 0; r < n; r++) {
            const SequenceSlice s = slice_zigzag(total, n, r);
            check(s, total / n);
            int64_t sum = 0; /* sum of positions: equal for all ranks, so that causal attention is balanced */
            for (int64_t i = 0; i < total / n; i++)
                held[slice_position(&s, i)]++, sum += slice_position(&s, i);
            assert_int_equal(sum, total / n * (total - 1) / 2);
            assert_int_equal(slice_position(&s, 0), r * (total / n / 2));
        }
        for (int64_t i = 0; i < total; i++) assert_int_equal(held[i], 1);
    }
}
