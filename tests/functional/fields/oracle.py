"""Computes what serve must answer to a request, from the model's logits and the fields of the body."""
import codecs
import json

import numpy as np

from model import (BOS, ENDS, PAGE, POSITIONS, VOCAB, choose, encode, likeliest, logits, logprobs, piece, rendered,
                   repaired, uniform, visible)

COMPLETE, CHAT, API = "/v1/completions", "/v1/chat/completions", "/api"
TOKENIZE, DETOKENIZE, UPDATE = "/tokenize", "/detokenize", "/update_weights_from_disk"
SAMPLING = ("temperature", "top_k", "top_p", "min_p")


# ---- the prompt

def conversation(body):
    text = rendered(body["messages"], body.get("tools") or [] if body.get("tool_choice") != "none" else [],
                    body.get("documents") or [], "".join((body.get("chat_template_kwargs") or {}).get(name, "") or
                        body.get(name, "") for name in ("mood", "reasoning_effort")),
                    body.get("add_generation_prompt", not body.get("continue_final_message")),
                    body.get("continue_final_message", False))
    if "chat_template" in body: text = body["chat_template"].removeprefix("{##}")
    return encode(text)


def prompts_of(path, body):
    if path == API:
        ids = [encode(text) for text in body["prompts"]]
        if not body.get("add_BOS"): return ids
        for one in ids:
            while one[:1] == [BOS]: one.pop(0)
        return [[BOS, *one] for one in ids]
    if "messages" in body: return [conversation(body)]
    prompt, special = body["prompt"], [BOS] * body.get("add_special_tokens", False)
    if isinstance(prompt, str) or isinstance(prompt[0], int): prompt = [prompt]
    return [encode(one, special) if isinstance(one, str) else one for one in prompt]


# ---- tokens

def adjusted(z, tokens, first, ask, end):
    """The logits, with all changes that affect the choice but not the log-probabilities. `first` is the number of
    tokens of the prompt."""
    z = z.copy()
    new = tokens[first:]
    if ask.get("allowed_token_ids"): z[[i for i in range(VOCAB) if i not in ask["allowed_token_ids"]]] = -np.inf
    for word in ask.get("bad_words") or []:
        *before, last = (word.lstrip(" ") or word).encode()
        if new[len(new) - len(before):] == before: z[last] = -np.inf
    for name, bias in (ask.get("logit_bias") or {}).items(): z[int(name)] += bias
    factor = ask.get("repetition_penalty", 1)
    for i in {*tokens}: z[i] = z[i] / factor if z[i] > 0 else z[i] * factor
    for i in {*new}: z[i] -= ask.get("presence_penalty", 0) + ask.get("frequency_penalty", 0) * new.count(i)
    if len(new) < ask.get("min_tokens", 0): z[end] = -np.inf
    return z


class Text:
    """A text that ends at a stop text. A character counts only when `push` has received all of its bytes."""

    def __init__(self, before, stops, kept):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text, self.searched, self.stops, self.kept, self.stop = self.decoder.decode(before), "", stops, kept, None

    def push(self, data, searches, end=False):
        more = self.decoder.decode(data, end)
        self.text += more
        if searches: self.searched += more
        found = [(self.searched.index(s), i) for i, s in enumerate(self.stops) if s in self.searched]
        if not found: return
        at, i = min(found)
        self.stop = self.stops[i]
        self.text = self.text[:len(self.text) - len(self.searched) + at] + (self.stop if self.kept else "")


