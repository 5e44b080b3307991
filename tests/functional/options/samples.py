"""The tokens that a run reads: Megatron-LM's dataset index, splits, blends and samplers, with numpy's random
generators.

See Megatron-LM core/datasets (gpt_dataset.py, blended_dataset.py, helpers.cpp) and training/datasets/data_samplers.py."""
import functools
import math
import re
import struct

import fim
import numpy as np

SPLITS = "train", "valid", "test"


def write_dataset(prefix, sequences, first=None):
    """Writes a .bin/.idx pair of 16-bit tokens. first: the number of sequences before each document, and in total; None
    means that each sequence is a document."""
    first = np.arange(len(sequences) + 1) if first is None else np.array(first)
    lengths = np.array([len(d) for d in sequences], np.int32)
    starts = 2 * (np.cumsum(lengths, dtype=np.int64) - lengths)
    with open(f"{prefix}.bin", "wb") as f:
        f.write(np.concatenate(sequences).astype(np.uint16).tobytes())
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sequences), len(first)))
        f.write(lengths.tobytes() + starts.tobytes() + first.astype(np.int64).tobytes())


class Text:
    """A .bin/.idx pair: the sequences, and the index of the first sequence of each document."""
    def __init__(self, prefix):
        raw = open(f"{prefix}.idx", "rb").read()
        sequences, documents = struct.unpack_from("<QQ", raw, 18)
        self.lengths = np.frombuffer(raw, np.int32, sequences, 34)
        self.first = np.frombuffer(raw, np.int64, documents, 34 + 12 * sequences)
        self.sequences = np.split(np.fromfile(f"{prefix}.bin", np.uint16).astype(np.int64), np.cumsum(self.lengths)[:-1])

    def __getitem__(self, i):
        return self.sequences[i]


class Mock:
    """Megatron-LM's MockGPTLowLevelDataset. For masked datasets, sequences have at most 128 tokens, and a document has
    eight of them."""
    def __init__(self, o):
        self.vocab, self.eod, masked = o.int("vocab-size"), o.int("sep", o.eod), o.text("model", "gpt") != "gpt"
        self.lengths = np.random.default_rng(0).integers(1, 128 if masked else 4096, size=100000, dtype=np.int32)
        self.first = np.arange(0, 100001, 8 if masked else 1)

    def __getitem__(self, i):
        return np.append(np.arange(1, self.lengths[i]) % self.vocab, self.eod)


