"""`isotron plan` reports the same memory as pretrain, plans runs of any size, and finds the smallest layouts that
fit."""
import itertools
import re

from harness import *

data = corpus()
CONFIG = ["--config", WORK / "run.conf", "--device", "cpu"]
FSDP = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy"]
PIPELINE = ["--num-layers", 4, "--pipeline-model-parallel-size", 2]
EXPERTS = ["--disable-bias-linear", "--num-experts", 4, "--moe-router-topk", 2]
ENCODER = ["--group-query-attention=false", "--num-query-groups", 1, "--tokenizer-type", "NullTokenizer",
           "--vocab-size", 200]
BERT = [*ENCODER, "--model", "bert"]
T5 = [*ENCODER, "--model", "t5", "--decoder-num-layers", 4, "--decoder-seq-length", 48,
      "--position-embedding-type", "relative"]


def plan(*options, expect=0):
    """Returns the plan as JSON, with the printed text."""
    printed = isotron("plan", *options, "--json", WORK / "plan.json", expect=expect)
    return json.loads((WORK / "plan.json").read_text()) | {"printed": printed}


def text(n):
    """Returns an amount of memory as the program prints it."""
    exponent = 0
    while n >= 1023.95:
        n, exponent = n / 1024, exponent + 1
    return f"{n:.1f} {' KMG'[exponent]}iB" if exponent else f"{n} B"


def parts(memory):
    """Returns the memory of a rank as the program prints it."""
    most = memory["most"]
    line = ", ".join(f"{name} {text(n)}" + f" (at most {text(most.get(name, 0))})" * (name in most)
                     for name, n in memory["bytes"].items() if n) + f", total {text(memory['total'])}"
    whole = sum((memory["bytes"] | most).values())
    return line + f" (at most {text(whole)}, if all tokens are sent to this rank's experts)" * (whole > memory["total"])


