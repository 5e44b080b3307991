/* The main function of a test program that needs a GPU. Without one, the exit status is 77. */
#pragma once

#include <stdio.h>

#include "unit/cmocka_all.h"

#include "tensor/device.h"

int main(void) {
    Device *d;
    const Err e = device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .threads = 1}, &d);
    if (e.code) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    device_free(d);
    return run_all_tests(NULL, NULL);
}
