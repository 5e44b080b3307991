/* Computes the roof (the highest possible rate) of the links between GPUs from NVML's facts, and checks that the rates
 * of collectives are close enough to the roof. */
#pragma once

#include <stddef.h>

#include "measure/nvml.h"
#include "validate/outcome.h"

typedef enum RoofKind { ROOF_NOT_KNOWN, ROOF_PCIE, ROOF_NVLINK } RoofKind;

typedef struct LinksRoof {
    RoofKind kind;
    /* GB/s in each direction, or 0 if the rate is unknown. rate: the highest rate of all ranks; of_pair: the
     * rate between two ranks. A pair can use all links of a GPU only through switches or in a world of two
     * ranks. */
    double rate, of_pair;
    int weakest;     /* the rank with the lowest rate, or -1 if all ranks have the same rate */
    char of[80];     /* "18 NVLinks of 25 GB/s" */
    const char *why; /* the reason why the rate is not known, or NULL if it is known */
} LinksRoof;

/* `facts` [n] has an entry for each rank, all_linked is the result of nvml_all_linked, and `devices` is the
 * number of GPUs that the process sees. */
LinksRoof links_roof(const NvmlFacts *facts, int n, bool all_linked, int devices);

/* Returns whether the entire confidence interval of the median bus bandwidth is below 45 % of NVLink's roof.
 * With 256 MiB, NCCL reaches between 54 % (all-gather on two H100) and 75 % (all-reduce on four H100). If links
 * run at half their rate, or half of the links are lost, at most 40 % is possible. There is no such bound for
 * PCIe, because traffic may cross bridges, host memory and both processors. */
bool links_are_slow(const LinksRoof *, const Metric *busbw);
/* If NVLink determines the roof, but there are too few samples to judge the links, records slow links as not
 * certified. */
void links_limit_samples(const LinksRoof *, const Metric *busbw, const char *collective, Outcome *);
/* Formats "78 % of 450 GB/s, 18 NVLinks of 25 GB/s". The text is empty if the roof is not known. */
void links_share(const LinksRoof *, const Metric *busbw, char *out, size_t n);
