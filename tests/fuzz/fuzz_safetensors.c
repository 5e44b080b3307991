/* Weights. The input is a .safetensors file or, if it begins with {, the index of a folder whose only file is
 * correct. The target reads every byte of every tensor. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "ckpt/safetensors.h"

static const double VALUES[12] = {1, 2, 3};
static const MetaText FORMAT = {"format", "pt"};

static Err write_valid(const char *path) {
    SafeTensor tensors[] = {
        {"a.weight",
         .tensor = {.dtype = F64, .ndim = 2, .dim = {2, 3}, .stride = {3, 1}, .data = (void *)VALUES}},
        {"b.bias", .tensor = {.dtype = F32, .ndim = 1, .dim = {5}, .stride = {1}, .data = (void *)VALUES}},
        {"c",
         .tensor = {.dtype = BF16, .ndim = 3, .dim = {1, 0, 2}, .stride = {0, 2, 1}, .data = (void *)VALUES}},
    };
    return safetensors_write(path, tensors, 3, &FORMAT, 1, NULL, NULL);
}

static unsigned read_all(const Safetensors *s) {
    unsigned sum = 0;
    for (int64_t i = 0; i < s->num_metadata; i++)
        sum += (unsigned)(strlen(s->metadata[i].key) + strlen(s->metadata[i].value));
    for (int64_t i = 0; i < s->count; i++) {
        const Tensor *t = &s->tensors[i].tensor;
        const unsigned char *bytes = t->data;
        for (size_t k = 0; k < tensor_bytes(t); k++) sum += bytes[k];
        CHECK(safetensors_find(s, s->tensors[i].name) == t, "%s is not found by its name",
              s->tensors[i].name);
    }
    return sum;
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    bool index = n && bytes[0] == '{';
    char *weights = index ? fuzz_path("model.safetensors") : fuzz_file("a.safetensors", bytes, n);
    char *path = index ? fuzz_file("model.safetensors.index.json", bytes, n) : weights;
    if (index) CHECK(fuzz_ok(write_valid(weights)), "cannot write the right file");
    Safetensors *s;
    bool ok = fuzz_ok(safetensors_open(path, &s));
    if (ok) {
        volatile unsigned sum = read_all(s);
        (void)sum;
        safetensors_close(s);
    }
    if (index) free(path);
    free(weights);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    char *path = fuzz_path("seed.safetensors");
    CHECK(fuzz_ok(write_valid(path)), "cannot write a seed");
    corpus_add_file(c, path);
    CHECK(fuzz_ok(safetensors_write(path, NULL, 0, NULL, 0, NULL, NULL)), "cannot write a seed");
    corpus_add_file(c, path);
    free(path);
    static const char index[] =
        "{\"metadata\": {\"total_size\": 68}, \"weight_map\": {\"a.weight\": \"model.safetensors\", "
        "\"b.bias\": \"model.safetensors\", \"c\": \"model.safetensors\"}}\n";
    corpus_add(c, index, sizeof index - 1);
}
