/* Makes a new folder for a test, which the test removes with file_remove_tree. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "unit/cmocka_all.h"

static inline void temp_dir(char out[64]) {
    snprintf(out, 64, "%s/isotron-test-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(out));
}
