/* Command lines of valid runs, to which tests of rules append options. */
#pragma once

#define MODEL                                                                                                \
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "          \
    "--vocab-size 64 "
#define UNTYPED  MODEL "--train-iters 10 --lr 1e-3 --mock-data "
#define TYPE(t)  UNTYPED "--tokenizer-type " t " "
#define NONE     TYPE("NullTokenizer")
#define BYTES    TYPE("ByteLevelTokenizer")
#define GPT2     TYPE("GPT2BPETokenizer")
#define LOWER    TYPE("BertWordPieceLowerCase")
#define CASED    TYPE("BertWordPieceCase")
#define HF       TYPE("HuggingFaceTokenizer")
#define SPM      TYPE("SentencePieceTokenizer")
#define TIK      TYPE("TikTokenizer")
#define GPT      NONE
#define BERT     GPT "--model bert "
#define T5       GPT "--model t5 --decoder-seq-length 8 "
#define TUNE     GPT "--model bert --valid-data x --load x --task MNLI --epochs "
#define TASK     GPT "--model bert --valid-data x --epochs 2 --train-data x --task "
#define DATA     MODEL "--train-iters 10 --lr 1e-3 --data-path x --tokenizer-type GPT2BPETokenizer "
#define FIM      DATA "--fim-data "
#define ROPE     GPT "--position-embedding-type rope "
#define YARN     GPT "--position-embedding-type yarn "
#define LATENT   GPT "--multi-latent-attention --disable-bias-linear "
#define EXPERTS  GPT "--num-experts 8 --disable-bias-linear "
#define FP8      GPT "--bf16 --fp8-format hybrid "
#define TENSOR   FP8 "--fp8-recipe tensorwise "
#define MUON     GPT "--optimizer muon "
#define TWO      " --ranks 2 "
#define ASK      GPT "--load x --prompt y "
#define BEAMS    ASK "--beam-width 3 "
#define CHAT     GPT "--load x --interactive "
#define BATCHING "inference-dynamic-batching-"
#define QUEUE    "--" BATCHING "prefix-caching-coordinator-policy "
