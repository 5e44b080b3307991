/* The table of rates in the HTML page. A rate has a bar if its roof or its rate in the good run is known. */
#ifndef ISOTRON_ACCEPTANCE_RATES_PAGE_H
#define ISOTRON_ACCEPTANCE_RATES_PAGE_H

#include "acceptance/acceptance.h"

void rates_page(const Acceptance *, Str *out);

#endif
