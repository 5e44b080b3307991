#!/usr/bin/env python3
"""Writes tests/data/hf/defaults.json: for each Hugging Face model type, transformers' default values for the keys of
config.json that src/ckpt/hf mentions, and other names for these keys.

usage: tools/oracle/hf_defaults.py"""
import json
import pathlib
import re

from cli import Command

command = Command(__doc__, "transformers")
command.parse_args()

import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src/ckpt/hf"
# Types whose default values do not describe a model that Isotron supports.
COMPLETED = {"dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2, "norm_topk_prob": True},
             "deepseek_v2": {"num_experts_per_tok": 2}, "ministral": {"head_dim": 128},
             "granitemoehybrid": {"rms_norm_eps": 1e-5}}
# Without the number of MTP layers, a model has none, as before transformers 5. transformers computes the attention
# multiplier of hyperclovax from the size of a head. Two keys repeat T5's feed_forward_proj. The others do not describe
# the model.
LEFT_OUT = {"num_nextn_predict_layers", "attention_multiplier of hyperclovax", "architectures", "id2label", "label2id",
            "problem_type", "bos_token_id", "eos_token_id", "pad_token_id", "dense_act_fn", "is_gated_act"}

# Keys that transformers does not read in an object inside config.json.
INNER = {"model_type", "max_position_embeddings", "type"}


def kept(values, of, words):
    return {key: kept(x, of, words - INNER) if isinstance(x, dict) else x for key, x in values.items()
            if key in words and not {key, f"{key} of {of}"} & LEFT_OUT and (key, x) != ("is_encoder_decoder", False)}


def main(_):
    words = {word for path in SOURCES.iterdir() for word in re.findall(r'"(\w+)"', path.read_text())}
    words |= {"full_attention", "sliding_attention"}
    types = re.findall(r'^HF_TYPE\(\w+, "([^"]+)"', (ROOT / "src/config/hf_types.def").read_text(), re.M)
    rows = [f'"{name}": ' + json.dumps(kept(transformers.CONFIG_MAPPING[name](**COMPLETED.get(name, {})).to_dict(),
                                            name, words), separators=(",", ":")).replace("Infinity", '"Infinity"')
            for name in types]  # jansson reads no infinities
    aliases = {name: {of: key for of, key in transformers.CONFIG_MAPPING[name].attribute_map.items() if key in words}
               for name in types}
    provenance = json.dumps({"generator": "tools/oracle/hf_defaults.py", "transformers": transformers.__version__})
    (ROOT / "tests/data/hf/defaults.json").write_text(
        f'{{\n"provenance": {provenance},\n' + ",\n".join(rows)
        + f',\n"aliases": {json.dumps(aliases)}\n}}\n')
    return 0


command.run(main)
