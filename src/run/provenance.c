#include "run/provenance.h"

#include <cblas.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/version.h"

const char *const PROVENANCE_NAMES[FACTS] = {
    [FACT_VERSION] = "version",
    [FACT_COMMIT] = "commit",
    [FACT_DATE] = "date",
    [FACT_HOST] = "host",
    [FACT_CPU] = "cpu",
    [FACT_CORES] = "cores",
    [FACT_COMPILER] = "compiler",
    [FACT_FLAGS] = "flags",
    [FACT_DEVICES] = "devices",
    [FACT_BLAS] = "blas",
    [FACT_BLAS_CORE] = "blas_core",
};

Provenance provenance_read(void) {
    Provenance p;
    machine_now(p.text[FACT_DATE]);
    machine_host(p.text[FACT_HOST]);
    machine_cpu(p.text[FACT_CPU]);
    machine_cores(p.text[FACT_CORES]);
    const struct {
        ProvenanceFact fact;
        const char *text;
    } OTHERS[] = {{FACT_VERSION, isotron_version()},        {FACT_COMMIT, isotron_commit()},
                  {FACT_COMPILER, isotron_compiler()},      {FACT_FLAGS, isotron_flags()},
                  {FACT_DEVICES, isotron_devices()},        {FACT_BLAS, openblas_get_config()},
                  {FACT_BLAS_CORE, openblas_get_corename()}};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        snprintf(p.text[OTHERS[i].fact], MACHINE_TEXT, "%s", OTHERS[i].text);
    return p;
}

int64_t provenance_threads(const Provenance *p, int64_t n) {
    return n > 0 ? n : strtoll(p->text[FACT_CORES], NULL, 10);
}

void provenance_print(const Provenance *p, const char *threads, Str *out) {
    str_printf(out, "isotron %s, commit %s, %s, %s (cores: %s), BLAS core %s, threads per rank: %s\n",
               p->text[FACT_VERSION], p->text[FACT_COMMIT], p->text[FACT_HOST], p->text[FACT_CPU],
               p->text[FACT_CORES], p->text[FACT_BLAS_CORE], threads);
}

json_t *provenance_json(void) {
    const Provenance p = provenance_read();
    json_t *facts = json_object();
    for (int i = 0; i < FACTS; i++) json_object_set_new(facts, PROVENANCE_NAMES[i], json_string(p.text[i]));
    return facts;
}
