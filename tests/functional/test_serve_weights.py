"""serve loads another checkpoint into a paused or suspended engine. Later answers are those of a server that started
with it. A load that fails changes nothing. Answers state which weights computed them."""

from serving import *

data, saved, other, scaled = corpus(), WORK / "saved", WORK / "other", WORK / "scaled"
MODEL = ["--max-position-embeddings", 2**15, "--position-embedding-type", "rope", "--lr", "3e-2"]
FP64 = [*MODEL, "--mtp-num-layers", 1, "--fp64"]
FP8 = ["--fp8-format", "hybrid"]
pretrain(data, saved, *FP64, "--train-iters", 8, "--save-interval", 4)
pretrain(data, other, *FP64, "--train-iters", 3, "--ffn-hidden-size", 24)
pretrain(data, scaled, *MODEL, "--bf16", *FP8, "--train-iters", 4)
pretrain(data, scaled, *MODEL, "--bf16", "--train-iters", 8, "--load", scaled)  # without scales
OLD, NEW = (saved / f"iter_{n:07}" for n in (4, 8))
DAMAGED, UNNAMED = WORK / "damaged/iter_0000008", WORK / "renamed"
for copy in DAMAGED, UNNAMED: shutil.copytree(NEW, copy)
PIPED = WORK / "piped/iter_0000008"
PIPED.mkdir(parents=True)
os.mkfifo(PIPED / "manifest.json")
shard = sorted(DAMAGED.glob("shard_*.bin"))[-1]
content = bytearray(shard.read_bytes())
content[len(content) // 8] ^= 1  # in a parameter: the optimizer's state comes later
shard.write_bytes(content)
LOAD, TP = "/update_weights_from_disk", "--tensor-model-parallel-size"
PROMPT = "The prefix of this prompt is longer than one page, so that a later request finds it in the cache."
ASK = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1.3, "seed": 4, "n": 2, "logprobs": 3}
LONG = {"prompt": "Another prompt", "temperature": 1.3, "seed": 4, "ignore_eos": True, "return_token_ids": True}
WRONG = [({"model_path": str(path)}, code, part) for path, code, part in (
    (WORK / "missing", "not_loaded", "contains no checkpoint"),
    (other, "not_loaded", "; load a checkpoint of the same model"),
    (DAMAGED, "not_loaded", "is damaged: the bytes of tensor"), (PIPED, "not_loaded", "is a FIFO"),
    (UNNAMED, "not_loaded", "rename it"))] + [
    ({}, None, "'model_path' must be"), ({"model_path": ""}, None, "'model_path' must be"),
    ({"model_path": str(NEW), "keep_pause": False}, "unsupported", "'keep_pause'"),
    ({"model_path": str(NEW), "format": 1}, "unknown_field", "format")]


def state(server, **wanted):
    have = json.loads(server.request("GET", "/state")[2])
    assert have == {**have, **wanted}, (have, wanted)
    assert server.metrics()["weight_version"] == have["weight_version"]


def signals(server, *paths):
    for path in paths: assert server.request("POST", path)[0] == 200, path


def choices(answer, version=None):
    """Returns the texts and log-probabilities, all of which this version has computed (None: the answer states no
    version)."""
    assert answer.get("metadata") == (None if version is None else {"weight_version": version}), answer
    epochs = [c.pop("policy_epoch", None) for c in answer["choices"]]
    assert epochs == [None if version is None else [[0, version]]] * len(epochs), epochs
    return answer["choices"]


for load, (options, ranks, wrongs) in enumerate((
        ([], 0, WRONG), ([TP, 2], 0, WRONG[1:3]), (["--ranks", 2], 2, WRONG[2:3]),
        (["--quantization", "int8", "--num-speculative-tokens", 1], 0, WRONG[2:3]),
        (["--num-speculative-tokens", 1, "--speculative-model", OLD], 0, []), (FP8, 0, []))):
    if options is FP8: OLD, NEW = (scaled / f"iter_{n:07}" for n in (4, 8))
    start = lambda saved, *control: Server(saved, *options, *control, launcher=[
        sys.executable, ROOT / "tests/functional/launcher.py", ranks] if ranks else ())
    fresh = start(NEW)
    new = choices(fresh.post(COMPLETE, **ASK))
    assert fresh.request("POST", LOAD, {"model_path": str(OLD)})[0] == 404
    server = start(OLD, "--enable-control")
    old = choices(server.post(COMPLETE, **ASK), 0)
    assert old != new and server.post(COMPLETE, **ASK)["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    error = server.post(LOAD, 409, model_path=str(NEW))["error"]
    assert error["code"] == "not_allowed" and "while the engine is running" in error["message"], error
    state(server, state="running", weight_version=0)
    signals(server, "/pause", *["/sleep"] * (load % 2))
    for body, code, part in wrongs:
        error = server.post(LOAD, 400, **body)["error"]
        assert error["code"] == code and part in error["message"], (error, part)
        assert "--load" not in error["message"] and "--use" not in error["message"], error  # advice for a command line
    state(server, state="suspended" if load % 2 else "paused", weight_version=0)
    signals(server, *["/wake_up"] * (load % 2), "/resume")
    assert choices(server.post(COMPLETE, **ASK), 0) == old, options  # no load has changed a weight
    for n in 300, 3000, 30000:  # a busy machine pauses short requests too late
        plain = server.post(COMPLETE, **LONG, max_tokens=n)["choices"][0]["token_ids"]
        clients = [server.send(COMPLETE, **LONG, max_tokens=n, stream=stream) for stream in (True, False)]
        passes = server.metrics()["num_passes_total"]
        server.wait_for_pass(passes + 20)
        signals(server, "/pause")
        if server.metrics()["num_requests_running"] == 2: break
        signals(server, "/resume")
    signals(server, *["/sleep"] * (load % 2))
    answer = server.post(LOAD, model_path=str(NEW))
    assert answer == {"state": "suspended" if load % 2 else "paused", "weight_version": 1}, answer
    state(server, **answer)
    signals(server, *["/wake_up"] * (load % 2), "/resume")
    first = server.post(COMPLETE, **ASK)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, (options, first)
    assert choices(first, 1) == new, (options, first, new)
    # The requests that were running have tokens of the old weights, and continue as with the new ones.
    for client in clients:
        text = receive(client, b'"policy_epoch"', b'"finish_reason":"length"')
        [epochs] = re.findall(rb'"policy_epoch":(\[\[.*?\]\])', text)
        [[_, before], [at, after]] = json.loads(epochs)
        ids = sum(map(json.loads, re.findall(rb'"token_ids":(\[.*?\])', text)), [])
        prompt = json.loads(re.search(rb'"prompt_token_ids":(\[.*?\])', text)[1])
        assert (before, after, len(ids)) == (0, 1, n) and 0 < at < n and ids[:at] == plain[:at], (epochs, ids, plain)
        rest = fresh.post(COMPLETE, **{**LONG, "prompt": prompt + ids[:at]}, max_tokens=n - at)
        assert ids[at:] == rest["choices"][0]["token_ids"], (options, epochs, ids, rest)
    assert LOAD in json.loads(server.request("GET", "/openapi.json")[2])["paths"]
    # A load prints nothing: a pipe that is never read must not block the engine.
    said = [each.end().count("\n") for each in (server, fresh)]
    assert said[0] <= said[1], said
print("serve loads new weights")
