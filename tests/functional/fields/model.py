"""A small GPT-2 with weights from this file, and its tokenizer, in which tokens are bytes and a few special tokens. The
logits and the choice of tokens are computed by independent code."""
import functools
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "tools/oracle"), str(ROOT / "tests/functional/options")]
import draws
import numpy as np
import tensors

SPECIAL = ["<s>", "</s>", "<pad>", "<tool_call>", "</tool_call>"]
BOS, EOS, PAD, CALL, END_CALL = range(256, 261)
ENDS = [EOS, 255]  # these tokens end a text
VOCAB = 262  # the last id has no token
HIDDEN, HEADS, LAYERS, POSITIONS, PAGE = 16, 2, 2, 160, 64
TEMPLATE = ("{# <tool_call> #}{{ mood or '' }}{{ reasoning_effort or '' }}"
            "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
            "{% for d in documents or [] %}({{ d.text }}){% endfor %}"
            "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% for c in m.tool_calls or [] %}"
            "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{{ '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}a:{% endif %}")


def rendered(messages, tools=(), documents=(), mood="", begins=True, continues=False):
    """The text of TEMPLATE. `mood` has the values of all variables."""
    text = mood + "".join(f"[{t['function']['name']}]" for t in tools) + "".join(f"({d['text']})" for d in documents)
    for m in messages:
        calls = [(c["function"]["name"], json.loads(c["function"]["arguments"] or "{}"))
                 for c in m.get("tool_calls") or []]
        content = m.get("content") or ""
        if isinstance(content, list): content = "\n".join(part["text"] for part in content)
        text += f"{m['role']}: {content}{''.join(name + json.dumps(x) for name, x in calls)}\n"
    return text[:-1] if continues else text + "a:" * begins


# ---- the tokenizer