class Choice:
    """One continuation of a prompt: its new tokens, text and end. `forced` has the only tokens that a grammar allows,
    after which the text ends."""

    def __init__(self, prompt, ask, seed, most, forced=None, stream=0):
        ends = [*(ask.get("stop_token_ids") or []), *([] if ask.get("ignore_eos") else ENDS)]
        stops = ask.get("stop") or []
        special, self.prompt, self.new, self.reason, self.end = ask["special"], prompt, [], "length", None
        text = Text(b"".join(visible(t, special) for t in prompt) if ask.get("echo") else b"",
                    [stops] if isinstance(stops, str) else stops, ask.get("include_stop_str_in_output"))
        tokens, self.finished = [*prompt], False
        while len(self.new) < most and text.stop is None:
            z = adjusted(logits(tokens), tokens, len(prompt), ask, ends)
            if forced is not None:
                left = forced[len(self.new):len(self.new) + 1] or ends
                if not left:
                    self.reason = "stop"
                    break
                z[[i for i in range(VOCAB) if i not in left]] = -np.inf
            token = choose(z, uniform(seed, stream << 32 | len(tokens)), *(ask[name] for name in SAMPLING))
            self.new.append(token)
            if token in ends:
                self.reason, self.end = "stop", token
                break
            tokens.append(token)
            text.push(visible(token, special), len(self.new) > ask.get("min_tokens", 0))
        if text.stop is None: text.push(b"", True, True)
        if text.stop is not None: self.reason = "stop"
        self.text, self.stop = text.text, text.stop
        self.stop_reason = self.stop if self.stop is not None else self.end if self.end not in ENDS else None
        self.mean = np.mean([self.logprob(len(prompt) + i) for i in range(len(self.new))]) if self.new else 0

    def tokens(self): return [*self.prompt, *self.new]
    def at(self, i): return logprobs(tuple(self.tokens()[:i]))
    def logprob(self, i): return self.at(i)[self.tokens()[i]]

    def likeliest(self, i, n):
        values = self.at(i)
        return [(int(t), values[t]) for t in likeliest(tuple(self.tokens()[:i]))[:n]]


# ---- JSON

def characters(data):
    """Returns the number of complete characters, and the bytes of an incomplete one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    n = len(decoder.decode(data))
    return n, decoder.getstate()[0]


def offset(before, more):
    """The number of the character that a token's bytes begin or continue."""
    n, begun = characters(before)
    if not begun: return n
    continued = characters(begun + more[:1])
    return n + (more != b"" and continued != (0, begun + more[:1]) and "\ufffd" in repaired(begun + more[:1]))


def completion_logprobs(choice, k, echo, special):
    lists = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    first = 0 if echo else len(choice.prompt)
    for i, token in [*enumerate(choice.tokens())][first:]:
        lists["tokens"].append(repaired(piece(token)))
        lists["token_logprobs"].append(choice.logprob(i) if i else None)
        top = {}
        for t, x in choice.likeliest(i, k) + [(token, choice.logprob(i))] if i else []:
            top.setdefault(repaired(piece(t)), x)
        lists["top_logprobs"].append(top if i else None)
        before = b"".join(visible(t, special) for t in choice.tokens()[first:i])
        lists["text_offset"].append(offset(before, piece(token)))
    return lists


def chat_token(token, x): return {"token": repaired(piece(token)), "logprob": x, "bytes": [*piece(token)]}


def chat_logprobs(choice, k):
    return {"content": [{**chat_token(token, choice.logprob(i)),
                         "top_logprobs": [chat_token(*t) for t in choice.likeliest(i, k)]}
                        for i, token in [*enumerate(choice.tokens())][len(choice.prompt):]]}


def prompt_logprobs(choice, k):
    maps = [None]
    for i, token in [*enumerate(choice.prompt)][1:]:
        top = {str(t): {"logprob": x, "rank": rank, "decoded_token": repaired(piece(t))}
               for rank, (t, x) in enumerate(choice.likeliest(i, k), 1)}
        own = {"logprob": choice.logprob(i), "rank": None, "decoded_token": repaired(piece(token))}
        maps.append(top | {str(token): top.get(str(token), own)})
    return maps


