"""isotron validate names every planted fault and its suspect."""
from validating import *

ONLY = ["--ranks", 4, "--seconds", 1, "--only"]
named(validate(*ONLY, "compute", program=FAULTY, FAULTY="gemm 2 7", expect=1)[0]["compute"], "rank 2",
      "one bit flipped")
named(validate(*ONLY, "compute", program=FAULTY, FAULTY="count 2 5", expect=1)[0]["compute"], "rank 2",
      "but correct according to the host")
named(validate(*ONLY, "compute", program=FAULTY, FAULTY="gemm 2 2", expect=1)[0]["compute"], "rank 2",
      "the block of rank 3 differs from the result of the host, but that rank's own result does not")
# The GEMMs of one dtype take longer than a rank may wait for the others.
LONG = ["--ranks", 4, "--seconds", 12, "--distributed-timeout-seconds-after-init", 2, "--only"]
named(validate(*LONG, "compute", program=FAULTY, FAULTY="gemm 2 7", expect=1)[0]["compute"], "rank 2",
      "one bit flipped")
stages, said = validate(*ONLY, "collectives", *NCCL, HOST_NCCL_FAULT="drop_tail", expect=1)
named(stages["collectives"], "NCCL 2.28.9", "the last 8 elements are missing")
assert "validate --ranks 4 --seconds 1 --nccl-library" in said and "--only collectives" in said, said
named(validate(*ONLY, "collectives", *NCCL, HOST_NCCL_FAULT="half_sum", expect=1)[0]["collectives"], "NCCL",
      "it sums in 16 bits")
SOON = ["--distributed-timeout-seconds-after-init", 1]
named(validate(*ONLY, "collectives", *NCCL, *SOON, HOST_NCCL_FAULT="lost:40", expect=1)[0]["collectives"],
      "NCCL 2.28.9", "has waited 1 s")
named(validate(*ONLY, "collectives", *NCCL, HOST_NCCL_FAULT="error:40", expect=1)[0]["collectives"], "NCCL 2.28.9",
      "planted fault")
named(validate(*ONLY, "collectives", *NCCL, HOST_NCCL_FAULT="refuse:40", expect=1)[0]["collectives"], "NCCL 2.28.9",
      " fails on rank ")
named(validate(*ONLY, "memory", program=FAULTY, FAULTY="memory 3 1000", expect=1)[0]["memory"], "rank 3", "offset 1000")
named(validate(*ONLY, "memory", program=FAULTY, FAULTY="count 2 5", expect=1)[0]["memory"], "rank 2",
      "but correct according to the host")
named(validate(*ONLY, "training", program=FAULTY, FAULTY="gemm 1 101", expect=1)[0]["training"], "rank or transport",
      "two equal runs differ")
# validate needs no temporary folder, so it leaves no temporary files.
named(validate(*ONLY, "parity", program=FAULTY, FAULTY="gemm 0 7", TMPDIR=str(WORK / "none"), expect=1)[0]["parity"],
      "", "llama-layouts fp64, tp4 sp")
# If the process of a stage ends, the rates that it measured before are in the report.
lost = validate(*ONLY, "speed", *NCCL, HOST_NCCL_FAULT="error:100", expect=1)[0]["speed"]
named(lost, "NCCL 2.28.9", "planted fault in operation 100")
assert {m["name"] for m in lost["metrics"] if m["samples"]} >= {"all_reduce 4096 KiB", "link 0-1"}, lost
assert lost["transport"] == "NCCL 2.28.9" and not lost["summary"], lost

# If the process of a stage ends, the next stage runs in a new process and passes.
stages, said = validate(*ONLY, "compute", "memory", program=FAULTY, FAULTY="crash 2 3", expect=1)
named(stages["compute"], "", "its process ended during: ")
assert stages["memory"]["verdict"] == "PASS", said

# The ranks end before the drill begins.
named(validate(*ONLY, "hang", *NCCL, HOST_NCCL_FAULT="error:0", expect=1)[0]["hang"], "transport",
      "did not begin: COMM FAULT")

# A fault occurs in only one protocol of NCCL, which NCCL reads from the environment once per process.
proto = {"HOST_NCCL_FAULT": "drop_tail", "HOST_NCCL_FAULT_PROTO": "LL128"}
stages, said = validate(*ONLY, "collectives", *NCCL, "--seconds", 6, **proto, expect=1)
named(stages["collectives"], "NCCL 2.28.9 with NCCL_ALGO=Ring NCCL_PROTO=LL128", "the last 8 elements are missing")
assert all("NCCL_PROTO=LL128" in e["suspect"] for e in stages["collectives"]["evidence"]), said
