"""Each field of a request reaches the answer: each field of src/server/fields.def has a row (fields/rows.py) for each
endpoint. For each value of a row, an oracle computes the whole answer, streamed or not. Values beyond the limits, and
those of another type, are refused with the field's name. Metrics count all these requests."""
from serving import *

sys.path.insert(0, str(ROOT / "tests/functional/fields"))
sys.dont_write_bytecode = True
import model
from judge import Judge, close
from rows import CHOICES, FORCED, PATHS, ROWS, Refused, declared

model.write(WORK / "hf")
isotron("convert", "--from-hf", WORK / "hf", "--save", WORK / "saved")
server = Server(WORK / "saved", "--fp64", "--inference-dynamic-batching-buffer-size-gb", 0.02,
    "--inference-max-requests",
                8, "--max-queued-requests", CHOICES - 8)
server.keep()
judge = Judge(server)
assert server.line.endswith(": a context of 160 tokens, 24 pages of the KV cache, 8 requests at a time\n"), server.line


def check_row(row, endpoint):
    path, found = PATHS[endpoint], []
    usual = None if row.needed else judge.check(path, row.body(endpoint, ...))
    for value in row.changes:
        answer = judge.check(path, row.body(endpoint, value))
        assert not any(close(answer, other) for other in [usual, *found]), (row.field, value, "has no effect")
        found.append(answer)
    for value in row.same:
        answer = judge.check(path, row.body(endpoint, value))
        for one in answer, usual: one.get("usage", {}).pop("prompt_tokens_details", None)
        assert close(answer, usual), (row.field, value, "has an effect")
    for value in row.all_accepted(): judge.check(path, row.body(endpoint, value))
    for one in row.all_refused(): judge.refused(path, row.body(endpoint, one.value), one, row.field)
    for value, forced, name in FORCED.get((endpoint, row.field), []): judge.check(path, row.body(endpoint, value),
        forced, name)


rows = [(endpoint, row.field) for row in ROWS for endpoint in row.endpoints]
assert sorted(rows) == sorted(declared()), {*rows} ^ {*declared()} or "a field has two rows"
for row in ROWS:
    for endpoint in row.endpoints: check_row(row, endpoint)
for path in PATHS.values():
    judge.refused(path, {"unknown": 1}, Refused(1, "the server does not know the field 'unknown': remove it",
        code="unknown_field"), "unknown")
    for body, text in (b"{", "not valid JSON: line 1"), (b"[]", "must be a JSON object"), (b"", "not valid JSON"), (
            b'{"prompt": "\xff"}', "not valid JSON"), (b'{"prompt":"a","prompt":"b"}', "not valid JSON"):
        judge.refused(path, body, Refused(body, text, param=None), None)

server.idle()
told, n = server.metrics(), judge.counts
WANTED = {"prompt_tokens_total": n["prompt"], "prefix_cache_queries_total": n["prompt"],
    "prefix_cache_hits_total": n["hits"],
          **{f'request_success_total{{finished_reason="{name}"}}': n.get(name, 0) for name in ("stop", "length",
          "abort", "error")},
          "request_queue_time_seconds_count": n["choices"], "time_to_first_token_seconds_count": n["begun"],
          "inter_token_latency_seconds_count": n["later"], "e2e_request_latency_seconds_count": n["choices"]}
for name, value in WANTED.items(): assert told[name] == value, (name, told[name], value)
server.end()
