"""Every command reads only UTF-8 text, from every kind of container, and reads the same text as Python (its codecs,
gzip, bz2, lzma, json). Anything else is refused with a message that names file, line and byte."""
import bz2
import gzip
import hashlib
import io
import lzma
import random
import re
import struct
import tarfile
import zipfile
import zlib

from harness import *

PREFIX = WORK / "out"
FORMATS = [["--input-format", "text"], ["--input-format", "paragraphs"], []]
BLOCK = 1 << 16  # the size of the program's buffers


def write(name, data):
    (WORK / name).write_bytes(data)
    return WORK / name


def documents(prefix=PREFIX, key="text"):
    """Returns the texts in a dataset that was made with ByteLevelTokenizer."""
    index, tokens = (pathlib.Path(f"{prefix}_{key}_document.{end}").read_bytes() for end in ("idx", "bin"))
    sequences, entries = struct.unpack_from("<QQ", index, 18)
    ends = [0]
    for length in struct.unpack_from(f"<{sequences}i", index, 34):
        ends.append(ends[-1] + length)
    starts = struct.unpack_from(f"<{entries}q", index, 34 + 12 * sequences)
    text = bytes(struct.unpack(f"<{len(tokens) // 2}H", tokens))
    return [text[ends[a]:ends[b]] for a, b in zip(starts, starts[1:])]


def amount(n, noun):
    return f"{n} {noun}" + "s" * (n != 1)


def preprocess(*files, options=(), expect=0):
    said = isotron("preprocess", "--input", *files, "--output-prefix", PREFIX, "--overwrite", *TOKENIZER,
                   *options, expect=expect)
    if expect: return said
    index, tokens = (pathlib.Path(f"{PREFIX}_text_document.{end}").read_bytes() for end in ("idx", "bin"))
    sequences, entries = struct.unpack_from("<QQ", index, 18)
    counts = [amount(entries - 1, "document"), amount(sequences, "sequence"), amount(len(tokens) // 2, "token")]
    assert "--json-keys" in options or f"{', '.join(counts)} in " in said, (counts, said)
    return documents()


def refuses(words, parts, stdin=None):
    """Checks that a command ends with a user error whose message has these parts."""
    done = subprocess.run([PROGRAM, *map(str, words)], stdin=stdin, capture_output=True, text=True,
                          errors="replace", timeout=60)
    assert done.returncode == 2 and all(part in done.stderr for part in parts), (words, parts, done)


def commands(file, line):
    """Yields every command that reads texts from a file. With JSON Lines, an earlier line may be refused first."""
    for options in FORMATS[:3 if line == 1 else 2]:
        yield ["preprocess", "--input", file, "--output-prefix", WORK / "refused", *TOKENIZER, *options]
        yield ["train-tokenizer", "--input", file, "--output", WORK / "refused.json", *options]
    yield ["tokenize", "--input", file, *TOKENIZER]
    yield ["tokenize", "--text", "a", "--tokenizer-type", "BertWordPieceCase", "--vocab-file", file]
    yield ["tokenize", "--text", "a", "--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", file,
           "--merge-file", file]
    yield ["tokenize", "--text", "a", "--tokenizer-type", "GPT2BPETokenizer",
           "--vocab-file", ROOT / "tests/data/tokenizer/gpt2/vocab.json", "--merge-file", file]


# ---- bytes that are not text ----

def fault(data):
    """Returns the offset of the first byte that is NUL or not UTF-8."""
    try:
        data.decode()
        return data.index(0)
    except UnicodeDecodeError as e:
        return min(e.start, data.index(0) if 0 in data else e.start)


def archive():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a"), None)
    return out.getvalue()


def zipped():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("a", "text")
    return out.getvalue()


TEXT = "Hello\nwide w\u00f6rld, \u4e2d\u6587\n"
BAD = {name: (data, []) for name, data in {
    "latin1": b"one\ntwo\r\ncaf\xe9 au lait\n", "at the end": b"na\nca\xe9", "cut": b"a\xc3", "cut of 3": b"a\xe4\xb8",
    "cut of 4": b"a\xf0\x9f\x91", "overlong /": b"a\xc0\xafb", "overlong NUL": b"a\xc0\x80b",
    "overlong of 3": b"a\xe0\x80\xafb", "overlong of 4": b"\xf0\x8f\xbf\xbf",
    "surrogate": b"a\n\xed\xa0\x80", "pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80", "f5": b"\xf5\x80\x80\x80", "continuation": b"a\x80", "fe": b"\xfe",
    "ff": b"a\nb\nc\xff", "NUL": b"a\nb\0c", "only NUL": b"\0", "zeros": bytes(4096),
    "border": b"a" * (BLOCK - 1) + b"\xc3b", "far": b"line\n" * 40000 + b"\xe9",
    "cut at a border": b"a" * (BLOCK - 2) + b"\xf0\x9f", "marked": b"\xef\xbb\xbfa\n\xe9",
    "marked twice, cut": b"\xef\xbb\xbf\xef\xbb", "cut by a NUL": b"a\xc3\0" + b"x" * 2 * BLOCK,
}.items()}
BAD |= {"random": (bytes(random.Random(1).choices(range(256), k=3000)), ["binary data"]), "ZIP": (zipped(), ["ZIP"]),
        "tar": (archive(), ["tar"]), "PNG": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(64)), []),
        "PDF": (b"%PDF-1.7\n\xe2\xe3\xcf\xd3", ["PDF"]), "LZ4": (b"\x04\x22\x4d\x18\x64\x40\xa7", ["LZ4"]),
        "compress": (b"\x1f\x9d\x90a\x80", ["compress"])}
