"""serve answers on several ranks what it answers on one. SIGTERM ends all ranks. If a rank is lost, requests are
answered before the server ends with a message that names the rank."""

from serving import *

data, saved = corpus(), WORK / "saved"
EXPERTS = ["--num-experts", 4, "--moe-router-topk", 2, "--moe-router-load-balancing-type", "none"]
pretrain(data, saved, *EXPERTS, "--max-position-embeddings", 2**15, "--position-embedding-type", "rope")
ASK = {"prompt": ["The ", "A rank", "No"], "max_tokens": 12, "temperature": 1.3, "seed": 4, "n": 2, "logprobs": 3,
       "echo": True}
LONG = {"prompt": "a", "max_tokens": 30000, "ignore_eos": True}
TP, PP, EP = (f"--{name}-model-parallel-size" for name in ("tensor", "pipeline", "expert"))


def launcher(ranks):
    return [sys.executable, ROOT / "tests/functional/launcher.py", ranks]


# The monotonic clocks of ranks differ by 10 s if the system permits it.
SHIFT = ["sh", "-c", 'exec unshare -Ur -T --monotonic $((10 * RANK)) --boottime $((10 * RANK)) "$0" "$@"']
shifts = shutil.which("unshare") and not subprocess.run([*SHIFT, "true"], env={**os.environ, "RANK": "1"},
                                                        capture_output=True).returncode


def rank_of(server, rank):
    """The process of a rank that a launcher has started."""
    for child in map(int, os.popen(f"pgrep -P {server.process.pid}").read().split()):
        if f"RANK={rank}" in open(f"/proc/{child}/environ").read().split("\0"): return child
    sys.exit(f"there is no rank {rank}")


server = Server(saved, "--fp64")
wanted = server.post(COMPLETE, **ASK)["choices"]
text, reason = joined(server.stream(COMPLETE, prompt="The ", max_tokens=12, seed=4))
server.end()
assert len({c["text"] for c in wanted}) == 6, wanted

# The requests of the three ranks that are not first differ in the layouts: of a stage, of a replica or of experts.
for options, ranks, bitwise in (([PP, 2], 0, True), (["--ranks", 3], 0, True), ([EP, 2, "--ranks", 2], 0, True),
                                ([PP, 2, "--ranks", 4], 4, True), ([TP, 2], 2, False)):
    server = Server(saved, "--fp64", *options, launcher=[*launcher(ranks), *(SHIFT if shifts else [])] if ranks else ())
    for _ in range(2):
        found = server.post(COMPLETE, **ASK)["choices"]
        assert [c["text"] for c in found] == [c["text"] for c in wanted], (options, found, wanted)
        assert not bitwise or found == wanted, (options, found, wanted)
    assert joined(server.stream(COMPLETE, prompt="The ", max_tokens=12, seed=4)) == (text, reason), options
    assert server.post(COMPLETE, 400, prompt="a", max_tokens=2**20)["error"]["message"], options
    long = [server.send(COMPLETE, **LONG, stream=True) for _ in range(5)]
    for client in long: assert client.recv(12) == b"HTTP/1.1 200", options
    for client in long: client.close()
    server.idle()  # aborted on all ranks
    server.end()

