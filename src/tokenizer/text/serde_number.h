/* Real numbers as the `tokenizers` library reads them. Without its feature float_roundtrip, serde_json reads
 * numbers with errors of up to one unit in the last place, which can decide between splits of equal score. */
#pragma once

#include "base/str.h"

/* Finds the real numbers of a JSON text that serde_json reads as another value, and replaces them by that
 * value with 18 digits, which every correct reader converts exactly. Malformed and infinite numbers are left
 * unchanged. */
void serde_numbers(Str *json);
