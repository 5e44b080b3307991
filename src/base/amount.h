/* Numbers in messages: with their nouns ("1 step", "2 steps", "2 batches"), or bytes in a unit. */
#pragma once

#include <stdint.h>

typedef struct AmountText {
    char s[96];
} AmountText;

/* For use as a call's argument: amount(n, "step").s is valid until the end of the full expression. */
AmountText amount(int64_t n, const char *noun);

/* An amount of memory in the unit that suits it, "512 B", "1.5 GiB" or "12.0 TiB"; lives as long as an AmountText. */
typedef struct BytesText {
    char s[24];
} BytesText;
BytesText bytes_text(double bytes);
