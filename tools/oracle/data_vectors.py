#!/usr/bin/env python3
"""Writes tests/unit/data/vectors.h: the results of Megatron-LM's data code, numpy and torch for the unit tests' cases.

usage: tools/oracle/data_vectors.py MEGATRON_LM > tests/unit/data/vectors.h

MEGATRON_LM is a checkout of NVIDIA/Megatron-LM with megatron/core/datasets/helpers_cpp built (make in that folder).
The digest of a case is the MD5 of the first samples in order. A sample consists of tokens, labels (int64), loss mask
(float32), position ids and, for each row of the attention mask, its first visible column (int64). Digests of masked
datasets cover tokens, labels and loss mask, then token types, the sentence label and the length (BERT), or the
decoder's length, encoder tokens and the encoder's length (T5). """

import contextlib
import hashlib
import importlib.util
import io
import os
import sys
import tempfile
import types
import warnings
from collections import OrderedDict

from cli import Command

command = Command(__doc__, "torch numpy")
command.add_argument("megatron")

warnings.filterwarnings("ignore")
megatron = os.path.abspath(command.parse_args().megatron)
sys.path.insert(0, megatron)
with contextlib.redirect_stdout(io.StringIO()):
    import numpy
    import torch
    from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
    from megatron.core.datasets.utils import get_blend_from_list, normalize
    from megatron.core.datasets import helpers

# Loads only data_samplers.py, without the trainer from which it imports the arguments.
training = types.ModuleType("megatron.training")
training.get_args = training.mpu = None
sys.modules["megatron.training"] = training
sys.modules["megatron.training.dist_signal_handler"] = types.SimpleNamespace(DistributedSignalHandler=None)
spec = importlib.util.spec_from_file_location("data_samplers",
                                              f"{megatron}/megatron/training/datasets/data_samplers.py")
data_samplers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(data_samplers)


class Tokenizer:
    def __init__(self, vocab_size, eod, pad):
        self.vocab_size, self.eod, self.pad = vocab_size, eod, pad
        self.unique_identifiers = OrderedDict({"class": "test.Null\u00e9", "vocab_size": vocab_size,
                                               "eod_id": eod, "pad_id": pad})


def md5(data):
    return hashlib.md5(bytes(data)).hexdigest()


def array(type_, name, values):
    print(f"static const {type_} {name}[] = {{{', '.join(str(v) for v in values)}}};")


def text(name, value):
    print(f'static const char {name}[] = "{value}";')


# The sequence lengths of the three datasets. Sequence i contains 10*(i+1), 10*(i+1)+1, ..., and ends with the
# end-of-document token 0.
LENGTHS = {
    "toy": [5, 7, 3, 11, 2, 8],
    "more": [(i * 7) % 13 + 1 for i in range(1000)],
    "third": [(i * 5) % 17 + 2 for i in range(300)],
}


def write_dataset(name, dtype):
    builder = IndexedDatasetBuilder(name + ".bin", dtype=dtype)
    for i, length in enumerate(LENGTHS[name]):
        builder.add_item(torch.tensor([10 * (i + 1) + j for j in range(length - 1)] + [0]))
        builder.end_document()
    builder.finalize(name + ".idx")


def digest(dataset, count):
    h = hashlib.md5()
    for i in range(count):
        s = dataset[i]
        start = (~s["attention_mask"][0]).to(torch.int8).argmax(dim=1)
        for part in (s["tokens"], s["labels"], s["loss_mask"], s["position_ids"], start):
            h.update(part.numpy().tobytes())
    return h.hexdigest()


CASES = []


def case(name, sizes, seq=4, blend=None, per_split=None, split=None, flags=False, pad=-1, keep_last=False,
         cache=None, mock=False):
    config = GPTDatasetConfig(
        random_seed=1234, sequence_length=seq, blend=get_blend_from_list(blend), split=split, path_to_cache=cache,
        blend_per_split=[get_blend_from_list(b) for b in per_split] if per_split else None,
        tokenizer=Tokenizer(128256 if mock else 20000, 128255 if mock else 0, pad), reset_position_ids=flags,
        reset_attention_mask=flags, eod_mask_loss=flags, drop_last_partial_validation_sequence=not keep_last,
        mid_level_dataset_surplus=0.005)
    cls = MockGPTDataset if mock else GPTDataset
    datasets = BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config).build()
    for i, d in enumerate(datasets):
        if d is not None and sizes[i] != 0:
            count = min(len(d), 20 if mock else 20000)
            CASES.append((name, i, len(d), count, digest(d, count)))


