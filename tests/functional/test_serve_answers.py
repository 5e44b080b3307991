"""serve's routes, statuses, headers, states and metrics. Each one that the code can produce has a row: a route, status,
code, header or metric without a row is an error."""
import needs_numpy
import urllib.parse

from serving import *

sys.path.insert(0, str(ROOT / "tests/functional/fields"))
sys.dont_write_bytecode = True
import model
from judge import Judge, without
from rows import BASES, PATHS, ROWS, SAID
from oracle import API, DETOKENIZE, POSITIONS, TOKENIZE, UPDATE

KEY, CONTEXT, PAGES, TIMEOUT = "secret", 128, 2, 3
JSON, STREAM = "application/json", "text/event-stream; charset=utf-8"
MODEL = "/v1/models/{model}"
# path: (method, whether it needs no key, whether it needs --enable-control, the type of its answer)
ROUTES = {"/": ("GET", True, False, "text/html; charset=utf-8"), COMPLETE: ("POST", False, False, JSON),
          CHAT: ("POST", False, False, JSON), API: ("PUT", False, False, JSON),
          "/v1/models": ("GET", False, False, JSON), MODEL: ("GET", False, False, JSON),
          TOKENIZE: ("POST", False, False, JSON), DETOKENIZE: ("POST", False, False, JSON),
          "/tokenizer_info": ("GET", False, False, JSON), "/health": ("GET", True, False, JSON),
          "/metrics": ("GET", True, False, "text/plain; version=0.0.4"), "/openapi.json": ("GET", True, False, JSON),
          "/state": ("GET", False, True, JSON), **{path: ("POST", False, True, JSON) for path in (
              "/pause", "/resume", "/sleep", "/wake_up", UPDATE)}}
# The statuses of refusals. Each path that needs a key also has 401, and each one has 400, 408, 413 and 415.
STATUSES = {COMPLETE: {404, 429, 500, 503, 504}, CHAT: {404, 429, 500, 503, 504}, API: {429, 500, 503, 504},
            TOKENIZE: {404}, DETOKENIZE: {404}, MODEL: {404}, "/health": {503}, UPDATE: {409, 500, 503},
            **{path: {409, 503} for path in ("/pause", "/resume", "/sleep", "/wake_up")}}
METRICS = {
    "num_requests_running": ("gauge", "Number of requests that are running."),
    "num_requests_waiting": ("gauge", "Number of requests that wait until others end."),
    "kv_cache_pages": ("gauge", "Number of pages in the KV cache."),
    "kv_cache_free_pages": ("gauge", "Number of KV-cache pages that no request uses."),
    "kv_cache_usage_perc": ("gauge", "Fraction of the KV cache that requests use, from 0 to 1."),
    "num_passes_total": ("counter", "Number of model passes."),
    "num_preemptions_total": ("counter", "Number of times that a request released its pages to others."),
    "prefix_cache_queries_total": ("counter", "Number of prompt tokens that were looked up in shared pages."),
    "prefix_cache_hits_total": ("counter", "Number of prompt tokens that were in shared pages."),
    "spec_decode_num_draft_tokens_total": ("counter", "Number of draft tokens that passes have checked."),
    "spec_decode_num_accepted_tokens_total": ("counter", "Number of draft tokens that equal the chosen tokens."),
    "prompt_tokens_total": ("counter", "Number of prompt tokens."),
    "generation_tokens_total": ("counter", "Generated tokens."),
    "weight_version": ("gauge", "Number of times that new weights were loaded."),
    "request_success_total": ("counter", "Number of texts that have ended."),
    "corrupted_requests_total": ("counter", "Number of texts that ended because logits were not finite."),
    "request_queue_time_seconds": ("histogram", "Time from a request to its first model pass."),
    "time_to_first_token_seconds": ("histogram", "Time from a request to its first token."),
    "inter_token_latency_seconds": ("histogram", "Time from a token to the next one."),
    "e2e_request_latency_seconds": ("histogram", "Time from a request to the end of its text.")}
HEADERS = {"CONTENT_TYPE", "ALLOW", "RETRY_AFTER", "WWW_AUTHENTICATE", "CACHE_CONTROL", "X-Request-Id",
           "Content-Security-Policy"}
