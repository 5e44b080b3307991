"""Command lines of Megatron-LM either run unchanged or end with an error message that names the unsupported option and
an alternative."""
import json

from harness import *

LAUNCHER = """--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32
  --max-position-embeddings 32 --micro-batch-size 4 --micro-batch-size 1 --global-batch-size 2 --train-iters 4
  --lr 1e-3 --lr 1e-2 --eval-iters 0 --mock-data --log-interval 1""".split()
NULL = ["--tokenizer-type", "NullTokenizer", "--vocab-size", 100]


def says(line, *parts, expect=0):
    out = isotron("pretrain", *LAUNCHER, *NULL, *line.split(), "--check-options", expect=expect)
    for part in parts:
        assert part in out, f"{line}: '{part}' is missing in:\n{out}"
    return out


assert says("", "options are valid, 0 have no effect").startswith("options are"), "a plain line gets a note"
# The options in Megatron-LM's examples for Mixtral and Llama.
says("--position-embedding-type rope --no-position-embedding --use-mcore-models --swiglu --no-masked-softmax-fusion "
     "--bf16 --bf16"
     " --attention-backend fused --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type "
     "flex --disable-bias-linear"
     " --expert-model-parallel-size 8 --ranks 8 --global-batch-size 8 --use-distributed-optimizer --profile "
     "--profile-step-start 4 --profile-ranks 0 1 --manual-gc"
     " --wandb-project x --cuda-graph-impl transformer_engine --recompute-activations --recompute-modules layernorm "
     "moe_act",
     "--profile, --profile-step-start and --profile-ranks have no effect: ",
     "--attention-backend fused is treated as flash")
says("--mtp-hsm --mtp-standalone", "--mtp-hsm and --mtp-standalone are not supported", "Remove it.", expect=2)
# The options in a script for DeepSeek-V3.
says("--multi-latent-attention --q-lora-rank 8 --kv-lora-rank 6 --qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 4"
     " --qk-layernorm"
     " --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 --position-embedding-type rope --no-rope-fusion"
     " --kv-channels 8"
     " --mla-down-proj-fusion --recompute-granularity selective --recompute-modules mla_up_proj",
     "--mla-down-proj-fusion has no effect: ", "--kv-channels has no effect without ")
says("--multi-latent-attention --group-query-attention --num-query-groups 2", "remove --group-query-attention",
     expect=2)
# The options of the example scripts that store weights in FP8: llama/train_llama3_8b_h100_fp8.sh,
# megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh and gptoss/02_train.sh, with fewer samples.
FP8 = "--fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-param-gather "
DATA = ("--mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --data-cache-path cache --tiktoken-pattern v2 "
        "--split '99,1,0' --no-create-attention-mask-in-dataloader --no-mmap-bin-files --num-workers 1 ")
SHARDED = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
SAMPLES = "--micro-batch-size 1 --global-batch-size 128 --train-samples 1280 --lr-decay-samples 1200 "
LLAMA = FP8 + DATA + SHARDED + SAMPLES + """
  --ranks 8 --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192
  --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 --hidden-dropout 0.0
  --swiglu --normalization RMSNorm --init-method-std 0.0134 --attention-backend fused --apply-layernorm-1p
  --untie-embeddings-and-output-weights --disable-bias-linear --lr-warmup-samples 128 --lr 0.00015 --min-lr 0.00001
  --decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5 --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1
  --adam-beta1 0.9 --adam-beta2 0.95 --bf16 --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc
  --empty-unused-memory-level 1 --exit-duration-in-mins 235 --tensor-model-parallel-size 1 --context-parallel-size 1
  --sequence-parallel --log-interval 1 --eval-iters 32 --eval-interval 100 --save-interval 1000 --log-throughput
  --distributed-timeout-minutes 60 """
