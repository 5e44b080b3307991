"""isotron validate names a slow link, a slow rank, a late rank, and rates that were higher in the good run."""
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
