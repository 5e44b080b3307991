"""The reference trainer: computes the numbers that `isotron pretrain` must log and print for its options, in float64 on one rank.

Data order, batch sizes, schedules, clipping, optimizers, evaluation and resuming follow Megatron-LM
(megatron/training/training.py, core/optimizer_param_scheduler.py, core/num_microbatches_calculator.py)."""
import copy
import dataclasses
import itertools
import math

import numpy as np

import decoder
import encoder
import masked
import muon
import samples
from gradients import Var, backward

LOGGED = {"aux_loss": "load_balancing_loss", "seq_aux_loss": "seq_load_balancing_loss",
          "global_aux_loss": "global_load_balancing_loss", "z_loss": "z_loss"}


class Options(dict):
    """Returns the options of a command line: {name: [words]}."""
    def __init__(self, words):
        super().__init__()
        for word in map(str, words):
            if word.startswith("--"):
                name = word[2:]
                self[name] = []
            else:
                self[name].append(word)

    def list(self, name, otherwise=()):
        return self.get(name, otherwise)

    def text(self, name, otherwise=None):
        return self[name][0] if name in self else otherwise

    def int(self, name, otherwise=None):
        return int(self.text(name, otherwise))

    def float(self, name, otherwise=None):
        return float(self.text(name, otherwise))

    @property
    def eod(self):
        """The end-of-document id of NullTokenizer. With other tokenizers, a row of the table sets it with
        --null-tokenizer-eod-id, and the padding id with --pad."""
        return self.int("null-tokenizer-eod-id", self.int("vocab-size") - 1)

    @property
    def quantile_balancing(self):
        return "quantile_balancing" in self.list("moe-router-load-balancing-type")


@dataclasses.dataclass
class Batch:
    """[b, s]"""
    tokens: np.ndarray
    labels: np.ndarray
    mask: np.ndarray
    positions: np.ndarray
    first_key: np.ndarray
    ahead: int = 0  # number of further tokens that are predicted

    def later(self, x, k):
        """Returns the elements that are k positions ahead, or 0 if they are outside the document."""
        place = np.arange(x.shape[1])
        to = np.minimum(place + k, len(place) - 1)
        return np.where((place + k < len(place)) & (self.first_key[:, to] <= place), x[:, to], 0)

    @property
    def weights(self):
        """Returns the sums of the weights of tokens, one for each loss."""
        return np.array([self.later(self.mask, k).sum() for k in range(self.ahead + 1)])


def batch_of(o, texts):
    text = np.stack(texts)
    tokens, labels = text[:, :-1], text[:, 1:]
    place = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    ends = np.where(tokens == o.eod, place + 1, 0)  # a document begins after the last end before a token
    start = np.concatenate([np.zeros_like(ends[:, :1]), np.maximum.accumulate(ends, axis=1)[:, :-1]], axis=1)
    mask = np.where((tokens == o.eod) & ("eod-mask-loss" in o), 0.0, 1.0)
    pad = o.int("pad", o.int("null-tokenizer-pad-id", -1))
    if pad != o.eod or "allow-ambiguous-pad-tokens" in o:
        mask, tokens, labels = np.where(labels == pad, 0.0, mask), np.where(tokens == pad, 0, tokens), np.where(labels == pad, 0, labels)
    return Batch(tokens, labels, mask, place - start if "reset-position-ids" in o else place,
                 start if "reset-attention-mask" in o else np.zeros_like(start),
                 o.int("mtp-num-layers", o.text("hybrid-layer-pattern", "").count("/")))


@dataclasses.dataclass
class State:
    """The content of a checkpoint."""
    weights: dict
    moments: list
    biases: dict
    optimizer_step: int = 0
    iteration: int = 0
    consumed: int = 0
    consumed_valid: int = 0
    scheduled: int = 0  # samples of steps that were not skipped
    scale: float = 1.0  # of the loss, with the steps since it last grew and the overflows left until it shrinks
    growth: int = 0
    hysteresis: int = 0


# ---- schedules: in samples ----