ENDS = "the server is shutting down: send the request to another server"
SEEN = {(r.status, r.code) for row in ROWS for r in row.refused}
TALK = {"messages": [{"role": "u", "content": "a"}], "max_tokens": 4}
ASK = {"prompt": "a", "max_tokens": 4, "ignore_eos": True}


def failed(server, method, path, status, kind, code, text, body=None, param=None, headers=None):
    """Asserts that a request is refused with this error. Returns the headers."""
    got, answered, answer = server.request(method, path, body, headers)
    if path == API:
        assert (got, json.loads(answer)) == (status, {"message": text}), (got, answer)
    else:
        check_error(got, answer, status, kind, code, text, param)
    return answered


def check_error(got, answer, status, kind, code, text, param=None):
    error = json.loads(answer)
    assert (got, error.keys()) == (status, {"error"}), (got, answer)
    assert error["error"] == {"message": text, "type": kind, "param": param, "code": code}, (answer, text)
    SEEN.add((status, code))


def asked_path(path): return path.replace("{model}", urllib.parse.quote(NAME))


def settled(server):
    """The metrics after all requests have ended."""
    server.idle()
    return server.metrics()


def changes(server, before): return {name: value - before[name] for name, value in settled(server).items()}


# ---- a small server with a key and control, which computes infinities after 120 tokens

model.write(WORK / "infinite", 120)
model.write(WORK / "hf")
model.write(WORK / "short", positions=80)
for name, folder in ("infinite", "small"), ("hf", "saved"), ("short", "other"):
    isotron("convert", "--from-hf", WORK / name, "--save", WORK / folder)
started = time.time()
server = Server(WORK / "small", "--enable-control", "--api-key", KEY, "--inference-max-requests", 2,
    "--max-queued-requests", 1,
                "--request-timeout", TIMEOUT, "--shutdown-timeout", 2, "--inference-dynamic-batching-buffer-size-gb",
                (PAGES + 0.5) * model.PAGE * model.LAYERS * 2 * model.HIDDEN * 4 / 2**30)
assert server.line == (f"serving {NAME} at http://127.0.0.1:{server.port}: a context of {CONTEXT} tokens, "
                       f"{PAGES} pages of the KV cache, 2 requests at a time\n"), server.line
for path, (method, is_open, _, kind) in ROUTES.items():
    for key in {}, {"Authorization": KEY}, {"Authorization": "Bearer "}, {"Authorization": "Bearer secre"}, {
            "Authorization": "Bearer secretsecret"}, {"Authorization": "Bearer Secret"}:
        if is_open: continue
        told = failed(server, method, asked_path(path), 401, "authentication_error", "invalid_api_key",
                      'the request needs the server\'s key: add the header "Authorization: Bearer KEY"', headers=key)
        assert told["WWW-Authenticate"] == "Bearer" and told["Content-Type"] == JSON, told
server.headers = {"Authorization": f"bearer {KEY}"}
for path, (method, _, _, kind) in ROUTES.items():
    for wrong in {"GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "get", "FOO",
                  *(["HEAD"] if method != "GET" else [])} - {method}:
        for other in path, path.removeprefix("/v1"), path if path.startswith("/v1") or path == "/" else "/v1" + path:
            got, headers, text = server.request(wrong, asked_path(other))
            told = {"message": f"{path} needs the method {method}"}
            if path != API: told = {"error": {**told, "type": "invalid_request_error", "param": None, "code": None}}
            assert (got, headers["Allow"]) == (405, "GET, HEAD" if method == "GET" else method), (path, wrong, headers)
            assert json.loads(text or "{}") == ({} if wrong == "HEAD" else told), (path, text)
    SEEN.add((405, None))
    if method == "GET":
        for asked in "GET", "HEAD":
            got, headers, text = server.request(asked, asked_path(path))
            assert (got, headers["Content-Type"], asked == "HEAD") == (200, kind, not text), (path, got, headers)
    if path == "/":
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; "), headers
for path in ("/other", "/v1/other", "/v2/models", "/v1", "//state", "/health/", "/health%00x", "/Health", "*",
             "/v1/models/"):
    failed(server, "GET", path, 404, "not_found_error", None, f"this server has no path '{path}'")
