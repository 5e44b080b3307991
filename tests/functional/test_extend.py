"""docs/tutorials/extend.md adds an op. Applies its code and commands to a copy of the repository, which must build and
pass all modes of the unit test. Without the backward function, the test must fail."""
import os
import re

from harness import *

PAGE = (ROOT / "docs/tutorials/extend.md").read_text().split("\n## An op\n")[1].split("\n## ")[0]
COPY = WORK / "copy"
shutil.copytree(ROOT, COPY, ignore=lambda folder, _: [".git", "build"] if pathlib.Path(folder) == ROOT else [])
os.environ["CCACHE_BASEDIR"] = str(COPY)


def apply(where, path, anchor, code):
    file = COPY / path
    if where == "Write":
        assert not file.exists(), path
        file.write_text(code)
        return
    lines = file.read_text().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if line.startswith(anchor)]
    assert len(at) == 1, f"{path}: {len(at)} lines begin with '{anchor}'"
    file.write_text("".join(lines[:at[0]]) + code + "".join(lines[at[0]:]))


def run(command):
    done = subprocess.run(command, shell=True, cwd=COPY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


steps = re.findall(r"^(Write|Add to) `([^`]+)`(?:, before `([^`]+)`)?:\n\n```c\n(.*?)^```", PAGE, re.M | re.S)
assert len(steps) == PAGE.count("```c\n"), "a block without the file that it belongs to"
for step in steps:
    apply(*step)
commands = re.findall(r"^\$ (.*)", PAGE, re.M)
for command in commands:
    status, said = run(command)
    assert status == 0, f"$ {command}\n{said}"
    if "ops_test_ops '" in command:
        test = command
        modes = [len(re.findall(rf"OK \] {name} \w+", said)) for name in ("square", "square_odd")]
        assert min(modes) >= 6 and all(f"OK ] {name} gradcheck" in said for name in ("square", "square_odd")), said
        assert "FAILED" not in said, said
assert "| `square_grad` |" in (COPY / "docs/reference/ops.md").read_text()

source = COPY / "src/ops/square.c"
source.write_text(re.sub(r"static void square_backward.*?^}\n", "", source.read_text(),
                         flags=re.M | re.S).replace("square_backward", "NULL"))
assert run(commands[0])[0] == 0
status, said = run(test)
assert status != 0 and re.search(r"FAILED  \] square gradcheck", said), said
assert re.search(r"FAILED  \] square_odd gradcheck", said), said
print("an op is added as the page says")