def count(n):
    """Returns a number of parameters as the program prints it."""
    unit, name = next(((x, name) for x, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")) if n >= x),
        (1, ""))
    return f"{n / unit:.2f} {name}" if name else str(n)


def check_printed(model, layout, words, gib, status):
    """Asserts that the plan of these options has exactly this layout, and that printed and written results are
    consistent. model: (layers, hidden size, vocabulary, sequence length); layout: numbers of ranks. Returns the
    plan."""
    said = plan("--device", "cpu", *words, "--device-memory-gib", gib, expect=status)
    p, printed, (layers, hidden, vocabulary, length) = said["plan"], said["printed"], model
    assert said["device_bytes"] == int(gib * 2**30) and p["device"] == "cpu", said
    assert p["layout"] == {name: n for name, n in layout.items() if name != "expert data"}, p["layout"]
    step = p["flops_per_sample"] * p["batch"]["global"]
    experts = p["active_parameters"] < p["parameters"]
    axes = ["tensor", "context", "pipeline", "data", *(["expert", "expert_tensor", "expert data"] if experts else [])]
    lines = [f"model: gpt, {layers} layers, hidden size {hidden}, vocabulary {vocabulary}",
             f"parameters: {count(p['parameters'])} ({p['parameters']})" +
             f", {count(p['active_parameters'])} active per token"
             * experts + f", at most {count(p['rank_parameters'])} on any rank",
             f"model FLOPs: {p['flops_per_sample'] / length:.4g} per token, {step:.4g} per step", "device: CPU",
             f"layout: {layout['ranks']} rank{'s' * (layout['ranks'] > 1)}, " +
             ", ".join(f"{name.replace('_', ' ')} {layout[name]}" for name in axes) +
             f", ZeRO stage {layout['zero']}" + ", sequence parallel" * ("--sequence-parallel" in words),
             f"batch: micro {p['batch']['micro']}, global {p['batch']['global']}, "
             f"{p['batch']['microbatches']} microbatches per rank and step"]
    chunks = words[words.index(VIRTUAL) + 1] if VIRTUAL in words else 1
    if layout["pipeline"] > 1:
        schedule = "interleaved" if chunks > 1 else "1f1b"
        lines.append(f"pipeline: {schedule}, {chunks} stage{'s' * (chunks > 1)} per rank, "
                     f"bubble {100 * p['bubble']:.1f} % of a step")
    most = next(m for m in p["memory"] if m["rank"] == p["largest"])
    assert most["total"] == max(m["total"] for m in p["memory"]), p
    unit = text(most["total"]).split()[1]
    scale = 1024**["B", "KiB", "MiB", "GiB"].index(unit)
    shown = [name for name in most["bytes"] if any(m["bytes"][name] for m in p["memory"])]
    lines.append(f"memory in {unit} of the first rank of each pipeline stage:")
    lines.append(["rank", "layers", "in", "flight", *" ".join(shown).split(), "total"])
    for i, m in enumerate(p["memory"]):
        assert m["rank"] == i * layout["ranks"] // layout["pipeline"] and m["total"] == sum(m["bytes"].values()), m
        lines.append([str(m[name]) for name in ("rank", "layers", "in_flight")] + [f"{m['bytes'][name] / scale:.2f}"
            for name in shown] +
                     [f"{m['total'] / scale:.2f}"])
    assert bool(most["most"]) == experts, most  # the sizes if one rank's experts receive all tokens
    lines.append(f"memory of rank {p['largest']}: {parts(most)}")
    spare, have = said["device_bytes"] - most["total"], text(said["device_bytes"])
    lines.append(f"fits: {text(spare)} of {have} are left" if spare >= 0
        else f"does not fit: {text(-spare)} more than {have} are needed")
    found = [line if line.startswith(("model", "layout", "batch", "memory", "pipeline", "fits", "does", "device",
        "parameters"))
             else line.split() for line in printed.split("\n")]
    assert found[:len(lines)] == lines, [pair for pair in zip(found, lines) if pair[0] != pair[1]]
    return said


def check_found(said, node=8):
    """Asserts that the printed table has the layouts that the JSON has."""
    layouts = f"{said['searched']['layouts']} layouts"
    assert (f"searched {layouts}: tensor parallelism to {node} ranks, context to 16, pipeline, virtual stages, expert, "
            "data, ZeRO, recomputation, microbatches to 8 samples\n") in said["printed"], said["printed"]
    rows = said["printed"].partition("  bubble\n")[2].split("\n")
    for row, f in zip(rows, said["search"]):
        words = f["options"].split()
        value = lambda name, otherwise="1": words[words.index(name) + 1] if name in words else otherwise
        sizes = [int(value(name)) for name in ("--tensor-model-parallel-size", "--context-parallel-size",
                                               "--pipeline-model-parallel-size", VIRTUAL,
                                               "--expert-model-parallel-size")]
        zero = {"1": "--use-distributed-optimizer" in words, "optim_grads": 2, "optim_grads_params": 3}[
            value("--data-parallel-sharding-strategy")]
        assert row.split() == [*map(str, [f["ranks"], *sizes, f["ranks"] // (sizes[0] * sizes[1] * sizes[2]),
            int(zero)]),
                               value("--recompute-granularity", "none"), value("--micro-batch-size"),
                               *text(f["bytes"]).split(), f"{100 * f['bubble']:.1f}", "%"], (row, f)
    assert rows[len(said["search"])] == f"options of the first layout: {said['search'][0]['options']}", rows


VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
SIZES = ["--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 24, "--vocab-size", 100, "--ffn-hidden-size",
    48]
# All sizes of the layout differ.
LAYOUT = {"ranks": 420, "tensor": 2, "context": 3, "pipeline": 5, "data": 14, "expert": 7, "expert_tensor": 1,
    "expert data": 12,
          "zero": 1}
SPLIT = [*SIZES, "--num-layers", 10, "--micro-batch-size", 2, "--global-batch-size", 14 * 2 * 10, "--ranks", 420,
         "--tensor-model-parallel-size", 2, "--sequence-parallel", "--context-parallel-size", 3,
         "--pipeline-model-parallel-size", 5,
         VIRTUAL, 2, "--num-experts", 7, "--moe-router-topk", 2, "--expert-model-parallel-size", 7,
         "--expert-tensor-parallel-size", 1,
         "--disable-bias-linear", "--use-distributed-optimizer"]
for gib in 1e-3, 1e-4:
    said = check_printed((10, 32, 256, 24), LAYOUT, SPLIT, gib, 0 if gib > 5e-4 else 1)["plan"]
    assert said["batch"] == {"micro": 2, "global": 280, "microbatches": 10}, said
    expert = 2 * 32 * 48
    assert said["parameters"] == 100 * 32 + 24 * 32 + 10 * (4 * 32 * 32 + 2 * 64 + 7 * 32 + 7 * expert) + 64, said
    assert said["parameters"] - said["active_parameters"] == 10 * 5 * expert, said
    # units of 5 microbatches of 2 chunks: 4 chunks of the 20 of a step idle
    assert math.isclose(said["bubble"], 4 / 24) and [m["layers"] for m in said["memory"]] == [2] * 5, said
PLAIN = {"ranks": 1, "tensor": 1, "context": 1, "pipeline": 1, "data": 1, "expert": 1, "expert_tensor": 1, "zero": 0}
check_printed((3, 32, 128, 24), PLAIN, [*SIZES, "--num-layers", 3, "--micro-batch-size", 1, "--global-batch-size", 4],
    1, 0)

# pretrain prints the memory of rank 0.
for layout in ([], ["--bf16", "--ranks", 4, "--use-distributed-optimizer"],
               ["--ranks", 4, *FSDP, "optim_grads_params", "--overlap-grad-reduce", "--overlap-param-gather"],
               ["--ranks", 4, *PIPELINE, "--num-virtual-stages-per-pipeline-rank", 2,
                "--recompute-granularity", "selective"],
               ["--bf16", *PIPELINE, "--pipeline-schedule", "zero-bubble"],
               ["--ranks", 4, "--tensor-model-parallel-size", 2, "--sequence-parallel",
                "--expert-model-parallel-size", 2, *EXPERTS],
               ["--context-parallel-size", 2, "--cpu-offloading-num-layers", 1],
               [*BERT, "--bf16", "--ranks", 2, "--tensor-model-parallel-size", 2, "--sequence-parallel"],
               [*BERT, "--ranks", 4, *PIPELINE, *FSDP, "optim_grads"],
               [*T5, "--cpu-offloading-num-layers", 5],
               [*T5, "--ranks", 4, "--context-parallel-size", 2, "--use-distributed-optimizer"],
               [*T5, "--bf16", "--pipeline-model-parallel-size", 2, "--num-virtual-stages-per-pipeline-rank", 3],
               [*T5, "--ranks", 4, "--pipeline-model-parallel-size", 2, *FSDP, "optim_grads_params",
                "--recompute-granularity", "selective"]):
    ran = isotron(*BASE, *(["--mock-data"] if "--model" in layout else data), *layout, "--train-iters", 1,
                  "--lr-warmup-iters", 0)
    said = plan(*CONFIG, *layout)
    rank = said["plan"]["memory"][0]
    planned = parts(rank)
    assert planned in ran, f"{layout}:\n{planned}\n{ran}"
    assert (planned in said["printed"]) == (said["plan"]["largest"] == 0), said["printed"]

# Virtual stages of different sizes: 2, 1, 2 and 0 layers.
uneven = plan(*CONFIG, "--num-layers", 5, "--pipeline-model-parallel-size", 2,
              "--pipeline-model-parallel-layout", "Ett|t|tt|L")["plan"]
assert [m["layers"] for m in uneven["memory"]] == [4, 1], uneven
assert uneven["rank_parameters"] > uneven["parameters"] / 2, uneven
# The first stage needs more memory, because it holds the activations of two microbatches; the last one has more
# parameters: three layers, the output layer and a norm.
H, V = 16, 128
heavy = check_printed((5, H, V, 512), PLAIN | {"ranks": 2, "pipeline": 2}, [
    "--num-layers", 5, "--hidden-size", H, "--num-attention-heads", 2, "--seq-length", 512, "--vocab-size", V,
    "--position-embedding-type", "rope", "--micro-batch-size", 1, "--global-batch-size", 4, "--ranks", 2,
    "--pipeline-model-parallel-size", 2, "--pipeline-model-parallel-layout", "Ett|tttL"], 1, 0)["plan"]
assert (heavy["largest"], heavy["rank_parameters"]) == (0, V * H + 3 * (12 * H * H + 13 * H) + 2 * H), heavy
# The pipeline schedules units of one microbatch or of two interleaved ones. Rank 0 holds the activations of two units,
# rank 1 of one. A step of 4 microbatches has 4 or 2 units. A rank idles for one unit, which is 1/5 or 1/3 of the step.
for words, each in ([], 1), (["--interleaved-microbatches", 2], 2):
    units = plan(*CONFIG, "--ranks", 4, "--tensor-model-parallel-size", 2, "--pipeline-model-parallel-size", 2,
                 *words)["plan"]
    assert [m["in_flight"] for m in units["memory"]] == [2 * each, each], units
    assert math.isclose(units["bubble"], 1 / (1 + 4 / each)), units
# The FLOPs of a step are those of all its samples.
both = plan(*CONFIG)
per_step = float(re.search(r"model FLOPs: \S+ per token, (\S+) per step", both["printed"])[1])
assert math.isclose(per_step, both["plan"]["flops_per_sample"] * both["plan"]["batch"]["global"], rel_tol=1e-3), both
# In batch-invariant mode each sample is a microbatch.
batches = [plan(*CONFIG, *words)["plan"]["batch"] for words in ([], ["--batch-invariant-mode"])]
assert [(b["micro"], b["microbatches"]) for b in batches] == [(2, 4), (2, 8)], batches

# The block method recomputes the first layers of each part of a stack on a stage. If it recomputes all layers of the
# largest part, which is on the last stage, the memory is that of the uniform method with chunks of one layer.
for words, layers in (PIPELINE, 2), ([*T5, "--pipeline-model-parallel-size", 2], 3):
    each, most, fewer = (plan(*CONFIG, *words, "--recompute-granularity", "full", "--recompute-method", method,
                              "--recompute-num-layers", n)["plan"]["memory"]
                         for method, n in (("uniform", 1), ("block", layers), ("block", layers - 1)))
    assert most == each and fewer[-1]["bytes"]["activations"] > each[-1]["bytes"]["activations"], (each, most, fewer)
# The uniform method stores one input for each chunk: of 4 layers, 4, 2 or 1.
four, two, one = (plan(*CONFIG, "--num-layers", 4, "--recompute-granularity", "full", "--recompute-method", "uniform",
                       "--recompute-num-layers", n)["plan"]["memory"][0]["bytes"]["activations"] for n in (1, 2, 4))
assert four - two == 2 * (two - one) > 0, (four, two, one)

# A router's bias does not count as a parameter.
router = plan(*CONFIG, *EXPERTS, "--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias")["plan"]
assert router["rank_parameters"] == router["parameters"], router

# The host copy for an asynchronous save has the size of the file that the rank writes.
for i, words in enumerate((["--bf16"], ["--no-save-optim"], ["--optimizer", "sgd", "--ranks", 2],
                           [*PIPELINE, "--ranks", 4, "--bf16", "--use-distributed-optimizer"],
                           [*FSDP, "optim_grads_params", "--ranks", 2])):
    save = ["--save", WORK / f"beside-{i}", "--save-interval", 1, "--async-save", *words]
    memory = plan(*CONFIG, *save)["plan"]["memory"]
    isotron("pretrain", *CONFIG, *data, *save, "--exit-interval", 1)
    sizes = [(WORK / f"beside-{i}/iter_0000001/shard_{m['rank']:05}.bin").stat().st_size for m in memory]
    assert [m["bytes"]["checkpoint copy"] for m in memory] == sizes, (words, memory, sizes)

# DeepSeek-V3: 671.0 billion parameters, and 11.6 billion of a layer that predicts further tokens, without the copies of
# the embedding and of the output layer in its files.
H, HEADS, FFN, V = 7168, 128, 2048, 129280
latent = H * (1536 + 512 + 64) + 1536 + 512 + HEADS * (1536 * 192 + 512 * 256 + 128 * H)
layer, shared = latent + 2 * H, 3 * H * FFN
moe = layer + 257 * shared + 256 * H
v3 = ["--num-layers", 61, "--hidden-size", H, "--ffn-hidden-size", 9 * FFN, "--num-attention-heads", HEADS,
      "--vocab-size", V,
      "--seq-length", 4096, "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear",
      "--multi-latent-attention",
      "--untie-embeddings-and-output-weights", "--position-embedding-type", "rope", "--q-lora-rank", 1536,
      "--kv-lora-rank", 512, "--qk-layernorm", "--num-experts", 256, "--moe-layer-freq", "[0]*3+[1]*58",
      "--moe-ffn-hidden-size", FFN, "--moe-shared-expert-intermediate-size", FFN, "--moe-router-topk", 8, "--bf16",
      "--micro-batch-size", 1, "--global-batch-size", 64, "--ranks", 64, "--expert-model-parallel-size", 64]
without, ahead = (plan(*v3, *words)["plan"] for words in ([], ["--mtp-num-layers", 1]))
assert without["parameters"] == 2 * V * H + H + 3 * (layer + 9 * shared) + 58 * moe == 671026404352, without
assert ahead["parameters"] - without["parameters"] == moe + 2 * H * H + 3 * H == 11610067968, ahead

# A model of 458 billion parameters on 6,144 ranks.
L, H, S, V, P = 112, 18432, 4096, 51200, 16
whole = plan("--num-layers", L, "--hidden-size", H, "--num-attention-heads", 128, "--seq-length", S,
             "--vocab-size", V, "--bf16", "--micro-batch-size", 1, "--global-batch-size", 1536, "--ranks", 6144,
             "--tensor-model-parallel-size", 8, "--sequence-parallel", "--pipeline-model-parallel-size", P,
             "--use-distributed-optimizer")["plan"]
assert whole["parameters"] == V * H + S * H + L * (12 * H * H + 13 * H) + 2 * H
assert (whole["layout"]["data"], whole["batch"]["microbatches"]) == (48, 32)
assert math.isclose(whole["bubble"], (P - 1) / (P - 1 + 32))
assert [m["rank"] for m in whole["memory"]] == list(range(0, 6144, 6144 // P))
assert [m["in_flight"] for m in whole["memory"]] == list(range(P, 0, -1))
# parameters of 2 bytes and gradients of 4; norms and some biases are replicated on all tensor-parallel ranks
middle = whole["memory"][1]["bytes"]
assert 1 <= middle["parameters"] / (2 * L / P * 12 * H * H / 8) < 1.001
assert middle["main gradients"] == 2 * middle["parameters"]
assert 1 <= middle["optimizer"] / (6 * middle["parameters"] / 48) < 1.01  # a master and two moments, shared by 48

# A plan is for GPUs and includes the buffers of NCCL, unless --device cpu is given on the command line or in a file.
(WORK / "cpu.conf").write_text((WORK / "run.conf").read_text() + "device = cpu\n")
TO_ALL = [*EXPERTS, "--expert-model-parallel-size", 2, "--moe-token-dispatcher-type", "alltoall"]
for layout in (TO_ALL, ["--use-distributed-optimizer"], ["--tensor-model-parallel-size", 2],
               ["--context-parallel-size", 2], PIPELINE,
               [*EXPERTS, "--expert-model-parallel-size", 2], [*FSDP, "optim_grads_params"]):
    words = ["--config", WORK / "run.conf", "--ranks", 2, *layout]
    for_gpus, for_cpus = plan(*words), plan(*words, "--device", "cpu")
    assert plan(*words, "--device", "cuda")["plan"] == for_gpus["plan"]
    assert plan("--config", WORK / "cpu.conf", *words[2:])["plan"] == for_cpus["plan"]
    assert "device: GPU, unless --device cpu is given\n" in for_gpus["printed"], for_gpus["printed"]
    assert "device: CPU\n" in for_cpus["printed"], for_gpus["printed"]
    for gpu, cpu in zip(for_gpus["plan"]["memory"], for_cpus["plan"]["memory"]):
        nccl = gpu["bytes"]["communication"] - cpu["bytes"]["communication"]
        # MiB of the first communicator, of each communicator, and of each further member of an all-to-all
        mib = 465 + 411 * gpu["communicators"] + 402 * (layout == TO_ALL)
        assert gpu["communicators"] and nccl == gpu["total"] - cpu["total"] == mib * 2**20, (layout, gpu, cpu)
        assert all(gpu["bytes"][part] == x for part, x in cpu["bytes"].items()
                   if part != "communication"), (layout, gpu, cpu)

# Errors: a broken rule of options, and one that only the pipeline checks.
assert "--ranks 3 is not a multiple" in isotron("plan", *CONFIG, "--ranks", 3,
                                                "--tensor-model-parallel-size", 2, expect=2)
assert "among 3 pipeline ranks" in isotron("plan", *CONFIG, "--pipeline-model-parallel-size", 3, expect=2)
assert "set --device-memory-gib" in isotron("plan", *CONFIG, "--search", expect=2)

# The exit status is the verdict, but if the report cannot be written, it is that of an environment error.
assert "does not fit" in isotron("plan", *CONFIG, "--device-memory-gib", 1e-4, expect=1)
assert "no layout fits" in isotron("plan", *CONFIG, "--device-memory-gib", 1e-6, "--search", expect=1)
said = plan(*CONFIG, "--device-memory-gib", 1)
left = text(2**30 - said["plan"]["memory"][0]["total"])
assert f"\nfits: {left} of 1.0 GiB are left\n" in said["printed"], said["printed"]
isotron("plan", *CONFIG, "--json", "/dev/full", expect=3)

# A layout that --search finds fits when it is planned, and no smaller layout does.
MODEL = [*CONFIG, "--num-layers", 4, "--global-batch-size", 16]
for model, share in ((MODEL, 0.2), ([*MODEL, *EXPERTS], 0.16)):
    memory = share * plan(*model)["plan"]["memory"][0]["total"] / 2**30
    said = plan(*model, "--search", "--device-memory-gib", memory)
    found, order = said["search"], []
    assert len(found) == 8 and "does not fit" in said["printed"] and found[0]["options"] in said["printed"]
    assert said["searched"]["all"], said["printed"]
    check_found(said)
    for layout in found:
        again = plan(*model, *layout["options"].split())["plan"]
        assert max(m["total"] for m in again["memory"]) == layout["bytes"] <= memory * 2**30, layout
        recomputes = re.search(r"--recompute-granularity (\S+)", layout["options"])
        level = ["selective", "full"].index(recomputes[1]) + 1 if recomputes else 0
        order.append((layout["ranks"], level, again["layout"]["zero"], int(100 * again["bubble"])))
        faster = lambda p: (int(100 * p["bubble"]), -p["batch"]["micro"])
        # of 4 layers
        for chunks, micro in itertools.product((1, 2) if again["layout"]["pipeline"] == 2 else (1,), (1, 2, 4, 8)):
            microbatches, rest = divmod(16, micro * again["layout"]["data"])
            if rest == 0 and (chunks == 1 or microbatches % 2 == 0):
                other = plan(*model, *layout["options"].split(), "--micro-batch-size", micro,
                             "--num-virtual-stages-per-pipeline-rank", chunks)["plan"]
                is_larger = max(m["total"] for m in other["memory"]) > memory * 2**30
                assert is_larger or faster(other) >= faster(again), (layout, chunks, micro)
    assert order == sorted(order) and {f["ranks"] for f in found} == {found[0]["ranks"]}, order
    smallest = found[0]["ranks"]
    assert 2 <= smallest <= 16, smallest
    zero = ([], ["--use-distributed-optimizer"], [*FSDP, "optim_grads"], [*FSDP, "optim_grads_params"])
    full = ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1]
    ranks = smallest // 2
    for tensor, context, pipeline, shard in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4), zero):
        if ranks % (tensor * context * pipeline):
            continue
        least = plan(*model, "--ranks", ranks, "--tensor-model-parallel-size", tensor, "--sequence-parallel",
                     "--context-parallel-size", context, "--pipeline-model-parallel-size", pipeline,
                     "--micro-batch-size", 1, *shard, *full)["plan"]
        assert max(m["total"] for m in least["memory"]) > memory * 2**30, (ranks, tensor, context, pipeline, shard)
    exact = plan(*model, "--global-batch-size", 4 * smallest, "--ranks", 2 * smallest, "--search",
                 "--device-memory-gib", memory, "--gpus-per-node", 2)
    check_found(exact, 2)
    assert {f["ranks"] for f in exact["search"]} == {2 * smallest}, exact["search"]
    assert f"layouts of {2 * smallest} ranks" in exact["printed"], exact["search"]

