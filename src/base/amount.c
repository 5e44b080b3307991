#include "base/amount.h"

#include <stdio.h>
#include <string.h>

AmountText amount(int64_t n, const char *noun) {
    const size_t length = strlen(noun);
    const char *end = n == 1 ? "" : length > 2 && !strcmp(noun + length - 2, "ch") ? "es" : "s";
    AmountText text;
    snprintf(text.s, sizeof text.s, "%lld %s%s", (long long)n, noun, end);
    return text;
}
