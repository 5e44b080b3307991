#include "bench/provenance.h"

#include <cblas.h>
#include <jansson.h>
#include <stdio.h>

#include "base/version.h"

const char *const PROVENANCE_NAMES[FACTS] = {
    [FACT_COMMIT] = "commit", [FACT_DATE] = "date",           [FACT_CPU] = "cpu",
    [FACT_CORES] = "cores",   [FACT_COMPILER] = "compiler",   [FACT_FLAGS] = "flags",
    [FACT_BLAS] = "blas",     [FACT_BLAS_CORE] = "blas_core",
};

Provenance provenance_read(void) {
    Provenance p;
    snprintf(p.text[FACT_COMMIT], MACHINE_TEXT, "%s", isotron_commit());
    machine_now(p.text[FACT_DATE]);
    machine_cpu(p.text[FACT_CPU]);
    machine_cores(p.text[FACT_CORES]);
    snprintf(p.text[FACT_COMPILER], MACHINE_TEXT, "%s", isotron_compiler());
    snprintf(p.text[FACT_FLAGS], MACHINE_TEXT, "%s", isotron_flags());
    snprintf(p.text[FACT_BLAS], MACHINE_TEXT, "%s", openblas_get_config());
    snprintf(p.text[FACT_BLAS_CORE], MACHINE_TEXT, "%s", openblas_get_corename());
    return p;
}

json_t *provenance_json(void) {
    const Provenance p = provenance_read();
    json_t *facts = json_object();
    for (int i = 0; i < FACTS; i++) json_object_set_new(facts, PROVENANCE_NAMES[i], json_string(p.text[i]));
    return facts;
}
