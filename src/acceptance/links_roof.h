/* The rate that the links between GPUs can have, from what NVML tells, and whether collectives reach enough of it. */
#ifndef ISOTRON_ACCEPTANCE_LINKS_ROOF_H
#define ISOTRON_ACCEPTANCE_LINKS_ROOF_H

#include <stddef.h>

#include "acceptance/nvml.h"
#include "acceptance/outcome.h"

typedef enum RoofKind { ROOF_NOT_KNOWN, ROOF_PCIE, ROOF_NVLINK } RoofKind;

typedef struct LinksRoof {
    RoofKind kind;
    double rate;     /* GB/s in each direction, of the best rank; 0: not known */
    int weakest;     /* the rank with the lowest rate; -1: all have this one */
    char of[80];     /* "18 NVLinks of 25 GB/s" */
    const char *why; /* it is not known */
} LinksRoof;

/* facts [n]: of the ranks. all_linked: that of nvml_all_linked. devices: GPUs that the process sees. */
LinksRoof links_roof(const NvmlFacts *facts, int n, bool all_linked, int devices);

/* Whether the whole interval of the median of a bus bandwidth is below half of NVLink's roof. A copy without a
 * protocol reaches more than nine tenths of the rate of a link, and NCCL's rings three quarters and more. So a
 * GPU whose links have half their rate, or half of whose links are lost, is below, and a healthy one has a
 * margin of a third. PCIe has no such bound: traffic may cross bridges, the host's memory and both processors. */
bool links_are_slow(const LinksRoof *, const Metric *busbw);
/* "78 % of 450 GB/s, 18 NVLinks of 25 GB/s"; empty if the roof is not known. */
void links_share(const LinksRoof *, const Metric *busbw, char *out, size_t n);

#endif
