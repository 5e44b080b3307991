/* The one component that explains most of the findings, so that a long list of suspects ends in one repair. */
#ifndef ISOTRON_ACCEPTANCE_CONCLUSION_H
#define ISOTRON_ACCEPTANCE_CONCLUSION_H

#include "acceptance/acceptance.h"

/* "GPU 1 (rank 1) explains 14 of 15 findings; another process holds it: python3 (pid 4711)". Findings are evidence
 * that is DEGRADED or worse. A rank explains what names it, and its links; a link what names it; a library what names
 * NCCL; the host what the inventory found outside of ranks. Each of them explains what concerns all ranks, such as a
 * slow all-reduce, if another finding names it. Ties are named. Empty: there are no findings. */
void conclusion_of(const Acceptance *, Str *out);

#endif