for path in "/he%61lth", "/health?a=b&c", "/v1/health":
    assert server.request("GET", path)[0] == 200, path


def get(path, server=server): return json.loads(server.request("GET", path)[2])
def order(path): return json.loads(server.request("POST", path)[2])


models, = get("/v1/models").pop("data")
assert get(asked_path(MODEL)) == get(asked_path(MODEL.removeprefix("/v1"))) == models, models
for other in "other", "a/b", "a%2Fb%20c":
    failed(server, "GET", f"/v1/models/{other}", 404, "not_found_error", "model_not_found",
           f"there is no model '{urllib.parse.unquote(other)}'; this server has '{NAME}'", param="model")
assert started - 1 <= models.pop("created") <= time.time(), models
assert models == {"id": NAME, "object": "model", "owned_by": "isotron", "max_model_len": CONTEXT}, models
assert get("/v1/models").keys() == {"object", "data"} and get("/v1/models")["object"] == "list"
assert get("/tokenizer_info") == {"max_model_len": CONTEXT, "bos_token": "<s>", "eos_token": "</s>",
    "pad_token": "<pad>"}
assert server.post(TOKENIZE, prompt="a") == {"count": 1, "max_model_len": CONTEXT, "tokens": [97]}
assert get("/health") == {"status": "ok"}


# ---- the description of the requests


def check_described(server, has_key, has_control):
    """Asserts that /openapi.json has each route, and the limits of each row."""
    told = get("/openapi.json", server)
    wanted = {path: route for path, route in ROUTES.items() if has_control or not route[2]}
    assert {path: {*calls} for path, calls in told["paths"].items()} == {path: {r[0].lower()} for path,
        r in wanted.items()}
    assert told["info"] == {"title": "isotron serve",
        "version": isotron("version").split()[1]} and told["openapi"] == "3.1.0", told["info"]
    components = told["components"]
    assert components["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}, components
    used = {*re.findall('"#/components/schemas/([^"]+)"', json.dumps(told))}
    assert used | {"state"} == components["schemas"].keys(), used ^ components["schemas"].keys()
    assert components["schemas"]["model"] == {"type": "string", "const": NAME}, components
    assert components["schemas"]["token"] == {"type": "integer", "minimum": 0, "maximum": model.VOCAB - 1}, components
    for path, (method, is_open, _, kind) in wanted.items():
        call = told["paths"][path][method.lower()]
        assert call.get("security") == ([{"key": []}] if has_key and not is_open
            else None) and call["summary"].endswith("."), call
        responses = {int(status): response for status, response in call["responses"].items()}
        answers = responses[200]["content"]
        assert {*answers} == {kind, *(["text/event-stream"] if path in (COMPLETE, CHAT) else [])}, (path, answers)
        assert responses.keys() == {200, *STATUSES.get(path, ()), 400, 408, 413, 415,
                                    *((401,) if has_key and not is_open else ())}, (path, responses.keys())
        for status, response in responses.items():
            name = {401: "WWW-Authenticate", 429: "Retry-After"}.get(
                status, "X-Request-Id" if status == 200 and path in (COMPLETE, CHAT, API) else None)
            assert [*response.get("headers", {})] == ([name] if name else []), (path, status, response)
            if status == 200: continue
            schema = "health" if (path, status) == ("/health", 503) else "message" if path == API else "error"
            assert response["content"] == {JSON: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}, response
        endpoint = next((e for e, p in PATHS.items() if p == path), None)
        assert ("requestBody" in call) == (endpoint is not None), call
        if endpoint is None: continue
        body = call["requestBody"]["content"][JSON]["schema"]
        rows = {row.field: row for row in ROWS
                if endpoint in row.endpoints and "replace it with" not in str(row.refused)}
        assert body["properties"].keys() == rows.keys() and body["additionalProperties"] is False, (path,
            body["properties"].keys() ^ rows.keys())
        assert body.get("required", []) == [f for f, row in rows.items() if row.needed and path != TOKENIZE
            and "seed" not in f], body
        for field, row in rows.items():
            schema = body["properties"][field]
            if row.kind in SAID and field != "model": assert schema["type"] == [row.kind, "null"], (field, schema)
            least = "exclusiveMinimum" if row.above else "minimum"
            if row.limits: assert (schema[least], schema["maximum"]) == tuple(row.limits), (field, schema)


check_described(server, True, True)

# ---- bodies that are too long, or too slow

late = server.connect()
late.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
text = json.dumps({"prompt": "a", "max_tokens": 1})
got, _, answer = server.request("POST", COMPLETE, text + " " * ((16 << 20) - len(text)))
assert got == 200, answer
for head in f"Content-Length: {(16 << 20) + 1}", "Transfer-Encoding: chunked":
    client = server.connect()
    client.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode())
    if "chunked" in head:
        for _ in range(16): client.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        client.sendall(b"1\r\n \r\n0\r\n\r\n")
    got, _, answer = received(client)
    check_error(got, answer, 413, "invalid_request_error", None, "the body is longer than 16 MiB: send a shorter body")

