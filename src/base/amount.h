/* Formats amounts for messages. An amount is a count with its noun ("1 step", "2 steps", "2 batches"), or a memory size
 * in a suitable unit. */
#pragma once

#include <stdint.h>

typedef struct AmountText {
    char s[96];
} AmountText;

/* Returns a count with its noun. Use the result as a function argument: the text amount(n, "step").s is valid
 * only until the end of the full expression. */
AmountText amount(int64_t n, const char *noun);

/* A memory size in a suitable unit: "512 B", "1.5 GiB" or "12.0 TiB". The text in the result is valid until
 * the end of the full expression. */
typedef struct BytesText {
    char s[24];
} BytesText;
BytesText bytes_text(double bytes);
