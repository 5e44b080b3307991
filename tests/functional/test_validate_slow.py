"""isotron validate may take longer than --seconds if a device opens slowly or a rank is very slow. The runs wait
together."""
from concurrent.futures import ThreadPoolExecutor

from validating import *


def slow_start():
    """The drills allow more time to open a device than other stages may take."""
    soon = ["--distributed-timeout-seconds-after-init", 1]
    validate("--ranks", 2, "--seconds", 1, "--only", "hang", *soon, program=FAULTY, name="start", FAULTY="open 0 35000")


def very_slow_rank():
    """A rank whose links are slow is named."""
    options = ["--ranks", 4, "--seconds", 1, "--only", "speed", "compute", "memory", *NCCL]
    only("rank 0", "all of its links are slow", *options, name="named", HOST_NCCL_FAULT="rank:0:25")


def too_slow_rank():
    """The first round, which is not judged, uses up all of the time."""
    options = ["--ranks", 3, "--seconds", 1, "--only", "speed", "compute", "memory", "roofs", *NCCL]
    stages, said = validate(*options, name="round", HOST_NCCL_FAULT="rank:0:400")
    named(stages["speed"], "", "nothing could be judged", "INCONCLUSIVE")
    limits = stages["speed"]["not_certified"]
    assert any("slow links and ranks, because there are only " in limit for limit in limits), said


with ThreadPoolExecutor() as pool:
    for run in [pool.submit(f) for f in (slow_start, very_slow_rank, too_slow_rank)]:
        run.result()
