#!/usr/bin/env python3
"""train-tokenizer computes the same vocabulary, merges and scores as Hugging Face's tokenizers for the same text,
writes files that preprocess can read, and reports errors."""
import json
import re

from harness import ROOT, WORK, isotron

TEXT = ROOT / "tests/data/corpus.txt"
made = WORK / "new/folder/tokenizer.json"
words = ["train-tokenizer", "--input", TEXT, "--input-format", "text", "--output", made, "--vocab-size", 600,
         "--special-tokens", "<|endoftext|>", "<pad>"]
said = isotron(*words)
assert re.match(r"600 tokens of \d{3,} different words in \d\d?\.\d s\n", said), said
ours, theirs = json.loads(made.read_text()), json.loads((ROOT / "tests/data/tokenizer/trained.json").read_text())
for part in theirs:
    if part != "decoder":  # options of offsets differ, and they have no effect here
        assert ours[part] == theirs[part], part

said = isotron(*words[:7], "--vocab-size", 1300, "--special-tokens", "a<", "b<", "--overwrite")
assert re.findall("^Made .*$", said, re.M) == ["Made 1258 of 1300 tokens"], said  # 256 bytes, 2 special, 1000 merges

# Unigram: the library sums expected counts in random order, so rounding differs. Rounding decides whether its series
# for digamma begins below or above 7, where it is discontinuous by 4e-11; a score is the difference of two values. The
# order of the dropped characters, which get the last scores, is random too.
said = isotron(*words[:9], "--model", "unigram", "--overwrite")
assert said.startswith("600 tokens of "), said
ours = json.loads(made.read_text())
theirs = json.loads((ROOT / "tests/data/tokenizer/trained_unigram.json").read_text())
ours_vocab, theirs_vocab = (dict(t["model"].pop("vocab")) for t in (ours, theirs))
assert ours == theirs, (ours, theirs)
assert ours_vocab.keys() == theirs_vocab.keys(), ours_vocab.keys() ^ theirs_vocab.keys()
assert all(abs(a - b) < 8e-11 for a, b in zip(sorted(ours_vocab.values()), sorted(theirs_vocab.values())))
assert all(abs(ours_vocab[t] - theirs_vocab[t]) < 8e-11 for t in theirs_vocab if len(t) > 1)
assert [*ours_vocab][:3] == ["<pad>", "</s>", "<unk>"]
assert [*ours_vocab.values()][3:] == sorted([*ours_vocab.values()][3:], reverse=True)

# Documents of JSON Lines are separate texts: no word spans two documents, and blank lines are ignored.
lines = WORK / "lines.jsonl"
lines.write_text('{"body": "ab"}\n\n{"body": "ab"}\n{"body": " ab"}\n')
few = ["train-tokenizer", "--input", lines, "--json-key", "body", "--output", made, "--overwrite", "--vocab-size", 300]
said = isotron(*few)  # 256 bytes, one special token and one merge; the words are "ab" and " ab"
assert re.match(r"258 tokens of 2 different words in \d\.\d s\nnote: no other pair occurs 2 times: ", said), said
assert json.loads(made.read_text())["model"]["merges"] == [["a", "b"]]
assert "note: no other pair occurs 1 times: " in isotron(*few, "--pattern", "cl100k", "--min-frequency", 1)
assert json.loads(made.read_text())["model"]["merges"] == [["a", "b"], ["\u0120", "ab"]]
assert " 3 tokens in " in isotron("preprocess", "--input", lines, "--json-keys", "body",
                                  "--output-prefix", WORK / "out", "--tokenizer-type", "HuggingFaceTokenizer",
                                  "--tokenizer-model", made)

# A special token that occurs in the text is in the vocabulary once, and <unk> is added without a request.
lines.write_text('{"body": "ab <s> ab <s>"}\n' * 3)
isotron("train-tokenizer", "--model", "unigram", "--input", lines, "--json-key", "body", "--output", made,
        "--overwrite", "--vocab-size", 12, "--special-tokens", "<s>")
found = [token for token, _ in json.loads(made.read_text())["model"]["vocab"]]
assert found[:2] == ["<unk>", "<s>"] and len(set(found)) == len(found), found
assert {"a", "b", "<", "s", ">", "\u2581"} < set(found), found
said = isotron("preprocess", "--input", lines, "--json-keys", "body", "--output-prefix", WORK / "unigram",
               "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", made)
assert " 30 tokens in " in said, (said, found)

MISTAKES = {("--output", made): "exists", ("--pattern", "v9"): "unknown pattern 'v9'",
            ("--vocab-size", 256): "raise it", ("--vocab-size", 0): "--vocab-size must be",
            ("--min-frequency", 0): "--min-frequency must be",
            ("--json-key", "text"): 'line 1: the key "text" has no text', ("--input", WORK / "none"): "none",
            ("--output", lines): "same file"}
for (name, value), message in MISTAKES.items():
    options = {"--input": lines, "--json-key": "body", "--output": WORK / "other.json",
               "--vocab-size": 300} | {name: value}
    said = isotron("train-tokenizer", *(x for pair in options.items() for x in pair), expect=2)
    assert message in said, f"'{message}' is missing in: {said}"
    assert not (WORK / "other.json").exists()
said = isotron("train-tokenizer", "--input", TEXT, "--output", WORK / "other.json", expect=2)
assert "line 1: not valid JSON" in said and "for plain text set --input-format text or paragraphs" in said, said
lines.write_text("\n")
assert "no text" in isotron("train-tokenizer", "--input", lines, "--output", WORK / "other.json", expect=2)
for model in "bpe", "unigram":
    said = isotron("train-tokenizer", "--model", model, "--input", lines, "--output", WORK / "other.json",
                   "--special-tokens", "<a>", "b", "<a>", expect=2)
    assert "--special-tokens has '<a>' twice: remove one" in said, said
for option, value in ("--pattern", "v2"), ("--min-frequency", 3):
    said = isotron("train-tokenizer", "--model", "unigram", "--input", lines, "--output", WORK / "other.json", option,
                   value, expect=2)
    assert f"{option} is not used by --model unigram: remove it" in said, said
lines.write_text('{"text": "abcdefgh"}\n')
said = isotron("train-tokenizer", "--model", "unigram", "--input", lines, "--output", WORK / "other.json",
               "--vocab-size", 11, expect=2)
assert "--vocab-size 11 is below the number of special tokens, 3, plus the number of characters, 9: raise it" in said, \
    said
lines.write_text('{"text": "%s"}\n' % ("a" * 2**22))
said = isotron("train-tokenizer", "--model", "unigram", "--input", lines, "--output", WORK / "other.json", expect=2)
assert "4194307 bytes without a blank" in said, said
