/* Tests that an option of a NEEDS or IDLE row (config/rules) is reported as having no effect if and only if what it
 * needs is missing. */
#include <stdio.h>
#include <string.h>

#include "unit/cmocka_all.h"

#include "config/config.h"
#include "unit/config/command_lines.h"
#include "unit/config/parse.h"
#include "unit/err.h"

enum {
    TRAIN = CHECK_TRAIN,
    IN_TASK = CHECK_TASK,
    IN_MODEL = CHECK_MODEL,
    LAYOUT = CHECK_LAYOUT,
    PASSES = CHECK_PASSES,
    INFER = CHECK_INFER,
    GENERATE = CHECK_GENERATE,
    SERVE = CHECK_SERVE,
    BENCH = CHECK_BENCH_INFER,
    ANY = CHECK_ANY,
    MOST = 12
};

/* With each command line of `used`, the options have an effect. With each of `idle`, they have none, because `without`
 * is missing. Megatron-LM does not have options marked ~. */
typedef struct Need {
    unsigned check;
    const char *without, *options, *used[MOST], *idle[MOST];
} Need;

static const Need NEEDS_ROWS[] = {
    {TRAIN,
     "--save",
     "--save-interval 2 --async-save --save-retain-interval 2 --most-recent-k 3 --no-save-optim",
     {GPT "--save x "},
     {GPT}},
    {TRAIN,
     "--save, whose folder it writes to",
     "--log-progress",
     {GPT "--save x --save-interval 2 "},
     {GPT}},
    {TRAIN, "--load", "--ckpt-step 1", {GPT "--load x "}, {GPT, GPT "--pretrained-checkpoint x "}},
    {TRAIN,
     "--load or --pretrained-checkpoint",
     "--no-load-optim --finetune",
     {GPT "--load x ", GPT "--pretrained-checkpoint x "},
     {GPT}},
    {TRAIN, "--dataloader-type cyclic", "--no-data-sharding", {GPT "--dataloader-type cyclic "}, {GPT}},
    {TRAIN, "--model bert or t5", "--mask-prob 0.3 --short-seq-prob 0.2", {BERT, T5}, {GPT}},
    {TRAIN, "data paths", "--data-cache-path x", {DATA}, {GPT}},
    {TRAIN,
     "--fim-data",
     "--fim-rate 0.2 --fim-spm-rate 0.2 --fim-split-sample x --fim-no-prefix x --fim-prefix-token x "
     "--fim-middle-token x --fim-suffix-token x --fim-pad-token x --fim-eod-token x",
     {FIM "--fim-fragment-rate 0.3 "},
     {DATA, GPT}},
    {TRAIN,
     "--fim-data and --fim-split-sample",
     "--fim-fragment-rate 0.3",
     {FIM "--fim-split-sample x "},
     {FIM, DATA, DATA "--fim-split-sample x "}},
    {ANY,
     "a --tokenizer-type that reads it, such as HuggingFaceTokenizer",
     "--tokenizer-model x",
     {HF, SPM, TIK, UNTYPED, TYPE("Llama2Tokenizer"), TYPE("GPTSentencePieceTokenizer")},
     {NONE, BYTES, GPT2, LOWER, CASED}},
    {ANY,
     "--tokenizer-type GPT2BPETokenizer, BertWordPieceLowerCase or BertWordPieceCase",
     "--vocab-file x",
     {GPT2, LOWER, CASED, UNTYPED},
     {NONE, BYTES, HF, SPM, TIK}},
    {ANY,
     "--tokenizer-type GPT2BPETokenizer",
     "--merge-file x",
     {GPT2, UNTYPED},
     {NONE, BYTES, LOWER, CASED, HF, SPM, TIK}},
    {ANY,
     "a --tokenizer-type whose vocabulary can be extended",
     "--vocab-extra-ids 3",
     {GPT2, LOWER, CASED, HF, SPM},
     {UNTYPED, NONE, BYTES, TIK}},
    {ANY,
     "--tokenizer-type GPT2BPETokenizer, BertWordPiece*, HuggingFaceTokenizer or TikTokenizer",
     "--tokenizer-special-tokens x",
     {GPT2, LOWER, CASED, HF, TIK},
     {UNTYPED, NONE, BYTES, SPM}},
    {ANY,
     "--tokenizer-type TikTokenizer",
     "--tiktoken-pattern v1 --tiktoken-num-special-tokens 5",
     {TIK},
     {UNTYPED, NONE, BYTES, GPT2, LOWER, HF, SPM}},
    {ANY,
     "--tokenizer-type NullTokenizer",
     "--null-tokenizer-eod-id 3 --null-tokenizer-pad-id 4",
     {NONE},
     {UNTYPED, BYTES, GPT2, LOWER, HF, SPM, TIK}},

    {GENERATE,
     "prompts",
     "--output-path x --stream --logprobs --inference-repeat-n 2 --incoming-requests-per-step 2 "
     "--incoming-requests-per-sec 2 --" BATCHING "block-size 64 --" BATCHING "max-requests 2 --" BATCHING
     "max-tokens 256 " QUEUE "first_prefix_block --num-speculative-tokens 1 --suspend-resume-interval 3",
     {ASK "--speculative-model x "},
     {CHAT}},
    {GENERATE,
     "--suspend-resume-interval",
     "--suspend-timeout 2 --rl-kv-cache-management-mode persist",
     {ASK "--suspend-resume-interval 3 "},
     {ASK}},
    {SERVE, "--enable-control", "--rl-kv-cache-management-mode persist", {ASK "--enable-control "}, {ASK}},
    {GENERATE,
     "--prompt-file",
     "--prompt-file-num-truncate 2 --num-tokens-from-file",
     {GPT "--load x --prompt-file y "},
     {ASK, GPT "--load x --prompts-file y "}},
    {GENERATE,
     "--output-path",
     "--output-every-n-results 2 --no-record-throughput --throughput-check-only --top-n-logprobs 2",
     {ASK "--logprobs --output-path x "},
     {ASK "--logprobs "}},
    {GENERATE,
     "--logprobs or --top-n-logprobs",
     "--skip-prompt-log-probs",
     {ASK "--logprobs ", ASK "--logprobs --top-n-logprobs 2 --output-path x "},
     {ASK}},
    {GENERATE,
     "a --temperature above 0",
     "~top-k 3",
     {ASK, ASK "--temperature 0.1 "},
     {ASK "--temperature 0 "}},
    {GENERATE,
     "a --temperature above 0",
     "~top-p 0.5",
     {ASK, ASK "--temperature 0.1 "},
     {ASK "--temperature 0 "}},
    {BENCH, "a --temperature above 0", "~top-k 3", {ASK "--temperature 1 "}, {ASK, ASK "--temperature 0 "}},
    {BENCH, "a --temperature above 0", "~top-p 0.5", {ASK "--temperature 1 "}, {ASK, ASK "--temperature 0 "}},
    {GENERATE,
     "random sampling (--temperature above 0 and --top-k not 1)",
     "~random-seed 5",
     {ASK, ASK "--top-k 2 "},
     {ASK "--temperature 0 ", ASK "--top-k 1 "}},
    {PASSES, "--multi-latent-attention", "--cache-mla-latents", {LATENT "--load x --prompt y "}, {ASK}},
    {GENERATE, "--beam-width", "--length-penalty 2", {BEAMS}, {ASK}},
    {GENERATE,
     "sampling (--beam-width 0)",
     "~temperature 0.5 ~top-k 3 ~random-seed 5 ~stop x ~num-speculative-tokens 1 ~output-path x ~stream "
     "~incoming-requests-per-step 2 ~incoming-requests-per-sec 2 ~" BATCHING "block-size 64 ~" BATCHING
     "max-requests 2 ~" BATCHING "max-tokens 256 ~" BATCHING "buffer-size-gb 3 ~" BATCHING
     "prefix-caching-coordinator-policy first_prefix_block ~suspend-resume-interval 3",
     {ASK "--speculative-model x "},
     {BEAMS}},
    {GENERATE, "sampling (--beam-width 0)", "~top-p 0.5", {ASK}, {BEAMS}},
    {GENERATE,
     "sampling (--beam-width 0)",
     "~interactive",
     {GPT "--load x "},
     {GPT "--load x --beam-width 3 "}},
    {INFER, "--num-speculative-tokens", "--speculative-model x", {ASK "--num-speculative-tokens 2 "}, {ASK}},
    {INFER,
     "an --" BATCHING "prefix-caching-coordinator-policy other than load_balanced",
     "--" BATCHING "prefix-caching-routing-alpha 0.3",
     {ASK QUEUE "longest_prefix ", ASK QUEUE "first_prefix_block "},
     {ASK, ASK QUEUE "load_balanced "}},

    {IN_MODEL,
     "--device cuda and several ranks",
     "--distributed-backend nccl --use-nccl-ub",
     {GPT TWO "--device cuda ", GPT TWO "--nccl-library x "},
     {GPT, GPT TWO, GPT "--device cuda "}},
    {IN_MODEL, "several ranks", "--nccl-library x", {GPT TWO}, {GPT, GPT "--device cuda "}},

    {IN_MODEL,
     "--mtp-num-layers",
     "--mtp-loss-scaling-factor 0.3 --mtp-detach-heads",
     {ROPE "--mtp-num-layers 1 "},
     {GPT}},
    {IN_MODEL,
     "--mtp-num-layers above 1",
     "--mtp-use-repeated-layer",
     {ROPE "--mtp-num-layers 2 "},
     {GPT, ROPE "--mtp-num-layers 1 "}},
    {IN_MODEL,
     "--use-mup",
     "--mup-base-hidden-size 8 --mup-base-head-dim 8 --mup-attn-scale-power 0.7 --mup-embedding-mult 2 "
     "--mup-output-mult 2",
     {GPT "--use-mup "},
     {GPT}},
    {IN_MODEL,
     "standard attention, which --multi-latent-attention replaces",
     "--mup-base-head-dim 8 --mup-attn-scale-power 0.7",
     {GPT "--use-mup ", GPT},
     {LATENT "--use-mup "}},
    {LAYOUT, "--model t5", "--decoder-num-layers 2 --decoder-seq-length 8", {T5}, {GPT, BERT}},
    {IN_MODEL, "--model bert", "--bert-no-binary-head ~num-token-types 1", {BERT}, {GPT, T5}},
    {IN_MODEL,
     "--no-rope-temperature-scale",
     "~no-rope-temperature-floor 4",
     {ROPE "--no-rope-temperature-scale 0.1 --no-rope-freq 2 "},
     {GPT, ROPE "--rope-temperature-scale 0.1 "}},
    {IN_MODEL,
     "--rope-temperature-scale",
     "~rope-temperature-floor 4",
     {ROPE "--rope-temperature-scale 0.1 "},
     {GPT, ROPE "--no-rope-temperature-scale 0.1 --no-rope-freq 2 "}},
    {IN_MODEL,
     "--position-embedding-type relative",
     "--relative-attention-num-buckets 8 --relative-attention-max-distance 20",
     {T5 "--position-embedding-type relative "},
     {GPT, T5, ROPE}},
    {IN_MODEL,
     "--position-embedding-type alibi",
     "~alibi-bias-max 4",
     {GPT "--position-embedding-type alibi "},
     {GPT, ROPE}},
    {IN_MODEL,
     "--position-embedding-type rope",
     "--rotary-base 100 --rotary-percent 0.5 --rotary-interleaved --rotary-seq-len-interpolation-factor 2",
     {ROPE},
     {GPT, GPT "--position-embedding-type none "}},
    {IN_MODEL, "--position-embedding-type rope", "--rotary-base 100", {YARN, LATENT}, {GPT}},
    {IN_MODEL,
     "--position-embedding-type yarn",
     "--rotary-scaling-factor 2 --yarn-original-max-position-embeddings 8 --yarn-beta-fast 5 "
     "--yarn-beta-slow "
     "2 --no-yarn-correction-range-round-to-int --mscale 2 --mscale-all-dim 2",
     {YARN, LATENT, LATENT "--rope-type yarn "},
     {GPT, ROPE, LATENT "--rope-type rope "}},
    {IN_MODEL,
     "--multi-latent-attention",
     "--q-lora-rank 4 --kv-lora-rank 4 --qk-head-dim 4 --qk-pos-emb-head-dim 4 --v-head-dim 4 "
     "~latent-norm-epsilon 1e-3 ~no-mla-rotary-interleaved",
     {LATENT},
     {GPT, ROPE}},
    {IN_MODEL,
     "standard attention, which --multi-latent-attention replaces",
     "--kv-channels 8",
     {GPT},
     {LATENT}},
    {IN_MODEL,
     "--use-rope-scaling",
     "--rope-scaling-factor 3 ~rope-scaling-low-freq-factor 2 ~rope-scaling-high-freq-factor 5",
     {ROPE "--use-rope-scaling "},
     {GPT, ROPE, YARN}},
    {IN_MODEL,
     "--use-rope-scaling, --rope-short-factor or --rope-dynamic-factor",
     "~rope-scaling-original-max-position-embeddings 40",
     {ROPE "--use-rope-scaling ", ROPE "--rope-dynamic-factor 2 ",
      ROPE "--kv-channels 4 --rope-short-factor 1 2 --rope-long-factor 1 2 "},
     {GPT, ROPE, YARN}},
    {IN_MODEL, "--normalization LayerNorm", "~disable-norm-bias", {GPT}, {GPT "--normalization RMSNorm "}},
    {IN_MODEL, "--model gpt", "~add-output-layer-bias", {GPT}, {BERT, T5}},
    {IN_MODEL,
     "--disable-bias-linear",
     "--add-qkv-bias ~add-attn-proj-bias ~add-mlp-bias",
     {GPT "--disable-bias-linear "},
     {GPT}},
    {IN_MODEL,
     "the letter M in --hybrid-layer-pattern",
     "--mamba-state-dim 4 --mamba-head-dim 16 --mamba-num-groups 2 --mamba-num-heads 4 "
     "~mamba-dt-min 0.1",
     {GPT "--disable-bias-linear --position-embedding-type none --hybrid-layer-pattern M- "},
     {GPT, GPT "--disable-bias-linear --hybrid-layer-pattern *- "}},
    {IN_MODEL,
     "layers with several branches, which --hybrid-layer-pattern replaces",
     "--moe-layer-freq 2",
     {EXPERTS},
     {GPT "--disable-bias-linear --num-experts 8 --hybrid-layer-pattern *E "}},
    {IN_MODEL,
     "layers with several branches, which --hybrid-layer-pattern replaces",
     "--linear-attention-freq 2 --experimental-attention-variant gdn",
     {},
     {GPT "--disable-bias-linear --hybrid-layer-pattern *- "}},
    {IN_MODEL,
     "--experimental-attention-variant gdn",
     "--linear-attention-freq 2",
     {GPT "--experimental-attention-variant gdn "},
     {GPT}},
    {IN_MODEL,
     "Gated DeltaNet layers",
     "--linear-conv-kernel-dim 3 --linear-key-head-dim 4 --linear-value-head-dim 4 --linear-num-key-heads 2 "
     "--linear-num-value-heads 4",
     {GPT "--experimental-attention-variant gdn --linear-attention-freq 2 ",
      GPT "--disable-bias-linear --position-embedding-type none --hybrid-layer-pattern G- "},
     {GPT, GPT "--disable-bias-linear --hybrid-layer-pattern *- "}},
    {IN_MODEL,
     "attention layers",
     "--attention-output-gate",
     {GPT, GPT "--disable-bias-linear --hybrid-layer-pattern *- "},
     {GPT "--disable-bias-linear --position-embedding-type none --hybrid-layer-pattern G- "}},

    {IN_MODEL,
     "--moe-router-num-groups",
     "--moe-router-group-score-topk 1",
     {EXPERTS "--moe-router-num-groups 4 --moe-router-group-topk 2 "},
     {EXPERTS}},
    {IN_MODEL,
     "--moe-router-enable-expert-bias",
     "--moe-router-bias-update-rate 0.1",
     {EXPERTS "--moe-router-enable-expert-bias --moe-router-score-function sigmoid "},
     {EXPERTS}},
    {IN_MODEL,
     "--moe-router-load-balancing-type quantile_balancing",
     "--moe-router-quantile-balancing-ema 0.3",
     {EXPERTS "--moe-router-load-balancing-type quantile_balancing "},
     {EXPERTS}},
    {IN_MODEL,
     "--moe-router-score-function sparsemixer",
     "~moe-router-sparsemixer-eps 0.3",
     {EXPERTS "--moe-router-score-function sparsemixer "},
     {EXPERTS}},
    {IN_MODEL,
     "--moe-expert-capacity-factor",
     "--moe-token-drop-policy position",
     {EXPERTS "--moe-expert-capacity-factor 2 "},
     {EXPERTS}},
    {IN_MODEL, "--num-experts", "--expert-tensor-parallel-size 1", {EXPERTS}, {GPT}},

    {LAYOUT,
     "--use-megatron-fsdp",
     "--data-parallel-sharding-strategy optim",
     {GPT "--use-megatron-fsdp "},
     {GPT}},
    {LAYOUT,
     "--context-parallel-size above 1",
     "--cp-comm-type allgather",
     {GPT TWO "--context-parallel-size 2 "},
     {GPT, GPT TWO}},
    {LAYOUT,
     "--tensor-model-parallel-size above 1",
     "~no-tp-comm-overlap",
     {GPT TWO "--tensor-model-parallel-size 2 "},
     {GPT, GPT TWO}},
    {LAYOUT,
     "--overlap-grad-reduce or --overlap-param-gather",
     "~no-overlap-with-attention",
     {GPT TWO "--overlap-grad-reduce ", GPT TWO "--use-distributed-optimizer --overlap-param-gather "},
     {GPT, GPT TWO}},
    {LAYOUT,
     "--pipeline-model-parallel-size above 1",
     "--no-overlap-p2p-communication --microbatch-group-size-per-virtual-pipeline-stage 2",
     {GPT TWO "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 1 "},
     {GPT, GPT TWO}},

    {IN_MODEL, "--fp16", "--loss-scale 8", {GPT "--fp16 "}, {GPT, GPT "--bf16 "}},
    {IN_MODEL,
     "--fp16 and a dynamic loss scale",
     "--initial-loss-scale 65536 --min-loss-scale 2 --loss-scale-window 3 --hysteresis 1",
     {GPT "--fp16 "},
     {GPT, GPT "--bf16 ", GPT "--fp16 --loss-scale 8 "}},
    {IN_MODEL,
     "--fp8-format",
     "--fp8-recipe delayed --fp8-margin 2 --fp8-amax-history-len 3 --fp8-amax-compute-algo max "
     "--no-fp8-wgrad",
     {FP8, GPT "--fp8-format none "},
     {GPT}},
    {IN_MODEL,
     "--fp8-format",
     "--first-last-layers-bf16",
     {GPT "--num-layers 3 --bf16 --fp8-format e4m3 --fp8-recipe tensorwise ", GPT "--fp8-format none "},
     {GPT}},
    {IN_MODEL,
     "--fp8-recipe delayed",
     "--fp8-margin 2 --fp8-amax-history-len 3 --fp8-amax-compute-algo max",
     {FP8, GPT, GPT "--fp8-recipe tensorwise "},
     {TENSOR, FP8 "--fp8-recipe blockwise ", GPT "--fp8-format none --fp8-recipe tensorwise "}},
    {IN_MODEL,
     "--first-last-layers-bf16",
     "--num-layers-at-start-in-bf16 1 --num-layers-at-end-in-bf16 0",
     {TENSOR "--first-last-layers-bf16 ", GPT "--first-last-layers-bf16=false "},
     {TENSOR, GPT}},
    {IN_MODEL,
     "--fine-grained-activation-offloading",
     "--offload-modules core_attn --min-offloaded-tensor-size 5",
     {GPT "--fine-grained-activation-offloading --offload-modules mlp_norm "},
     {GPT}},
    {IN_MODEL,
     "--optimizer-cpu-offload",
     "--optimizer-offload-fraction 0.5 --overlap-cpu-optimizer-d2h-h2d",
     {GPT "--optimizer-cpu-offload "},
     {GPT}},
    {IN_MODEL,
     "--recompute-granularity full",
     "--recompute-num-layers 1",
     {GPT "--recompute-granularity full --recompute-method uniform "},
     {GPT, GPT "--recompute-granularity selective "}},

    {TRAIN,
     "--optimizer adam or muon",
     "--adam-beta1 0.8 --adam-beta2 0.9 --adam-eps 1e-3",
     {GPT, MUON},
     {GPT "--optimizer sgd ", MUON "--muon-scalar-optimizer lion "}},
    {TRAIN, "--optimizer sgd", "--sgd-momentum 0.3", {GPT "--optimizer sgd "}, {GPT, MUON}},
    {TRAIN,
     "--optimizer muon",
     "--muon-momentum 0.5 --muon-no-split-qkv --muon-nesterov --muon-scale-mode unit_rms_norm "
     "--muon-extra-scale-factor 0.2 --muon-coefficient-type simple --muon-num-ns-steps 6 "
     "--muon-scalar-optimizer adam",
     {MUON},
     {GPT, GPT "--optimizer sgd "}},
    {TRAIN,
     "--optimizer muon and a --lane other than fp64",
     "--muon-fp32-matmul-prec high",
     {MUON, MUON "--bf16 "},
     {GPT, MUON "--lane fp64 "}},
    {TRAIN,
     "--optimizer muon and tensor parallelism",
     "--muon-tp-mode duplicated",
     {MUON TWO "--tensor-model-parallel-size 2 ",
      MUON TWO "--num-experts 8 --disable-bias-linear --expert-tensor-parallel-size 2 "},
     {GPT, MUON, MUON TWO, GPT TWO "--tensor-model-parallel-size 2 "}},
    {TRAIN,
     "--optimizer muon and --muon-scalar-optimizer lion",
     "--lion-beta1 0.8 --lion-beta2 0.9",
     {MUON "--muon-scalar-optimizer lion "},
     {GPT, MUON, GPT "--muon-scalar-optimizer lion "}},
    {TRAIN,
     "--lr-decay-style WSD",
     "--lr-wsd-decay-style cosine --lr-wsd-decay-iters 3",
     {GPT "--lr-decay-style WSD "},
     {GPT, GPT "--lr-decay-style cosine "}},
    {TRAIN,
     "--lr-decay-style WSD",
     "--lr-wsd-decay-samples 3",
     {GPT "--train-iters none --train-samples 20 --lr-decay-style WSD "},
     {GPT}},
    {TRAIN,
     "a warm-up",
     "--lr-warmup-init 1e-4",
     {GPT "--lr-warmup-iters 2 ", GPT "--lr-warmup-fraction 0.1 ",
      GPT "--train-iters none --train-samples 20 --lr-warmup-samples 4 "},
     {GPT}},
    {TRAIN,
     "--weight-decay-incr-style constant",
     "--weight-decay 0.1",
     {GPT},
     {GPT "--weight-decay-incr-style linear --start-weight-decay 0 --end-weight-decay 1 "}},
    {TRAIN, "--qk-clip", "--qk-clip-alpha 0.3 --qk-clip-threshold 50", {GPT "--qk-clip "}, {GPT}},
    {TRAIN,
     "--qk-layernorm of query and key heads",
     "--apply-wd-to-qk-layernorm",
     {GPT "--qk-layernorm "},
     {GPT, LATENT "--qk-layernorm "}},

    {IN_TASK, "--task labels", "~class-labels a b", {TASK "labels "}, {TASK "MNLI "}},
    {IN_MODEL, "--task", "~classifier-dropout 0.2", {TASK "MNLI "}, {GPT, BERT}},
    {IN_TASK, "--epochs above 0", "--train-data x --keep-last", {TUNE "2 "}, {TUNE "0 "}},

    {TRAIN, "--exit-signal-handler", "--exit-signal SIGUSR1", {GPT "--exit-signal-handler "}, {GPT}},
    {TRAIN,
     "--timing-log-level 1 or 2",
     "--timing-log-option max",
     {GPT "--timing-log-level 1 ", GPT "--timing-log-level 2 "},
     {GPT, GPT "--timing-log-level 0 "}},
    {TRAIN,
     "--tensorboard-dir",
     "--tensorboard-log-interval 2 --log-validation-ppl-to-tensorboard --log-timers-to-tensorboard "
     "--no-log-loss-scale-to-tensorboard --log-world-size-to-tensorboard --log-memory-to-tensorboard",
     {GPT "--tensorboard-dir x "},
     {GPT}},
};
enum { N_NEEDS = sizeof NEEDS_ROWS / sizeof *NEEDS_ROWS };

