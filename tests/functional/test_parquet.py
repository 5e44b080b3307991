"""Datasets and tokenizers made from Parquet files are bitwise equal to those made from JSON Lines with the same rows.
Files that cannot be read are refused with a message."""
from harness import *

FILES = ROOT / "tests/data/parquet"
KEYS = ["plain", "lengths", "deltas", "dictionary", "overflow"]


def preprocess(file, prefix, *options, expect=0):
    return isotron("preprocess", "--input", *file, "--output-prefix", WORK / prefix, "--append-eod", *TOKENIZER,
                   *options, expect=expect)


def assert_same(names, claim):
    for name in names:
        assert filecmp.cmp(WORK / name.format("lines"), WORK / name.format("rows"),
                           shallow=False), f"{claim}: {name} differs"


rows, files = FILES / "rows.jsonl", sorted(FILES.glob("*.parquet"))
assert len(files) == 13, files
preprocess([rows, rows], "lines", "--json-keys", *KEYS, "--workers", 2)
empty = sorted(FILES.glob("empty/*.parquet"))
assert len(empty) == 3, empty
for file in files:  # columns in a different order from that in the file, and files without rows
    preprocess([empty[0], rows, empty[1], file, empty[2]], "rows", "--overwrite", "--json-keys",
               *KEYS[::-1], "--workers", 2)
    assert_same([f"{{}}_{key}_document.{end}" for key in KEYS for end in ("bin", "idx")], file.name)

preprocess([rows], "lines-split", "--split-sentences", "--json-keys", "overflow")
preprocess([files[0]], "rows-split", "--split-sentences", "--json-keys", "overflow")
assert_same(["{}-split_overflow_sentence.bin", "{}-split_overflow_sentence.idx"], "sentences")

for name, file in ("lines", rows), ("rows", files[0]):
    isotron("train-tokenizer", "--input", file, "--json-key", "overflow", "--vocab-size", 300,
            "--output", WORK / f"{name}.json")
assert_same(["{}.json"], "a tokenizer")


def refuses(*parts, file=files[0], options):
    out = preprocess([file], "refused", *options, expect=2)
    for part in parts:
        assert part in out, f"'{part}' is missing in: {out}"


refuses("has 0 documents but no text", file=empty[1], options=["--json-keys", "plain"])
refuses("no column 'text'", "'overflow'", options=[])
refuses("'list'", "is nested", options=["--json-keys", "list"])
refuses("line 1 of", "there is no key 'nulls'", options=["--json-keys", "nulls"])
refuses("--input-format jsonl", options=["--input-format", "text"])
with open(files[0], "rb") as file:
    done = subprocess.run([PROGRAM, "preprocess", "--input", "-", "--output-prefix", WORK / "refused", *TOKENIZER],
                          stdin=file, capture_output=True, text=True)
assert done.returncode == 2 and "cannot be read from a pipe" in done.stderr, done.stderr
assert not list(WORK.glob("refused*"))
