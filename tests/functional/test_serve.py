"""serve has the right texts with a tokenizer whose tokens are words with blanks, a chat template and a draft model. It
listens at an IPv6 address, and answers Megatron-LM's client. functional/serve_fields tests the fields of requests, and
functional/serve_answers tests everything else that serve answers."""
import importlib.util

from serving import *

data = corpus()
saved = WORK / "saved"
pretrain(data, saved, "--train-iters", 1, "--lr-warmup-iters", 0)

# ---- the client of Megatron-LM's /api

if "MEGATRON_LM" in os.environ and importlib.util.find_spec("requests"):
    server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.01)
    done = subprocess.run([sys.executable, f"{os.environ['MEGATRON_LM']}/tools/text_generation_cli.py",
                           f"127.0.0.1:{server.port}"], input="The \n6\nThe \n-1\n", capture_output=True, text=True)
    assert "Megatron Response: \nThe " in done.stdout, done
    assert "Error 400: 'tokens_to_generate' must be an integer from 0" in done.stdout, done
    server.end()

# ---- an address of IPv6

process = subprocess.Popen([*map(str, [PROGRAM, "serve", "--load", saved, "--host", "::1", "--port", 0, *OPTIONS])],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
STARTED.append(process)
if line := process.stdout.readline():
    port = re.match(re.escape(f"serving {saved} at http://[::1]:") + r"(\d+): ", line).group(1)
    connection = http.client.HTTPConnection("::1", int(port), timeout=TIMEOUT_S)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200, line
    process.kill()
else:  # a machine without IPv6
    assert "cannot listen on --host '::1'" in process.stderr.read()

# ---- chat, with a tokenizer whose tokens are words with blanks, and bytes

folder = WORK / "chat"
folder.mkdir()
shutil.copy(ROOT / "tests/data/tokenizer/metaspace.json", folder / "tokenizer.json")
(folder / "tokenizer_config.json").write_text(json.dumps({
    "bos_token": "<s>", "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                     "{% if add_generation_prompt %}assistant:{% endif %}"}))
HF = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder]
saved = WORK / "chatting"
isotron("pretrain", "--config", WORK / "run.conf", "--mock-data", *HF, "--save", saved, "--train-iters", 3,
        "--max-position-embeddings", 256)
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.01, "--batch-invariant-mode",
                "--speculative-model", saved, "--num-speculative-tokens", 3)
# Two servers cannot share a port.
second = subprocess.run([*map(str, [PROGRAM, "serve", "--load", saved, "--host", "127.0.0.1", "--port", server.port,
                                    *OPTIONS])], capture_output=True, text=True, timeout=TIMEOUT_S)
assert second.returncode == 2 and not second.stdout, second
assert f"cannot listen on --host '127.0.0.1' --port {server.port}: Address already in use" in second.stderr, second
messages = [{"role": "user", "content": [{"type": "text", "text": "The"}, {"type": "text", "text": "loss"}]}]
ids = server.post("/tokenize", messages=messages)["tokens"]
assert server.post("/tokenize", prompt="user: The\nloss\nassistant:", add_special_tokens=False)["tokens"] == ids
seen, special = set(), False
for seed in range(8):
    ask = {"max_tokens": 60, "seed": seed, "temperature": 2}
    text = server.post(COMPLETE, prompt=ids, **ask)["choices"][0]["text"]
    whole = server.post(CHAT, messages=messages, logprobs=True, top_logprobs=2, **ask)
    choice = whole["choices"][0]
    assert whole["object"] == "chat.completion" and whole["usage"]["prompt_tokens"] == len(ids), whole
    assert choice["message"] == {"role": "assistant", "content": text}, (choice, text)
    events = server.stream(CHAT, messages=messages, **ask)
    assert joined(events, chat=True) == (text, choice["finish_reason"]), (events, text)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant" and events[0]["object"] == "chat.completion.chunk"
    tokens = choice["logprobs"]["content"]
    assert all(len(t["top_logprobs"]) == 2 for t in tokens), tokens
    same = [(t["bytes"], o["bytes"]) for t in tokens for o in t["top_logprobs"] if o["logprob"] == t["logprob"]]
    assert all(a == b and b for a, b in same), same
    told = b"".join(bytes(t["bytes"]) for t in tokens if t["token"] not in ("<s>", "</s>", "<unk>", "<pad>"))
    assert told.decode(errors="replace") == text, (told, text)
    ends = choice["finish_reason"] == "stop"
    told = b"".join(bytes(t["bytes"]) for t in tokens[:len(tokens) - ends])
    named = server.post(CHAT, messages=messages, skip_special_tokens=False, **ask)["choices"][0]["message"]["content"]
    assert told.decode(errors="replace") == named, (told, named)
    special |= named != text
    seen |= {c for c in text}
counts = server.metrics()  # the model keeps its own drafts, except those after the end of a text
drafts, kept = (counts[f"spec_decode_num_{name}_tokens_total"] for name in ("draft", "accepted"))
assert counts["generation_tokens_total"] / 2 < kept and drafts - 3 * 24 <= kept <= drafts, counts
assert len(seen) > 10 and special, seen
# Drafts are chosen among the allowed tokens, too.
for seed in range(3):
    limited = {"prompt": "The", "max_tokens": 40, "seed": seed, "temperature": 2, "bad_words": ["loss", "the"],
               "allowed_token_ids": [*range(40, 300)], "return_token_ids": True}
    before = server.metrics()
    tokens = server.post(COMPLETE, **limited)["choices"][0]["token_ids"]
    after = server.metrics()
    assert {*tokens} <= {*range(40, 300)} and len(tokens) == 40, tokens
    drafts, kept = (after[n] - before[n] for n in ("spec_decode_num_draft_tokens_total",
                                                   "spec_decode_num_accepted_tokens_total"))
    assert drafts - 6 <= kept <= drafts and kept > 20, (drafts, kept)


def check_texts(server, saved, *prompts):
    """Asserts that the program prints what the server answers."""
    for prompt in prompts:
        for seed in range(5):
            ask = {"prompt": prompt, "max_tokens": 30, "temperature": 1.7, "seed": seed, "skip_special_tokens": False}
            text = server.post(COMPLETE, **ask)["choices"][0]["text"]
            assert server.post(COMPLETE, **ask, echo=True)["choices"][0]["text"] == prompt + text, (ask, text)
            assert joined(server.stream(COMPLETE, **ask))[0] == text, (ask, text)
            for stream in [], ["--stream"]:
                done = subprocess.run([*map(str, [
                    PROGRAM, "generate", "--load", saved, "--temperature", 1.7, "--tokens-to-generate", 30,
                    "--random-seed", seed, "--batch-invariant-mode", "--prompt", prompt, "--output-path",
                    WORK / "out.json", *stream, *OPTIONS])], capture_output=True, check=True)
                assert done.stdout.decode() == f"{prompt}{text}\n", (ask, stream, done.stdout, text)
                assert json.loads((WORK / "out.json").read_text())["0"]["generated_text"] == text, (ask, stream, text)


# The first new token may begin with a blank, which the text of the new tokens alone would not have.
check_texts(server, saved, "the loss", "<s>")
for prompt in "The loss", "<s><s>The loss", "":
    told = json.loads(server.request("PUT", "/api", {"prompts": [prompt], "tokens_to_generate": 0, "logprobs": True,
                                                     "add_BOS": True})[2])
    assert told["segments"][0][0] == "<s>" and "<s>" not in told["segments"][0][1:], told
    assert told["text"] == [prompt], told
server.end()

# A prompt that ends in the bytes of a character.
saved = WORK / "bytes"
isotron("pretrain", "--config", WORK / "run.conf", "--mock-data", "--tokenizer-type", "HuggingFaceTokenizer",
        "--tokenizer-model", ROOT / "tests/data/tokenizer/unigram.json", "--save", saved, "--train-iters", 3,
        "--max-position-embeddings", 256)
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.01)
check_texts(server, saved, "the \u00fc")
# A byte after a character turns it into three invalid bytes. The first one replaces the prompt's character.
byte = server.post("/tokenize", prompt="\u00fc", add_special_tokens=False)["tokens"][-2]
text = server.post(COMPLETE, prompt="the \u00fc", max_tokens=1, allowed_token_ids=[byte])["choices"][0]["text"]
assert text == "\ufffd\ufffd", text
server.end()
