/* Tests that the rules of the options (config/rules) hold at the ends of ranges, and with each alternative that their
 * conditions allow. */
#include <string.h>

#include "unit/cmocka_all.h"

#include "config/config.h"
#include "unit/config/command_lines.h"
#include "unit/config/parse.h"

#define HYBRID                                                                                               \
    GPT "--disable-bias-linear --position-embedding-type none --mamba-head-dim 16 --hybrid-layer-pattern "
#define MAMBA          HYBRID "M- "
#define STEADY         "--hidden-dropout 0 --attention-dropout 0 "
#define GRAPH          "--device cuda --cuda-graph-impl local "
#define LONG           ROPE "--kv-channels 4 --rope-short-factor 1 2 --rope-long-factor 1 2 "
#define STAGED         TWO "--pipeline-model-parallel-size 2 --num-layers 4 "
#define SHARED         TWO "--tensor-model-parallel-size 2 --sequence-parallel "
#define PAIRED         GPT SHARED "--interleaved-microbatches 2 --interleave-forward-backward "
#define UNWARMED       MODEL "--lr 1e-3 --mock-data --tokenizer-type NullTokenizer --train-samples 100 "
#define SHARED_EXPERT  EXPERTS "--moe-shared-expert-intermediate-size 8 "
#define EXPERTS_OF_TWO TWO "--expert-model-parallel-size 2 "
#define SAMPLED        UNWARMED "--lr-warmup-fraction 0.1 "

enum {
    RUN = CHECK_MODEL | CHECK_TRAIN | CHECK_DATA,
    TUNING = CHECK_MODEL | CHECK_TRAIN | CHECK_TASK,
    ASKING = CHECK_MODEL | CHECK_GENERATE,
    SERVING = CHECK_MODEL | CHECK_SERVE
};

