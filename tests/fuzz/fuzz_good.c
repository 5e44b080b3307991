/* Reports of a good run for `validate --good`. An accepted report must have finite rates and be
 * comparable. */
#include "fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "validate/compare.h"

static void compare(json_t *good) {
    const Config config = {.device = ON_CUDA};
    const ValidateOptions options = {.config = &config, .allow = 0.05};
    Validation a = {.options = &options, .good = good, .ranks = 2};
    ValidateRow row = {.name = "speed", .a = mem_zero(1, sizeof *row.a)};
    for (int i = 0; i < OUTCOME_ROUNDS; i++) outcome_sample(row.a, "GB/s", 1, "link 0-1");
    outcome_fact(row.a, true, "NCCL", "2.28.9");
    strcpy(row.a->transport, "NCCL 2.28.9");
    compare_with_good(&a, &row);
    for (int i = 0; i < row.a->n_evidence; i++)
        CHECK(!strstr(row.a->evidence[i].text, " than inf") && !strstr(row.a->evidence[i].text, "nan"), "%s",
              row.a->evidence[i].text);
    free(row.a);
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("good.json", bytes, n);
    json_t *good;
    const bool ok = fuzz_ok(compare_open_good(path, &good));
    if (ok) compare(good);
    json_decref(good);
    free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    static const char SEED[] =
        "{\"schema\": 1, \"verdict\": \"PASS\", \"ranks\": 2, \"device\": \"cuda\", \"stages\": [{\"name\": "
        "\"speed\", \"transport\": \"NCCL 2.28.9\", \"fingerprint\": {\"NCCL\": \"2.27.3\"}, \"metrics\": "
        "[{\"name\": \"link 0-1\", \"samples\": [2, 2, 2.5, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]}]}]}";
    corpus_add(c, SEED, sizeof SEED - 1);
}
