"""Computes the tokens that `isotron generate` must choose. There is no cache: the model processes the whole text again
for each token."""
import numpy as np

import draws
from decoder import Pass
from gradients import Var
from trainer import batch_of


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


def generate(o, shape, weights, prompts, stop=()):
    """Returns, for each prompt, the (token, log-probability) pairs of all tokens except the first. `stop` has words
    that end a text."""
    w, texts = {name: Var(x) for name, x in weights.items()}, []
    for number, prompt in enumerate(prompts):
        tokens, told = list(prompt), []
        while len(tokens) < len(prompt) + o.int("tokens-to-generate", 64):
            z = Pass(shape, w, batch_of(o, [np.array([*tokens, 0])])).logits().value[0]
            logprobs = z - z.max(-1, keepdims=True) - np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True))
            if not told:
                told = [(tokens[i + 1], logprobs[i, tokens[i + 1]]) for i in range(len(tokens) - 1)]
            token = choose(o, z[-1], uniform(o.int("random-seed", o.int("seed", 1234)), number << 32 | len(tokens)))
            if token == o.int("termination-id", o.eod):
                break
            told.append((token, logprobs[-1, token]))
            tokens.append(token)
            if any(word in " ".join(map(str, tokens[len(prompt):])) for word in stop):
                break
        texts.append(told)
    return texts