def batch_sizes(o):
    """For each batch size, returns (number of samples from which it applies, size)."""
    if "step-batch-size-schedule" in o:
        scale = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
        number = lambda s: int(float(s[:-1]) * scale[s[-1].upper()]) if s[-1].upper() in scale else int(float(s))
        pairs = [p.split(":") for p in " ".join(o.list("step-batch-size-schedule")).replace(",", " ").split()]
        return [(number(tokens) // o.int("seq-length"), number(size)) for tokens, size in pairs]
    return [(0, o.int("global-batch-size" if "global-batch-size" in o else "micro-batch-size"))]


def batch_size(o, consumed):
    if "rampup-batch-size" in o:
        start, increment, over = map(int, o.list("rampup-batch-size"))
        size = o.int("global-batch-size")
        return size if consumed > over else start + int(consumed / (over / ((size - start) / increment))) * increment
    return [size for begin, size in batch_sizes(o) if begin <= consumed][-1]


def largest_batch(o):
    return o.int("global-batch-size") if "rampup-batch-size" in o else batch_sizes(o)[-1][1]


def unit(o):
    """Returns the number of samples per unit of schedule lengths, which is a step or a sample."""
    return 1 if "train-samples" in o else largest_batch(o)


def length(o, name, otherwise=None):
    option = f"{name}-{'samples' if 'train-samples' in o else 'iters'}"
    return o.int(option) * unit(o) if option in o else otherwise


def iterations(o):
    if "train-iters" in o:
        return o.int("train-iters")
    consumed = count = 0
    while consumed < o.int("train-samples"):
        consumed, count = consumed + batch_size(o, consumed), count + 1
    partial = consumed > o.int("train-samples")  # a step schedule trains such a last batch (update_train_iters); others leave it out
    return count - (partial and "step-batch-size-schedule" not in o)


def learning_rate(o, n, high, low):
    total = length(o, "train")
    decay = length(o, "lr-decay", total)
    warmup = o.float("lr-warmup-fraction") * decay if "lr-warmup-fraction" in o else length(o, "lr-warmup", 0)
    init, style = o.float("lr-warmup-init", 0.0), o.text("lr-decay-style", "linear")
    if warmup > 0 and n <= warmup:
        return init + (high - init) * n / warmup
    if style == "constant":
        return high
    if n > decay:
        return low
    if style == "inverse-square-root":
        return max(low, high * math.sqrt(max(warmup, 1)) / math.sqrt(max(n, 1)))
    r = (n - warmup) / (decay - warmup)
    if style == "WSD":
        down = length(o, "lr-wsd-decay")
        if n <= decay - down:
            return high
        r, style = (n - (decay - down)) / down, o.text("lr-wsd-decay-style", "exponential")
    left = {"linear": lambda: 1 - r, "cosine": lambda: (math.cos(math.pi * r) + 1) / 2,
            "exponential": lambda: 2 * 0.5**r - 1, "minus_sqrt": lambda: 1 - math.sqrt(r)}[style]()
    return low + left * (high - low)


def weight_decay(o, n):
    style = o.text("weight-decay-incr-style", "constant")
    if style == "constant":
        return o.float("weight-decay", 0.01)
    first, last, r = o.float("start-weight-decay"), o.float("end-weight-decay"), n / length(o, "train")
    if r > 1:
        return last
    return first + (last - first) * (r if style == "linear" else (math.cos(math.pi * (1 - r)) + 1) / 2)


# ---- the trainer ----

@dataclasses.dataclass
class Family:
    tensors: object
    model: type  # of a pass
    batch_of: object
    open_part: object
    losses: list


FAMILIES = {"gpt": Family(decoder.tensors, decoder.Pass, batch_of, samples.open_part, ["lm_loss"]),
            "bert": Family(encoder.bert_tensors, encoder.Bert, masked.bert_batch, masked.open_bert, ["lm_loss", "sop_loss"]),
            "t5": Family(encoder.t5_tensors, encoder.T5, masked.t5_batch, masked.open_t5, ["lm_loss"])}


class Trainer:
    def __init__(self, words, state=None):
        self.o = o = Options(words)
        self.family = FAMILIES[o.text("model", "gpt")]
        if self.family.model != decoder.Pass:
            vocabulary = masked.Vocabulary(o)
            o.setdefault("vocab-size", [str(vocabulary.size)])
            o.update({"sep": [str(vocabulary.sep)]} if "vocab-file" in o else {})
        self.m = decoder.Shape(o)
        self.seed, self.micro = o.int("seed", 1234), o.int("micro-batch-size")
        self.global_batch, self.steps = largest_batch(o), iterations(o)
        evaluations = self.steps // o.int("eval-interval") + 1 if "eval-interval" in o else 1
        each = self.eval_samples = o.int("eval-iters", 100) * o.int("eval-global-batch-size", self.global_batch)
        self.data = samples.open_data(o, self.family.open_part, {
            "train": o.int("train-samples", self.steps * self.global_batch), "valid": evaluations * each, "test": each})
        self.fp16 = o.text("lane", "fp32") == "fp16"
        self.state = copy.deepcopy(state) if state else self.fresh()
        self.stream = None

    def tensors(self):
        return self.family.tensors(self.m)

    def fresh(self):
        weights, biases = decoder.initial(self.tensors(), self.seed), {}
        if "moe-router-enable-expert-bias" in self.o or self.o.quantile_balancing:
            biases = {i: np.zeros(self.m.experts) for i, moe in enumerate(self.m.has_experts) if moe}
        scale = self.o.float("loss-scale", self.o.float("initial-loss-scale", 2.0**32)) if self.fp16 else 1.0
        return State(weights, self.no_moments(weights), biases, scale=scale, hysteresis=self.o.int("hysteresis", 2))

    def no_moments(self, weights):
        return [{name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2)]

    def variables(self):
        w = {name: Var(x) for name, x in self.state.weights.items()}
        return w | {f"{self.m.scope(i)}.mlp.router.expert_bias": Var(x) for i, x in self.state.biases.items()}

    def microbatch(self):
        """Returns the samples of the next microbatch."""
        if self.o.text("dataloader-type", "single") == "cyclic":
            if self.stream is None:
                ranks = self.o.int("data-parallel-ranks", 1)
                steps = samples.cyclic(len(self.data["train"]), self.state.consumed, self.micro, ranks, "no-data-sharding" not in self.o)
                flat = itertools.chain.from_iterable(steps)
                self.stream = iter(lambda: list(itertools.islice(flat, self.micro)), [])
            return next(self.stream)
        if self.stream is None:
            self.stream = itertools.count(self.state.consumed, self.micro)
        begin = next(self.stream)
        return range(begin, begin + self.micro)

    def passes(self, size):
        """Divides a step into passes. For each pass, returns its samples, their indices, and the weights of the losses
        in each sample's microbatch. With experts, a pass is one microbatch or one sample, because its tokens affect
        each other. Other models run all samples of the step in one pass."""
        o, batch_of, count = self.o, self.family.batch_of, size // self.micro
        microbatches = [[self.data["train"][i] for i in self.microbatch()] for _ in range(count)]
        weights = np.repeat([batch_of(o, texts).weights for texts in microbatches], self.micro, axis=0)
        together = size if "num-experts" not in o else 1 if "batch-invariant-mode" in o else self.micro
        texts = sum(microbatches, [])
        for k in range(0, size, together):
            place = self.state.consumed + k + np.arange(together)
            yield batch_of(o, texts[k:k + together]), place, weights[k:k + together]

    def gradients(self, size):
        """Computes one global batch. Returns {name: gradient}, logged values, and the number of tokens of each
        expert."""
        o, w, counts = self.o, self.variables(), {}
        per_token, n = "calculate-per-token-loss" in o, size // self.micro
        router, chosen, most, runs = {}, {}, {}, list(self.passes(size))  # router: {(kind, layer): loss}
        total = sum(batch.weights for batch, _, _ in runs)
        loss, ahead = np.zeros(len(total)), self.m.ahead
        accepted = np.zeros(ahead)
        factors = np.array([1.0] * len(self.family.losses)
                           + [o.float("mtp-loss-scaling-factor", 0.1) / max(ahead, 1)] * ahead)
        for batch, place, of_microbatch in runs:
            p = self.family.model(self.m, w, batch, place, self.seed, counts)
            sums = p.losses()
            loss += [y.value.sum() for y in sums]
            accepted += p.accepted if ahead else []
            weights = factors / np.maximum(total + 0 * of_microbatch if per_token else of_microbatch * n, 1)
            share = batch.mask.size / max(total[0], 1) if per_token else 1 / len(runs)
            coefficient = dict(decoder.router_losses(o))
            backward([*zip(sums, weights.T[:, :, None, None]),
                      *((x, coefficient[kind] * share) for kind, _, x in p.router_losses)])
            for kind, layer, x in p.router_losses:
                router[kind, layer] = router.get((kind, layer), 0) + x.value.item() / len(runs)
            for name, x in p.most.items():
                most[name] = np.maximum(most.get(name, 0), x)
            for layer, count in p.chosen.items():
                chosen[layer] = chosen.get(layer, 0) + count
        found = self.collected(w)
        names = self.family.losses + [f"mtp_{k + 1}_loss" for k in range(ahead)]
        told = dict(zip(names, loss / np.maximum(total, 1)))
        told |= {f"mtp_{k + 1}_acceptance_rate": 100 * n / total[k + 1] for k, n in enumerate(accepted)}
        self.layer_losses = {LOGGED[kind]: {l: x for (k, l), x in router.items() if k == kind} for kind, _ in router}
        if "qk-clip" in o or "log-max-attention-logit" in o:
            told["max_attention_logit"] = max(x.max() for x in most.values())
        self.most = most
        return found, told | {name: sum(x.values()) / len(x) for name, x in self.layer_losses.items()}, chosen

    def trained(self):
        """Returns the weights that are not frozen."""
        frozen = tuple(f"{name}." for name in self.o.list("freeze-parameters"))
        return {name: w for name, w in self.state.weights.items() if not f"{name}.".startswith(frozen)}

    def collected(self, w):
        """Collects the gradients of the trained weights from the variables after a backward pass."""
        zero_if_none = lambda x: np.zeros(x.shape) if x.gradient is None else x.gradient
        return {name: zero_if_none(w[name]) for name in self.trained()}

    def is_hidden(self, name):
        """Returns whether muP's table calls this a hidden weight: a matrix with a width on both sides."""
        return self.state.weights[name].ndim > 1 and not name.startswith(("embedding.", "output_layer."))

    def rates(self, name):
        """Returns the learning rate and the weight decay of a tensor."""
        o, n = self.o, self.state.scheduled
        high, low = o.float("lr"), o.float("min-lr", 0.0)
        kind, hidden = o.text("optimizer", "adam"), self.is_hidden(name)
        if "decoupled-lr" in o and name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            high, low = o.float("decoupled-lr"), o.float("decoupled-min-lr", low)
        elif kind == "sgd" and not hidden:
            high, low = high * self.m.wider, low * self.m.wider
        elif hidden and kind != "sgd" and not (kind.endswith("muon") and muon.updates(name, self.state.weights[name])):
            high, low = high / self.m.wider, low / self.m.wider
        head_norm = "apply-wd-to-qk-layernorm" in o and (".q_layernorm." in name or ".k_layernorm." in name)
        decays = self.state.weights[name].ndim > 1 or head_norm
        return learning_rate(o, n, high, low), weight_decay(o, n) if decays else 0.0

    def update(self, gradients):
        o, s = self.o, self.state
        s.optimizer_step += 1
        beta1, beta2, eps = o.float("adam-beta1", 0.9), o.float("adam-beta2", 0.999), o.float("adam-eps", 1e-8)
        for name, g in gradients.items():
            w, (rate, decay), (m, v) = s.weights[name], self.rates(name), (x[name] for x in s.moments)
            kind = o.text("optimizer", "adam")
            if kind == "sgd":
                m[:] = o.float("sgd-momentum", 0.9) * m + g + decay * w
                w -= rate * m
                continue
            if kind.endswith("muon") and muon.updates(name, w):
                w -= rate * (muon.update(o, self.m, name, m, g) + decay * w)
                continue
            if kind.endswith("muon") and o.text("muon-scalar-optimizer", "adam") == "lion":
                first, second = o.float("lion-beta1", 0.95), o.float("lion-beta2", 0.98)
                w -= rate * (np.sign(first * m + (1 - first) * g) + decay * w)
                m[:] = second * m + (1 - second) * g
                continue
            m[:] = beta1 * m + (1 - beta1) * g
            v[:] = beta2 * v + (1 - beta2) * g * g
            wider = self.m.wider if kind == "adam" and self.is_hidden(name) else 1
            root = np.sqrt(v / (1 - beta2**s.optimizer_step)) + eps / wider
            w -= rate * (m / (1 - beta1**s.optimizer_step) / root + decay * w)

    def clip_scores(self):
        """Multiplies the rows of queries and keys whose scores exceed the threshold."""
        m, alpha = self.m, self.o.float("qk-clip-alpha", 0.5)
        for name, most in self.most.items():
            most = most.reshape(m.heads if m.latent else m.groups, -1).max(-1)
            factor = (self.o.float("qk-clip-threshold", 100.0) / np.maximum(most, 1e-300)).clip(None, 1)[:, None, None]
            rows = lambda which, n: self.state.weights[f"{name}.linear_{which}.weight"].reshape(len(most), n, -1)
            if m.latent:
                q, kv = rows("q_up_proj" if "q-lora-rank" in self.o else "q_proj", m.head), rows("kv_up_proj",
                                                                                                 m.plain + m.value)
                q[:, :m.plain] *= factor**alpha
                q[:, m.plain:] *= factor
                kv[:, :m.plain] *= factor**(1 - alpha)
            else:
                per, end = m.heads // m.groups * m.head, -2 * m.head
                qkv = rows("qkv", per * (2 if "attention-output-gate" in self.o else 1) - end)
                qkv[:, :per] *= factor**alpha
                qkv[:, end:end + m.head] *= factor**(1 - alpha)

    def rescale(self, overflow):
        """Updates the dynamic loss scale after a step (core/optimizer/grad_scaler.py)."""
        o, s = self.o, self.state
        if not self.fp16 or "loss-scale" in o:
            return
        if overflow:
            s.growth, s.hysteresis = 0, s.hysteresis - 1
            if s.hysteresis <= 0:
                s.scale = max(s.scale / 2, o.float("min-loss-scale", 1.0))
            return
        s.growth += 1
        if s.growth == o.int("loss-scale-window", 1000):
            s.growth, s.hysteresis, s.scale = 0, o.int("hysteresis", 2), s.scale * 2

    def clip_of(self, gradients):
        """Returns the norm of the gradients, and the coefficient that clips them."""
        norm, most = math.sqrt(sum((g * g).sum() for g in gradients.values())), self.o.float("clip-grad", 1.0)
        return norm, min(1.0, most / (norm + 1e-6)) if most > 0 else 1.0

    def step(self, overflow=False):
        """Runs a step. With `overflow`, the gradients are not finite, as can happen in 16 bits, so no weight
        changes."""
        o, s = self.o, self.state
        size = batch_size(o, s.consumed)
        gradients, told, chosen = self.gradients(size)
        for layer, bias in s.biases.items():
            if self.o.quantile_balancing:
                ema = o.float("moe-router-quantile-balancing-ema", 0.0)
                moved = ema * bias + (1 - ema) * chosen[layer] / (size // self.micro)
                bias[:] = moved - moved.mean()
            else:
                bias += o.float("moe-router-bias-update-rate", 1e-3) * np.sign(chosen[layer].mean() - chosen[layer])
        apart = {name for name in gradients if "mtp-detach-heads" in o and name.startswith("mtp.")}
        (norm, clip), (_, clip_apart) = (self.clip_of({name: gradients[name] for name in names})
                                         for names in (gradients.keys() - apart, apart))
        told |= {"grad_norm": norm, "clip": clip, "learning_rate": learning_rate(o, s.scheduled, o.float("lr"), o.float("min-lr", 0.0)),
                 "weight_decay": weight_decay(o, s.scheduled), "batch_size": size, "loss_scale": s.scale, "skipped": overflow}
        if overflow:
            del told["grad_norm"], told["clip"]
        else:
            self.update({name: g * (clip_apart if name in apart else clip) for name, g in gradients.items()})
            s.scheduled += size
        if "qk-clip" in o:
            self.clip_scores()
        self.rescale(overflow)
        s.iteration, s.consumed = s.iteration + 1, s.consumed + size
        told |= {"iteration": s.iteration, "consumed_samples": s.consumed, "consumed_tokens": s.consumed * o.int("seq-length")}
        if "log-params-norm" in o:
            told["params_norm"] = math.sqrt(sum((w * w).sum() for w in self.trained().values()))
        if "log-num-zeros-in-grad" in o:
            told["num_zeros"] = sum((g == 0).sum() for g in gradients.values())
        return told

    def evaluate(self, split, begin):
        """{name: mean loss}"""
        w, total, weights = self.variables(), 0.0, 0.0
        together = self.micro if "num-experts" in self.o else self.eval_samples
        for i in range(begin, begin + self.eval_samples, together):
            batch = self.family.batch_of(self.o, [self.data[split][k] for k in range(i, i + together)])
            total += np.array([y.value.sum() for y in self.family.model(self.m, w, batch).losses()])
            weights += batch.weights
        return dict(zip(self.family.losses, total / weights))

    def validate(self):
        s, each = self.state, self.eval_samples
        if s.consumed_valid > len(self.data["valid"]) - each:
            s.consumed_valid = 0
        loss = self.evaluate("valid", s.consumed_valid)
        s.consumed_valid += each
        return loss

    def run(self, until=None, overflows=()):
        """Returns the records of steps, and [(iteration, "validation" or "test", {name: loss})] of evaluations. `until`
        is the step after which --exit-interval ends the run, and `overflows` has the steps with an overflow."""
        o, records, evaluations = self.o, [], []
        evaluates = o.int("eval-iters", 100) > 0
        while self.state.iteration < self.steps and "skip-train" not in o:
            records.append(self.step(self.state.iteration + 1 in overflows))
            i = self.state.iteration
            if evaluates and "eval-interval" in o and i % o.int("eval-interval") == 0 and self.data["valid"]:
                evaluations.append((i, "validation", self.validate()))
            if i == until:
                return records, evaluations
        if evaluates and self.data["valid"]:
            evaluations.append((self.state.iteration, "validation", self.validate()))
        if evaluates and self.data["test"]:
            evaluations.append((self.state.iteration, "test", self.evaluate("test", 0)))
        return records, evaluations
