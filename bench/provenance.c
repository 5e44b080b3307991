#include "bench/provenance.h"

#include <cblas.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const PROVENANCE_NAMES[FACTS] = {
    [FACT_COMMIT] = "commit", [FACT_DATE] = "date",           [FACT_CPU] = "cpu",
    [FACT_CORES] = "cores",   [FACT_COMPILER] = "compiler",   [FACT_FLAGS] = "flags",
    [FACT_BLAS] = "blas",     [FACT_BLAS_CORE] = "blas_core",
};

/* The first line that begins with `key`, without it and without ": "; all of the first line for "". */
static void read_line(FILE *f, const char *key, char out[160]) {
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key))) continue;
        const char *value = *key ? strchr(line, ':') : line;
        value = value && *key ? value + 1 : value;
        if (!value) continue;
        value += strspn(value, " \t");
        snprintf(out, 160, "%.*s", (int)strcspn(value, "\n"), value);
        return;
    }
}

static void commit(char out[160]) {
    const char *known = getenv("BENCH_COMMIT"); /* of a program that was copied away from its repository */
    if (known) {
        snprintf(out, 160, "%s", known);
        return;
    }
    FILE *f = popen("git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null", "r");
    read_line(f, "", out);
    if (f) pclose(f);
}

static void cpu(char out[160]) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    read_line(f, "model name", out);
    if (f) fclose(f);
}

Provenance provenance_read(void) {
    Provenance p;
    cpu_set_t set;
    time_t now = time(NULL);
    for (int i = 0; i < FACTS; i++) strcpy(p.text[i], "unknown");
    commit(p.text[FACT_COMMIT]);
    strftime(p.text[FACT_DATE], sizeof p.text[FACT_DATE], "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    cpu(p.text[FACT_CPU]);
    if (!sched_getaffinity(0, sizeof set, &set))
        snprintf(p.text[FACT_CORES], sizeof p.text[FACT_CORES], "%d", CPU_COUNT(&set));
    snprintf(p.text[FACT_COMPILER], sizeof p.text[FACT_COMPILER], "%s", BENCH_COMPILER);
    snprintf(p.text[FACT_FLAGS], sizeof p.text[FACT_FLAGS], "%s", BENCH_FLAGS);
    snprintf(p.text[FACT_BLAS], sizeof p.text[FACT_BLAS], "%s", openblas_get_config());
    snprintf(p.text[FACT_BLAS_CORE], sizeof p.text[FACT_BLAS_CORE], "%s", openblas_get_corename());
    return p;
}

json_t *provenance_json(void) {
    const Provenance p = provenance_read();
    json_t *facts = json_object();
    for (int i = 0; i < FACTS; i++) json_object_set_new(facts, PROVENANCE_NAMES[i], json_string(p.text[i]));
    return facts;
}
