#!/usr/bin/env python3
"""Writes tests/data/hf/gpt-oss-mxfp4, a small GPT-OSS with weights in MXFP4, and gpt-oss-bf16, the same model in
bfloat16. Also writes deepseek-fp8, a small DeepSeek-V3 with weights in FP8 blocks, and the logits of the decoded
weights.

usage: tools/oracle/hf_quantized.py

The numbers and scales of MXFP4 are drawn at random, and decoded by the formulas of OCP's Microscaling Formats (MX)
Specification 1.0. transformers must decode the same weights. Its logits are in gpt-oss-bf16/reference.safetensors."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

from cli import Command

command = Command(__doc__, "torch transformers safetensors numpy")
command.parse_args()

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

OUT = Path("tests/data/hf")
CONFIG = {"vocab_size": 37, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8,
          "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2,
          "max_position_embeddings": 40, "sliding_window": 5, "initializer_range": 0.4,
          "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
DEEPSEEK = {"vocab_size": 37, "hidden_size": 140, "intermediate_size": 260, "moe_intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 24,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1, "max_position_embeddings": 40, "initializer_range": 0.1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
QUANTIZATION = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def decode(numbers, scales):
    """Decodes numbers [.., groups, 32] of 4 bits, and returns [.., groups * 32]."""
    values = np.array(MAGNITUDES + [-x for x in MAGNITUDES])[numbers] * 2.0 ** (scales[..., None].astype(float) - 127)
    return values.reshape(*values.shape[:-2], -1)


def quantized(random, shape):
    """Returns random blocks and scales of a weight [expert, out, in], and the values [expert, in, out]. Most scales are
    near 2^-3, and some are the smallest possible scales."""
    numbers = random.integers(16, size=(*shape[:2], shape[2] // 32, 32))
    scales = random.integers(122, 127, size=numbers.shape[:3])
    scales[0, 0, 0], scales[-1, -1, 0] = 0, 1
    blocks = numbers[..., ::2] | numbers[..., 1::2] << 4
    as_bytes = [torch.from_numpy(x.astype(np.uint8)) for x in (blocks, scales)]
    values = torch.from_numpy(decode(numbers, scales)).transpose(1, 2).contiguous()
    assert torch.equal(values.bfloat16().double(), values), "a value that bfloat16 does not hold"
    return *as_bytes, values.bfloat16()


def deepseek():
    """Quantizes to blocks of 128 x 128; the last blocks may be smaller. torch converts the numbers."""
    folder = OUT / "deepseek-fp8"
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("deepseek_v3", **DEEPSEEK))
    with tempfile.TemporaryDirectory() as plain:
        plain = Path(plain)
        model.to(torch.float32).save_pretrained(plain)
        weights = load_file(plain / "model.safetensors")
        stored = dict(weights)
        for name in [n for n in weights if n.endswith(("proj.weight", "_with_mqa.weight"))]:
            rows, columns = weights[name].shape
            scale = torch.rand(-(-rows // 128), -(-columns // 128)) / 2000 + 1e-4
            spread = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
            stored[name] = (weights[name] / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"], weights[name] = scale, stored[name].float() * spread
        save_file(weights, plain / "model.safetensors", {"format": "pt"})
        folder.mkdir(exist_ok=True)
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        subprocess.run([sys.executable, HERE / "hf_logits.py", plain, folder / "reference.safetensors", "--length",
                        "12"],
                       check=True)
        config = json.loads((plain / "config.json").read_text()) | {"quantization_config": BLOCKS}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)


def gpt_oss():
    random = np.random.default_rng(1)
    plain, packed = OUT / "gpt-oss-bf16", OUT / "gpt-oss-mxfp4"
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("gpt_oss", **CONFIG))
    model.to(torch.bfloat16).save_pretrained(plain)
    (plain / "generation_config.json").unlink()
    weights = load_file(plain / "model.safetensors")
    stored = dict(weights)
    for name in [n for n in weights if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = stored.pop(name).shape
        stored[f"{name}_blocks"], stored[f"{name}_scales"], weights[name] = quantized(random, (experts, rows, columns))
    for folder, tensors in (plain, weights), (packed, stored):
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION}, indent=2) + "\n")
    decoded = transformers.AutoModelForCausalLM.from_pretrained(
        packed, dtype="auto", quantization_config=transformers.Mxfp4Config(dequantize=True)).state_dict()
    assert all(torch.equal(decoded[n], weights[n]) for n in weights), "transformers decodes other weights"
    subprocess.run([sys.executable, HERE / "hf_logits.py", plain, plain / "reference.safetensors", "--length", "24"],
                   check=True)
    for file in (*plain.iterdir(), *packed.iterdir()):
        file.chmod(0o644)


def main(_):
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1)
    gpt_oss()
    deepseek()


command.run(main)