/* The checks of each command, and of parts of them. */
static const unsigned COMMANDS[] = {
    CHECK_MODEL | CHECK_TRAIN | CHECK_DATA,
    CHECK_MODEL | CHECK_TRAIN | CHECK_TASK,
    CHECK_MODEL | CHECK_GENERATE,
    CHECK_MODEL | CHECK_SERVE,
    CHECK_MODEL | CHECK_BENCH_INFER,
    CHECK_MODEL,
    CHECK_LAYOUT,
    CHECK_DATA,
};
enum { N_COMMANDS = sizeof COMMANDS / sizeof *COMMANDS };

typedef enum Form { WORDS, FALSE_WORDS, FILE_LINES } Form;

/* Writes all options as words, only the flags as words with =false, or all options as lines of a file. */
static void write_options(const char *options, Form form, Str *out) {
    for (const char *s = options; *s; s += strspn(s, " ")) {
        const size_t n = strcspn(s, " "), marks = *s == '~' ? 1 : strncmp(s, "--", 2) ? 0 : 2;
        const char *word = s + marks, *next = s + n + strspn(s + n, " ");
        const int length = (int)(n - marks);
        const bool flag = marks && (!*next || *next == '~' || !strncmp(next, "--", 2));
        s += n;
        if (form == WORDS)
            str_printf(out, "%s%.*s ", marks ? "--" : "", length, word);
        else if (form == FILE_LINES)
            str_printf(out, "%s%.*s%s", marks ? "\n" : " ", length, word,
                       flag    ? " = true"
                       : marks ? " ="
                               : "");
        else if (flag)
            str_printf(out, "--%.*s=false ", length, word);
    }
}

