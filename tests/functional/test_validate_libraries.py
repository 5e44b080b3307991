"""isotron validate compares two NCCL libraries: one with another order of sums, one that is wrong, one that is slow."""
from validating import *

# Two libraries: B is another file with a fault.
OTHER = WORK / "libother.so"
shutil.copy(LIBRARY, OTHER)
BOTH = ["--ranks", 3, "--seconds", 1, "--nccl-a", LIBRARY, "--nccl-b", OTHER, "--only"]


def compared(stage, fault, expect):
    found, said = validate(*BOTH, stage, expect=expect, HOST_NCCL_FAULT=fault, HOST_NCCL_FAULT_IN="libother")
    assert not [e for e in found[stage]["evidence"] if e["verdict"] != "PASS"] and f"{stage:12} PASS " in said, said
    return found[stage]["b"], said


b, said = compared("collectives", "reverse", 0)
assert any("B differs bitwise from A in reduce_scatter fp32 (order of summation)" in e["text"] for e in b["evidence"]), said
b, said = compared("collectives", "half_sum", 1)
named(b, "NCCL 2.28.9", "it sums in 16 bits")
b, said = compared("speed", "slow:0:2", 1)
assert any("slower than A at all_reduce" in e["text"] for e in b["evidence"]) and b["verdict"] == "DEGRADED", said

# Each turn of a library is a new process, so that neither is warm when it is measured.
log = WORK / "communicators"
validate(*BOTH, "speed", HOST_NCCL_LOG=str(log))
processes = {line for line in log.read_text().splitlines()}
turns = {str(library): sum(line.startswith(f"{library}\t") for line in processes) for library in (LIBRARY, OTHER)}
assert turns == {str(LIBRARY): 2, str(OTHER): 2}, turns

# A library on which a stage does not end gets no second turn. The suspect is the library, by its version.
log.unlink()
FAULT = {"HOST_NCCL_FAULT": "error:40", "HOST_NCCL_FAULT_IN": "libother"}
b = validate(*BOTH, "collectives", expect=1, HOST_NCCL_LOG=str(log), **FAULT)[0]["collectives"]["b"]
named(b, "NCCL 2.28.9", "planted fault")
turns = [line.split("\t")[0] for line in {*log.read_text().splitlines()}]
assert turns.count(str(LIBRARY)) == 2 and turns.count(str(OTHER)) == 1, turns
