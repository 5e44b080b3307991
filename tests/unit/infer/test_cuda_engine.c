/* Tests the engine on a GPU (engine_alone.h). Skipped without a GPU. */
#include "unit/gpu_main.h"

#include <stdio.h>

#include "unit/infer/engine_alone.h"

static Device *gpu(void) {
    Device *d;
    assert_ok(device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .threads = 1}, &d));
    return d;
}

TEST(results_are_bitwise_those_of_a_request_alone) { assert_results_are_those_of_a_request_alone(gpu, 2000); }
