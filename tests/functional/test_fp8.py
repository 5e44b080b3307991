"""With FP8, every layout is as close to the fp64 reference as one rank is (by R for gradients, and by the oracle's
bounds for all other quantities). With delayed scales, a resumed run is bitwise equal to an uninterrupted one, and so is
a run that keeps FP8 values. A rank reports if all of its layers stay in bf16. FP8 can be switched off in the benchmarks
as their configurations describe."""
from harness import *

CELLS = """
bf16
bf16 --ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params
bf16 --ranks 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2
bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 2
fp16 --ranks 2 --context-parallel-size 2
"""
SINGLE = """
bf16 --ranks 2 --tensor-model-parallel-size 2
bf16 --ranks 2 --tensor-model-parallel-size 2 --sequence-parallel
bf16 --ranks 2 --pipeline-model-parallel-size 2
bf16 --ranks 2 --context-parallel-size 2
bf16 --ranks 2
fp32 --ranks 2 --tensor-model-parallel-size 2
"""
RECIPES = {
    "delayed": ["hybrid", "--fp8-amax-history-len", 4, "--fp8-amax-compute-algo", "max"],
    "tensorwise": ["hybrid", "--first-last-layers-bf16"],
    "blockwise": ["hybrid", "--no-fp8-wgrad"],
}

for recipe, case, cells in ("delayed", "llama-layouts", CELLS + SINGLE), ("tensorwise", "gpt2-layouts",
                                                                          CELLS), ("blockwise", "llama-layouts", CELLS):
    if pathlib.Path(PROGRAM).name == "guarded":  # it has the CPU's kernels, so one layout with all axes suffices
        if recipe != "delayed":  # the runs below have the other recipes, on several ranks
            continue
        cells = CELLS.splitlines()[3]
    (WORK / "cells.list").write_text(cells)
    form, *options = RECIPES[recipe]
    said = isotron("parity", ROOT / "golden" / case, "--sweep", WORK / "cells.list", "--sweep-deadline", 300,
                   "--fp8-format", form, "--fp8-recipe", recipe, *options)
    assert " 0 fail, 0 are skipped" in said, said
    print(f"{recipe}, {case}: R of all layouts is that of one rank", flush=True)

data = corpus()
options = ["--lane", "bf16", "--fp8-format", *RECIPES["delayed"], "--fp8-output-proj"]
straight = WORK / "straight"
pretrain(data, straight, *options, "--save-interval", 1, "--log-jsonl", WORK / "straight.jsonl")
expected = losses(WORK / "straight.jsonl")
for k in (1, 7):
    resumed, log = WORK / f"resumed-{k}", WORK / f"{k}.jsonl"
    pretrain(data, resumed, *options, "--load", straight, "--ckpt-step", k, "--log-jsonl", log)
    assert_same_bytes(straight, resumed, 12, f"resumed at {k}")
    assert losses(log) == {i: expected[i] for i in range(k + 1, 13)}, f"resumed at {k}: the losses differ"
kept, log = WORK / "kept", WORK / "kept.jsonl"
pretrain(data, kept, *options, "--fp8-keep-weights", "--fp8-keep-inputs", "--log-jsonl", log)
assert_same_bytes(straight, kept, 12, "kept FP8 values")
assert losses(log) == expected, "kept FP8 values: the losses differ"
sampled = [isotron("generate", "--use-checkpoint-args", "--load", straight, "--prompt", "sixteen letters!",
                   "--tokens-to-generate", 8, "--temperature", 0, *options, *keep).split("  generated ")[0]
           for keep in ([], ["--fp8-keep-weights"])]
assert sampled[0] == sampled[1], sampled
names = {t["name"] for t in json.loads((straight / "iter_0000012" / "manifest.json").read_text())["tensors"]}
assert "decoder.layers.1.mlp.linear_fc2.fp8_state" in names, names
print("delayed scales: resumed = straight")

# Scales of FP8 depend on the recipe and are not part of the model.
LEFT_OUT = "the FP8 scales of the checkpoint are omitted"
ANEW = "the checkpoint has no FP8 scales: they start with their initial values"
in_bf16 = WORK / "in-bf16"
said = pretrain(data, in_bf16, "--lane", "bf16", "--load", straight)
assert LEFT_OUT in said, said
said = pretrain(data, WORK / "again", *options, "--load", in_bf16, "--train-iters", 14)
assert ANEW in said, said
said = pretrain(data, WORK / "more", *options, "--load", WORK / "again", "--train-iters", 15)
assert LEFT_OUT not in said and ANEW not in said, said
said = isotron("generate", "--use-checkpoint-args", "--load", straight, "--prompt", "a", "--tokens-to-generate", 1)
assert LEFT_OUT in said, said
isotron("convert", "--use-checkpoint-args", "--load", straight, "--to-hf", WORK / "hf")
said = pretrain(data, WORK / "longer", "--bf16", "--fp8-hybrid", "--fp8-amax-history-len", 5, "--load", straight,
                "--train-iters", 13, expect=2)
assert "set --fp8-amax-history-len 4" in said, said
print("delayed scales: other runs ignore them, or begin with their own")

