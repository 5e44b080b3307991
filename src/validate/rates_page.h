/* Writes the HTML page's table of rates. A rate has a bar if its roof or its value in the good run is
 * known. */
#pragma once

#include "validate/validate.h"

void rates_page(const Validation *, Str *out);
