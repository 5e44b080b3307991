/* The microbatch of a test that runs a backward. */
#ifndef ISOTRON_TESTS_RECORDING_H
#define ISOTRON_TESTS_RECORDING_H

#include "tape/tape.h"

static const MicrobatchContext RECORDING = {.recording = true, .training = true, .aux_scale = 1};

#endif