# The layout found replaces the layout options of the command: experts need not be distributed if all of them fit on one
# rank.
GIVEN = [*MODEL, *EXPERTS, "--ranks", 2, "--expert-model-parallel-size", 2]
found = plan(*GIVEN, "--search", "--device-memory-gib", 1)["search"]
assert found
for layout in found:
    again = plan(*GIVEN, *layout["options"].split())["plan"]
    assert again["layout"]["expert"] == 1 and max(m["total"] for m in again["memory"]) == layout["bytes"], layout

# The data-parallel size need not be a power of two.
three = plan(*MODEL, "--global-batch-size", 12, "--ranks", 3, "--search", "--device-memory-gib", 1)["search"]
assert three and all(f["ranks"] == 3 for f in three), three

# ZeRO also shards the state over context-parallel ranks.
PAIR = [*MODEL, "--ranks", 2]
whole, shared = (plan(*PAIR, "--context-parallel-size", 2, "--micro-batch-size", 1, *full,
                      *words)["plan"]["memory"][0]["total"] for words in ([], zero[-1]))
found = plan(*PAIR, "--search", "--device-memory-gib", (0.2 * whole + 0.8 * shared) / 2**30)["search"]
assert shared < whole and any("--context-parallel-size 2" in f["options"] for f in found), found

