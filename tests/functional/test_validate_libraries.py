"""isotron validate compares NCCL libraries: with one that sums in another order, and one that is wrong.
functional/validate_speed compares a slow library."""
import re

from validating import *

# Library B is a copy of library A in another file, with a fault.
OTHER = WORK / "libother.so"
shutil.copy(LIBRARY, OTHER)
BOTH = ["--ranks", 3, "--seconds", 3, "--nccl-a", LIBRARY, "--nccl-b", OTHER, "--only"]


def compared(stage, fault, expect):
    found, said = validate(*BOTH, stage, expect=expect, HOST_NCCL_FAULT=fault, HOST_NCCL_FAULT_IN="libother")
    assert not [e for e in found[stage]["evidence"] if e["verdict"] != "PASS"] and f"{stage:12} PASS " in said, said
    assert f"{int(expect == 0)} of 9 stages" in said, said  # a stage passes if both do
    return found[stage]["b"], said


b, said = compared("collectives", "reverse", 0)
assert any("B differs bitwise from A in reduce_scatter fp32 (order of summation)" in e["text"]
           for e in b["evidence"]), said
b, said = compared("collectives", "half_sum", 1)
named(b, "NCCL 2.28.9", "it sums in 16 bits")
assert "A: libhost_nccl.so      B: libother.so" in said, said

# Each library has one process for all stages, so that it is opened only once. Its rates are measured in two turns.
log = WORK / "communicators"
stages, said = validate(*BOTH, "speed,training", HOST_NCCL_LOG=str(log))
processes = [line.split("\t")[0] for line in {*log.read_text().splitlines()}]
assert sorted(processes) == sorted(map(str, (LIBRARY, OTHER))), processes
# For equal libraries, all rates are equal within the uncertainty of the samples, with one line for each class of rates.
for stage, names in (("speed", {"all_reduce", "link", "arrival"}), ("training", {"training"})):
    ratios = {r["name"]: r for r in stages[stage]["b"]["ratios"]}
    assert names <= {*ratios}, ratios
    assert all(r["low"] < r["ratio"] < r["high"] and r["low"] < 1.5 and r["high"] > 0.67
               for r in ratios.values()), ratios
    assert all(re.search(rf"^{name} +(equal within|B is) [0-9.e+]+ %", said, re.M) for name in names), said

# If a stage hangs with a library, it gets no second turn. The suspect is the library, named by its version.
log.unlink()
FAULT = {"HOST_NCCL_FAULT": "error:100", "HOST_NCCL_FAULT_IN": "libother"}
b = validate(*BOTH, "speed", expect=1, HOST_NCCL_LOG=str(log), **FAULT)[0]["speed"]["b"]
named(b, "NCCL 2.28.9", "planted fault")
turns = [line.split("\t")[0] for line in {*log.read_text().splitlines()}]
assert turns.count(str(LIBRARY)) == 1 and turns.count(str(OTHER)) == 1, turns

# The drills run on both libraries.
stages, said = validate(*BOTH, "hang")
assert stages["hang"]["b"]["verdict"] == "PASS" and re.search(r"^hang +PASS +PASS$", said, re.M), said
