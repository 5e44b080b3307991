"""serve answers requests like OpenAI's API: with the texts of `generate`, the same streamed or not, alone or among
others. It refuses what it cannot do with the right status, releases the pages of clients that leave, and ends in time
after a signal."""
import http.client
import itertools
import signal
import socket
import struct
import threading
import time

from harness import *

data = corpus()
saved = WORK / "saved"
pretrain(data, saved, "--train-iters", 40, "--lr", 1e-2)
NAME, KEY, PAGES, POSITIONS = "small é", "secret", 8, 32
STARTED = []
atexit.register(lambda: [server.kill() for server in STARTED])


class Server:
    def __init__(self, *options):
        self.headers = {}
        self.process = subprocess.Popen(
            [*map(str, [PROGRAM, "serve", "--load", saved, "--host", "127.0.0.1", "--port", 0, "--served-model-name",
                        NAME,
                        "--inference-dynamic-batching-block-size", 64, "--batch-invariant-mode", *options, *OPTIONS])],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        STARTED.append(self.process)
        line = self.process.stdout.readline()
        assert line.startswith(f"serving {NAME} at http://127.0.0.1:"), (line, self.process.stderr.read())
        self.port = int(line.split("127.0.0.1:")[1].split(":")[0])

    def request(self, method, path, body=None, headers=None):
        """Returns (status, headers, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body if body is None or isinstance(body, (bytes, str)) else json.dumps(body),
                           self.headers if headers is None else headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, answer.headers, text

    def post(self, path, status=200, **body):
        """Sends a request, and returns the object of the answer."""
        got, _, text = self.request("POST", path, body)
        assert got == status, (body, got, text)
        return json.loads(text)

    def stream(self, path, **body):
        """Returns the objects of a stream's events, each of which is one line of valid UTF-8."""
        status, headers, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200 and headers["Content-Type"].startswith("text/event-stream"), (status, text)
        *events, end = text.decode().split("\n\n")
        assert not end and events[-1] == "data: [DONE]", text
        assert all(event.startswith("data: {") and "\n" not in event for event in events[:-1]), text
        return [json.loads(event[6:]) for event in events[:-1]]

    def send(self, path, **body):
        """Sends a request, and returns its socket."""
        text = json.dumps(body)
        client = socket.create_connection(("127.0.0.1", self.port))
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        client.sendall(f"POST {path} HTTP/1.1\r\n{headers}Host: a\r\nContent-Length: {len(text)}\r\n\r\n"
                       f"{text}".encode())
        return client

    def metrics(self):
        lines = self.request("GET", "/metrics")[2].decode().splitlines()
        pairs = [line.removeprefix("isotron:").rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: int(value) for name, value in pairs}

    def wait(self, **wanted):
        """Waits until metrics have these values."""
        for _ in range(400):
            have = self.metrics()
            if all(have[name] == value for name, value in wanted.items()): return
            time.sleep(0.025)
        sys.exit(f"{wanted} are not reached: {have}")

    def idle(self):
        pages = self.metrics()["kv_cache_pages"]
        self.wait(num_requests_running=0, num_requests_waiting=0, kv_cache_free_pages=pages)

    def end(self, within=10):
        """Sends SIGTERM. The server must exit with status 0 in time."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=within)
        assert self.process.returncode == 0, (self.process.returncode, out, err)


def joined(events, choice=0, chat=False):
    """Joins the texts of a choice's events, which end with one finish_reason. Returns (text, finish_reason)."""
    own = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == choice]
    texts = [c["delta"]["content"] if chat else c["text"] for c in own]
    assert [c["finish_reason"] is None for c in own] == [True] * (len(own) - 1) + [False], own
    return "".join(texts), own[-1]["finish_reason"]


server = Server("--inference-dynamic-batching-buffer-size-gb", 0.01, "--inference-max-requests", 16,
                "--inference-dynamic-batching-max-tokens", 20)
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"

# ---- texts

done = subprocess.run([*map(str, [PROGRAM, "generate", "--load", saved, "--temperature", 0, "--tokens-to-generate", 24,
                                  "--batch-invariant-mode", "--prompt", "The ", *OPTIONS])], capture_output=True)
greedy = done.stdout[4:-1].decode(errors="replace")
ask = {"prompt": "The ", "max_tokens": 24, "temperature": 0}
answer = server.post(COMPLETE, **ask)
assert answer["choices"] == [{"index": 0, "text": greedy, "logprobs": None, "finish_reason": "length",
                              "stop_reason": None}], (answer, greedy)
