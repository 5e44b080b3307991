"""Every script says how it is called, from wherever it is called, and what is wrong in one sentence: an unknown word, a file that is
missing, damaged or cannot be written, a tool that this machine lacks. Nothing runs before that, and what was there stays."""
import json
import os

from harness import *

PROGRAM = str(pathlib.Path(PROGRAM).resolve())
ELSEWHERE = WORK / "elsewhere"
ELSEWHERE.mkdir()
# A machine with the shell's own tools, Python and nothing else.
BARE = WORK / "bin"
BARE.mkdir()
for tool in ("bash", "env", "python3", "realpath", "dirname", "sed", "id", "date", "xargs", "nproc", "head", "tr", "mkdir", "cat"):
    (BARE / tool).symlink_to(sys.executable if tool == "python3" else shutil.which(tool))


def script(name, *words, path=None, **variables):
    environment = os.environ | variables | ({"PATH": str(path)} if path else {})
    return subprocess.run([*([sys.executable] if name.endswith(".py") else []), ROOT / name, *map(str, words)], cwd=ELSEWHERE, env=environment, capture_output=True, text=True, timeout=300)


def refuses(name, *words, says, status=None, **where):
    """One line to stderr, which says so; nothing to stdout."""
    done = script(name, *words, **where)
    assert done.returncode in ((1, 2) if status is None else (status,)), (name, words, done)
    assert says in done.stderr and done.stderr.count("\n") == 1 and not done.stdout, (name, words, done)


names = [path.relative_to(ROOT).as_posix() for folder in ("tools", "ci", "bench/ops", "bench/train") for path in sorted((ROOT / folder).iterdir())
         if path.is_file() and not path.suffix]
assert len(names) >= 20, names
for name in names:
    done = script(name, "--help")
    assert done.returncode == 0 and f"{name}" in done.stdout and "usage: " in done.stdout and not done.stderr, done
    refuses(name, "--no-such-option", says=name.split("/")[-1], status=2)

# Words of their own.
refuses("ci/run", "format", "typo", says="no step 'typo'; there are: install build", status=2)
refuses("ci/gpu", "typo", says="no step 'typo'; there are: build test", status=2)
refuses("ci/build", says="which preset? There are: cpu cuda", status=2)
refuses("ci/build", "gpu", says="no preset 'gpu'; there are: cpu cuda", status=2)
refuses("ci/sanitizers", says="asan ubsan tsan", status=2)
refuses("ci/sanitizers", "msan", says="asan ubsan tsan", status=2)
refuses("ci/fuzz", "0", says="'0' is not a whole number", status=2)
refuses("ci/sweep", "many", says="COUNT 'many'", status=2)
refuses("ci/sweep", "3", says="no program", status=2, PROGRAM="missing")
refuses("ci/coverage", says="FLOOR 'high'", status=2, FLOOR="high")
refuses("ci/hosts", says="which program", status=2)
refuses("ci/hosts", "missing", "list", says=f"no program {ELSEWHERE}/missing", status=2)
refuses("ci/hosts", PROGRAM, "missing", says=f"no list {ELSEWHERE}/missing", status=2)
refuses("tools/demo", says="ITERS '1e3'", status=2, ITERS="1e3")
refuses("tools/demo", says="ITERS 20", status=2, ITERS="20")
for checker in ("check_layers", "check_sizes"):
    refuses(f"tools/{checker}", "missing", says="'missing' has no", status=2)
refuses("tools/check_globals", says="a build folder", status=2)
refuses("tools/check_globals", ELSEWHERE, says="build the project first", status=1)
(ELSEWHERE / "libdamaged.a").write_text("!<arch>\nno member")
refuses("tools/check_globals", ELSEWHERE, says="libdamaged.a", status=1)

# Layouts.
cover = ("tools/cover_layouts", "--program", PROGRAM)
refuses(*cover, says="--pairs --cover --random", status=2)
refuses(*cover, "--random", 0, says="at least 1", status=2)
refuses(*cover, "--random", 3, "--degrees", 1, says="only 0 different layouts", status=1)
refuses("tools/cover_layouts", "--random", 3, "--program", "missing", says="no program missing", status=1)
refuses("tools/cover_layouts", "--random", 3, "--program", "true", says="left no report", status=1)
done = script(*cover, "--random", 3, "--most-ranks", 4)
assert done.returncode == 0 and len([line for line in done.stdout.splitlines() if line[0] != "#"]) == 3, done

