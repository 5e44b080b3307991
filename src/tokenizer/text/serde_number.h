/* Reads real numbers as the `tokenizers` library does. The library uses serde_json without the feature
 * float_roundtrip, so numbers have errors of up to one unit in the last place. Rounding errors can decide
 * between two segmentations whose exact scores are equal. */
#pragma once

#include "base/str.h"

/* In a JSON text, replaces each real number that serde_json reads inexactly with the value that serde_json reads. The
 * replacement has 18 digits, which every correct reader converts to exactly this value. Malformed and infinite numbers
 * are left unchanged. */
void serde_numbers(Str *json);