class MaskedTokenizer(Tokenizer):
    """A tokenizer with 1000 ids. Multiples of 3 that are at least 200 continue a word, and the last 100 ids are
    sentinels."""
    cls, sep, mask, bos, eos = 101, 102, 103, 101, 102

    def __init__(self, pad):
        super().__init__(1000, 104, pad)
        self.inv_vocab = {i: "##a" if i % 3 == 0 and i >= 200 else "a" for i in range(1000)}
        self.additional_special_tokens_ids = list(range(900, 1000))


def write_sentences(name, documents):
    """Writes a dataset in which document i has 3 * i % 7 sentences, sentence j of the dataset has 5 * j % 23 + 1 tokens
    (two have 512 and 513), and token k has the id 1 + 31 * k % 899."""
    builder = IndexedDatasetBuilder(name + ".bin", dtype=numpy.uint16)
    sentence = token = 0
    for i in range(documents):
        for _ in range(3 * i % 7):
            length = {40: 512, 150: 513}.get(sentence, 5 * sentence % 23 + 1)
            builder.add_item(torch.tensor([1 + 31 * (token + k) % 899 for k in range(length)]))
            sentence, token = sentence + 1, token + length
        builder.end_document()
    builder.finalize(name + ".idx")


def masked_digest(dataset, count, pad, encoder):
    h = hashlib.md5()
    for i in range(count):
        s = dataset[i]
        real = s["loss_mask"].astype(bool)
        parts = [s["text_dec"] if encoder else s["text"], numpy.where(real, s["labels"], 0),
                 s["loss_mask"].astype(numpy.float32)]
        if encoder:
            dataset._pad_token_id = -1  # no text has this id, so the mask shows the length
            parts += [real.sum(), s["text_enc"], dataset[i]["enc_mask"].sum()]
            dataset._pad_token_id = pad
        else:
            length = numpy.flatnonzero(s["padding_mask"] != pad)[-1] + 1
            parts += [numpy.where(numpy.arange(len(real)) < length, s["types"], 0), numpy.int64(s["is_random"]), length]
        for part in parts:
            h.update(part.tobytes())
    return h.hexdigest()


def masked_case(name, cls, config_cls, sizes, seq, blend, split, pad=0, mask=0.15, short=0.1, ngram=3,
                geometric=False, **more):
    config = config_cls(
        random_seed=1234, sequence_length=seq, blend=get_blend_from_list(blend), split=split,
        path_to_cache="masked_cache", tokenizer=MaskedTokenizer(pad), masking_probability=mask,
        short_sequence_probability=short, masking_max_ngram=ngram, masking_do_full_word=True,
        masking_do_permutation=False, masking_use_longer_ngrams=False, masking_use_geometric_distribution=geometric,
        mid_level_dataset_surplus=0.005, **more)
    for i, d in enumerate(BlendedMegatronDatasetBuilder(cls, sizes, lambda: True, config).build()):
        if sizes[i]:
            CASES.append((name, i, len(d), min(len(d), 3000), masked_digest(d, min(len(d), 3000), pad, geometric)))


def masked_cases():
    def bert(name, sizes, seq, blend, split, head=True, **more):
        masked_case(name, BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig, sizes, seq, blend, split,
                    classification_head=head, **more)

    def t5(name, sizes, seq, blend, split, decoder, **more):
        masked_case(name, T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig, sizes, seq, blend, split, ngram=10,
                    geometric=True, sequence_length_decoder=decoder, **more)
    bert("bert", [30000, 20, 10], 40, ["sentences"], "80,10,10")
    bert("bert_long", [400, 0, 0], 160, ["sentences"], "1", mask=0.4, short=0.0)
    bert("bert_no_head", [400, 0, 0], 24, ["sentences"], "1", head=False, pad=63, short=0.3)
    bert("bert_blend", [300, 0, 0], 40, ["0.3", "sentences", "0.7", "few"], "1", short=0.15)
    t5("t5", [400, 20, 10], 40, ["sentences"], "80,10,10", 24)
    t5("t5_long", [400, 0, 0], 160, ["sentences"], "1", 140, mask=0.4, short=0.5, pad=63)


def samplers():
    for mbs, dp, total, consumed, sharding in [(2, 2, 21, 0, True), (2, 2, 21, 8, True), (2, 3, 38, 12, False),
                                               (1, 4, 26, 24, True)]:
        rows = []
        for rank in range(dp):
            s = data_samplers.MegatronPretrainingRandomSampler(None, total, consumed, mbs, rank, dp, sharding)
            got = []
            while len(got) < 6:  # two or more epochs; like the trainer's loop, restarts the sampler
                got += list(s)
            rows += [i for batch in got[:6] for i in batch]
        array("int64_t", f"CYCLIC_{mbs}_{dp}_{total}_{consumed}_{int(sharding)}", rows)


