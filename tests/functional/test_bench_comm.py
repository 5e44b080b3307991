"""isotron bench comm: its columns are consistent, its check detects planted faults of NCCL, and invalid arguments are
refused."""
import os
import re

from harness import *

FAST = ["--seconds", "1e-3", "--min-bytes", 64, "--max-bytes", "64K", "--step-factor", 32]
NAMES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"]


def bench(*options, expect=0):
    out = isotron("bench", "comm", *FAST, "--json", WORK / "comm.json", *options, expect=expect)
    return out, json.loads((WORK / "comm.json").read_text())


def places(row):
    return [row[key] for key in ("out_of_place", "in_place") if key in row]


# For every collective and dtype, the bus bandwidth follows the formulas of nccl-tests, and each member has a whole
# number of elements.
for ranks, group in ((2, 2), (3, 3), (6, 2)):
    out, result = bench("--ranks", ranks, "--group-size", group, "--dtype", *"fp64 fp32 bf16 fp16 int64 int32".split())
    assert [result[name] for name in ("ranks", "group", "per_host")] == [ranks, group, group]
    assert result["provenance"]["commit"]
    assert [name for name in NAMES if any(row["collective"] == name for row in result["rows"])] == NAMES
    for row in result["rows"]:
        factor = {"all_reduce": 2 * (group - 1) / group, "broadcast": 1, "send_recv": 1}.get(row["collective"],
                                                                                             (group - 1) / group)
        assert places(row) and row["bytes"] % row["count"] == 0, row
        for place in places(row):
            assert place["wrong"] == 0 and abs(place["busbw"] / place["algbw"] / factor - 1) < 1e-5, row
            assert abs(place["algbw"] * place["us"] * 1e3 / row["bytes"] - 1) < 1e-4, row
    said = dict(words.split() for words in re.search("highest busbw in GB/s: (.*)", out)[1].split(", "))
    best = {name: max(place["busbw"] for row in result["rows"] if row["collective"] == name for place in places(row))
            for name in NAMES}
    assert said == {name: f"{rate:.2f}" for name, rate in best.items()}, (best, out)
    assert f"{ranks // group} concurrent groups of {group}" in out or group == ranks, out

# NCCL with planted faults.
library = ["--nccl-library", pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so", "--ranks", 4, "--dtype", "fp32"]
out, result = bench(*library)
assert "transport: NCCL 2.28.9" in out, out
assert not any(place["wrong"] for row in result["rows"] for place in places(row)), out
os.environ["HOST_NCCL_FAULT"] = "drop_tail"
out, result = bench(*library, "--collective", "all_gather", expect=1)
for row in result["rows"]:
    # With this fault, a member's last 8 elements are those of the last member; only that member's are correct.
    least = min(8, row["count"])
    assert least <= row["out_of_place"]["wrong"] <= 4 * 8, row
assert "elements are wrong" in out, out
os.environ["HOST_NCCL_FAULT"] = "half_sum"
out, result = bench(*library, "--collective", "all_reduce", "reduce_scatter", expect=1)
assert all(place["wrong"] >= row["count"] for row in result["rows"] for place in places(row)), result["rows"]
del os.environ["HOST_NCCL_FAULT"]

for words, message in (
        (["--ranks", 1], "set --ranks N, from 2 to 256"),
        ([], "set --ranks N, from 2 to 256"),
        (["--ranks", 4, "--group-size", 3], "does not divide 4 ranks"),
        (["--ranks", 4, "--group-size", 1], "does not divide 4 ranks"),
        (["--ranks", 2, "--min-bytes", "4X"], "--min-bytes expects a size"),
        (["--ranks", 2, "--max-bytes", "99999999999G"], "--max-bytes expects a size"),
        (["--ranks", 2, "--min-bytes", "1M"], "--min-bytes is larger than --max-bytes"),
        (["--ranks", 2, "--min-bytes", 1, "--max-bytes", 2], "all_reduce of fp32 on 2 ranks needs at least 4 bytes"),
        (["--ranks", 2, "--min-bytes", 3, "--max-bytes", 5], "the largest size to measure is 3: raise --max-bytes"),
        (["--ranks", 8, "--collective", "all_gather", "--dtype", "fp64", "--min-bytes", 8, "--max-bytes", 32],
         "all_gather of fp64 on 8 ranks needs at least 64 bytes, but the largest size to measure is 8"),
        (["--ranks", 2, "--collective", "reduce"], "--collective 'reduce': choose from all_reduce"),
        (["--ranks", 2, "--dtype", "fp32,fp8"], "--dtype 'fp8': choose from"),
        (["--ranks", 2, "--seconds", 0], "--seconds must be above 0"),
        (["--ranks", 2, "--seconds", 1e300], "--seconds must be above 0 and at most 1000000"),
        (["--ranks", 2, "--step-factor", 1], "--step-factor must be at least 2"),
        (["--ranks", 2, "--nccl-library", "nowhere.so"], "NCCL cannot be loaded"),
        (["--ranks", 2, "--num-layers", 2], "--num-layers"),
):
    said = isotron("bench", "comm", *FAST, *words, expect=2)
    assert message in said, (words, said)
# Counts depend on the number of members of a group, not of all ranks.
assert bench("--ranks", 4, "--group-size", 2, "--collective", "all_gather", "--min-bytes", 8,
             "--max-bytes", 8)[1]["rows"][0]["count"] == 1
# The memory check counts the buffers of all ranks; processes need a third buffer.
for ranks, most, need in ((2, "1048576G", "4.0 PiB"), (3, "1048576G", "6.0 PiB"), (4, "4096G", "32.0 TiB")):
    said = isotron("bench", "comm", "--ranks", ranks, "--max-bytes", most, expect=2)
    assert f"the ranks' buffers need {need} of memory, but " in said, said
    assert "are available: lower --max-bytes" in said, said
launched = [sys.executable, ROOT / "tests/functional/launcher.py", 2, PROGRAM, "bench", "comm",
            "--max-bytes", "1048576G"]
said = subprocess.run([*map(str, launched)], capture_output=True, text=True).stderr
assert said.count("\n") == 1 and "the ranks' buffers need 6.0 PiB of memory" in said, said
for size, wanted in ((0, "a size such as 64, 4K or 1M"), (-5, "a size such as 64, 4K or 1M"), ("", "a value")):
    said = isotron("bench", "comm", "--ranks", 2, "--max-bytes", size, expect=2)
    assert f"--max-bytes expects {wanted}, not '{size}'" in said and said.count("\n") == 1, said
