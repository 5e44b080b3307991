#!/usr/bin/env python3
"""tokenize prints the ids and spans of the original libraries (tests/data/tokenizer/cases.json), for lines and for
--text, and reports errors."""
import base64
import json
import shutil
import struct

from harness import ROOT, WORK, isotron

FOLDER = ROOT / "tests/data/tokenizer"
ADD_SPECIAL = 1
GPT2 = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", FOLDER / "gpt2/vocab.json",
        "--merge-file", FOLDER / "gpt2/merges.txt"]


def tokenizer(file):
    kind = {"json": "HuggingFaceTokenizer", "model": "SentencePieceTokenizer"}
    return GPT2 if file == "gpt2" else ["--tokenizer-type", kind[file.split(".")[1]],
                                        "--tokenizer-model", FOLDER / file]


def is_line(text):
    try: text.decode()
    except UnicodeDecodeError: return False
    return b"\n" not in text and b"\0" not in text and not text.endswith(b"\r")


cases = {}
for case in json.loads((FOLDER / "cases.json").read_text())["cases"]:
    text = base64.b64decode(case["text"])
    if "spans" in case and case["flags"] in (0, ADD_SPECIAL) and is_line(text):
        cases.setdefault((case["file"], case["flags"]), []).append((text, case["ids"], case["spans"]))
checked = 0
for (file, flags), some in cases.items():
    (WORK / "lines").write_bytes(b"".join(text + b"\n" for text, *_ in some))
    said = isotron("tokenize", "--input", WORK / "lines", *tokenizer(file),
                   *(["--add-special-tokens"] if flags else []))
    lines = [json.loads(line) for line in said.split("\n")[:-1]]
    assert len(lines) == len(some), (file, len(lines), len(some))
    for line, (text, ids, spans) in zip(lines, some):
        got = line["ids"], [at for span in line["spans"] for at in span]
        assert got == (ids, spans), (file, text, got, ids, spans)
        checked += 1
assert checked > 800, checked

bert = tokenizer("bert.json")
said = json.loads(isotron("tokenize", "--text", "Hello  w\u00f6rld", *bert))
assert said["tokens"] == ["hello", "w", "##or", "##ld"] and said["spans"] == [[0, 5], [7, 8], [8, 10], [10, 12]], said
assert len(isotron("tokenize", "--text", "a", "b", "--input", WORK / "lines", *bert).split("\n")) - 1 == 2 + len(some)

plain, around = ["tokenize", "--text", "a"], "--tokenizer-hf-include-special-tokens"
assert isotron(*plain, *bert, around) == isotron(*plain, *bert, "--add-special-tokens") != isotron(*plain, *bert)
spm = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", FOLDER / "bpe.model"]
assert json.loads(isotron(*plain, *spm)) == json.loads(isotron(*plain, *tokenizer("bpe.model")))
assert f"{around} has no effect: SentencePieceTokenizer" in isotron(*plain, *tokenizer("bpe.model"), around)

for case in "added-tokens", "stripped-space":  # transformers' answers
    folder = ROOT / "tests/data/cases" / case
    want, words = json.loads((folder / "expected.json").read_text()), ["--tokenizer-type", "HuggingFaceTokenizer",
                                                                       "--tokenizer-model", folder]
    got = [json.loads(line) for line in isotron("tokenize", "--text", *want["texts"], *words).splitlines()]
    assert [line["ids"] for line in got] == want["ids"], got
    assert want.get("spans") in (None, [line["spans"] for line in got]), got
(WORK / "x.jsonl").write_text('{"text": "alpha"}')
isotron("preprocess", "--input", WORK / "x.jsonl", "--output-prefix", WORK / "x", "--append-eod",
        "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", ROOT / "tests/data/cases/added-tokens")
assert (WORK / "x_text_document.bin").read_bytes() == struct.pack("<2H", 302, 332)

# Only the SentencePiece model itself is read, so other files in the folder must not contradict it.
(WORK / "model").mkdir()
shutil.copy(FOLDER / "bpe.model", WORK / "model")
for name, content, part in [("added_tokens.json", {"<x>": 700}, "added_tokens.json' gives '<x>' the id 700"),
                            ("added_tokens.json", {"<s>": 1, "</s>": 2}, None),
                            ("added_tokens.json", {"<s>": 2}, "'<s>' the id 2"),
                            ("added_tokens.json", {"<pad>": 700}, None),
                            ("added_tokens.json", {"<pad>": 600}, "'<pad>' the id 600"),
                            ("tokenizer_config.json",
                             {"added_tokens_decoder": {"701": {"content": "<x>"}}, "pad_token": "<x>"}, None),
                            ("tokenizer_config.json", {"added_tokens_decoder": {"700": {"content": "<x>"}}},
                             "tokenizer_config.json' gives '<x>' the id 700"),
                            ("tokenizer_config.json", {"eos_token": "</s>"}, None),
                            ("tokenizer_config.json", {"eos_token": "<x>"}, "end a document with '<x>'"),
                            ("special_tokens_map.json", {"eos_token": {"content": "<s>"}},
                             "end a document with '<s>'")]:
    (WORK / "model" / name).write_text(json.dumps(content))
    for kind in "SentencePieceTokenizer", "Llama2Tokenizer", "GPTSentencePieceTokenizer":
        said = isotron(*plain, "--tokenizer-type", kind, "--tokenizer-model", WORK / "model/bpe.model",
                       expect=2 if part else 0)
        assert part is None or part in said and "HuggingFaceTokenizer" in said, (name, content, said)
    (WORK / "model" / name).unlink()

for name in "tokenizer.json", "tokenizer.model":  # a clone without Git LFS
    (WORK / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    for kind in "HuggingFaceTokenizer", "SentencePieceTokenizer":
        assert "git lfs pull" in isotron(*plain, "--tokenizer-type", kind,
                                         "--tokenizer-model", WORK / name, expect=2), name
    (WORK / name).unlink()

assert "note: --vocab-size has no effect: HuggingFaceTokenizer has" in isotron("tokenize", "--text", "a",
                                                                               "--vocab-size", 9, *bert)

for words, message in [
    (["tokenize", *bert], "There is no text: set --text or --input."),
    ([*plain, *bert, around, "--tokenizer-hf-no-include-special-tokens"], "contradict each other: remove one"),
    (["tokenize", "--text", "a"], "The text needs a tokenizer: set --tokenizer-type."),
    (["tokenize", "--input", WORK / "none", *bert], "none"),
    (["tokenize", "--text", "7 x", "--tokenizer-type", "NullTokenizer", "--vocab-size", 9], "'x' is not an id below 9"),
    (["tokenize", "--input", WORK / "lines", "--tokenizer-type", "NullTokenizer", "--vocab-size", 9],
     "lines' line 2: NullTokenizer"),
]:
    said = isotron(*words, expect=2)
    assert message in said, (words, said)
