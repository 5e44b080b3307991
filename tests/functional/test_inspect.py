#!/usr/bin/env python3
"""inspect reports correctly: a dataset written by this test, the tensors of a model with known shapes, and the bubble
of 1F1B by its formula."""
import struct

from harness import WORK, isotron, shards

MODEL = """--num-layers 1 --hidden-size 8 --ffn-hidden-size 12 --num-attention-heads 2 --seq-length 4
  --max-position-embeddings 4 --micro-batch-size 1 --global-batch-size 1 --train-iters 1 --eval-iters 0
  --lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 9999 --save-interval 1""".split()


def dataset(code, letter, lengths, documents):
    """Writes a dataset in Megatron-LM's format: version, dtype, counts, lengths, byte offsets, and the first sequence
    of each document."""
    size, prefix = struct.calcsize(letter), WORK / f"dataset{code}"
    offsets = [size * sum(lengths[:i]) for i in range(len(lengths))]
    prefix.with_suffix(".bin").write_bytes(struct.pack(f"<{sum(lengths)}{letter}", *range(sum(lengths))))
    prefix.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths),
                                                                        len(documents)) +
                                           struct.pack(f"<{len(lengths)}i",
                                                       *lengths) + struct.pack(f"<{len(lengths)}q", *offsets) +
                                           struct.pack(f"<{len(documents)}q", *documents))
    return prefix


def check_datasets():
    for code, letter, name in (8, "H", "uint16"), (4, "i", "int32"):
        for lengths, documents in ([3, 7, 2, 7], [0, 2, 4]), ([9, 1], [0, 1, 2]), ([2, 5], [0, 2]):
            prefix = dataset(code, letter, lengths, documents)
            wanted = (f"{prefix}: {len(documents) - 1} document{'s' * (len(documents) != 2)}, {len(lengths)} "
                      f"sequences, "
                      f"{sum(lengths)} tokens of type {name}, longest sequence {max(lengths)}\n")
            found = isotron("inspect", "--dataset", prefix)
            assert found == wanted, f"{found}not {wanted}"


def check_checkpoint():
    layer, h = "decoder.layers.0", 8
    norms = [f"{layer}.input_layernorm", f"{layer}.pre_mlp_layernorm", "decoder.final_layernorm"]
    shapes = {(f"{norm}.{kind}", "whole"): (h, 1) for norm in norms for kind in ("weight", "bias")}
    shapes |= {(f"{layer}.self_attention.linear_qkv.{kind}", part): (h, columns)
               for part in "qkv" for kind, columns in (("weight", h), ("bias", 1))}
    for name, rows, columns in (("self_attention.linear_proj", h, h), ("mlp.linear_fc1", 12, h),
                                ("mlp.linear_fc2", h, 12)):
        shapes |= {(f"{layer}.{name}.weight", "whole"): (rows, columns), (f"{layer}.{name}.bias", "whole"): (rows, 1)}
    shapes |= {("embedding.word_embeddings.weight", "whole"): (9999, h),
               ("embedding.position_embeddings.weight", "whole"): (4, h)}
    wanted = {(name + kind, part): shape for (name, part), shape in shapes.items()
              for kind in ("", ".exp_avg", ".exp_avg_sq")}
    save = WORK / "saved"
    isotron("pretrain", *MODEL, "--save", save)
    head, size, *lines = isotron("inspect", "--checkpoint", save).splitlines()
    assert head == f"iteration 1, {len(wanted)} tensors", head
    count = sum(rows * columns for rows, columns in wanted.values()) // 3  # moments have the shape of their parameter
    assert size == (f"{count} parameters of {4e-6 * count:.3f} MB, "
                    f"{12e-6 * count:.3f} MB with the state of the optimizer"), size
    options = [line for line in lines if line.startswith("  ")]
    lines = lines[len(options):]
    assert {line.strip() for line in options} == {f"{MODEL[i][2:]} = {MODEL[i + 1]}"
                                                  for i in (0, 2, 4, 6, 8, 10)} | {"vocab-size = 9999"}, options
    found = {}
    for line in lines:
        _, dtype, first, rest = line.split(None, 3)
        box, name, part = rest.rsplit(None, 2)
        assert dtype == "F32" and f"{first} {box}".split(" of ")[0] == box.split("of ")[1].strip(), line
        found[name, part.strip("()")] = tuple(int(n) for n in box.split("of ")[1].strip("[] ").split(","))
    assert found == wanted, f"differ: {found.items() ^ wanted.items()}"
    assert "all stored bytes match the hashes" in isotron("inspect", "--checkpoint", save, "--verify")
    bytes_of = bytearray(shards(save, 1)[0].read_bytes())
    bytes_of[-1] ^= 1
    shards(save, 1)[0].write_bytes(bytes_of)
    assert "do not match its hash" in isotron("inspect", "--checkpoint", save, "--verify", expect=2)


def check_schedules():
    """With 1F1B, where a backward pass takes two slots, a rank waits in a fraction (p - 1) / (m + p - 1) of the
    slots."""
    for ranks, microbatches in (2, 4), (4, 4), (4, 7):
        text = isotron("inspect", "--schedule", "--num-layers", 8, "--pipeline-model-parallel-size", ranks,
                       "--global-batch-size", microbatches, "--micro-batch-size", 1)
        bubble, slots = 3 * (ranks - 1), 3 * (microbatches + ranks - 1)
        assert f"bubble: {bubble} of {slots}, {100 * bubble / slots:.1f} %" in text, text


check_datasets()
check_checkpoint()
check_schedules()