# ---- headers that describe the body

body = json.dumps(ASK).encode()
CHUNKED = b"%x\r\n%s\r\n0\r\nX-Trailer: a\r\n\r\n" % (len(body), body)
UNCLEAR = "it is not clear where the body ends: send one Content-Length, or the Transfer-Encoding chunked"
LENGTH = f"Content-Length: {len(body)}"
for head, sent, status, text in (
        (LENGTH + "\r\nExpect: 100-continue", body, 200, None), ("Transfer-Encoding: Chunked", CHUNKED, 200, None),
        (LENGTH + "\r\nContent-Encoding: identity", body, 200, None),
        (LENGTH + "\r\nContent-Type: text/plain; charset=utf-8\r\nAccept: text/plain", body, 200, None),
        (LENGTH + "\r\nContent-Length: 1", body, 400, UNCLEAR), (f"{LENGTH}\r\n{LENGTH}", body, 400, UNCLEAR),
        (LENGTH + "\r\nTransfer-Encoding: chunked", CHUNKED, 400, UNCLEAR),
        *((f"Transfer-Encoding: {coding}", body, 400, UNCLEAR) for coding in ("gzip", "gzip, chunked", "identity")),
        *((f"{LENGTH}\r\nContent-Encoding: {coding}", body, 415,
           "the body has the Content-Encoding 'gzip': send it without")
          for coding in ("gzip", "identity\r\nContent-Encoding: gzip", "gzip\r\nContent-Encoding: identity"))):
    for line in f"POST {COMPLETE}", "GET /health":
        client = server.connect()
        client.sendall(f"{line} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n{head}\r\n\r\n".encode() + sent)
        got, headers, answer = received(client)
        assert got == status and (status == 200 or headers["Connection"] == "close"), (head, got, headers, answer)
        if text: check_error(got, answer, status, "invalid_request_error", None, text)

# ---- states

ALLOWED = {"running": {"/pause": "paused"}, "paused": {"/pause": "paused", "/resume": "running", "/sleep": "suspended"},
           "suspended": {"/pause": "suspended", "/wake_up": "paused"}}
FIRST = {"running": "send POST /pause first", "suspended": "send POST /wake_up first",
         "paused": "it only wakes up an engine after POST /sleep"}
version = 0
for walk in ["/pause", "/pause", "/sleep", "/pause", "/wake_up", "/resume"]:
    state = get("/state")["state"]
    for path in "/pause", "/resume", "/sleep", "/wake_up":
        failed(server, "POST", path, 400, "invalid_request_error", None, f"{path} must not have a body: remove it",
               b"{}")
        if path not in ALLOWED[state]:
            failed(server, "POST", path, 409, "invalid_request_error", "not_allowed",
                   f"{path} is not allowed while the engine is {state}: {FIRST[state]}")
    if state == "running":
        failed(server, "POST", UPDATE, 409, "invalid_request_error", "not_allowed",
               f"{UPDATE} is not allowed while the engine is running: {FIRST[state]}", {"model_path": "a"})
    else:
        version += 1
        assert server.post(UPDATE, model_path=str(WORK / "small")) == {"state": state, "weight_version": version}
    assert order(walk) == get("/state") == {"state": ALLOWED[state][walk], "weight_version": version}, walk

# Answers state the version of the weights. Different weights give different answers.
assert server.post(COMPLETE, **ASK)["metadata"] == {"weight_version": version} and server.metrics()[
    "weight_version"] == version
