"""Parity fails on errors, in every lane. An invalid case ends with an error message and status 2. A run.conf that
another tool wrote is accepted."""
import math
import struct

from harness import *

GOLDEN = ROOT / "golden"


def read(path):
    """Reads a safetensors file as {name: [dtype, shape, bytes]}."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {n: [t["dtype"], t["shape"], raw[8 + size:][slice(*t["data_offsets"])]] for n, t in header.items()}


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, dims, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def changed(case, change, file="oracle.safetensors"):
    """A copy of a golden case with `change` applied to the tensors of one file."""
    copy = WORK / "case"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(GOLDEN / case, copy)
    tensors = read(copy / file)
    change(tensors)
    write(copy / file, tensors)
    return copy


def edited(case, file, edit):
    copy = changed(case, lambda t: None)
    (copy / file).write_text(edit((copy / file).read_text()))
    return copy


def conf(case, edit):
    return edited(case, "run.conf", edit)


# ---- options that change the function must fail, also in lower precisions if the error is larger than their rounding
def wrong(case, *options, lanes=("fp64",)):
    for lane in lanes:
        assert "verdict: FAIL" in isotron("parity", GOLDEN / case, "--lane", lane, *options, expect=1)


ALL = ("fp64", "fp32", "bf16", "fp16")
wrong("llama-gqa", "--norm-epsilon", 2e-5)
wrong("llama-gqa", "--norm-epsilon", 0.5, lanes=ALL)
wrong("llama-gqa", "--rotary-base", 10001)
wrong("llama-gqa", "--rotary-interleaved", lanes=ALL)
wrong("llama3-rope-scaled", "--rope-scaling-factor", 4.001)
wrong("llama3-rope-scaled", "--calculate-per-token-loss=false", lanes=("fp64", "fp32"))
wrong("mistral-like", "--window-size", "7,0")
wrong("nemotron-1p", "--apply-layernorm-1p=false", lanes=ALL)
wrong("gpt2-tiny", "--activation", "gelu-erf")
wrong("gpt2-tiny", "--weight-decay", 0, lanes=("fp64", "fp32"))
wrong("gpt2-tiny", "--adam-eps", 1.01e-8)
wrong("gpt2-awkward", "--clip-grad", 0, lanes=("fp64", "fp32"))
wrong("gpt2-tiny", "--lr-warmup-iters", 2, lanes=ALL)

# ---- errors smaller than the rounding error of a low-precision lane must fail too
LOW = ("bf16", "fp16", "exact")
for options in (["--lr", 0.0112], ["--adam-beta2", 0.9], ["--activation", "quick-gelu"], ["--weight-decay", 0]):
    wrong("gpt2-tiny", *options, lanes=LOW)
wrong("mixtral-like", "--moe-aux-loss-coeff", 0, lanes=("exact",))
wrong("llama-gqa", "--rotary-base", 5000, lanes=LOW)
wrong("llama-layouts", "--fp8-format", "hybrid", "--rotary-interleaved", lanes=("bf16",))
for options in (["--lr", 0.03], ["--weight-decay", 10], ["--activation", "squared-relu"]):
    wrong("gpt2-layouts", "--fp8-format", "hybrid", *options, lanes=("bf16",))

# ---- the report of a low precision states its power, and the seed selects its random weights
said = [isotron("parity", GOLDEN / "mixtral-like", "--lane", "bf16", "--seed", seed) for seed in (1, 2)]
assert said[0] != said[1], "the draws do not depend on the seed"
assert all("power: gradient" in text and "power: update" in text and "power: loss" in text
           and "experts: margin / noise" in text for text in said), said[0]

# ---- the report as JSON has all rows
REPORT = WORK / "report.json"
isotron("parity", GOLDEN / "gpt2-tiny", "--lane", "bf16", "--json", REPORT)
rows = json.loads(REPORT.read_text())["rows"]
assert [row["quantity"] for row in rows] == [
    *(f"fp64 {name}" for name in ("loss", "grad norm", "clip coefficient", "learning rate", "logits",
                                  "gradient of step 1", "parameter at the end")),
    "loss, R", "loss, scale", "power: loss", "grad norm, R", "grad norm, scale", "clip coefficient, R",
    "clip coefficient, scale", "learning rate", "values stored too narrow", "logits, R", "logits, scale", "gradient, R",
    "gradient, scale", "power: gradient", "update, R", "update, scale", "update, decay", "power: update"], rows
for row in rows:
    assert set(row) == {"quantity", "tensors", "relative", "relative_bound", "elementwise", "elementwise_bound",
                        "worst", "index", "rank", "pass"}, row
assert [row["tensors"] for row in rows if row["quantity"] in ("fp64 gradient of step 1", "gradient, R",
                                                              "update, R")] == [28, 28, 28], rows

# A router's bias has no gradient, so only its final value is compared.
isotron("parity", GOLDEN / "glm4-moe-like", "--fp64", "--json", REPORT)
tensors = {row["quantity"]: row["tensors"] for row in json.loads(REPORT.read_text())["rows"]}
assert (tensors["gradient of step 1"], tensors["parameter at the end"]) == (68, 69), tensors

# In a row of power, the tensors of one linear or norm outside the layers count as one module. The modules here: 4
# layers, three embedding tables and their norm, a linear and a norm before the output layer, its bias, the pooler, and
# the binary head.
isotron("parity", GOLDEN / "bert-original", "--lane", "bf16", "--json", REPORT)
power, = (row for row in json.loads(REPORT.read_text())["rows"] if row["quantity"] == "power: update")
assert power["tensors"] == 13, power
# If gradients underflow in fp16, they are within their bounds, but these are so wide that the verdict is neither a
# failure nor a pass.
said = isotron("parity", GOLDEN / "gpt2-tiny", "--lane", "fp16", "--loss-scale", 1e-5, "--json", REPORT, expect=4)
assert "verdict: inconclusive" in said and " weak  " in said and "FAIL" not in said, said
report = json.loads(REPORT.read_text())
assert report["inconclusive"] and not report["pass"], report

# Groups of experts: with this seed, no single shift of the logits by twice their error explains the choices, but the
# run's own logits do.
isotron("parity", GOLDEN / "glm4-moe-like", "--lane", "bf16", "--fp8-format", "hybrid", "--seed", 5032)


# ---- an error in one element of one tensor
def nudge(name, size):
    def change(tensors):
        data = bytearray(tensors[name][2])
        at = len(data) // 16 * 8
        struct.pack_into("<d", data, at, struct.unpack_from("<d", data, at)[0] * (1 + size) if size == size else size)
        tensors[name][2] = bytes(data)
    return change


for name in ("grad/model.layers.1.mlp.up_proj.weight", "param/model.layers.0.self_attn.k_proj.weight", "logits"):
    isotron("parity", changed("llama-gqa", nudge(name, 1e-6)), "--fp64", expect=1)


# ---- each loss of a model is judged by its name
def renamed(to):
    return edited("bert-original", "curve.json", lambda s: s.replace('"sop loss"', json.dumps(to)))


def moved(size):
    """Moves a part of one loss to the other, so that their sum is still correct."""
    def edit(text):
        curve = json.loads(text)
        for step in curve["steps"]:
            step["lm loss"], step["sop loss"] = step["lm loss"] - size, step["sop loss"] + size
        return json.dumps(curve)
    return edited("bert-original", "curve.json", edit)


said = isotron("parity", GOLDEN / "bert-original", "--fp64", "--json", REPORT)
rows = {row["quantity"]: row for row in json.loads(REPORT.read_text())["rows"]}
assert all(rows[name]["tensors"] == 20 for name in ("loss", "lm loss", "sop loss")), rows
said = isotron("parity", moved(1e-9), "--fp64", expect=1)
assert [line.split()[:2] for line in said.splitlines() if " FAIL " in line] == [["lm", "loss"], ["sop", "loss"]], said
isotron("parity", renamed("sop_loss"), "--fp64")
# So is a router loss, under its name in the log. No router has this loss value in every step.
with_router = edited("mixtral-like", "curve.json", lambda s: s.replace('"lr"', '"z_loss": 1.5, "lr"'))
assert "z_loss" in isotron("parity", with_router, "--fp64", expect=1)

# ---- with transformers 5, an oracle ties the output layer of a new T5 v1.1: a case without lm_head.weight is read as
# another model, and fails
isotron("parity", changed("t5-v1_1", lambda t: t.pop("lm_head.weight"), "init.safetensors"), "--fp64", expect=1)


# ---- bad cases
def bad(case, *parts):
    out = isotron("parity", case, "--fp64", expect=2)
    for part in parts:
        assert part in out, f"'{part}' is missing in: {out}"


GRAD, UP = "grad/model.norm.weight", "grad/model.layers.0.mlp.up_proj.weight"
bad(changed("llama-gqa", nudge(GRAD, math.nan)), GRAD, "not finite")
bad(changed("llama-gqa", lambda t: t.pop(GRAD)), GRAD)
bad(changed("llama-gqa", lambda t: t[UP][1].reverse()), UP, "F64 [40, 36] is needed")
bad(changed("llama-gqa", lambda t: t["logits"][1].reverse()), "logits")
bad(changed("llama-gqa", lambda t: t.pop("model.norm.weight"), "init.safetensors"), "1 missing", "model.norm.weight")
bad(changed("llama-gqa", lambda t: t["tokens"].__setitem__(2, b"\x3d" + t["tokens"][2][1:]), "batches.safetensors"),
    '"tokens" has 61, which is not in [0, 61)')
# Batches of an encoder must have padding only on the right, labels in the vocabulary, and all fields that the binary
# head reads.
ID = struct.pack("<q", 1)
for field, value, says in (("padding_mask", bytes(8) + ID, "padding must be on the right"),
                           ("types", struct.pack("<q", 2), '"types" has 2, which is not in [0, 2)'),
                           ("is_random", struct.pack("<q", -1), '"is_random" has -1'),
                           ("labels", struct.pack("<qq", 0, 67), '"labels" has 67, which is not in [0, 67)')):
    bad(changed("bert-original", lambda t: t[field].__setitem__(2, value + t[field][2][len(value):]),
                "batches.safetensors"), says)
# Fields are checked by name: a field may be missing, unknown, unread, duplicate, or of another shape or dtype.
for case, change, says in (
        ("bert-original", lambda t: t.pop("types"), 'no "types", which this --model bert reads'),
        ("bert-original", lambda t: t.pop("labels"), 'no "labels"'),
        ("bert-classes", lambda t: t.pop("classes"), 'no "is_random" or "classes"'),
        ("bert-classes", lambda t: t["classes"].__setitem__(1, t["classes"][1][::-1]),
         '"classes" must be the only tensor for its field and have type I64'),
        ("bert-classes", lambda t: t.update(is_random=t["classes"]),
         '"is_random" must be the only tensor for its field and have type I64'),
        ("t5-original", lambda t: t.pop("enc_mask"), 'no "enc_mask"'),
        ("t5-original", lambda t: t["enc_tokens"][1].reverse(),
         '"enc_mask" must be the only tensor for its field and have type I64'),
        ("gpt2-layouts", lambda t: t.update(enc_tokens=t["tokens"]),
         '"enc_tokens", which this --model gpt does not read'),
        ("gpt2-layouts", lambda t: t.update(pixels=t["tokens"]), "'pixels', which is not a field"),
        ("gpt2-layouts", lambda t: t["loss_mask"].__setitem__(0, "I32"),
         '"loss_mask" must be the only tensor for its field and have type F32')):
    bad(changed(case, change, "batches.safetensors"), says)
bad(renamed("mtp_1_loss"), "curve.json has the loss 'mtp_1_loss'", "the model has 'lm loss', 'sop loss'")
bad(edited("bert-original", "curve.json", lambda s: s.replace('"sop loss"', '"lm_loss"', 1)),
    "step 2 has no number 'lm_loss'")
bad(edited("gpt2-tiny", "curve.json",
           lambda s: s.replace('"lr"', '"lm loss": 1, "lr"').replace('"lm loss": 1, ', "", 1)),
    "step 2 names a loss that the first step does not have")
# Only transformers' names are read, and its BERT has neither a gated MLP nor query norms.
for more, says in ("swiglu = true\n", "linear_fc1.weight' (gate)"), ("qk-layernorm = true\n", "q_layernorm.weight'"):
    bad(conf("bert-original", lambda s: s.replace("activation = gelu-erf\n", "") + more), says, "Hugging Face's BERT",
        "remove the option that adds this parameter")
bad(conf("llama-gqa", lambda s: s + "model = bert\n"), 'no "types", which this --model bert reads')
bad(conf("llama-gqa", lambda s: s.replace("attention-dropout = 0", "attention-dropout = 0.1")),
    "--attention-dropout 0.1")
assert "--hidden-dropout 0.1" in isotron("parity", GOLDEN / "gpt2-tiny", "--hidden-dropout", 0.1, expect=2)
for key in ("loss", "grad_norm", "clip", "lr"):
    bad(edited("llama-gqa", "curve.json", lambda s: s.replace(f'"{key}"', '"lost"', 1)),
        f"step 1 has no number '{key}'")
bad(conf("llama-gqa", lambda s: s.replace("ffn-hidden-size = 40", "ffn-hidden-size = 16777216")), "with another shape")
bad(conf("llama-gqa", lambda s: s.replace("num-layers = 2", "num-layers = 65536")), "too few for --num-layers 65536")
bad(conf("llama-gqa", lambda s: s + "num-experts = 8\n"), "mlp.router.weight", "no counterpart")
isotron("parity", GOLDEN / "gpt2-tiny", "--json", WORK / "no" / "report.json", expect=2)

for length in ("train-iters", "train-samples"):
    assert f"--{length} is not used here" in isotron("parity", GOLDEN / "gpt2-tiny", f"--{length}", 3, expect=2)

# ---- omitted options of run.conf are taken from the case; keys may be spelled like Megatron-LM's arguments
SIZES = ("vocab-size", "seq-length", "max-position", "micro-batch", "global-batch", "train-iters", "hidden-dropout",
         "attention-dropout", "calculate-per-token", "seed")
long = conf("llama-gqa", lambda s: s.replace("max-position-embeddings = 19", f"max-position-embeddings = {1 << 30}"))
isotron("parity", long, "--fp64")  # rotary tables are no longer than the sequence
few = conf("llama3-rope-scaled", lambda s: "".join(
    line.replace("-", "_", line.split("=")[0].count("-")).replace("true", "True") + "\n" for line in s.splitlines()
    if not line.startswith(SIZES)) + "bf16 = false\nsquared_relu = False\ntransformer-impl = local\n")
assert "transformer-impl has no effect" in isotron("parity", few, "--fp64")

odd = WORK / 'a "name"'
shutil.copytree(GOLDEN / "gpt2-tiny", odd)
isotron("parity", odd, "--json", WORK / "report.json")
assert json.loads((WORK / "report.json").read_text())["case"] == odd.name
