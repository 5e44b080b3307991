"""Each field of a request reaches the answer: each field of src/server/fields.def has a row (fields/rows.py) for each
endpoint. For each value of a row, an oracle computes the whole answer, streamed or not. Values beyond the limits, and
those of another type, are refused with the field's name. Metrics count all these requests."""
import needs_numpy
from serving import *

sys.path.insert(0, str(ROOT / "tests/functional/fields"))
sys.dont_write_bytecode = True
import model
from judge import Judge
from oracle import UPDATE
from rows import CHOICES, PATHS, ROWS, declared

model.write(WORK / "hf")
isotron("convert", "--from-hf", WORK / "hf", "--save", WORK / "saved")
server = Server(WORK / "saved", "--fp64", "--inference-dynamic-batching-buffer-size-gb", 0.02,
                "--inference-max-requests", 8, "--max-queued-requests", CHOICES - 8)
server.keep()
judge = Judge(server)
assert server.line.endswith(": a context of 160 tokens, 24 pages of the KV cache, 8 requests at a time\n"), server.line

rows = [(endpoint, row.field) for row in ROWS for endpoint in row.endpoints]
assert sorted(rows) == sorted(declared()), {*rows} ^ {*declared()} or "a field has two rows"
for row in ROWS:
    for endpoint in row.endpoints:
        if endpoint != "W": judge.check_row(row, endpoint)  # W: functional/serve_answers
for path in {*PATHS.values()} - {UPDATE}: judge.check_bodies(path)

server.idle()
told, n = server.metrics(), judge.counts
WANTED = {"prompt_tokens_total": n["prompt"], "prefix_cache_queries_total": n["prompt"],
          "prefix_cache_hits_total": n["hits"],
          **{f'request_success_total{{finished_reason="{name}"}}': n.get(name, 0) for name in (
              "stop", "length", "abort", "error")},
          "request_queue_time_seconds_count": n["choices"], "time_to_first_token_seconds_count": n["begun"],
          "inter_token_latency_seconds_count": n["later"], "e2e_request_latency_seconds_count": n["choices"]}
for name, value in WANTED.items(): assert told[name] == value, (name, told[name], value)
server.end()
