"""Each script of the repository says how it is called and refuses a wrong word, from any folder; and what they draw is right."""
import os

from harness import *

FOLDERS = ("ci", "tools", "tools/oracle", "bench", "bench/ops", "bench/train", "tests/mutants", "tests/mutants/source")


def script(name, *words, status=0):
    done = subprocess.run([ROOT / name, *map(str, words)], cwd=WORK, capture_output=True, text=True)
    assert done.returncode == status and (status == 0 or done.stderr.count("\n") == 1 and not done.stdout), (name, words, done)
    return done.stdout + done.stderr


names = [f"{folder}/{path.name}" for folder in FOLDERS for path in sorted((ROOT / folder).iterdir()) if path.is_file() and os.access(path, os.X_OK)]
assert len(names) >= 40, len(names)
for name in names:
    assert "usage: " in script(name, "--help"), name
    script(name, "--no-such-option", status=2)

# Layouts that the program accepts.
program = pathlib.Path(PROGRAM).resolve()
cells = script("tools/cover_layouts", "--program", program, "--random", 3, "--most-ranks", 4)
assert len([line for line in cells.splitlines() if line[0] != "#"]) == 3, cells
assert "only 0 different layouts" in script("tools/cover_layouts", "--program", program, "--random", 3, "--degrees", 1, status=1)

# A loss curve. The picture of an earlier run stays until the new one is complete.
log, curve, picture = WORK / "log.jsonl", WORK / "curve.json", WORK / "loss.svg"
log.write_text('{"time": 1}\n{"iteration": 1, "lm_loss": 2.5}\n{"iteration": 2, "lm_loss": 2.25}\n{"iteration": 3, "lm_loss": null}\n')
curve.write_text('{"steps": [{"loss": 2.5}, {"loss": 2.0}]}')
script("tools/plot_loss", picture, log, "--oracle", curve, "--entropy", 1.5, "--title", 'caf\u00e9 "x"')
drawn = picture.read_text()
assert "caf\u00e9 \"x\"" in drawn.replace("&quot;", '"') and "1.5000" in drawn
for words, why in ((["--key", "loss"], '"loss"'), (["--oracle", log], "log.jsonl"), ([WORK / "missing"], "missing")):
    assert why in script("tools/plot_loss", picture, log, *words, status=1)
log.write_text('{"iteration": 1, "lm_loss": 2}\n{"itera')
assert "line 2 of" in script("tools/plot_loss", picture, log, status=1) and picture.read_text() == drawn
print(f"scripts: {len(names)} say how they are called")
