#!/usr/bin/env python3
"""Random and awkward texts through the `tokenizers` library and through build/<preset>/tests/tokenize: every id and every
decoded byte must be equal.

    tools/oracle/compare_tokenizer.py --program build/cpu/tests/tokenize tokenizer.json... [--count 10000] [--seed 1]

Ends with status 1 and the first differing texts if anything differs. GPT-2's pair of files is given as
"vocab.json,merges.txt"."""
import argparse, random, struct, subprocess, sys
import called
import tokenizers
from awkward import text

ADD_SPECIAL, AS_TEXT, SKIP_SPECIAL = 1, 2, 4


class Ours:
    def __init__(self, program, *arguments):
        self.p = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def number(self):
        return struct.unpack("=I", self.p.stdout.read(4))[0]

    def __call__(self, raw, flags=0):
        self.p.stdin.write(struct.pack("=II", flags, len(raw)) + raw)
        self.p.stdin.flush()
        n = self.number()
        if n == 0xFFFFFFFF: return self.p.stdout.read(self.number()).decode(), b""
        ids = list(struct.unpack(f"={n}i", self.p.stdout.read(4 * n)))
        return ids, self.p.stdout.read(self.number())


def theirs(tok, raw, flags):
    s = raw.decode("utf-8", errors="replace")
    tok.encode_special_tokens = bool(flags & AS_TEXT)
    ids = tok.encode(s, add_special_tokens=bool(flags & ADD_SPECIAL)).ids
    return ids, tok.decode(ids, skip_special_tokens=bool(flags & SKIP_SPECIAL))


def gpt2(vocab, merges):
    tok = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab, merges))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    tok.add_special_tokens(["<|endoftext|>"])
    return tok


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--program", required=True)
    a.add_argument("--count", type=int, default=10000)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("files", nargs="+")
    a.error = called.refuse
    a = a.parse_args()
    wrong = 0
    for path in a.files:
        pair = path.split(",")
        try:
            tok = gpt2(*pair) if len(pair) == 2 else tokenizers.Tokenizer.from_file(path)
        except Exception as e:  # the library has no other
            called.refuse(f"{path} is nothing that tokenizers reads: {e}")
        tok.no_truncation(), tok.no_padding()
        added = [t.content for t in tok.get_added_tokens_decoder().values()]
        arguments = ["GPT2BPETokenizer", "", *pair] if len(pair) == 2 else ["HuggingFaceTokenizer", path]
        ours, rng = Ours(a.program, *arguments), random.Random(a.seed)
        bad = 0
        for i in range(a.count):
            raw = text(rng, added)
            flags = rng.choice([0, 0, ADD_SPECIAL, AS_TEXT, SKIP_SPECIAL])
            ids, decoded = theirs(tok, raw, flags)
            got, back = ours(raw, flags)
            if got == ids and back.decode("utf-8", errors="replace") == decoded: continue
            bad += 1
            if bad <= 5: print(f"{path}: text {i} {raw!r} flags {flags}\n  theirs {ids} {decoded!r}\n  ours   {got} {back!r}")
        print(f"{path}: {a.count - bad} of {a.count} texts equal (tokenizers {tokenizers.__version__})")
        wrong += bad
    sys.exit(wrong > 0)


if __name__ == "__main__": main()
