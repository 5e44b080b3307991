"""isotron validate names a slow link, a slow rank and a late rank."""
from validating import *

ONLY = ["--ranks", 4, "--seconds", 4, "--only"]
stages, said = validate(*ONLY, "speed", *NCCL, "--seconds", 8, HOST_NCCL_FAULT="link:1:3", expect=1)
named(stages["speed"], "link 1-3", "it is slow", "DEGRADED")
assert len(stages["speed"]["evidence"]) == 1, said
named(validate(*ONLY, "speed", *NCCL, "--seconds", 8, HOST_NCCL_FAULT="rank:2:3", expect=1)[0]["speed"], "rank 2", "all of its links are slow", "DEGRADED")
named(validate(*ONLY, "speed", program=FAULTY, FAULTY="slow 1 2", expect=1)[0]["speed"], "rank 1", "it arrives late", "DEGRADED")
