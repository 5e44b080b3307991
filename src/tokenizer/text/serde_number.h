/* Real numbers as tokenizers reads them: serde_json without its feature float_roundtrip is up to a unit in the last
 * place off, which decides between splits of equal score. */
#pragma once

#include "base/str.h"

/* Replaces each real number of a JSON text that serde_json reads as another value by that value, in digits that every
 * correct reader converts to it. Malformed and infinite numbers stay. */
void serde_numbers(Str *json);
