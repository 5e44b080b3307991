/* Where and how a number was measured. A result file is meaningless without it. */
#ifndef ISOTRON_BENCH_PROVENANCE_H
#define ISOTRON_BENCH_PROVENANCE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ProvenanceFact {
    FACT_COMMIT, /* base/version.h */
    FACT_DATE,
    FACT_CPU,
    FACT_CORES, /* that this process may use */
    FACT_COMPILER,
    FACT_FLAGS,
    FACT_BLAS,      /* name, version and build options */
    FACT_BLAS_CORE, /* the processor that BLAS detected */
    FACTS
} ProvenanceFact;

typedef struct Provenance {
    char text[FACTS][160];
} Provenance;

extern const char *const PROVENANCE_NAMES[FACTS];

Provenance provenance_read(void);
/* The facts as a JSON object (json_t). */
struct json_t *provenance_json(void);

#ifdef __cplusplus
}
#endif

#endif
