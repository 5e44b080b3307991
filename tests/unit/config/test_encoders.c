/* The rules of BERT's and T5's options: each can be broken, and its message names the options. */
#include <stdio.h>
#include <string.h>

#include "unit/cmocka_all.h"

#include "config/config.h"

/* The problems of a command line, or what keeps it from being read. */
static const char *problems(Arena *arena, const char *line) {
    Args args;
    Config c;
    args_init(&args, arena, "test", NULL);
    char *argv[100], *rest = NULL;
    int argc = 0;
    for (char *w = strtok_r(arena_printf(arena, "%s", line), " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    const Err e = config_parse(&c, &args, USE_ALL, CHECK_MODEL | CHECK_TRAIN, argc, argv);
    const char *text = args.problems.s ? args.problems.s : e.msg;
    const char *kept = arena_printf(arena, "%s", e.code ? text : "");
    args_free(&args);
    return kept;
}

#define ANY                                                                                                  \
    "--hidden-size 64 --num-attention-heads 4 --micro-batch-size 2 --train-iters 10 --lr 1e-3 --mock-data "  \
    "--seq-length 16 --num-layers 2 --tokenizer-type NullTokenizer --vocab-size 64 "
#define BERT     ANY "--model bert "
#define T5       ANY "--model t5 --decoder-seq-length 8 --decoder-num-layers 4 "
#define RELATIVE T5 "--position-embedding-type relative "
#define BUCKETS  "--relative-attention-num-buckets "
#define DISTANCE " --relative-attention-max-distance "

static const char *const BREAKING[][2] = {
    {BERT "--num-experts 8 --disable-bias-linear", "--num-experts needs --model gpt"},
    {BERT "--window-size 4,0", "--window-size needs --model gpt"},
    {BERT "--logits-scaling 2", "--logits-scaling and --final-logit-softcapping need --model gpt"},
    {BERT "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear", "BERT's output layer has a bias"},
    {BERT "--reset-attention-mask", "need --model gpt"},
    {BERT "--cpu-offloading-num-layers 2", "must be less than --num-layers 2"},
    {ANY "--model t5", "A T5 needs --decoder-seq-length."},
    {T5 "--max-position-embeddings 16 --decoder-seq-length 20", "--decoder-seq-length 20 is longer than"},
    {T5 "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear",
     "excludes a bias in the output layer"},
    {T5 "--num-experts 8 --disable-bias-linear", "A T5 has no experts"},
    {T5 "--group-query-attention --num-query-groups 2", "remove --group-query-attention"},
    {T5 "--window-size 4,0", "remove --window-size and --softmax-type"},
    {T5 "--softmax-type learnable", "remove --window-size and --softmax-type"},
    {T5 "--qk-layernorm", "remove --qk-layernorm"},
    {T5 "--norm-placement post", "remove --norm-placement"},
    {T5 "--position-embedding-type rope --no-rope-freq 2", "remove --no-rope-freq"},
    {T5 "--eod-mask-loss", "need --model gpt"},
    {T5 "--recompute-granularity full --recompute-method block --recompute-num-layers 5",
     "--recompute-num-layers 5 is more than --num-layers 2"},
    {T5 "--cpu-offloading-num-layers 6",
     "--cpu-offloading-num-layers 6 must be less than the number of layers of encoder"},
    {T5 "--ranks 2 --context-parallel-size 2 --decoder-seq-length 6",
     "--decoder-seq-length 6 is not a multiple"},
    {BERT "--position-embedding-type relative", "--position-embedding-type relative needs --model t5"},
    {ANY "--position-embedding-type relative", "--position-embedding-type relative needs --model t5"},
    {RELATIVE BUCKETS "3", "--relative-attention-num-buckets must be from 4 to 256, not 3"},
    {RELATIVE BUCKETS "257", "--relative-attention-num-buckets must be from 4 to 256, not 257"},
    {RELATIVE DISTANCE "1", "--relative-attention-max-distance must be"},
    {RELATIVE BUCKETS "32" DISTANCE "16", "--relative-attention-max-distance 16 must be above"},
    {RELATIVE BUCKETS "13" DISTANCE "6", "--relative-attention-max-distance 6 must be above"},
};

/* At the limits of these rules. */
static const char *const KEEPING[] = {
    BERT "--cpu-offloading-num-layers 1",
    T5 "--cpu-offloading-num-layers 5",
    T5 "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
    T5 "--max-position-embeddings 16 --decoder-seq-length 16",
    T5 "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear --untie-embeddings-and-output-weights",
    T5 "--ranks 2 --context-parallel-size 2",
    /* a length that has no effect breaks no rule */
    ANY "--decoder-seq-length 20 --max-position-embeddings 16",
    BERT "--decoder-seq-length 7 --ranks 2 --context-parallel-size 2",
    ANY "--decoder-seq-length 7 --ranks 2 --tensor-model-parallel-size 2 --sequence-parallel",
    RELATIVE,
    RELATIVE BUCKETS "4" DISTANCE "3",
    RELATIVE BUCKETS "256" DISTANCE "129",
    RELATIVE BUCKETS "32" DISTANCE "17",
    RELATIVE BUCKETS "13" DISTANCE "7",
};

static void each_rule_can_be_broken(void **state) {
    (void)state;
    Arena *arena = arena_new();
    for (size_t i = 0; i < sizeof BREAKING / sizeof *BREAKING; i++) {
        const char *found = problems(arena, BREAKING[i][0]);
        if (!strstr(found, BREAKING[i][1])) fail_msg("%s: '%s'", BREAKING[i][0], found);
    }
    arena_free(arena);
}

static void each_rule_can_be_kept(void **state) {
    (void)state;
    Arena *arena = arena_new();
    for (size_t i = 0; i < sizeof KEEPING / sizeof *KEEPING; i++) {
        const char *found = problems(arena, KEEPING[i]);
        if (*found) fail_msg("%s: '%s'", KEEPING[i], found);
    }
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_can_be_broken),
        cmocka_unit_test(each_rule_can_be_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
