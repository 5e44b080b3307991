"""serve under load for some minutes: clients read streams to the end, disconnect halfway, reset their connection, send
half a request, or never read. No text may be lost or wrong, and at the end, no page, descriptor or request may be in
use.

usage: soak_serve.py PROGRAM [--clients N] [--seconds S] [--seed N]"""
import argparse
import asyncio
import random
import resource

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("program")
parser.add_argument("--clients", type=int, default=1000)
parser.add_argument("--seconds", type=float, default=600)
parser.add_argument("--seed", type=int, default=1)
arguments = parser.parse_args()

from serving import *

OPTIONS.clear()
SEEDS, NEW, SILENT_S = 16, 40, 20
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
saved = WORK / "saved"
pretrain(corpus(), saved, "--train-iters", 40, "--lr", 1e-2, "--max-position-embeddings", 2**20,
         "--position-embedding-type", "none")
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.05, "--max-queued-requests", 4096)
descriptors = server.descriptors()
ASK = {"prompt": "The ", "max_tokens": NEW, "temperature": 1.5, "stream": True}
wanted = [joined(server.stream(COMPLETE, **ASK, seed=seed))[0] for seed in range(SEEDS)]
counts = {name: 0 for name in ("stream", "whole", "leave", "reset", "part", "silent")}
waits = []
r = random.Random(arguments.seed)


def resident():
    status = open(f"/proc/{server.process.pid}/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def head(body):
    text = json.dumps(body).encode()
    head = f"POST {COMPLETE} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


async def chat(kind):
    seed = r.randrange(SEEDS)
    body = {**ASK, "seed": seed, "stream": kind != "whole"}
    if kind == "silent": body |= {"max_tokens": 5000, "ignore_eos": True, "logprobs": 5}
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 12)
    try:
        writer.write(head(body)[:60] if kind == "part" else head(body))
        await writer.drain()
        if kind == "silent":
            writer.transport.pause_reading()
            return await asyncio.sleep(SILENT_S)
        if kind == "part": return await asyncio.sleep(r.random())
        if kind in ("leave", "reset"): return await reader.read(r.choice([1, 300, 3000]))
        first = await reader.read(1)
        waits.append(time.monotonic() - began)
        text = first + await reader.read()
        check(kind, seed, text)
    finally:
        if kind == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
        writer.close()
        counts[kind] += 1


def check(kind, seed, answer):
    assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
    body = answer.split(b"\r\n\r\n", 1)[1]
    if kind == "whole":
        assert json.loads(body)["choices"][0]["text"] == wanted[seed], body
        return
    events = [line[6:] for line in body.split(b"\r\n") for line in line.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]", events[-3:]
    assert joined([json.loads(e) for e in events[:-1]])[0] == wanted[seed], (seed, events)


async def client(until):
    while time.monotonic() < until:
        await chat(r.choices([*counts], [50, 10, 15, 10, 10, 5])[0])


async def load():
    until = time.monotonic() + arguments.seconds
    clients = [asyncio.create_task(client(until)) for _ in range(arguments.clients)]
    await asyncio.sleep(arguments.seconds / 2)
    half = await asyncio.to_thread(resident)
    await asyncio.gather(*clients)
    return half


before, ended = server.metrics(), server.reasons()
half = asyncio.run(load())
server.idle()
after = server.metrics()
reasons = {reason: n - ended[reason] for reason, n in server.reasons().items()}
for _ in range(400):
    if server.descriptors() == descriptors: break
    time.sleep(0.2)
tokens = after["generation_tokens_total"] - before["generation_tokens_total"]
waits.sort()
print(f"{arguments.clients} clients, {arguments.seconds:g} s: {counts}; {tokens / arguments.seconds:.0f} tokens/s; "
      f"the first byte after {waits[len(waits) // 2]:.2f} s (median), {waits[-1]:.2f} s (most); "
      f"{half:.0f} MiB resident at half time, "
      f"{resident():.0f} MiB at the end; {server.descriptors()} descriptors, {descriptors} before")
assert server.descriptors() == descriptors
assert reasons["error"] == 0 and reasons["stop"] + reasons["length"] >= counts["stream"] + counts["whole"], reasons
assert resident() < 1.05 * half, "the memory grows"
server.end()
