"""serve answers requests like OpenAI's API: with the texts of `generate`, the same streamed or not. It refuses what it
cannot do with the right status. It also answers like Megatron-LM's server."""
import importlib.util
import socket

from serving import *

data = corpus()
saved = WORK / "saved"
pretrain(data, saved, "--train-iters", 40, "--lr", 1e-2)
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.01, "--inference-max-requests", 16,
                "--inference-dynamic-batching-max-tokens", 20)

# ---- texts

done = subprocess.run([*map(str, [PROGRAM, "generate", "--load", saved, "--temperature", 0, "--tokens-to-generate", 24,
                                  "--batch-invariant-mode", "--prompt", "The ", *OPTIONS])], capture_output=True)
greedy = done.stdout[4:-1].decode(errors="replace")
ask = {"prompt": "The ", "max_tokens": 24, "temperature": 0}
answer = server.post(COMPLETE, **ask)
assert answer["choices"] == [{"index": 0, "text": greedy, "logprobs": None, "finish_reason": "length",
                              "stop_reason": None}], (answer, greedy)
assert answer["object"] == "text_completion" and answer["model"] == NAME and answer["id"].startswith("cmpl-"), answer
assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 24, "total_tokens": 28,
                           "prompt_tokens_details": {"cached_tokens": 0}}, answer
ids = [ord(c) for c in "The "]
assert server.post("/tokenize", prompt="The ")["tokens"] == ids
assert server.post("/detokenize", tokens=[*"é".encode(), 195])["prompt"] == "é\ufffd"
for prompt in ids, ["The "], [ids]:
    assert server.post(COMPLETE, **{**ask, "prompt": prompt})["choices"] == answer["choices"], prompt
both = server.post(COMPLETE, **{**ask, "prompt": ["Another ", "The "], "n": 2})
assert [c["text"] for c in both["choices"][2:]] == [greedy] * 2 and both["usage"]["prompt_tokens"] == 12, both

