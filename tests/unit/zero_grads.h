/* Clears main gradients, for tests that add to them without a trainer. */
#pragma once

#include "param/param.h"

static inline void zero_grads(Registry *r) {
    grads_mark_unwritten(r);
    grads_zero_unwritten(r);
}
