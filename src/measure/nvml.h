/* Reads the state of a GPU with NVIDIA's management library (NVML), which is libnvidia-ml.so.1 in the driver. The
 * library is loaded at run time. The declarations follow NVML's API reference; its ABI is stable. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { NVML_PROCESSES = 8 };
typedef struct NvmlProcess {
    unsigned pid; /* process id as the driver sees it; the id inside a container differs */
    char name[40];
} NvmlProcess;

typedef struct NvmlFacts {
    bool known; /* whether the library and the GPU were found; if not, all other fields are 0 */
    char driver[80], throttled[120];
    unsigned sm_mhz, sm_most_mhz, memory_mhz, celsius, width, most_width; /* width: number of PCIe lanes */
    double watts, limit_watts;
    bool ecc, remap_pending, remap_failed;
    uint64_t uncorrected; /* number of ECC errors since the driver was loaded */
    /* nvlinks: number of active NVLinks; switched: number of active NVLinks that lead to an NVSwitch */
    int nvlinks, switched;
    int sm;          /* 90 means compute capability 9.0; 0 if it is unknown */
    int n_processes; /* number of compute processes, or 0 if the driver does not report the number */
    NvmlProcess process[NVML_PROCESSES];
    unsigned pcie; /* the highest generation that both the GPU and its slot support, or 0 if it is unknown */
} NvmlFacts;

/* Reads the state of the GPU with this UUID. */
void nvml_read(const unsigned char id[16], NvmlFacts *);

/* A GPU's clocks, temperature and power, measured while it was busy. */
typedef struct NvmlLoad {
    bool known;
    unsigned sm_mhz;  /* lowest clock */
    unsigned celsius; /* highest temperature */
    double watts;     /* highest value of NVML's one-second average */
    double mean_mhz, mean_watts;
    char limits[120]; /* reasons why the clock was lowered, including the power limit */
} NvmlLoad;

typedef struct NvmlWatch NvmlWatch;
/* Starts a thread that reads the GPU with this UUID every `period_ms`. Returns NULL if the thread cannot be
 * started or the GPU cannot be read. */
NvmlWatch *nvml_watch(const unsigned char id[16], int period_ms);
/* Ends and frees the watch, which may be NULL. */
NvmlLoad nvml_watch_end(NvmlWatch *);

/* Returns whether NVLink connects all pairs of these n GPUs on this host. Returns false if this is unknown. */
bool nvml_all_linked(const unsigned char (*ids)[16], int n);