SCRIPTS = [
    LLAMA + "--grad-reduce-in-bf16 --profile --profile-step-start 4 --profile-step-end 6 --ckpt-format torch_dist",
    LLAMA + """--no-check-for-nan-in-loss-and-grad --use-megatron-fsdp
  --data-parallel-sharding-strategy optim_grads_params --no-gradient-accumulation-fusion --init-model-with-meta-device
  --ckpt-format fsdp_dtensor --use-nccl-ub --fsdp-double-buffer --fsdp-manual-registration --logging-level 20""",
    FP8 + DATA + SHARDED + SAMPLES + """--ranks 4 --no-masked-softmax-fusion --transformer-impl transformer_engine
  --disable-bias-linear --untie-embeddings-and-output-weights --no-rope-fusion --normalization RMSNorm --num-layers 12
  --hidden-size 512 --ffn-hidden-size 2048 --num-attention-heads 64 --group-query-attention --num-query-groups 8
  --seq-length 8192 --max-position-embeddings 8192 --use-mcore-models --rotary-percent 1.0 --rope-type rope
  --position-embedding-type rope --rotary-base 10000 --no-bias-gelu-fusion --export-force-local-attention
  --no-bias-dropout-fusion --quick-geglu --glu-linear-offset 1.0 --softmax-type learnable --window-attn-skip-freq 2
  --activation-func-clamp-value 7.0 --window-size 127,0 --enable-gpt-oss --num-experts 4 --moe-router-topk 2
  --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3 --moe-grouped-gemm
  --moe-token-dispatcher-type alltoall --moe-ffn-hidden-size 2048 --moe-router-dtype fp32 --moe-z-loss-coeff 1e-3
  --moe-permute-fusion --lr 1.0e-5 --lr-decay-style cosine --min-lr 1.0e-6 --weight-decay 0.1 --lr-warmup-fraction 0.05
  --clip-grad 1.0 --bf16 --use-flash-attn --attention-softmax-in-fp32 --accumulate-allreduce-grads-in-fp32
  --disable-bf16-reduced-precision-matmul --recompute-activations --tensor-model-parallel-size 1
  --pipeline-model-parallel-size 4 --expert-model-parallel-size 1 --sequence-parallel --context-parallel-size 1
  --log-interval 1 --save-interval 10000 --eval-interval 50000000 --eval-iters 0 --moe-per-layer-logging
  --no-load-optim --no-load-rng --log-throughput"""]
for script in SCRIPTS:
    told = isotron("pretrain", *script.split(), "--check-options")
    assert "options are valid" in told and "--fp8-param-gather has" not in told, told
says("--spec local", "--spec has no effect: ")
says("--spec megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs x",
     "--spec megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs is not supported", expect=2)
says("--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec --hybrid-override-pattern M- --is-hybrid-model"
     " --mamba-head-dim 8 --mamba-num-groups 2 --disable-mamba-mem-eff-path --position-embedding-type none",
     "--spec has no effect: ", "options are valid")
says("--fp4-param-gather", "isotron: --fp4-param-gather is not supported: ", expect=2)
says("--tokenizer-type SFTTokenizer",
     "--tokenizer-type SFTTokenizer is not supported", "HuggingFaceTokenizer", expect=2)
says("--swiglu --squared-relu", "--swiglu and --squared-relu contradict each other", expect=2)
for what in ("mtp-hsm", "main-params-dtype"):
    assert "did you mean" not in says(f"--{what} 1", f"--{what}", "is not supported", expect=2)
everything = says("--foo --lr x --min-lr 1 --hidden-dropout 2 --dump-param-to-param-group-map 1", "4 problems",
                  "'--foo' is not an option", "--lr expects a number", "--hidden-dropout must be from 0 to 1, not 2",
                  "--dump-param-to-param-group-map is not supported", expect=2)
assert everything.count("--foo") == 1, everything

assert "Not supported: This option changes the layers" in isotron("pretrain", "--help", "mtp-hsm")
assert "--tokenizer-type SFTTokenizer" in isotron("pretrain", "--help", "sfttokenizer")
without = says("--sequence-parallel --no-load-rng --no-mmap-bin-files", "--sequence-parallel has no effect",
               "--no-load-rng has no effect", "--no-mmap-bin-files has no effect")
