"""A run that is resumed at any step is bitwise equal to an uninterrupted one, in parameters, optimizer state and
losses. This holds with dropout, in the middle of an epoch, in every lane, and after a change of the loss scale."""
from harness import *

data = corpus()
for lane, extra in {"fp64": [], "fp32": [], "bf16": [],
                    "fp16": ["--initial-loss-scale", 2**24, "--loss-scale-window", 3]}.items():
    options = ["--lane", lane, *extra]
    straight = WORK / f"straight-{lane}"
    pretrain(data, straight, *options, "--save-interval", 1, "--log-jsonl", WORK / f"{lane}.jsonl")
    expected = losses(WORK / f"{lane}.jsonl")
    for k in (1, 5, 11) if lane != "fp64" else range(1, 12):
        resumed, log = WORK / f"resumed-{lane}-{k}", WORK / f"{lane}-{k}.jsonl"
        pretrain(data, resumed, *options, "--load", straight, "--ckpt-step", k, "--log-jsonl", log)
        assert_same_bytes(straight, resumed, 12, f"{lane}, resumed at {k}")
        got = losses(log)
        assert got == {i: expected[i] for i in range(k + 1, 13)}, f"{lane}, resumed at {k}: the losses differ"
    print(f"{lane}: resumed = straight")

# A run without remaining steps saves its checkpoint to another folder, but not again to the same one.
DONE, LANE = WORK / "straight-fp64", ["--lane", "fp64", "--load", WORK / "straight-fp64"]
pretrain(data, WORK / "copy", *LANE)
assert_same_bytes(DONE, WORK / "copy", 12, "no steps remain")
said = pretrain(data, DONE, *LANE)
assert "already at step 12 of 12: " in said and "saved" not in said, said
for step, replaces in (11, True), (12, False):
    said = pretrain(data, DONE, *LANE, "--ckpt-step", step)
    assert (f"note: checkpoints after step {step} in {DONE} are replaced" in said) == replaces, said

# In an MoE model, the routers' biases are state that is not in the optimizer.
moe = ["--num-experts", 4, "--disable-bias-linear",
       "--moe-router-enable-expert-bias", "--moe-router-bias-update-rate", 0.01,
       "--moe-router-load-balancing-type", "global_aux_loss", "--moe-aux-loss-coeff", 0.01,
       "--moe-input-jitter-eps", 0.1, "--moe-shared-expert-intermediate-size", 8]
for score in ("sigmoid", "softmax"):
    options = [*moe, "--moe-router-score-function", score]
    straight = WORK / f"straight-{score}"
    pretrain(data, straight, *options, "--save-interval", 1, "--log-jsonl", WORK / f"{score}.jsonl")
    expected = losses(WORK / f"{score}.jsonl")
    resumed, log = WORK / f"resumed-{score}", WORK / f"{score}-7.jsonl"
    pretrain(data, resumed, *options, "--load", straight, "--ckpt-step", 7, "--log-jsonl", log)
    assert_same_bytes(straight, resumed, 12, f"experts with {score}, resumed at 7")
    assert losses(log) == {i: expected[i] for i in range(8, 13)}, f"experts with {score}, resumed at 7: other losses"
    names = {t["name"] for t in json.loads((straight / "iter_0000012" / "manifest.json").read_text())["tensors"]}
    assert "decoder.layers.0.mlp.router.expert_bias" in names, names
    print(f"experts with {score}: resumed = straight")
