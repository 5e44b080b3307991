"""serve gives many clients the texts that each would get alone, releases the pages of clients that leave, and ends in
time after a signal."""
import re

from serving import *

KEY = "secret"
saved = WORK / "saved"
pretrain(corpus(), saved, "--train-iters", 40, "--lr", 1e-2, "--max-position-embeddings", 2**20,
         "--position-embedding-type", "none")
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.01, "--inference-max-requests", 16,
                "--inference-dynamic-batching-max-tokens", 20)
draw = {"prompt": "The ", "max_tokens": 20, "temperature": 1.5}

# ---- many clients

texts = [None] * 50


def client(i):
    texts[i] = joined(server.stream(COMPLETE, **{**draw, "seed": i % 10}))


threads = [threading.Thread(target=client, args=(i,)) for i in range(50)]
for t in threads: t.start()
for t in threads: t.join()
assert all(texts[i] and texts[i] == texts[i % 10] for i in range(50)), texts
assert [server.post(COMPLETE, **{**draw, "seed": i})["choices"][0]["text"] for i in range(10)] == [
    text for text, _ in texts[:10]]
server.idle()
many, told = [], server.metrics()["prompt_tokens_total"]
asking = threading.Thread(target=lambda: many.append(server.post(COMPLETE, **draw, seed=5, n=128)))
asking.start()  # requests that can end in time do so after a signal
server.wait(prompt_tokens_total=told + 128 * 4)
server.end()
asking.join()
assert len(many[0]["choices"]) == 128, many

# ---- clients that leave, and a full queue: one request runs for long in the only pages, the others wait

LONG = {"prompt": "a", "max_tokens": 100000, "ignore_eos": True}
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.08, "--inference-max-requests", 1,
                "--max-queued-requests", 1, "--api-key", KEY, "--shutdown-timeout", 1)
descriptors = server.descriptors()
for key in {}, {"Authorization": KEY}, {"Authorization": "Bearer secre"}, {"Authorization": "Bearer secretsecret"}:
    assert server.request("POST", COMPLETE, LONG, key)[0] == 401, key
server.headers = {"Authorization": f"Bearer {KEY}"}
for stream in False, True:
    running = server.send(COMPLETE, **LONG, stream=stream)
    server.wait(num_requests_running=1)
    waiting = server.send(COMPLETE, **LONG, stream=stream)
    server.wait(num_requests_running=1, num_requests_waiting=1)
    if stream:  # a comment tells the client that its request still waits
        text = receive(waiting, b": waiting\n\n")
        assert b"data:" not in text, text
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
partial = server.connect()
partial.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
partial.close()
server.idle()
reasons = server.reasons()
assert reasons == {"stop": 0, "length": 0, "abort": 5, "error": 0}, reasons

# Requests that a client sends without waiting for answers are answered in order.
client = server.connect()
bodies = [json.dumps({"prompt": "a", "max_tokens": n, "ignore_eos": True}) for n in range(1, 6)]
client.sendall("".join(f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}" for body in bodies).encode())
text = receive(client, b'"completion_tokens":5')
assert [int(n) for n in re.findall(rb'"completion_tokens":(\d)', text)] == [1, 2, 3, 4, 5], text
client.close()
server.idle()
poll(server.descriptors, lambda n: n == descriptors, descriptors)

# A signal: clients that read nothing or send nothing do not delay the end, and each request has an answer.
silent = server.connect()
partial = server.send(COMPLETE, prompt="a")
assert partial.recv(12) == b"HTTP/1.1 200"
partial.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
streamed = server.send(COMPLETE, **LONG, stream=True)
server.wait(num_requests_running=1)
whole = server.send(COMPLETE, **LONG)
server.wait(num_requests_waiting=1)
server.process.send_signal(signal.SIGTERM)
server.wait_for_signal()
assert server.request("POST", COMPLETE, LONG)[0] == 503
assert whole.recv(12) == b"HTTP/1.1 503"
out, err = server.process.communicate(timeout=20)
assert server.process.returncode == 0, (out, err)
text = receive(streamed)
assert b'data: {"error":' in text[-600:] and b"data: [DONE]" in text[-30:], text[-600:]

# Requests that take too long. The last one is in a pass that takes minutes; a signal does not wait for its end.
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.2, "--inference-dynamic-batching-max-tokens",
                60000, "--request-timeout", 1, "--shutdown-timeout", 1)
slow = server.connect()
slow.sendall(f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{{".encode())
streamed = server.send(COMPLETE, **LONG, stream=True)
assert server.post(COMPLETE, 504, **LONG)["error"]["code"] == "timeout"
text = receive(streamed, b"data: [DONE]")
assert b'"code":"timeout"' in text[-600:], text[-600:]
slow.sendall(b" ")
assert slow.recv(12) == b"HTTP/1.1 408"
server.idle()
whole = server.send(COMPLETE, prompt=[97] * 60000, max_tokens=1)
server.wait(prompt_tokens_total=60002)
server.end(within=10)
assert whole.recv(12) in (b"HTTP/1.1 503", b"HTTP/1.1 504")

# A full pipe, which is never read, does not delay the end.
reader, writer = os.pipe()
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.08, stderr=writer)
os.set_blocking(writer, False)
try:
    while os.write(writer, bytes(4096)): pass
except BlockingIOError:
    os.set_blocking(writer, True)
server.end(within=10)

told = isotron("serve", "--load", saved, "--inference-dynamic-batching-buffer-size-gb", 1e-5, expect=2)
assert "is less than one page of the KV cache" in told, told
for words, message in [
        (["--inference-dynamic-batching-block-size", 96], "must be a multiple of 64"),
        (["--inference-dynamic-batching-max-tokens", 255], "must be at least 256, the number of requests"),
        (["--inference-max-requests", 0], "must be from 1 to 4096")]:
    told = isotron("serve", "--load", saved, *words, expect=2)
    assert message in told, told
told = isotron("serve", "--load", saved, "--host", "no such host", expect=2)
assert "--host 'no such host' is not an address" in told, told