static void parse_options(Parsed *p, const char *line, const char *options, Form form, unsigned checks) {
    Str words = {0}, all = {0};
    write_options(options, form, &words);
    str_printf(&all, "%s%s", line, form == FILE_LINES || !words.s ? "" : words.s);
    parse(p, 0, all.s);
    if (p->err.code) fail_msg("%s: %s", all.s, p->err.msg);
    if (form == FILE_LINES) args_bytes(&p->args, "run.conf", words.s, words.len);
    config_check(&p->c, checks, &p->args);
    str_free(&words), str_free(&all);
}

static bool has_remark(const Args *args, const char *option, const char *text) {
    for (int64_t i = 0; i < args->num_remarks; i++) {
        const Remark *r = &args->remarks[i];
        if (r->kind == REMARK_IDLE && !strcmp(r->option, option) && !strcmp(r->text, text)) return true;
    }
    return false;
}

static void check_option(Parsed *p, const Need *row, const char *option, bool reported, bool as_error) {
    const char *sentence =
                   arena_printf(p->arena, "%s has no effect without %s: remove it.\n", option, row->without),
               *text = arena_printf(p->arena, " without %s.", row->without);
    const bool refused = p->args.problems.s && strstr(p->args.problems.s, sentence),
               noted = has_remark(&p->args, option, text);
    if (refused != (reported && as_error) || noted != (reported && !as_error))
        fail_msg("%s is %s without %s", option,
                 refused ? "refused"
                 : noted ? "noted"
                         : "not reported",
                 row->without);
}

