#include "bench/head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "run/provenance.h"

json_t *bench_head(const char *bench, const char *device, int ranks, const char *transport, int threads) {
    return json_pack("{s:s, s:o, s:s, s:i, s:s, s:i}", "bench", bench, "provenance", provenance_json(),
                     "device", device, "ranks", ranks, "transport", transport, "threads", threads);
}

const char *bench_transport(const Comm *c, const char *transport, char text[BENCH_TRANSPORT]) {
    const char *how = comm_processes() > 1 ? "processes" : "threads";
    snprintf(text, BENCH_TRANSPORT, c ? "%s, %s" : "none", transport, how);
    return text;
}

Err bench_filter(const char *filter, regex_t *out) {
    char why[120];
    const int e = regcomp(out, filter ? filter : "", REG_EXTENDED | REG_NOSUB);
    if (!e) return ERR_OK;
    regerror(e, out, why, sizeof why);
    return err_user("--filter %s: %s", filter, why);
}

Err bench_filter_unmatched(const char *filter) {
    return err_user("--filter %s: no op has a matching name; without --filter, all ops are measured", filter);
}

Err bench_write(const char *path, const json_t *result) {
    if (!path) return ERR_OK;
    char *text = json_dumps(result, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    const Err e = file_write_atomic(path, text, strlen(text));
    free(text);
    return e;
}