class Samples:
    """The samples of one split of one dataset. The order of documents and samples is shuffled with the seed."""
    def __init__(self, documents, begin, end, wanted, length, seed):
        self.documents, self.length, sizes = documents, length, documents.lengths
        tokens = int(sizes[begin:end].sum())
        epochs = 1 if wanted is None else -(-(wanted * length + 1) // tokens)
        total = (epochs * tokens - 1) // length
        before = ((epochs - 1) * tokens - 1) // length
        apart = epochs > 1 and wanted - before < int(0.8 * ((tokens - 1) // length))
        rng = np.random.RandomState(seed)

        def shuffled(order):
            rng.shuffle(order)
            return order
        copies = lambda n: shuffled(np.tile(np.arange(begin, end, dtype=np.int32), n))
        self.order = np.concatenate([copies(epochs - 1), copies(1)]) if apart else copies(epochs)
        cut = before if apart else total
        self.shuffle = np.concatenate([shuffled(np.arange(a, b, dtype=np.uint32)) for a, b in ((0, cut), (cut, total))])
        self.ends = np.cumsum(sizes[self.order], dtype=np.int64)

    def __len__(self):
        return len(self.shuffle)

    def __getitem__(self, i):
        """Returns length + 1 tokens of the concatenated documents."""
        at = int(self.shuffle[i]) * self.length
        first, last = (int(np.searchsorted(self.ends, t, side="right")) for t in (at, at + self.length))
        text = np.concatenate([self.documents[d] for d in self.order[first:last + 1]])
        begin = at - (int(self.ends[first - 1]) if first else 0)
        return text[begin:begin + self.length + 1]


class Blend:
    def __init__(self, parts, weights, size):
        self.parts, self.picked, drawn = parts, [], np.zeros(len(parts), np.int64)
        for s in range(size):
            best = int(np.argmax(weights * max(s, 1.0) - drawn))
            self.picked.append((best, int(drawn[best])))
            drawn[best] += 1

    def __len__(self):
        return len(self.picked)

    def __getitem__(self, i):
        part, sample = self.picked[i]
        return self.parts[part][sample]


def ranges(text):
    """Returns the (low, high) fractions of each split."""
    parts = [float(x) for x in re.findall(r"[.0-9]+", text)]
    parts = np.array(parts + [0.0] * (3 - len(parts)))
    ends = np.concatenate([[0.0], np.cumsum(parts / parts.sum())])
    return list(zip(ends[:-1], ends[1:]))


def parse_blend(words):
    try:
        weights = np.array([float(w) for w in words[::2]]) if len(words) % 2 == 0 else None
    except ValueError:
        weights = None
    return (words, None) if weights is None else (words[1::2], weights / weights.sum())


def within(share, n):
    return (round(x * n) for x in share)


def open_part(o, source, share, wanted):
    found = Samples(source, *within(share, len(source.lengths)), wanted, o.int("seq-length"), o.int("seed", 1234))
    return fim.Filled(o, found) if "fim-data" in o else found


def open_split(sources, weights, share, wanted, surplus, opened):
    if wanted == 0 or share[0] == share[1]:
        return None

    def part(source, n):
        return opened(source, share, n)
    if len(sources) == 1 and weights is None:
        return part(sources[0], wanted)
    if weights is None:
        parts = [part(s, None) for s in sources]
        sizes = np.array([len(p) for p in parts], float)
        return Blend(parts, sizes / sizes.sum(), min(wanted, int(sizes.sum())))
    quota = [math.ceil(wanted * w) for w in weights]
    return Blend([part(s, math.ceil(q * (1 + surplus))) for s, q in zip(sources, quota)], weights / weights.sum(), sum(quota))


def open_data(o, part, wanted):
    """Returns {split: samples or None}. `part` opens a range of documents, and `wanted` is {split: number of
    samples}."""
    surplus, opened = o.float("mid-level-dataset-surplus", 0.005), {}
    for split, share in zip(SPLITS, ranges("1,1,1" if "mock-data" in o else o.text("split", "969, 30, 1"))):
        if "mock-data" in o:
            sources, weights = [Mock(o)], None
        elif "data-path" in o:
            paths, weights = parse_blend(o.list("data-path"))
            sources = [Text(p) for p in paths]
        else:
            paths, weights = parse_blend(o.list(f"{split}-data-path"))
            share, weights = (0.0, 1.0 if paths else 0.0), weights if len(paths) > 1 else None
            sources = [Text(p) for p in paths]
        opened[split] = open_split(sources, weights, share, wanted[split], surplus, functools.partial(part, o))
    return opened


def permutation(seed, n):
    """Computes torch.randperm with a generator of this seed, for fewer than 2^32 / 20 elements."""
    words = np.random.RandomState(seed)
    order = list(range(n))
    for i in range(n - 1):
        j = i + int(words.randint(0, 2**32, dtype=np.uint64)) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order


def cyclic(total, consumed, micro, ranks, sharded):
    """Endlessly yields the sample indices of successive microbatches, rank by rank."""
    step = micro * ranks
    active = total // step * step
    while True:
        epoch, done = divmod(consumed, active)
        order = permutation(epoch, total // step * micro) if sharded else permutation(epoch, total // micro * micro)
        share = total // step * micro
        own = done // ranks
        if sharded:
            yield [rank * share + i for rank in range(ranks) for i in order[own:own + micro]]
        else:
            yield [order[done + rank + i * ranks] for rank in range(ranks) for i in range(micro)]
        consumed += step
