#!/usr/bin/env python3
"""Encodes random and awkward texts with the library of a tokenizer's file (tokenizers, sentencepiece or tiktoken) and
with build/<preset>/tests/tokenize. Every id, every decoded byte and, except with tiktoken, the characters that each id
represents must be equal.

usage: tools/oracle/compare_tokenizer.py --program build/cpu/tests/tokenize FILE... [--count 10000] [--seed 1]

If any result differs, prints the first such texts and exits with status 1. A FILE is a tokenizer.json, a .model, a
.tiktoken, or GPT-2's pair as "vocab.json,merges.txt"."""
import random, struct, subprocess

from cli import Command, Failed, count, program

command = Command(__doc__, "tokenizers")
command.add_argument("--program", type=program, required=True)
command.add_argument("--count", type=count, default=10000)
command.add_argument("--seed", type=int, default=1)
command.add_argument("files", nargs="+")
command.parse_args()

from awkward import ADD_SPECIAL, AS_TEXT, SKIP_SPECIAL, original, text


class Ours:
    def __init__(self, program, *arguments):
        self.p = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def number(self):
        return struct.unpack("=I", self.p.stdout.read(4))[0]

    def __call__(self, raw, flags=0):
        self.p.stdin.write(struct.pack("=II", flags, len(raw)) + raw)
        self.p.stdin.flush()
        n = self.number()
        if n == 0xFFFFFFFF: return self.p.stdout.read(self.number()).decode(), [], b""
        numbers = struct.unpack(f"={n}i{2 * n}I", self.p.stdout.read(12 * n))
        return list(numbers[:n]), list(zip(numbers[n:2 * n], numbers[2 * n:])), self.p.stdout.read(self.number())


def main(a):
    wrong = 0
    for path in a.files:
        try:
            arguments, theirs, added = original(path)
        except Exception as e:  # the libraries raise no other exceptions
            raise Failed(f"{path} is nothing that its library reads: {e}") from None
        ours, rng = Ours(a.program, *arguments), random.Random(a.seed)
        bad = 0
        for i in range(a.count):
            raw = text(rng, added)
            flags = rng.choice([0, 0, ADD_SPECIAL, AS_TEXT, SKIP_SPECIAL]) if arguments[0][:3] in ("Hug", "GPT") else 0
            ids, decoded = theirs(raw, flags)
            spans = theirs.spans(raw, flags) if hasattr(theirs, "spans") else None
            got, at, back = ours(raw, flags)
            if got == ids and back.decode("utf-8", errors="replace") == decoded and spans in (None, at): continue
            bad += 1
            if bad <= 5: print(f"{path}: text {i} {raw!r} flags {flags}\n  theirs {ids} {decoded!r} {spans}\n  ours   "
                               f"{got} {back!r} {at}")
        print(f"{path}: {a.count - bad} of {a.count} texts "
              f"equal{', spans included' if hasattr(theirs, 'spans') else ''}")
        wrong += bad
    return int(wrong > 0)


command.run(main)
