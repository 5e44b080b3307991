"""Another project can use the installed library, through CMake and through pkg-config. A training loop in that project
computes the same losses and checkpoint as `isotron pretrain`."""
import os
import re

from harness import *

BUILD, PREFIX, EXAMPLES = pathlib.Path(PROGRAM).resolve().parent, WORK / "moved", ROOT / "examples"


def sh(*words, **environment):
    done = subprocess.run([*map(str, words)], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout + done.stderr)
    return done.stdout


# An installation can be moved.
sh("cmake", "--install", BUILD, "--prefix", WORK / "prefix")
(WORK / "prefix").rename(PREFIX)
assert {path.name for path in PREFIX.iterdir()} == {"bin", "lib", "include", "share"}
assert sh(PREFIX / "bin/isotron", "--version") == isotron("--version")
# The installation finds its golden cases from any folder. Without them, validate refuses to run.
golden, validate = PREFIX / "share/isotron/golden", [PREFIX / "bin/isotron", "validate", "--only", "parity",
                                                     "--seconds", "1"]
done = subprocess.run(validate, cwd=WORK, capture_output=True, text=True)
assert done.returncode == 0 and "verdict: PASS, 1 of 9 stages" in done.stdout, done
golden.rename(WORK / "elsewhere")
done = subprocess.run(validate, cwd=WORK, capture_output=True, text=True)
assert done.returncode == 2 and "'golden/llama-layouts' is not a golden case" in done.stderr and not done.stdout, done
(WORK / "elsewhere").rename(golden)

sh("cmake", "-S", EXAMPLES, "-B", WORK / "cmake", f"-DCMAKE_PREFIX_PATH={PREFIX}")
sh("cmake", "--build", WORK / "cmake")
packages = {"PKG_CONFIG_PATH": f"{next(PREFIX.rglob('isotron.pc')).parent}:{os.environ.get('PKG_CONFIG_PATH', '')}"}
assert f"isotron {sh('pkg-config', '--modversion', 'isotron', **packages)}" in isotron("--version")
flags = sh("pkg-config", "--cflags", "--libs", "isotron", **packages).split()
sh("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", EXAMPLES / "custom_loop.c", "-o", WORK / "by_hand", *flags)

# Every installed header compiles in another project.
include = PREFIX / "include/isotron"
(WORK / "all.c").write_text("".join(f'#include "{path.relative_to(include)}"\n'
                                    for path in sorted(include.rglob("*.h"))))
sh("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", WORK / "all.c", *flags)

conf = ["--config", EXAMPLES / "tiny.conf"]
for program, layout in ((WORK / "cmake/custom_loop", ["--ranks", 2]),
                        (WORK / "by_hand",
                         ["--ranks", 8, "--tensor-model-parallel-size", 2, "--pipeline-model-parallel-size", 2,
                                            "--context-parallel-size", 2, "--micro-batch-size", 4])):
    own, ours = WORK / f"own-{program.name}", WORK / f"ours-{program.name}"
    said = sh(program, *conf, *layout, "--save", own, *OPTIONS)
    isotron("pretrain", *conf, *layout, "--save", ours, "--eval-iters", 0, "--log-jsonl", WORK / "log",
            "--log-interval", 1)
    got = {int(i): float(loss) for i, loss in re.findall(r"iteration (\d+): loss (\S+),", said)}
    assert len(got) == 20 and got == losses(WORK / "log"), (layout, got, losses(WORK / "log"))
    assert_same_bytes(own, ours, 20, f"a loop of another project, {layout}")
    (WORK / "log").unlink()

# The same loop can resume from a checkpoint of the program.
shutil.copytree(WORK / "ours-custom_loop", WORK / "resumed")
said = sh(WORK / "by_hand", *conf, "--train-iters", 22, "--load", WORK / "resumed", *OPTIONS)
assert re.findall(r"iteration (\d+):", said) == ["21", "22"], said

refused = subprocess.run([WORK / "by_hand", *conf, "--tensorboard-dir", "x"], capture_output=True, text=True)
assert refused.returncode == 2 and "--tensorboard-dir" in refused.stderr, refused
refused = subprocess.run([WORK / "by_hand"], capture_output=True, text=True)
lines = [line.split("; the first is: ")[-1].removeprefix("custom_loop: ") for line in refused.stderr.splitlines()]
assert refused.returncode == 2 and len(lines) == len(set(lines)) > 1, refused
