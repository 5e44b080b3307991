/* Rates files for `plan --rates`. Accepted rates must predict finite times. */
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

#include "base/fault.h"
#include "measure/rates.h"

static void predict(const Rates *r, OpNumber op, int64_t side) {
    Tensor x = tensor_make(NULL, F32, 2, (int64_t[]){side, side});
    RateSource source;
    const double ns = rates_time(r, &OPS[op], &(Call){.in = {&x, &x}, .out = {&x}}, &source);
    CHECK(ns >= 0 && !isnan(ns), "a prediction is not a time");
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("rates.json", bytes, n);
    Rates r;
    const bool ok = fuzz_ok(rates_read(path, &r));
    for (int64_t side = 1; ok && side <= 4096; side *= 8)
        predict(&r, OP_linear, side), predict(&r, OP_add, side);
    rates_free(&r);
    free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    static const char SEED[] =
        "{\"rates_version\": 1, \"device\": \"CPU (1 thread)\", \"tile\": 8, \"launch_us\": 0, \"roofs\": "
        "{\"copy_gbytes\": 9, "
        "\"gemm_gflops\": {\"F32\": 50}}, \"provenance\": {\"date\": \"2026-12-01\"}, \"rates\": [{\"op\": "
        "\"linear F32\", "
        "\"size\": [64, 64, 64], \"us\": 9}, {\"op\": \"linear F32\", \"size\": [512, 64, 64], \"us\": 70}, "
        "{\"op\": "
        "\"add F32\", \"size\": [4096], \"us\": 1}, {\"op\": \"add F32\", \"size\": [65536], \"us\": 8}]}";
    corpus_add(c, SEED, sizeof SEED - 1);
}
