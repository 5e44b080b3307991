"""bench_host, which uses Google Benchmark, measures the ops and collectives that a filter selects, and adds provenance
to the result."""
from harness import *

program, result = pathlib.Path(PROGRAM).parent / "bench/bench_host", WORK / "result.json"
for row, counter in (("^norm/layer$", "GB/s"), ("^linear/fc1$", "GFLOP/s"),
                     ("^all_to_all/ranks:2/bytes:65536$", "GB/s"),
                     ("^send_recv/ranks:4/bytes:4096$", "GB/s")):
    filter = row.replace("$", "/real_time$")
    subprocess.run([program, f"--benchmark_filter={filter}", "--benchmark_min_time=0.01", f"--benchmark_out={result}"],
                   check=True, capture_output=True)
    report = json.loads(result.read_text())
    measured, = report["benchmarks"]
    assert measured["name"] + "$" == filter[1:] and measured[counter] > 0, measured
    assert report["context"]["commit"] and report["context"]["blas"], report["context"]
wrong = subprocess.run([program, "--nonsense"], capture_output=True, text=True)
assert wrong.returncode == 2 and "--nonsense" in wrong.stderr, wrong
