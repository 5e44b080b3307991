/* Finds the component that explains the most findings, so that a long list of suspects leads to one repair. */
#pragma once

#include "validate/validate.h"

/* Appends a conclusion such as "GPU 1 (rank 1) explains 14 of 15 findings; another process holds it: python3
 * (pid 4711)". A finding is evidence with a verdict of DEGRADED or worse. A rank explains the findings that
 * name the rank or one of its links. A link explains the findings that name the link. A library explains the
 * findings that name NCCL. The host explains those findings of the inventory stage that do not name a rank. A
 * finding about all ranks, such as a slow all-reduce, is explained by every component that another finding
 * names. In a tie, all components are listed. The text is empty if there are no findings. */
void conclusion_of(const Validation *, Str *out);