static void check_row(const Need *row, const char *line, unsigned checks, Form form, bool reported) {
    Parsed p;
    parse_options(&p, line, row->options, form, checks);
    for (const char *s = row->options; *s; s += strcspn(s, " "), s += strspn(s, " ")) {
        const size_t marks = strspn(s, "~-");
        if (marks && (*s == '~' || marks == 2))
            check_option(&p, row, arena_printf(p.arena, "--%.*s", (int)(strcspn(s, " ") - marks), s + marks),
                         reported, *s == '~' || checks & CHECK_STRICT);
    }
    done(&p);
}

static bool applies(const Need *row, unsigned checks) { return (row->check & checks) == row->check; }

/* Returns whether another row with this reason applies to the command. */
static bool has_other_row(const Need *row, unsigned checks) {
    for (const Need *r = NEEDS_ROWS; r < NEEDS_ROWS + N_NEEDS; r++)
        if (r != row && applies(r, checks) && !strcmp(r->without, row->without) &&
            !strcmp(r->options, row->options))
            return true;
    return false;
}

TEST(an_option_is_reported_if_and_only_if_it_has_no_effect) {
    for (const Need *row = NEEDS_ROWS; row < NEEDS_ROWS + N_NEEDS; row++)
        for (int i = 0; i < N_COMMANDS; i++) {
            const unsigned checks = COMMANDS[i];
            if (!applies(row, checks) && has_other_row(row, checks)) continue;
            for (int k = 0; k < MOST && row->used[k]; k++) check_row(row, row->used[k], checks, WORDS, false);
            for (int k = 0; k < MOST && row->idle[k]; k++) {
                check_row(row, row->idle[k], checks, WORDS, applies(row, checks));
                check_row(row, row->idle[k], checks | CHECK_STRICT, WORDS, applies(row, checks));
                check_row(row, row->idle[k], checks, FILE_LINES, false);
                check_row(row, row->idle[k], checks, FALSE_WORDS, false);
            }
        }
}

