/* The rates of the HTML page: a table, with a bar for each rate that has a roof or that the good run has, too. */
#ifndef ISOTRON_ACCEPTANCE_RATES_PAGE_H
#define ISOTRON_ACCEPTANCE_RATES_PAGE_H

#include "acceptance/acceptance.h"

void rates_page(const Acceptance *, Str *out);

#endif
