"""isotron validate names a slow link, a slow rank, a late rank, a slow library, and rates that were higher in the good
run."""
import re

from validating import *

ONLY = ["--ranks", 3, "--seconds", 1, "--only"]
only("link 1-2", "it is slow", *ONLY, "speed", *NCCL, HOST_NCCL_FAULT="link:1:2:10")
only("rank 2", "all of its links are slow", *ONLY, "speed", *NCCL, HOST_NCCL_FAULT="rank:2:4")
only("rank 1", "it arrives late", *ONLY, "speed", program=FAULTY, FAULTY="slow 1 2")

# The good run was a hundred times faster. A CPU may be busy, so this does not change the verdict.
report = json.loads((WORK / "v.json").read_text())
report["verdict"] = "PASS"
for metric in report["stages"][0]["metrics"]:
    metric["samples"] = [100 * x for x in metric["samples"]]
(WORK / "good.json").write_text(json.dumps(report))
stages, said = validate(*ONLY, "speed", "--good", WORK / "good.json", "--allow", "50%", expect=4)
named(stages["speed"], "all_reduce 4096 KiB", "less than", "INCONCLUSIVE")

# The good run had another number of ranks or another transport, so lower rates do not indicate a fault of the machine.
report["ranks"] = 2
(WORK / "good.json").write_text(json.dumps(report))
stages, said = validate(*ONLY, "speed", "--good", WORK / "good.json", expect=4)
assert "not certified: speed: rates, because the good run had 2 ranks, but this run has 3" in said, said
validate(*ONLY, "inventory", "speed", "training", *NCCL)
shutil.copy(WORK / "v.json", WORK / "good.json")
stages, said = validate(*ONLY, "speed", "training", "--good", WORK / "good.json", expect=4)
for stage in ("speed", "training"):
    assert (f"{stage}: rates, because the ranks communicated with NCCL in the good run, but "
            "through host memory in this run") in said, said

# With two ranks, each is compared with the other, and so are the two directions of their link.
TWO = ["--ranks", 2, "--seconds", 1, "--only", "speed"]
stages, said = validate(*TWO, *NCCL)
assert "whether link 0-1 is slow in both directions" in said, said
only("link 0-1", "of the other direction's", *TWO, *NCCL, HOST_NCCL_FAULT="link:0:1:10")
only("rank 1", "on the other rank", *TWO, program=FAULTY, FAULTY="slow 1 2")

# Library B is slow. There is time for two turns of it, also on a busy machine.
OTHER = WORK / "libother.so"
shutil.copy(LIBRARY, OTHER)
BOTH = ["--ranks", 3, "--seconds", 15, "--only", "speed", "--nccl-a", LIBRARY, "--nccl-b", OTHER]
stages, said = validate(*BOTH, expect=1, HOST_NCCL_FAULT="slow:0:1", HOST_NCCL_FAULT_IN="libother")
b = stages["speed"]["b"]
assert not [e for e in stages["speed"]["evidence"] if e["verdict"] != "PASS"] and "speed        PASS " in said, said
assert any("slower than A at all_to_all" in e["text"] for e in b["evidence"]) and b["verdict"] == "DEGRADED", said
assert re.search(r"^\w+ +B is [0-9.]+ % slower than A; B / A = 0\.", said, re.M) and "0 of 9 stages" in said, said