/* The command lines of `used` are valid. So the options have an effect, and are not part of a mistake. */
TEST(each_use_is_valid) {
    for (const Need *row = NEEDS_ROWS; row < NEEDS_ROWS + N_NEEDS; row++) {
        int i = 0;
        while (!applies(row, COMMANDS[i])) i++;
        for (int k = 0; k < MOST && row->used[k]; k++) {
            Parsed p;
            parse_options(&p, row->used[k], row->options, WORDS, COMMANDS[i]);
            if (p.args.num_problems) fail_msg("%s%s: %s", row->used[k], row->options, p.args.problems.s);
            done(&p);
        }
    }
}

/* Returns whether a row with this reason has the option. */
static bool is_tested(const char *without, const char *name, size_t n) {
    for (const Need *row = NEEDS_ROWS; row < NEEDS_ROWS + N_NEEDS; row++) {
        if (strcmp(row->without, without)) continue;
        for (const char *s = row->options; *s; s += strcspn(s, " "), s += strspn(s, " ")) {
            const char *option = s + strspn(s, "~-");
            if (option > s && strcspn(option, " ") == n && !strncmp(option, name, n)) return true;
        }
    }
    return false;
}

TEST(each_need_is_tested) {
    static const struct {
        const char *without, *options;
    } needs[] = {
#define NEEDS(check, condition, without, options) {without, options},
#include "config/rules.def"
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        for (const char *s = needs[i].options; *s; s += strspn(s, " ")) {
            s += *s == '~';
            const size_t n = strcspn(s, " ");
            if (!is_tested(needs[i].without, s, n))
                fail_msg("no row: --%.*s without %s", (int)n, s, needs[i].without);
            s += n;
        }
}

/* ---- options with a separate reason (IDLE), and options of experts ---- */

typedef struct Idle {
    unsigned check;
    const char *option, *text, *used[MOST], *idle[MOST];
} Idle;

#define NO_STATE                                                                                             \
    ": checkpoints contain no random state, because each random number depends only on the seed and an "     \
    "index."
#define NO_BALANCE EXPERTS "--moe-router-load-balancing-type none "
#define SCHEDULED  GPT "--load x --use-checkpoint-opt_param-scheduler "

#define SELECTED     GPT "--recompute-granularity selective --recompute-modules "
#define FINE         GPT "--fine-grained-activation-offloading --offload-modules "
#define SHARED_AGAIN SELECTED "shared_experts "
#define SHARED       EXPERTS "--moe-shared-expert-intermediate-size 8 "

static const Idle IDLE_ROWS[] = {
    {IN_MODEL,
     "--recompute-modules shared_experts",
     " unless the model has shared experts, and --recompute-modules does not include moe.",
     {GPT, SHARED_AGAIN "--moe-shared-expert-intermediate-size 8 --num-experts 4 ",
      SHARED "--recompute-activations "},
     {SHARED_AGAIN, SHARED_AGAIN EXPERTS,
      SHARED "--recompute-granularity selective --recompute-modules moe shared_experts "}},
    {IN_MODEL,
     "--recompute-modules moe_act",
     " unless the model has experts, and --recompute-modules does not include moe.",
     {GPT, SELECTED "moe_act --num-experts 4 ", EXPERTS "--recompute-activations "},
     {SELECTED "moe_act ", EXPERTS "--recompute-granularity selective --recompute-modules moe moe_act "}},
    {IN_MODEL,
     "--recompute-modules layernorm",
     " with --norm-placement post, because it recomputes the norms before branches.",
     {SELECTED "layernorm ", SELECTED "layernorm --norm-placement sandwich ", GPT "--norm-placement post "},
     {SELECTED "layernorm --norm-placement post "}},
    {IN_MODEL,
     "--offload-modules attn_proj",
     ": core_attn includes the input of attn_proj.",
     {FINE "core_attn "},
     {FINE "core_attn attn_proj "}},
    {IN_MODEL,
     "--offload-modules expert_fc1 and moe_act",
     " unless the model has experts.",
     {FINE "core_attn ", FINE "expert_fc1 moe_act --num-experts 4 "},
     {FINE "expert_fc1 ", FINE "moe_act "}},
    {IN_MODEL,
     "--offload-modules qkv_linear",
     " with --recompute-modules layernorm, which discards the same tensor.",
     {FINE "qkv_linear ", FINE "attn_norm --recompute-granularity selective --recompute-modules layernorm "},
     {FINE "qkv_linear --recompute-granularity selective --recompute-modules layernorm "}},
    {TRAIN, "--no-save-rng", NO_STATE, {GPT, GPT "--no-save-rng=false "}, {GPT "--no-save-rng "}},
    {TRAIN, "--no-load-rng", NO_STATE, {GPT, GPT "--no-load-rng=false "}, {GPT "--no-load-rng "}},
    {TRAIN, "--no-mmap-bin-files", ": .bin files are always mapped.", {GPT}, {GPT "--no-mmap-bin-files "}},
    {TRAIN,
     "--split",
     " with --mock-data: training, validation and test data have equal proportions, as in Megatron-LM.",
     {GPT, DATA "--split 1,1,1 "},
     {GPT "--split 1,1,1 "}},
    {ANY,
     "--tokenizer-hf-include-special-tokens",
     ": TikTokenizer adds no special tokens to a text.",
     {TIK, HF "--tokenizer-hf-include-special-tokens ", GPT2 "--tokenizer-hf-include-special-tokens ",
      LOWER "--tokenizer-hf-include-special-tokens ", CASED "--tokenizer-hf-include-special-tokens ",
      UNTYPED "--tokenizer-hf-include-special-tokens "},
     {TIK "--tokenizer-hf-include-special-tokens "}},
    {IN_MODEL,
     "--no-position-embedding",
     ": rope does not add position embeddings.",
     {ROPE},
     {ROPE "--no-position-embedding ", YARN "--no-position-embedding "}},
    {IN_MODEL,
     "--no-bias-gelu-fusion",
     " with --activation relu.",
     {GPT "--activation relu ", GPT "--no-bias-gelu-fusion "},
     {GPT "--activation relu --no-bias-gelu-fusion "}},
    {IN_MODEL,
     "--mrope-section",
     ": the three positions of a text token are equal.",
     {GPT "--position-embedding-type mrope "},
     {GPT "--position-embedding-type mrope --mrope-section 2 3 3 "}},
    {IN_MODEL,
     "--rope-type rope",
     " without --multi-latent-attention: --position-embedding-type selects the rotary embedding.",
     {ROPE, LATENT "--rope-type rope "},
     {GPT "--rope-type rope ", ROPE "--rope-type rope "}},
    {IN_MODEL,
     "--no-rope-temperature-scale",
     " without --no-rope-freq: all layers have rotary positions.",
     {ROPE, ROPE "--no-rope-freq 2 --no-rope-temperature-scale 0.1 "},
     {ROPE "--no-rope-temperature-scale 0.1 "}},
    {IN_MODEL,
     "--moe-aux-loss-coeff",
     " with --moe-router-load-balancing-type none.",
     {NO_BALANCE, NO_BALANCE "--moe-aux-loss-coeff 0 ", EXPERTS "--moe-aux-loss-coeff 0.1 "},
     {NO_BALANCE "--moe-aux-loss-coeff 0.1 "}},
    {TRAIN,
     "--sequence-parallel",
     " with --tensor-model-parallel-size 1.",
     {GPT, GPT TWO "--tensor-model-parallel-size 2 --sequence-parallel "},
     {GPT "--sequence-parallel ", GPT TWO "--sequence-parallel "}},
    {LAYOUT,
     "--overlap-moe-expert-parallel-comm",
     " with ZeRO-2 or ZeRO-3, which keep the gradients of only one layer.",
     {EXPERTS TWO "--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall "
                  "--overlap-moe-expert-parallel-comm "},
     {EXPERTS TWO "--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall --use-megatron-fsdp "
                  "--overlap-moe-expert-parallel-comm "}},
    {TRAIN,
     "--interleaved-microbatches",
     " without tensor, context or expert parallelism, whose communication it would overlap.",
     {GPT "--interleaved-microbatches 1 ",
      GPT TWO "--tensor-model-parallel-size 2 --interleaved-microbatches 2 ",
      GPT TWO "--context-parallel-size 2 --interleaved-microbatches 2 ",
      EXPERTS TWO "--expert-model-parallel-size 2 --interleaved-microbatches 2 "},
     {GPT "--interleaved-microbatches 2 ", GPT TWO "--interleaved-microbatches 2 "}},
    {TRAIN,
     "--use-checkpoint-opt_param-scheduler",
     " with --no-load-optim or --finetune: the schedules restart.",
     {SCHEDULED, GPT "--load x --no-load-optim "},
     {SCHEDULED "--no-load-optim ", SCHEDULED "--finetune "}},
};
enum { N_IDLE = sizeof IDLE_ROWS / sizeof *IDLE_ROWS };

static void check_idle(const Idle *row, const char *line, unsigned checks, bool reported) {
    Parsed p;
    parse_options(&p, line, "", WORDS, checks);
    if (has_remark(&p.args, row->option, row->text) != reported)
        fail_msg("%s: %s is %s", line, row->option, reported ? "not reported" : "reported");
    done(&p);
}

TEST(an_option_with_a_separate_reason_is_reported_if_it_has_no_effect) {
    for (const Idle *row = IDLE_ROWS; row < IDLE_ROWS + N_IDLE; row++)
        for (int i = 0; i < N_COMMANDS; i++) {
            for (int k = 0; k < MOST && row->used[k]; k++) check_idle(row, row->used[k], COMMANDS[i], false);
            for (int k = 0; k < MOST && row->idle[k]; k++)
                check_idle(row, row->idle[k], COMMANDS[i], (row->check & COMMANDS[i]) == row->check);
        }
    static const char *const options[] = {
#define IDLE(check, condition, option, message) option,
#include "config/rules.def"
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        bool found = false;
        for (int k = 0; k < N_IDLE; k++) found |= !strcmp(IDLE_ROWS[k].option, options[i]);
        if (!found) fail_msg("no row: %s", options[i]);
    }
}

/* Without experts, every option of experts is reported. Others are refused: they need several ranks too. */
TEST(options_of_experts_need_experts) {
    for (int i = 0; i < OPTIONS; i++) {
        const char *field = config_field_name(i);
        if (!field || strncmp(field, "moe_", 4) || config_option_class(i) == CLASS_LAYOUT) continue;
        const Arg *row = &CONFIG_ROWS[i];
        const char *value = row->type == ARG_FLAG ? "" : row->choices ? row->choices[0] : "1";
        char option[100], words[200];
        snprintf(option, sizeof option, "--%.*s", (int)strcspn(row->names, "|"), row->names);
        snprintf(words, sizeof words, "%s %.*s", option, (int)strcspn(value, "|"), value);
        Parsed p;
        parse_options(&p, GPT, words, WORDS, COMMANDS[0]);
        if (!has_remark(&p.args, option, " without --num-experts.")) fail_msg("%s is not reported", option);
        done(&p);
        parse_options(&p, EXPERTS, words, WORDS, COMMANDS[0]);
        if (has_remark(&p.args, option, " without --num-experts.")) fail_msg("%s is reported", option);
        done(&p);
    }
}
