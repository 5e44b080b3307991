"""bench infer reports times that agree with each other, and the bytes that a pass reads. It measures tensor-parallel
ranks and experts, compares a run with an earlier one, and refuses work that it cannot do. Times are not judged."""
import json

from harness import *

CONF = bench_conf()
H, L, V, F = 32, 2, 128, 128  # V: a rank's rows of the padded vocabulary; positions are looked up, not read


def infer(*options, expect=0, read=True):
    out = isotron("bench", "infer", "--config", CONF, "--prompt-tokens", 9, "--new-tokens", 6, "--rounds", 3,
                  "--no-alone", "--json", WORK / "infer.json", *options, expect=expect)
    return json.loads((WORK / "infer.json").read_text()) if read and not expect else out


def rows_of(result):
    return {row["name"]: row for row in result["rows"]}


def near(a, b):
    return abs(a - b) < 1e-4 * abs(b)


def check(result, kinds, weights, token, size):
    """weights: elements that a pass of n requests reads; token: elements of a token's keys and values."""
    assert result["bench"] == "infer" and result["complete"] and "commit" in result["provenance"], result
    rows = rows_of(result)
    assert list(rows) == [f"{what}/{n}x9+6" for n in (1, 3) for what in ("prefill", "decode", "all")], list(rows)
    for n in 1, 3:
        prefill, decode, everything = (rows[f"{what}/{n}x9+6"] for what in ("prefill", "decode", "all"))
        assert near(decode["megabytes"] * 1e6, size * (weights(n) + token * n * (9 + 6 / 2))), (kinds, n, decode)
        assert near(decode["gbytes"] * decode["us"], decode["megabytes"] * 1e3), decode
        assert near(everything["tokens_per_second"] * everything["us"], n * 6 * 1e6), everything
        assert everything["us"] > prefill["us"] + 4 * min(decode["samples_us"]) / 2, (prefill, decode, everything)
        assert decode["slowest_us"] >= min(decode["samples_us"]), decode
        assert 0 < everything["outside_model"] < 1, everything
        assert all(len(row["samples_us"]) == 3 and row["type"] == kinds for row in (prefill, decode, everything))


# Linear layers with biases, two norms with gain and bias in each layer and one at the end, and the tied output layer.
attention = 4 * H * H + 4 * H
norms = 4 * H
dense = L * (attention + norms + 2 * H * F + F + H) + 2 * H + V * H
check(infer("--requests", 1, 3), "F32", lambda n: dense, 2 * L * H, 4)
check(infer("--requests", 1, 3, "--bf16", "--untie-embeddings-and-output-weights", "--batch-invariant-mode"), "BF16",
      lambda n: dense, 2 * L * H, 2)  # an untied embedding is looked up
sampled = infer("--requests", 2, "--temperature", 0.8, "--top-p", 0.9)
assert "all/2x9+6 sampled" in rows_of(sampled) and sampled["options"]["top_p"] == 0.9, sampled
# Each rank reads half of the linear layers and of the keys and values, and all of the norms and of the biases of sums.
tp = L * ((4 * H * H + 3 * H) / 2 + H + norms + (2 * H * F + F) / 2 + H) + 2 * H + V * H
check(infer("--requests", 1, 3, "--tensor-model-parallel-size", 2), "F32", lambda n: tp, L * H, 4)
# Weights of one byte, and a factor of four bytes for each output.
linear = L * (4 * H * H + 2 * H * F)
for kind in "int8", "fp8":
    check(infer("--requests", 1, 3, "--quantization", kind), "F32",
          lambda n: dense - linear + linear / 4 + L * (3 * H + H + F + H), 2 * L * H, 4)
# Two of four experts for each token, independently.
experts = L * 4 * (2 * H * F)
moe = L * (4 * H * H + norms + 4 * H) + 2 * H + V * H  # with the router
check(infer("--requests", 1, 3, "--num-experts", 4, "--moe-router-topk", 2, "--moe-router-load-balancing-type", "none",
            "--disable-bias-linear"), "F32",
      lambda n: moe + experts * (1 - 0.5**n), 2 * L * H, 4)

# The gate compares the same work, and refuses other work before it measures. A busy machine makes it inconclusive.
infer("--requests", 1)
(WORK / "infer.json").rename(WORK / "base.json")
out = infer("--requests", 1, "--baseline", WORK / "base.json", expect=4)
assert "decode/1x9+6 F32" in out and "3 samples" in out, out
REFUSED = {"no row prefill/2x9+6": ["--requests", 2], "no row prefill/1x9+6 sampled": ["--temperature", 1],
           '"lane" is "bf16"': ["--bf16"]}
for message, options in REFUSED.items():
    out = infer("--requests", 1, "--baseline", WORK / "base.json", *options, expect=2)
    assert message in out, (options, out)

for options, message in (
        (["--requests", 0], "--requests"),
        (["--new-tokens", 1], "--new-tokens"),
        (["--prompt-tokens", 0], "--prompt-tokens"),
        (["--rounds", 0], "--rounds"),
        (["--top-p", 0.9], "--temperature above 0"),
        (["--prompt-tokens", 12, "--new-tokens", 5], "exceed the model's 16 positions"),
        (["--model", "t5"], "bench infer supports only GPT"),
        (["--fp8-format", "hybrid"], "FP8"),
        (["--hidden-dropout", 0.2], "--hidden-dropout"),
        (["--load", "x"], "--load")):
    out = infer(*options, expect=2)
    assert message in out, (options, out)
# With the roofs.
out = isotron("bench", "infer", "--config", CONF, "--prompt-tokens", 9, "--new-tokens", 6, "--rounds", 1,
              "--requests", 2)
assert "% of the read roof" in out and "outside model" in out, out