BAD |= {f"{name}{mark}": (TEXT.encode(code), [f"looks like {named}:"]) for name, code, named, mark in [
    ("utf-16", "utf-16", "utf-16", ""), ("utf-32", "utf-32", "utf-32", ""), ("utf-16le", "utf-16le", "utf-16le", ""),
    ("utf-16be", "utf-16be", "utf-16be", ""), ("utf-32le", "utf-32le", "utf-32le", ""),
    ("utf-32be", "utf-32be", "utf-32be", "")]}
BAD["utf-16be with a mark"] = b"\xfe\xff" + TEXT.encode("utf-16be"), ["looks like utf-16:"]
# with swapped bytes, U+4E00 is N
BAD["Chinese utf-16be"] = "\u4e00 \u4eba \u53e3\n".encode("utf-16be"), ["looks like utf-16be:"]
BAD["NUL"] = BAD["NUL"][0], ["must not contain NUL"]
RUSSIAN = "\u043f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440\n"
BAD["Russian utf-16le"] = RUSSIAN.encode("utf-16le"), ["looks like utf-16le:"]

EVERYWHERE = ["latin1", "at the end", "surrogate", "NUL", "marked", "utf-16", "utf-16le", "PNG"]
for name, (data, parts) in BAD.items():
    file, at = write("bad", data), fault(data)
    line = data[:at].count(10) + 1
    where = [f"bad', line {line}: byte 0x{data[at]:02x} at offset {at} ", *parts]
    for words in list(commands(file, line))[:99 if name in EVERYWHERE else 1]:
        refuses(words, where)
    with gzip.open(WORK / "bad.gz", "wb") as packed:  # the same inside of a container, from a pipe
        packed.write(data)
    with open(WORK / "bad.gz", "rb") as stdin:
        refuses(["tokenize", "--input", "-", *TOKENIZER], [f"'-', {where[0][6:]}"], stdin)
refuses(["tokenize", "--text", "a", b"caf\xe9".decode(errors="surrogateescape"), *TOKENIZER],
        ["text 2 of --text, line 1: byte 0xe9 at offset 3"])
for option, words in {"tokenizer-special-tokens": ["tokenize", "--text", "a", *TOKENIZER],
                      "special-tokens": ["train-tokenizer", "--input", WORK / "bad",
                                         "--output", WORK / "refused.json"]}.items():
    refuses([*words, f"--{option}", "a", "caf\udce9"], [f"text 2 of --{option}, line 1: byte 0xe9 at offset 3"])
cases = ROOT / "tests/data/cases"
hf = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", cases / "added-tokens/tokenizer.json"]
for words in commands(cases / "latin1.txt", 2):
    refuses(words + hf * (words[0] == "preprocess"), ["latin1.txt', line 1: byte 0xe9 at offset 3 is not UTF-8 text"])