# Curves. The picture of an earlier run stays until a new one is whole.
log, picture, curve = ELSEWHERE / "log.jsonl", ELSEWHERE / "loss.svg", ELSEWHERE / "curve.json"
log.write_text('{"time": 1}\n{"iteration": 1, "lm_loss": 2.5}\n{"iteration": 2, "lm_loss": 2.25}\n{"iteration": 3, "lm_loss": null}\n')
curve.write_text('{"steps": [{"loss": 2.5}, {"loss": 2.0}]}')
plot = ("tools/plot_loss", "loss.svg", "log.jsonl")
if shutil.which("gnuplot"):
    done = script(*plot, "--oracle", "curve.json", "--entropy", 1.5, "--title", 'caf\u00e9 "x"')
    assert done.returncode == 0 and not done.stdout + done.stderr, done
    assert "caf\u00e9 \"x\"" in picture.read_text().replace("&quot;", '"') and "1.5000" in picture.read_text()
    refuses("tools/plot_loss", "missing/loss.svg", "log.jsonl", says="missing/loss.svg.part: No such file", status=1)
    (ELSEWHERE / "folder.svg").mkdir()
    refuses("tools/plot_loss", "folder.svg", "log.jsonl", says="folder.svg: Is a directory", status=1)
picture.write_text("before")
refuses("tools/plot_loss", says="required", status=2)
refuses("tools/plot_loss", "loss.jpg", "log.jsonl", says="does not end in .png or .svg", status=2)
refuses("tools/plot_loss", "loss.svg", "missing", says="missing: No such file", status=1)
refuses(*plot, "--key", "loss", says='"loss"', status=1)
refuses(*plot, "--entropy", "nan", says="is no number", status=2)
refuses(*plot, "--oracle", "log.jsonl", says="no curve.json", status=1)
refuses(*plot, path=BARE, says="no gnuplot on this machine", status=1)
for text, why in (("", "no line of log.jsonl"), ('{"iteration": 1, "lm_loss": 2}\n{"itera', "line 2 of log.jsonl is not JSON"), ("5\n", "not a JSON object"),
                  ('{"iteration": "1", "lm_loss": 2}\n', "not two numbers")):
    log.write_text(text)
    refuses(*plot, says=why, status=1)
log.write_bytes(b"\xff\xfe")
refuses(*plot, says="which is text", status=1)
for text in ("", "{", "[]", '{"steps": 5}', '{"steps": [{"loss": "x"}]}'):
    curve.write_text(text)
    log.write_text('{"iteration": 1, "lm_loss": 2}\n')
    refuses(*plot, "--oracle", "curve.json", says="no curve.json of a golden case", status=1)
assert picture.read_text() == "before"

# Planted bugs, and the oracle's programs, of which those without packages run.
mutation, before = ROOT / "docs/mutation.md", (ROOT / "docs/mutation.md").read_text()
for words, why in ((["missing"], "No such file"), (["log.jsonl"], "no report"), (["--all"], "required")):
    refuses("tests/mutants/table.py", *words, says=why)
assert mutation.read_text() == before
refuses("tests/mutants/run.py", "missing", says="isotron_mutants", status=1)
refuses("tests/mutants/run.py", PROGRAM, says="no planted bugs", status=1)
refuses("tests/mutants/run.py", PROGRAM, "--jobs", 0, says="at least 1", status=2)
refuses("tests/mutants/run.py", PROGRAM, "--json", "missing/report.json", says="missing/report.json", status=2)
for name in ("compare_tokenizer", "data_vectors", "exact_sum", "fp8", "golden", "hf_configs", "hf_logits", "ops", "read_events", "safetensors_files", "schedules", "tokenizer_cases",
             "unicode_ages", "witness"):
    if name != "read_events":  # it skips first, where TensorBoard is missing
        refuses(f"tools/oracle/{name}.py", "--no-such-option", says="no option --no-such-option", status=2)
    done = script(f"tools/oracle/{name}.py", "--help")
    assert done.returncode == 0 and done.stdout and not done.stderr, done
refuses("tools/oracle/schedules.py", "missing/vectors.def", says="missing/vectors.def: No such file", status=1)
refuses("tools/oracle/exact_sum.py", "a", "b", says="2 words, not 0 to 1", status=2)

# A machine without the tools.
for name, tool in (("ci/build cpu", "cmake"), ("ci/coverage", "lcov"), ("ci/format", "clang-format"), ("ci/fuzz", "clang"),
                   ("ci/sanitizers asan", "clang"), ("tools/check_headers", "cc"), ("ci/install-deps", "apt-get"), ("ci/gpu", "GPU")):
    refuses(*name.split(), path=BARE, says=f"no {tool}", status=2)
refuses("tools/check_globals", ELSEWHERE, path=BARE, says="no objdump", status=1)
print(f"scripts: {len(names)} say how they are called, and what is wrong")
