/* Indexed datasets. The input is the size of the .bin file (u16) and an .idx file. If the dataset can be
 * opened, the target reads all of it, and makes the samples of a masked dataset from it. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "data/masked_index.h"

static void read_all(const IndexedDataset *d) {
    for (int64_t i = 0; i <= d->documents; i++) indexed_document(d, i);
    for (int64_t i = 0; i < d->sequences; i++) {
        int32_t length = indexed_length(d, i);
        if (indexed_dtype_is_float(d->dtype)) {
            indexed_items(d, i, 0, length);
            continue;
        }
        int64_t *tokens = mem_alloc(sizeof *tokens * (size_t)length + 1);
        indexed_tokens(d, i, 0, length, tokens);
        if (length) indexed_tokens(d, i, length - 1, 1, tokens);
        free(tokens);
    }
}

/* Checks that the sentences of all samples are inside the dataset. */
static void make_samples(const char *prefix) {
    TokenSource source;
    CHECK(fuzz_ok(source_open(prefix, (MockShape){0}, 1, 0, &source)), "it cannot be opened again");
    MaskedPlan p = {.source = &source,
                    .end = source.documents,
                    .num_samples = 20,
                    .max_length = 6,
                    .min_sentences = 1,
                    .short_probability = 0.1};
    if (fuzz_ok(masked_plan(&p))) {
        NpyArray a = masked_index_build(&p);
        CHECK(masked_index_valid(&p, &a), "samples outside of the dataset");
        npy_free(&a);
    }
    source_close(&source);
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    uint16_t bin_size = 0;
    memcpy(&bin_size, bytes, n < sizeof bin_size ? n : sizeof bin_size);
    size_t header = n < sizeof bin_size ? n : sizeof bin_size;
    uint8_t *bin = mem_zero(bin_size + 1u, 1);
    char *prefix = fuzz_path("d"), *idx_path = fuzz_file("d.idx", bytes + header, n - header);
    char *bin_path = fuzz_file("d.bin", bin, bin_size);
    IndexedDataset d;
    bool ok = fuzz_ok(indexed_open(prefix, &d));
    if (ok) {
        read_all(&d);
        if (!indexed_dtype_is_float(d.dtype)) make_samples(prefix);
        indexed_close(&d);
    }
    free(prefix), free(idx_path), free(bin_path), free(bin);
    return ok;
}

static void seed(Corpus *c, IndexedDtype dtype, bool modes, int documents) {
    char *prefix = fuzz_path("seed");
    IndexedBuilder *b;
    CHECK(fuzz_ok(indexed_builder_open(prefix, dtype, &b)), "cannot build a seed");
    const uint64_t items[9] = {0};
    for (int doc = 0; doc < documents; doc++) {
        for (int sequence = 0; sequence < doc % 3; sequence++) {
            CHECK(fuzz_ok(indexed_builder_add(b, items, 1 + (doc + sequence) % 9)), "cannot build a seed");
            if (modes) indexed_builder_set_mode(b, (int8_t)sequence);
        }
        indexed_builder_end_document(b);
    }
    CHECK(fuzz_ok(indexed_builder_finalize(b)), "cannot build a seed");
    char *idx = mem_printf("%s.idx", prefix), *bin = mem_printf("%s.bin", prefix);
    uint16_t bin_size = (uint16_t)file_size(bin);
    Str s = {0};
    str_add(&s, &bin_size, sizeof bin_size);
    CHECK(fuzz_ok(file_read(idx, &s)), "cannot read a seed");
    corpus_add(c, s.s, s.len);
    str_free(&s), free(idx), free(bin), free(prefix);
}

void fuzz_seeds(Corpus *c) {
    seed(c, INDEXED_U16, false, 5);
    seed(c, INDEXED_I32, true, 12);
    seed(c, INDEXED_I64, false, 40);
    seed(c, INDEXED_F32, false, 3);
}