# Weights that are stored in FP8 change only memory and messages. Shards begin inside rows and blocks, and the fp16 runs
# skip steps, in which delayed scales change and weights do not.
DELAYED = "--fp8-recipe delayed --fp8-amax-history-len 3 --fp8-amax-compute-algo max --fp8-margin 1"
SKIPPED = f"--fp16 --initial-loss-scale 2e7 --hysteresis 1 {DELAYED}"
BLOCKS = "--fp8-recipe blockwise --hidden-size 144 --ffn-hidden-size 200 --no-fp8-wgrad"
OVERLAP = "--overlap-grad-reduce --overlap-param-gather"
EXPERTS = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 144 --disable-bias-linear"
SHARDS = "--tensor-model-parallel-size 2 --sequence-parallel"
UNTIED = "--fp8-output-proj --untie-embeddings-and-output-weights"
STORED = f"""
{SKIPPED} --use-distributed-optimizer
{SKIPPED} --ranks 2 --use-distributed-optimizer --ddp-num-buckets 3 {OVERLAP}
--bf16 --fp8-recipe tensorwise --ranks 4 --tensor-model-parallel-size 2 --use-megatron-fsdp {OVERLAP} --num-layers 3
--bf16 {BLOCKS} --ranks 4 --use-megatron-fsdp --num-distributed-optimizer-instances 2 {UNTIED} --vocab-size 300
--bf16 {BLOCKS} --ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads {OVERLAP}
--lane fp32 {DELAYED} --ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy no_shard
--lane fp32 {BLOCKS} --ranks 3 --global-batch-size 6 --use-distributed-optimizer
--lane fp32 --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-end-in-bf16 0 --ranks 2 --use-megatron-fsdp
--bf16 --fp8-recipe tensorwise --optimizer muon --ranks 2 --use-distributed-optimizer
--bf16 {BLOCKS} {EXPERTS} --ranks 4 --expert-model-parallel-size 2 --use-megatron-fsdp {OVERLAP}
--bf16 {DELAYED} {EXPERTS} --ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads {UNTIED}
--bf16 --fp8-recipe tensorwise {EXPERTS} --optimizer muon --ranks 4 {SHARDS} --use-distributed-optimizer
"""
for number, line in enumerate(STORED.strip().splitlines()):
    told = []
    for gathers in ([], ["--fp8-param-gather"],
                    ["--fp8-param-gather", "--load", WORK / f"{number}-0", "--ckpt-step", 3]):
        save, log = WORK / f"{number}-{len(told)}", WORK / f"{number}-{len(told)}.jsonl"
        pretrain(data, save, "--fp8-format", "hybrid", *line.split(), "--train-iters", 6, "--save-interval", 3,
                 "--eval-iters", 1, "--eval-interval", 2, "--split", "90,10,0", *gathers, "--log-jsonl", log)
        told.append((content(save, 6), [(r["lm_loss"], r["grad_norm"], r["skipped"]) for r in records(log)][-3:]))
    assert {r["skipped"] for r in records(WORK / f"{number}-0.jsonl")} == {"--fp16" in line, False}, line
    assert told[0] == told[1], f"{line}: weights that are stored in FP8 change results"
    assert told[0] == told[2], f"{line}: a run that stores weights in FP8 does not continue one that does not"
conf = bench_conf(hidden_size=64, bf16="true", fp8_format="hybrid", use_distributed_optimizer="true")
bytes_sent = []
for gathers in ([], ["--fp8-param-gather"]):
    isotron("bench", "train", "--config", conf, "--ranks", 2, "--steps", 1, "--warmup", 1, "--no-alone", *gathers,
            "--json",
            WORK / "bench.json")
    bytes_sent.append(json.loads((WORK / "bench.json").read_text())["communication"]["dp"]["megabytes"] * 1e6)
WEIGHTS = 2 * 12 * 64 * 64  # each of two ranks sends half of them as one byte instead of two
assert bytes_sent[0] - bytes_sent[1] == WEIGHTS / 2, (WEIGHTS, bytes_sent)
print("weights stored in FP8: bitwise equal, and half the bytes")

last = ["--lane", "bf16", "--fp8-format", "e4m3", "--fp8-recipe", "tensorwise", "--first-last-layers-bf16",
        "--num-layers-at-end-in-bf16", 0]
for layout, none in ([], False), (["--ranks", 2, "--pipeline-model-parallel-size", 2], True):
    said = pretrain(data, WORK / f"last-{none}", *last, *layout, "--train-iters", 3)
    assert "FP8 GEMMs: " in said and ("FP8 GEMMs: none in the layers of rank 0\n" in said) == none, said
print("layers in bf16: a rank without FP8 says so")

file = WORK / "precision.yaml"
file.write_text((ROOT / "tests/data/precision.yaml").read_text().replace("[02]", "9"))
said = pretrain(data, WORK / "unmatched", *options, "--te-precision-config-file", file, "--train-iters", 3)
assert said.count("note: no layer matches ") == 1 and "matches '*.layers.9.*' in " in said, said

SMALL = ["--num-layers", 1, "--hidden-size", 64, "--ffn-hidden-size", 64, "--vocab-size", 100, "--seq-length", 16,
         "--max-position-embeddings", 16]
configurations = sorted((ROOT / "bench" / "train").glob("*layers-fp8*.conf"))
assert configurations, "no configuration with FP8"
for conf in configurations:
    in_bf16 = conf.read_text().splitlines()[1].lstrip("#").split()
    for name, more in {"FP8": [], "bf16": in_bf16}.items():
        isotron("bench", "train", "--config", conf, *SMALL, *more, "--steps", 1, "--warmup", 1, "--no-alone",
                "--json", WORK / "bench.json")
        step = json.loads((WORK / "bench.json").read_text())
        assert any("fp8" in op or op == "quantize"
                   for op in step["op_ms"]) == (name == "FP8"), (conf, name, step["op_ms"])
print("benchmarks: FP8 and bf16 of the same configuration")
