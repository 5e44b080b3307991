/* Compares the speed of a device with the rate that the vendor states, and with the speeds of the other devices. */
#pragma once

#include "measure/nvml.h"
#include "validate/stage.h"

typedef struct Roof {
    const char *name, *unit;
    DType type;  /* the type of a GEMM */
    bool copy;   /* true for a copy, false for a GEMM */
    bool on_cpu; /* whether the rate is also measured on a CPU */
} Roof;

/* Adds evidence against each of the n devices whose best rate is too low. Rates are compared with the median of the n
 * devices, and with the vendor's rate `stated` unless it is 0 (unknown). The evidence includes the clocks, temperature
 * and power draw of the device. */
void roofs_judge(Outcome *, const Roof *, const double *best, const Suspect *, const NvmlLoad *, int n,
                 double stated);
