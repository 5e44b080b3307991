/* Tests that each rule of the options (config/rules) can be broken, and yields the expected message. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "unit/cmocka_all.h"

#include "config/config.h"
#include "unit/config/fp8_rules.h"
#include "unit/config/hybrid_rules.h"

/* Returns the problems of a command line, or the error from parsing it. */
static const char *problems(Arena *arena, unsigned checks, const char *line) {
    Args args;
    Config c;
    args_init(&args, arena, "test", NULL);
    char *argv[200], *rest = NULL;
    int argc = 0;
    for (char *w = strtok_r(arena_printf(arena, "%s", line), " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    const Err e = config_parse(&c, &args, USE_ALL, checks, argc, argv);
    const char *text = args.problems.s ? args.problems.s : e.msg;
    const char *kept = arena_printf(arena, "%s", e.code ? text : "");
    args_free(&args);
    return kept;
}

#define VALID                                                                                                \
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "          \
    "--train-iters 10 --lr 1e-3 --mock-data "
#define ANY      VALID "--tokenizer-type NullTokenizer --vocab-size 64 "
#define BERT     ANY "--model bert "
#define T5       ANY "--model t5 --decoder-seq-length 8 --decoder-num-layers 4 "
#define RELATIVE T5 "--position-embedding-type relative "
#define BUCKETS  "--relative-attention-num-buckets "
#define DISTANCE " --relative-attention-max-distance "

#define EXPERTS "--num-experts 8 --disable-bias-linear"
#define CONTEXT "--context-parallel-size 4"

#define FINE "--fine-grained-activation-offloading --offload-modules "

/* Command lines that each break a rule, and the end of the expected message, which contains the remedy. */
static const char *const GPT[][2] = {
    {"--tensor-model-parallel-size 9000000000000000000 --pipeline-model-parallel-size 9000000000000000000 "
     "--micro-batch-size 9000000000000000000", /* the products of these must not overflow */
     "--tensor-model-parallel-size must be from 1 to 65536, not 9000000000000000000"},
    {"--tensor-model-parallel-size 256 --pipeline-model-parallel-size 512",
     "exceeds 65536 ranks: lower one of them"},
    {"--distributed-timeout-minutes 0", "must be from 1 to 1000000, not 0"},
    {"--distributed-timeout-seconds -1", "must be from 0.001 to 100000000, not -1"},
    {"--num-query-groups 2", "without --group-query-attention: add that flag"},
    {"--group-query-attention --num-query-groups 3", "multiple of --num-query-groups 3: change one of them"},
    {"--position-embedding-type rope --rotary-percent 0.2",
     "even, positive number of rotated channels per head: change it or --kv-channels"},
    {"--use-rope-scaling", "needs --position-embedding-type rope, not learned_absolute"},
    {"--window-size 3", "two numbers such as 127,0. The left number must be from -1 to 1073741824, and the "
                        "right number 0 or -1, because a decoder does not attend to later tokens"},
    {"--window-attn-skip-freq 2", "without --window-size: add --window-size"},
    {"--window-size 3,0 --window-attn-skip-freq [1,0,1]", "2 layers"},
    {"--window-size 3,0 --window-attn-skip-freq 0", "2 layers"},
    {"--qk-l2-norm --qk-layernorm", "--multi-latent-attention or --model t5: remove one of them"},
    {"--qk-layernorm-after-rope --position-embedding-type rope",
     "without --qk-layernorm-whole or --multi-latent-attention"},
    {EXPERTS " --disable-bias-linear --add-mlp-bias", "remove it or --num-experts"},
    {"--disable-norm-weight --apply-layernorm-1p",
     "--disable-norm-weight removes: remove one of these options"},
    {"--qk-l2-norm-rope-layers-only --position-embedding-type rope",
     "set --qk-l2-norm, and --position-embedding-type rope or yarn"},
    {"--qk-l2-norm --qk-l2-norm-rope-layers-only", "and --position-embedding-type rope or yarn"},
    {"--attention-chunk-size 0", "must be from 1 to 1073741824, not 0"},
    {"--attention-chunk-size 4", "it needs --model gpt and --position-embedding-type rope or yarn, without "
                                 "--multi-latent-attention"},
    {"--position-embedding-type rope --multi-latent-attention --attention-chunk-size 4",
     "without --multi-latent-attention"},
    {"--position-embedding-type rope --attention-chunk-size 4 --window-size 3,0",
     "both limit the keys that a token attends to: remove one of them"},
    {"--no-rope-temperature-scale 0.1", "and an even --kv-channels, without --multi-latent-attention"},
    {"--position-embedding-type rope --kv-channels 5 --rotary-percent 0.8 --no-rope-temperature-scale 0.1",
     "and an even --kv-channels, without --multi-latent-attention"},
    {"--rope-temperature-scale 0.1",
     "it needs --model gpt, --position-embedding-type rope or yarn, and heads of an even size"},
    {"--position-embedding-type rope --kv-channels 5 --rotary-percent 0.8 --rope-temperature-scale 0.1",
     "and heads of an even size"},
    {"--position-embedding-type rope --multi-latent-attention --qk-head-dim 5 --rope-temperature-scale 0.1",
     "and heads of an even size"},
    {BERT "--position-embedding-type rope --rope-temperature-scale 0.1", "and heads of an even size"},
    {"--rope-temperature-floor 4", "has no effect without --rope-temperature-scale: remove it"},
    {"--position-embedding-type rope --mrope-section 2 2 2", "and needs --position-embedding-type mrope"},
    {"--position-embedding-type rope --mrope-section 9 0 -1", "and needs --position-embedding-type mrope"},
    {"--position-embedding-type yarn --mrope-section 2 3 3", "and needs --position-embedding-type mrope"},
    {"--no-rope-temperature-floor 4", "has no effect without --no-rope-temperature-scale: remove it"},
    {"--no-rope-freq 2", "--no-rope-freq needs --position-embedding-type rope or yarn, not learned_absolute"},
    {"--position-embedding-type rope --no-rope-freq [1]",
     "must be a positive number or a pattern such as [0,0,1]*2 with one entry for each of the 2 layers"},
    {"--position-embedding-type rope --rope-local-base-freq 10",
     "applies to layers with a sliding window: it needs --position-embedding-type rope or yarn, and "
     "--window-size"},
    {"--position-embedding-type rope --rope-short-factor 1 2", "must be set together: set both or remove "
                                                               "both"},
    {"--rope-short-factor 1 --rope-long-factor 2",
     "need --position-embedding-type rope without --use-rope-scaling, and "
     "--rope-scaling-original-max-position-embeddings above 1"},
    {"--position-embedding-type rope --rope-short-factor 1 --rope-long-factor x",
     "must each have a positive number for every pair of rotated channels of a head"},
    {"--position-embedding-type rope --rope-attention-factor 2",
     "effect unless --rope-short-factor and --rope-long-factor, or --position-embedding-type yarn, are set: "
     "remove it"},
    {"--position-embedding-type rope --use-rope-scaling --rope-dynamic-factor 2",
     "remove --use-rope-scaling or --rope-short-factor"},
    {"--position-embedding-type yarn --yarn-beta-slow 32",
     "--yarn-beta-slow 32 must be less than --yarn-beta-fast 32"},
    {"--position-embedding-type yarn --rotary-base 1", "needs --rotary-base above 1"},
    {"--position-embedding-type yarn --rotary-seq-len-interpolation-factor 2",
     "both rescale positions: remove one"},
    {"--qk-layernorm-whole", "--qk-layernorm-whole needs --qk-layernorm"},
    {"--mtp-num-layers 1 --model bert", "--mtp-num-layers 1 needs --model gpt, not bert"},
    {"--mtp-num-layers 1", "set --position-embedding-type rope, yarn, alibi or none"},
    {"--position-embedding-type rope --mtp-num-layers 2 --mtp-use-repeated-layer " EXPERTS,
     "remove it or --num-experts"},
    {"--position-embedding-type rope --mtp-num-layers 2 --mtp-use-repeated-layer --qk-clip",
     "remove one of them"},
    {"--mtp-num-layers 8", "--mtp-num-layers must be from 0 to 7, not 8"},
    {"--multi-latent-attention --model bert", "--multi-latent-attention needs --model gpt, not bert"},
    {"--multi-latent-attention --group-query-attention", "remove --group-query-attention"},
    {"--multi-latent-attention --disable-bias-linear --add-qkv-bias", "remove --add-qkv-bias"},
    {"--multi-latent-attention --qk-layernorm --qk-layernorm-whole", "remove --qk-layernorm-whole"},
    {"--multi-latent-attention --rotary-interleaved", "remove --rotary-interleaved and --no-rope-freq"},
    {"--multi-latent-attention --no-rope-freq 2", "remove --rotary-interleaved and --no-rope-freq"},
    {"--position-embedding-type alibi --attn-logit-softcapping 5",
     "alibi does not support --attn-logit-softcapping: remove one of them"},
    {"--multi-latent-attention --position-embedding-type alibi",
     "needs --position-embedding-type rope, not alibi. For YaRN, set --rope-type yarn"},
    {"--multi-latent-attention --position-embedding-type yarn", "For YaRN, set --rope-type yarn"},
    {"--multi-latent-attention --rotary-percent 0.5", "YaRN rotates all of --qk-pos-emb-head-dim"},
    {"--rope-type yarn", "Without --multi-latent-attention, set --position-embedding-type yarn"},
    {"--embedding-layernorm --model t5", "does not support --model t5 or --mtp-num-layers: remove it"},
    {"--embedding-layernorm --model bert --norm-placement post",
     "always normalizes its embeddings: remove --embedding-layernorm"},
    {"--scale-embedding --embedding-multiplier 2", "both multiply the embeddings: remove one of them"},
    {"--use-mup --model bert", "Megatron-LM scales the logits of no other model. Remove it"},
    {"--parallel-residual one-norm --norm-placement post", "one-norm needs --norm-placement pre, not post"},
    {"--hidden-dropout 1", "--hidden-dropout 1 must be less than 1"},
    {"--fp8-format e4m3 --lane exact", "too coarse for --lane exact: use --lane bf16, fp16 or fp32"},
    {"--fp8-format e4m3 --fp64", "too coarse for --lane fp64: use --lane bf16, fp16 or fp32"},
    {"--fp8-recipe mxfp8", "--fp8-recipe mxfp8 is not supported: Isotron does not have this recipe. Use "
                           "delayed, tensorwise or blockwise"},
    {"--vocab-size 100 --padded-vocab-size 99",
     "--padded-vocab-size 99 is less than --vocab-size 100: raise or remove it"},
    {"--padded-vocab-size 129 --tensor-model-parallel-size 2",
     "--padded-vocab-size 129 is not a multiple of --tensor-model-parallel-size 2: change one of them"},
    {"--padded-vocab-size 0", "--padded-vocab-size must be from 1 to 2147483647, not 0"},
    {"--fp8-format e4m3 --first-last-layers-bf16",
     "cannot be used with --fp8-recipe delayed: use tensorwise or blockwise"},
    {"--grad-reduce-in-bf16",
     "needs --bf16: --lane fp32 always sums gradients in the lane's precision. Remove --grad-reduce-in-bf16"},
    {"--fp16 --grad-reduce-in-bf16",
     "needs --bf16: --lane fp16 always sums gradients in the lane's precision. Remove --grad-reduce-in-bf16"},
    {"--lane exact --grad-reduce-in-bf16", "needs --bf16: --lane exact always sums gradients in the lane's "
                                           "precision. Remove --grad-reduce-in-bf16"},
    {"--bf16 --main-grads-dtype bf16", "needs --use-precision-aware-optimizer"},
    {"--exp-avg-dtype bf16", "need --use-precision-aware-optimizer"},
    {"--use-precision-aware-optimizer --exp-avg-sq-dtype fp16", "Adam would divide by 0. Use bf16 or fp32"},
    {"--optimizer-cpu-offload --optimizer muon",
     "--use-distributed-optimizer, which shards the optimizer state"},
    {"--use-precision-aware-optimizer --optimizer sgd", "needs --optimizer adam, not sgd"},
    {"--use-precision-aware-optimizer --fp64", "cannot be used with --lane fp64"},
    {"--lane exact --ranks 2", "add --calculate-per-token-loss"},
    {"--fp16 --use-precision-aware-optimizer --main-grads-dtype bf16",
     "needs --bf16: --lane fp16 always sums gradients in the lane's precision. Remove --main-grads-dtype"},
    {"--bf16 --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32",
     "contradicts --grad-reduce-in-bf16 and --main-grads-dtype bf16: remove one of them"},
    {"--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16 --accumulate-allreduce-grads-in-fp32",
     "contradicts --grad-reduce-in-bf16 and --main-grads-dtype bf16: remove one of them"},
    {"--batch-invariant-mode --no-deterministic-mode",
     "needs deterministic sums: remove --no-deterministic-mode"},
    {"--num-experts 4 --moe-shared-expert-intermediate-size 8",
     "--moe-shared-expert-intermediate-size needs --disable-bias-linear"},
    {"--activation-func-clamp-value 7", "to --swiglu in experts: set one of these activations"},
    {"--swiglu --activation-func-clamp-value 7", "to --swiglu in experts: set one of these activations"},
    {"--glu-linear-offset 1", "needs --quick-geglu, not --activation gelu"},
    {EXPERTS " --activation xielu", "remove --num-experts, or choose another activation"},
    {EXPERTS " --moe-router-topk 9", "more than --num-experts 8: lower it"},
    {EXPERTS " --moe-layer-freq [1,0,1]", "2 layers"},
    {EXPERTS " --moe-router-topk 1", "add --moe-router-pre-softmax"},
    {EXPERTS " --moe-router-num-groups 2", "must be set together: set both or remove both"},
    {EXPERTS " --moe-router-num-groups 3 --moe-router-group-topk 1",
     "must divide --num-experts 8. Unless --moe-router-group-score-topk is set, --moe-router-group-topk 1 "
     "must "
     "divide --moe-router-topk 2. A token "
     "cannot select more groups than exist, or more experts from a group than the group contains"},
    {EXPERTS " --moe-router-topk 4 --moe-router-num-groups 4 --moe-router-group-topk 1",
     "must divide --num-experts 8. Unless --moe-router-group-score-topk is set, --moe-router-group-topk 1 "
     "must "
     "divide --moe-router-topk 4. A token "
     "cannot select more groups than exist, or more experts from a group than the group contains"},
    {EXPERTS " --moe-router-num-groups 4 --moe-router-group-topk 2 --moe-router-group-score-topk 3",
     "A token cannot select more groups than exist, or more experts from a group than the group contains"},
    {EXPERTS " --moe-router-load-balancing-type aux_loss aux_loss --moe-aux-loss-coeff 1 1",
     "each at most once, or only one of sinkhorn, quantile_balancing and none. --moe-aux-loss-coeff 1 1 must "
     "have one non-negative number for each listed type"},
    {EXPERTS " --moe-router-load-balancing-type aux_loss sinkhorn --moe-aux-loss-coeff 1 1",
     "none. --moe-aux-loss-coeff 1 1 must have one non-negative number for each listed type"},
    {EXPERTS " --moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 1",
     "one non-negative number for each listed type"},
    {EXPERTS " --moe-aux-loss-coeff -1", "non-negative number for each listed type"},
    {EXPERTS " --moe-router-load-balancing-type sinkhorn --moe-router-score-function sigmoid",
     "selects the experts itself: remove --moe-router-score-function sigmoid, --moe-router-num-groups and "
     "--moe-router-enable-expert-bias"},
    {EXPERTS " --moe-router-load-balancing-type sinkhorn --moe-router-enable-expert-bias",
     "--moe-router-num-groups and --moe-router-enable-expert-bias"},
    {EXPERTS " --moe-router-force-load-balancing --moe-router-force-biased 1",
     "both change the router's logits: remove one"},
    {EXPERTS " --moe-router-load-balancing-type quantile_balancing --moe-router-num-groups 2 "
             "--moe-router-group-topk 1",
     "its own biases and does not support groups: remove --moe-router-enable-expert-bias and "
     "--moe-router-num-groups"},
    {EXPERTS " --moe-router-score-function sparsemixer --moe-router-enable-expert-bias",
     "remove --moe-router-num-groups, --moe-router-enable-expert-bias and --moe-router-load-balancing-type "
     "quantile_balancing"},
    {EXPERTS " --moe-router-sparsemixer-eps 0.1",
     "has no effect without --moe-router-score-function sparsemixer: remove it"},
    {EXPERTS " --moe-router-load-balancing-type quantile_balancing --moe-router-topk 8",
     "must be a multiple of --num-experts 8, and --moe-router-topk must be less than --num-experts"},
    {EXPERTS " --moe-router-load-balancing-type quantile_balancing --num-experts 7",
     "must be a multiple of --num-experts 7, and --moe-router-topk must be less than --num-experts"},
    {EXPERTS " --moe-pad-expert-input-to-capacity", "needs --moe-expert-capacity-factor"},
    {EXPERTS " --moe-shared-expert-gate", "needs --moe-shared-expert-intermediate-size"},
    {EXPERTS " --batch-invariant-mode --moe-aux-loss-coeff 0.1",
     "use seq_aux_loss or none, without a capacity"},
    {EXPERTS " --lane exact --calculate-per-token-loss --ranks 2 --moe-aux-loss-coeff 0.1 "
             "--moe-router-load-balancing-type global_aux_loss",
     "or one data-parallel rank"},
    {EXPERTS " --batch-invariant-mode --moe-expert-capacity-factor 1", "without a capacity"},
    {"--num-layers-per-virtual-pipeline-stage 1", "above 1: remove --num-layers-per-virtual-pipeline-stage"},
    {"--num-virtual-stages-per-pipeline-rank 2", "above 1: remove --num-virtual-stages-per-pipeline-rank"},
    {"--num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 1", "remove one"},
    {"--decoder-first-pipeline-num-layers 1", "above 1: remove them"},
    {"--decoder-last-pipeline-num-layers 1 --account-for-loss-in-pipeline-split",
     "two, and lower the numbers of layers instead"},
    {"--decoder-last-pipeline-num-layers 1 --num-layers-per-virtual-pipeline-stage 1",
     "cannot be used with --num-layers-per-virtual-pipeline-stage: set "
     "--num-virtual-stages-per-pipeline-rank instead"},
    {"--overlap-param-gather",
     "--overlap-param-gather needs sharded parameters: add --use-distributed-optimizer or "
     "--use-megatron-fsdp, or remove --overlap-param-gather"},
    {"--no-cp-comm-overlap", "to keys that are passed around a ring: add --context-parallel-size above 1 and "
                             "--cp-comm-type p2p, or remove --no-cp-comm-overlap"},
    {"--ranks 2 --context-parallel-size 2 --cp-comm-type a2a --no-cp-comm-overlap",
     "to keys that are passed around a ring: add --context-parallel-size above 1 and --cp-comm-type p2p, or "
     "remove --no-cp-comm-overlap"},
    {"--overlap-dispatch-backward-with-experts-wgrad",
     "--overlap-dispatch-backward-with-experts-wgrad computes weight gradients during an all-to-all: add "
     "--expert-model-parallel-size above 1 and --moe-token-dispatcher-type alltoall, or remove "
     "--overlap-dispatch-backward-with-experts-wgrad"},
    {"--ranks 2 --tensor-model-parallel-size 2 --interleave-forward-backward",
     "add --interleaved-microbatches 2, or remove --interleave-forward-backward"},
    {"--ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --interleaved-microbatches 2 "
     "--interleave-forward-backward --pipeline-schedule zero-bubble",
     "cannot be used with --pipeline-schedule zero-bubble: remove one of them"},
    {"--ranks 2 --tensor-model-parallel-size 2 --interleaved-microbatches 2 --interleave-forward-backward "
     "--pipeline-schedule gpipe",
     "cannot be used with --pipeline-schedule gpipe: remove one of them"},
    {"--ranks 2 --tensor-model-parallel-size 2 --keep-gathered-inputs",
     "add --sequence-parallel and --tensor-model-parallel-size above 1, or remove --keep-gathered-inputs"},
    {"--ranks 2 --sequence-parallel --keep-gathered-inputs",
     "--tensor-model-parallel-size above 1, or remove --keep-gathered-inputs"},
    {"--ranks 2 --no-overlap-with-attention", "--overlap-grad-reduce or --overlap-param-gather: remove it"},
    {"--ranks 4 --tensor-model-parallel-size 2 --interleaved-microbatches 2 --use-megatron-fsdp",
     "--interleaved-microbatches 2 accumulates gradients of several layers at the same time, but ZeRO-2 and "
     "ZeRO-3 keep the gradients of only one layer: remove --interleaved-microbatches, or set "
     "--data-parallel-sharding-strategy optim"},
    {"--ranks 2 --tensor-model-parallel-size 2 --interleaved-microbatches 2 --cpu-offloading-num-layers 1 "
     "--num-layers 2",
     "--interleaved-microbatches 2 cannot be used with --cpu-offloading, which offloads one microbatch at a "
     "time: remove one of them"},
    {"--overlap-moe-expert-parallel-comm",
     "add --expert-model-parallel-size above 1 and --moe-token-dispatcher-type alltoall, or remove "
     "--overlap-moe-expert-parallel-comm"},
    {"--moe-shared-expert-overlap",
     "--moe-shared-expert-overlap computes the shared experts during an all-to-all: add "
     "--moe-shared-expert-intermediate-size, --expert-model-parallel-size above 1 and "
     "--moe-token-dispatcher-type alltoall, or remove --moe-shared-expert-overlap"},
    {"--use-megatron-fsdp --data-parallel-sharding-strategy no_shard --overlap-param-gather",
     "needs sharded parameters: add --use-distributed-optimizer or --use-megatron-fsdp, or remove "
     "--overlap-param-gather"},
    {"--ranks 4 --num-distributed-optimizer-instances 2",
     "--use-megatron-fsdp: add one of these, or remove --num-distributed-optimizer-instances"},
    {"--ranks 4 --use-distributed-optimizer --num-distributed-optimizer-instances 3",
     "3 must divide the number of ranks with the same parameters: change it. For dense parameters, this "
     "number is the 4 ranks divided by the tensor- and pipeline-parallel sizes. For experts, it is the same "
     "number of ranks divided by the expert-tensor-, expert- and pipeline-parallel sizes"},
    {"--ranks 4 --num-experts 4 --expert-model-parallel-size 2 --use-distributed-optimizer "
     "--num-distributed-optimizer-instances 4",
     "4 must divide the number of ranks with the same parameters: change it. For dense parameters, this "
     "number is the 4 ranks divided by the tensor- and pipeline-parallel sizes. For experts, it is the same "
     "number of ranks divided by the expert-tensor-, expert- and pipeline-parallel sizes"},
    {"--ddp-bucket-size 5 --ddp-num-buckets 3", "are mutually exclusive: remove one"},
    {"--cross-entropy-chunk-size 64", "add --cross-entropy-loss-fusion --cross-entropy-fusion-impl linear, "
                                      "or remove --cross-entropy-chunk-size"},
    {"--cross-entropy-fusion-impl linear",
     "add --cross-entropy-loss-fusion, or remove --cross-entropy-fusion-impl"},
    {"--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear --add-output-layer-bias",
     "does not support a bias in the output layer: remove --cross-entropy-fusion-impl or "
     "--add-output-layer-bias"},
    {"--cross-entropy-loss-fusion --cross-entropy-chunk-size 64",
     "--cross-entropy-fusion-impl linear, or remove --cross-entropy-chunk-size"},
    {EXPERTS " --expert-model-parallel-size 3 --ranks 3",
     "--num-experts 8 is not a multiple of --expert-model-parallel-size 3: change one of them"},
    {EXPERTS " --expert-tensor-parallel-size 3 --ranks 3 --moe-ffn-hidden-size 8",
     "size of an expert is not a multiple of 3, the number of ranks that share the expert: change "
     "--moe-ffn-hidden-size or --expert-tensor-parallel-size"},
    {EXPERTS " --expert-model-parallel-size 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size "
             "2 --sequence-parallel",
     "copy of them needs 32 ranks, the expert-tensor-parallel size 2 times --expert-model-parallel-size 8 "
     "times --pipeline-model-parallel-size 2. Set --ranks to a multiple of 32"},
    {EXPERTS " --expert-tensor-parallel-size 2 --ranks 2 --ffn-hidden-size 7",
     "size of an expert is not a multiple of 2, the number of ranks that share the expert: change "
     "--moe-ffn-hidden-size or --expert-tensor-parallel-size"},
    {EXPERTS
     " --tensor-model-parallel-size 2 --ranks 2 --sequence-parallel --moe-shared-expert-intermediate-size 7",
     "--moe-shared-expert-intermediate-size 7 is not a multiple of --tensor-model-parallel-size 2: change "
     "one of them"},
    {EXPERTS " --tensor-model-parallel-size 2 --ranks 2",
     "need --sequence-parallel, because each rank must route different tokens: add --sequence-parallel"},
    {"--pipeline-model-parallel-layout EttL",
     "has no effect without --pipeline-model-parallel-size above 1: remove --pipeline-model-parallel-layout"},
    {"--pipeline-model-parallel-layout EttL --account-for-loss-in-pipeline-split",
     "already defines all stages: remove --decoder-first-pipeline-num-layers, "
     "--decoder-last-pipeline-num-layers, --account-for-embedding-in-pipeline-split, "
     "--account-for-loss-in-pipeline-split, --num-layers-per-virtual-pipeline-stage and "
     "--num-virtual-stages-per-pipeline-rank"},
    {"--pipeline-model-parallel-size 4 --microbatch-group-size-per-virtual-pipeline-stage 3", "raise it"},
    {"--tensor-model-parallel-size 4 --group-query-attention --num-query-groups 1 --num-attention-heads 4 "
     "--kv-channels 3",
     "cannot be divided evenly among the ranks: 2 * --num-query-groups 1 * --kv-channels 3 (none = "
     "--hidden-size / --num-attention-heads) must be a multiple of --tensor-model-parallel-size 4: change "
     "one of them"},
    {CONTEXT " --cp-comm-type ring",
     "be p2p, allgather, a2a or a2a+p2p: one value for all layers, or one for each of --num-layers 2. T5's "
     "decoder uses the same values as the encoder, so the decoder must not have more layers"},
    {CONTEXT " --cp-comm-type p2p a2a p2p", "for each of --num-layers 2. T5's decoder uses the same values "
                                            "as the encoder, so the decoder must not have more layers"},
    {CONTEXT " --cp-comm-type a2a+p2p", "a2a+p2p needs these numbers"},
    {CONTEXT " --cp-comm-type p2p a2a+p2p --hierarchical-context-parallel-sizes 2 4",
     "product is --context-parallel-size 4. --cp-comm-type a2a+p2p needs these numbers"},
    {CONTEXT " --hierarchical-context-parallel-sizes 0 4",
     "product is --context-parallel-size 4. --cp-comm-type a2a+p2p needs these numbers"},
    {CONTEXT " --cp-comm-type p2p a2a --tensor-model-parallel-size 2",
     "cannot distribute the heads of a tensor-parallel rank evenly among its context-parallel ranks: use p2p "
     "or allgather. The relevant options are --num-attention-heads 4, --num-query-groups 1, "
     "--tensor-model-parallel-size 2, --context-parallel-size 4, --hierarchical-context-parallel-sizes none"},
    {CONTEXT " --cp-comm-type a2a --attention-backend unfused --group-query-attention --num-query-groups 4 "
             "--tensor-model-parallel-size 4",
     "cannot distribute the heads of a tensor-parallel rank evenly among its context-parallel ranks: use p2p "
     "or allgather. The relevant options are --num-attention-heads 4, --num-query-groups 4, "
     "--tensor-model-parallel-size 4, --context-parallel-size 4, --hierarchical-context-parallel-sizes none"},
    {CONTEXT " --attention-backend unfused",
     "passes them around a ring: use allgather or a2a, or another backend"},
    {CONTEXT " --attention-backend unfused --cp-comm-type allgather a2a+p2p "
             "--hierarchical-context-parallel-sizes 2 2",
     "passes them around a ring: use allgather or a2a, or another backend"},
    {"--recompute-granularity full", "needs --recompute-method and --recompute-num-layers"},
    {"--recompute-method block", "needs --recompute-granularity full, not none"},
    {"--recompute-activations --recompute-modules attn",
     "shared_experts, layernorm, moe_act or gdn_norm_out"},
    {"--recompute-granularity selective --recompute-modules mla_up_proj", "needs --multi-latent-attention"},
    {"--recompute-granularity selective --recompute-modules gdn_norm_out", "or remove gdn_norm_out"},
    {"--no-position-embedding",
     "needs --position-embedding-type rope or yarn, not learned_absolute. For a model "
     "without position embeddings, set --position-embedding-type none"},
    {EXPERTS " --moe-router-load-balancing-type sinkhorn --moe-aux-loss-coeff 1",
     "none. --moe-aux-loss-coeff 1 must have one non-negative number for each listed type"},
    {"--use-flash-attn --attention-backend unfused",
     "--use-flash-attn and --attention-backend contradict each other: remove one of them"},
    {"--tokenizer-type SFTTokenizer", "SFTTokenizer is not supported: Use HuggingFaceTokenizer with the "
                                      "tokenizer.json of the model, or another type of text tokenizer"},
    {"--recompute-modules mlp", "needs --recompute-granularity selective, not none"},
    {"--cpu-offloading", "set --cpu-offloading-num-layers"},
    {"--cpu-offloading-num-layers 2", "less than --num-layers 2"},
    {FINE "core_attn --recompute-granularity full --recompute-method block --recompute-num-layers 1",
     "--recompute-granularity full discards: remove one of them"},
    {FINE "core_attn --cpu-offloading-num-layers 1",
     "which offloads all activations of a layer: remove one of them"},
    {"--fine-grained-activation-offloading", "alone offloads nothing: set --offload-modules"},
    {FINE "mlp", "qkv_linear, core_attn, attn_proj, expert_fc1 or moe_act"},
    {FINE "attn_proj", "whose backward pass also reads the input of attn_proj"},
    {FINE "moe_act --num-experts 2 --recompute-granularity selective --recompute-modules moe",
     "would offload: remove expert_fc1 and moe_act"},
    {FINE "core_attn --ranks 2 --pipeline-model-parallel-size 2",
     "and --interleaved-microbatches 1, not 2 and 1"},
    {FINE "core_attn --pipeline-schedule gpipe", "it needs --pipeline-schedule 1f1b, not gpipe"},
    {"--cpu-offloading-num-layers 1 --recompute-activations",
     "--recompute-granularity selective discards: remove one of them"},
    {"--cpu-offloading-num-layers 1 --pipeline-model-parallel-size 2",
     "needs --pipeline-model-parallel-size 1, not 2"},
    {"--cpu-offloading-num-layers 1 --pipeline-schedule zero-bubble",
     "it needs --pipeline-schedule 1f1b, not zero-bubble"},
    {"--train-samples 100", "are mutually exclusive: remove one"},
    {"--global-batch-size 16 --rampup-batch-size 2 3 100",
     "samples, and --global-batch-size 16 must exceed the start by a multiple of the increment"},
    {"--global-batch-size 8 --rampup-batch-size 3 5 100",
     "Each size from --rampup-batch-size 3 5 100 to --global-batch-size 8 must be a multiple of "
     "--micro-batch-size 2 times the data-parallel size 1: change one of them"},
    {"--step-batch-size-schedule 0:3",
     "Each size in --step-batch-size-schedule 0:3 must be a multiple of --micro-batch-size 2 times the "
     "data-parallel size 1: change one of them"},
    {"--global-batch-size 16 --rampup-batch-size 2 2 100", "--train-samples instead of --train-iters 10"},
    {"--step-batch-size-schedule 50:16",
     "such as '0:16 2.4B:320'. The first threshold must be 0, and each of the others must exceed the "
     "previous one by at least one sample"},
    {"--step-batch-size-schedule 0:16,x",
     "such as '0:16 2.4B:320'. The first threshold must be 0, and each of the others must exceed the "
     "previous one by at least one sample"},
    {"--step-batch-size-schedule 0:16,1K:8,1K:16",
     "such as '0:16 2.4B:320'. The first threshold must be 0, and each of the others must exceed the "
     "previous one by at least one sample"},
    {"--step-batch-size-schedule 0:16 --global-batch-size 16", "are mutually exclusive: remove one"},
    {"--model bert --bert-no-binary-head --log-max-attention-logit",
     "--qk-clip and --log-max-attention-logit need --model gpt, not bert"},
    {"--qk-clip --attn-logit-softcapping 30", "--qk-clip and --log-max-attention-logit do not support "
                                              "softcapping of scores: remove --attn-logit-softcapping 30"},
    {"--qk-clip --qk-clip-alpha 1", "--qk-clip-alpha 1 must be between 0 and 1"},
    {"--lr-warmup-init 1", "above --lr 0.001: lower it"},
    {"--decoupled-min-lr 1", "needs --decoupled-lr"},
    {"--lr-decay-samples 5", "counts steps: use --lr-decay-iters, --lr-wsd-decay-iters and --lr-warmup-iters "
                             "instead of the -samples options"},
    {"--lr-warmup-fraction 0.1 --lr-warmup-iters 1", "remove one"},
    {"--lr-warmup-iters 10", "--lr-warmup-iters 10 must be less than the 10 iterations of the decay "
                             "(--lr-decay-iters, by default --train-iters): lower --lr-warmup-iters"},
    {"--lr-warmup-fraction 1", "--lr-warmup-fraction 1 must be less than 1"},
    {"--lr-decay-style WSD", "needs --lr-wsd-decay-iters or --lr-wsd-decay-samples"},
    {"--start-weight-decay 0.1", "linear or cosine"},
    {"--weight-decay-incr-style linear", "needs --start-weight-decay and --end-weight-decay"},
    {"--adam-beta2 1", "less than 1"},
    {"--train-data-path x", "--mock-data cannot be used with data paths: remove one"},
    {"--tokenizer-type NullTokenizer", "needs --vocab-size"},
    {"--fim-data --tokenizer-type ByteLevelTokenizer", "replace --mock-data with --data-path"},
    {"--mock-data=false --data-path x --fim-data",
     "--fim-data needs the tokenizer that produced the data: set --tokenizer-type"},
    {"--fim-split-sample x", "--fim-split-sample needs --fim-fragment-rate"},
    {"--save x --save-interval 4 --save-retain-interval 6", "multiple of --save-interval 4"},
    {"--save x --save-interval 0", "--save-interval must be at least 1, not 0"},
    {"--most-recent-k 0", "-1 to keep all checkpoints"},
    {"--use-checkpoint-args", "needs --load"},
    {"--swiglu --hidden-size=16", "too small for the default --ffn-hidden-size of swiglu: set "
                                  "--ffn-hidden-size"},
    {"--seed -1", "--seed must be from 0 to 4294967295, not -1"},
    {"--num-layers none", "The model needs --num-layers, or --load with --use-checkpoint-args"},
    {"--hidden-size none", "The model needs --hidden-size, or --load with --use-checkpoint-args"},
    {"--num-attention-heads none",
     "The model needs --num-attention-heads, or --load with --use-checkpoint-args"},
    {"--seq-length none", "The model needs --seq-length, or --load with --use-checkpoint-args"},
    {"--hidden-size 65", "--hidden-size 65 is not a multiple of --num-attention-heads 4: change one of them "
                         "or set --kv-channels"},
    {"--max-position-embeddings 15",
     "--seq-length 16 is longer than --max-position-embeddings 15: raise --max-position-embeddings"},
    {"--position-embedding-type rope --use-rope-scaling --rope-scaling-low-freq-factor 4",
     "--rope-scaling-low-freq-factor 4 must be less than --rope-scaling-high-freq-factor 4"},
    {"--num-layers 65536 --hidden-size 1048576 --num-attention-heads 1",
     "overflow 64-bit integers: lower the largest of --num-layers, --hidden-size, "
     "--ffn-hidden-size, --num-experts, --kv-channels, --vocab-size, --seq-length and --micro-batch-size"},
    {"--attention-dropout 1", "--attention-dropout 1 must be less than 1"},
    {"--bf16 --fp8-format hybrid --fp8-keep-weights --ranks 2 --use-distributed-optimizer "
     "--overlap-param-gather",
     "quantizes weights before the first pass of a step, but the weights are not gathered until that pass "
     "starts. Remove --fp8-keep-weights, or remove --overlap-param-gather and ZeRO-3"},
    {"--bf16 --fp8-format hybrid --fp8-keep-weights --ranks 2 --use-distributed-optimizer --device cuda "
     "--hidden-dropout 0 --attention-dropout 0 --cuda-graph-impl local",
     "--fp8-keep-weights quantizes weights before a step's CUDA graph, but that graph gathers the weights. "
     "Remove --fp8-keep-weights, --cuda-graph-impl or data-parallel sharding"},
    {"--fp16 --initial-loss-scale 2 --min-loss-scale 4",
     "--min-loss-scale 4 is above --initial-loss-scale 2: lower it"},
    {"--ranks 3 --tensor-model-parallel-size 2",
     "--ranks 3 is not a multiple of --tensor-model-parallel-size 2 times --pipeline-model-parallel-size 1 "
     "times --context-parallel-size 1: change one of them"},
    {"--expert-model-parallel-size 2 --ranks 2",
     "no effect without --num-experts: remove --expert-model-parallel-size"},
    {"--ranks 3 --num-attention-heads 6 --hidden-size 66 --tensor-model-parallel-size 3 "
     "--group-query-attention --num-query-groups 2",
     "--num-query-groups 2 and --tensor-model-parallel-size 3 must be a multiple of the other: change one of "
     "them"},
    {"--ranks 2 --tensor-model-parallel-size 2 --ffn-hidden-size 7",
     "--ffn-hidden-size 7 is not a multiple of --tensor-model-parallel-size 2: change one of them"},
    {"--ranks 3 --tensor-model-parallel-size 3 --swiglu --num-attention-heads 3 --kv-channels 4",
     "The default MLP width for --hidden-size 64 is not a multiple of --tensor-model-parallel-size 3: set "
     "--ffn-hidden-size"},
    {"--ranks 2 --context-parallel-size 2 --seq-length 6",
     "--seq-length 6 is not a multiple of twice --context-parallel-size 2 (each rank has two chunks): change "
     "one of them"},
    {"--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel --seq-length 7",
     "With --sequence-parallel, --seq-length 7 must be a multiple of --tensor-model-parallel-size 2 times "
     "--context-parallel-size 1: change one of them"},
    {"--distributed-backend gloo --nccl-library x",
     "--nccl-library has no effect with --distributed-backend gloo: remove one of them"},
    {"--distributed-backend gloo --use-nccl-ub",
     "--use-nccl-ub has no effect with --distributed-backend gloo: remove one of them"},
    {"--gemm-sm-margin 2", "--gemm-sm-margin 2 applies only to GPUs: it needs --device cuda, not cpu"},
    {"--cuda-graph-impl local --hidden-dropout 0 --attention-dropout 0",
     "--cuda-graph-impl local applies only to GPUs: it needs --device cuda, not cpu"},
    {"--device cuda --ranks 2 --distributed-backend gloo --cuda-graph-impl local --hidden-dropout 0 "
     "--attention-dropout 0",
     "NCCL communication, and cannot be used with --distributed-backend gloo: remove one of them"},
    {"--device cuda --ranks 2 --cuda-graph-impl local --hidden-dropout 0 --attention-dropout 0 " EXPERTS
     " --expert-model-parallel-size 2",
     "cannot be used with experts on several ranks, because the graph would repeat one routing of tokens: "
     "remove --cuda-graph-impl, or set --expert-model-parallel-size 1 and --expert-tensor-parallel-size 1"},
    {"--device cuda --cuda-graph-impl local",
     "would repeat the random numbers of one microbatch: it needs --hidden-dropout 0, --attention-dropout 0, "
     "no --classifier-dropout above 0, no --moe-input-jitter-eps, no --moe-router-force-load-balancing and "
     "no --moe-router-force-biased"},
    {"--device cuda --cuda-graph-impl local --hidden-dropout 0 --attention-dropout 0 " EXPERTS
     " --moe-router-force-biased 1",
     "no --moe-router-force-load-balancing and no --moe-router-force-biased"},
    {"--device cuda --cuda-graph-impl local --hidden-dropout 0 --attention-dropout 0 " EXPERTS
     " --moe-router-force-load-balancing",
     "no --moe-router-force-load-balancing and no --moe-router-force-biased"},
    {"--micro-batch-size none", "Training needs --micro-batch-size"},
    {"--train-iters none", "Training needs --train-iters or --train-samples"},
    {"--eval-global-batch-size 5",
     "--eval-global-batch-size 5 must be a multiple of --micro-batch-size 2 times the "
     "data-parallel size 1: change one of them"},
    {"--global-batch-size 5", "--global-batch-size 5 must be a multiple of --micro-batch-size 2 times the "
                              "data-parallel size 1: change one of them"},
    {"--train-iters none --train-samples 100 --step-batch-size-schedule 0:16 --rampup-batch-size 2 2 100",
     "--step-batch-size-schedule and --rampup-batch-size are mutually exclusive: remove one"},
    {"--train-iters none --train-samples 100 --rampup-batch-size 2 2 100",
     "--rampup-batch-size needs --global-batch-size, the final batch size"},
    {"--lr none", "Training needs --lr"},
    {"--min-lr 1", "--min-lr 1 is above --lr 0.001: lower it"},
    {"--decoupled-lr 1e-4 --decoupled-min-lr 1e-3",
     "0.001; if none, --min-lr 0) is above --decoupled-lr 0.0001: lower the minimum"},
    {"--train-iters none --train-samples 100 --lr-decay-iters 5",
     "counts samples: use --lr-decay-samples, --lr-wsd-decay-samples and --lr-warmup-samples instead of the "
     "-iters options"},
    {"--train-iters none --train-samples 100 --lr-warmup-samples 100",
     "--lr-warmup-samples 100 must be less than the 100 samples of the decay (--lr-decay-samples, by default "
     "--train-samples): lower --lr-warmup-samples"},
    {"--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler",
     "--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler are mutually exclusive: remove "
     "one"},
    {"--adam-beta1 1", "--adam-beta1 1 must be at least 0 and less than 1"},
    {"--muon-momentum 1", "must be less than 1"},
    {"--optimizer muon --fp16", "use bf16 or fp32"},
    {"--optimizer muon --lane exact", "quotients: use --lane fp64"},
    {"--optimizer muon --use-megatron-fsdp", "use --use-distributed-optimizer, which does not split them"},
    {"--muon-coefficient-type cubic5 --muon-num-ns-steps 4", "remove --muon-num-ns-steps 4"},
    {"--optimizer muon --muon-tp-mode blockwise --tensor-model-parallel-size 4 --group-query-attention",
     "use duplicated, or add --muon-no-split-qkv"},
    {"--muon-fp32-matmul-prec low", "Use medium or high"},
    {"--mock-data=false", "Training needs data: --data-path, --train-data-path or --mock-data"},
    {"--mock-data=false --data-path x --valid-data-path y",
     "--train-data-path, --valid-data-path or --test-data-path: remove one, or the file that contains it"},
    {"--data-path x --data-args-path /dev/null",
     "/dev/null contains the value of --data-path: remove one of them"},
    {"--valid-data-path w x y z --per-split-data-args-path tests/data/paths.json", ": remove it or them"},
    {"--mock-data=false --train-data-path x --split 1,1,1",
     "--split 1,1,1 cannot be used with --train-data-path, --valid-data-path or --test-data-path: remove it"},
    {"--save x", "--save needs --save-interval"},
    {"--exit-on-missing-checkpoint", "--exit-on-missing-checkpoint needs --load"},
    {"--task MNLI", "--task supports only BERT: set --model bert instead of gpt"},
    {"--classifier-dropout 1", "--classifier-dropout 1 must be less than 1"},
    {"--class-labels a a", "--class-labels lists a class twice: remove the duplicate"},
    {"--class-labels a", "at least two classes"},
};

static const char *const ENCODERS[][2] = {
    {T5 "--cp-comm-type p2p a2a",
     "decoder uses the same values as the encoder, so the decoder must not have more layers"},
    {T5 "--bf16 --fp8-format e4m3 --fp8-recipe tensorwise --first-last-layers-bf16 "
        "--num-layers-at-end-in-bf16 3",
     "together must be fewer than --num-layers 2 or, in T5, --decoder-num-layers"},
    {BERT "--num-experts 8 --disable-bias-linear",
     "--num-experts needs --model gpt: Isotron's BERT has no experts"},
    {BERT "--window-size 4,0", "--window-size needs --model gpt: BERT attends to all positions"},
    {BERT "--logits-scaling 2",
     "--logits-scaling and --final-logit-softcapping need --model gpt: BERT's output layer does not support "
     "them"},
    {BERT "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear", "BERT's output layer has a bias"},
    {BERT "--reset-attention-mask", "need --model gpt: a sample of BERT or T5 is one document"},
    {BERT "--cpu-offloading-num-layers 2", "must be less than --num-layers 2"},
    {ANY "--model t5", "--model t5 needs --decoder-seq-length"},
    {T5 "--max-position-embeddings 16 --decoder-seq-length 20",
     "--decoder-seq-length 20 is longer than --max-position-embeddings 16: raise --max-position-embeddings"},
    {T5 "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear",
     "support a bias in the output layer, and T5 with tied embeddings has such a bias: remove "
     "--cross-entropy-fusion-impl"},
    {T5 "--num-experts 8 --disable-bias-linear", "T5 does not support experts: remove --num-experts"},
    {T5 "--group-query-attention --num-query-groups 2", "remove --group-query-attention"},
    {T5 "--window-size 4,0", "remove --window-size and --softmax-type"},
    {T5 "--qk-l2-norm", "or --model t5: remove one of them"},
    {T5 "--position-embedding-type rope --attention-chunk-size 4", "without --multi-latent-attention"},
    {BERT "--position-embedding-type rope --attention-chunk-size 4", "without --multi-latent-attention"},
    {BERT "--position-embedding-type rope --no-rope-temperature-scale 0.1",
     "without --multi-latent-attention"},
    {T5 "--softmax-type learnable", "remove --window-size and --softmax-type"},
    {T5 "--qk-layernorm", "remove --qk-layernorm"},
    {T5 "--norm-placement post", "remove --norm-placement and --parallel-residual"},
    {T5 "--position-embedding-type rope --no-rope-freq 2", "remove --no-rope-freq"},
    {T5 "--eod-mask-loss", "need --model gpt: a sample of BERT or T5 is one document"},
    {T5 "--recompute-granularity full --recompute-method block --recompute-num-layers 5",
     "--recompute-num-layers 5 is more than --num-layers 2"},
    {T5 "--cpu-offloading-num-layers 6", "--cpu-offloading-num-layers 6 must be less than the total number "
                                         "of layers of the encoder and the decoder"},
    {T5 "--ranks 2 --context-parallel-size 2 --decoder-seq-length 6",
     "--decoder-seq-length 6 is not a multiple of twice --context-parallel-size 2 (each rank has two "
     "chunks): change one of them"},
    {BERT "--position-embedding-type relative", "--position-embedding-type relative needs --model t5"},
    {ANY "--position-embedding-type relative", "--position-embedding-type relative needs --model t5"},
    {T5 "--position-embedding-type alibi",
     "does not support --position-embedding-type alibi: use relative instead"},
    {RELATIVE BUCKETS "3", "--relative-attention-num-buckets must be from 4 to 256, not 3"},
    {RELATIVE BUCKETS "257", "--relative-attention-num-buckets must be from 4 to 256, not 257"},
    {RELATIVE DISTANCE "1", "--relative-attention-max-distance must be from 2 to 1073741824, not 1"},
    {RELATIVE BUCKETS "32" DISTANCE "16",
     "--relative-attention-max-distance 16 must be more than half of --relative-attention-num-buckets 32, "
     "because half of the buckets contain one distance each"},
    {RELATIVE BUCKETS "13" DISTANCE "6",
     "--relative-attention-max-distance 6 must be more than half of --relative-attention-num-buckets 13, "
     "because half of the buckets contain one distance each"},
    {T5 "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel --decoder-seq-length 7",
     "With --sequence-parallel, --decoder-seq-length 7 must be a multiple of --tensor-model-parallel-size 2 "
     "times --context-parallel-size 1: change one of them"},
    {BERT "--mask-prob 1", "--mask-prob 1 must be greater than 0 and less than 1"},
    {BERT "--mock-data=false --data-path x --fim-data",
     "--fim-data needs --model gpt, because the samples of BERT and T5 contain masked text"},
    {BERT "--num-token-types 1", "not --num-token-types 1: set --bert-no-binary-head"},
};

/* Command lines that just satisfy these rules. */
static const char *const KEEPING[] = {
    BERT "--cpu-offloading-num-layers 1",
    T5 "--cpu-offloading-num-layers 5",
    T5 "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
    T5 "--max-position-embeddings 16 --decoder-seq-length 16",
    T5 "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear --untie-embeddings-and-output-weights",
    T5 "--ranks 2 --context-parallel-size 2",
    /* a length that has no effect must break no rule */
    ANY "--decoder-seq-length 20 --max-position-embeddings 16",
    BERT "--decoder-seq-length 7 --ranks 2 --context-parallel-size 2",
    ANY "--decoder-seq-length 7 --ranks 2 --tensor-model-parallel-size 2 --sequence-parallel",
    RELATIVE,
    RELATIVE BUCKETS "4" DISTANCE "3",
    RELATIVE BUCKETS "256" DISTANCE "129",
    RELATIVE BUCKETS "32" DISTANCE "17",
    RELATIVE BUCKETS "13" DISTANCE "7",
};

static const char *const TASKS[][2] = {
    {"--epochs 1 --train-data x --valid-data y", "Fine-tuning needs --task: MNLI, QQP, RACE or labels"},
    {"--task MNLI --train-data x --valid-data y", "Fine-tuning needs --epochs"},
    {"--task MNLI --epochs 1 --train-data x",
     "needs --valid-data, because the accuracy on this data is printed after each epoch"},
    {"--task MNLI --epochs 1 --train-data x --valid-data y z y",
     "--valid-data lists a file twice, but the accuracy on each file is reported only once: remove the "
     "duplicate"},
    {"--task MNLI --epochs 1 --valid-data y",
     "Fine-tuning needs --train-data, or --epochs 0 to evaluate only"},
    {"--task MNLI --epochs 0 --valid-data y", "--epochs 0 needs a checkpoint to evaluate: set --load"},
    {"--model gpt", "finetune supports only BERT: set --model bert instead of gpt"},
};

static const char *const GENERATION[][2] = {
    {"--prompt a", "Generation needs a checkpoint: set --load"},
    {"--load x --prompt a --num-speculative-tokens 2 --speculative-model y " MAMBA,
     "--num-speculative-tokens 2 does not support the letter M in --hybrid-layer-pattern, because a state "
     "cannot return "
     "to an earlier token: remove it"},
    {"--load x --prompt a --num-speculative-tokens 2 --speculative-model y " DELTA,
     "--num-speculative-tokens 2 does not support Gated DeltaNet layers, because a state cannot return to an "
     "earlier "
     "token: remove it"},
    {"--load x --prompt a --bf16 --fp8-format hybrid --quantization int8",
     "--quantization int8 and --fp8-format hybrid both select the format of weights: remove one"},
    {"--load x --prompt a --lane exact --quantization fp8",
     "--quantization fp8 cannot be used with --lane exact, whose numbers are multiples of one power of two: "
     "remove one of them"},
    {"--load x", "Generation needs --prompt, --prompts-file, --prompt-file or --interactive"},
    {"--load x --prompts-file a --prompt-file b",
     "--prompt, --prompts-file, --prompt-file and --interactive are mutually exclusive: keep one"},
    {"--load x --interactive --model t5",
     "A conversation needs a GPT model: load a GPT checkpoint, or remove --interactive"},
    {"--load x --prompt a --output-path b --top-n-logprobs 2",
     "--top-n-logprobs needs the log-probabilities of the chosen tokens: add --return-log-probs"},
    {"--load x --prompt a --model bert",
     "BERT predicts masked tokens and cannot generate text: load a GPT or T5 checkpoint"},
    {"--load x --prompt a --multi-latent-attention --position-embedding-type rope --disable-bias-linear "
     "--cache-mla-latents "
     "--bf16 --fp8-format hybrid",
     "--cache-mla-latents cannot be used with FP8, which would quantize the weights of keys and values "
     "differently: remove --fp8-format"},
    {"--load x --prompt a --top-k 3 --top-p 0.5",
     "--top-k 3 and --top-p 0.5 are mutually exclusive: remove one, or apply both with "
     "--inference-dynamic-batching-sampling-backend flashinfer"},
    {"--load x --prompt a --beam-width 2 --stop b",
     "--stop has no effect without sampling (--beam-width 0): remove it"},
    {"--load x --prompt a --beam-width 2 --output-path y",
     "--output-path has no effect without sampling (--beam-width 0): remove it"},
    {"--load x --prompt a --num-speculative-tokens 2",
     "--num-speculative-tokens 2 is more than the model's --mtp-num-layers 0: lower "
     "--num-speculative-tokens, or set --speculative-model"},
    {"--load x --prompt a --model t5 --decoder-seq-length 8 --num-speculative-tokens 2 --speculative-model y",
     "--num-speculative-tokens supports only GPT, not --model t5: remove it"},
};

static const char *const SERVING[][2] = {
    {"--model bert", "The server supports only GPT: load a GPT checkpoint"},
    {"--inference-dynamic-batching-block-size 96",
     "--inference-dynamic-batching-block-size 96 must be a multiple of 64"},
    {"--inference-dynamic-batching-max-tokens 255",
     "--inference-dynamic-batching-max-tokens 255 must be at least 256, the number of requests that run at "
     "the same "
     "time: raise it, or lower --inference-dynamic-batching-max-requests"},
    {"--inference-dynamic-batching-max-tokens 3 --inference-dynamic-batching-max-requests 4",
     "--inference-dynamic-batching-max-tokens 3 must be at least (1 + --num-speculative-tokens) times the "
     "number of requests that run at the same time: raise it, or lower "
     "--inference-dynamic-batching-max-requests"},
    {"--inference-dynamic-batching-max-tokens 11 --inference-dynamic-batching-max-requests 4 "
     "--num-speculative-tokens 2 --speculative-model x",
     "--inference-dynamic-batching-max-tokens 11 must be at least (1 + --num-speculative-tokens) times the "
     "number of requests that run at the same time: raise it, or lower "
     "--inference-dynamic-batching-max-requests"},
};

static const char *const MEASURING[][2] = {
    {"--model bert", "bench infer supports only GPT: remove --model"},
    {"--bf16 --fp8-format hybrid", "infer does not support FP8 weights: remove --fp8-format"},
};

static const struct {
    unsigned checks;
    const char *valid, *const (*rows)[2]; /* each row adds options to `valid` */
    size_t n;
} BREAKING[] = {
#define ROWS(rows) rows, sizeof(rows) / sizeof *(rows)
    {CHECK_MODEL | CHECK_TRAIN | CHECK_DATA, VALID, ROWS(GPT)},
    {CHECK_MODEL | CHECK_TRAIN | CHECK_DATA, VALID, ROWS(HYBRID)},
    {CHECK_MODEL | CHECK_TRAIN | CHECK_DATA, VALID, ROWS(FP8_RULES)},
    {CHECK_MODEL | CHECK_TRAIN, "", ROWS(ENCODERS)},
    {CHECK_MODEL | CHECK_TRAIN | CHECK_TASK, VALID "--model bert ", ROWS(TASKS)},
    {CHECK_MODEL | CHECK_GENERATE, VALID, ROWS(GENERATION)},
    {CHECK_MODEL | CHECK_SERVE, VALID "--load x ", ROWS(SERVING)},
    {CHECK_MODEL | CHECK_BENCH_INFER, VALID, ROWS(MEASURING)},
};

static const char *const RULES[] = {
#define RULE(check, condition, message) message,
#define IDLE(...)
#include "config/rules.def"
};
enum { N_RULES = sizeof RULES / sizeof *RULES };

/* Whether a line is this message, with any text instead of each %name. */
static bool is_message(const char *line, size_t n, const char *message) {
    const size_t same = strcspn(message, "%"); /* length of the text before a value */
    if (n < same || strncmp(line, message, same)) return false;
    if (!message[same]) return n == same;
    const char *rest = message + same + 1;
    rest += *rest == ':'; /* %:name is a derived value */
    while (isalnum((unsigned char)*rest) || *rest == '-') rest++;
    for (size_t at = same; at <= n; at++)
        if (is_message(line + at, n - at, rest)) return true;
    return false;
}

static void find_rules(const char *lines, bool *found) {
    for (const char *end; (end = strchr(lines, '\n')); lines = end + 1)
        for (int i = 0; i < N_RULES; i++) found[i] |= is_message(lines, (size_t)(end - lines), RULES[i]);
}

TEST(each_rule_can_be_broken) {
    Arena *arena = arena_new();
    bool found[N_RULES] = {false};
    for (size_t t = 0; t < sizeof BREAKING / sizeof *BREAKING; t++)
        for (size_t i = 0; i < BREAKING[t].n; i++) {
            const char *const *row = BREAKING[t].rows[i];
            const char *said =
                problems(arena, BREAKING[t].checks, arena_printf(arena, "%s%s", BREAKING[t].valid, row[0]));
            if (!strstr(said, arena_printf(arena, "%s.\n", row[1]))) fail_msg("%s: '%s'", row[0], said);
            find_rules(said, found);
        }
    for (int i = 0; i < N_RULES; i++)
        if (!found[i]) fail_msg("no row breaks: %s", RULES[i]);
    arena_free(arena);
}

TEST(each_rule_can_be_kept) {
    Arena *arena = arena_new();
    for (size_t i = 0; i < sizeof KEEPING / sizeof *KEEPING; i++) {
        const char *found = problems(arena, CHECK_MODEL | CHECK_TRAIN, KEEPING[i]);
        if (*found) fail_msg("%s: '%s'", KEEPING[i], found);
    }
    arena_free(arena);
}