class Oracle:
    """A server's answers. `pages` has the salts and tokens of the full pages in its KV cache. `version` is how often it
    has loaded weights."""

    def __init__(self, name):
        self.name, self.pages, self.made_before, self.version = name, set(), {}, 0

    def found(self, prompt, ask):
        """The number of a prompt's tokens in shared pages: all full pages, but not the page of the last token."""
        n = 0
        while n + PAGE < len(prompt) and (ask.get("cache_salt"), tuple(prompt[:n + PAGE])) in self.pages: n += PAGE
        return 0 if ask["scores"] else n

    def choice(self, prompt, ask, seed, forced):
        most = POSITIONS - len(prompt) if ask["max_tokens"] is None else ask["max_tokens"]
        key = json.dumps([prompt, ask, seed, forced])
        self.made_before[key] = self.made_before.get(key) or Choice(prompt, ask, seed, most, forced)
        return self.made_before[key]

    def choices(self, path, body, forced=None):
        ask = {name: value for name, value in body.items() if value is not None}
        api, chat = path == API, path == CHAT
        ask = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "n": 1,
               "max_tokens": 64 if api else None if chat else 16, **ask}
        if api:
            ask |= {"max_tokens": ask.get("tokens_to_generate", 64), "top_p": ask["top_p"] or 1,
                    "stop_token_ids": [ask["stop_token"]] if "stop_token" in ask else []}
        ask["max_tokens"] = ask.get("max_completion_tokens", ask["max_tokens"])
        ask["best_of"] = ask.get("best_of", ask["n"])
        calls = bool(ask.get("tools")) and ask.get("tool_choice") != "none"
        ask["special"] = calls or ask.get("skip_special_tokens") is False
        ask["scores"] = ("prompt_logprobs" in ask or (ask.get("echo") and "logprobs" in ask) or
                         (api and ask.get("logprobs")))
        prompts = prompts_of(path, ask)
        prompts = [p[-ask.get("truncate_prompt_tokens", len(p)):] for p in prompts]
        seed = ask.get("random_seed" if api else "seed", 0)
        made = [[self.choice(p, ask, seed + i * ask["best_of"] + j, forced) for j in range(ask["best_of"])]
                for i, p in enumerate(prompts)]
        self.cached = [self.found(p, ask) for p in prompts]
        self.pages |= {(ask.get("cache_salt"), tuple(c.tokens()[:n])) for list_ in made for c in list_
                       for n in range(PAGE, len(c.tokens()), PAGE)}
        return ask, prompts, made

    def answer(self, path, body, forced=None, calls=None):
        """The object that serve returns, without its "id" and "created". calls: [(content, [(name, arguments)])] that a
        forced text represents."""
        ask, prompts, made = self.choices(path, body, forced)
        self.made = made
        if path == API: return self.megatron(ask, body, made)
        if ask["best_of"] > ask["n"]: made = [sorted(list_, key=lambda c: -c.mean)[:ask["n"]] for list_ in made]
        choices = []
        for choice in sum(made, []):
            json_ = {"index": len(choices), "finish_reason": choice.reason, "stop_reason": choice.stop_reason,
                     "logprobs": None}
            if path == CHAT:
                json_["message"] = {"role": "assistant", "content": choice.text}
                if calls: json_ |= {"message": json_["message"] | calls, "finish_reason": "tool_calls"}
                if ask.get("logprobs"): json_["logprobs"] = chat_logprobs(choice, ask.get("top_logprobs", 0))
            else:
                json_["text"] = choice.text
                if "logprobs" in ask:
                    json_["logprobs"] = completion_logprobs(choice, ask["logprobs"], ask.get("echo"), ask["special"])
                if "prompt_logprobs" in ask: json_["prompt_logprobs"] = prompt_logprobs(choice, ask["prompt_logprobs"])
            if ask.get("return_token_ids"): json_ |= {"token_ids": choice.new, "prompt_token_ids": choice.prompt}
            choices.append(json_)
        told, new = sum(map(len, prompts)), sum(len(c.new) for list_ in self.made for c in list_)
        usage = {"prompt_tokens": told, "completion_tokens": new, "total_tokens": told + new,
                 "prompt_tokens_details": {"cached_tokens": sum(self.cached)}}
        answer = {"object": "chat.completion" if path == CHAT else "text_completion", "model": self.name,
                  "choices": choices, "usage": usage}
        if path == CHAT and "prompt_logprobs" in ask:
            answer["prompt_logprobs"] = prompt_logprobs(made[0][0], ask["prompt_logprobs"])
        return answer

    def megatron(self, ask, body, made):
        made = [list_[0] for list_ in made]
        answer = {"text": [text + c.text for text, c in zip(body["prompts"], made)],
                  "tokens": [c.tokens() for c in made],
                  "segments": [[repaired(piece(t)) for t in c.tokens()] for c in made]}
        if ask.get("logprobs"):
            answer["logprobs"] = [[c.logprob(i) for i in range(1, len(c.tokens()))] for c in made]
        return answer

    def tokenize(self, body):
        ask = {name: value for name, value in body.items() if value is not None}
        ids = prompts_of(TOKENIZE, ask)[0]
        return {"count": len(ids), "max_model_len": POSITIONS, "tokens": ids}

    def reply(self, path, body, forced=None, calls=None):
        if path == TOKENIZE: return self.tokenize(body)
        if path == UPDATE:
            self.version += 1
            return {"state": "paused", "weight_version": self.version}
        if path == DETOKENIZE: return {"prompt": repaired(b"".join(visible(t) for t in body["tokens"]))}
        return self.answer(path, body, forced, calls)
