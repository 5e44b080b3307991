"""Each script of the repository has a help text and refuses invalid arguments, from any folder. Plots are correct."""
import os
import re

from harness import *

FOLDERS = ("ci", "tools", "tools/oracle", "bench", "bench/ops", "bench/train", "tests/mutants", "tests/mutants/source")


def script(name, *words, status=0):
    done = subprocess.run([ROOT / name, *map(str, words)], cwd=WORK, capture_output=True, text=True)
    assert done.returncode == status, (name, words, done)
    assert (status == 0 or done.stderr.count("\n") == 1 and not done.stdout), (name, words, done)
    return done.stdout + done.stderr


names = [f"{folder}/{path.name}" for folder in FOLDERS for path in sorted((ROOT / folder).iterdir()) if path.is_file()
         and os.access(path, os.X_OK)]
assert len(names) >= 40, len(names)
for name in names:
    assert "usage: " in script(name, "--help"), name
    script(name, "--no-such-option", status=2)

# cover_layouts writes layouts that the program accepts.
program = pathlib.Path(PROGRAM).resolve()
cells = script("tools/cover_layouts", "--program", program, "--random", 3, "--most-ranks", 4)
assert len([line for line in cells.splitlines() if line[0] != "#"]) == 3, cells
assert "only 0 different layouts" in script("tools/cover_layouts", "--program", program, "--random", 3,
                                            "--degrees", 1, status=1)

# plot_loss draws a loss curve. An earlier picture is kept until the new one is complete.
log, curve, picture = WORK / "log.jsonl", WORK / "curve.json", WORK / "loss.svg"
log.write_text('{"time": 1}\n{"iteration": 1, "lm_loss": 2.5}\n{"iteration": 2, "lm_loss": 2.25}\n{"iteration": 3, '
               '"lm_loss": null}\n')
curve.write_text('{"steps": [{"loss": 2.5}, {"loss": 2.0}]}')
script("tools/plot_loss", picture, log, "--oracle", curve, "--entropy", 1.5, "--title", 'caf\u00e9 "x"')
drawn = picture.read_text()
assert "caf\u00e9 \"x\"" in drawn.replace("&quot;", '"') and "1.5000" in drawn
for words, why in ((["--key", "loss"], 'the key "loss"; the keys are '), (["--key", "loss"], "lm_loss"),
                   (["--oracle", log], "log.jsonl"), ([WORK / "missing"], "missing")):
    assert why in script("tools/plot_loss", picture, log, *words, status=1)
other = WORK / "other.jsonl"
other.write_text('{"iteration": 1, "lm_loss": 2.5}\n{"iteration": 2, "lm_loss": 2.2500001}\n{"kind": "validation", '
                 '"iteration": 2, "loss": 9}\n')
script("tools/plot_loss", WORK / "same.svg", log, other, "--same")
same = (WORK / "same.svg").read_text()
assert all(words in same for words in (">other<", ">difference from log, relative<", ">in units of 1e-08<"))
assert "validation" not in same
log.write_text('{"iteration": 1, "lm_loss": 2}\n{"itera')
assert "line 2 of" in script("tools/plot_loss", picture, log, status=1) and picture.read_text() == drawn


def drawn_lines(number, *words):
    """Returns the heights of a curve's strokes in the figure, scaled to 0..1 over the curve. The stroke in the legend
    is omitted."""
    script("tools/plot_loss", picture, log, *words)
    path = re.search(r"d='([^']*)'", picture.read_text().split(f"gnuplot_plot_{number}")[1].split("<path")[1])[1]
    strokes = [[float(p.split(",")[1]) for p in re.split("L", s)] for s in path.split("M")[2:]]
    low, high = max(map(max, strokes)), min(map(min, strokes))
    return [[round((low - y) / (low - high), 2) for y in s] for s in strokes]


# A run that was killed in step 5 and resumed from step 2 is drawn as two strokes, with the validation losses.
row = lambda step, loss: json.dumps({"iteration": step, "lm_loss": loss})
valid = lambda step, loss: json.dumps({"kind": "validation", "iteration": step, "loss": loss})
log.write_text("\n".join(['{"kind": "run", "iteration": 0}', row(1, 5), row(2, 4), row(3, 3), valid(3, 8),
                          row(4, 2), '{"itera', '{"kind": "run", "iteration": 2}', row(3, 2), row(4, 1),
                          valid(4, 7), ""]))
assert drawn_lines(1) == [[1, 0.75, 0.5, 0.25], [0.25, 0]], drawn_lines(1)
assert drawn_lines(1, "--smooth", 2) == [[1, 0.86, 0.57, 0.29], [0.14, 0]], drawn_lines(1, "--smooth", 2)
assert drawn_lines(2) == [[1, 0]]
print(f"scripts: {len(names)} say how they are called")