# Each stage of ZeRO shards its part of the state. For a model whose memory is mostly state, the search finds the lowest
# stage that fits.
STATE = [*CONFIG, "--num-layers", 24, "--seq-length", 8, "--global-batch-size", 16, "--ranks", 2,
         "--micro-batch-size", 1, *full]
for words in zero:
    memory = plan(*STATE, *words)["plan"]["memory"][0]["total"]
    found = [f["options"] for f in plan(*STATE, "--search", "--device-memory-gib", memory / 2**30)["search"]]
    data, = [o for o in found
             if all(f"{axis}-parallel-size 1 " in o for axis in ("tensor-model", "context", "pipeline-model"))]
    stage = data.partition("--micro-batch-size 1")[2].partition("--recompute-granularity")[0].split()
    assert stage == words, (words, found)

# A pipeline may have two more stages than layers, for the embedding and the output layer. If nothing else fits, the
# search finds such a layout.
ENDS = [*CONFIG, "--num-layers", 1, "--vocab-size", 400, "--global-batch-size", 12, "--ranks", 3]
STAGED = [*ENDS, "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
most = max(m["total"] for m in plan(*STAGED, "--pipeline-model-parallel-size", 3,
                                    "--micro-batch-size", 1)["plan"]["memory"])
assert all(plan(*ENDS, "--micro-batch-size", 1, *full, *words)["plan"]["memory"][0]["total"] > most for words in zero)
found = plan(*STAGED, "--search", "--device-memory-gib", most / 2**30)["search"]
assert found and all("--pipeline-model-parallel-size 3 " in f["options"] for f in found), found
