/* Tests that sums that were rounded to 16 bits are recognised by their values. */
#include <math.h>

#include "measure/exact.h"
#include "unit/cmocka_all.h"

TEST(rounded_sums_are_recognised) {
    const double wanted = 6464170, truncated = 6455296; /* truncated to the 8 bits of BF16 */
    assert_true(exact_is_rounded(truncated, wanted, 4));
    assert_true(exact_is_rounded(6488064, wanted, 4));          /* up */
    assert_true(exact_is_rounded(1025 * 16, 1025 * 16 + 3, 4)); /* rounded to the 11 bits of F16 */
    assert_true(exact_is_rounded(INFINITY, wanted, 4));         /* overflow of F16 */
}

TEST(other_values_are_not) {
    assert_false(exact_is_rounded(0, 1000, 4));
    assert_false(exact_is_rounded(
        0, 1000, 256)); /* not a rounded sum, although the errors of so many terms could add up to it */
    assert_false(exact_is_rounded(6464171, 6464170, 4));
    assert_false(exact_is_rounded(2 * 6488064., 6464170, 4));
    assert_false(exact_is_rounded(INFINITY, 1000, 4));
}
