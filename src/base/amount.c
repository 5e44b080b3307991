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

BytesText bytes_text(double bytes) {
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    enum { LAST = sizeof UNITS / sizeof *UNITS - 1 };
    const double NEXT = 1023.95; /* "%.1f" prints this number as 1024.0 */
    BytesText text;
    int unit = 0;
    for (; unit < LAST && bytes >= NEXT; unit++) bytes /= 1024;
    snprintf(text.s, sizeof text.s, unit ? "%.1f %s" : "%.0f %s", bytes, UNITS[unit]);
    return text;
}
