"""The example files in docs/ci gate a repository as docs/ci.md describes, and the page's table has every exit status of
the program."""
import os
import re
import xml.etree.ElementTree

from harness import *

try:
    import yaml
except ImportError:
    yaml = None

page = (ROOT / "docs/ci.md").read_text()
enum = (ROOT / "src/base/err.h").read_text()
listed = {constant: int(status.split()[0])
          for status, constant in re.findall(r"^\| (\d+(?: \+ n)?) \| `(\w+)` \|", page, re.M)}
declared = {constant: int(status) for constant, status in re.findall(r"^    (ERR_\w+) = (\d+)", enum, re.M)}
assert listed == declared and len(declared) > 5, (listed, declared)

if not yaml:
    print("skipped: this Python has no PyYAML (ci/install-deps)")
    sys.exit(77)

# A repository that has Isotron as a submodule with a built program.
(WORK / "isotron").symlink_to(ROOT)
github = yaml.safe_load((ROOT / "docs/ci/github-actions.yml").read_text())["jobs"]["parity"]
gitlab = yaml.safe_load((ROOT / "docs/ci/gitlab-ci.yml").read_text())
steps = {step["name"]: step["run"] for step in github["steps"] if "run" in step}
assert all("@v" in step["uses"] for step in github["steps"] if "run" not in step)
gate = "\n".join(gitlab["parity"]["script"])
assert gate == steps["Parity"].rstrip("\n") and gate.splitlines()[1].replace("$ISOTRON", "isotron") in page
assert github["env"]["ISOTRON"] == gitlab["variables"]["ISOTRON"]


def run(script):
    environment = os.environ | {"ISOTRON": str(pathlib.Path(PROGRAM).resolve())}
    return subprocess.run(["bash", "-ec", script], cwd=WORK, capture_output=True, text=True, env=environment)


done = run(gate)
assert done.returncode == 0, done
suite = xml.etree.ElementTree.parse(WORK / gitlab["parity"]["artifacts"]["reports"]["junit"]).getroot()[0]
assert int(suite.get("tests")) == 8 and suite.get("failures") == suite.get("skipped") == "0"
assert all((WORK / name).exists() for name in gitlab["parity"]["artifacts"]["paths"])

# Runs one cell of the list, with the change that makes it fail according to the page.
smoke = re.search(r"--sweep isotron/(\S+)", gate)[1]
(WORK / "one.list").write_text(next(line for line in (ROOT / smoke).open() if line[0] != "#"))
failing = re.search(r"Add `(--[^`]*)` to that line", page)[1]
done = run(f"{gate.replace(f'isotron/{smoke}', 'one.list')} {failing}")
assert done.returncode == 1 and "0 cells pass, 1 fail" in done.stdout, done

# The gate of a run passes if results are bitwise equal, and detects a change to the run.
(WORK / "gate").mkdir()
(WORK / "gate/run.conf").write_text((ROOT / "examples/tiny.conf").read_text() + "lane = fp64\neval-iters = 0\n")
record, again = (re.search(block, page, re.M)[1].replace("isotron", "$ISOTRON")
                 for block in (r"^    (isotron pretrain .*)$", r"^```sh\n((?:.+\n)*?isotron compare .*\n)```$"))
for script, status in ((f"{record}\n{again}", 0), (again.replace("pretrain", "pretrain --lr 0.004"), 1)):
    done = run(script)
    assert done.returncode == status and "verdict: " in done.stdout and "earlier run" not in done.stdout, done

# The commands before the gate exist in this repository.
for script in gitlab["parity"]["before_script"], [steps["Dependencies"], steps["Build"]]:
    assert script[0].strip() == "isotron/ci/install-deps build", script
    assert os.access(WORK / script[0].split()[0], os.X_OK), script
    preset, target = re.search(r"cd isotron\W+cmake --preset (\w+) -DISOTRON_NATIVE=OFF\W+cmake --build build/cpu "
                               r"--target (\w+)", script[1]).groups()
    assert (preset, target) == ("cpu", pathlib.Path(github["env"]["ISOTRON"]).name)
