"""Sends requests to a server, and compares its answers with the oracle's. Counts what the server's metrics must then
report."""
import json
import math
import re
import sys
import time

import model
from oracle import API, CHAT, COMPLETE, UPDATE, Oracle
from program import ARITHMETIC, U
from rows import FORCED, NAME, PATHS, Refused


BOUND = U["fp64"] * ARITHMETIC  # the bound of other values of fp64, such as losses


def close(a, b):
    """Whether two JSON values are equal, except for the rounding of log-probabilities."""
    if isinstance(a, float) and isinstance(b, float): return math.isclose(a, b, rel_tol=BOUND, abs_tol=BOUND)
    return not difference(a, b) if type(a) is type(b) and isinstance(a, (dict, list)) else type(a) is type(b) and a == b


def difference(a, b, where=""):
    """The first place where two JSON values differ, or an empty text."""
    if type(a) is not type(b) or not isinstance(a, (dict, list)):
        return "" if close(a, b) else f"{where}: {a!r} and {b!r}"
    if isinstance(a, dict) and a.keys() != b.keys():
        return f"{where}: keys {sorted(a.keys() ^ b.keys())} are in one of them"
    if len(a) != len(b): return f"{where}: {len(a)} and {len(b)} elements"
    keys = a if isinstance(a, dict) else range(len(a))
    return next(filter(None, (difference(a[k], b[k], f"{where}/{k}") for k in keys)), "")


def plain(x):
    """The value with Python's numbers instead of numpy's."""
    if isinstance(x, dict): return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)): return [plain(v) for v in x]
    return x.item() if isinstance(x, model.np.generic) else x


def without(json_, *names): return {name: x for name, x in json_.items() if name not in names}


def is_streamed(path, body):
    return (path.startswith("/v1/") and body.get("prompt_logprobs") is None and
            (body.get("best_of") or 1) <= (body.get("n") or 1))


def check_events(path, body, events, wanted):
    """Checks each event of a stream, and returns the choices that the events form together. The body has the option
    include_usage; with return_token_ids, also continuous_usage_stats."""
    *events, last = events
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    same = {"object": kind, "model": NAME, "id": last["id"], "created": last["created"]}
    assert last == {**same, "choices": [], "usage": wanted["usage"]}, last
    choices, counted = {}, 0
    for e in events:
        assert without(e, "choices", "usage") == same, e
        part, = e["choices"]
        if body.get("return_token_ids"):
            counted += len(part["token_ids"])
            assert e["usage"]["completion_tokens"] >= counted if len(wanted["choices"]) > 1 else e["usage"] == {
                **wanted["usage"], "completion_tokens": counted,
                "total_tokens": wanted["usage"]["prompt_tokens"] + counted}, (e, counted)
        else:
            assert e["usage"] is None, e
        one = choices.setdefault(part["index"], part)
        if "delta" in part:
            message = part["message"] = part.pop("delta")
            assert ("role" in message) == (one is part), e
            for i, call in enumerate(message.get("tool_calls", [])): assert call.pop("index") == i, e
        if one is part: continue
        assert one["finish_reason"] is one["stop_reason"] is None, (one, e)
        assert one.keys() - {"prompt_token_ids"} == part.keys(), (one, part)
        if "text" in one: one["text"] += part["text"]
        for name, value in part.get("message", {}).items():
            one["message"][name] = value if name == "tool_calls" else (one["message"][name] or "") + (value or "")
        for name, values in (part["logprobs"] or {}).items(): one["logprobs"][name] += values
        if "token_ids" in one: one["token_ids"] += part["token_ids"]
        one["finish_reason"], one["stop_reason"] = part["finish_reason"], part["stop_reason"]
    for one in choices.values():
        if "tool_calls" in one.get("message", {}): one["message"]["content"] = one["message"]["content"] or None
    return [choices[i] for i in sorted(choices)]


