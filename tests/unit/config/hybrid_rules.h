/* Command lines that each break a rule of hybrid models, and the end of the expected message (test_rules.c). */
#pragma once

#define MAMBA "--hybrid-layer-pattern M- --mamba-head-dim 8 --mamba-num-groups 2 "

#define DELTA "--hybrid-layer-pattern G- --linear-num-key-heads 2 --linear-num-value-heads 4 "

static const char *const HYBRID[][2] = {
    {"--hybrid-layer-pattern MD", "does not support the letter D"},
    {"--hybrid-layer-pattern |", "does not support the letter D"},
    {"--hybrid-layer-pattern *-/", "and there can be at most 7 slashes"},
    {"--hybrid-layer-pattern *-/*/-", "and there can be at most 7 slashes"},
    {"--hybrid-layer-pattern *-/*|-", "and there can be at most 7 slashes"},
    {"--hybrid-layer-pattern *-/---------", "and there can be at most 7 slashes"},
    {"--hybrid-layer-pattern *-/EE", "and there can be at most 7 slashes"},
    {"--hybrid-layer-pattern *-/-/-/-/-/-/-/-/-", "and there can be at most 7 slashes"},
    {"--hybrid-layer-pattern M-*", "number of letters in --hybrid-layer-pattern M-*: remove --num-layers"},
    {"--hybrid-layer-pattern *- --model bert", "--hybrid-layer-pattern needs --model gpt, not bert"},
    {"--hybrid-layer-pattern *- --mtp-num-layers 1 --position-embedding-type rope",
     "append / and the letters of an MTP layer once for each MTP layer"},
    {"--hybrid-layer-pattern *-/- --mtp-num-layers 2 --position-embedding-type rope",
     "append / and the letters of an MTP layer once for each MTP layer"},
    {"--hybrid-layer-pattern *+ --position-embedding-type rope", "the letter +: use only + or only *"},
    {"--hybrid-layer-pattern *E", "need each other: add or remove one"},
    {"--hybrid-layer-pattern *- "
     "--num-experts 8 --disable-bias-linear",
     "need each other: add or remove one"},
    {"--hybrid-layer-pattern *- --norm-placement sandwich", "because each layer has one branch"},
    {"--hybrid-layer-pattern *- --parallel-residual one-norm", "because each layer has one branch"},
    {MAMBA "--mamba-head-dim 24", "--mamba-head-dim 24: change one of them or set --mamba-num-heads"},
    {MAMBA "--mamba-num-groups 3", "is not a multiple of --mamba-num-groups 3: change one of them"},
    {MAMBA "--mamba-num-groups 1 --tensor-model-parallel-size 2 --ranks 2",
     "--mamba-num-groups 1 is not a multiple of --tensor-model-parallel-size 2: change one of them"},
    {MAMBA "--context-parallel-size 4 --mamba-num-groups 1 --mamba-num-heads 6",
     "A rank needs entire groups or an equal part of one group"},
    {MAMBA "--context-parallel-size 4 --mamba-num-groups 3 --mamba-num-heads 12",
     "A rank needs entire groups or an equal part of one group"},
    {MAMBA "--context-parallel-size 4 --mamba-num-heads 8 --lane exact",
     "to at least --tensor-model-parallel-size times --context-parallel-size"},
    {DELTA "--model bert --experimental-attention-variant gdn", "gdn needs --model gpt, not bert"},
    {"--experimental-attention-variant gdn", "set it to 4 if every fourth layer has attention"},
    {"--experimental-attention-variant gdn --linear-attention-freq [1,0,1]",
     "--linear-attention-freq [1,0,1] must be a positive number or a pattern such as [1,1,0]*2 with "
     "--num-layers "
     "entries"},
    {DELTA "--linear-num-value-heads 5", "is not a multiple of --linear-num-key-heads 2: change one of them"},
    {DELTA "--linear-num-key-heads 1 --tensor-model-parallel-size 2 --ranks 2",
     "--linear-num-key-heads 1 is not a multiple of --tensor-model-parallel-size 2: change one of them"},
    {DELTA "--context-parallel-size 4 --linear-num-key-heads 1 --linear-num-value-heads 6",
     "or an equal part of one key head's value heads"},
    {DELTA "--context-parallel-size 4 --linear-num-key-heads 3 --linear-num-value-heads 12",
     "or an equal part of one key head's value heads"},
    {DELTA "--context-parallel-size 4 --lane exact",
     "--linear-num-key-heads 2 to at least --tensor-model-parallel-size times --context-parallel-size"},
    {"--attention-output-gate --model bert", "needs --model gpt without --multi-latent-attention: remove it"},
    {"--attention-output-gate --multi-latent-attention --position-embedding-type rope",
     "needs --model gpt without --multi-latent-attention: remove it"},
    {"--hybrid-layer-pattern *|- --pipeline-model-parallel-size 3",
     "is not a multiple of --pipeline-model-parallel-size 3: change one of them"},
    {"--hybrid-layer-pattern *|- --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
     "--account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split"},
    {"--hybrid-layer-pattern *|- --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1",
     "cannot be used with | in --hybrid-layer-pattern *|-: remove them"},
};
