/* Files for `plan --links`. Accepted links must predict finite times. */
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

#include "base/fault.h"
#include "measure/links.h"

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("links.json", bytes, n);
    Links l = {.n = 0};
    const bool ok = fuzz_ok(links_read(path, &l));
    for (int members = 2; ok && members <= 4096; members *= 4)
        for (int kind = 0; kind < COMM_KINDS; kind++) {
            const double ns = links_time(&l, (CommKind)kind, 1e6, members, 8);
            CHECK(ns >= 0 && isfinite(ns), "a prediction is not a time");
        }
    links_free(&l);
    free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    static const char SEED[] = "{\"links\": [{\"kind\": \"all_reduce\", \"members\": 4, \"per_host\": 4, "
                               "\"bytes\": 1024, \"us\": 9}, {\"kind\": "
                               "\"all_reduce\", \"members\": 16, \"per_host\": 8, \"bytes\": 1048576, "
                               "\"us\": 90}, {\"kind\": \"to_host\", "
                               "\"members\": 1, \"per_host\": 1, \"bytes\": 1048576, \"us\": 30}]}";
    corpus_add(c, SEED, sizeof SEED - 1);
    corpus_add_file(c, "bench/rates/hgx-h100-ndr400.json");
    corpus_add_file(c, "bench/results/gpu-comm-2.json");
    corpus_add_file(c, "bench/results/gpu-comm-4.json");
}
