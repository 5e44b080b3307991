/* Command lines that each break a rule of FP8, and the end of the expected message (test_rules.c). */
#pragma once

static const char *const FP8_RULES[][2] = {
    {"--bf16 --fp8-emulated",
     "--fp8-emulated applies only to FP8 GEMMs: add --fp8-format, or remove --fp8-emulated"},
    {"--bf16 --fp8-format e4m3 --fp8-recipe tensorwise --first-last-layers-bf16",
     "leaves no layer for FP8: --num-layers-at-start-in-bf16 1 and --num-layers-at-end-in-bf16 1 together "
     "must be fewer than --num-layers 2 or, in T5, --decoder-num-layers"},
    {"--bf16 --fp8-format e4m3 --fp8-recipe tensorwise --first-last-layers-bf16 "
     "--num-layers-at-start-in-bf16 9 --num-layers-at-end-in-bf16 0",
     "together must be fewer than --num-layers 2 or, in T5, --decoder-num-layers"},
    {"--bf16 --fp8-keep-weights",
     "--fp8-keep-weights applies only to FP8 GEMMs: add --fp8-format, or remove --fp8-keep-weights"},
    {"--bf16 --te-precision-config-file tests/data/precision.yaml",
     "changes the FP8 recipe of single layers: add --fp8-format, or remove --te-precision-config-file"},
    {"--bf16 --fp8-format e4m3 --fp8-param-gather --use-megatron-fsdp --te-precision-config-file "
     "tests/data/precision.yaml",
     "--te-precision-config-file does not support --fp8-param-gather: remove one of them"},
    {"--bf16 --fp8-format e4m3 --batch-invariant-mode --te-precision-config-file tests/data/precision.yaml",
     "whose scales depend on all samples of a microbatch: remove one of them"},
    {"--bf16 --fp8-output-proj",
     "--fp8-output-proj applies only to FP8 GEMMs: add --fp8-format, or remove --fp8-output-proj"},
    {"--bf16 --use-megatron-fsdp --fp8-param-gather",
     "--fp8-param-gather applies only to FP8 GEMMs: add --fp8-format, or remove --fp8-param-gather"},
    {"--bf16 --fp8-format e4m3 --fp8-param-gather",
     "needs sharded main weights: add --use-distributed-optimizer or --use-megatron-fsdp, or remove "
     "--fp8-param-gather"},
    {"--bf16 --fp8-format e4m3 --fp8-param-gather --use-distributed-optimizer --fp8-keep-weights",
     "but --fp8-param-gather stores only FP8 weights: remove one of them"},
    {"--bf16 --fp8-keep-inputs", "one scale per tensor. Add --fp8-format with --fp8-recipe delayed or "
                                 "tensorwise and without --no-fp8-wgrad, or remove --fp8-keep-inputs"},
    {"--fp8-format e4m3 --fp8-recipe blockwise --fp8-keep-inputs",
     "one scale per tensor. Add --fp8-format with --fp8-recipe delayed or tensorwise and without "
     "--no-fp8-wgrad, or remove --fp8-keep-inputs"},
    {"--fp8-format e4m3 --no-fp8-wgrad --fp8-keep-inputs",
     "one scale per tensor. Add --fp8-format with --fp8-recipe delayed or tensorwise and without "
     "--no-fp8-wgrad, or remove --fp8-keep-inputs"},
    {"--fp8-format e4m3 --fp8-recipe tensorwise --batch-invariant-mode",
     "depend on all samples of a microbatch: use delayed or, to generate, --quantization fp8"},
};
