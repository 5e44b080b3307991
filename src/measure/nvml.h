/* The state of a GPU as reported by NVIDIA's management library (libnvidia-ml.so.1, part of the driver). It
 * is loaded at run time; the declarations follow NVML's API reference, whose ABI is stable. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { NVML_PROCESSES = 8 };
typedef struct NvmlProcess {
    unsigned pid; /* as the driver sees it: not that of a container */
    char name[40];
} NvmlProcess;

typedef struct NvmlFacts {
    bool known; /* false: the library or the GPU was not found, and all other fields are 0 */
    char driver[80], throttled[120];
    unsigned sm_mhz, sm_most_mhz, memory_mhz, celsius, width, most_width; /* width: PCIe lanes */
    double watts, limit_watts;
    bool ecc, remap_pending, remap_failed;
    uint64_t uncorrected;  /* ECC errors since the driver was loaded */
    int nvlinks, switched; /* NVLinks that are up; those of them that lead to an NVSwitch */
    int sm;                /* 90: compute capability 9.0; 0: not known */
    int n_processes;       /* that compute on the GPU; 0 also if the driver does not report it */
    NvmlProcess process[NVML_PROCESSES];
    unsigned pcie; /* the highest generation that both the GPU and its slot support; 0: not known */
} NvmlFacts;

/* Reads the GPU with this UUID. */
void nvml_read(const unsigned char id[16], NvmlFacts *);

/* A GPU while it was not idle. */
typedef struct NvmlLoad {
    bool known;
    unsigned sm_mhz;  /* lowest */
    unsigned celsius; /* highest */
    double watts;     /* highest, of NVML's average over a second */
    double mean_mhz, mean_watts;
    char limits[120]; /* what lowered the clock, including the power limit */
} NvmlLoad;

typedef struct NvmlWatch NvmlWatch;
/* Starts a thread that reads the GPU with this UUID every `period_ms`. NULL if that is not possible. */
NvmlWatch *nvml_watch(const unsigned char id[16], int period_ms);
/* Ends and frees the watch. NULL is allowed. */
NvmlLoad nvml_watch_end(NvmlWatch *);

/* Whether all pairs of these n GPUs of this host reach each other through NVLink. False if it is not known. */
bool nvml_all_linked(const unsigned char (*ids)[16], int n);