assert not list(WORK.glob("refused*"))

# ---- text ----

CHARACTERS = ["\u00e9", "\u4e2d", "\U0001f469"]
MARKS = ["\ufeff", "\ufeff\ufeff", "b\n\ufeff", "b" * BLOCK + "\ufeff"]
for text in ["", "a", *(mark + "a\u00e9\n" for mark in MARKS)]:
    want = text.encode().removeprefix(b"\xef\xbb\xbf")
    file = write("good", text.encode())
    if want:
        assert preprocess(file, file, options=FORMATS[0]) == [want, want], text[-9:]
for shift in range(8):  # characters across the borders of buffers
    text = "".join("x" * (BLOCK - shift - len(c.encode()) * 3) + 9 * c for c in CHARACTERS)
    assert preprocess(write("good", text.encode()), options=FORMATS[0]) == [text.encode()], shift
bert = ROOT / "tests/fuzz/corpus/vocab-bert.txt"
plain = ["tokenize", "--text", "the cat", "--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file"]
assert isotron(*plain, bert) == isotron(*plain, write("vocab", b"\xef\xbb\xbf"
                                                      + bert.read_bytes())), "a mark in a vocabulary"

# ---- other encodings ----

ENCODED = {"latin1": "caf\u00e9 \u00ff", "latin-1": "na\u00efve", "iso8859_15": "\u20ac",
           "cp1252": "\u201cq\u201d \u20ac", "ascii": "a", "utf-8": "\u00e9", "koi8-r": "\u043f\u0440\u0438",
           "cp1251": "\u043f", "shift-jis": "\u65e5\u672c", "euc_jp": "\u65e5", "euc-kr": "\ud55c",
           "gbk": "\u4e2d\u6587", "gb18030": "\U0001f600", "big5": "\u4e2d", "utf-16": "\u4e2d\U0001f600",
           "utf_16_le": "\u0159", "utf-16be": "\u0159", "utf-32": "\u0159", "UTF-32LE": "\U0001f600", "cp437": "\u2592",
           # the last two letters may begin a combining pair, so iconv outputs them only at the end
           "iso2022_jp": "\u65e5a", "utf-7": "\u00e9", "cp1258": "\u00ea", "big5hkscs": "\u00ca"}
for name, text in ENCODED.items():
    text = "one\n" + text + "\nend " + text * 30000
    assert preprocess(write("coded.gz", gzip.compress(text.encode(name))),
                      options=[*FORMATS[0], "--input-encoding", name]) == [text.encode()], name
for name in "utf-8", "utf-16le", "utf-16be", "utf-32le", "utf-32be", "utf-7", "gb18030":
    text = "caf\u00e9\ufeff"  # only a mark at the beginning is skipped
    assert preprocess(write("coded", ("\ufeff" + text).encode(name)),
                      options=[*FORMATS[0], "--input-encoding", name]) == [text.encode()], f"a mark in {name}"
line = json.dumps({"text": "caf\u00e9"}, ensure_ascii=False) + "\n"
assert preprocess(write("coded", line.encode("utf-16")),
                  options=["--input-encoding", "utf-16"]) == ["caf\u00e9".encode()]
said = isotron("tokenize", "--input", write("coded", b"\xe9"), "--input-encoding", "latin1", *TOKENIZER)
assert json.loads(said)["ids"] == list("\u00e9".encode()), said
isotron("train-tokenizer", "--input", WORK / "coded", "--input-format", "text", "--input-encoding", "latin1",
        "--output", WORK / "t.json")
for name, data, at, line in [("cp1252", b"a\nb\x81", 3, 2), ("ascii", b"a\xe9", 1, 1), ("utf-16le", b"a\0b", 2, 1),
                             ("utf-16le", b"a\0\n\0\0\xdc", 4, 2),
                             ("shift-jis", b"a\x81", 1, 1), ("euc-jp", b"\xff", 0, 1), ("latin1", b"a\0", None, 1),
                             ("utf-32le", b"a\0\0\0\0\0\x11\0", 4, 1)]:
    where = f"line {line}: byte 0x{data[at]:02x} at offset {at} " if at is not None else "a NUL"
    said = preprocess(write("coded", data), options=[*FORMATS[0], "--input-encoding", name], expect=2)
    assert "coded'" in said and where in said and f"--input-encoding {name}" in said, (name, data, said)
