"""Options that overlap communication with computation leave results bitwise equal: a run with them, on an NCCL stand-in
whose results arrive late, equals a run without them."""
import os
import pathlib

from harness import PROGRAM, WORK, assert_same_bytes, corpus, pretrain

PP = "--pipeline-model-parallel-size 2 --global-batch-size 16"
TP = "--tensor-model-parallel-size 2 --sequence-parallel"
EXPERTS = ("--num-experts 4 --disable-bias-linear --moe-shared-expert-intermediate-size 32 "
           "--expert-model-parallel-size 2"
           " --moe-token-dispatcher-type alltoall --num-layers 1")
RECOMPUTED = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
TWO = "--interleaved-microbatches 2"
KEPT = "--keep-gathered-inputs"
MIXED = "--interleave-forward-backward"
EARLY = "--no-overlap-with-attention"
UNTIED = "--untie-embeddings-and-output-weights"
CASES = [  # layout, the switch that turns overlap off, the one that turns it on
    (PP, "--no-overlap-p2p-communication", ""),
    (f"{PP} --pipeline-schedule zero-bubble", "--no-overlap-p2p-communication", ""),
    (f"{PP} --pipeline-schedule gpipe", "--no-overlap-p2p-communication", ""),
    (f"{PP} --num-layers 4 --num-virtual-stages-per-pipeline-rank 2 {RECOMPUTED}",
     "--no-overlap-p2p-communication", ""),
    (TP, "--no-tp-comm-overlap", ""),
    (f"{TP} --use-megatron-fsdp --ranks 4", "--no-tp-comm-overlap", ""),
    (f"{TP} --cpu-offloading-num-layers 4 --num-layers 5 --bf16 --fp8-format hybrid", "--no-tp-comm-overlap", ""),
    (f"{TP} {RECOMPUTED}", "--no-tp-comm-overlap", ""),
    (TP, "", KEPT),
    (f"{TP} {PP} --pipeline-schedule zero-bubble --ranks 4", "", KEPT),
    (f"{TP} {UNTIED} --bf16 --fp8-format hybrid {RECOMPUTED}", "", KEPT),
    (f"{TP} --cpu-offloading-num-layers 2 --num-layers 3 --calculate-per-token-loss", "", KEPT),
    ("--context-parallel-size 2", "--no-cp-comm-overlap", ""),
    (EXPERTS, "", "--moe-shared-expert-overlap"),
    (EXPERTS, "", "--overlap-dispatch-backward-with-experts-wgrad --overlap-grad-reduce"),
    (f"{EXPERTS} --use-megatron-fsdp", "", "--overlap-dispatch-backward-with-experts-wgrad --overlap-grad-reduce"),
    (f"{EXPERTS} {RECOMPUTED}", "", "--moe-shared-expert-overlap"),
    ("--use-distributed-optimizer --ddp-num-buckets 3", "", f"--overlap-grad-reduce --overlap-param-gather {EARLY}"),
    ("--use-megatron-fsdp", "", f"--overlap-grad-reduce --overlap-param-gather {EARLY}"),
    ("--use-megatron-fsdp --num-distributed-optimizer-instances 2 --ranks 4", "",
     f"--overlap-grad-reduce --overlap-param-gather {EARLY}"),
    (f"--ddp-num-buckets 3 {RECOMPUTED}", "", "--overlap-grad-reduce"),
    ("--use-distributed-optimizer --ddp-num-buckets 3", "", "--overlap-grad-reduce --overlap-param-gather"),
    ("--use-megatron-fsdp --num-layers 4", "", "--overlap-grad-reduce --overlap-param-gather"),
    ("--use-megatron-fsdp --num-layers 4 --bf16 --fp8-format hybrid --fp8-param-gather", "",
     "--overlap-grad-reduce --overlap-param-gather"),
    (f"{PP} --pipeline-schedule zero-bubble --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --ranks "
     f"4", "",
     "--overlap-grad-reduce --overlap-param-gather"),
    # Tied embeddings get two gradients per microbatch, whose order changes, so only the exact lane is bitwise equal.
    (f"{TP} --lane exact", "", TWO),
    (f"{TP} {UNTIED}", "", TWO),
    (f"{TP} {UNTIED} --global-batch-size 6 {RECOMPUTED}", "", TWO),  # a last unit of one
    (f"{TP} {UNTIED} --bf16 --fp8-format hybrid", "", "--interleaved-microbatches 4 --no-tp-comm-overlap"),
    (f"{TP} {UNTIED} {PP} --ranks 4", "", f"{TWO} {KEPT}"),
    (f"{TP} {UNTIED}", "", f"{TWO} {MIXED}"),
    (f"{TP} {UNTIED} --global-batch-size 6 {RECOMPUTED}", "", f"{TWO} {MIXED} {KEPT}"),  # an odd number of microbatches
    (f"{TP} {UNTIED} --use-distributed-optimizer --ddp-num-buckets 3 --ranks 4 --eval-iters 1 --eval-interval 2 "
     f"--split 90,10,0", "",
     f"{TWO} {MIXED} --overlap-grad-reduce --overlap-param-gather"),
    (f"{EXPERTS} {UNTIED} --bf16", "", f"{TWO} {MIXED}"),
    (f"{EXPERTS} {UNTIED} --global-batch-size 12", "", "--overlap-moe-expert-parallel-comm"),
    (f"{TP} {UNTIED} {PP} --ranks 4", "", f"{TWO} {MIXED} {KEPT}"),
    # fewer than the forward passes before the first backward pass
    (f"{TP} {UNTIED} {PP} --global-batch-size 6 --no-overlap-p2p-communication --ranks 4", "", f"{TWO} {MIXED}"),
    (f"{TP} {UNTIED} {PP} --num-layers 4 --num-virtual-stages-per-pipeline-rank 2 --ranks 4", "", f"{TWO} {MIXED}"),
    (f"--context-parallel-size 2 {UNTIED} --pipeline-model-parallel-size 4 --num-layers 4 --global-batch-size 28 "
     f"--ranks 8"
     " --eval-iters 1 --eval-interval 2 --split 90,10,0", "", f"{TWO} {MIXED}"),
    (f"{TP} {UNTIED} {PP} --pipeline-schedule zero-bubble --ranks 4", "", TWO),
    (f"{TP} {UNTIED} {PP} --num-layers 4 --num-virtual-stages-per-pipeline-rank 2 --ranks 4", "", TWO),
    (f"{TP} {UNTIED} --use-distributed-optimizer --ddp-num-buckets 3 --ranks 4", "",
     f"{TWO} --overlap-grad-reduce --overlap-param-gather"),
    (f"--context-parallel-size 2 {UNTIED}", "", TWO),
    (f"--context-parallel-size 2 --cp-comm-type a2a {UNTIED}", "", TWO),
    (f"{EXPERTS} {UNTIED}", "", TWO),
    (f"{EXPERTS} {UNTIED} --moe-z-loss-coeff 1e-3", "--moe-shared-expert-overlap",
     f"{TWO} --overlap-dispatch-backward-with-experts-wgrad"),
]
data = corpus()
library = ["--nccl-library", pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"]
os.environ["HOST_NCCL_DELAY_US"] = "300"
for i, (layout, off, on) in enumerate(CASES):
    common = f"--cpu-threads 1 --train-iters 3 {layout} {'' if '--ranks' in layout else '--ranks 2'}".split()
    pretrain(data, WORK / f"off{i}", *common, *off.split())
    for name, more in (("threads", []), ("nccl", library)):
        pretrain(data, WORK / f"{name}{i}", *common, *on.split(), *more)
        assert_same_bytes(WORK / f"off{i}", WORK / f"{name}{i}", 3, f"{layout}: {name}")
