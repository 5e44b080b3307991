/* The scale for a row of one-byte numbers. */
#pragma once

#include <float.h>
#include <math.h>

#include "base/host_device.h"

enum { ROW_LARGEST_I8 = 127, ROW_LARGEST_E4M3 = 448 };

/* amax: the largest absolute value, or NaN. The quotient is rounded correctly on all devices. */
HOST_DEVICE static inline float row_scale(float amax, float largest) {
    if (!(amax > 0)) return 1;
    const float scale = largest / amax;
    return scale < FLT_MAX ? scale : FLT_MAX;
}

/* Returns the factor by which a stored number is multiplied. */
HOST_DEVICE static inline float row_inverse(float amax, float largest) {
    return amax <= FLT_MAX ? 1 / row_scale(amax, largest) : NAN;
}
