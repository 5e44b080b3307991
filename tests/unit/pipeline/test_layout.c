/* Tests which layers a stage has: examples, properties of all small cases, and error messages. */
#include <string.h>

#include "unit/cmocka_all.h"

#include "pipeline/layout.h"

/* Makes the layout for the options. */
static Err layout_of(Arena *arena, PipelineLayout *out, const char *line) {
    Args args;
    Config c;
    char *argv[24], *rest = NULL;
    int argc = 0;
    for (char *w = strtok_r(arena_printf(arena, "%s", line), " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    args_init(&args, arena, "test", NULL);
    Err e = config_parse(&c, &args, USE_ALL, CHECK_LAYOUT, argc, argv);
    if (e.code) fail_msg("%s: %s", line, e.msg);
    args_free(&args);
    return pipeline_layout(&c, arena, out);
}

/* Asserts the layers of each stage, rank by rank. The chunks of a rank are joined by "+". */
static void assert_layout(const char *line, const char *expected) {
    Arena *arena = arena_new();
    PipelineLayout l;
    Str text = {0};
    Err e = layout_of(arena, &l, line);
    if (e.code) fail_msg("%s: %s", line, e.msg);
    for (int rank = 0; rank < l.ranks; rank++)
        for (int chunk = 0; chunk < l.chunks; chunk++) {
            const StagePart *s = &l.stages[chunk * l.ranks + rank];
            str_printf(&text, "%s%s%lld%s",
                       chunk  ? "+"
                       : rank ? " "
                              : "",
                       s->embedding ? "E" : "", (long long)s->layers, s->head ? "L" : "");
        }
    assert_string_equal(text.s, expected);
    str_free(&text);
    arena_free(arena);
}

TEST(worked_examples) {
    assert_layout("--num-layers 3", "E3L");
    assert_layout("--hybrid-layer-pattern M-|*-|M", "E5L");
    assert_layout("--hybrid-layer-pattern M-*- --pipeline-model-parallel-size 2", "E2 2L");
    assert_layout("--hybrid-layer-pattern M-M||*-|- --pipeline-model-parallel-size 2", "E3+2 0+1L");
    assert_layout("--num-layers 8 --pipeline-model-parallel-size 4", "E2 2 2 2L");
    assert_layout("--num-layers 8 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
                  "E1+1+1+1 1+1+1+1L");
    assert_layout("--num-layers 8 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
                  "E2+2 2+2L");
    /* Embedding and loss count as layers: (30 + 2) / 4 = 8, and one layer fewer at each end. */
    assert_layout("--num-layers 30 --pipeline-model-parallel-size 4 "
                  "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
                  "E7 8 8 7L");
    assert_layout("--num-layers 6 --pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
                  "--account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 1",
                  "E0+1+1+1 1+1+1+0L");
    assert_layout("--num-layers 3 --account-for-embedding-in-pipeline-split", "E3L");
    /* The sizes are those of Megatron-LM's example with 61 layers. */
    assert_layout("--num-layers 61 --pipeline-model-parallel-size 16 --decoder-first-pipeline-num-layers 4 "
                  "--decoder-last-pipeline-num-layers 1",
                  "E4 4 4 4 4 4 4 4 4 4 4 4 4 4 4 1L");
    assert_layout("--num-layers 6 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 2 "
                  "--num-virtual-stages-per-pipeline-rank 2",
                  "E1+1 2+2L");
    assert_layout("--num-layers 5 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 2 "
                  "--decoder-last-pipeline-num-layers 3",
                  "E2 3L");
    /* Layers that predict further tokens are on the last stage. */
    assert_layout("--num-layers 8 --mtp-num-layers 2 --pipeline-model-parallel-size 4", "E2 2 2 4L");
    assert_layout("--num-layers 6 --mtp-num-layers 1 --pipeline-model-parallel-size 2 "
                  "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
                  "--num-layers-per-virtual-pipeline-stage 1",
                  "E0+1+1+1 1+1+1+1L");
    /* The layers of the encoder precede those of the decoder. */
    assert_layout("--model t5 --num-layers 2 --decoder-num-layers 4 --pipeline-model-parallel-size 3",
                  "E2 2 2L");
    assert_layout(
        "--model t5 --num-layers 2 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|tttL",
        "E1 3L");
}

TEST(layout_strings) {
    static const struct {
        int ranks, layers;
        const char *text, *expected;
    } cases[] = {
        {2, 4, "Ett|ttL", "E2 2L"},
        {4, 5, "E|(t|)*3,t|t||L", "E0+1 1+1 1+0 1+0L"},
        {16, 61, "Et*3|(tt|)*29,|L", "E3+2 2+2 2+2 2+2 2+2 2+2 2+2 2+2 2+2 2+2 2+2 2+2 2+2 2+2 2+0 2+0L"},
        {5, 12, "E(t,t|(t|)*2)*3,L", "E2+1 1+2 1+1 2+1 1+0L"},
        {2, 3, "E,t,|,t,t,L", "E1 2L"},
        {2, 2, "E|*3,t,*,2,L", "E0+0 0+2L"},
        {2, 1, "(E(t))|((L))", "E1 0L"},
        {4, 3, "Ett|t|m*2|L --mtp-num-layers 2", "E2 1 2 0L"},
        {2, 3, "Ett|t|m|mL --mtp-num-layers 2", "E2+1 1+1L"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *arena = arena_new();
        char *line = arena_printf(
            arena, "--num-layers %d --pipeline-model-parallel-size %d --pipeline-model-parallel-layout %s",
            cases[i].layers, cases[i].ranks, cases[i].text);
        assert_layout(line, cases[i].expected);
        arena_free(arena);
    }
}

/* Asserts that the stages, in order, have every layer exactly once, and that only the first has the embedding and only
 * the last has the loss. */
static void assert_partition(const PipelineLayout *l, int64_t layers) {
    int64_t next = 0;
    for (int i = 0; i < l->ranks * l->chunks; i++) {
        assert_int_equal(l->stages[i].first_layer, next);
        assert_true(l->stages[i].layers >= 0);
        next += l->stages[i].layers;
        assert_int_equal(l->stages[i].embedding, i == 0);
        assert_int_equal(l->stages[i].head, i == l->ranks * l->chunks - 1);
    }
    assert_int_equal(next, layers);
}

TEST(every_layer_is_held_once) {
    Arena *arena = arena_new();
    int accepted = 0;
    for (int layers = 1; layers <= 24; layers++)
        for (int p = 2; p <= 6; p++)
            for (int v = 1; v <= 3; v++)
                for (int uneven = 0; uneven < 4; uneven++)
                    for (int counted = 0; counted < (uneven ? 1 : 4); counted++) {
                        arena_reset(arena);
                        PipelineLayout l;
                        char *line = arena_printf(
                            arena,
                            "--num-layers %d --pipeline-model-parallel-size %d "
                            "--num-virtual-stages-per-pipeline-rank %d%s%s%s%s",
                            layers, p, v, uneven & 1 ? " --decoder-first-pipeline-num-layers 3" : "",
                            uneven & 2 ? " --decoder-last-pipeline-num-layers 6" : "",
                            counted & 1 ? " --account-for-embedding-in-pipeline-split" : "",
                            counted & 2 ? " --account-for-loss-in-pipeline-split" : "");
                        Err e = layout_of(arena, &l, line);
                        int units = layers + (counted & 1) + (counted >> 1);
                        if (!uneven) assert_int_equal(!e.code, units % (p * v) == 0 && units);
                        if (e.code) continue;
                        assert_int_equal(l.ranks, p);
                        assert_int_equal(l.chunks, v);
                        assert_partition(&l, layers);
                        accepted++;
                    }
    assert_true(accepted > 100);
    arena_free(arena);
}

TEST(bad_splits_are_sentences) {
    static const char *const cases[][2] = {
        {"--num-layers 7 --pipeline-model-parallel-size 2", "7 layers cannot be divided evenly among 2"},
        {"--num-layers 2 --pipeline-model-parallel-size 4",
         "2 layers cannot be divided evenly among 4 pipeline ranks"},
        {"--model t5 --decoder-seq-length 8 --num-layers 2 --pipeline-model-parallel-size 3",
         "4 layers cannot be divided evenly among 3 pipeline ranks: change --num-layers, "
         "--decoder-num-layers or"},
        {"--num-layers 4 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 5",
         "leave -1 of 4 layers for 1 other"},
        {"--num-layers 4 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1 "
         "--decoder-last-pipeline-num-layers 2",
         "leave 1 of 4 layers for 0 other ranks"},
        {"--num-layers 8 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 4 "
         "--decoder-last-pipeline-num-layers 4",
         "leave 0 of 8 layers"},
        {"--num-layers 6 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
         "must be a multiple of --pipeline-model-parallel-size 2 times "
         "--num-layers-per-virtual-pipeline-stage "
         "2"},
        {"--num-layers 6 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
         "the number of layers, 3, of pipeline rank 0 must be a multiple of its number of virtual stages, 2: "
         "change"},
        {"--num-layers 65536 --pipeline-model-parallel-size 65536 --num-virtual-stages-per-pipeline-rank "
         "65536",
         "the number of layers, 1, of pipeline rank 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *arena = arena_new();
        PipelineLayout l;
        Err e = layout_of(arena, &l, cases[i][0]);
        if (e.code != ERR_USER || !strstr(e.msg, cases[i][1])) fail_msg("%s: %s", cases[i][0], e.msg);
        arena_free(arena);
    }
}

TEST(bad_strings_name_the_place) {
    static const char *const cases[][2] = {
        {"Et|tLx", "'Et|tLx', character 6: expected E, t, m, L, | or a group"},
        {"Et|tm|L", "has 1 MTP layers (m), but --mtp-num-layers is 0"},
        {"Et|tL --mtp-num-layers 2", "has 0 MTP layers (m), but --mtp-num-layers is 2"},
        {"Em|tt|L|| --mtp-num-layers 1", "one L (the loss), at the end"},
        {"Etm|tL --mtp-num-layers 1", "must have every m after the last t"},
        {"Et|tL)", "character 6: no group is open here"},
        {"E(t|tL", "character 7: a group does not end; add ')'"},
        {"Et*|tL", "character 4: a positive count must follow '*'"},
        {"Et*0|L", "character 4: a positive count must follow '*'"},
        {"Et*-1|L", "character 4: a positive count must follow '*'"},
        {"Et*1*2|L", "character 5: expected E"},
        {"*2E|ttL", "character 1: expected E"},
        {"E(((((((((((((((((t)))))))))))))))))|tL", "character 18: groups are nested too deeply"},
        {"Et*99999999999999999999|L", "too many stages and layers"},
        {"E((t*1000)*1000)*1000|L", "too many stages and layers"},
        {"tt|L", "must contain one E (the embedding), at the beginning"},
        {"E|ttLL", "must contain one E (the embedding), at the beginning, and one L (the loss), at the end"},
        {"|EttL", "must contain one E (the embedding), at the beginning"},
        {"EE|ttL", "must contain one E (the embedding), at the beginning"},
        {"Ett|L|", "one L (the loss), at the end"},
        {",", "must contain one E (the embedding), at the beginning"},
        {"Et|L", "has 1 layers (t), but the model has 2: change --num-layers"},
        {"Et|t|L", "has 3 stages, which is not a multiple of --pipeline-model-parallel-size 2"},
        {"EttL", "has 1 stages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *arena = arena_new();
        PipelineLayout l;
        Err e = layout_of(
            arena, &l,
            arena_printf(
                arena, "--num-layers 2 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout %s",
                cases[i][0]));
        if (e.code != ERR_USER || !strstr(e.msg, cases[i][1])) fail_msg("%s: %s", cases[i][0], e.msg);
        arena_free(arena);
    }
}
