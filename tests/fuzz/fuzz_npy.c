/* Index caches. The input is an .npy file. It is read alone, then as each of the three indices of a small
 * dataset whose other two are correct, and as the index of a masked dataset. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/str.h"
#include "data/gpt_index.h"
#include "data/masked_index.h"

enum { SAMPLES = 40, SEQUENCE = 512, SEQUENCES = 60, VOCAB = 100 };

static void plan(TokenSource *source, GptPlan *p) {
    CHECK(fuzz_ok(source_open(NULL, (MockShape){4096, 1}, VOCAB, 1, source)), "no mock data");
    CHECK(fuzz_ok(gpt_plan(source, 0, SEQUENCES, SAMPLES, SEQUENCE, true, p)), "no plan");
}

static MaskedPlan masked_plan_of(const TokenSource *source) {
    MaskedPlan p = {
        .source = source, .end = SEQUENCES, .num_samples = SAMPLES, .max_length = 60, .min_sentences = 1};
    CHECK(fuzz_ok(masked_plan(&p)), "no plan");
    return p;
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("a.npy", bytes, n);
    NpyArray a;
    bool ok = fuzz_ok(npy_open(path, &a));
    if (ok) {
        for (int64_t i = 0; a.columns == 0 && i < a.rows; i++) npy_at(&a, i);
        TokenSource source;
        GptPlan p;
        plan(&source, &p);
        GptIndex right = gpt_index_build(&p, 1);
        GptIndex planted[] = {{a, right.sample, right.shuffle},
                              {right.document, a, right.shuffle},
                              {right.document, right.sample, a}};
        for (int i = 0; i < 3; i++) gpt_index_valid(&p, &planted[i]);
        const MaskedPlan m = masked_plan_of(&source);
        masked_index_valid(&m, &a);
        gpt_index_free(&right), source_close(&source), npy_free(&a);
    }
    free(path);
    return ok;
}

static void seed(Corpus *c, const NpyArray *a) {
    char *path = fuzz_path("seed.npy");
    CHECK(fuzz_ok(npy_save(path, a)), "cannot write a seed");
    corpus_add_file(c, path);
    free(path);
}

void fuzz_seeds(Corpus *c) {
    TokenSource source;
    GptPlan p;
    plan(&source, &p);
    GptIndex index = gpt_index_build(&p, 1);
    seed(c, &index.document), seed(c, &index.sample), seed(c, &index.shuffle);
    const MaskedPlan m = masked_plan_of(&source);
    NpyArray masked = masked_index_build(&m);
    seed(c, &masked);
    npy_free(&masked), gpt_index_free(&index), source_close(&source);
    NpyArray wide = npy_new(NPY_I64, 7, 2);
    memset(wide.data, 0, 7 * 2 * sizeof(int64_t));
    seed(c, &wide);
    npy_free(&wide);
}
