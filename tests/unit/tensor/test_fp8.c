/* FP8 numbers against PyTorch's (tests/data/fp8.txt, made by tools/oracle/fp8.py, which says what is in it). */
#include "unit/cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/fp8.h"

static const char PATH[] = "tests/data/fp8.txt";

static float float_of(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void every_code_has_its_value(void **state) {
    (void)state;
    FILE *f = fopen(PATH, "r");
    assert_non_null(f);
    char line[64];
    unsigned type, code, bits, n = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "decode %u %x %x", &type, &code, &bits) != 3) continue;
        const float want = float_of(bits), got = fp8_to_float((Fp8Type)type, (uint8_t)code);
        if (isnan(want) ? !isnan(got) : memcmp(&want, &got, sizeof got))
            fail_msg("type %u, FP8 value %02x is %g, not %g", type, code, (double)want, (double)got);
        if (!isnan(want) && !isinf(want)) assert_int_equal(fp8_from_float((Fp8Type)type, want), code);
        n++;
    }
    fclose(f);
    assert_int_equal(n, 2 * 256);
}

/* All numbers that an FP8 value stands for, the middles between two of them and their neighbours, and what is
 * too large or too small. */
static void numbers_get_the_nearest_value(void **state) {
    (void)state;
    FILE *f = fopen(PATH, "r");
    assert_non_null(f);
    char line[64];
    unsigned type, code, bits, n = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "encode %u %x %x", &type, &bits, &code) != 3) continue;
        const unsigned got = fp8_from_float((Fp8Type)type, float_of(bits));
        if (got != code)
            fail_msg("type %u, %a becomes the FP8 value %02x, not %02x", type, (double)float_of(bits), code,
                     got);
        n++;
    }
    fclose(f);
    assert_true(n > 2 * 2 * 4 * 120);
}

static void what_is_no_number_stays_none(void **state) {
    (void)state;
    for (Fp8Type t = E4M3; t <= E5M2; t++) {
        assert_int_equal(fp8_from_float(t, NAN), 0x7f);
        assert_int_equal(fp8_from_float(t, -NAN), 0x7f);
        assert_true(isnan(fp8_to_float(t, 0x7f)));
    }
    assert_true(fp8_max(E4M3) == 448 && fp8_max(E5M2) == 57344);
    assert_true(fp8_roundoff(E4M3) == 0x1p-4 && fp8_roundoff(E5M2) == 0x1p-3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(numbers_get_the_nearest_value),
        cmocka_unit_test(what_is_no_number_stays_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