assert answer["object"] == "text_completion" and answer["model"] == NAME and answer["id"].startswith("cmpl-"), answer
assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 24, "total_tokens": 28}, answer
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
assert server.post(COMPLETE, **{**draw, "n": 1})["choices"] == drawn[:1]
assert server.post(COMPLETE, **{**draw, "seed": 6})["choices"] != drawn
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
    (400, "min_p", {"min_p": 1.1}), (400, "presence_penalty", {"presence_penalty": 2.1}),
    (400, "frequency_penalty", {"frequency_penalty": "1"}), (400, "repetition_penalty", {"repetition_penalty": 0}),
    (400, "logit_bias", {"logit_bias": [1]}), (400, "logit_bias", {"logit_bias": {"a": 1}}),
    (400, "logit_bias", {"logit_bias": {"": 1}}), (400, "logit_bias", {"logit_bias": {"99999999999999999999": 1}}),
    (400, "logit_bias", {"logit_bias": {"97": 101}}), (400, "logit_bias", {"logit_bias": {"97": None}}),
    (400, "min_tokens", {"min_tokens": 2}),
    (400, "min_tokens", {"min_tokens": 1, "stop_token_ids": [*range(VOCAB)]}), (400, "suffix", {"suffix": "a"}), (400, "unknown", {"unknown": 1}), (400, "messages", {"messages": []}),
]
for status, field, change in REFUSED:
    body = change if isinstance(change, bytes) else {**model, **change}
    got, headers, text = server.request("POST", COMPLETE, body)
    error = json.loads(text)["error"]
    assert (got, error["param"]) == (status, field) and error["message"], (change, got, text)
    assert error["type"] == {404: "not_found_error"}.get(status, "invalid_request_error"), error
neutral = {"presence_penalty": 0, "frequency_penalty": None, "min_p": 0, "min_tokens": 0, "repetition_penalty": 1.0, "logit_bias": {}, "suffix": None, "user": "a",
           "best_of": 1}
assert server.post(COMPLETE, **{**ask, "temperature": 0}, **neutral)["choices"] == answer["choices"]
told = server.post(COMPLETE, 400, **{**model, "max_tokens": POSITIONS})["error"]["message"]
assert f"is {POSITIONS} tokens, and the request has 1 in the prompt and {POSITIONS} to generate" in told, told
assert server.post(COMPLETE, **{**model, "max_tokens": POSITIONS - 1,
                                "ignore_eos": True})["usage"]["total_tokens"] == 32
told = server.post(CHAT, 400, messages=[{"role": "user", "content": "a"}])["error"]
assert told["code"] == "no_chat_template" and "--tokenizer-type HuggingFaceTokenizer" in told["message"], told
for status, method, path in [(404, "GET", "/"), (404, "POST", "/v1/other"), (405, "GET", COMPLETE),
                             (405, "POST", "/health")]:
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
assert server.request("GET", "/health")[0] == 200

before = server.metrics()
server.post(COMPLETE, prompt="a" * 31, max_tokens=1)
after = server.metrics()  # a pass has at most 20 tokens
assert after["num_passes_total"] - before["num_passes_total"] == 2, (before, after)
assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == 31, (before, after)
assert after["kv_cache_pages"] == 16, after  # 16 requests of at most 32 tokens, in pages of 64

# ---- many clients

texts = [None] * 50


def client(i):
    texts[i] = joined(server.stream(COMPLETE, **{**draw, "seed": i % 10, "n": 1}))


threads = [threading.Thread(target=client, args=(i,)) for i in range(50)]
for t in threads: t.start()
for t in threads: t.join()
assert all(texts[i] and texts[i] == texts[i % 10] for i in range(50)), texts
assert [server.post(COMPLETE, **{**draw, "seed": i, "n": 1})["choices"][0]["text"] for i in range(10)] == [
    text for text, _ in texts[:10]]
server.idle()
many, told = [], server.metrics()["prompt_tokens_total"]
asking = threading.Thread(target=lambda: many.append(server.post(COMPLETE, **{**draw, "n": 128, "max_tokens": 28})))
asking.start()  # requests that can end in time do so after a signal
server.wait(prompt_tokens_total=told + 128 * 4)
server.end()
asking.join()
assert len(many[0]["choices"]) == 128, many

# ---- clients that leave, and a full queue: one request runs for long in the only pages, the others wait

