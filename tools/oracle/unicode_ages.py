#!/usr/bin/env python3
"""Writes src/tokenizer/text/ages_table.h: the characters on which the `tokenizers` library and the Unicode tables of
Debian 12 disagree.

The library's regexes use Unicode 16, but PCRE2 10.42 and this Python (3.11) use 14. Each newer character, and each
character whose general category has changed, is mapped to an older character with the same general category, script and
UTF-8 length. The library's normalizers use Unicode 9, but utf8proc 2.8 uses 15, so the newer characters that utf8proc
decomposes, composes or reorders are listed. The library also lower-cases letters that utf8proc does not support. Its
character classes for BERT and accents come from Unicode 8 and 9, so they are listed completely.

usage: tools/oracle/unicode_ages.py > src/tokenizer/text/ages_table.h"""
import ctypes, unicodedata

from cli import Command

command = Command(__doc__, "tokenizers")
command.parse_args()

import tokenizers
from awkward import matches
from tokenizers import normalizers, pre_tokenizers

EVERY = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]
SCRIPTS = ["Han", "Hiragana", "Katakana", "Arabic", "Latin"]


def stand_ins():
    categories = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Cf".split()
    member = {name: set(matches("\\p{%s}" % name, EVERY)) for name in categories + SCRIPTS}
    kind = lambda c: (tuple(n for n in categories + SCRIPTS if c in member[n]), len(chr(c).encode()))
    old, exact, any_script = [c for c in EVERY if c in member.get(unicodedata.category(chr(c)), ())], {}, {}
    for c in old:
        names, n = kind(c)
        exact.setdefault((names, n), c), any_script.setdefault((names[0], n), c)
    new = set().union(*(member[n] for n in categories)) - set(old)
    rows = []
    for c in sorted(new):
        names, n = kind(c)
        stand_in = exact.get((names, n), any_script[names[0], n])
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == stand_in: rows[-1][1] = c
        else: rows.append([c, c, stand_in])
    return rows


lib = ctypes.CDLL("libutf8proc.so.2")


def lower():
    form, rows = normalizers.Lowercase(), []
    for c in EVERY:
        text = form.normalize_str(chr(c))
        if len(text) > 1 or ord(text) == lib.utf8proc_tolower(c): continue
        if rows and rows[-1][1] == c - 1 and rows[-1][2] - rows[-1][0] == ord(text) - c: rows[-1][1] = c
        else: rows.append([c, c, ord(text)])
    return rows


def normalizing():
    lib.utf8proc_map.restype = ctypes.c_ssize_t
    def utf8proc(s, options):
        b, p = s.encode(), ctypes.c_void_p()
        n = lib.utf8proc_map(b, ctypes.c_ssize_t(len(b)), ctypes.byref(p), 2 | options)
        return ctypes.string_at(p, n).decode()
    forms = [(normalizers.NFD(), 16), (normalizers.NFKD(), 20), (normalizers.NFC(), 8), (normalizers.NFKC(), 12)]
    differs = set()
    for form, options in forms:
        for c in EVERY:
            texts = [chr(c)] + [f"\u2460{x}" for m in "\u0334\u0345\u0323\u0300\u031b"
                                for x in (m + chr(c), chr(c) + m)]
            if any(form.normalize_str(t) != utf8proc(t, options) for t in texts): differs.add(c)
    # the second characters of compositions
    differs |= {ord(x) for c in list(differs) for x in unicodedata.normalize("NFD", chr(c))[1:]}
    rows = []
    for c in sorted(differs):
        if rows and rows[-1][1] == c - 1: rows[-1][1] = c
        else: rows.append([c, c])
    return rows


def removed(form):
    return [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and form.normalize_str(f"a{chr(c)}b") == "ab"]


def classes():
    bert = lambda **on: normalizers.BertNormalizer(**{"clean_text": False, "handle_chinese_chars": False,
                                                      "strip_accents": False, "lowercase": False} | on)
    punctuation = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000
                   and len(pre_tokenizers.Punctuation().pre_tokenize_str(f"a{chr(c)}b")) == 3]
    for name, members in [("CONTROLS", removed(bert(clean_text=True))), ("PUNCTUATION", punctuation),
                          ("NONSPACING", removed(bert(strip_accents=True))),
                          ("MARKS", removed(normalizers.StripAccents()))]:
        rows = []
        for c in members:
            if rows and rows[-1][1] == c - 1: rows[-1][1] = c
            else: rows.append([c, c])
        yield name, rows


def table(name, comment, rows):
    print(f"/* {comment} */\nstatic const uint32_t {name}[][{len(rows[0])}] = {{")
    cells = ["{" + ", ".join(f"0x{x:X}" for x in row) + "}," for row in rows]
    for i in range(0, len(cells), 4): print("    " + " ".join(cells[i:i + 4]))
    print("};")


print(f"""/* Written by tools/oracle/unicode_ages.py from tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version} and utf8proc. */
#pragma once

#include <stdint.h>

/* clang-format off */""")
table("STAND_INS", "first, last, stand-in", stand_ins())
table("UNORDERED", "first, last", normalizing())
table("LOWER", "first, last, lower case of the first", lower())
for name, rows in classes(): table(name, "first, last", rows)
print("/* clang-format on */")
