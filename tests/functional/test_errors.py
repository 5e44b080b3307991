"""For every kind of invalid input, the program prints an error message that names it, exits with a non-zero status and
overwrites nothing."""
import fcntl
import os

from harness import *

data = corpus()
saved = WORK / "saved"
pretrain(data, saved)


def refuses(status, *parts, words):
    out = isotron(*words, expect=status)
    for part in parts:
        assert part in out, f"'{part}' is missing in: {out}"


refuses(2, "hiden-size", "hidden-size", words=["pretrain", "--hiden-size", 64])
refuses(2, "--num-attention-heads", "--seq-length", "--lr", words=["pretrain", "--hidden-size", 64, "--num-layers", 2])
refuses(2, "nothing.idx", words=[*BASE, "--data-path", WORK / "nothing"])
refuses(2, "pretrian", "pretrain", words=["pretrian"])
refuses(2, "--num-layers is 3, but the checkpoint has 2", words=[*BASE, *data, "--num-layers", 3, "--load", saved])
refuses(2, "contains no checkpoint", words=[*BASE, *data, "--load", WORK / "none", "--exit-on-missing-checkpoint"])
# must fail before the first step, not after the last
refuses(2, "is not a folder", words=[*BASE, *data, "--save", WORK / "run.conf"])
refuses(2, "--seq-length is 16", "--finetune", words=[*BASE, *data, "--seq-length", 16, "--load", saved])
refuses(2, "golden case", words=["parity", WORK])
refuses(2, "7 layers cannot be divided evenly",
        words=["inspect", "--schedule", "--num-layers", 7, "--pipeline-model-parallel-size", 2,
                                   "--micro-batch-size", 1, "--global-batch-size", 4])
refuses(2, "--schedule needs", words=["inspect", "--schedule", "--num-layers", 8])
refuses(2, "optimizer state already need", "TiB", "smaller model", words=[*BASE, *data, "--hidden-size", 1 << 20])
refuses(2, "GiB for activations", "lower --micro-batch-size",
        words=[*BASE, *data, "--micro-batch-size", 1 << 20, "--global-batch-size", 1 << 20])
refuses(2, "--gemm-sm-margin", "--device cuda", words=[*BASE, *data, "--gemm-sm-margin", 4])
refuses(2, "--vocab-size of at least 256", words=[*BASE, *data, "--vocab-size", 40])

flipped = WORK / "flipped"
shutil.copytree(saved, flipped)
shard = shards(flipped, 12)[0]
bytes_ = bytearray(shard.read_bytes())
bytes_[len(bytes_) // 2] ^= 1
shard.write_bytes(bytes_)
refuses(2, "shard_00000.bin", words=[*BASE, *data, "--load", flipped])

nan = isotron(*BASE, *data, "--lr", 1e6, "--clip-grad", 0, "--train-iters", 30, "--save", WORK / "nan", expect=1)
assert "not finite" in nan, nan
# Only one run may write to a folder. The lock is the kernel's (flock), so a killed run leaves no lock.
writer = os.open(saved, os.O_RDONLY)
fcntl.flock(writer, fcntl.LOCK_EX)
refuses(2, "another run is saving", words=[*BASE, *data, "--load", saved, "--save", saved])
os.close(writer)
refuses(2, "positions", words=["generate", "--load", saved, *TOKENIZER, "--prompt", "x" * 40])
refuses(2, "--prompt", words=["generate", "--load", saved, *TOKENIZER])
