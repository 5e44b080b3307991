"""The masked samples that a BERT and a T5 read: Megatron-LM's masked datasets, with numpy's random generators.

See Megatron-LM core/datasets (masked_dataset.py, bert_dataset.py, t5_dataset.py, build_mapping of helpers.cpp)."""
import dataclasses
import functools
import itertools
import pathlib

import numpy as np

from samples import within

WORD = 2**64 - 1


@functools.lru_cache(None)
def lines_of(path):
    return pathlib.Path(path).read_text().split("\n")[:-1]


class Vocabulary:
    """Returns the special ids that samples need. They come from vocab.txt, to which sentinels are appended. With mock
    data, they are the last ids of the vocabulary, without padding."""
    pad = -1

    def __init__(self, o):
        if "vocab-file" not in o:
            self.size = o.int("vocab-size")
            self.cls, self.sep, self.mask, self.continues = self.size - 3, self.size - 2, self.size - 1, set()
            self.sentinels = list(range(max(0, self.size - 103), self.size - 3))
            self.bos, self.eos = self.cls, self.sep
            return
        lines = lines_of(o.text("vocab-file"))
        self.cls, self.sep, self.mask, self.pad = (lines.index(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[PAD]"))
        self.bos, self.eos = (lines.index(o.text(name, usual)) for name, usual in (("bos", "[CLS]"), ("eos", "[SEP]")))
        self.continues = {i for i, line in enumerate(lines) if line.startswith("##")}
        extra = o.int("vocab-extra-ids", 100 if o.text("tokenizer-type") == "BertWordPieceCase" else 0)
        special = o.list("tokenizer-special-tokens")
        self.size = len(lines) + len(special) + extra
        self.sentinels = list(range(self.size - extra, self.size))


def words64(seed):
    """Generates the random numbers of std::mt19937_64 (Matsumoto and Nishimura, 2000)."""
    x, low = [seed], 2**31 - 1
    for i in range(1, 312):
        x.append((6364136223846793005 * (x[-1] ^ x[-1] >> 62) + i) & WORD)
    for i in itertools.cycle(range(312)):
        mixed = x[i] & ~low | x[(i + 1) % 312] & low
        y = x[i] = x[(i + 156) % 312] ^ mixed >> 1 ^ 0xB5026F5AA96619E9 * (mixed & 1)
        y ^= y >> 29 & 0x5555555555555555
        y ^= y << 17 & 0x71D67FFFEDA60000
        y ^= y << 37 & 0xFFF7EEE000000000
        yield y ^ y >> 43


def mapping(text, begin, end, wanted, longest, least, short, seed):
    """Returns (first sentence, end, target length) of all samples, shuffled. `least` is the minimum number of sentences
    in a sample."""
    random, ratio, rows = np.random.RandomState(seed), int(1 / short + 0.5) if short > 0 else 0, []

    def target():
        number = int(random.randint(0, 2**32, dtype=np.uint32)) if ratio else 1
        return 2 + number % (longest - 1) if ratio and number % ratio == 0 else longest
    while True:
        for document in range(begin, end):
            first, last = (int(x) for x in text.first[document:document + 2])
            sizes = text.lengths[first:last]
            if last - first < least or last == first or last - first > 1 and max(sizes) > 512:
                continue
            start, size, goal = first, 0, target()
            for i in range(first, last):
                size, left = size + sizes[i - first], last - i - 1
                if left == 0 or size >= goal and left > 1 and i + 1 - start >= least:
                    rows.append((start, i + 1, goal))
                    start, size, goal = i + 1, 0, target()
        if wanted is None or len(rows) >= wanted or not rows:
            break
    for i, number in zip(range(len(rows) - 1, 0, -1), words64(seed + 1)):
        j = number % (i + 1)
        rows[i], rows[j] = rows[j], rows[i]
    return rows


class Sentences:
    """The samples of a range of documents: (sentences, target length, random generator)."""
    def __init__(self, o, source, begin, end, wanted, reserved, least):
        self.o, self.source, self.words, self.seed = o, source, Vocabulary(o), o.int("seed", 1234)
        short = o.float("short-seq-prob", 0.1)
        self.rows = mapping(source, begin, end, wanted, o.int("seq-length") - reserved, least, short, self.seed)

    def __len__(self):
        return len(self.rows)

    def text(self, i):
        first, end, target = self.rows[i]
        return [self.source[k].tolist() for k in range(first, end)], target, np.random.RandomState((self.seed + i) % 2**32)

    def spans(self, ids, target, random, longest, geometric, replaced=None):
        """Returns the masked spans of positions, in the order of the text. replaced(i) draws the token that replaces
        position i."""
        words, share = [], self.o.float("mask-prob", 0.15)
        for i, token in enumerate(ids):
            if token in (self.words.cls, self.words.sep):
                continue
            if words and token in self.words.continues:
                words[-1].append(i)
            else:
                words.append([i])
        most, order = min(share * target, max(1, round(len(ids) * share))), list(range(len(words)))
        random.shuffle(order)
        chances, taken, spans = 1 / np.arange(1, longest + 1), set(), []
        for word in order:
            if len(taken) >= most:
                break
            if geometric:
                n = min(random.geometric(0.2), longest)
            else:
                n = random.choice(longest, p=chances / chances.sum() / (chances / chances.sum()).sum()) + 1
            fitting = [span for span in (sum(words[word:word + k], []) for k in range(n, 0, -1)) if len(taken) + len(span) <= most]
            if not fitting or taken & set(fitting[0]):
                continue
            taken |= set(fitting[0])
            spans.append(fitting[0])
            for i in fitting[0] if replaced else []:
                replaced(i)
        return sorted(spans)


def padded(tokens, length, pad=-1):
    """Pads tokens with 0. Padding tokens inside the text also become 0."""
    return np.array([*(0 if token == pad else token for token in tokens), *[0] * (length - len(tokens))])


class BertSamples(Sentences):
    def __getitem__(self, i):
        """Returns tokens, labels, mask, token types, whether the segments are swapped (1 if so), and the number of
        tokens."""
        sentences, target, random = self.text(i)
        v, pivot, swapped = self.words, len(sentences), False
        if "bert-no-binary-head" not in self.o:
            pivot = random.randint(1, len(sentences)) if len(sentences) >= 3 else 1
            swapped = random.random() < 0.5
        a, b = sum(sentences[:pivot], []), sum(sentences[pivot:], [])
        if swapped:
            a, b = b, a
        while len(a) + len(b) > target:
            longer = a if len(a) > len(b) else b
            del longer[0 if random.random() < 0.5 else -1]
        ids = [v.cls, *a, v.sep, *b, *[v.sep] * bool(b)]
        shown, length = list(ids), self.o.int("seq-length")

        def replaced(i):
            if random.random() < 0.8:
                shown[i] = v.mask
            elif random.random() >= 0.5:
                shown[i] = random.randint(0, v.size)
        chosen = sum(self.spans(ids, target, random, 3, False, replaced), [])
        mask = np.zeros(length)
        mask[chosen] = 1
        types = [0] * (len(a) + 2) + [1] * (len(ids) - len(a) - 2)
        return padded(shown, length, v.pad), padded(ids, length, v.pad) * (mask > 0), mask, padded(types, length), int(swapped), len(ids)


class T5Samples(Sentences):
    def __getitem__(self, i):
        """Returns encoder tokens, their number, decoder tokens, labels, and the number of labels."""
        sentences, target, random = self.text(i)
        ids, v, end = sum(sentences, [])[:target], self.words, 0
        encoder, decoder = [], [v.bos]
        for span, sentinel in zip(self.spans(ids, target, random, 10, True), v.sentinels):
            encoder += [*ids[end:span[0]], sentinel]
            decoder += [sentinel, *(ids[i] for i in span)]
            end = span[-1] + 1
        encoder += ids[end:]
        length, longest = len(decoder), self.o.int("decoder-seq-length")
        return (padded(encoder, self.o.int("seq-length"), v.pad), len(encoder), padded(decoder, longest, v.pad),
                padded([*decoder[1:], v.eos], longest, v.pad), length)


def open_bert(o, source, share, wanted):
    return BertSamples(o, source, *within(share, len(source.first) - 1), wanted, 3, 1 if "bert-no-binary-head" in o else 2)


def open_t5(o, source, share, wanted):
    return T5Samples(o, source, *within(share, len(source.first) - 1), wanted, 2, 1)


@dataclasses.dataclass
class BertBatch:
    """[b, s], then [b]"""
    tokens: np.ndarray
    labels: np.ndarray
    mask: np.ndarray
    types: np.ndarray
    swapped: np.ndarray
    lengths: np.ndarray

    pairs: bool

    @property
    def weights(self):
        return np.array([self.mask.sum(), len(self.tokens)][:1 + self.pairs])


@dataclasses.dataclass
class T5Batch:
    """Tokens [b, t] of the encoder and [b, s] of the decoder; lengths [b]."""
    encoder_tokens: np.ndarray
    encoder_lengths: np.ndarray
    tokens: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray

    @property
    def mask(self):
        return (np.arange(self.tokens.shape[1]) < self.lengths[:, None]).astype(float)

    @property
    def weights(self):
        return np.array([self.lengths.sum()])


def bert_batch(o, samples):
    return BertBatch(*(np.array(x) for x in zip(*samples)), "bert-no-binary-head" not in o)


def t5_batch(o, samples):
    return T5Batch(*(np.array(x) for x in zip(*samples)))
