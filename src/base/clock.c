#include "base/clock.h"

#include <stdio.h>
#include <time.h>

int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void clock_stamp(char out[32]) {
    struct timespec t;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &t);
    localtime_r(&t.tv_sec, &local);
    size_t n = strftime(out, 32, "%Y-%m-%d %H:%M:%S", &local);
    snprintf(out + n, 32 - n, ".%06ld", t.tv_nsec / 1000);
}