long_run = WORK / "long"
pretrain(data, long_run, "--max-position-embeddings", 2**20, "--position-embedding-type", "none")
saved = long_run
LONG = {"prompt": "a", "max_tokens": 100000, "ignore_eos": True}
server = Server("--inference-dynamic-batching-buffer-size-gb", 0.08, "--inference-max-requests", 1,
                "--max-queued-requests", 1, "--api-key", KEY, "--shutdown-timeout", 1)
for key in {}, {"Authorization": KEY}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secretsecret"}:
    assert server.request("POST", COMPLETE, LONG, key)[0] == 401, key
server.headers = {"Authorization": f"Bearer {KEY}"}
for stream in False, True:
    running = server.send(COMPLETE, **LONG, stream=stream)
    server.wait(num_requests_running=1)
    waiting = server.send(COMPLETE, **LONG, stream=stream)
    server.wait(num_requests_running=1, num_requests_waiting=1)
    status, headers, _ = server.request("POST", COMPLETE, LONG)
    assert status == 429 and headers["Retry-After"], (status, headers)
    waiting.close()
    server.wait(num_requests_running=1, num_requests_waiting=0)
    running.close()
    server.idle()
reading = server.send(COMPLETE, prompt=[97] * 100000, max_tokens=1)  # the pages of a prompt that is partly computed
server.wait(num_requests_running=1)
reading.close()
server.idle()
partial = socket.create_connection(("127.0.0.1", server.port))
partial.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
partial.close()
server.idle()
counts = server.metrics()
reasons = {name.split('"')[1]: n for name, n in counts.items() if "{" in name}
assert reasons == {"stop": 0, "length": 0, "abort": 5, "error": 0}, reasons

# A signal: the client that reads nothing does not delay the end, and each request has an answer.
streamed = server.send(COMPLETE, **LONG, stream=True)
server.wait(num_requests_running=1)
whole = server.send(COMPLETE, **LONG)
server.wait(num_requests_waiting=1)
server.process.send_signal(signal.SIGTERM)
while server.request("GET", "/health")[0] == 200: time.sleep(0.01)
assert server.request("POST", COMPLETE, LONG)[0] == 503
assert whole.recv(12) == b"HTTP/1.1 503"
out, err = server.process.communicate(timeout=20)
assert server.process.returncode == 0, (out, err)
text = b"".join(iter(lambda: streamed.recv(1 << 20), b""))
assert b'data: {"error":' in text[-600:] and b"data: [DONE]" in text[-30:], text[-600:]

told = isotron("serve", "--load", saved, "--inference-dynamic-batching-buffer-size-gb", 1e-5, expect=2)
assert "is less than one page of the KV cache" in told, told
for words, message in [
        (["--inference-dynamic-batching-block-size", 96], "must be a multiple of 64"),
        (["--inference-dynamic-batching-max-tokens", 255], "must be at least the number of requests"),
        (["--inference-max-requests", 0], "must be from 1 to 4096")]:
    told = isotron("serve", "--load", saved, *words, expect=2)
    assert message in told, told
told = isotron("serve", "--load", saved, "--host", "no such host", expect=2)
assert "--host 'no such host' is not an address" in told, told

# ---- chat, with a tokenizer whose tokens are words with blanks, and bytes

folder = WORK / "chat"
folder.mkdir()
shutil.copy(ROOT / "tests/data/tokenizer/metaspace.json", folder / "tokenizer.json")
(folder / "tokenizer_config.json").write_text(json.dumps({
    "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                     "{% if add_generation_prompt %}assistant:{% endif %}"}))
HF = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder]
saved = WORK / "chatting"
isotron("pretrain", "--config", WORK / "run.conf", "--mock-data", *HF, "--save", saved, "--train-iters", 3,
        "--max-position-embeddings", 256)
server = Server("--inference-dynamic-batching-buffer-size-gb", 0.01)
messages = [{"role": "user", "content": [{"type": "text", "text": "The"}, {"type": "text", "text": "loss"}]}]
ids = server.post("/tokenize", messages=messages)["tokens"]
assert server.post("/tokenize", prompt="user: The\nloss\nassistant:", add_special_tokens=False)["tokens"] == ids
seen = set()
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
    told = b"".join(bytes(t["bytes"]) for t in tokens if t["token"] not in ("<s>", "</s>", "<unk>", "<pad>"))
    assert told.decode(errors="replace") == text, (told, text)
    seen |= {c for c in text}
assert len(seen) > 10, seen
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
server.end()
