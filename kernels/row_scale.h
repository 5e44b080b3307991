/* The scale for a row of one-byte numbers. */
#pragma once

#include <float.h>
#include <math.h>

#include "base/host_device.h"

enum { ROW_LARGEST_I8 = 127, ROW_LARGEST_E4M3 = 448 };

/* Returns the scale of a row. `amax` is the row's largest absolute value, or NaN. All devices round the
 * quotient correctly. */
HOST_DEVICE static inline float row_scale(float amax, float largest) {
    if (!(amax > 0)) return 1;
    const float scale = largest / amax;
    return scale < FLT_MAX ? scale : FLT_MAX;
}

/* Returns 1 / scale, the factor by which a stored number is multiplied to restore the original. */
HOST_DEVICE static inline float row_inverse(float amax, float largest) {
    return amax <= FLT_MAX ? 1 / row_scale(amax, largest) : NAN;
}
