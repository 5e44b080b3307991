"""With weights in FP8 blocks, logits equal those of transformers. Each weight is its FP8 number times the scale of its
block, rounded to float32. If tensors do not fit or have other block sizes, they are refused with a message that names
them."""
import struct

import quantized
from harness import *
from quantized import convert, tensors

PACKED, SIDE = ROOT / "tests" / "data" / "hf" / "deepseek-fp8", 128
NAME = "model.layers.0.mlp.gate_proj.weight"
SCALE = f"{NAME}_scale_inv"


def e4m3(byte):
    exponent, fraction, sign = byte >> 3 & 15, byte & 7, -1 if byte > 127 else 1
    return sign * (2.0**(exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-9 * fraction)


VALUE = [e4m3(byte) for byte in range(256)]


def decoded(weight, scale):
    """The product of a number with 4 bits and one with 24 is exact in double precision."""
    (rows, columns), (down, across) = weight[1], scale[1]
    assert (down, across) == (-(-rows // SIDE), -(-columns // SIDE)), (weight[1], scale[1])
    scales = struct.unpack(f"<{down * across}f", scale[2])
    values = (VALUE[x] * scales[i // columns // SIDE * across + i % columns // SIDE] for i, x in enumerate(weight[2]))
    return "F32", [rows, columns], struct.pack(f"<{rows * columns}f", *values)


weights = tensors.read(PACKED / "model.safetensors")
assert weights[SCALE][1] == [3, 2], weights[SCALE][1]
saved, out = WORK / "saved", WORK / "out"
convert("--from-hf", PACKED, "--save", saved, "--check", PACKED / "reference.safetensors")
convert("--load", saved, "--to-hf", out)
expected = {n: decoded(t, weights[f"{n}_scale_inv"]) if f"{n}_scale_inv" in weights else t
            for n, t in weights.items() if not n.endswith("_scale_inv")}
assert tensors.read(out / "model.safetensors") == expected
assert "quantization_config" not in json.loads((out / "config.json").read_text())


CONFIG = json.loads((PACKED / "config.json").read_text())["quantization_config"]


def refuses(edit, *parts, **changes):
    quantized.refuses(PACKED, edit, *parts, quantization=CONFIG | changes)


kind, shape, content = weights[NAME]
norm = "model.norm.weight"
refuses({SCALE: None}, f"tensors: 1 missing: '{SCALE}'")
refuses({NAME: None}, f"tensors: 1 missing: '{NAME}'")
refuses({NAME: ("BF16", shape, 2 * content)}, f"1 of a quantized weight with another shape or dtype: '{NAME}' (BF16 [")
refuses({NAME: ("F8_E5M2", shape, content)}, f"'{NAME}' (F8_E5M2 [")
refuses({NAME: (kind, shape[::-1], content)},
        f"'{NAME}' (F8_E4M3 [{shape[1]}, {shape[0]}], fp8 has F8_E4M3 [{shape[0]}, ")
refuses({SCALE: ("F32", [2, 3], weights[SCALE][2])}, f"'{SCALE}' (F32 [2, 3], fp8 has F32 [3, 2])")
refuses({SCALE: ("BF16", [3, 2], weights[SCALE][2][:12])}, f"'{SCALE}' (BF16 [3, 2]")
refuses({NAME: (kind, shape, content[:9] + b"\x7f" + content[10:])},
        f"1 with NaN or infinity (download them again): '{NAME}' (1 of ")
refuses({f"{norm}_scale_inv": weights[SCALE]}, f"1 unexpected: '{norm}_scale_inv'")
for size in [64, 128], [128], None:
    refuses({}, "weight_block_size for the method 'fp8' must be [128, 128]", weight_block_size=size)
refuses({}, "with the unsupported method 'fbgemm_fp8' (quantization_config); use the unquantized weights", quant_method="fbgemm_fp8")
