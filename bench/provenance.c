#include "bench/provenance.h"

#include <cblas.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/version.h"

const char *const PROVENANCE_NAMES[FACTS] = {
    [FACT_COMMIT] = "commit", [FACT_DATE] = "date",           [FACT_CPU] = "cpu",
    [FACT_CORES] = "cores",   [FACT_COMPILER] = "compiler",   [FACT_FLAGS] = "flags",
    [FACT_BLAS] = "blas",     [FACT_BLAS_CORE] = "blas_core",
};

/* The text after the colon of the first line that begins with `key`. */
static void read_line(FILE *f, const char *key, char out[160]) {
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key))) continue;
        const char *value = strchr(line, ':');
        if (!value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, 160, "%.*s", (int)strcspn(value, "\n"), value);
        return;
    }
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
    snprintf(p.text[FACT_COMMIT], sizeof p.text[FACT_COMMIT], "%s", isotron_commit());
    strftime(p.text[FACT_DATE], sizeof p.text[FACT_DATE], "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    cpu(p.text[FACT_CPU]);
    if (!sched_getaffinity(0, sizeof set, &set))
        snprintf(p.text[FACT_CORES], sizeof p.text[FACT_CORES], "%d", CPU_COUNT(&set));
    snprintf(p.text[FACT_COMPILER], sizeof p.text[FACT_COMPILER], "%s", isotron_compiler());
    snprintf(p.text[FACT_FLAGS], sizeof p.text[FACT_FLAGS], "%s", isotron_flags());
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