whole = [server.post(path, **ask, n=2) for path, ask in ((COMPLETE, ASK), (CHAT, TALK))]
streams = [server.stream(path, **ask, **usage, n=2) for path, ask in ((COMPLETE, ASK), (CHAT, TALK))
           for usage in ({}, {"stream_options": {"include_usage": True}})]
for answer in whole:
    assert answer["metadata"] == {"weight_version": version} and all(
        c["policy_epoch"] == [[0, version]] for c in answer["choices"]), answer
for events in streams:
    *others, last = events
    assert last["metadata"] == {"weight_version": version} and not any("metadata" in e for e in others), events
    assert bool(last["choices"]) != ("usage" in last), last
    for part in (e["choices"][0] for e in events if e["choices"]):
        assert part.get("policy_epoch") == ([[0, version]] if part["finish_reason"] else None), part
assert json.loads(server.request("PUT", API, {"prompts": ["a"],
    "tokens_to_generate": 1})[2])["metadata"] == {"weight_version": version}
# As in JSON Schema, 4.0 is an integer.
texts = [[c["text"] for c in server.post(COMPLETE, prompt=[t(97)], max_tokens=t(4), n=t(2), seed=t(-7), stop_token_ids=[
    t(98)])["choices"]] for t in (int, float)]
assert texts[0] == texts[1], texts
order("/pause")
BASES["W"]["model_path"] = str(WORK / "small")
judge = Judge(server)
judge.oracle.version = version
for row in ROWS:
    if "W" in row.endpoints: judge.check_row(row, "W")
judge.check_bodies(UPDATE)
# The advice is for a client, which cannot set options.
error = server.post(UPDATE, 400, model_path=str(WORK / "other"))["error"]
assert error["message"].endswith("has the shape [80, 16], but in this model it has the shape [160, 16]; load a "
                                 "checkpoint of the same model"), error
server.post(UPDATE, model_path=str(WORK / "saved"))
order("/resume")
assert server.post(COMPLETE, prompt="a" * 121, max_tokens=1)["usage"]["completion_tokens"] == 1  # without infinities
order("/pause")
server.post(UPDATE, model_path=str(WORK / "small"))
order("/resume")

# ---- a paused server: a full queue, a stream that waits, and requests that take too long

order("/pause")
before, began = settled(server), time.monotonic()
whole, streamed = server.send(COMPLETE, **ASK), server.send(CHAT, messages=[{"role": "u", "content": "a"}], stream=True)
server.wait(num_requests_waiting=2, num_requests_running=0)
FULL = "too many requests are waiting (--max-queued-requests): try again later"
told = failed(server, "POST", COMPLETE, 429, "rate_limit_error", "queue_full", FULL, {**ASK, "n": 2})
third = server.send(COMPLETE, **ASK)
server.wait(num_requests_waiting=3)
told = failed(server, "POST", COMPLETE, 429, "rate_limit_error", "queue_full", FULL, ASK)
assert told["Retry-After"] == "1" and told["X-Request-Id"].startswith("cmpl-"), told
third.close()
server.wait(num_requests_waiting=2)
LATE = f"the request has run for {TIMEOUT} s (--request-timeout): request fewer tokens, or try later"
got, headers, text = received(whole)
took = [time.monotonic() - began]
check_error(got, text, 504, "server_error", "timeout", LATE)
got, headers, text = received(streamed)
first, *events = text.decode().split("\n\n")
assert (got, headers["Content-Type"], headers["Cache-Control"]) == (200, STREAM, "no-cache"), headers
assert json.loads(first[6:])["id"] == headers["X-Request-Id"] and ": waiting" in events, (headers, first, events)
check_error(504, events[-3].removeprefix("data: "), 504, "server_error", "timeout", LATE)
assert events[-2:] == ["data: [DONE]", ""], events
late.sendall(b" ")
got, headers, text = received(late)
assert headers["Connection"] == "close" and headers["Content-Type"] == JSON, headers
check_error(got, text, 408, "invalid_request_error", "timeout",
            "the body was not complete in time: send the request again")

server.wait(num_requests_waiting=0)
told = server.metrics()
ended = {name: told[name] - before[name] for name in told if name.startswith("request_success")}
assert [*ended.values()] == [0, 0, 3, 0] and told["prompt_tokens_total"] - before["prompt_tokens_total"] == 2 + 7, (
    ended, told)
