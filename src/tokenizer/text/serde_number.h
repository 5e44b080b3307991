/* Reads real numbers as the `tokenizers` library does. The library uses serde_json without the feature float_roundtrip,
 * so numbers have errors of up to one unit in the last place. Such errors can decide between splits with equal
 * scores. */
#pragma once

#include "base/str.h"

/* Replaces each real number in a JSON text that serde_json reads as a different value. The new text is that value with
 * 18 digits, which every correct reader converts exactly. Malformed and infinite numbers are left unchanged. */
void serde_numbers(Str *json);
