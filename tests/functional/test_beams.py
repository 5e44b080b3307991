"""Beam search finds the same texts as transformers (tests/data/hf/beams.json), on one rank and on several."""
import itertools

from harness import *

ROWS = json.loads((ROOT / "tests/data/hf/beams.json").read_text())["rows"]
MODELS = {"qwen3-moe-windows": (37, 3), "t5-v1_1": (61, 5), "t5-original": (61, 5)}  # vocabulary, pipeline stages
checked = 0
KEYS = "model", "end", "length", "width", "penalty"
for key, group in itertools.groupby(ROWS, key=lambda row: [row[k] for k in KEYS]):
    (model, end, length, width, penalty), group = key, list(group)
    saved = WORK / model
    if not saved.exists():
        isotron("convert", "--from-hf", ROOT / "tests/data/hf" / model, "--save", saved)
    prompts = [" ".join(map(str, row["prompt"])) for row in group]
    words = ["generate", "--load", saved, "--fp64", "--tokenizer-type", "NullTokenizer",
             "--vocab-size", MODELS[model][0], "--termination-id", end, "--tokens-to-generate", length,
             "--beam-width", width, "--length-penalty", penalty, "--prompt", *prompts]
    begin = [row["prompt"] if model.startswith("qwen") else [] for row in group]
    want = [" ".join(map(str, [*b, *row["tokens"]])) for b, row in zip(begin, group)]
    for layout in [], ["--pipeline-model-parallel-size", MODELS[model][1]]:
        found = isotron(*words, *layout).split("\n")[1::3][:len(group)]
        assert found == want, (key, layout, found, want)
        checked += len(found)
assert checked == 2 * len(ROWS)