# The limit is exact, although a server looks for lost clients only every 2 s. A busy machine can need several tries.
while min(took) > TIMEOUT + 0.5 and len(took) < 6:
    began = time.monotonic()
    failed(server, "POST", COMPLETE, 504, "server_error", "timeout", LATE, ASK)
    took.append(time.monotonic() - began)
assert TIMEOUT - 0.01 < min(took) < TIMEOUT + 0.5, took

# Times: a request that waits for 0.3 s, and then runs. The time in the queue begins a little later, when the engine
# receives the request.
before, began = settled(server), time.monotonic()
whole = server.send(COMPLETE, **ASK)
server.wait(num_requests_waiting=1)
time.sleep(0.3)
order("/resume")
assert received(whole)[0] == 200
told, took = changes(server, before), time.monotonic() - began
for name in "request_queue_time", "time_to_first_token", "e2e_request_latency":
    least = 0.25 if name == "request_queue_time" else 0.3
    assert least <= told[f"{name}_seconds_sum"] <= took and told[f"{name}_seconds_count"] == 1, (name, told, took)
    assert told[f'{name}_seconds_bucket{{le="0.25"}}'] == 0 and (took > 1
        or told[f'{name}_seconds_bucket{{le="1"}}'] == 1), told
assert 0 < told["inter_token_latency_seconds_sum"] <= told["e2e_request_latency_seconds_sum"] - told[
    "time_to_first_token_seconds_sum"] + 1e-9 and told["inter_token_latency_seconds_count"] == 3, told
assert told["num_passes_total"] == told["generation_tokens_total"] == 4, told

# Memory: two requests need two pages each, so the second one waits from its row 64 on until the first has ended. It
# then has 62 new tokens. Its prompt is computed again, but reported only once.
before = settled(server)
made = server.post(COMPLETE, prompt="abc", max_tokens=110, n=2, ignore_eos=True, echo=True, logprobs=0)["choices"]
told = changes(server, before)
assert (told["num_preemptions_total"], told["num_passes_total"]) == (1, 110 + 48), told
assert told["generation_tokens_total"] == 220, told
assert [len(c["logprobs"]["tokens"]) for c in made] == [113] * 2, made
for _ in range(100):  # until a signal arrives during a request
    running = server.send(COMPLETE, prompt="a", max_tokens=110, ignore_eos=True)
    order("/pause")
    told = server.metrics()
    if told["num_requests_running"]: break
    order("/resume")
    received(running)
used = told["kv_cache_pages"] - told["kv_cache_free_pages"]
assert told["kv_cache_pages"] == PAGES and used in (1, 2) and told["kv_cache_usage_perc"] == used / PAGES, told
assert told["num_requests_running"] == 1 and told["num_requests_waiting"] == 0, told
order("/resume")
received(running)
server.idle()
assert server.metrics()["kv_cache_usage_perc"] == 0

# Logits that are not finite.
before = settled(server)
INFINITE = ("the model's logits are not finite after 121 tokens; check the model's parameters, or use a higher "
            "precision (--lane)")
failed(server, "POST", COMPLETE, 500, "server_error", "not_finite", INFINITE, {"prompt": "a" * 121, "max_tokens": 2})
event, = server.stream(COMPLETE, prompt="a" * 118, max_tokens=5, logit_bias={"97": 100})[-1:]
check_error(500, json.dumps(event), 500, "server_error", "not_finite", INFINITE)
told = changes(server, before)
assert told["corrupted_requests_total"] == told['request_success_total{finished_reason="error"}'] == 2, told

# ---- the names of all metrics

text = server.request("GET", "/metrics")[2].decode()
found = {name: (kind, about) for about, name,
    kind in re.findall(r"# HELP isotron:\S+ (.*)\n# TYPE isotron:(\S+) (\S+)\n", text)}
assert found == METRICS and text.count("# ") == 2 * len(METRICS), {*found.items()} ^ {*METRICS.items()}
LIMITS = "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 25 50 100 +Inf".split()
assert re.findall(r'e2e_request_latency_seconds_bucket\{le="(.*)"\}', text) == LIMITS, text
assert re.findall(r'request_success_total\{finished_reason="(.*)"\}', text) == ["stop", "length", "abort",
    "error"], text

