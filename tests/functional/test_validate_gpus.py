"""isotron validate on GPUs: a run without faults passes, and each planted fault is named. The test prints how long
--quick takes."""
import os
import re
import time

from validating import *

ON_GPU, OPTIONS[:] = list(OPTIONS), []
# without --ranks, all GPUs
GPUS = int(re.search(r"\((\d+) ranks?,", validate(*ON_GPU, "--only", "inventory")[1]).group(1))
ALL = [*ON_GPU, "--ranks", GPUS]
FAULTY_NCCL = ["--nccl-library", pathlib.Path(PROGRAM).parent / "tests/libfaulty_nccl.so"]
BRIEF = [*ALL, "--seconds", 10, "--only"]

begin = time.monotonic()
clean, said = validate(*ALL, "--quick")
print(said)
print(f"--quick took {time.monotonic() - begin:.1f} s on {GPUS} GPUs")
for stage in ("compute", "roofs"):
    loads = [clean[stage]["state"][f"load of rank {rank}"] for rank in range(GPUS)]
    assert all(re.match(r"clock down to \d+ MHz, ", load) for load in loads), loads
shutil.copy(WORK / "v.json", WORK / "good.json")

last = GPUS - 1
named(validate(*BRIEF, "compute", program=FAULTY, FAULTY=f"gemm {last} 1009", expect=1)[0]["compute"], f"GPU {last} ",
      "one bit flipped")
if GPUS > 1:
    for fault, words in {"drop_tail": "the last 8 elements are missing", "half_sum": "it sums in 16 bits"}.items():
        named(validate(*BRIEF, "collectives", *FAULTY_NCCL, FAULTY_NCCL=fault, expect=1)[0]["collectives"], "NCCL",
              words)
    LATER = ["--distributed-timeout-seconds-after-init", 20]
    for fault, words in {"lost:9": "has waited 20 s", "error:9": "NCCL reports an error on rank",
                         "refuse:9": " fails on rank "}.items():
        named(validate(*BRIEF, "collectives", *LATER, *FAULTY_NCCL, FAULTY_NCCL=fault, expect=1)[0]["collectives"],
              "NCCL", words)
    slow = validate(*BRIEF, "speed", *FAULTY_NCCL, FAULTY_NCCL="link:0:1", expect=1)[0]["speed"]
    named(slow, "link 0-1", "it is slow", "DEGRADED")
    assert [e["suspect"] for e in slow["evidence"]] == ["link 0-1"], slow
    named(validate(*BRIEF, "speed", program=FAULTY, FAULTY="slow 1 2", expect=1)[0]["speed"], "GPU 1 ",
          "late" if GPUS > 2 else "", "DEGRADED")
    # A library has a different version from that in the good run.
    named(validate(*BRIEF, "inventory", *FAULTY_NCCL, "--good", WORK / "good.json", FAULTY_NCCL="version:22707",
                   expect=1)[0]["inventory"],
          "NCCL", "it is '2.27.7'", "DEGRADED")
    # If another process uses the last GPU, there are many findings but only one conclusion.
    neighbour = [PROGRAM, "bench", "ops", "--device", "cuda", "--filter", "^linear/", "--dtype", "bf16",
                 "--seconds", "60"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(GPUS)))).split(",")[last]
    with subprocess.Popen(neighbour, env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
                          stdout=subprocess.DEVNULL) as busy:
        time.sleep(8)
        stages, said = validate(*ALL, "--quick", "--only", "inventory,roofs,speed",
                                "--good", WORK / "good.json", expect=1)
        busy.kill()
    print(said)
    assert f"conclusion: GPU {last} (rank {last}) explains " in said, said
    others = stages["inventory"]["state"].get(f"other processes of rank {last}")
    assert not others or f"another process holds it: {others}" in said, said
    # A library that is compared with itself is equal.
    begin = time.monotonic()
    stages, said = validate(*ALL, "--quick", "--nccl-b", "libnccl.so.2")
    print(said)
    print(f"--quick with two libraries took {time.monotonic() - begin:.1f} s on {GPUS} GPUs")
else:
    print("one GPU: faults of NCCL and of ranks were not planted")
