/* Writes the HTML page's table of rates. A rate has a bar if its roof is known, or its value in the good
 * run. */
#pragma once

#include "validate/validate.h"

void rates_page(const Validation *, Str *out);
