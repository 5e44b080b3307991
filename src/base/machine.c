#include "base/machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void unknown(char out[MACHINE_TEXT]) { strcpy(out, "unknown"); }

void machine_host(char out[MACHINE_TEXT]) {
    out[MACHINE_TEXT - 1] = 0;
    if (gethostname(out, MACHINE_TEXT - 1) || !*out) unknown(out);
}

void machine_cpu(char out[MACHINE_TEXT]) {
    static const char KEY[] = "model name";
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    unknown(out);
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (!value || strncmp(line, KEY, sizeof KEY - 1) != 0) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, MACHINE_TEXT, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f) fclose(f);
}

int machine_threads(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

void machine_cores(char out[MACHINE_TEXT]) { snprintf(out, MACHINE_TEXT, "%d", machine_threads()); }

void machine_now(char out[MACHINE_TEXT]) {
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(out, MACHINE_TEXT, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
