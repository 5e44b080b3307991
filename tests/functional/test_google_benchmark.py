"""The programs that are written with Google Benchmark measure what a filter selects, with the provenance of the result."""
from harness import *

for name, row, counter in (("bench_ops", "^norm/layer$", "GB/s"), ("bench_ops", "^linear/fc1$", "GFLOP/s"),
                           ("bench_comm", "^all_to_all/ranks:2/bytes:65536$", "GB/s"), ("bench_comm", "^send_recv/ranks:4/bytes:4096$", "GB/s")):
    program, result = pathlib.Path(PROGRAM).parent / "bench" / name, WORK / "result.json"
    filter = row.replace("$", "/real_time$")
    subprocess.run([program, f"--benchmark_filter={filter}", "--benchmark_min_time=0.01", f"--benchmark_out={result}"], check=True, capture_output=True)
    report = json.loads(result.read_text())
    measured, = report["benchmarks"]
    assert measured["name"] + "$" == filter[1:] and measured[counter] > 0, measured
    assert report["context"]["commit"] and report["context"]["blas"], report["context"]
    wrong = subprocess.run([program, "--nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "--nonsense" in wrong.stderr, wrong