# ---- the end

order("/pause")
whole = server.send(COMPLETE, **ASK)
server.wait(num_requests_waiting=1)
began = time.monotonic()
server.process.send_signal(signal.SIGTERM)
server.wait_for_signal()
assert get("/health") == {"status": "stopping"}
failed(server, "POST", COMPLETE, 503, "server_error", "stopping", ENDS, ASK)
assert server.metrics()["num_requests_waiting"] == 1
failed(server, "POST", "/resume", 503, "server_error", "not_allowed",
       "the server is shutting down: send the signal to another server")
got, _, text = received(whole)
check_error(got, text, 503, "server_error", "stopping", ENDS)
assert time.monotonic() - began > 1.9
out, err = server.process.communicate(timeout=20)
assert server.process.returncode == 0, (out, err)
assert "  the server ends when its requests have ended, or after 2 s\n" in err, (out, err)

# ---- a server without a key and control, which checks drafts

server = Server(WORK / "saved", "--fp64", "--speculative-model", WORK / "saved", "--num-speculative-tokens", 3,
                "--inference-dynamic-batching-buffer-size-gb", 0.02)
check_described(server, False, False)
assert server.line.endswith(" of the KV cache, 256 requests at a time\n"), server.line  # by default, and 1024 may wait
failed(server, "POST", COMPLETE, 400, "invalid_request_error", None,
       "the request has 1281 choices, but can have at most 1280: send several requests",
       {"prompt": ["a"] * 427, "n": 3}, "n")
for path, route in ROUTES.items():
    if route[2]:
        failed(server, route[0], path, 404, "not_found_error", None,
               f"this server has no path '{path}': start it with --enable-control")
judge = Judge(server)
greedy = {"prompt": "The e", "temperature": 0, "max_tokens": 9, "return_token_ids": True, "logit_bias": {}}
new = judge.check(COMPLETE, {**greedy, "logprobs": 1})["choices"][0]["token_ids"]
# A pass computes one token and checks up to three drafts, but none for the last token or after the end of a text.
last = max(range(1, 9), key=lambda i: new[i] not in new[:i])
for change, drafts, kept, passes in (({}, 6, 6, 3), ({"max_tokens": 2}, 0, 0, 2), ({"max_tokens": 1}, 0, 0, 1)):
    before = settled(server)
    server.post(COMPLETE, **greedy | change)
    told = changes(server, before)
    assert (told["spec_decode_num_draft_tokens_total"], told["spec_decode_num_accepted_tokens_total"],
            told["num_passes_total"]) == (drafts, kept, passes), (change, told)
end = {"logit_bias": {"97": 100, "98": 99}, "repetition_penalty": 100, "stop_token_ids": [98]}  # "a", then the end
before = settled(server)
assert server.post(COMPLETE, **greedy | end)["choices"][0]["token_ids"] == [97, 98]
told = changes(server, before)
assert (told["spec_decode_num_draft_tokens_total"], told["spec_decode_num_accepted_tokens_total"],
        told["generation_tokens_total"], told["num_passes_total"]) == (3, 0, 1, 2), told
before = settled(server)
server.post(COMPLETE, prompt="abc", max_tokens=2, ignore_eos=True, echo=True, logprobs=1)
told = changes(server, before)
assert (told["prompt_tokens_total"], told["generation_tokens_total"]) == (3, 2), told
# Without a seed, each request draws other texts.
unseeded = [server.post(COMPLETE, prompt="a", max_tokens=20) for _ in range(2)]
assert len({a["choices"][0]["text"] for a in unseeded}) == len({a["id"] for a in unseeded}) == 2, unseeded
# No token is allowed, before a text or after its first token.
before = settled(server)
none = {"prompt": "a", "allowed_token_ids": [97], "bad_words": ["aa"]}
NONE = ("no token may follow 2 tokens, because of 'allowed_token_ids', 'bad_words' or 'response_format': remove one of "
        "them")
