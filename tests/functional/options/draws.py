"""Random numbers as functions of (seed, name, index): the words of Philox4x32-10 (Salmon et al., SC11) in order.

Names and lists of tensors of checkpoints are hashed with the XXH3 library that the program links too. The generator and
the distributions were written independently."""
import ctypes
import ctypes.util
import functools

import numpy as np

XXHASH = ctypes.CDLL(ctypes.util.find_library("xxhash"))
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


class Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


XXHASH.XXH3_64bits.restype = ctypes.c_uint64
XXHASH.XXH3_128bits.restype = Digest


@functools.lru_cache(None)
def site(name):
    return XXHASH.XXH3_64bits(name.encode(), ctypes.c_size_t(len(name.encode())))


def digest(data):
    """Returns the hash at the end of a checkpoint's list of tensors."""
    found = XXHASH.XXH3_128bits(data, ctypes.c_size_t(len(data)))
    return f"{found.high:016x}{found.low:016x}"


def philox(seed, name, block):
    """Returns the words [n, 4] of the blocks [n]."""
    key = [seed & 0xFFFFFFFF, seed >> 32]
    c = [block & LOW, block >> HALF, np.full_like(block, site(name) & 0xFFFFFFFF), np.full_like(block, site(name) >> 32)]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> HALF) ^ c[1] ^ np.uint64(key[0]), b & LOW, (a >> HALF) ^ c[3] ^ np.uint64(key[1]), a & LOW]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=-1)


def words(seed, name, index):
    """Returns 32 random bits for each element of an array of indices."""
    blocks, which = np.unique(index.astype(np.uint64).ravel() // np.uint64(4), return_inverse=True)
    return philox(seed, name, blocks)[which, (index.ravel() % 4)].reshape(index.shape)


def normals(seed, name, n):
    """Returns n standard normal random numbers by the Box-Muller method, two per block."""
    w = philox(seed, name, np.arange((n + 1) // 2, dtype=np.uint64))
    u, v = (((w[:, i] << HALF | w[:, i + 1]) >> np.uint64(11)).astype(np.float64) for i in (0, 2))
    radius, angle = np.sqrt(-2 * np.log((u + 0.5) * 2.0**-53)), 2 * np.pi * v * 2.0**-53
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[:n]


def dropout(seed, name, rate, index):
    return (words(seed, name, index) >= rate * 2.0**32) / (1 - rate)


def jitter(seed, name, eps, index):
    return 1 + eps * (2 * (words(seed, name, index) + 0.5) * 2.0**-32 - 1)


def elements(samples, shape):
    """Returns the indices of the elements of an array [samples, *shape], numbered over all samples of the run."""
    size = int(np.prod(shape))
    return (samples.reshape(-1, *[1] * len(shape)) * size + np.arange(size).reshape(shape)).astype(np.int64)