static const struct {
    unsigned checks;
    const char *line;
} KEPT[] = {
    /* model */
    {RUN, BERT "--embedding-layernorm"},
    {RUN, BERT "--norm-placement post"},
    {RUN, GPT "--embedding-layernorm --norm-placement post"},
    {RUN, ROPE "--mtp-num-layers 1"},
    {RUN, YARN "--mtp-num-layers 1"},
    {RUN, GPT "--mtp-num-layers 1 --position-embedding-type alibi"},
    {RUN, GPT "--mtp-num-layers 1 --position-embedding-type none"},
    {RUN, GPT "--hidden-size 24 --swiglu"},
    {RUN, GPT "--quick-geglu --activation-func-clamp-value 1 --glu-linear-offset 1"},
    {RUN, EXPERTS "--swiglu --activation-func-clamp-value 1"},
    {RUN, GPT "--scale-embedding"},
    {RUN, GPT "--embedding-multiplier 2"},
    {RUN, GPT "--disable-norm-weight"},
    {RUN, GPT "--apply-layernorm-1p"},
    {RUN, GPT "--qk-layernorm --qk-layernorm-whole"},
    {RUN, GPT "--qk-l2-norm"},
    {RUN, ROPE "--qk-layernorm --qk-layernorm-after-rope"},
    {RUN, ROPE "--kv-channels 4 --rope-dynamic-factor 2"},
    {RUN, LONG "--rope-scaling-original-max-position-embeddings 2"},
    {RUN, LATENT "--qk-layernorm"},
    {RUN, LATENT "--position-embedding-type rope"},
    {RUN, HYBRID "+-  --multi-latent-attention"},
    {RUN, ROPE "--mtp-num-layers 2 --mtp-use-repeated-layer"},
    {RUN, EXPERTS "--position-embedding-type rope --mtp-num-layers 1 --mtp-use-repeated-layer"},
    {RUN, GPT "--padded-vocab-size 64"},
    {RUN, GPT "--max-position-embeddings 16"},
    {RUN, GPT "--hidden-size 16"},
    {RUN, ROPE "--mtp-num-layers 1 --mtp-use-repeated-layer --qk-clip --disable-bias-linear"},
    {RUN, MAMBA TWO "--context-parallel-size 2 --mamba-num-groups 1"},
    {RUN, HYBRID "G- " TWO "--context-parallel-size 2 --linear-num-key-heads 1"},
    {RUN, HYBRID "G- --experimental-attention-variant gdn"},
    /* experts */
    {RUN, SHARED_EXPERT},
    {RUN, SHARED_EXPERT EXPERTS_OF_TWO "--moe-shared-expert-overlap --moe-token-dispatcher-type alltoall"},
    {RUN, EXPERTS EXPERTS_OF_TWO "--overlap-moe-expert-parallel-comm --moe-token-dispatcher-type flex"},
    {RUN, EXPERTS "--moe-router-topk 8"},
    {RUN, EXPERTS "--moe-router-topk 1 --moe-router-pre-softmax"},
    {RUN, EXPERTS "--moe-router-topk 1 --moe-router-score-function sigmoid"},
    {RUN, EXPERTS "--moe-router-topk 1 --moe-router-load-balancing-type sinkhorn --moe-aux-loss-coeff 0"},
    {RUN, EXPERTS "--moe-router-force-biased 1"},
    {RUN, EXPERTS "--moe-router-force-load-balancing"},
    {RUN, EXPERTS SHARED},
    {RUN, EXPERTS TWO "--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall "
                      "--overlap-dispatch-backward-with-experts-wgrad"},
    /* precision */
    {RUN, GPT "--no-deterministic-mode"},
    {RUN, GPT "--batch-invariant-mode"},
    {RUN, GPT "--bf16 --grad-reduce-in-bf16"},
    {RUN, GPT TWO "--lane exact --calculate-per-token-loss"},
    {RUN, GPT SHARED "--lane exact"},
    {RUN, MAMBA TWO "--tensor-model-parallel-size 2 --lane exact --mamba-num-groups 2"},
    {RUN, HYBRID "G- " TWO "--tensor-model-parallel-size 2 --lane exact --linear-num-key-heads 2"},
    {RUN, GPT "--fp16 --initial-loss-scale 4 --min-loss-scale 4"},
    {RUN, FP8 TWO "--fp8-keep-weights --use-megatron-fsdp --data-parallel-sharding-strategy optim"},
    {RUN, FP8 TWO "--fp8-keep-weights --use-distributed-optimizer"},
    {RUN, FP8 TWO "--fp8-param-gather --use-distributed-optimizer"},
    {RUN, FP8 TWO "--fp8-param-gather --use-megatron-fsdp"},
    {RUN, FP8 STEADY GRAPH "--fp8-keep-weights"},
    /* layouts */
    {RUN, GPT "--ranks 65536"},
    {RUN, GPT "--num-virtual-stages-per-pipeline-rank 1"},
    {RUN, GPT STAGED "--num-virtual-stages-per-pipeline-rank 2"},
    {RUN, PAIRED},
    {RUN, PAIRED "--pipeline-schedule 1f1b"},
    {RUN, GPT "--cpu-offloading --cpu-offloading-num-layers 1"},
    {RUN, GPT "--cpu-offloading-num-layers 1 --pipeline-schedule 1f1b"},
    {RUN, GPT TWO "--context-parallel-size 2 --cp-comm-type p2p --no-cp-comm-overlap"},
    {RUN, GPT STAGED "--pipeline-model-parallel-layout Ett|ttL"},
    {RUN, GPT "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 "
              "--num-layers 4 --num-virtual-stages-per-pipeline-rank 2 --interleaved-microbatches 2 "
              "--interleave-forward-backward --pipeline-schedule interleaved"},
    {RUN, GPT "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2"},
    /* machine */
    {RUN, GPT STEADY GRAPH},
    {RUN, EXPERTS STEADY GRAPH},
    {RUN, GPT TWO STEADY GRAPH},
    {RUN, GPT STEADY "--device cuda --gemm-sm-margin 4"},
    /* schedules, checkpoints and data */
    {RUN, GPT "--min-lr 1e-3"},
    {RUN, GPT "--decoupled-lr 1e-3 --decoupled-min-lr 1e-3"},
    {RUN, GPT "--adam-beta1 0 --adam-beta2 0"},
    {RUN, GPT "--lr-warmup-fraction 0.1"},
    {RUN, SAMPLED},
    {RUN, GPT "--lr-warmup-iters 9"},
    {RUN, GPT "--save x --save-interval 2 --most-recent-k 1"},
    {RUN, GPT "--save x --save-interval 2 --most-recent-k -1 --save-retain-interval 2"},
    {RUN, GPT "--lr-warmup-iters 2 --lr-warmup-init 1e-3"},
    {RUN, GPT "--load x --use-checkpoint-args"},
    {RUN, GPT "--pretrained-checkpoint x --use-checkpoint-args"},
    {RUN, GPT "--load x --override-opt_param-scheduler"},
    {RUN, GPT "--load x --use-checkpoint-opt_param-scheduler"},
    {RUN, MUON TWO
     "--tensor-model-parallel-size 2 --group-query-attention --num-query-groups 1 --muon-no-split-qkv"},
    /* tasks */
    {TUNING, TASK "MNLI --num-token-types 1"},
    {TUNING, TASK "MNLI --save x"},
    {TUNING, TUNE "0"},
    {TUNING, GPT "--model bert --valid-data x --pretrained-checkpoint x --task MNLI --epochs 0"},
    {TUNING, TASK "labels --class-labels a b"},
    /* generation */
    {ASKING, ASK "--top-k 3 --top-p 0.5 --inference-dynamic-batching-sampling-backend flashinfer"},
    {ASKING, ASK "--quantization int8"},
    {ASKING, ASK "--lane exact"},
    {ASKING, ASK "--bf16 --fp8-format hybrid --cache-mla-latents"},
    {ASKING, LATENT "--load x --prompt y --cache-mla-latents"},
    {ASKING, GPT "--load x --prompts-file y"},
    {ASKING, GPT "--load x --prompt-file y"},
    {ASKING, GPT "--load x --interactive"},
    {ASKING, ASK "--logprobs --top-n-logprobs 2 --output-path z"},
    {SERVING, ASK "--inference-dynamic-batching-max-tokens 256"},
    {SERVING, ASK "--inference-dynamic-batching-max-tokens 10 --inference-dynamic-batching-max-requests 10"},
};