def names():
    """The characters that represent bytes in a vocabulary (GPT-2's bytes_to_unicode)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


def encode(text, special=()):
    """The ids `special`, followed by the ids of a text. The names of special tokens become their ids."""
    ids, at = [*special], 0
    while at < len(text):
        found = next((name for name in SPECIAL if text.startswith(name, at)), None)
        ids += [256 + SPECIAL.index(found)] if found else text[at].encode()
        at += len(found or "1")
    return ids


def piece(token):
    return bytes([token]) if token < 256 else SPECIAL[token - 256].encode() if token < VOCAB - 1 else b""


def visible(token, special=False):
    """The bytes of a token in a text."""
    return piece(token) if token < 256 or special else b""


def repaired(text): return text.decode(errors="replace")


def write(folder, infinite=POSITIONS, positions=POSITIONS):
    """Writes the model and its tokenizer as Hugging Face does. In fp32, logits from position `infinite` on are not
    finite. The model has only the first `positions` positions."""
    added = [{"id": 256 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, name in enumerate(SPECIAL)]
    begin = {"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
             "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
             "pair": []}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    files = {"tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                                "pre_tokenizer": level, "post_processor": begin, "decoder": level,
                                "added_tokens": added, "model": {
                                    "type": "BPE", "vocab": {c: i for i, c in enumerate(names())}, "merges": []}},
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
                                       "eos_token": "</s>", "pad_token": "<pad>", "chat_template": TEMPLATE},
             "config.json": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB,
                             "n_layer": LAYERS, "n_embd": HIDDEN, "n_head": HEADS, "n_positions": positions,
                             "tie_word_embeddings": False, "eos_token_id": ENDS, "bos_token_id": BOS}}
    folder.mkdir()
    for name, content in files.items(): (folder / name).write_text(json.dumps(content))
    arrays = {name: np.array(x, np.float32) for name, x in weights().items()}
    arrays["transformer.wpe.weight"][infinite:] = 3e38
    arrays["transformer.wpe.weight"] = arrays["transformer.wpe.weight"][:positions]
    tensors.write(folder / "model.safetensors", {name: ("F32", x.shape, x.tobytes()) for name, x in arrays.items()},
                  {"format": "pt"})


# ---- the model

@functools.cache
def weights():
    shapes = {"wte.weight": [VOCAB, HIDDEN], "wpe.weight": [POSITIONS, HIDDEN], "ln_f.weight": [HIDDEN],
              "ln_f.bias": [HIDDEN]}
    for i in range(LAYERS):
        for name, rows, columns in (("attn.c_attn", HIDDEN, 3 * HIDDEN), ("attn.c_proj", HIDDEN, HIDDEN),
                                    ("mlp.c_fc", HIDDEN, 4 * HIDDEN), ("mlp.c_proj", 4 * HIDDEN, HIDDEN)):
            shapes |= {f"h.{i}.{name}.weight": [rows, columns], f"h.{i}.{name}.bias": [columns]}
        for name in "ln_1", "ln_2": shapes |= {f"h.{i}.{name}.{part}": [HIDDEN] for part in ("weight", "bias")}
    w = {f"transformer.{name}": np.frombuffer(tensors.weight(name, shape)[2], np.float32).reshape(shape)
         for name, shape in shapes.items()}
    head = np.frombuffer(tensors.weight("lm_head.weight", [VOCAB, HIDDEN])[2], np.float32).reshape(VOCAB, HIDDEN)
    likely = np.array([4.0 if 32 <= i < 127 or i >= 256 else 2.0 for i in range(VOCAB)], np.float32)
    return w | {"lm_head.weight": head * likely[:, None]}


def norm(x, name):
    w = weights()
    x = x - x.mean()
    return x / np.sqrt((x * x).mean() + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x, name): return x @ np.float64(weights()[f"{name}.weight"]) + weights()[f"{name}.bias"]


@functools.cache
def state(tokens):
    """The keys and values of each layer for the tokens, and the logits for the next token."""
    w, last, at = weights(), tokens[-1], len(tokens) - 1
    before = state(tokens[:-1])[0] if at else [(np.zeros((0, HIDDEN)),) * 2] * LAYERS
    x = np.float64(w["transformer.wte.weight"][last]) + w["transformer.wpe.weight"][at]
    cache = []
    for i in range(LAYERS):
        q, k, v = np.split(linear(norm(x, f"transformer.h.{i}.ln_1"), f"transformer.h.{i}.attn.c_attn"), 3)
        keys, values = (np.vstack([old, new]) for old, new in zip(before[i], (k, v)))
        cache.append((keys, values))
        heads = []
        for h in np.split(np.arange(HIDDEN), HEADS):
            score = keys[:, h] @ q[h] / math.sqrt(len(h))
            score = np.exp(score - score.max())
            heads.append(score @ values[:, h] / score.sum())
        x = x + linear(np.concatenate(heads), f"transformer.h.{i}.attn.c_proj")
        y = linear(norm(x, f"transformer.h.{i}.ln_2"), f"transformer.h.{i}.mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, f"transformer.h.{i}.mlp.c_proj")
    return cache, np.float64(w["lm_head.weight"]) @ norm(x, "transformer.ln_f")


def logits(tokens): return state(tuple(tokens))[1]


@functools.cache
def logprobs(tokens):
    z = state(tokens)[1]
    return z - z.max() - math.log(np.exp(z - z.max()).sum())


@functools.cache
def likeliest(tokens):
    """The ids of all tokens, the likeliest first."""
    return np.argsort(-logprobs(tokens), kind="stable")


@functools.cache
def uniform(seed, index):
    """A uniform random number in (0, 1) with 53 bits. A block of random words yields two numbers."""
    w = [int(x) for x in draws.philox(seed % 2**64, "generate", np.array([index // 2], np.uint64))[0]]
    high, low = w[index % 2 * 2:index % 2 * 2 + 2]
    return (((high << 32 | low) >> 11) + 0.5) * 2.0**-53


def choose(z, u, temperature=1, top_k=0, top_p=1, min_p=0):
    """Chooses from logits. min_p applies first, then top_k, then top_p, as in vLLM."""
    if temperature == 0 or top_k == 1: return int(np.argmax(z))
    with np.errstate(over="ignore"):
        weight = np.exp((z - z.max()) / temperature)
    weight[weight < min_p] = 0
    order = np.argsort(-z, kind="stable")
    if top_k > 0: weight[order[top_k:]] = 0
    if top_p < 1:
        sums = np.cumsum(weight[order])
        weight[order[1 + int(np.argmax(sums > top_p * sums[-1])):]] = 0
    return int(np.argmax(np.cumsum(weight) > u * weight.sum()))
