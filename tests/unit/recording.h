/* Defines the microbatch of a test that runs a backward pass. */
#pragma once

#include "tape/tape.h"

static const MicrobatchContext RECORDING = {.recording = true, .training = true, .aux_scale = 1};