/* The line breaks one rule, and the message has this text. */
static const struct {
    unsigned checks;
    const char *line, *message;
} BROKEN[] = {
    {RUN, BERT "--mask-prob 0", "must be greater than 0 and less than 1"},
    {RUN, BERT "--mask-prob 1", "must be greater than 0 and less than 1"},
    {RUN, GPT "--muon-momentum 1", "must be less than 1"},
    {RUN, GPT "--lion-beta1 1", "must be less than 1"},
    {RUN, GPT "--lion-beta2 1", "must be less than 1"},
    {RUN, GPT "--adam-beta2 1", "--adam-beta2 1 must be at least 0 and less than 1"},
    {RUN, GPT "--hidden-dropout 1", "must be less than 1"},
    {RUN, LATENT "--qk-l2-norm", "--qk-l2-norm cannot be used with"},
    {RUN, LATENT "--position-embedding-type yarn", "For YaRN, set --rope-type yarn"},
    {RUN, LATENT "--position-embedding-type alibi", "needs --position-embedding-type rope, not alibi"},
    {RUN, ROPE "--kv-channels 2 --rope-dynamic-factor 2", "more than 2 rotated channels per head"},
    {RUN, LONG "--rope-scaling-original-max-position-embeddings 1",
     "--rope-scaling-original-max-position-embeddings above 1"},
    {RUN, ROPE "--mtp-num-layers 1 --embedding-layernorm", "does not support --model t5 or --mtp-num-layers"},
    {RUN, ROPE "--qk-layernorm --qk-layernorm-whole --qk-layernorm-after-rope",
     "--qk-layernorm-after-rope needs --qk-layernorm"},
    {RUN, GPT "--bf16 --exp-avg-sq-dtype bf16", "need --use-precision-aware-optimizer"},
    {RUN, GPT "--bf16 --exp-avg-dtype bf16", "need --use-precision-aware-optimizer"},
    {RUN, EXPERTS "--moe-token-dispatcher-type alltoall --overlap-dispatch-backward-with-experts-wgrad",
     "add --expert-model-parallel-size above 1"},
    {RUN, GPT GRAPH "--hidden-dropout 0 --attention-dropout 0.1", "would repeat the random numbers"},
    {RUN, GPT GRAPH "--hidden-dropout 0.1 --attention-dropout 0", "would repeat the random numbers"},
    {RUN, EXPERTS STEADY GRAPH "--moe-input-jitter-eps 0.1", "would repeat the random numbers"},
    {TUNING, TASK "MNLI --classifier-dropout 0.1 " STEADY GRAPH, "would repeat the random numbers"},
    {RUN, SAMPLED "--lr-warmup-samples 5", "--lr-warmup-fraction 0.1 cannot be used with"},
    {RUN, GPT "--lr-warmup-fraction 0.1 --lr-warmup-iters 5", "--lr-warmup-fraction 0.1 cannot be used with"},
    {RUN, GPT "--lr-warmup-samples 5", "With --train-iters, the schedule counts steps"},
    {RUN, GPT "--lr-wsd-decay-samples 5 --lr-decay-style WSD",
     "With --train-iters, the schedule counts steps"},
    {RUN, GPT "--lr-decay-samples 5", "With --train-iters, the schedule counts steps"},
    {RUN, MAMBA "--num-virtual-stages-per-pipeline-rank 1", "defines the pipeline stages with |"},
    {RUN, MAMBA "--account-for-embedding-in-pipeline-split", "defines the pipeline stages with |"},
    {RUN, MAMBA "--account-for-loss-in-pipeline-split", "defines the pipeline stages with |"},
    {RUN, MAMBA TWO "--context-parallel-size 2 --lane exact --mamba-num-groups 1", "entire Mamba-2 groups"},
    {RUN, UNWARMED "--lr-warmup-iters 5", "counts samples"},
    {RUN, T5 "--parallel-residual two-norms", "remove --norm-placement and --parallel-residual"},
    {RUN, GPT "--qk-clip --qk-clip-alpha 0", "--qk-clip-alpha 0 must be"},
    {RUN, LATENT "--qk-layernorm --qk-layernorm-after-rope", "--qk-layernorm-after-rope needs"},
    {RUN, LONG "--use-rope-scaling", "without --use-rope-scaling"},
    {RUN, EXPERTS EXPERTS_OF_TWO "--overlap-moe-expert-parallel-comm --moe-token-dispatcher-type allgather",
     "and --moe-token-dispatcher-type alltoall"},
    {RUN, SHARED_EXPERT "--moe-shared-expert-overlap --moe-token-dispatcher-type alltoall",
     "add --moe-shared-expert-intermediate-size, --expert-model-parallel-size above 1"},
    {RUN, SHARED_EXPERT EXPERTS_OF_TWO "--moe-shared-expert-overlap --moe-token-dispatcher-type allgather",
     "and --moe-token-dispatcher-type alltoall"},
    {RUN,
     EXPERTS EXPERTS_OF_TWO "--overlap-dispatch-backward-with-experts-wgrad --moe-token-dispatcher-type "
                            "allgather",
     "and --moe-token-dispatcher-type alltoall"},
    {RUN, EXPERTS "--moe-router-load-balancing-type quantile_balancing --moe-router-enable-expert-bias",
     "computes its own biases"},
    {RUN, GPT STAGED "--pipeline-model-parallel-layout Ett|ttL --account-for-embedding-in-pipeline-split",
     "--pipeline-model-parallel-layout"},
    {RUN, FP8 TWO "--fp8-param-gather", "--fp8-param-gather needs sharded main weights"},
    {RUN,
     FP8 TWO "--fp8-keep-weights --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
     "but the weights are not gathered until that pass starts"},
};

TEST(valid_edges_break_no_rule) {
    bool failed = false;
    for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++) {
        Parsed p;
        parse(&p, KEPT[i].checks, KEPT[i].line);
        if (p.args.num_problems || p.err.code) {
            print_error("%s: %s\n", KEPT[i].line, p.args.problems.s ? p.args.problems.s : p.err.msg);
            failed = true;
        }
        done(&p);
    }
    assert_false(failed);
}

TEST(invalid_edges_break_one_rule) {
    bool failed = false;
    for (size_t i = 0; i < sizeof BROKEN / sizeof *BROKEN; i++) {
        Parsed p;
        parse(&p, BROKEN[i].checks, BROKEN[i].line);
        const char *said = p.args.problems.s ? p.args.problems.s : "";
        if (p.args.num_problems != 1 || !strstr(said, BROKEN[i].message)) {
            print_error("%s: '%s'\n", BROKEN[i].line, said);
            failed = true;
        }
        done(&p);
    }
    assert_false(failed);
}