failed(server, "POST", COMPLETE, 400, "invalid_request_error", "no_token_allowed", NONE, none)
part, event = server.stream(COMPLETE, **none)
assert part["choices"][0]["text"] == "a" and part["choices"][0]["finish_reason"] is None, part
check_error(400, json.dumps(event), 400, "invalid_request_error", "no_token_allowed", NONE)
assert changes(server, before)['request_success_total{finished_reason="abort"}'] == 2
server.end()

# ---- two replicas, each with a cache

server = Server(WORK / "saved", "--fp64", "--ranks", 2, "--enable-control", "--inference-max-requests", 3,
    "--max-queued-requests", 0,
                "--inference-dynamic-batching-buffer-size-gb", 0.02)
assert server.line.endswith(": a context of 160 tokens, 18 pages of the KV cache, 6 requests at a time\n"), server.line
pair = {"prompt": "ab" * 33, "max_tokens": 5, "n": 2, "ignore_eos": True}  # one choice for each replica
for hits in 0, 2 * model.PAGE:
    before = settled(server)
    assert before["kv_cache_pages"] == before["kv_cache_free_pages"] == 18, before
    server.post(COMPLETE, **pair)
    told = changes(server, before)
    assert (told["num_passes_total"], told["generation_tokens_total"], told["prompt_tokens_total"],
            told["prefix_cache_hits_total"]) == (5, 10, 2 * 66, hits), told
failed(server, "POST", COMPLETE, 400, "invalid_request_error", None,
       "the request has 7 choices, but can have at most 6: send several requests", {**pair, "n": 7}, "n")
for _ in range(100):  # until a signal arrives during a request
    running = server.send(COMPLETE, **{**pair, "max_tokens": 90})
    order("/pause")
    told = server.metrics()
    if told["num_requests_running"] > 1: break
    order("/resume")
    received(running)
assert told["num_requests_running"] == 2 and told["kv_cache_free_pages"] in (18 - 4, 18 - 6), told
order("/resume")
received(running)
server.end()

# ---- a tokenizer without a chat template and special tokens

server = Server(WORK / "saved", "--tokenizer-type", "ByteLevelTokenizer",
    "--inference-dynamic-batching-buffer-size-gb", 0.01,
                "--inference-max-requests", 16, "--inference-dynamic-batching-max-tokens", 20)
got, _, text = server.request("POST", CHAT, {"messages": [{"role": "u", "content": "a"}]})
error = json.loads(text)["error"]
assert (got, error["param"], error["code"]) == (400, "messages", "no_chat_template"), error
assert error["message"] == ("the tokenizer of this server has no chat template: send a 'prompt' instead, for example "
                            "to /v1/completions"), error
SEEN.add((400, "no_chat_template"))
info = get("/tokenizer_info", server)
assert info == {"max_model_len": POSITIONS, "bos_token": None, "eos_token": None, "pad_token": None}, info
got, _, text = server.request("PUT", API, {"prompts": ["a"], "add_BOS": True})
assert got == 400 and json.loads(text) == {"message":
    "the tokenizer has no token that begins a text: remove 'add_BOS'"}, text
twelve = {"type": "json_schema", "json_schema": {"schema": {"const": 12}}}  # its tokens have no names
assert server.post(COMPLETE, prompt="a", response_format=twelve)["choices"][0]["text"] == "12"
for length, passes in (20, 1), (21, 2):  # a pass has at most 20 tokens
    before = settled(server)
    server.post(COMPLETE, prompt="a" * length, max_tokens=1)
    assert changes(server, before)["num_passes_total"] == passes, length
server.end()

# ---- nothing is missing

code = "".join(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S) for path in (ROOT / "src/server").glob("*.c"))
arguments = re.findall(r'refuse\(\s*[^,;]+,\s*[^,;]+,\s*([^;]*?),\s*"', code)  # the third ones
codes = {*re.findall(r'"(\w+)"', " ".join(arguments))}
statuses = {int(status) for status in re.findall(r"\b[45]\d\d\b", code)}
assert codes == {c for _, c in SEEN} - {None}, codes ^ {c for _, c in SEEN}
assert statuses == {s for s, _ in SEEN}, statuses ^ {s for s, _ in SEEN}
assert HEADERS == {*re.findall(r'_add_response_header\(\s*response, (?:MHD_HTTP_HEADER_(?=[A-Z])|")([\w-]+)', code)}
