/* Describes the program, the machine and the build that computed or measured a number. A report without its
 * provenance is meaningless. */
#pragma once

#include <stdint.h>

#include "base/machine.h"
#include "base/str.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ProvenanceFact {
    FACT_VERSION, /* see base/version.h */
    FACT_COMMIT,
    FACT_DATE,
    FACT_HOST,
    FACT_CPU,
    FACT_CORES, /* the number of cores that this process may use */
    FACT_COMPILER,
    FACT_FLAGS,
    FACT_DEVICES,
    FACT_BLAS,      /* the name, version and build options of BLAS */
    FACT_BLAS_CORE, /* the processor that BLAS detected */
    FACTS
} ProvenanceFact;

typedef struct Provenance {
    char text[FACTS][MACHINE_TEXT];
} Provenance;

extern const char *const PROVENANCE_NAMES[FACTS];

Provenance provenance_read(void);
/* Returns the number of threads per rank for --cpu-threads n. 0 means one thread per core. */
int64_t provenance_threads(const Provenance *, int64_t n);
/* Appends a line with the version, commit, machine, BLAS core and threads. `threads` is the number of threads
 * per rank, as text. */
void provenance_print(const Provenance *, const char *threads, Str *out);
/* Returns the provenance as a JSON object (json_t). */
struct json_t *provenance_json(void);

#ifdef __cplusplus
}
#endif
