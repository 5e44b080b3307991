"""FP8 in every layout is as near to the fp64 truth as on one rank (R of gradients, and the oracle's bound for all else); with
delayed scales a resumed run is bit for bit the straight one."""
from harness import *

CELLS = """
bf16
bf16 --ranks 2 --tensor-model-parallel-size 2
bf16 --ranks 2 --tensor-model-parallel-size 2 --sequence-parallel
bf16 --ranks 2 --pipeline-model-parallel-size 2
bf16 --ranks 2 --context-parallel-size 2
bf16 --ranks 2
bf16 --ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params
bf16 --ranks 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2
bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 2
fp32 --ranks 2 --tensor-model-parallel-size 2
fp16 --ranks 2 --context-parallel-size 2
"""
RECIPES = {
    "delayed": ["hybrid", "--fp8-amax-history-len", 4, "--fp8-amax-compute-algo", "max"],
    "tensorwise": ["hybrid", "--first-last-layers-bf16"],
    "blockwise": ["e4m3", "--no-fp8-wgrad"],
}

(WORK / "cells.list").write_text(CELLS)
for recipe, (form, *options) in RECIPES.items():
    for case in ("llama-layouts", "gpt2-layouts"):
        said = isotron("parity", ROOT / "golden" / case, "--sweep", WORK / "cells.list", "--sweep-deadline", 300,
                       "--fp8-format", form, "--fp8-recipe", recipe, *options)
        assert " 0 fail, 0 are skipped" in said, said
    print(f"{recipe}: R of all layouts is that of one rank")

data = corpus()
options = ["--lane", "bf16", "--fp8-format", *RECIPES["delayed"]]
straight = WORK / "straight"
pretrain(data, straight, *options, "--save-interval", 1, "--log-jsonl", WORK / "straight.jsonl")
expected = losses(WORK / "straight.jsonl")
for k in (1, 7):
    resumed, log = WORK / f"resumed-{k}", WORK / f"{k}.jsonl"
    pretrain(data, resumed, *options, "--load", straight, "--ckpt-step", k, "--log-jsonl", log)
    assert_same_bytes(straight, resumed, 12, f"resumed at {k}")
    assert losses(log) == {i: expected[i] for i in range(k + 1, 13)}, f"resumed at {k}: the losses differ"
names = {t["name"] for t in json.loads((straight / "iter_0000012" / "manifest.json").read_text())["tensors"]}
assert "decoder.layers.1.mlp.linear_fc2.fp8_state" in names, names
print("delayed scales: resumed = straight")