assert "--no-save-rng" not in without, without
# If a run has several notes about options that have no effect, it prints only the number of these options.
idle = "--use-mcore-models --no-rope-fusion --rotary-base 5 --no-load-rng".split()
several = [line for line in isotron("pretrain", *LAUNCHER, *NULL, *idle, "--no-masked-softmax-fusion", "--split",
                                    "1,1,1").splitlines() if "note" in line]
assert several == ["note: 6 options have no effect; --check-options lists them."], several
three = isotron("pretrain", *LAUNCHER, *NULL, *idle[:4])
assert three.count("note: ") == 3 and "--rotary-base has no effect without" in three, three
says(" ".join(idle) + " --split 1,1,1", "options are valid, 5 have no effect", "--use-mcore-models has no effect: ",
     "--split has no effect with --mock-data: training, validation and test data have equal")
for theirs, ours in {"nproc_per_node": "ranks", "tp": "tensor-model-parallel-size", "learning-rate": "lr",
                     "resume": "load"}.items():
    says(f"--{theirs} 8", f"did you mean --{ours}?", expect=2)
assert "Use --micro-batch-size." in says("--batch-size 3", "is not supported: Megatron-LM has removed this option.",
                                         expect=2)

# With the files of GPT-2's tokenizer, that tokenizer is the default, as in pretrain_gpt.py. The last occurrence of a
# repeated option applies.
(WORK / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "<|endoftext|>": 2}))
(WORK / "merges.txt").write_text("#version: 0.2\n")
out = isotron("pretrain", *LAUNCHER, "--vocab-file", WORK / "vocab.json", "--merge-file", WORK / "merges.txt")
assert "learning rate: 1.0" in out and "E-02" in out, out

# In pretrain_bert.py and pretrain_t5.py, the default is BERT's tokenizer. A new run has no checkpoint to take options
# from.
(WORK / "vocab.txt").write_text("".join(f"{token}\n" for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]",
                                                                   "[MASK]", "a", "##a")))
for model in (["bert"], ["t5", "--decoder-seq-length", 16, "--vocab-extra-ids", 20]):
    begins = ["--model", *model, "--vocab-file", WORK / "vocab.txt", "--use-checkpoint-args", "--load", WORK / model[0]]
    said = isotron("pretrain", *LAUNCHER, *begins, expect=2)
    assert "contains no checkpoint" in said and "set --save to the same folder" in said, said
    assert "BertWordPieceLowerCase" in isotron("pretrain", *LAUNCHER, *begins, "--save", WORK / model[0],
                                               "--save-interval", 4)

# With such a tokenizer, Megatron-LM ignores --vocab-size. In Isotron it sets the size of the model, and the run prints
# a note.
assert "note: --vocab-size" not in out
larger = isotron("pretrain", *LAUNCHER, "--vocab-file", WORK / "vocab.json", "--merge-file", WORK / "merges.txt",
                 "--vocab-size", 5)
assert ("note: --vocab-size is 5, but the tokenizer's vocabulary has 3 entries; "
        "Megatron-LM would use the tokenizer's number") in larger, larger

# inspect --schedule takes the batch size from --step-batch-size-schedule.
assert "microbatches 9" in isotron("inspect", "--schedule", "--step-batch-size-schedule", "0:384 200B:768 400B:1152",
                                   "--num-layers", 4, "--seq-length", 8, "--micro-batch-size", 128,
                                   "--pipeline-model-parallel-size", 2)

# With a batch-size schedule, the last step may exceed --train-samples. A blend has exactly as many samples as
# requested, so the run must request the additional ones at its start.
corpus()
blend = [1, WORK / "corpus_text_document", 1, WORK / "corpus_text_document"]
(WORK / "samples.conf").write_text("".join(f"{line}\n" for line in CONF.split("\n") if "-iters" not in line
                                           and "global" not in line))
words = ["--config", WORK / "samples.conf", "--data-path", *blend, "--eval-iters", 0,
         "--step-batch-size-schedule", "0:4", "--train-samples"]
said = isotron("pretrain", *words, 6, expect=2)
assert "ends at sample 8, but the data has only 6 samples; set --train-samples 8" in said, said
assert "iteration        2/       2" in isotron("pretrain", *words, 8)
