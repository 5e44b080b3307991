"""isotron validate: a machine without faults passes, and reports and exit statuses agree."""
from validating import *

# Runs without faults, with threads and with NCCL's code path. Stages that need several ranks are listed on one rank,
# but do not fail.
stages, said = validate("--ranks", 4, "--seconds", 4)
assert "verdict: PASS, 8 of 9 stages; roofs: not certified because there is too little time (4 ranks, " in said, said
assert "because of the time, --memory-share or the limit of a host, 1 GiB for each rank" in said, said
assert {n: s["verdict"] for n, s in stages.items() if s["verdict"] != "PASS"} == {"roofs": "INCONCLUSIVE"}, said
shutil.copy(WORK / "v.json", WORK / "good.json")
validate("--ranks", 4, "--seconds", 2, "--only", "inventory", "--good", WORK / "good.json")
nccl, said = validate("--ranks", 3, "--seconds", 1, *NCCL, "--only", "inventory,collectives")
assert "NCCL 2.28.9" in nccl["collectives"]["summary"], said
assert "training, hang: not run because --only leaves it out (3 ranks" in said, said
one, said = validate("--seconds", 1)
assert one["collectives"]["verdict"] == "INCONCLUSIVE" and "not certified: collectives: it needs 2 ranks" in said, said
assert "verdict: PASS, 5 of 9 stages; " in said, said
assert "; collectives, speed, hang: not run because it needs 2 ranks, and there is 1 (" in said, said
if shutil.which("mpirun"):
    run = [*MPI, PROGRAM, "validate", "--seconds", "1"]
    # mpirun connects the ranks to a terminal
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0 and "verdict: PASS, 6 of 9 stages; " in done.stdout, done
    assert "suspect" not in done.stdout, done

# No stage tunes GEMMs unless that is requested, because tuning would use up its time.
GEMMS = ["--ranks", 2, "--seconds", 1, "--only", "compute", "roofs", "speed", "parity", "training"]
validate(*GEMMS, program=FAULTY, FAULTY="tuning 0 2")
validate(*GEMMS, "--gemm-tuning", "fastest", program=FAULTY, FAULTY="tuning 0 1")