# Control: a request continues with the same text after its engines have been paused and suspended.
OFFLOAD = ["--rl-kv-cache-management-mode", "offload"]
for options, ranks in ([], 0), ([], 2), ([PP, 2], 0), (OFFLOAD, 0), (OFFLOAD, 2):
    server = Server(saved, "--fp64", "--enable-control", *options, launcher=launcher(ranks) if ranks else ())
    state = lambda: json.loads(server.request("GET", "/state")[2])["state"]
    for n in 300, 3000, 30000:  # a busy machine pauses short requests too late
        ask = {"prompt": "The ", "max_tokens": n, "seed": 4, "ignore_eos": True}
        plain = server.post(COMPLETE, **ask)["choices"]
        passes, client = server.metrics()["num_passes_total"], server.send(COMPLETE, **ask)
        server.wait_for_pass(passes + 10)
        assert server.request("POST", "/pause")[0] == 200
        if server.metrics()["num_requests_running"]: break
        assert server.request("POST", "/resume")[0] == 200
    else:
        sys.exit(f"{options}: no request was running when the server was paused")
    for path, after in ("/pause", "paused"), ("/pause", "paused"), ("/sleep", "suspended"), ("/pause", "suspended"), (
            "/wake_up", "paused"), ("/sleep", "suspended"), ("/wake_up", "paused"), ("/resume", "running"):
        allowed = {"running": set(), "paused": {"/sleep", "/resume"}, "suspended": {"/wake_up"}}[state()]
        for wrong in {"/resume", "/sleep", "/wake_up"} - allowed:
            status, _, text = server.request("POST", wrong)
            error = json.loads(text)["error"]
            assert (status, error["code"]) == (409, "not_allowed"), error
            assert f"while the engine is {state()}" in error["message"], error
        before = server.metrics()
        got, _, text = server.request("POST", path)
        assert got == 200 and json.loads(text)["state"] == after == state(), (path, text)
        passes = server.metrics()["num_passes_total"]
        if after != "running": assert passes == server.metrics()["num_passes_total"], path
        if after == "suspended" and not ranks:  # one replica
            free = before["kv_cache_free_pages" if options == OFFLOAD else "kv_cache_pages"]
            assert server.metrics()["kv_cache_free_pages"] == free, before
    status, _, answer = received(client)
    assert status == 200 and json.loads(answer)["choices"] == plain, (options, answer, plain)
    assert (server.metrics()["num_preemptions_total"] > 0) == (options != OFFLOAD), options  # computed again
    assert server.request("POST", "/pause", b"{}")[0] == 400 and state() == "running"
    paths = json.loads(server.request("GET", "/openapi.json")[2])["paths"]
    assert {"/pause", "/resume", "/sleep", "/wake_up", "/state"} <= paths.keys(), paths.keys()
    assert [server.request("POST", path)[0] for path in ("/pause", "/sleep")] == [200, 200]
    server.end()  # a suspended server ends

# Prompts that come again in another order find their prefixes only if these choose the replica.
long = [letter * 70 for letter in "ab"]
asks = [{**ASK, "prompt": prompts, "n": 1, "max_tokens": 4, "echo": False} for prompts in (long, long[::-1])]
answers = []
for policy, cached in ("load_balanced", 0), ("first_prefix_block", 128), ("longest_prefix", 128):
    server = Server(saved, "--fp64", "--ranks", 2, "--inference-dynamic-batching-prefix-caching-coordinator-policy",
                    policy)
    answers.append([server.post(COMPLETE, **ask) for ask in asks])
    found = answers[-1][1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert found == server.metrics()["prefix_cache_hits_total"] == cached, (policy, found)
    assert [a["choices"] for a in answers[-1]] == [a["choices"] for a in answers[0]], (policy, answers)
    server.end()

# A signal that only the last rank gets ends all ranks, and the request that runs is answered.
server = Server(saved, "--shutdown-timeout", TIMEOUT_S, launcher=launcher(3))  # long enough for a busy machine
client = server.send(COMPLETE, **{**LONG, "max_tokens": 500})
server.wait_for_pass(5)
os.kill(rank_of(server, 2), signal.SIGTERM)
out, err = server.process.communicate(timeout=2 * TIMEOUT_S)
assert server.process.returncode == 0 and "the server ends when its requests have" in err, (out, err)
status, _, answer = received(client)
assert status == 200 and b'"completion_tokens":500' in answer, answer

# A rank is killed while it computes: streams end with an error event, and other requests get status 503.
for ranks, lost in (2, 1), (3, 1), (3, 2):
    server = Server(saved, launcher=launcher(ranks))
    clients = [server.send(COMPLETE, **LONG, stream=streams) for streams in (True, False, True)]
    for client in clients[::2]: assert client.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 200"
    server.wait(num_requests_running=3)
    os.kill(rank_of(server, lost), signal.SIGKILL)
    answers = [receive(client).decode() for client in clients]
    out, err = server.process.communicate(timeout=TIMEOUT_S)
    assert server.process.returncode not in (0, None), (server.process.returncode, err)
    assert f"rank {lost} has ended" in err, err
    for answer in answers[0], answers[2]:
        assert answer.startswith("HTTP/1.1 200") and '{"error":' in answer and "[DONE]" in answer, answer[-500:]
    assert answers[1].startswith("HTTP/1.1 503") and '"error"' in answers[1], answers[1]

# A launcher's processes must have the same layout as the options.
done = subprocess.run([*map(str, [*launcher(2), PROGRAM, "serve", "--load", saved, "--ranks", 3])], capture_output=True,
                      text=True)
assert done.returncode == 2 and "--ranks 3 differs from the 2 processes" in done.stderr, done
told = isotron("serve", "--load", saved, PP, 2, "--num-speculative-tokens", 2, "--speculative-model", saved, expect=2)
assert "speculation does not support pipeline parallelism" in told, told
print("serve answers on several ranks", "" if shifts else "(their clocks are equal)")
