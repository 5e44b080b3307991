#!/usr/bin/env python3
"""Writes tests/data/tokenizer/unicode.json, which describes how the `tokenizers` library treats every character.

usage: tools/oracle/unicode_tables.py tests/data/tokenizer/unicode.json

"matches" contains the characters that a regex matches, as pairs (gap since the previous run, length of the run). "word"
and "space" contain the characters that count as a letter next to a single_word token and as a space next to an lstrip
token. "forms" contains a hash (64-bit FNV-1a) for each normalizer and each block of 4096 characters in the planes that
have characters. The hash covers the normalized texts of `around`, one per line."""
import json
from pathlib import Path

from cli import Command

command = Command(__doc__, "tokenizers")
command.add_argument("path", type=Path)
command.parse_args()

import tokenizers
from awkward import fnv, matches
from tokenizers import AddedToken, Tokenizer, models, normalizers

BLOCK = 4096
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf".split()
PATTERNS = [f"\\p{{{name}}}" for name in [*CATEGORIES, "Han", "Hiragana", "Katakana", "Arabic",
                                          "Latin"]] + ["\\w", "\\s", "\\d"]
FORMS = {"NFD": normalizers.NFD, "NFKD": normalizers.NFKD, "NFC": normalizers.NFC, "NFKC": normalizers.NFKC,
         "Lowercase": normalizers.Lowercase}


def blocks():
    """Yields blocks of characters. Surrogates are excluded, because they are not characters."""
    for first in range(0, 0x110000, BLOCK):
        yield [c for c in range(first, first + BLOCK) if not 0xD800 <= c < 0xE000]


def around(c):
    """Returns texts with a character: alone, before and after marks of several classes, and after the first character
    of a composition."""
    return f"{c}\n{c}\u0300\u0323\na\u0301{c}\u0331\n\u1100{c}\n"


def runs(members):
    out, end = [], 0
    for c in members:
        if out and c == end: out[-1] += 1
        else: out += [c - end, 1]
        end = c + 1
    return out


def beside(token, text, begins):
    """Returns the characters with which the token begins at position `begins` of the text."""
    tokenizer = Tokenizer(models.BPE(vocab={"u": 0}, merges=[], unk_token="u"))
    tokenizer.add_tokens([token])
    found = []
    for block in blocks():
        places, all = {}, ""
        for c in block:
            places[len(all) + begins] = c
            all += text.format(chr(c))
        encoding = tokenizer.encode(all)
        found += [places[at] for i, (at, _) in zip(encoding.ids, encoding.offsets) if i == 1 and at in places]
    return found


def main(a):
    out = {"tokenizers": tokenizers.__version__,
           "matches": {p: runs(matches(p, [c for block in blocks() for c in block])) for p in PATTERNS}}
    alone = set(beside(AddedToken("zq", single_word=True), "{}zq ", 1))
    out["word"] = runs(c for block in blocks() for c in block if c not in alone)
    out["space"] = runs(beside(AddedToken("zq", lstrip=True), "a{}zq", 1))
    planes = [block for block in blocks() if block and (block[0] < 0x34000 or block[0] == 0xE0000)]
    out["forms"] = {name: [fnv(form().normalize_str("".join(map(around, map(chr, block)))).encode())
                           for block in planes]
                    for name, form in FORMS.items()}
    a.path.write_text(json.dumps(out, separators=(",", ":")) + "\n")


command.run(main)
