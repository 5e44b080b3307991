"""tools/encoder_demo from text to answers on a small manual. Passages of validation are in no other file, and no text has a header that names its section.
Each step leaves its results, and what was prepared once is used again. Without groff, the pages' source is simplified."""
import gzip
import os
import re

from harness import *

program = pathlib.Path(PROGRAM).resolve()
paragraphs = [" ".join(p.split()) for p in (ROOT / "tests/data/corpus.txt").read_text().split("\n\n") if len(p.split()) > 30 and p[0].isalpha()][:120]
for folder in ("man/man1", "man/man5", "doc/pack"):
    (WORK / folder).mkdir(parents=True)
for i, paragraph in enumerate(paragraphs):
    section = "15"[i % 2]
    page = f'.TH NAME{i} {section} "A date" "A footer"\n.SH NAME\nname{i} \\- does thing {i}\n.SH DESCRIPTION\n\\fB{paragraph}\\fP\n.SH "SEE ALSO"\nother{i}(7)\n'
    (WORK / f"man/man{section}/name{i}.{section}.gz").write_bytes(gzip.compress(page.encode()))
(WORK / "doc/pack/README.gz").write_bytes(gzip.compress(b"The pack does one thing well.\n\n+----+\n| ab |\n+----+\n"))
(WORK / "doc/pack/changelog.gz").write_bytes(gzip.compress(b"Fixed a mistake.\n"))


def run(script, *words, status=0, **variables):
    done = subprocess.run([sys.executable, ROOT / "tools" / script, *map(str, words)], cwd=WORK, capture_output=True, text=True, env=os.environ | variables)
    assert done.returncode == status, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def check_texts(folder):
    train, valid = ([line.split("\t") for line in (folder / f"{kind}.tsv").read_text().splitlines()] for kind in ("train", "valid"))
    texts = [json.loads(line)["text"] for line in (folder / "text.jsonl").read_text().splitlines()]
    whole = "\n".join(texts)
    pages = lambda text: set(re.findall(r"does thing (\d+)", text))
    of_valid, of_train = (pages("\n".join(text for _, text in rows)) for rows in (valid, train))
    assert of_valid and of_train <= pages(whole) and not of_valid & pages(whole) and len(pages(whole)) > len(paragraphs) / 2, (of_valid, of_train)
    assert all({label for label, _ in rows} == {"1", "5"} and len(rows) % 2 == 0 for rows in (train, valid))
    assert "The pack does one thing well." in whole, whole
    assert not re.search(r"A footer|A date|NAME\d|\\f|other\d|Fixed a mistake|\(1\)|^\.", whole, re.M), whole[:2000]


options = ["--program", program, "--cpu-threads", 1, "--quick", "--man", WORK / "man", "--doc", WORK / "doc", "--bert-steps", 3, "--t5-steps", 2, "--epochs", 1]
text = run("encoder_demo", *options, "--out", WORK / "out")
check_texts(WORK / "out/data")
found = json.loads((WORK / "out/results/encoders.json").read_text())
assert [(row["model"], row["steps"], len(row["curve"])) for row in found["rows"]] == [("bert", 3, 3), ("t5", 2, 2)], found
assert [row["start"] for row in found["classifier"]] == ["pretrained", "scratch"] and all(0 <= row["accuracy"][0] <= 1 for row in found["classifier"]), found
assert len(found["answers"]) == 3 and found["train"] == len((WORK / "out/data/train.tsv").read_text().splitlines()), found
assert "output of an earlier run" in run("encoder_demo", *options, "--out", WORK / "out", status=1)

# The prepared data again. A step that fails names its command, and what was measured before it is kept.
text = run("encoder_demo", *options, "--data", WORK / "out/data", "--out", WORK / "again", "--epochs", 1, "--pretrain-options=--num-layers 3", status=1)
assert "==== text" not in text and "isotron" in text and "status" in text, text
assert json.loads((WORK / "again/results/encoders.json").read_text())["rows"], text

(WORK / "bin").mkdir()
(WORK / "simple").mkdir()
run("manual_text", WORK / "simple", "--man", WORK / "man", "--doc", WORK / "doc", PATH=str(WORK / "bin"))
check_texts(WORK / "simple")
print("encoder_demo: each step works from the text to the answers")