# A draw depends on the seed and the number of the choice, and not on other requests.
draw = {"prompt": "The ", "max_tokens": 20, "seed": 5, "n": 3, "temperature": 1.5}
drawn = server.post(COMPLETE, **draw)["choices"]
assert len({c["text"] for c in drawn}) == 3 and server.post(COMPLETE, **draw)["choices"] == drawn
many = {**draw, "prompt": ["The ", "An "], "n": 2, "seed": -1}
for i, choice in enumerate(server.post(COMPLETE, **many)["choices"]):  # as many requests with the next seeds
    one = server.post(COMPLETE, **{**draw, "prompt": many["prompt"][i // 2], "seed": -1 + i, "n": 1})["choices"][0]
    assert one == {**choice, "index": 0}, (i, one, choice)
assert server.post(COMPLETE, **{**draw, "top_k": 1, "n": 1, "max_tokens": 24})["choices"][0]["text"] == greedy
assert server.post(COMPLETE, **{**draw, "top_p": 1e-9, "n": 1, "max_tokens": 24})["choices"][0]["text"] == greedy

# A stream has the same text, log-probabilities and usage. Texts have bytes that are not UTF-8, and characters of
# several tokens: any draw at this temperature is almost uniform over the bytes.
for body in ask, {**draw, "temperature": 2, "logprobs": 2}, {**draw, "echo": True, "logprobs": 0}:
    whole = server.post(COMPLETE, **body)
    events = server.stream(COMPLETE, **body, stream_options={"include_usage": True})
    assert events[-1]["choices"] == [] and events[-1]["usage"] == whole["usage"], events[-1]
    assert all(e["usage"] is None for e in events[:-1])
    for c in whole["choices"]:
        assert joined(events, c["index"]) == (c["text"], c["finish_reason"]), (c, events)
        if c["logprobs"]:
            parts = [e["choices"][0]["logprobs"] for e in events[:-1] if e["choices"][0]["index"] == c["index"]]
            for name, values in c["logprobs"].items():
                assert sum((p[name] for p in parts), []) == values, (name, values, parts)

# Parts of a stream with their token ids, and the number of tokens so far.
body = {**draw, "n": 1, "temperature": 2, "return_token_ids": True}
whole = server.post(COMPLETE, **body)["choices"][0]
assert server.post("/detokenize", tokens=whole["token_ids"])["prompt"] == whole["text"], whole
parts = []
while len(parts) < 2:  # a busy machine may send all tokens in one part
    events = server.stream(COMPLETE, **body, stream_options={"include_usage": True, "continuous_usage_stats": True})
    parts = [(e["choices"][0], e["usage"]["completion_tokens"]) for e in events[:-1]]
sent = [sum((p["token_ids"] for p, _ in parts[:i + 1]), []) for i in range(len(parts))]
assert sent[-1] == whole["token_ids"] and [len(s) for s in sent] == [n for _, n in parts], (parts, whole)
assert whole["prompt_token_ids"] == ids == parts[0][0]["prompt_token_ids"], (parts, whole)
assert not any("prompt_token_ids" in p for p, _ in parts[1:]), parts
for most in 1, 2, 9:
    assert server.post(COMPLETE, **body, truncate_prompt_tokens=most)["choices"][0]["prompt_token_ids"] == ids[-most:]

# A text continues with each token at the token's offset, also after characters of several bytes.
body = {**draw, "prompt": "é€", "n": 4, "temperature": 2, "logprobs": 0, "echo": True}
whole, checked = server.post(COMPLETE, **body)["choices"], 0
for choice in whole:
    lists, text = choice["logprobs"], choice["text"]
    parts = ["".join(lists["tokens"][:i]) for i in range(len(lists["tokens"]))]
    for token, offset in zip(lists["tokens"], lists["text_offset"]):
        if "\ufffd" not in token: checked += text[offset:].startswith(token)
        assert "\ufffd" in token or text[offset:].startswith(token), (token, offset, text)
    offsets = lists["text_offset"]
    assert offsets[:6] == [0, 0, 1, 1, 1, 2] and offsets == sorted(offsets), lists
assert checked > 10, whole

# Log-probabilities: those of `generate`, one for each token of the prompt and one for each new token.
one = server.post(COMPLETE, prompt="The ", max_tokens=3, temperature=0, logprobs=2, echo=True)["choices"][0]
lists = one["logprobs"]
assert one["text"] == "The " + greedy[:3] and lists["tokens"] == [*one["text"]], one
assert lists["text_offset"] == [*range(7)] and lists["token_logprobs"][0] is lists["top_logprobs"][0] is None, lists
for token, value, top in [*zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"])][1:]:
    assert top[token] == value and 2 <= len(top) <= 3, (token, value, top)
assert all(max(top.values()) == value for value, top in [*zip(lists["token_logprobs"], lists["top_logprobs"])][4:])
printed = isotron("generate", "--load", saved, "--temperature", 0, "--tokens-to-generate", 3, "--prompt", "The ",
                  "--logprobs", "--batch-invariant-mode").splitlines()
for line, value in zip([line for line in printed if line.startswith(("prompt ", "new "))], lists["token_logprobs"][1:]):
    assert math.isclose(float(line.split()[-1]), value, rel_tol=5e-9), (line, value)  # nine digits are printed
none = server.post(COMPLETE, prompt="The ", max_tokens=0, logprobs=0, echo=True)
assert none["choices"][0]["text"] == "The " and none["usage"]["completion_tokens"] == 0, none
assert none["choices"][0]["logprobs"]["token_logprobs"] == lists["token_logprobs"][:4], none

# Log-probabilities of the prompt: those that `echo` has, and the likeliest tokens, with their ranks.
ECHO = {"prompt": "The é", "max_tokens": 1, "logprobs": 3, "echo": True, "return_token_ids": True}
echoed = server.post(COMPLETE, **ECHO)["choices"][0]
for k in 0, 3, 20:
    got = server.post(COMPLETE, prompt=["a", "The é"], max_tokens=1, prompt_logprobs=k, n=2)["choices"]
    lists = [c["prompt_logprobs"] for c in got]
    assert lists[:2] == [[None]] * 2 and lists[2] == lists[3], got
    assert got[2]["prompt_logprobs"][0] is None and got[2]["logprobs"] is None, got
    lists, told = echoed["logprobs"], got[2]["prompt_logprobs"]
    assert len(told) == len(echoed["prompt_token_ids"]), told
    for i, token in [*enumerate(echoed["prompt_token_ids"])][1:]:
        ranked = sorted(told[i].values(), key=lambda t: -t["logprob"])
        own = told[i][str(token)]
        assert own["logprob"] == lists["token_logprobs"][i] and own["decoded_token"] == lists["tokens"][i], (own, lists)
        assert len(told[i]) - k in (0, 1) and (len(told[i]) == k) == (own["rank"] is not None), (told, k)
        assert [t["rank"] for t in ranked][:k] == [*range(1, k + 1)], ranked
        assert k != 3 or {t["decoded_token"]: t["logprob"] for t in ranked} == lists["top_logprobs"][i], (ranked, lists)
one = server.post(COMPLETE, prompt="The é", max_tokens=5, temperature=0, logprobs=1)["choices"][0]
both = server.post(COMPLETE, prompt="The é", max_tokens=5, temperature=0, logprobs=1, prompt_logprobs=5)["choices"][0]
assert both == {**one, "prompt_logprobs": both["prompt_logprobs"]} and len(both["prompt_logprobs"]) == 6, (both, one)
server.post(COMPLETE, 400, prompt="a", prompt_logprobs=1, stream=True)

# A text ends before a stop string, which never appears in a stream, wherever it begins and however long it is.
for seed in range(1000):
    ask = {"prompt": "The ", "max_tokens": 24, "temperature": 0.5, "seed": seed}
    text = server.post(COMPLETE, **ask)["choices"][0]["text"]
    if text.isascii() and text.isprintable() and len({*text}) > 6 and len(text) == 24: break
for begin in range(0, 20, 3):
    for length in 1, 2, 4:
        stop = [text[begin:begin + length], "no such text", text[begin:begin + length] + "x"]
        before = text[:text.index(stop[0])]
        events = server.stream(COMPLETE, **ask, stop=stop)
        assert joined(events) == (before, "stop"), (stop, events)
        assert events[-1]["choices"][0]["stop_reason"] == stop[0], events[-1]
        assert server.post(COMPLETE, **ask, stop=stop)["choices"][0]["text"] == before
        kept = server.stream(COMPLETE, **ask, stop=stop, include_stop_str_in_output=True)
        assert joined(kept) == (before + stop[0], "stop"), (stop, kept)
held = server.stream(COMPLETE, **ask, stop=[text[-3:] + "more"])  # what is held back at the end is not lost
assert joined(held) == (text, "length"), held
accents = server.post(COMPLETE, prompt="é", max_tokens=0, echo=True, stop=["é"])  # not in the prompt
assert accents["choices"][0]["text"] == "é", accents
ended = server.post(COMPLETE, **ask, stop_token_ids=[ord(text[2])], logprobs=0)
first = text.index(text[2])
assert ended["choices"][0]["text"] == text[:first] and ended["choices"][0]["stop_reason"] == ord(text[2]), ended
assert len(ended["choices"][0]["logprobs"]["tokens"]) == first + 1 == ended["usage"]["completion_tokens"], ended

# ---- what changes the choice of a token, but not its log-probability

def greedy_text(**body): return server.post(COMPLETE, **{"prompt": "The ", "max_tokens": 20, "temperature": 0, **body})


for repetition, text in (1, "aa"), (100, "bc"):
    got = greedy_text(prompt="a", max_tokens=2, repetition_penalty=repetition,
                      logit_bias={"97": 100, "98": 80, "99": 60})["choices"][0]["text"]
    assert got == text, (repetition, got)
for penalties in (0, 0), (2, 0), (0, 2), (1.5, -0.5):
    choice = greedy_text(presence_penalty=penalties[0], frequency_penalty=penalties[1], logprobs=20)["choices"][0]
    lists, fresh = choice["logprobs"], []
    for token, top in zip(lists["tokens"], lists["top_logprobs"]):
        value = lambda t: top[t] - penalties[0] * (t in fresh) - penalties[1] * fresh.count(t)
        assert value(token) == max(map(value, top)), (penalties, fresh, token, top)
        fresh.append(token)
# The likeliest of the allowed tokens. A bad word is excluded after its beginning, but not because of the prompt.
varied = lambda **body: greedy_text(frequency_penalty=2, logprobs=20, **body)["choices"][0]
def assert_likeliest(choice, excluded):
    """Asserts that each token is the likeliest one, unless excluded(text before it, token)."""
    made = ""
    for token, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"]):
        left = [t for t in top if not excluded(made, t)]
        assert token == max(left, key=lambda t: top[t] - 2 * made.count(t)), (made, token, top)
        made += token


usual, allowed = varied()["text"], "aeiou nrst"
assert_likeliest(varied(), lambda made, token: False)
assert {*usual} - {*allowed} and len(usual) == 20, usual
assert_likeliest(varied(allowed_token_ids=[*allowed.encode()]), lambda made, token: token not in allowed)
word = next(usual[i:i + 2] for i in range(1, 20) if usual[i] != usual[i + 1])
for words in [word], ["no such word", word], [word[1]], ["?" + word, word[0] + " " + word[1], usual[3:6]]:
    choice = varied(bad_words=words)
    assert_likeliest(choice, lambda made, token: any((made + token).endswith(w) for w in words))
    assert choice["text"] != usual, (words, choice)
forced = {"prompt": word[0], "logit_bias": {str(ord(word[1])): 100}, "max_tokens": 1}
assert greedy_text(**forced, bad_words=[word])["choices"][0]["text"] == word[1], word
same = dict(seed=3, temperature=1.5, allowed_token_ids=[*allowed.encode()], bad_words=["e", "st"], max_tokens=20)
one = server.post(COMPLETE, prompt="The ", **same)["choices"][0]
many = server.post(COMPLETE, prompt=["The ", "An", "The", "No "], **same)["choices"]
assert many[0] == one and len({c["text"] for c in many}) == 4, (many, one)
for stream in False, True:
    got, _, told = server.request("POST", COMPLETE, {"prompt": "a", "allowed_token_ids": [97], "bad_words": ["aa"],
                                                     "max_tokens": 5, "stream": stream})
    assert got == (200 if stream else 400) and b'"code":"no_token_allowed"' in told, (got, told)
    assert stream == (b'"text":"a"' in told) and b"no token may follow 2 tokens" in told, told
for filters in {"min_p": 1}, {"top_k": 5, "top_p": 1e-9}, {"top_k": 1, "top_p": 0.9}:
    assert greedy_text(temperature=2, max_tokens=24, **filters)["choices"][0]["text"] == greedy, filters
for least in range(4):
    for end in {"stop_token_ids": [97]}, {"stop": ["a"]}:
        choice = greedy_text(logit_bias={"97": 100}, min_tokens=least, logprobs=0, **end)["choices"][0]
        tokens = choice["logprobs"]["tokens"]
        assert len(tokens) == least + 1 and choice["finish_reason"] == "stop", choice
        assert ("a" in tokens[:least]) == ("stop" in end and least > 0), choice
eight = {**draw, "prompt": ["The "] * 2, "n": 4, "logprobs": 0}
whole = server.post(COMPLETE, **eight)
best = server.post(COMPLETE, **{**eight, "n": 2, "best_of": 4})
mean = lambda c: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"])
ranked = [sorted(whole["choices"][i:i + 4], key=mean, reverse=True)[:2] for i in (0, 4)]
assert best["choices"] == [{**c, "index": i} for i, c in enumerate(sum(ranked, []))], (best, ranked)
assert best["usage"] == whole["usage"], best
bare = server.post(COMPLETE, **{**eight, "n": 2, "best_of": 4, "logprobs": None})
assert [c["text"] for c in bare["choices"]] == [c["text"] for c in best["choices"]], (bare, best)

# ---- refusals: (status, field, body); the whole body is sent as it is if it is not an object

model = {"model": NAME, "prompt": "a", "max_tokens": 1}
VOCAB = int(server.post(COMPLETE, 400, prompt=[1 << 20])["error"]["message"].split()[-1])
REFUSED = [
    (400, None, b"{"), (400, None, b"[]"), (400, None, b'{"prompt": "\xff"}'),
    (400, None, b'{"prompt":"a","prompt":"b"}'),
    (404, "model", {"model": "another"}), (400, "model", {"model": 3}), (400, "prompt", {"prompt": None}),
    (400, "prompt", {"prompt": []}), (400, "prompt", {"prompt": ""}), (400, "prompt", {"prompt": [[]]}),
    (400, "prompt", {"prompt": 3}), (400, "prompt", {"prompt": [1.5]}), (400, "prompt", {"prompt": ["a", 3]}),
    (400, "prompt", {"prompt": [-1]}), (400, "prompt", {"prompt": [1 << 20]}), (400, "prompt", {"prompt": [1 << 40]}),
    (400, "prompt", {"max_tokens": POSITIONS}), (400, "prompt", {"prompt": "a" * (POSITIONS + 1)}),
    (400, "max_tokens", {"max_tokens": 0}), (400, "max_tokens", {"max_tokens": -1}),
    (400, "max_tokens", {"max_tokens": 1.0}), (400, "max_tokens", {"max_tokens": True}),
    (400, "temperature", {"temperature": 2.1}), (400, "temperature", {"temperature": "1"}),
    (400, "top_p", {"top_p": 0}), (400, "top_p", {"top_p": 1.1}), (400, "top_k", {"top_k": -2}),
    (400, "n", {"n": 0}), (400, "n", {"n": 129}), (400, "best_of", {"n": 3, "best_of": 2}),
    (400, "best_of", {"best_of": 2, "stream": True}), (400, "seed", {"seed": 1.5}), (400, "stop", {"stop": ""}),
    (400, "stop", {"stop": ["a"] * 65}), (400, "stop", {"stop": [3]}),
    (400, "stop_token_ids", {"stop_token_ids": [-1]}),
    (400, "logprobs", {"logprobs": 21}), (400, "logprobs", {"logprobs": True}), (400, "echo", {"echo": 1}),
    (400, "stream_options", {"stream_options": {}}),
    (400, "stream_options", {"stream": True, "stream_options": {"a": 1}}),
    (400, "stream_options", {"stream": True, "stream_options": {"include_usage": 1}}),
    (400, "stream_options", {"stream": True, "stream_options": {"continuous_usage_stats": True}}),
    (400, "truncate_prompt_tokens", {"truncate_prompt_tokens": 0}), (400, "priority", {"priority": 1}),
    (400, "min_p", {"min_p": 1.1}), (400, "presence_penalty", {"presence_penalty": 2.1}),
    (400, "frequency_penalty", {"frequency_penalty": "1"}), (400, "repetition_penalty", {"repetition_penalty": 0}),
    (400, "logit_bias", {"logit_bias": [1]}), (400, "logit_bias", {"logit_bias": {"a": 1}}),
    (400, "logit_bias", {"logit_bias": {"": 1}}), (400, "logit_bias", {"logit_bias": {"99999999999999999999": 1}}),
    (400, "logit_bias", {"logit_bias": {"97": 101}}), (400, "logit_bias", {"logit_bias": {"97": None}}),
    (400, "allowed_token_ids", {"allowed_token_ids": []}), (400, "allowed_token_ids", {"allowed_token_ids": [1 << 20]}),
    (400, "allowed_token_ids", {"allowed_token_ids": 97}), (400, "bad_words", {"bad_words": "a"}),
    (400, "bad_words", {"bad_words": [""]}), (400, "bad_words", {"bad_words": [3]}),
    (400, "bad_words", {"bad_words": ["a"] * 1025}), (400, "bad_words", {"bad_words": ["a" * 1025]}),
    (400, "prompt_logprobs", {"prompt_logprobs": 21}), (400, "prompt_logprobs", {"prompt_logprobs": True}),
    (400, "min_tokens", {"min_tokens": 1, "stop_token_ids": [97], "allowed_token_ids": [97]}),
    (400, "min_tokens", {"min_tokens": 2}),
    (400, "min_tokens", {"min_tokens": 1, "stop_token_ids": [*range(VOCAB)]}), (400, "suffix", {"suffix": "a"}),
    (400, "unknown", {"unknown": 1}), (400, "messages", {"messages": []}),
]
for status, field, change in REFUSED:
    body = change if isinstance(change, bytes) else {**model, **change}
    got, headers, text = server.request("POST", COMPLETE, body)
    error = json.loads(text)["error"]
    assert (got, error["param"]) == (status, field) and error["message"], (change, got, text)
    assert error["type"] == {404: "not_found_error"}.get(status, "invalid_request_error"), error
neutral = {"presence_penalty": 0, "frequency_penalty": None, "min_p": 0, "min_tokens": 0, "repetition_penalty": 1.0,
           "logit_bias": {}, "suffix": None, "user": "a", "best_of": 1, "cache_salt": "a", "priority": 0,
           "bad_words": [], "allowed_token_ids": [*range(256)]}
assert server.post(COMPLETE, **{**ask, "temperature": 0}, **neutral)["choices"] == answer["choices"]
told = server.post(COMPLETE, 400, **{**model, "max_tokens": POSITIONS})["error"]["message"]
assert f"is {POSITIONS} tokens, and the request has 1 in the prompt and {POSITIONS} to generate" in told, told
assert server.post(COMPLETE, **{**model, "max_tokens": POSITIONS - 1,
                                "ignore_eos": True})["usage"]["total_tokens"] == 32
told = server.post(CHAT, 400, messages=[{"role": "user", "content": "a"}])["error"]
assert told["code"] == "no_chat_template" and "--tokenizer-type HuggingFaceTokenizer" in told["message"], told
for status, method, path in [(404, "GET", "/other"), (404, "POST", "/pause"), (404, "GET", "/state"),
                             (404, "POST", "/v1/other"), (405, "GET", COMPLETE), (405, "POST", "/health"),
                             (405, "HEAD", COMPLETE), (200, "HEAD", "/health")]:
    got, headers, _ = server.request(method, path)
    assert got == status and (status != 405 or headers["Allow"]), (method, path, got)
for head in "Content-Length: 99999999", "Transfer-Encoding: chunked":
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode())
    if "chunked" in head:
        for _ in range(17): client.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        client.sendall(b"0\r\n\r\n")
    assert client.recv(12) == b"HTTP/1.1 413", head
    client.close()
models = json.loads(server.request("GET", "/v1/models")[2])["data"]
assert [(m["id"], m["max_model_len"]) for m in models] == [(NAME, POSITIONS)], models
assert server.request("GET", "/health")[0] == server.request("GET", "/v1/health")[0] == 200
assert server.post("/completions", **{**ask, "temperature": 0})["choices"] == answer["choices"]  # as in Megatron-LM

# ---- Megatron-LM's /api, as tools/text_generation_cli.py calls it

MEGATRON = {"prompts": ["The ", "é"], "tokens_to_generate": 6, "top_k": 1}


def put(status=200, **body):
    got, _, text = server.request("PUT", "/api", body)
    assert got == status, (body, got, text)
    return json.loads(text)


plain, told = put(**MEGATRON), put(**MEGATRON, logprobs=True)
assert plain == {name: told[name] for name in ("text", "tokens", "segments")}, (plain, told)
for i, prompt in enumerate(MEGATRON["prompts"]):
    one = server.post(COMPLETE, prompt=prompt, max_tokens=6, temperature=0, logprobs=0, echo=True)["choices"][0]
    assert told["text"][i] == one["text"] and told["segments"][i] == one["logprobs"]["tokens"], (told, one)
    assert told["logprobs"][i] == one["logprobs"]["token_logprobs"][1:], (told, one)
    assert server.post("/detokenize", tokens=told["tokens"][i])["prompt"] == one["text"], (told, one)
scored = put(prompts=["The "], tokens_to_generate=0, logprobs=True)
assert scored["text"] == ["The "] and scored["logprobs"][0] == told["logprobs"][0][:3], scored
drawn = put(prompts=["The "], tokens_to_generate=20, random_seed=5, temperature=1.5)["text"]
assert drawn == ["The " + server.post(COMPLETE, **{**draw, "n": 1})["choices"][0]["text"]], drawn
assert put(prompts=["The "], tokens_to_generate=20, random_seed=6, temperature=1.5)["text"] != drawn
assert put(prompts=["The "], tokens_to_generate=24, top_p=1e-9, temperature=9.5)["text"] == ["The " + greedy]
end = ord(greedy[5])
ended = put(prompts=["The "], tokens_to_generate=24, top_k=1, stop_token=end)
assert ended["text"] == ["The " + greedy[:greedy.index(chr(end))]] and ended["tokens"][0][-1] == end, ended
for change, message in [
        ({"prompts": None}, "'prompts' must be a list of strings"), ({"prompts": []}, "1 to 128"),
        ({"prompts": ["a"] * 129}, "1 to 128"), ({"prompts": [3]}, "a list of strings"),
        ({"prompts": [""]}, "needs 'add_BOS'"), ({"add_BOS": True}, "has no token that begins a text"),
        ({"max_len": 3}, "replace it by 'tokens_to_generate'"), ({"sentences": []}, "replace it by 'prompts'"),
        ({"beam_width": 2}, "'beam_width' is not supported"), ({"tokens_to_generate": -1}, "must be an integer from 0"),
        ({"tokens_to_generate": 0}, "needs 'logprobs'"), ({"temperature": 0}, "above 0, and at most 100"),
        ({"top_k": 1001}, "from 0 to 1000"), ({"top_p": 0.5}, "mutually exclusive"),
        ({"stop_token": 50256}, "token 50256 of 'stop_token' is outside the vocabulary"),
        ({"random_seed": -1}, "must be an integer from 0"), ({"tokens_to_generate": POSITIONS}, "context length"),
        ({"unknown": 1}, "does not know the field")]:
    assert message in put(400, **{**MEGATRON, **change})["message"], (change, message)
assert json.loads(server.request("GET", "/api")[2])["message"] == "/api needs the method PUT"
if "MEGATRON_LM" in os.environ and importlib.util.find_spec("requests"):
    done = subprocess.run([sys.executable, f"{os.environ['MEGATRON_LM']}/tools/text_generation_cli.py",
                           f"127.0.0.1:{server.port}"], input="The \n6\nThe \n-1\n", capture_output=True, text=True)
    assert "Megatron Response: \nThe " in done.stdout, done
    assert "Error 400: 'tokens_to_generate' must be an integer from 0" in done.stdout, done

# ---- an address of IPv6

process = subprocess.Popen([*map(str, [PROGRAM, "serve", "--load", saved, "--host", "::1", "--port", 0, *OPTIONS])],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
STARTED.append(process)
if line := process.stdout.readline():
    port = re.search(r" at http://\[::1\]:(\d+): ", line).group(1)
    connection = http.client.HTTPConnection("::1", int(port))
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200, line
    process.kill()
else:  # a machine without IPv6
    assert "cannot listen on --host '::1'" in process.stderr.read()

# ---- the description of the requests

paths = json.loads(server.request("GET", "/openapi.json")[2])["paths"]
for path, valid in (COMPLETE, model), ("/api", MEGATRON), ("/tokenize", {"prompt": "a"}), \
        ("/detokenize", {"tokens": []}):
    call = "put" if path == "/api" else "post"
    schema = paths[path][call]["requestBody"]["content"]["application/json"]["schema"]
    properties, required = schema["properties"], {*schema.get("required", [])}
    assert len(properties) > 1 and properties.keys() >= valid.keys() >= required, (path, schema)
    for name in required:  # null is allowed unless the field is required
        got, _, _ = server.request(call.upper(), path, {**valid, name: None})
        assert got == 400 and {"type": "null"} not in properties[name].get("anyOf", []), (path, name, properties[name])
    nothing = {name: None for name in schema["properties"]}  # null is the default of each field
    got, _, text = server.request(call.upper(), path, {**nothing, **valid})
    assert got == 200, (path, text)

server.idle()  # so that the passes of earlier requests are counted
before = server.metrics()
server.post(COMPLETE, prompt="a" * 31, max_tokens=1)
server.idle()
after = server.metrics()  # a pass has at most 20 tokens
assert after["num_passes_total"] - before["num_passes_total"] == 2, (before, after)
assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == 31, (before, after)
server.post(COMPLETE, prompt="a", n=3, max_tokens=5, ignore_eos=True)
server.idle()
assert server.metrics()["generation_tokens_total"] - after["generation_tokens_total"] == 15, after
before = server.metrics()
server.post(COMPLETE, prompt="a", n=3, max_tokens=5, ignore_eos=True)
server.post(COMPLETE, prompt="a", max_tokens=9, logit_bias={"97": 100}, stop=["aaa"])
told = {name: after - before[name] for name, after in server.metrics().items()}
COUNTS = {"request_queue_time": 4, "time_to_first_token": 4, "inter_token_latency": 3 * 4 + 2, "e2e_request_latency": 4}
for name, count in COUNTS.items():
    assert told[f"{name}_seconds_count"] == count and told[f"{name}_seconds_sum"] > 0, (name, told)
assert told["request_queue_time_seconds_sum"] < told["time_to_first_token_seconds_sum"], told
assert told["time_to_first_token_seconds_sum"] + told["inter_token_latency_seconds_sum"] <= told[
    "e2e_request_latency_seconds_sum"] < 60 * 4, told
assert [n for name, n in told.items() if name.startswith("request_success")] == [1, 3, 0, 0], told
assert after["kv_cache_pages"] == 16, after  # 16 requests of at most 32 tokens, in pages of 64

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
messages = [{"role": "user", "content": [{"type": "text", "text": "The"}, {"type": "text", "text": "loss"}]}]
ids = server.post("/tokenize", messages=messages)["tokens"]
assert server.post("/tokenize", prompt="user: The\nloss\nassistant:", add_special_tokens=False)["tokens"] == ids
given = server.post("/tokenize", messages=messages, chat_template="{{ messages[0].content }}")["tokens"]
assert given == server.post("/tokenize", prompt="The\nloss", add_special_tokens=False)["tokens"], given
end, = server.post("/tokenize", prompt=json.loads(server.request("GET", "/tokenizer_info")[2])["eos_token"],
                   add_special_tokens=False)["tokens"]
ended = server.post(COMPLETE, prompt="The", max_tokens=3, temperature=0, logit_bias={str(end): 100})["choices"][0]
assert (ended["text"], ended["finish_reason"], ended["stop_reason"]) == ("", "stop", None), ended
begun = server.post("/tokenize", messages=[*messages, {"role": "assistant", "content": "the"}],
                    continue_final_message=True)["tokens"]
assert begun == server.post("/tokenize", prompt="user: The\nloss\nassistant: the", add_special_tokens=False)["tokens"]
info = json.loads(server.request("GET", "/tokenizer_info")[2])
assert info["bos_token"] == "<s>" and info["max_model_len"] == 256, info
for limits in {"max_completion_tokens": 4}, {"max_completion_tokens": 4, "max_tokens": 9}, {"max_tokens": 4}:
    assert server.post(CHAT, messages=messages, ignore_eos=True, **limits)["usage"]["completion_tokens"] == 4, limits
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
# Requests with the same salt share the pages of their prompts.
texts = set()
for salt, shared in ("a", 0), ("a", 128), ("b", 0), (None, 0), (None, 128):
    before = server.metrics()["prefix_cache_hits_total"]
    salted = {"prompt": (ids * 130)[:130], "max_tokens": 20, "seed": 1, "cache_salt": salt}
    made = server.post(COMPLETE, **salted)
    assert made["usage"]["prompt_tokens_details"] == {"cached_tokens": shared}, (made, salt)
    texts.add(made["choices"][0]["text"])
    assert server.metrics()["prefix_cache_hits_total"] - before == shared, (salt, shared)
assert len(texts) == 1, texts
both = server.post(COMPLETE, **{**salted, "prompt": [salted["prompt"], [7] * 70], "n": 2})["usage"]
assert both["prompt_tokens_details"] == {"cached_tokens": 128} and both["prompt_tokens"] == 200, both
# The prompt's log-probabilities of a chat, whose pages are then not shared.
whole = server.post(CHAT, messages=messages * 9, max_tokens=1, prompt_logprobs=1)
ids = server.post("/tokenize", messages=messages * 9)["tokens"]
echoed = server.post(COMPLETE, prompt=ids, max_tokens=0, echo=True, logprobs=1)["choices"][0]["logprobs"]
assert len(ids) > 64 and whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}, whole["usage"]
assert [t[str(i)]["logprob"] for t, i in zip(whole["prompt_logprobs"][1:], ids[1:])] == echoed["token_logprobs"][1:]
assert {k: v["decoded_token"] for k, v in whole["prompt_logprobs"][2].items()}[str(ids[2])] == echoed["tokens"][2]
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
for wrong in [], [3], [{"content": "a"}], [{"role": "user", "content": [{"type": "image_url"}]}]:
    assert server.post(CHAT, 400, messages=wrong)["error"]["param"] == "messages", wrong
# the first new token may begin with a blank, which the text of the new tokens alone would not have
for seed in range(3):
    done = subprocess.run([*map(str, [PROGRAM, "generate", "--load", saved, "--temperature", 1.7,
                                      "--tokens-to-generate", 30,
                                      "--random-seed", seed, "--batch-invariant-mode", "--prompt", "The loss",
                                      *OPTIONS])],
                          capture_output=True)
    ask = {"prompt": "The loss", "max_tokens": 30, "temperature": 1.7, "seed": seed}
    told = done.stdout.decode(errors="replace")
    assert server.post(COMPLETE, **ask, echo=True)["choices"][0]["text"] + "\n" == told, (ask, told)
    text = server.post("/detokenize", tokens=server.post("/tokenize", prompt="The loss")["tokens"])["prompt"]
    assert told == text + server.post(COMPLETE, **ask)["choices"][0]["text"] + "\n", (ask, text, told)
for prompt in "The loss", "<s><s>The loss", "":
    told = put(prompts=[prompt], tokens_to_generate=0, logprobs=True, add_BOS=True)
    assert told["segments"][0][0] == "<s>" and "<s>" not in told["segments"][0][1:], told
    assert told["text"] == [prompt], told
server.end()

# Several bytes have the text U+FFFD, of which the likeliest is in the map.
saved = WORK / "random"
isotron("pretrain", "--config", WORK / "run.conf", "--mock-data", "--save", saved, "--train-iters", 1, "--lr", 0,
        "--lr-warmup-iters", 0)
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.01)
tops = [server.post(COMPLETE, prompt="The ", max_tokens=1, temperature=0, logprobs=n)["choices"][0]["logprobs"]
        ["top_logprobs"][0] for n in range(1, 21)]
assert all(a.items() <= b.items() for a, b in zip(tops, tops[1:])) and len(tops[-1]) < 20, tops
server.end()
