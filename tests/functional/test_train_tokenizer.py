#!/usr/bin/env python3
"""train-tokenizer: the vocabulary and merges of Hugging Face's tokenizers for the same text, a file that preprocess reads, mistakes."""
import json

from harness import ROOT, WORK, isotron

TEXT = ROOT / "tests/data/corpus.txt"
made = WORK / "tokenizer.json"
words = ["train-tokenizer", "--input", TEXT, "--input-format", "text", "--output", made, "--vocab-size", 600,
         "--special-tokens", "<|endoftext|>", "<pad>"]
said = isotron(*words)
assert said.startswith("600 tokens of "), said
ours, theirs = json.loads(made.read_text()), json.loads((ROOT / "tests/data/tokenizer/trained.json").read_text())
for part in theirs:
    if part != "decoder":  # options of offsets differ, and they have no effect here
        assert ours[part] == theirs[part], part

# Documents of JSON Lines are separate texts: no word crosses from one to the next, and blank lines count for nothing.
lines = WORK / "lines.jsonl"
lines.write_text('{"body": "ab"}\n\n{"body": "ab"}\n{"body": " ab"}\n')
few = ["train-tokenizer", "--input", lines, "--json-key", "body", "--output", made, "--overwrite", "--vocab-size", 300]
assert "note: no other pair occurs 2 times" in isotron(*few)
assert json.loads(made.read_text())["model"]["merges"] == [["a", "b"]]
isotron(*few, "--pattern", "cl100k", "--min-frequency", 1)
assert json.loads(made.read_text())["model"]["merges"] == [["a", "b"], ["\u0120", "ab"]]
assert " 3 tokens in " in isotron("preprocess", "--input", lines, "--json-keys", "body", "--output-prefix", WORK / "out",
                                  "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", made)

MISTAKES = {("--output", made): "exists", ("--pattern", "v9"): "'v9' is not known", ("--vocab-size", 256): "raise it",
            ("--vocab-size", 0): "--vocab-size must be", ("--min-frequency", 0): "--min-frequency must be",
            ("--json-key", "text"): "line 1 has no text", ("--input", WORK / "none"): "none", ("--output", lines): "same file"}
for (name, value), message in MISTAKES.items():
    options = {"--input": lines, "--json-key": "body", "--output": WORK / "other.json", "--vocab-size": 300} | {name: value}
    said = isotron("train-tokenizer", *(x for pair in options.items() for x in pair), expect=2)
    assert message in said, f"'{message}' is missing in: {said}"
    assert not (WORK / "other.json").exists()
lines.write_text("\n")
assert "no text" in isotron("train-tokenizer", "--input", lines, "--output", WORK / "other.json", expect=2)
