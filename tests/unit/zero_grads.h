/* Main gradients for tests that add to them themselves. */
#ifndef ISOTRON_TESTS_ZERO_GRADS_H
#define ISOTRON_TESTS_ZERO_GRADS_H

#include "param/param.h"

static inline void zero_grads(Registry *r) {
    grads_mark_unwritten(r);
    grads_zero_unwritten(r);
}

#endif
