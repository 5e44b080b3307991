/* Reference logits for `convert --check`. In an accepted file, tokens must be in the vocabulary and logits
 * finite. */
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

#include "base/fault.h"
#include "parity/reference.h"

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("reference.safetensors", bytes, n);
    Reference r;
    const bool ok = fuzz_ok(reference_open(path, &r));
    for (int64_t i = 0; ok && !r.of_task && i < r.batch.b * r.batch.shape.positions; i++)
        CHECK(r.batch.tokens[i] >= 0 && r.batch.tokens[i] < r.outputs, "token %lld",
              (long long)r.batch.tokens[i]);
    for (int64_t i = 0; ok && i < r.batch.b * r.rows * r.outputs; i++)
        CHECK(isfinite(r.logits[i]), "not finite");
    reference_close(&r);
    free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    char *path = fuzz_path("seed.safetensors");
    int64_t tokens[] = {0, 3, 1, 2, 2, 1};
    double logits[24];
    for (int i = 0; i < 24; i++) logits[i] = i - 12;
    SafeTensor tensors[] = {{"tokens", .tensor = tensor_make(tokens, I64, 2, (int64_t[]){2, 3})},
                            {"logits", .tensor = tensor_make(logits, F64, 3, (int64_t[]){2, 3, 4})}};
    CHECK(fuzz_ok(safetensors_write(path, tensors, 2, &(MetaText){"weights", "float32"}, 1, NULL, NULL)),
          "cannot write a seed");
    corpus_add_file(c, path);
    tensors[1].tensor = tensor_make(logits, F64, 2, (int64_t[]){2, 3}); /* of a task */
    CHECK(fuzz_ok(safetensors_write(path, tensors, 2, &(MetaText){"weights", "float32"}, 1, NULL, NULL)),
          "cannot write a seed");
    corpus_add_file(c, path);
    free(path);
}
