"""Generation with Mamba-2 or Gated DeltaNet layers finds the same greedy texts as transformers
(tests/data/hf/greedy.json): alone and together, in long and short passes, and on several ranks."""
import sys

from harness import *

sys.path.append(str(ROOT / "tools/oracle"))
import tensors

FILE = json.loads((ROOT / "tests/data/hf/greedy.json").read_text())
STAGES = {"mamba2-like": 2, "nemotron-h-like": 3, "nemotron-h-experts": 5, "bamba-like": 3, "granite-4-like": 2,
          "qwen3-next-like": 4}
WAYS = ([], ["--inference-dynamic-batching-max-tokens", 5, "--inference-dynamic-batching-max-requests", 3],
        ["--ranks", 2, "--tensor-model-parallel-size", 2, "--sequence-parallel"])
for case, config in FILE["configs"].items():
    folder, saved, rows = WORK / case, WORK / f"{case}-saved", [row for row in FILE["rows"] if row["case"] == case]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    oracle = tensors.read(ROOT / "golden" / case / "oracle.safetensors")
    tensors.write(folder / "model.safetensors", {n.removeprefix("param/"): x for n, x in oracle.items()
                                                 if n.startswith("param/")}, {"format": "pt"})
    isotron("convert", "--from-hf", folder, "--save", saved, "--fp64")
    prompts = [" ".join(map(str, row["tokens"][:row["prompt"]])) for row in rows]
    want = [" ".join(map(str, row["tokens"])) for row in rows]
    words = ["generate", "--load", saved, "--fp64", "--tokenizer-type", "NullTokenizer", "--temperature", 0,
             "--vocab-size", config["vocab_size"], "--termination-id", -1, "--tokens-to-generate",
             len(rows[0]["tokens"]) - rows[0]["prompt"]]
    for way in *WAYS, ["--pipeline-model-parallel-size", STAGES[case]]:
        found = isotron(*words, "--prompt", *prompts, *way).split("\n")
        assert [line for line in found if line in want] == want, (case, way, found, want)
    assert want[0] in isotron(*words, "--prompt", prompts[0])
