/* Numbers with their nouns in messages: "1 step", "2 steps", "2 batches". */
#ifndef ISOTRON_BASE_AMOUNT_H
#define ISOTRON_BASE_AMOUNT_H

#include <stdint.h>

typedef struct AmountText {
    char s[96];
} AmountText;

/* As an argument of a call: amount(n, "step").s lives until the end of the full expression. */
AmountText amount(int64_t n, const char *noun);

#endif