class Judge:
    """counts: the sums of what the requests so far add to metrics."""

    def __init__(self, server):
        self.server, self.oracle, self.counts = server, Oracle(NAME), {}

    def request(self, path, body):
        status, headers, text = self.server.request("PUT" if path == API else "POST", path, body)
        return status, headers, json.loads(text) if headers["Content-Type"] == "application/json" else text

    def count(self, **more):
        for name, n in more.items(): self.counts[name] = self.counts.get(name, 0) + n

    def count_choices(self):
        for cached, choices in zip(self.oracle.cached, self.oracle.made):
            for c in choices:
                self.count(prompt=len(c.prompt), hits=cached, choices=1, begun=len(c.new) > 0,
                           later=max(len(c.new) - 1, 0), **{c.reason: 1})

    def whole(self, path, body, wanted):
        status, headers, got = self.request(path, body)
        assert status == 200, (path, body, got)
        if path in (COMPLETE, CHAT):
            assert abs(got.pop("created") - time.time()) < 60, got
            assert headers["X-Request-Id"] == got["id"], headers
            kind, _, number = got.pop("id").partition("-")
            assert kind == ("chatcmpl" if path == CHAT else "cmpl") and re.fullmatch("[0-9a-f]{16}", number), kind
        return got

    def streamed(self, path, body, wanted):
        options = {"include_usage": True, "continuous_usage_stats": bool(body.get("return_token_ids"))}
        events = self.server.stream(path, **without(body, "stream", "stream_options"), stream_options=options)
        return {**without(wanted, "choices"), "choices": check_events(path, body, events, wanted)}

    def check(self, path, body, forced=None, name=None):
        """Asserts that the server's answer is the oracle's, and returns it. For `forced` and `name`, see FORCED."""
        calls = {"content": None, "tool_calls": [{"type": "function", "function": {
            "name": name, "arguments": '{"c": "B"}'}}]} if name else None
        for ask in (self.whole, self.streamed) if is_streamed(path, body) else (self.whole,):
            wanted = plain(self.oracle.reply(path, body, model.encode(forced) if forced else None, calls))
            got = ask(path, body, wanted)
            if path in (COMPLETE, CHAT, API): self.count_choices()
            ids = [call.pop("id") for c in got.get("choices", [])
                   for call in c.get("message", {}).get("tool_calls", [])]
            assert all(len(i) == 9 and i.isalnum() for i in ids) and len({*ids}) == len(ids), ids
            told = difference(got, wanted)
            if told: sys.exit(f"{path} {ask.__name__} {body}\n{told}\n got {got}\nwant {wanted}")
        return wanted

    def refused(self, path, body, one, field):
        status, _, got = self.request(path, body)
        about = f"{path} {str(body)[:500]}\n got {status} {got}\nwant {one}"
        assert status == one.status and (path == UPDATE or "isotron-functional" not in str(got)), about  # no local path
        if path == API:
            assert got.keys() == {"message"} and one.text in got["message"], about
            return
        kind = {404: "not_found_error", 500: "server_error"}.get(status, "invalid_request_error")
        error = {"type": kind, "code": one.code, "param": field if one.param == "" else one.param}
        assert got.keys() == {"error"} and without(got["error"], "message") == error, about
        assert one.text in got["error"]["message"], about

    def check_row(self, row, endpoint):
        """Checks all values of a row for an endpoint."""
        path, found = PATHS[endpoint], []
        usual = None if row.needed else self.check(path, row.body(endpoint, ...))
        for value in row.changes:
            answer = self.check(path, row.body(endpoint, value))
            assert not any(close(answer, other) for other in [usual, *found]), (row.field, value, "has no effect")
            found.append(answer)
        for value in row.same:
            answer = self.check(path, row.body(endpoint, value))
            for one in answer, usual:
                one.get("usage", {}).pop("prompt_tokens_details", None)
                one.pop("weight_version", None)
            assert close(answer, usual), (row.field, value, "has an effect")
        for value in row.all_accepted(): self.check(path, row.body(endpoint, value))
        for one in row.all_refused(): self.refused(path, row.body(endpoint, one.value), one, row.field)
        for value, forced, name in FORCED.get((endpoint, row.field), []):
            self.check(path, row.body(endpoint, value), forced, name)

    def check_bodies(self, path):
        """Asserts that the path refuses unknown fields, and bodies that are not a JSON object."""
        unknown = Refused(1, "the server does not know the field 'unknown': remove it", code="unknown_field")
        self.refused(path, {"unknown": 1}, unknown, "unknown")
        for body, text in (b"{", "the body as JSON: line 1"), (b"[]", "must be a JSON object"), (
                b"", "the body as JSON"), (
                b'{"prompt": "\xff"}', "the body as JSON"), (b'{"prompt":"a","prompt":"b"}', "duplicate object key"), (
                b"\xef\xbb\xbf{}", "the body as JSON"), (b'{"prompt":"\\ud800"}', "invalid Unicode"), (
                b'{"prompt":NaN}', "invalid token"), (b'{"prompt":-Infinity}', "invalid token"), (
                b'{"prompt":1e400}', "overflow"), (b'{"prompt":' + b"9" * 99 + b"}", "too big integer"), (
                b'{"prompt":' + b"[" * 10000 + b"]" * 10000 + b"}", "maximum parsing depth"), (b"{}{}", "end of file"):
            self.refused(path, body, Refused(body, text, param=None), None)