for name, part in (("latn1", "did you mean latin1"), ("klingon", "common encodings are utf-8, latin1"),
                   ("latin1//IGNORE", "is unknown"), ("/", "is unknown")):
    assert part in preprocess(WORK / "coded", options=["--input-encoding", name], expect=2)

# ---- containers ----


def frame(data, window=0, last=1):
    """Returns a zstd frame of raw blocks (RFC 8878), with a window of 2^(10 + window) bytes."""
    blocks = [data[i:i + 1000] for i in range(0, len(data), 1000)] or [b""]
    return b"\x28\xb5\x2f\xfd\0" + bytes([window << 3]) + b"".join(
        struct.pack("<I", len(b) << 3 | (last and b is blocks[-1]))[:3] + b for b in blocks)


def skippable(kind, data=b""):
    return struct.pack("<II", 0x184D2A50 + kind, len(data)) + data


def lzip(data):
    """Returns a member of an lzip file, according to the manual of lzip: a header, an LZMA stream without its header, a
    checksum and sizes."""
    packed = lzma.compress(data, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA1, "dict_size": 1 << 20}])
    return b"LZIP\1\x14" + packed + struct.pack("<IQQ", zlib.crc32(data), len(data), len(packed) + 26)


lines = b"".join(b"line %d\n" % (i * 2654435761 % 2**32) for i in range(9000))
half, rest = lines[:50001], lines[50001:]
xz = lzma.compress
CONTAINERS = {
    "gzip": gzip.compress(lines), "gzip members": gzip.compress(half) + gzip.compress(b"") + gzip.compress(rest),
    "gzip, zeros": gzip.compress(lines) + bytes(3 * BLOCK),
    "gzip, zeros between": gzip.compress(half) + bytes(512) + gzip.compress(rest),
    "bzip2": bz2.compress(lines), "bzip2 streams": bz2.compress(half, 1) + bz2.compress(b"") + bz2.compress(rest),
    "bzip2, zeros": bz2.compress(lines) + bytes(9), "xz": xz(lines),
    "xz streams": xz(half, check=lzma.CHECK_SHA256) + bytes(8) + xz(rest), "xz, zeros": xz(lines) + bytes(4),
    "xz, large dictionary": xz(lines, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 3 << 29}]),
    "lzma": xz(lines, lzma.FORMAT_ALONE), "lzma, small dictionary": xz(lines, lzma.FORMAT_ALONE, preset=0),
    "zstd": frame(lines), "zstd --long=31": frame(lines, window=21), "lzip": lzip(lines),
    "lzip members": lzip(half) + lzip(rest), "zstd frames": frame(half) + frame(b"") + frame(rest),
    "empty frame first": frame(b"") + frame(lines),
    **{f"skippable {i:x}": skippable(i, b"x" * i) + frame(half) + skippable(15 - i) + frame(rest)
       + skippable(i, bytes(70000)) for i in range(16)},
}
got = preprocess(ROOT / "tests/data/text/pzstd.jsonl.zst")  # the hash is of what `zstd -d` and Python's json make of it
assert len(got) == 100 and hashlib.md5(b"\n".join(got)).hexdigest() == "1238fe5ac431c885ff8407b167b3b738", got
assert preprocess(cases / "middle.parquet") == [b"first", b"second", b"third"]
assert preprocess(cases / "nan.jsonl") == [b"first", b"second", b"third", b"fourth"]
for name, data in CONTAINERS.items():
    assert preprocess(write("packed.txt", data), write("empty.txt", b""), options=FORMATS[0]) == [lines, b""], name
    for cut in {len(data) - 1, len(data) // 2, 7} if "zeros" not in name and name[-1] not in "123456789abcde" else ():
        said = preprocess(write("torn.txt", data[:cut]), options=FORMATS[0], expect=2)
        assert "torn.txt'" in said and ("are damaged" in said or "is not UTF-8" in said), (name, cut, said)
for name, data in {"gzip": gzip.compress(lines) + b"more", "bzip2": bz2.compress(lines) + b"BZh9 more text",
                   "xz": xz(lines) + b"more text to come", "zstd": frame(lines) + b"more",
                   "zstd, zeros": frame(lines) + bytes(9)}.items():
    assert "are damaged" in preprocess(write("torn.txt", data), options=FORMATS[0], expect=2), name
for name, data in {"lzma": CONTAINERS["lzma"][:1] + struct.pack("<I", 3 << 30) + CONTAINERS["lzma"][5:],
                   "zstd": frame(lines, window=22)}.items():
    assert "its window is larger than 2 GiB: unpack the file" in preprocess(write("wide.txt", data),
                                                                      options=FORMATS[0], expect=2), name
for name in "xz, large dictionary", "zstd --long=31":  # in less address space than the window
    done = subprocess.run(["bash", "-c", 'ulimit -v 1500000; exec "$@"', "", PROGRAM, "preprocess",
                           "--input", write("large.txt", CONTAINERS[name]), "--output-prefix", WORK / "none",
                           *TOKENIZER, *FORMATS[0]], capture_output=True, text=True)
    assert done.returncode == 3 and "not enough memory" in done.stderr and "damaged" not in done.stderr, (name, done)
for name, text in ("bzip2", b"BZh9 is a name\n"), ("Parquet", b"PAR1 is text\n"), ("zstd", b"P*M\n"):
    assert preprocess(write("text.gz", text), options=FORMATS[0]) == [text], name
assert "is a Parquet file" in preprocess(write("high.txt", b"PAR1\xff\n"), options=FORMATS[0], expect=2)

# ---- JSON Lines, with Python's json as oracle ----

LINES = (ROOT / "tests/data/text/lines.txt").read_bytes().decode().split("\n")[:-1]
LINES += ['{"text": ["a","b" ,"c" , "d"]}', '{"text":[]}']
LINES += ['{"text": "a", "x": ' + "[" * depth + "]" * depth + "}" for depth in (500, 900)]
LINES += ['{"text": "a", "x": ' + '{"y":' * 900 + "NaN" + "}" * 900 + "}", '{"text": "a", "x": ' + "9" * 4000 + "}",
          '{"text": "' + "b" * 200000 + '"}']


def oracle(line):
    """Returns the text that preprocess_data.py reads from a line, or None if it fails."""
    try:
        value = json.loads(line)["text"]
        return b"".join(s.encode() for s in (value if isinstance(value, list) else [value]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


good = [line for line in LINES if oracle(line) is not None]
assert 20 < len(good) < len(LINES) - 40, (len(good), len(LINES))
for newline in "\n", "\r\n", "\r":
    for end in newline, "":
        data = newline.join(good[:5] + ["", " \t"] + good[5:]) + end
        assert preprocess(write("lines.jsonl", data.encode())) == [oracle(line) for line in good], (newline, end)
for i, line in enumerate(LINES):
    if oracle(line) is not None:
        assert preprocess(write("line.jsonl", (good[0] + "\n" + line).encode())) == [oracle(good[0]),
                                                                                     oracle(line)], line[:80]
        continue
    said = preprocess(write("line.jsonl", (good[0] + "\n" + line + "\n" + good[0]).encode()), expect=2)
    assert "line 2 of '" in said and "--input-format" not in said, (line, said)
    if said.count("the key 'text'") == 0:
        assert any(part in said for part in ("not valid JSON", "not a JSON object", "no key 'text'",
                                             "is not a string")), (line, said)
for text, part in ("Once upon a time\n", "for plain text set --input-format text"), ("[\n" + good[0] + "]\n",
                                                                                     "write each object of the list"), \
        ("{\n\"text\": \"a\"\n}\n", "write each object on one line"), ("{\"text\": \"a\n",
                                                                       "write each object on one line"), \
        ("{\"\u00e9\": x}\n", "a value is expected at column 7; correct or remove the line"):
    said = preprocess(write("line.jsonl", text.encode()), expect=2)
    assert "line 1 of '" in said and part in said, (text, said)
    assert ("--input-format" in said) == ("--input-format" in part), (text, said)
# blank lines are counted; a block ends with \r
for before, line in ("\n \t\n\n", 4), ('{"text": "' + "a" * (BLOCK - 13) + '"}\r\n', 2):
    said = preprocess(write("line.jsonl", f"{before}x\n".encode()), expect=2)
    assert f"line {line} of '" in said, said
said = isotron("train-tokenizer",
               "--input", write("lines.jsonl",
                                "\n".join(x for x in good if isinstance(json.loads(x)["text"], str)).encode()),
               "--vocab-size", 300, "--output", WORK / "t.json", "--overwrite")
assert " tokens of " in said, said

# ---- partitions: the order of preprocess_data.py ----

texts = [b"document %d of many " % i * (i % 7) for i in range(1001)]
files = [write(f"{name}.jsonl",
               b"".join(json.dumps({"text": t.decode(), "id": str(i)}).encode() + b"\n" for i, t in part))
         for name, part in (("a", list(enumerate(texts))[:400]), ("b", list(enumerate(texts))[400:]))]
write("c.jsonl", b'{"text": "x"}\n{"text": ""}\n')
whole = preprocess(*files, options=["--append-eod"])
data = [pathlib.Path(f"{PREFIX}_text_document.{end}").read_bytes() for end in ("bin", "idx")]
for n in 2, 3, 8:
    words = ["--append-eod", "--partitions", n, "--workers", 2 * n, "--json-keys", "id", "text"]
    assert preprocess(*files, options=words) == [t for i in range(n) for t in whole[i::n]], n
    assert documents(key="id") == [str(i).encode() + b"\0" for p in range(n) for i in range(len(texts))[p::n]], n
    preprocess(*files, options=[*words, "--keep-sequential-samples"])
    assert data == [pathlib.Path(f"{PREFIX}_text_document.{end}").read_bytes()
                    for end in ("bin", "idx")], f"{n} partitions in sequence"
assert preprocess(WORK / "c.jsonl", options=["--partitions", 8, "--workers", 8]) == [b"x", b""]
large = b"x" * (9 << 20)  # read alone
assert preprocess(write("d.jsonl", b'{"text": "%s"}\n{"text": "b"}\n{"text": "c"}\n' % large),
                  options=["--partitions", 2, "--workers", 2]) == [large, b"c", b"b"]
before = sorted(WORK.iterdir())
said = isotron("preprocess", "--input", *files, "--output-prefix", PREFIX, *TOKENIZER, "--find-optimal-num-workers",
               "--workers-to-check", 1, 3, 2, 4, "--partitions", 2, "--max-documents", 100,
               "--performance-dir", "x", "--workers", 2)
assert "--workers-to-check 3 is skipped: it is not a multiple of --partitions 2." in said, said
assert "--performance-dir has no effect" in said and sorted(WORK.iterdir()) == before, said
# the fastest first
rates = {workers: float(rate)
         for workers, rate in re.findall(r"^[12]\. (\d) workers: ([\d.]+) documents/s$", said, re.M)}
assert rates.keys() == {"2", "4"} and [*rates.values()] == sorted(rates.values(), reverse=True), said
assert f"number of workers is {[*rates][0]}." in said and re.findall(r"^(\d)\.", said, re.M) == ["1", "2"], said
# Two keys have as many sequences and tokens as their datasets. All documents are read before the first progress line.
ids = sum(len(str(i)) for i in range(len(texts)))
said = isotron("preprocess", "--input", *files, "--output-prefix", PREFIX, "--overwrite", *TOKENIZER,
               "--json-keys", "id", "text", "--log-interval", 300)
sequences, tokens = 1001 + sum(map(bool, texts)), ids + sum(map(len, texts))
assert f"1001 documents of each key, {sequences} sequences, {tokens} tokens in " in said, said
(docs, rate), = re.findall(r"^Processed 1001 documents \(([\d.]+) docs/s, ([\d.]+) MB/s\), time left 0 s$", said, re.M)
size, docs, rate = sum(file.stat().st_size for file in files), float(docs), 1e6 * float(rate)
assert abs(rate / docs - size / 1001) <= size / 1001 * (0.05 / docs + 5000 / rate) * 1.01, said  # both are rounded
