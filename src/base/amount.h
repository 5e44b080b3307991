/* Formats amounts for messages: a count with its noun ("1 step", "2 steps", "2 batches"), or bytes in a
 * suitable unit. */
#pragma once

#include <stdint.h>

typedef struct AmountText {
    char s[96];
} AmountText;

/* Use it as an argument of a call: the text amount(n, "step").s is valid until the end of the full
 * expression. */
AmountText amount(int64_t n, const char *noun);

/* An amount of memory in a suitable unit: "512 B", "1.5 GiB" or "12.0 TiB". It is valid as long as an
 * AmountText. */
typedef struct BytesText {
    char s[24];
} BytesText;
BytesText bytes_text(double bytes);
