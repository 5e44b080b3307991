/* Tests that the conclusion names the component that explains most findings. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "unit/cmocka_all.h"
#include "validate/conclusion.h"

enum { MOST = 6 };

typedef struct Case {
    struct {
        int stage;
        const char *suspect;
    } found[MOST]; /* findings about library A, or about B if the suspect begins with '*' */
    DeviceOption device;
    const char *wanted;
} Case;

static const Case CASES[] = {
    {{{0, NULL}}, ON_CUDA, ""},
    {{{STAGE_roofs, "GPU 1 (rank 1)"},
      {STAGE_roofs, "GPU 1 (rank 1)"},
      {STAGE_speed, "link 0-1"},
      {STAGE_speed, "links of rank 0 or rank 1"},
      {STAGE_training, "clocks or cooling"},
      {STAGE_compute, "GPU 0 (rank 0)"}},
     ON_CUDA,
     "GPU 1 (rank 1) explains 5 of 6 findings; another process holds it: python3 (pid 17)"},
    {{{STAGE_speed, "link 2-1"}, {STAGE_speed, "all_reduce 4096 KiB"}},
     ON_CPU,
     "link 1-2 explains 2 of 2 findings"},
    {{{STAGE_speed, "link 1-2"}, {STAGE_speed, "link 0-1"}, {STAGE_speed, "rank 1"}},
     ON_CPU,
     "rank 1 explains 3 of 3 findings; another process holds it: python3 (pid 17)"},
    {{{STAGE_speed, "rank 0"}, {STAGE_roofs, "copy, GPU 2 (rank 2)"}, {STAGE_training, "training step"}},
     ON_CPU,
     "rank 2 or rank 0 each explain 2 of 3 findings"},
    {{{STAGE_collectives, "NCCL 2.28.9 with NCCL_ALGO=Ring NCCL_PROTO=LL"}, {STAGE_hang, "transport"}},
     ON_CPU,
     "NCCL A, one.so explains 2 of 2 findings"},
    {{{STAGE_collectives, "*NCCL 2.28.9"}, {STAGE_speed, "*NCCL B"}, {STAGE_collectives, "NCCL 2.28.9"}},
     ON_CPU,
     "NCCL B, two.so explains 2 of 3 findings"},
    {{{STAGE_inventory, "driver of rank 0"},
      {STAGE_inventory, "driver of rank 1"},
      {STAGE_inventory, "env NCCL_ALGO"}},
     ON_CUDA,
     "the host explains 3 of 3 findings"},
    {{{STAGE_parity, "op linear, ranks 0,1,2"}}, ON_CPU, "no single component explains the finding"},
    {{{STAGE_parity, "op linear, ranks 0,2"}, {STAGE_parity, "op linear, ranks 2"}},
     ON_CPU,
     "rank 2 explains 2 of 2 findings"},
    {{{STAGE_parity, "op linear, ranks 0,3,4,5,6,7"}},
     ON_CPU,
     "rank 0 or rank 3 or rank 4 or rank 5 or 2 others each explain 1 of 1 finding"},
    {{{STAGE_compute, "not known"}, {STAGE_memory, "rank 11"}}, ON_CPU, "rank 11 explains 1 of 2 findings"},
};

static void check(const Case *c, int ranks) {
    Config config = {.device = c->device};
    const ValidateOptions options = {.config = &config};
    Validation a = {.options = &options, .ranks = ranks, .nccl_name = {"one.so", "two.so"}};
    Str said = {0};
    for (int s = 0; s < STAGES; s++)
        a.row[s].a = mem_zero(1, sizeof(Outcome)), a.row[s].b = mem_zero(1, sizeof(Outcome));
    a.row[STAGE_inventory].a->devices = 8;
    outcome_fact(a.row[STAGE_inventory].a, false, "other processes of rank 1", "python3 (pid 17)");
    outcome_add(a.row[STAGE_roofs].a, VALIDATE_PASS, "rank 0", "a note is no finding");
    for (int k = 0; k < MOST && c->found[k].suspect; k++) {
        const char *suspect = c->found[k].suspect;
        const ValidateRow *row = &a.row[c->found[k].stage];
        outcome_add(*suspect == '*' ? row->b : row->a, VALIDATE_DEGRADED, suspect + (*suspect == '*'), "%d",
                    k);
    }
    conclusion_of(&a, &said);
    assert_string_equal(said.s ? said.s : "", c->wanted);
    str_free(&said);
    for (int s = 0; s < STAGES; s++) free(a.row[s].a), free(a.row[s].b);
}

TEST(most_findings_have_one_cause) {
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) check(&CASES[i], 3);
    /* The finding names both ranks, and there are no others. */
    check(&(Case){{{STAGE_parity, "op linear, ranks 0,1"}},
                  ON_CPU,
                  "rank 0 or rank 1 each explain 1 of 1 finding; another process holds it: python3 (pid 17)"},
          2);
}
