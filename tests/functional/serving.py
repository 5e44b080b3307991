"""Starts a server, and sends requests to it."""
import http.client
import os
import re
import signal
import socket
import threading
import time

from harness import *

NAME, POSITIONS = "small é", 32
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
TIMEOUT_S = 60  # for a slow machine with a sanitizer
STARTED = []
atexit.register(lambda: [server.kill() for server in STARTED])


class Server:
    def __init__(self, saved, *options, launcher=(), stderr=subprocess.PIPE):
        self.headers, self.connection = {}, None
        self.process = subprocess.Popen(
            [*map(str, [*launcher, PROGRAM, "serve", "--load", saved, "--host", "127.0.0.1", "--port", 0,
                        "--served-model-name", NAME, "--inference-dynamic-batching-block-size", 64,
                        "--batch-invariant-mode", *options, *OPTIONS])],
            stdout=subprocess.PIPE, stderr=stderr, text=True)
        STARTED.append(self.process)
        self.line = self.process.stdout.readline()
        assert self.line.startswith(f"serving {NAME} at http://127.0.0.1:"), (self.line, self.process.stderr.read())
        self.port = int(self.line.split("127.0.0.1:")[1].split(":")[0])

    def request(self, method, path, body=None, headers=None):
        """Returns (status, headers, body)."""
        connection = self.connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        connection.request(method, path, body if body is None or isinstance(body, (bytes, str)) else json.dumps(body),
                           self.headers if headers is None else headers)
        answer = connection.getresponse()
        text = answer.read()
        if connection is not self.connection: connection.close()
        return answer.status, answer.headers, text

    def keep(self):
        """Makes all requests use one connection from now on."""
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

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
        events = [event for event in events if event != ": waiting"]  # on a slow machine
        assert not end and events[-1] == "data: [DONE]", text
        assert all(event.startswith("data: {") and "\n" not in event for event in events[:-1]), text
        return [json.loads(event[6:]) for event in events[:-1]]

    def connect(self):
        """Returns a new socket that is connected to the server."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def send(self, path, **body):
        """Sends a request, and returns its socket."""
        text = json.dumps(body)
        client = self.connect()
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        client.sendall(f"POST {path} HTTP/1.1\r\n{headers}Host: a\r\nContent-Length: {len(text)}\r\n\r\n"
                       f"{text}".encode())
        return client

    def metrics(self):
        """Returns the samples of /metrics by name. Each must conform to Prometheus' text format, version 0.0.4."""
        sample = re.compile(r'((isotron:[a-z0-9_]+)(\{[a-z_]+="[^"\\]*"\})?) (\S+)')
        kinds, values = {}, {}
        for line in self.request("GET", "/metrics")[2].decode().removesuffix("\n").split("\n"):
            if line.startswith("# TYPE "):
                name, kind = line[7:].split(" ")
                assert name not in kinds and kind in ("counter", "gauge", "histogram"), line
                kinds[name] = kind
            elif not re.fullmatch(r"# HELP isotron:[a-z0-9_]+ [^\\]+", line):
                name, base, _, value = sample.fullmatch(line).groups()
                kind = kinds.get(base) or kinds[re.sub("_(bucket|sum|count)$", "", base)]
                assert (kind == "histogram") == (base not in kinds) and name not in values, line
                assert (kind == "counter") == base.endswith("_total"), line
                values[name] = float(value)
        for family in (name for name, kind in kinds.items() if kind == "histogram"):
            buckets = {float(name.split('"')[1]): n for name, n in values.items()
                       if name.startswith(f"{family}_bucket{{")}
            assert [*buckets] == sorted(buckets) and [*buckets.values()] == sorted(buckets.values()), buckets
            assert buckets[math.inf] == values[f"{family}_count"] and values[f"{family}_sum"] >= 0, values
        return {name.removeprefix("isotron:"): value for name, value in values.items()}

    def reasons(self):
        """Returns the numbers of texts that have ended, by reason."""
        return {name.split('"')[1]: n for name, n in self.metrics().items() if name.startswith("request_success_total")}

    def wait(self, **wanted):
        """Waits until metrics have these values."""
        poll(self.metrics, lambda have: all(have[name] == value for name, value in wanted.items()), wanted)

    def wait_for_pass(self, passes):
        poll(self.metrics, lambda have: have["num_passes_total"] >= passes, f"pass {passes}")

    def wait_for_signal(self):
        """Waits until the server has received SIGTERM."""
        poll(lambda: self.request("GET", "/health")[0], lambda status: status == 503, "status 503")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def idle(self):
        pages = self.metrics()["kv_cache_pages"]
        self.wait(num_requests_running=0, num_requests_waiting=0, kv_cache_free_pages=pages)

    def end(self, within=TIMEOUT_S):
        """Sends SIGTERM. The server must exit with status 0 in time. Returns what it has printed to stderr."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=within)
        assert self.process.returncode == 0, (self.process.returncode, out, err)
        return err


def poll(look, reached, wanted):
    """Waits until reached(look())."""
    until = time.monotonic() + TIMEOUT_S
    while not reached(have := look()):
        assert time.monotonic() < until, f"{wanted} is not reached: {have}"
        time.sleep(0.01)


def receive(client, *wanted):
    """Returns what a socket receives until all these texts have arrived. Without texts, receives until the connection
    ends."""
    text = b""
    while not wanted or any(part not in text for part in wanted):
        try:
            more = client.recv(1 << 20)
        except OSError as e:
            sys.exit(f"{e}: a client has received only {text}")
        if not more: break
        text += more
    assert all(part in text for part in wanted), f"the connection ended before {wanted}: {text}"
    return text


def received(client):
    """The status, headers and body of the answer that a socket receives."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    return answer.status, answer.headers, answer.read()


def joined(events, choice=0, chat=False):
    """Joins the texts of a choice's events, which end with one finish_reason. Returns (text, finish_reason)."""
    own = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == choice]
    texts = [c["delta"]["content"] if chat else c["text"] for c in own]
    assert [c["finish_reason"] is None for c in own] == [True] * (len(own) - 1) + [False], own
    return "".join(texts), own[-1]["finish_reason"]
