/* Files of --te-precision-config-file. */
#include "fuzz/fuzz.h"

#include <stdlib.h>

#include "base/fault.h"
#include "config/config.h"

bool fuzz_one(const uint8_t *bytes, size_t n) {
    Arena *arena = arena_new();
    Args args;
    args_init(&args, arena, "fuzz", NULL);
    Config c = {.te_precision_config_file = fuzz_file("precision.yaml", bytes, n)};
    config_read_precision(&c, &args);
    const bool ok = !args.problems.len;
    CHECK(!ok || c.precision_rules.count, "an accepted file has no rule");
    for (int i = 0; ok && i < c.precision_rules.count; i++)
        CHECK(c.precision_rules.at[i].pattern && c.precision_rules.at[i].recipe <= FP8_BLOCKWISE,
              "a rule is not complete");
    args_free(&args), arena_free(arena), free((char *)c.te_precision_config_file);
    return ok;
}

void fuzz_seeds(Corpus *c) { corpus_add_file(c, "tests/data/precision.yaml"); }
