"""A build reports its version, commit, compiler and libraries. Each build looks up the commit, and rewrites its file
only if the commit has changed. `isotron help` is another spelling of --help."""
import os
import re

from harness import *

os.environ.pop("ISOTRON_COMMIT", None)


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", folder, *identity, *words], capture_output=True, text=True,
                          check=True).stdout.strip()


def commit(source):
    """The commit that a build from that folder reports."""
    subprocess.run(["cmake", f"-DSOURCE={source}", f"-DOUT={WORK}/commit.c", "-P", ROOT / "cmake/commit.cmake"],
                   check=True)
    return re.search('return "(.*)";', (WORK / "commit.c").read_text())[1]


said = isotron("--version")
assert said == isotron("version")
version = re.search(r"\(isotron VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
built_from = re.fullmatch(rf"""isotron {version}
commit: ([0-9a-f]{{12}}(?:-dirty)?|unknown)
compiler: \w+ [\d.]+ .*
devices: cpu.*
libraries: OpenBLAS [\d.]+, (?:MPI [\d.]+|no MPI), (?:CUDA [\d.]+, cuDNN.*|no CUDA)
""", said)[1]
assert (built_from == "unknown") == (commit(ROOT) == "unknown"), (built_from, commit(ROOT))
assert "'now'" in isotron("version", "now", expect=2)
assert isotron("help") == isotron("--help") and isotron("help", "merge") == isotron("merge", "--help")

# A measurement names the commit of the program, regardless of the current folder.
bench = [pathlib.Path(PROGRAM).resolve(), "bench", "ops", "--filter", "^norm/rms$", "--seconds", "1e-9",
         "--json", "ops.json"]
done = subprocess.run(bench, cwd=WORK, capture_output=True, text=True)
assert done.returncode == 0, done
assert json.loads((WORK / "ops.json").read_text())["provenance"]["commit"] == built_from

tree = WORK / "tree"
tree.mkdir()
git(tree, "init", "-q")
(tree / "a").write_text("1")
git(tree, "add", "a")
git(tree, "commit", "-qm", "one")
short = git(tree, "rev-parse", "--short=12", "HEAD")
assert commit(tree) == short
written = (WORK / "commit.c").stat().st_mtime_ns
assert commit(tree) == short and (WORK / "commit.c").stat().st_mtime_ns == written, "the same commit was written again"
git(tree, "worktree", "add", "-q", WORK / "other")
assert commit(WORK / "other") == short
(tree / "a").write_text("2")
assert commit(tree) == f"{short}-dirty" and commit(WORK / "other") == short

# A release has no commit, even if its folder is inside another repository.
(tree / "release").mkdir()
assert commit(tree / "release") == "unknown" and commit("/") == "unknown"
