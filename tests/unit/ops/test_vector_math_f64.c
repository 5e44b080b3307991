#define REAL_IS_DOUBLE
#include "unit/ops/test_vector_math.c"
