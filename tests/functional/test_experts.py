"""An MoE model does not depend on its layout. In the exact lane, layouts of up to 64 virtual ranks (TP4 PP4 CP2 EP2
DP2) are bitwise equal to one rank and log the same losses. This includes dropout, jitter, dropped tokens, biases and
all losses except the global one. The global loss counts the tokens of all data-parallel ranks, so these ranks equal one
rank that processes all of their microbatches. Other axes do not change this loss."""
from harness import *

data = corpus()
MODEL = ["--num-layers", 4, "--hidden-size", 16, "--num-query-groups", 4, "--disable-bias-linear", "--num-experts", 8,
         "--ffn-hidden-size", 32, "--moe-ffn-hidden-size", 8, "--moe-layer-freq", "[0,1,1,1]",
         "--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias",
         "--moe-router-bias-update-rate", 0.0625, "--moe-input-jitter-eps", 0.1,
         "--moe-shared-expert-intermediate-size", 8, "--moe-shared-expert-gate", "--train-iters", 4,
         "--lr-decay-iters", 4]
LOSSES = ["--moe-router-load-balancing-type", "aux_loss", "seq_aux_loss", "--moe-aux-loss-coeff", 0.0625, 0.125,
          "--moe-z-loss-coeff", 0.03125, "--moe-expert-capacity-factor", 1.25, "--micro-batch-size", 1]
TP2, A2A = ["--tensor-model-parallel-size", 2, "--sequence-parallel"], ["--moe-token-dispatcher-type", "alltoall"]
EP2, CP2, PP2 = (["--" + name + "-parallel-size", 2] for name in ("expert-model", "context", "pipeline-model"))
ALL = ["--ranks", 64, "--tensor-model-parallel-size", 4, "--sequence-parallel",
       "--pipeline-model-parallel-size", 4, *CP2, *EP2]
LAYOUTS = {
    "dp2": ["--ranks", 2],
    "dp2 ep2": ["--ranks", 2, *EP2],
    "dp4 ep2 alltoall, everything shared out": ["--ranks", 4, *EP2, *A2A, "--use-megatron-fsdp"],
    "tp2 ep2 alltoall": ["--ranks", 4, *TP2, *EP2, *A2A],
    "tp2 ep2 etp1, padded": ["--ranks", 2, *TP2, *EP2, "--expert-tensor-parallel-size", 1,
                             "--moe-pad-expert-input-to-capacity"],
    "cp2 ep2 pp2": ["--ranks", 4, *CP2, *EP2, *PP2],
    "dp4 ep2 etp2 alltoall, recomputed": ["--ranks", 4, *EP2, "--expert-tensor-parallel-size", 2, *A2A,
                                          "--recompute-granularity", "full", "--recompute-method", "uniform",
                                          "--recompute-num-layers", 1],
    "dp4 ep2 alltoall overlapped, activations discarded": [
        "--ranks", 4, *EP2, *A2A, *PP2, "--pipeline-schedule", "zero-bubble", "--recompute-granularity", "selective",
        "--recompute-modules", "layernorm", "moe_act"],
    "tp4 pp4 cp2 ep2 dp2": ALL,
    "tp4 pp4 cp2 ep2 etp1 dp2 alltoall": [*ALL, "--expert-tensor-parallel-size", 1, *A2A],
}


def run(name, *options):
    """Returns the content of the checkpoint, and the log."""
    save, log = WORK / name, WORK / f"{name}.jsonl"
    pretrain(data, save, *MODEL, *options, "--log-jsonl", log)
    return isotron("inspect", "--checkpoint", save, "--hash"), records(log)


def same(got, want, fields, claim):
    """Compares the checkpoints and the logged losses of exact runs."""
    assert got[0] == want[0], f"{claim}: other bits than one rank"
    logged = [[[r[field] for field in fields] for r in log] for _, log in (got, want)]
    assert logged[0] == logged[1] and len(logged[0]) == 4, f"{claim}: {logged[0]}, not {logged[1]}"


# A mean over a rank's microbatches would be on another grid of the exact lane.
EXACT = ["--lane", "exact", "--calculate-per-token-loss"]
FIELDS = ("lm_loss", "load_balancing_loss", "seq_load_balancing_loss", "z_loss")
exact = run("exact", *LOSSES, *EXACT)
_, log = run("fp64", *LOSSES, "--fp64")
rounding = Rounding(log, run("fp32", *LOSSES, "--lane", "fp32")[1], FIELDS)
for name, layout in LAYOUTS.items():
    same(run(f"{name}, exact", *LOSSES, *layout, *EXACT), exact, FIELDS, name)
    rounding.check(run(name, *LOSSES, *layout, "--fp64")[1], log, name)

GLOBAL = ["--moe-router-load-balancing-type", "global_aux_loss", "--moe-aux-loss-coeff", 0.125]
FIELDS = ("lm_loss", "grad_norm", "global_load_balancing_loss")
_, log = run("global", *GLOBAL, "--fp64", "--micro-batch-size", 4)
_, got = run("global, dp4 ep2", *GLOBAL, "--fp64", "--micro-batch-size", 1, "--ranks", 4, *EP2)
_, single = run("global, fp32", *GLOBAL, "--lane", "fp32", "--micro-batch-size", 4)
Rounding(log, single, FIELDS).check(got, log, "the global loss of one rank with the microbatches of all")
exact = run("global, exact", *GLOBAL, *EXACT)
for name, layout in {"tp2 cp2": [*TP2, *CP2], "pp2": PP2}.items():
    same(run(f"global, {name}, exact", *GLOBAL, *EXACT, *layout), exact, FIELDS, f"the global loss, {name}")
