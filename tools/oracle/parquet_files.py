#!/usr/bin/env python3
"""Writes tests/data/parquet: rows of strings in files written by Apache Arrow, and the same rows as JSON Lines.

usage: tools/oracle/parquet_files.py

CODEC-v1.parquet and CODEC-v2.parquet have data pages of version 1 or 2, several row groups with several pages each, and
a column for each encoding. The column `overflow` begins with a dictionary and continues in encoding PLAIN. rows.jsonl
contains the same rows. A null is a missing key. empty-groups.parquet has these rows, and row groups without rows at the
beginning, between others and at the end. The files in empty/ have N row groups without rows."""
import json
from pathlib import Path

from cli import Command

command = Command(__doc__, "pyarrow")
command.parse_args()

import pyarrow as pa
import pyarrow.parquet as pq

OUT = Path("tests/data/parquet")
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]
ENCODINGS = {"plain": "PLAIN", "lengths": "DELTA_LENGTH_BYTE_ARRAY", "deltas": "DELTA_BYTE_ARRAY"}
ROWS = 41
AWKWARD = ["", "\0", "a\tb\r\n\"c\\", "\x7f\x1f", "\u00e9 \u4e2d\u6587", "\U0001f469\u200d\U0001f466", " "]


def text(i):
    """Returns a text with a common prefix and a random end, which is sometimes unusual or long."""
    if i % 6 == 5:
        return AWKWARD[i // 6 % len(AWKWARD)]
    return f"row {'abcde'[:i % 6]}{i * i}" + " and so on" * (9 if i % 20 == 3 else 0)


strings = [text(i) for i in range(ROWS)]
columns = {name: pa.array(strings, pa.string()) for name in ENCODINGS} | {
    "number": pa.array(range(ROWS), pa.int64()),
    "dictionary": pa.array([AWKWARD[i * i % 5] for i in range(ROWS)], pa.string()),
    "list": pa.array([[s, s] for s in AWKWARD] * 5 + [[]] * 6, pa.list_(pa.string())),
    "overflow": pa.array([text(i * 7 % 20) for i in range(ROWS)], pa.string()),
    "nulls": pa.array([None if i % 5 < 2 or 20 < i < 34 else text(i) for i in range(ROWS)], pa.string()),
    "null_lengths": pa.array([None if i % 3 == 1 else text(i) for i in range(ROWS)], pa.string()),
}
table = pa.table(columns)
table = table.cast(pa.schema([f.with_nullable(f.name != "plain") for f in table.schema]))
rows = [{k: v for k, v in row.items() if isinstance(v, str)} for row in table.to_pylist()]
OUT.mkdir(parents=True, exist_ok=True)
(OUT / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def options(codec, version):
    # the encodings PLAIN_DICTIONARY and RLE_DICTIONARY
    return dict(compression=codec, data_page_version=f"{version}.0", version={"1": "1.0", "2": "2.6"}[version],
                use_dictionary=["dictionary", "overflow", "nulls"], dictionary_pagesize_limit=150, data_page_size=200,
                write_batch_size=6, store_schema=False, write_statistics=False, write_page_checksum=codec == "gzip",
                column_encoding=ENCODINGS | {"null_lengths": ENCODINGS["lengths" if version == "1" else "deltas"]})


for codec in CODECS:
    for version in "1", "2":
        pq.write_table(table, OUT / f"{codec}-v{version}.parquet", row_group_size=23, **options(codec, version))


def write_groups(path, *bounds):
    with pq.ParquetWriter(path, table.schema, **options("zstd", "2")) as writer:
        for begin, end in bounds:
            writer.write_table(table.slice(begin, end - begin))


write_groups(OUT / "empty-groups.parquet", (0, 0), (0, 23), (23, 23), (23, 23), (23, ROWS), (ROWS, ROWS))
(OUT / "empty").mkdir(exist_ok=True)
for groups in 0, 1, 2:
    write_groups(OUT / f"empty/{groups}.parquet", *[(0, 0)] * groups)
