"""Computes the tokens that `isotron generate` must choose. There is no cache: the model processes the whole text again
for each token."""
import re

import numpy as np

import draws
from decoder import Pass
from gradients import Var
from trainer import batch_of


def e4m3(y):
    """Rounds to the nearest number of E4M3, ties to even. The largest number is 448."""
    step = 2.0 ** (np.maximum(np.frexp(y)[1] - 1, -6) - 3)
    return np.clip(np.rint(y / step) * step, -448, 448)


def rounded(x, largest, to):
    """Returns q, and a factor for each row (the last axis) with which the row's largest number becomes `largest`."""
    x = np.float32(x)
    amax = np.abs(x).max(-1, keepdims=True)
    scale = np.where(amax > 0, np.float32(largest) / np.where(amax > 0, amax, np.float32(1)), np.float32(1))
    return to(np.float64(x * scale)), np.float64(np.float32(1) / scale)


class Quantized(Pass):
    """A pass with --quantization: linear layers of branches have one-byte weights and, with fp8, one-byte inputs."""
    kind, plain = "none", ()

    def linear(self, x, name):
        bias = self.w.get(f"{name}.bias")
        linear = re.search(r"\.(linear_\w+|eh_proj)$", name) and "experts" not in name
        if self.kind == "none" or not linear or name.endswith(self.plain):
            return super().linear(x, name)
        of_x, of_w = 1.0, 1.0
        if self.kind == "int8":
            w, of_w = rounded(self.w[f"{name}.weight"].value, 127, np.rint)
            x = x.value
        else:
            w, of_w = rounded(self.w[f"{name}.weight"].value, 448, e4m3)
            x, of_x = rounded(x.value, 448, e4m3)
        return Var((x @ w.T) * of_x * of_w[:, 0] + (0 if bias is None else bias.value))


def uniform(seed, index):
    """Returns a uniform random number in (0, 1) with 53 bits. A block of random words yields two numbers."""
    w = [int(x) for x in draws.philox(seed, "generate", np.array([index // 2], np.uint64))[0]]
    high, low = w[index % 2 * 2:index % 2 * 2 + 2]
    return (((high << 32 | low) >> 11) + 0.5) * 2.0**-53


def choose(o, logits, u):
    temperature, k, p = o.float("temperature", 1.0), o.int("top-k", 0), o.float("top-p", 0.0)
    if temperature == 0 or k == 1:
        return int(np.argmax(logits))
    weight = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-weight, kind="stable")
    if k:
        weight[order[k:]] = 0
    if p:
        before = np.cumsum(weight[order] / weight.sum()) - weight[order] / weight.sum()
        weight[order[1:][before[1:] > p]] = 0
    return int(np.argmax(np.cumsum(weight) > u * weight.sum()))


def logprobs_of(z):
    return z - z.max(-1, keepdims=True) - np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True))


def best_text(width, penalty, most, end, logprobs):
    """Beam search. `logprobs` returns those of the token after a list of new tokens. Returns the best list, without
    `end`."""
    texts, ended = [(0.0, [])], []
    for length in range(1, most + 1):
        found = [(total + x, [*text, token]) for total, text in texts for token, x in enumerate(logprobs(text))]
        found.sort(key=lambda it: -it[0])
        ended += [(total / length**penalty, text) for total, text in found[:width]
                  if text[-1] == end or length == most]
        ended = sorted(ended, key=lambda it: -it[0])[:width]
        texts = [it for it in found if it[1][-1] != end][:width]
        if len(ended) == width and texts[0][0] / length**penalty <= ended[-1][0]:
            break
    return [token for token in ended[0][1] if token != end]


def generate(o, shape, weights, prompts, stop=()):
    """Returns, for each prompt, the (token, log-probability) pairs of all tokens except the first. `stop` has words
    that end a text."""
    w, texts = {name: Var(x) for name, x in weights.items()}, []
    end, most = o.int("termination-id", o.eod), o.int("tokens-to-generate", 64)

    def logits(tokens):
        run = Quantized(shape, w, batch_of(o, [np.array([*tokens, 0])]))
        run.kind = o.text("quantization", "none")
        run.plain = ("linear_kv_up_proj",) if "cache-mla-latents" in o else ()
        return run.logits().value[0]

    def search(prompt):
        return best_text(o.int("beam-width"), o.float("length-penalty", 1), most, end,
                         lambda text: logprobs_of(logits([*prompt, *text]))[-1])

    def draw(prompt, number):
        tokens = list(prompt)
        while len(tokens) < len(prompt) + most:
            u = uniform(o.int("random-seed", o.int("seed", 1234)), number << 32 | len(tokens))
            token = choose(o, logits(tokens)[-1], u)
            if token == end:
                break
            tokens.append(token)
            if any(word in " ".join(map(str, tokens[len(prompt):])) for word in stop):
                break
        return tokens[len(prompt):]

    for number, prompt in enumerate(prompts):
        tokens = [*prompt, *(search(prompt) if o.int("beam-width", 0) else draw(prompt, number))]
        logprobs = logprobs_of(logits(tokens))
        texts.append([(tokens[i + 1], logprobs[i, tokens[i + 1]]) for i in range(len(tokens) - 1)])
    return texts