def main():
    print("/* Generated by tools/oracle/data_vectors.py; do not edit.")
    print(f" * Megatron-LM core/datasets and training/datasets (August 2026), numpy {numpy.__version__}, torch "
          f"{torch.__version__.split('+')[0]}. */")
    print("#pragma once\n\n#include <stdint.h>\n")
    print("/* clang-format off */")
    os.chdir(tempfile.mkdtemp())
    for name, dtype in (("toy", numpy.uint16), ("more", numpy.int32), ("third", numpy.uint16)):
        write_dataset(name, dtype)
        text(f"{name.upper()}_BIN", md5(open(name + ".bin", "rb").read()))
        text(f"{name.upper()}_IDX", md5(open(name + ".idx", "rb").read()))
    for name, documents in (("sentences", 200), ("few", 30)):
        write_sentences(name, documents)
    merged = IndexedDatasetBuilder("merged.bin", dtype=numpy.uint16)
    for name in sorted(["toy", "third"]):
        merged.add_index(name)
    merged.finalize("merged.idx")
    text("MERGED_BIN", md5(open("merged.bin", "rb").read()))
    text("MERGED_IDX", md5(open("merged.idx", "rb").read()))

    with contextlib.redirect_stdout(io.StringIO()):
        case("toy8", [8, 0, 0], blend=["toy"], split="1")
        case("toy12_flags", [12, 0, 0], blend=["toy"], split="1", flags=True)
        case("toy17", [17, 0, 0], blend=["toy"], split="1", cache="cache")
        case("toy_pad", [40, 0, 0], blend=["toy"], split="1", pad=21)
        case("more_split", [600, 10, 5], blend=["more"], split="969, 30, 1", seq=7, cache="cache")
        case("more_epoch", [None, None, None], blend=["more"], split="90,9,1", seq=7)
        case("blend_weights", [300, 20, 7], blend=["30", "more", "70", "third", "5", "toy"], split="60,20,20",
             seq=5, cache="cache")
        case("blend_lengths", [250, 10, 3], blend=["more", "third", "toy"], split="34,33,33", seq=2, cache="cache")
        case("blend_exhaustive", [None, None, None], blend=["more", "third", "toy"], split="34,33,33",
             seq=2, cache="cache")
        case("per_split", [300, 20, 0], per_split=[["1", "more", "3", "third"], ["1.0", "toy"], None], seq=6,
             cache="cache", flags=True)
        case("keep_last", [50, None, 0], blend=["more"], split="50,50", seq=11, keep_last=True, flags=True)
        case("mock", [1000, 20, 10], seq=1024, mock=True, cache="cache")
        torch.distributed.get_rank = lambda *_: 0  # masked datasets call it without a process group
        masked_cases()
    print("static const struct { const char *name; int split; int64_t length, count; const char *md5; } CASES[] = {")
    for name, split, length, count, value in CASES:
        print(f'    {{"{name}", {split}, {length}, {count}, "{value}"}},')
    print("};\n/* Every file of the index caches that the cases above leave, and its content. */")
    for cache in ("cache", "masked_cache"):
        print(f"static const struct {{ const char *name, *md5; }} {cache.upper()}[] = {{")
        for name in sorted(os.listdir(cache)):
            print(f'    {{"{name}", "{md5(open(f"{cache}/{name}", "rb").read())}"}},')
        print("};")

    samplers()
    for n, seed in ((10, 0), (10, 3), (1000, 7)):
        g = torch.Generator()
        g.manual_seed(seed)
        order = torch.randperm(n, generator=g)
        array("int64_t", f"RANDPERM_{n}_{seed}", order[:12].tolist())
        text(f"RANDPERM_{n}_{seed}_MD5", md5(order.numpy().tobytes()))
    state = numpy.random.RandomState(99)
    big = numpy.arange(100000, dtype=numpy.int64)
    state.shuffle(big)
    text("SHUFFLE_99_100000_MD5", md5(big.tobytes()))
    array("uint64_t", "BOUNDED_99", [f"{v}ull" for v in state.randint(0, 2**40 + 5, size=4, dtype=numpy.uint64)])
    text("GEOMETRIC_99_MD5", md5(state.geometric(0.2, size=100000).tobytes()))
    weights = [((i * 37) % 101 + 1) / 7 for i in range(300)]
    for n in (3, 8, 17, 300):
        array("double", f"NORMALIZED_{n}", [float(w).hex() for w in normalize(weights[:n])[:3]])
    print("/* clang-format on */")


main()
