"""Writes the logits that transformers computes in float64 for a model folder: the file that `isotron convert --check` takes.

    python3 tools/oracle/hf_logits.py MODEL_DIR OUT.safetensors [--samples 2] [--length 32] [--seed 1]

Tokens are drawn at random. Samples longer than the model's sliding window are needed to see the window at all.
"""

import argparse
import hashlib
import platform
from pathlib import Path

import called
import safetensors.torch
import torch
import transformers

from float64 import Float64

NARROW_FIRST = ("bfloat16", "float16", "float32", "float64")


def narrowest(tensors):
    """The name of the first type that holds every number."""
    def holds(name):
        return all(torch.equal(t.to(getattr(torch, name)).double(), t.double()) for t in tensors)
    return next(name for name in NARROW_FIRST if holds(name))


def load(folder):
    """The model in float64 throughout, tables included, and the narrowest type of its weights."""
    stored = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    weights = stored.state_dict()
    with Float64():
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64).eval()
        model.config._experts_implementation = "eager"
    model.load_state_dict({n: t.double() for n, t in weights.items()})
    return model, narrowest(weights.values())


def compute(model, tokens):
    with Float64(), torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder with config.json and model.safetensors")
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--length", type=int, help="tokens of a sample; default 32, or what the model has room for")
    parser.add_argument("--seed", type=int, default=1)
    parser.error = called.refuse
    args = parser.parse_args()
    if not (args.model / "config.json").is_file():
        called.refuse(f"'{args.model}' is no model folder: it has no config.json")
    transformers.utils.logging.disable_progress_bar()
    model, weights = load(args.model)
    room = model.config.max_position_embeddings
    length = args.length or min(32, room)
    if args.samples < 1 or not 1 <= length <= room:
        called.refuse(f"--samples must be at least 1 and --length from 1 to {room}")
    window = getattr(model.config, "sliding_window", None)
    if window and window >= length:
        print(f"note: {length} tokens do not reach beyond the sliding window of {window}: give a longer --length to test it")
    tokens = torch.randint(model.config.vocab_size, (args.samples, length), generator=torch.Generator().manual_seed(args.seed))
    metadata = {
        "weights": weights, "dtype": "float64", "generator": "tools/oracle/hf_logits.py",
        "source": f"{type(model).__name__} of transformers {transformers.__version__}, torch {torch.__version__}",
        "device": f"cpu, 1 thread, {torch.backends.cpu.get_cpu_capability()}", "python": platform.python_version(),
        "arguments": f"--samples {args.samples} --length {length} --seed {args.seed}",
        "config_sha256": hashlib.sha256((args.model / "config.json").read_bytes()).hexdigest(),
    }
    safetensors.torch.save_file({"tokens": tokens, "logits": compute(model, tokens).contiguous()}, args.out, metadata)
    print(f"{args.out}: {args.samples} samples of {length} tokens, vocabulary {model.config.vocab_size}, weights {weights}")


if __name__ == "__main__":
    main()
