"""The samples of --fim-data: fill in the middle (Megatron-LM training/datasets/fim_dataset.py), with a byte-level BPE.

Draws are the words of the Philox block of (sample, position of the first token): whether to rearrange, the two
boundaries, and whether the order is suffix, prefix, middle."""
import json
import pathlib
import re

import numpy as np

import draws

MERGES = "a b,Ġ a,c d,ab e,Ã ©,ï ¿,ï¿ ½,Ċ Ċ".split(",")
SPECIAL = "<|endoftext|> <fim_prefix> <fim_middle> <fim_suffix> <fim_pad> <p> <m> <s> <q>".split()
PIECES = [*"abcdeĠĊÃ©ï¿½", *(pair.replace(" ", "") for pair in MERGES)]
SIZE, EOD = len(PIECES) + len(SPECIAL), len(PIECES)
WORD = re.compile(r" ?[^\W\d_]+| ?[^\s\w]+|\s+(?!\S)|\s+")
# bytes that are their own letters in GPT-2's vocabulary
LETTERS = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [b for b in range(256) if b not in LETTERS]
LETTER = {b: chr(b) if b in LETTERS else chr(256 + OTHERS.index(b)) for b in range(256)}
BYTE = {letter: b for b, letter in LETTER.items()}


def documents():
    """Writes the vocabulary, and returns documents of random tokens. Some documents are empty, and some tokens are
    parts of characters."""
    pathlib.Path("code.json").write_text(json.dumps({piece: i for i, piece in enumerate(PIECES + SPECIAL)}))
    pathlib.Path("code.txt").write_text("#version: 0.2\n" + "\n".join(MERGES))
    rng = np.random.default_rng(8)
    return [np.append(rng.integers(0, len(PIECES), k), EOD) for k in rng.integers(0, 9, 80)]


class Tokens:
    """GPT-2's tokenizer."""
    def __init__(self, o):
        self.ids = json.loads(pathlib.Path(o.text("vocab-file")).read_text())
        self.pieces = {i: piece for piece, i in self.ids.items()}
        merges = pathlib.Path(o.text("merge-file")).read_text().splitlines()[1:]
        self.rank = {tuple(line.split(" ")): i for i, line in enumerate(merges)}

    def text(self, ids):
        pieces = (self.pieces[int(i)] for i in ids)
        return bytes(BYTE[x] for piece in pieces if piece != "<|endoftext|>" for x in piece).decode(errors="replace")

    def encode(self, text):
        found = []
        for word in WORD.findall(text):
            parts = [LETTER[b] for b in word.encode()]
            while pairs := [p for p in zip(parts, parts[1:]) if p in self.rank]:
                best, i = min(pairs, key=self.rank.get), 0
                while i < len(parts) - 1:
                    if (parts[i], parts[i + 1]) == best:
                        parts[i:i + 2] = ["".join(best)]
                    i += 1
            found += [self.ids[part] for part in parts]
        return found


class Filled:
    """Samples whose documents are rearranged."""
    def __init__(self, o, samples):
        self.o, self.samples, self.tokens, self.seed = o, samples, Tokens(o), o.int("seed", 1234)
        name = lambda part: self.tokens.ids[o.text(f"fim-{part}-token", f"<fim_{part}>" if part != "eod"
                                                   else SPECIAL[0])]
        self.prefix, self.middle, self.suffix, self.pad, self.eod = map(name, ("prefix", "middle", "suffix", "pad",
                                                                               "eod"))
        self.split = self.tokens.ids.get(o.text("fim-split-sample"))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        text = [int(x) for x in self.samples[i]]
        first = i * (len(text) + 1)
        filled = self.each(text, first, self.eod, self.segment)
        return np.array((filled + [self.pad] * len(text))[:len(text)])

    def each(self, text, first, end, part):
        """Rearranges the parts between tokens `end`. Empty parts are removed together with their `end`, except for the
        last part."""
        ends, out, begin = [i for i, token in enumerate(text) if token == end], [], 0
        for i in ends:
            out += [*part(text[begin:i], first + begin), end] if i > begin else []
            begin = i + 1
        return out + part(text[begin:], first + begin)

    def segment(self, text, block):
        rate = self.o.float("fim-rate", 0.5)
        if self.split not in text:
            return self.permuted(text, block, "fim", rate)
        chosen = draws.philox(self.seed, "fim", np.array([block], np.uint64))[0][0] < rate * 2**32
        return self.each(text, block, self.split, self.fragment) if chosen else text

    def fragment(self, text, block):
        return self.permuted(text, block, "fim.fragment", self.o.float("fim-fragment-rate"))

    def permuted(self, ids, block, site, rate):
        draw = [int(x) for x in draws.philox(self.seed, site, np.array([block], np.uint64))[0]]
        text = self.tokens.text(ids)
        if draw[0] >= rate * 2**32 or "fim-no-prefix" in self.o and text.startswith(self.o.text("fim-no-prefix")):
            return ids
        a, b = sorted(x * (len(text) + 1) // 2**32 for x in draw[1:3])
        prefix, middle, suffix = map(self.tokens.encode, (text[:a], text[a:b], text[b:]))
        if draw[3] < self.o.float("fim-spm-rate", 0.5) * 2**32:
            return [self.prefix, self.suffix, *suffix, self.middle, *prefix, *middle]
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle, *middle]
