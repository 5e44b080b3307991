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
                            ("added_tokens.json", {"<s>": 2}, "gives '<s>' the id 2"),
                            ("added_tokens.json", {"<pad>": 700}, None),
                            ("added_tokens.json", {"<pad>": 600}, "gives '<pad>' the id 600"),
                            ("tokenizer_config.json",
                             {"added_tokens_decoder": {"701": {"content": "<x>"}}, "pad_token": "<x>"}, None),
                            ("tokenizer_config.json", {"added_tokens_decoder": {"700": {"content": "<x>"}}},
                             "tokenizer_config.json' gives '<x>' the id 700"),
                            ("tokenizer_config.json", {"eos_token": "</s>"}, None),
                            ("tokenizer_config.json", {"eos_token": "<x>"}, "end documents with '<x>'"),
                            ("special_tokens_map.json", {"eos_token": {"content": "<s>"}},
                             "end documents with '<s>'")]:
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

# Messages: the text and the ids are those of transformers, without a second token at the beginning.
cases, chat = json.loads((ROOT / "tests/data/chat/cases.json").read_text()), WORK / "chat"
llama = (ROOT / "tests/data/chat/llama.jinja").read_text()


def tokenize_messages(request, expect=0, config=None, **files):
    """Tokenizes messages with a folder that has these settings and files (NAME=TEXT is NAME.jinja)."""
    shutil.rmtree(chat, ignore_errors=True)
    (chat / "additional_chat_templates").mkdir(parents=True)
    shutil.copy(FOLDER / "llama3.json", chat / "tokenizer.json")
    (chat / "tokenizer_config.json").write_text(json.dumps(cases["special"] | (config or {})))
    for name, text in files.items():
        (chat / ("" if name == "chat_template" else "additional_chat_templates") / f"{name}.jinja").write_text(text)
    (WORK / "messages.json").write_text(request if isinstance(request, str) else json.dumps(request))
    said = isotron("tokenize", "--messages", WORK / "messages.json", around, "--tokenizer-type", "HuggingFaceTokenizer",
                   "--tokenizer-model", chat, expect=expect)
    return said if expect else json.loads(said)


today = llama.replace('strftime_now("%d %b %Y")', '"04 Jul 2026"')
for name, ids in cases["ids"].items():
    got = tokenize_messages(cases["conversations"][name], chat_template=today)
    assert got["ids"] == ids and got["text"] == cases["rendered"]["llama"][name], (name, got)
    assert len(got["ids"]) == len(got["tokens"]) == len(got["spans"]), name

hello, tools = [{"role": "user", "content": "Hello"}], [{"type": "function"}]
pair = {"config": {"chat_template": [{"name": "default", "template": "D{{ eos_token }}"},
                                     {"name": "tool_use", "template": "T"}]}}
for request, text, settings in [
    (hello, "D<|eot_id|>", pair),
    ({"messages": hello, "tools": tools}, "T", pair),
    ({"messages": hello, "tools": tools, "chat_template": "default"}, "D<|eot_id|>", pair),
    ({"messages": hello, "chat_template": "{{ messages[0].content }}"}, "Hello", pair),
    ({"messages": hello, "chat_template_kwargs": {"eos_token": "."}}, "D.", pair),
    (hello, "F", {**pair, "chat_template": "F", "rag": "{% broken"}),
    ({"messages": hello, "chat_template": "rag"}, "R", {"chat_template": "F", "rag": "R"}),
    (hello, "S<|eot_id|>", {"config": {"chat_template": "S{{ eos_token }}"}}),
    (hello, "04", {"chat_template": "{{ '04' if strftime_now('%Y')|int > 2025 }}"}),
]:
    got = tokenize_messages(request, **settings)
    assert got["text"] == text, (request, settings, got)
for request, message, settings in [
    (hello, f"the HuggingFaceTokenizer '{chat}' has no chat template: add chat_template.jinja", {}),
    (hello, f"isotron: '{chat}': there is no chat template 'default'; set \"chat_template\" to one of: 'rag'",
     {**pair, "rag": "R"}),
    ({"messages": hello, "chat_template": "rag"},
     f"'{chat}/additional_chat_templates/rag.jinja': line 1 of the chat template: a tag has no end",
     {"rag": "{% broken"}),
    (hello, f"'{chat}/tokenizer_config.json': \"chat_template\" must be a string, or a list",
     {"config": {"chat_template": [{"name": "default"}]}}),
    (hello, f"'{chat}/tokenizer_config.json': line 1 of the chat template", {"config": {"chat_template": "{% a"}}),
    (hello, f"'{chat}/chat_template.jinja': line 1 of the chat template: the template refuses the conversation: no",
     {"chat_template": "{{ raise_exception('no') }}"}),
    ({"messages": hello, "chat_template": "{% a"}, 'isotron: "chat_template": line 1 of the chat template', pair),
    ("[{]", "messages.json' line 1 is not valid JSON", {"chat_template": "F"}),
    ({"messages": []}, "messages.json' must be a list of messages", {"chat_template": "F"}),
    ({"messages": [{"role": "user"}], "continue_final_message": True}, "no text that", {"chat_template": "F"}),
    ({"messages": hello, "continue_final_message": True}, "does not print the last message", {"chat_template": "F"}),
]:
    said = tokenize_messages(request, expect=2, **settings)
    assert message in said, (request, said)
assert "set --tokenizer-type HuggingFaceTokenizer" in isotron(
    "tokenize", "--messages", WORK / "messages.json", "--tokenizer-type", "ByteLevelTokenizer", expect=2)

size = len(json.loads((FOLDER / "bert.json").read_text())["model"]["vocab"])
assert (f"note: --vocab-size has no effect: HuggingFaceTokenizer has {size} tokens\n"
        in isotron("tokenize", "--text", "a", "--vocab-size", 9, *bert))

for words, message in [
    (["tokenize", *bert], "There is no text: set --text, --input or --messages."),
    (["tokenize", "--messages", "m", *bert, "--add-special-tokens"], "contradicts --messages"),
    ([*plain, *bert, around, "--tokenizer-hf-no-include-special-tokens"], "contradict each other: remove one"),
    (["tokenize", "--text", "a"], "The text needs a tokenizer: set --tokenizer-type."),
    (["tokenize", "--input", WORK / "none", *bert], "none"),
    (["tokenize", "--text", "7 x", "--tokenizer-type", "NullTokenizer", "--vocab-size", 9], "'x' is not an id below 9"),
    (["tokenize", "--input", WORK / "lines", "--tokenizer-type", "NullTokenizer", "--vocab-size", 9],
     "lines' line 2: NullTokenizer"),
]:
    said = isotron(*words, expect=2)
    assert message in said, (words, said)
