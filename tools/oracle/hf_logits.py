#!/usr/bin/env python3
"""Writes the logits that transformers computes in float64 for a model folder. `isotron convert --check` reads this
file.

usage: tools/oracle/hf_logits.py MODEL_DIR OUT.safetensors [--samples 2] [--length N] [--seed 1]

Tokens are drawn at random. --length is the number of tokens per sample (default: 32, or the model's maximum if that is
smaller). To test a sliding window, samples must be longer than the window. A T5's encoder reads texts of different
lengths, and its decoder reads the tokens that transformers' generate() chooses greedily."""
import hashlib
import platform
from pathlib import Path

from cli import Command, Failed, count

command = Command(__doc__, "torch transformers safetensors")
command.add_argument("model", type=Path)
command.add_argument("out", type=Path)
command.add_argument("--samples", type=count, default=2)
command.add_argument("--length", type=count)
command.add_argument("--seed", type=int, default=1)
command.parse_args()

import safetensors.torch
import torch
import transformers

import float64

LEAST_MARGIN = 1e-9


def read(model, args, length, random):
    """Draws the inputs of an encoder-decoder model: the encoder's tokens, their number, and the tokens that the model
    generates from them."""
    ends = torch.randint(1, length + 1, (args.samples,), generator=random)
    ends[0] = length
    mask = (torch.arange(length) < ends[:, None]).long()
    ids = torch.randint(model.config.vocab_size, (args.samples, length), generator=random) * mask
    with torch.no_grad():
        tokens = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=length - 1,
                                # the cache of transformers would only have layers for the encoder
                                do_sample=False, num_beams=1, use_cache=False)
    logits = float64.logits(model, tokens, input_ids=ids, attention_mask=mask)
    first, second = logits.topk(2).values.unbind(-1)
    return {"encoder_tokens": ids, "encoder_lengths": ends, "tokens": tokens,
            "logits": logits}, (first - second).min().item()


def main(args):
    if not (args.model / "config.json").is_file():
        raise Failed(f"'{args.model}' is no model folder: it has no config.json")
    transformers.utils.logging.disable_progress_bar()
    model, weights = float64.load(args.model)
    config = model.config if model.config.is_encoder_decoder else model.config.get_text_config()
    room = getattr(config, "max_position_embeddings", 512)
    length = args.length or min(32, room)
    if length > room:
        raise Failed(f"--length {length} is more than the {room} positions of the model")
    window = getattr(config, "sliding_window", None)
    if window and window >= length:
        print(f"note: {length} tokens do not reach beyond the sliding window of {window}: give a longer --length to "
              f"test it")
    random = torch.Generator().manual_seed(args.seed)
    if model.config.is_encoder_decoder:
        found, margin = read(model, args, length, random)
        if margin < LEAST_MARGIN:
            raise Failed(f"the two most likely tokens of a position differ by {margin:g}: rounding may choose. Try "
                         f"another --seed")
    else:
        tokens = torch.randint(config.vocab_size, (args.samples, length), generator=random)
        if "roberta" in model.config.model_type:  # RoBERTa does not count the positions of padding
            tokens[tokens == model.config.pad_token_id] = model.config.pad_token_id + 1
        found = {"tokens": tokens, "logits": float64.logits(model, tokens)}
    metadata = {
        "weights": weights, "dtype": "float64", "generator": "tools/oracle/hf_logits.py",
        "source": f"{type(model).__name__} of transformers {transformers.__version__}, torch {torch.__version__}",
        "device": f"cpu, 1 thread, {torch.backends.cpu.get_cpu_capability()}", "python": platform.python_version(),
        "arguments": f"--samples {args.samples} --length {length} --seed {args.seed}",
        "config_sha256": hashlib.sha256((args.model / "config.json").read_bytes()).hexdigest(),
    }
    safetensors.torch.save_file({name: x.contiguous() for name, x in found.items()}, args.out, metadata)
    print(f"{args.out}: {args.samples} samples of {length} tokens, vocabulary {config.vocab_size}, weights "
          f"{weights}")


command.run(main)
