"""The table of request fields. For each field and endpoint of src/server/fields.def, it has values for which serve must
answer what the oracle computes, and values that serve must refuse."""
import dataclasses
import json
import math
import pathlib
import re

from model import BOS, CALL, END_CALL, EOS, PAD, POSITIONS, VOCAB, encode
from oracle import API, CHAT, COMPLETE, DETOKENIZE, TOKENIZE, UPDATE

NAME, CHOICES, INT32 = "small é", 28, 2**31 - 1
PATHS = {"C": COMPLETE, "M": CHAT, "A": API, "T": TOKENIZE, "D": DETOKENIZE, "W": UPDATE}
HI = [{"role": "u", "content": "hi"}]
DRAW = {"max_tokens": 12, "seed": 7, "temperature": 1.3}
BASES = {"C": {"prompt": "The e", "logprobs": 2, **DRAW}, "M": {"messages": HI, "logprobs": True, "top_logprobs": 2,
    **DRAW},
         "A": {"prompts": ["The e"], "tokens_to_generate": 12, "random_seed": 7, "temperature": 1.3, "logprobs": True},
         "T": {"prompt": "The e"}, "D": {"tokens": [84, 104]}, "W": {}}  # W: the test sets "model_path"
WRONG = {"integer": [1.5, "1", True, [1], {}], "number": ["1", True, [1], {}], "boolean": [0, "true", [], {}],
         "string": [1, True, ["a"], {}], "array": [1, True, {}, "a"], "object": [1, True, [], "a"], "any": []}
SAID = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a string"}


class With:
    """A value of the field, with other changes to the body. None removes a field."""

    def __init__(self, value, **others): self.value, self.others = value, others


@dataclasses.dataclass
class Refused:
    value: object
    text: str
    status: int = 400
    param: str = ""  # "": the field
    code: str = None


@dataclasses.dataclass
class Row:
    """changes: values whose answers differ from each other and from the answer without the field. same: values whose
    answers equal the one without the field. accepted: other values. limits: the first and the last allowed number."""
    endpoints: str
    field: str
    kind: str
    changes: list = ()
    same: list = ()
    accepted: list = ()
    refused: list = ()
    limits: tuple = ()
    above: bool = False  # the first limit is excluded
    base: dict = dataclasses.field(default_factory=dict)
    needed: bool = False  # the endpoint refuses a body without the field

    def body(self, endpoint, value):
        """The body with a value of the field, or without the field if `value` is `...`."""
        others = value.others if isinstance(value, With) else {}
        body = {**BASES[endpoint], **self.base, **others}
        body = {name: x for name, x in body.items() if x is not None and (name != self.field or name in others)}
        if value is ... : return body
        return body | {self.field: value.value if isinstance(value, With) else value}

    def steps(self):
        """The limits, and the numbers that are one step beyond them."""
        if not self.limits: return [], []
        low, high = self.limits
        if self.kind == "integer": return [low, high], [low - 1, high + 1]
        below, beyond = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
        return [math.nextafter(low, high) if self.above else low, high], [low if self.above else below, beyond]

    def all_accepted(self):
        """The values that are accepted, including the limits that no other rule refuses."""
        known = [r.value for r in self.refused]
        return [*self.accepted, *(x for x in self.steps()[0] if x not in known)]

    def all_refused(self):
        """The values that are refused, including those of another type."""
        low, high = [f"{x:.10g}" for x in self.limits or (0, 0)]
        said = f"'{self.field}' must be {SAID.get(self.kind, '')}"
        beyond = f" above {low}, and at most {high}" if self.above else f" from {low} to {high}"
        listed = [With(r.value) if not isinstance(r.value, With) else r.value for r in self.refused]
        known = [w.value for w in listed]
        return [*self.refused, *(Refused(x, said + (beyond if self.limits else "")) for x in WRONG[self.kind]),
                *(Refused(x, said + beyond) for x in self.steps()[1] if x not in known)]


ROWS = []


def row(endpoints, field, kind, *changes, **more): ROWS.append(Row(endpoints, field, kind, changes, **more))


def long(n, field="prompt"): return Refused(n, "maximum context length", param=field, code="context_length_exceeded")


def ids(field, *others):
    """Refusals of a list of token ids."""
    outside = [Refused([x], f"token {x} of '{field}' is outside the vocabulary of {VOCAB}") for x in (-1, VOCAB)]
    return [*outside, *(Refused(x, "a list of token ids") for x in ([1.5], ["1"], [True], *others))]


# ---- prompts

row("CMTD", "model", "string", same=[NAME, None], refused=[
    Refused("other", f"there is no model 'other'; this server has '{NAME}'", 404, code="model_not_found")])
BOTH = [[84], [104, 195]]
row("C", "prompt", "any", "The e", "Th\u00e9 \u20ac", "a</s>b", "a\0b", [84, 104], ["The e", "The"], BOTH, [VOCAB - 1],
    "a" * (POSITIONS - 12),
    ["b"] * 5, needed=True, refused=[
    *(Refused([84, x], "a list of token ids") for x in (1.5, "1", True)),
    *(Refused([x], "a string, a list of strings") for x in (1.5, True)),
    *ids("prompt")[:2], Refused(None, "has no 'prompt'"), Refused([], "an empty list"), Refused("", "has no tokens"),
    Refused([[]], "has no tokens"), Refused(3, "a string, a list of strings"),
    Refused({}, "a string, a list of strings"),
    Refused(["a", 3], "a string, a list of strings"), Refused([[84], "a", None], "a string, a list of strings"),
    long("a" * (POSITIONS - 11)), Refused(["a"] * 1025, "has 1025 prompts, but a request can have at most 1024"),
    Refused(["a"] * 1024, f"has 1024 choices, but can have at most {CHOICES}", param="n"),
    Refused(With("a", messages=HI), "does not know the field 'messages'", param="messages", code="unknown_field")])
row("T", "prompt", "any", "The e", "Th\u00e9 </s>", "a\0b", "a" * 300, accepted=[""], needed=True, refused=[
    Refused(None, "has no 'prompt'"), Refused(["a"], "must be a string"), Refused(3, "a string"),
    Refused({}, "a string"),
    *(Refused(With("a", **{name: value}), f"'{name}' needs 'messages': remove it", param=name) for name, value in (
        ("chat_template", "b"), ("chat_template_kwargs", {}), ("add_generation_prompt", False), ("documents", []),
        ("continue_final_message", False), ("reasoning_effort", "low"), ("tools", 3))),
    Refused(With("a", messages=HI), "'prompt' or 'messages', not both", param="messages")])
CALLED = {"role": "b", "content": None, "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}} for text in ('{"a": [1]}', "")]}
TALKS = [[{"role": "u", "content": "ho"}], [{"role": "s", "content": "hi"}], [*HI, {"role": "b", "content": "a"}],
    [*HI, CALLED],
         [{"role": "u", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
         [{"role": "u", "content": [{"type": "text", "text": "a\0b"}, {"type": "text", "text": "\0"}]}],
         [{"role": "u", "content": "a\0b"}], [{"role": "u", "content": []}], [{"role": "u", "content": "<s>hi"}]]
NOT_TALKS = [([], "a list of messages"), ([3], "a role"), ([{"content": "a"}], "a role"), ("a", "a list of messages"),
             ({}, "a list of messages"), ([{"role": "u", "content": 3}], "a text, a list of text parts or null"),
             ([{"role": "u", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
             "part 2 of a message's content"),
             ([{"role": "b", "tool_calls": 3}], "whose tool_calls are lists"), ([{"role": "b", "tool_calls": [{}]}],
             "no function with a name")]
NOT_TALKS += [([{"role": "b", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}],
    f"not a JSON object: '{text}'")
              for text in ("{", "[]", "3")]
row("M", "messages", "any", HI, *TALKS, [{"role": "u", "content": "a" * (POSITIONS - 18)}], needed=True, refused=[
    *(Refused(*one) for one in NOT_TALKS), Refused(None, "a list of messages"),
    long([{"role": "u", "content": "a" * (POSITIONS - 17)}], "messages")])
row("T", "messages", "any", HI, *TALKS, base={"prompt": None}, needed=True, refused=[
    *(Refused(*one) for one in NOT_TALKS), Refused(None, "has no 'prompt'", param="prompt"),
    Refused(With(HI, add_special_tokens=True), "needs 'prompt': remove it", param="add_special_tokens")])
row("A", "prompts", "any", ["The e"], ["Th\u00e9 \u20ac", "a"], ["</s>"], ["a\0b"], ["a" * (POSITIONS - 12)],
    needed=True, refused=[
    Refused(None, "a list of strings"), Refused("a", "a list of strings"), Refused([3], "a list of strings"),
    Refused({}, "a list of strings"), Refused([], "a list of 1 to 128 strings"), Refused(["a"] * 129,
    "a list of 1 to 128 strings"),
    Refused([""], "needs 'add_BOS'"), Refused(["a"] * 128, f"has 128 choices, but can have at most {CHOICES}"),
    long(["a" * (POSITIONS - 11)])])
row("D", "tokens", "any", [84, 104], [*"\u00e9".encode(), 195], [BOS, 84, VOCAB - 1, EOS, 97], [], needed=True,
    refused=[*ids("tokens", None, "a", 3, {})])

# ---- lengths

row("C", "max_tokens", "integer", 1, 5, With(0, echo=True), same=[16, None], limits=(0, INT32), refused=[
    Refused(0, "'max_tokens' 0 needs 'echo'"), long(INT32), long(POSITIONS - 4)], accepted=[With(POSITIONS - 5,
    logprobs=None)])
row("M", "max_tokens", "integer", 1, 5, same=[POSITIONS - 8, None], limits=(1, INT32), base={"ignore_eos": True},
    refused=[
    long(INT32, "messages"), long(POSITIONS - 7, "messages")])
row("M", "max_completion_tokens", "integer", 1, 5, With(9, max_tokens=3), same=[POSITIONS - 8, None],
    base={"max_tokens": None, "ignore_eos": True}, limits=(1, INT32), refused=[long(INT32, "messages")])
row("A", "tokens_to_generate", "integer", 1, 5, With(0, logprobs=True), same=[64, None], limits=(0, INT32), refused=[
    Refused(With(0, logprobs=False), "needs 'logprobs'"), long(INT32), long(POSITIONS - 4)], accepted=[POSITIONS - 5])
ENDS = {"logit_bias": {"97": 100, "98": 90}}
row("CM", "min_tokens", "integer", 1, 12, With(4, stop=["a"], stop_token_ids=None), same=[0, None], limits=(0, INT32),
    base={"stop_token_ids": [97], **ENDS}, refused=[
    *(Refused(x, f"'min_tokens' is {x}, but at most 12 tokens are generated") for x in (13, INT32)),
    *(Refused(With(1, **end), "needs a token that is not in 'stop_token_ids'") for end in (
        {"stop_token_ids": [97], "allowed_token_ids": [97]}, {"stop_token_ids": [*range(VOCAB)]}))])
row("CM", "truncate_prompt_tokens", "integer", 1, 3, same=[100, INT32, None], limits=(1, INT32),
    base={"return_token_ids": True})

# ---- sampling

row("CM", "temperature", "number", 0, 0.5, 2, accepted=[1e-300], same=[1, 1.0, None], limits=(0, 2),
    base={"max_tokens": 20})
row("A", "temperature", "number", 0.01, 2, 50, same=[1, None], limits=(0, 100), above=True)
row("CM", "top_p", "number", 0.3, 0.6, 1e-9, same=[1, None], limits=(0, 1), above=True)
row("A", "top_p", "number", 0.3, 0.6, 1e-9, same=[0, 1, None], limits=(0, 1))
row("CM", "top_k", "integer", 1, 2, 6, same=[0, -1, VOCAB, INT32, None], limits=(-1, INT32))
row("A", "top_k", "integer", 1, 2, 6, same=[0, VOCAB, None], limits=(0, 1000), refused=[Refused(With(1, top_p=0.5),
    "mutually exclusive")])
row("CM", "min_p", "number", 1, 0.3, 0.1, same=[0, None], limits=(0, 1))
PENALIZED = {"temperature": 0, "max_tokens": 30, "logprobs": None, "top_logprobs": None, "logit_bias": {"97": 7,
    "98": 6, "99": 5}}
row("CM", "presence_penalty", "number", 2, 1.2, -2, same=[0, None], limits=(-2, 2),
    base=PENALIZED | {"temperature": 0.7})
row("CM", "frequency_penalty", "number", 2, 0.4, -2, With(0.4, presence_penalty=1), same=[0, None], limits=(-2, 2),
    base=PENALIZED | {"temperature": 0.7})
# The logits of the four allowed tokens are negative.
UNLIKELY = With(3, logit_bias={str(i): -9 for i in range(97, 101)}, allowed_token_ids=[*range(97, 101)], temperature=1)
row("C", "repetition_penalty", "number", 3, 1.2, 0.5, UNLIKELY, same=[1, None], limits=(0.01, 100),
    base=PENALIZED | {"prompt": "aab"})
row("M", "repetition_penalty", "number", 3, 1.2, 0.5, UNLIKELY, same=[1, None], limits=(0.01, 100),
    base=PENALIZED | {"messages": [{"role": "u", "content": "aab"}]})
row("CM", "logit_bias", "object", {"97": 5}, {"97": 5.75, "52": -1.5}, {"97": -100, "52": -100, "99": 100},
    {str(VOCAB - 1): 100},
    same=[{}, {"97": 0}, None],
    refused=[Refused({x: 1}, f"token '{x}' in 'logit_bias' is not in the vocabulary of {VOCAB}") for x in (str(VOCAB),
    "a", "", "-1", "9" * 20)] +
    [Refused({"97": x}, "the bias of token 97 must be a number from -100 to 100") for x in (100.5, -100.5, None, "1",
    True)])
row("CM", "allowed_token_ids", "any", [97, 98, 99], [97], [VOCAB - 1, 52], same=[None, [*range(VOCAB)]],
    refused=[*ids("allowed_token_ids", 3, {}, "a"), Refused([], "not empty")])
row("C", "bad_words", "any", ["4"], ["44"], [" 3", "40"], ["e"] * 1023 + ["3"], accepted=[["a" * 1024, "4"]],
    same=[None, [], ["no such word"]], refused=[
    *(Refused(x, "at most 1024 texts") for x in ("a", 3, {}, ["e"] * 1025)),
    *(Refused(x, "1 to 1024 bytes") for x in ([""], [3], ["a" * 1025]))], base={"prompt": "44",
    "logit_bias": {"52": 2}})
row("M", "bad_words", "any", ["4"], ["44"], [" 3", "40"], same=[None, [], ["no such word"]], refused=[
    *(Refused(x, "at most 1024 texts") for x in ("a", 3, {}, ["e"] * 1025)),
    *(Refused(x, "1 to 1024 bytes") for x in ([""], [3], ["a" * 1025]))], base={"logit_bias": {"52": 2}})
row("CM", "n", "integer", 2, 3, CHOICES, same=[1, None], limits=(1, 128), base={"max_tokens": 4}, refused=[
    Refused(x, f"has {x} choices, but can have at most {CHOICES}") for x in (CHOICES + 1, 128)])
row("C", "best_of", "integer", 3, CHOICES, With(5, n=2), same=[1, None], limits=(1, 128), base={"max_tokens": 9},
    accepted=[With(CHOICES, n=20, logit_bias={str(EOS): 6}, max_tokens=20)], refused=[
    *(Refused(x, f"has {x} choices, but can have at most {CHOICES}", param="n") for x in (CHOICES + 1, 128)),
    Refused(With(1, n=2), "'best_of' must be at least 'n'"),
    Refused(With(2, stream=True), "'best_of' above 'n' compares complete texts")])
row("CM", "seed", "integer", 0, 7, 8, -1, 2**63 - 1, -2**63, With(7, n=2), needed=True, base={"max_tokens": 20},
    refused=[
    Refused(2**63, "too big integer", param=None), Refused(2.0**63, "an integer")])
row("A", "random_seed", "integer", 0, 7, 8, With(8, prompts=["The e", "b"]), limits=(0, 2**63 - 1), needed=True,
    base={"tokens_to_generate": 20},
    refused=[Refused(2**63, "too big integer")])

# ---- ends

STOPS = {"max_tokens": 60, "logit_bias": {"97": 14, "98": 14, "99": 12, "195": 15, "169": 16}}
row("CM", "stop", "any", "a", ["cb", "ab"], "ac", "\u00e9", ["x"] * 63 + ["ccb"], accepted=[["a" * 1024, "cb"],
    ["no such text", "ac", "acx"], ["acx"], ["a", "ba"]],
    same=[None, [], "no such text"], base=STOPS, refused=[
    *(Refused(x, "not empty") for x in ("", [""], 3, {}, ["a", 3])), Refused(["a"] * 65,
    "has 65 texts, but can have at most 64"),
    Refused(["a" * 1025], "has 1025 bytes, but can have at most 1024"), Refused(["a\0b"], "must not contain \\u0000")])
row("CM", "include_stop_str_in_output", "boolean", True, same=[False, None], base={**STOPS, "stop": ["cb", "ab"]})
row("CM", "stop_token_ids", "any", [97], [98, 99], With([VOCAB - 1], logit_bias={str(VOCAB - 1): 4}), same=[None, []],
    base=STOPS,
    accepted=[With([98], logit_bias={str(EOS): 6})], refused=ids("stop_token_ids", 3, "a", {}))
row("A", "stop_token", "integer", 52, 51, same=[None, 254], limits=(0, INT32), base={"tokens_to_generate": 40},
    accepted=[EOS], refused=[
    *(Refused(x, f"token {x} of 'stop_token' is outside the vocabulary of {VOCAB}") for x in (VOCAB, INT32))])
row("CM", "ignore_eos", "boolean", True, same=[False, None], accepted=[With(None, logit_bias={"255": 7})],
    base={"logit_bias": {str(EOS): 7}, "max_tokens": 20})

# ---- what an answer contains

row("C", "logprobs", "integer", 0, 1, 20, limits=(0, 20), same=[None])
row("MA", "logprobs", "boolean", True, same=[False, None], base={"top_logprobs": None})
row("M", "top_logprobs", "integer", 1, 20, limits=(0, 20), same=[0, None], refused=[
    Refused(With(1, logprobs=False), "'top_logprobs' needs 'logprobs'")])
row("CM", "prompt_logprobs", "integer", 0, 1, 20, With(3, n=2), limits=(0, 20), same=[None], refused=[
    Refused(With(1, stream=True), "'prompt_logprobs' is not streamed")])
row("C", "echo", "boolean", True, With(True, logprobs=None), With(True, prompt="\u00e9\u20ac"), same=[False, None])
row("CM", "return_token_ids", "boolean", True, With(True, n=2), same=[False, None])
row("CM", "skip_special_tokens", "boolean", False, same=[True, None], base={"logit_bias": {str(PAD): 5, str(CALL): 5},
    "max_tokens": 20})
row("CM", "stream", "boolean", same=[False, None])  # all other bodies are sent with both values
row("CM", "stream_options", "any", same=[None], refused=[
    Refused({}, "'stream_options' needs 'stream'"), *(Refused(With(x, stream=True), said, **more) for x, said, more in (
        (3, "an object", {}), ([], "an object", {}), ({"a": True}, "does not know 'a' in 'stream_options'",
        {"code": "unknown_field"}),
        ({"include_usage": 1}, "'include_usage' must be true or false", {}),
        ({"include_obfuscation": True}, "does not know 'include_obfuscation'", {"code": "unknown_field"}),
        ({"continuous_usage_stats": True}, "needs 'include_usage'", {})))])
LONG = "ab" * 33
row("C", "cache_salt", "string", same=["a", "b", None], accepted=[With("b", n=2),
    With("b", prompt=[LONG, "a" + LONG])], base={"prompt": LONG}, refused=[Refused(3, "a string")])
row("M", "cache_salt", "string", same=["a", "b", None], base={"messages": [{"role": "u", "content": LONG}]})

# ---- tokenizing

row("CT", "add_special_tokens", "boolean", True, same=[False, None])
row("A", "add_BOS", "boolean", True, With(True, prompts=["<s><s>a", "b"]), With(True, prompts=[""]), same=[False, None])
LAST = [*HI, {"role": "b", "content": "Th"}]
row("M", "add_generation_prompt", "boolean", False, same=[True, None])
row("T", "add_generation_prompt", "boolean", False, same=[True, None], base={"prompt": None, "messages": HI})
TOGETHER = Refused(With(True, add_generation_prompt=True), "continue_final_message", param="messages")
row("M", "continue_final_message", "boolean", True, same=[False, None], base={"messages": LAST}, refused=[TOGETHER])
row("T", "continue_final_message", "boolean", True, same=[False, None], base={"prompt": None, "messages": LAST},
    refused=[TOGETHER])
NESTED = {"a": json.loads("[" * 500 + "]" * 500)}
for ends, base in ("M", {}), ("T", {"prompt": None, "messages": HI}):
    row(ends, "chat_template_kwargs", "any", {"mood": "b"}, {"mood": "c", "x": 1}, same=[None, {}, {"x": [1]}],
        base=base, refused=[
        *(Refused(x, "chat_template_kwargs", param="messages") for x in (3, "a", [])), Refused(NESTED,
        "nested too deeply", param="messages")])
    row(ends, "reasoning_effort", "any", "none", "low", "xhigh", "max", same=[None], base=base, refused=[
        *(Refused(x, 'must be "none", "minimal", "low"') for x in ("", "Low", 3, ["low"], {})),
        Refused(With("low", chat_template="{##}a"), "has no variable 'reasoning_effort'", code="unsupported"),
        Refused(With("low", chat_template="other"), "has no variable 'reasoning_effort'", code="unsupported"),
        Refused(With("low", chat_template_kwargs={"reasoning_effort": "low"}), "is also in 'chat_template_kwargs'"),
        Refused(With("low", chat_template_kwargs=3), "chat_template_kwargs", param="messages")])
    row(ends, "chat_template", "string", "{##}ab", "{##}abc", same=[None], base=base, refused=[
        Refused("other", "there is no chat template 'other'; set", param="messages"),
        Refused("{{ a.b }}", '"chat_template": line 1', param="messages"), Refused("{% for %}",
        '"chat_template": line 1', param="messages")])
    row(ends, "documents", "any", [{"text": "d"}], [{"text": "d"}, {"text": "e"}], same=[None], base=base, refused=[
        *(Refused(x, "documents", param="messages") for x in (3, "a", {}, [3])),
        Refused(With([{"text": "d"}], chat_template="{##}a"), "has no variable 'documents'", code="unsupported")])

# ---- calls and formats

CITY = {"type": "object", "properties": {"c": {"const": "B"}}, "required": ["c"], "additionalProperties": False}
UNTYPED = {name: x for name, x in CITY.items() if name != "type"}  # parameters are objects
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in (("f", CITY),
    ("g", UNTYPED))]
NOT_TOOLS = [(x, "a list of tools that is not empty") for x in ([], "f", 3, {})] + [
    (x, "tool 1 is not") for x in ([3], [{"type": "a", "function": {"name": "f"}}],
    [{"type": "function", "function": {"name": ""}}],
                                   [{"type": "function", "function": {"name": "f", "parameters": []}}],
                                   [{"type": "function", "function": {"name": "f", "description": 3}}])]
NOT_TOOLS += [([TOOLS[0], 3], "tool 2 is not")]
row("M", "tools", "any", TOOLS[:1], TOOLS, same=[None], refused=[Refused(*x) for x in NOT_TOOLS] + [
    Refused(With(TOOLS, chat_template="{##}a"), "no format of calls", code="unsupported")])
row("T", "tools", "any", TOOLS[:1], TOOLS, same=[None], base={"prompt": None, "messages": HI}, refused=[Refused(*x)
    for x in NOT_TOOLS])


def call(name): return f'<tool_call>\n{{"name":"{name}","arguments":{{"c":"B"}}}}\n</tool_call>'


def calling(name): return {"type": "function", "function": {"name": name}}


# (value, the text that the grammar allows, the name of the called function)
FORCED = {("M", "tool_choice"): [(With("required", parallel_tool_calls=False), call("f"), "f"), (calling("g"),
    call("g"),
    "g"), (With("required", n=2, parallel_tool_calls=False), call("f"), "f")]}
row("M", "parallel_tool_calls", "boolean", same=[None, True, False, With(False, tools=TOOLS, tool_choice="none")])
row("M", "tool_choice", "any", "none", same=["auto", None], base={"tools": TOOLS, "logit_bias": {"32": -100,
    "102": 100}, "max_tokens": 70}, refused=[
    *(Refused(x, "must be \"auto\", \"none\", \"required\", or") for x in (
        "any", 3, [], {}, {"type": "function", "function": {}}, {"type": "f", "function": {"name": "f"}})),
    *(Refused(With(x, tools=None), "'tool_choice' needs 'tools'") for x in ("auto", "required")),
    Refused(calling("h"), "there is no function 'h' in 'tools'"),
    Refused(With("required", min_tokens=1), "mutually exclusive", param="min_tokens")])
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "description": "b", "strict": True,
    "schema": {"const": "B"}}}
def schema(schema): return {"type": "json_schema", "json_schema": {"schema": schema}}


FORCED |= {(e, "response_format"): [
    (SCHEMA, '"B"', None), ({"type": "json_object"}, "{}", None), (schema({"enum": ["B"] * 1000}), '"B"', None),
    (schema({"anyOf": [{"const": "B"}] * 1000}), '"B"', None)] for e in "CM"}
NOT_FORMATS = [(x, "with the type text, json_object or json_schema") for x in (3, "json_object", [], {},
    {"type": "json"}, {"type": "text", "a": 1})]
NOT_FORMATS += [(x, "'response_format' must be") for x in ({"type": "json_object", "a": 1}, {"type": "json_schema"},
    {"type": "json_schema", "json_schema": {}})]
NOT_FORMATS += [({"type": "json_schema", "json_schema": {"schema": {}, name: x}}, said) for name, x, said in (
    ("strict", 3, "'strict' of 'json_schema' must be true or false"),
    ("name", 3, "'name' of 'json_schema' must be a string"),
    ("description", 3, "'description' of 'json_schema' must be a string"))]
row("CM", "response_format", "any", same=[None, {"type": "text"}], base={"logit_bias": {str(b): x for b,
    x in ((34, -100), (125, 100))}}, refused=[
    *(Refused(*x) for x in NOT_FORMATS), Refused(With({"type": "json_object"}, min_tokens=1), "mutually exclusive",
    param="min_tokens"),
    Refused({"type": "json_schema", "json_schema": {"schema": {}, "a": 3}}, "does not know 'a'", code="unknown_field"),
    Refused({"type": "json_schema", "json_schema": {"schema": {"pattern": "a"}}}, "'pattern'",
    code="unsupported_schema"),
    Refused({"type": "json_schema", "json_schema": {"schema": {"enum": ["a" * 70000]}}}, "nodes",
    code="schema_too_large"),
    *(Refused(schema({key: [{}] * 1001}), f"'{key}'", code="invalid_schema") for key in ("anyOf", "enum")),
    Refused({"type": "json_schema", "json_schema": {"schema": {"type": "a"}}}, "'type'", code="invalid_schema")])


# ---- fields with one value, or without an effect

def only(endpoints, field, value, *wrong):
    row(endpoints, field, "any", same=[None, value, *([0.0] if value == 0 and value is not False else [])], refused=[
        Refused(x, f"'{field}' is not supported by this server", code="unsupported") for x in wrong])


only("C", "suffix", "", "a", 3)
only("M", "modalities", ["text"], ["audio"], ["text", "audio"], "text")
only("CM", "priority", 0, 1, "0", False)
for field in "top_p_decay", "top_p_bound": only("A", field, 0, 0.5, False)
for field in "stop_on_double_eol", "stop_on_eol", "prevent_newline_after_colon": only("A", field, False, True, 0)
only("A", "beam_width", None, 1, 2)
for field, other in ("max_len", "tokens_to_generate"), ("sentences", "prompts"):
    row("A", field, "any", same=[None], refused=[Refused(3, f"replace it with '{other}'")])
for field in "length_penalty", "no_log": row("A", field, "any", same=[None, 2, "a", True])
for field in "user", "metadata", "store", "safety_identifier", "service_tier":
    row("CM", field, "any", same=[None, "a", {"b": [1]}, True])
for field in "prompt_cache_key", "prompt_cache_retention", "prediction":
    row("M", field, "any", same=[None, "a", {"type": "content", "content": "a"}])


PATH = "'model_path' must be the folder of a checkpoint, of at most 4095 bytes"
row("W", "model_path", "any", needed=True, refused=[
    *(Refused(x, PATH) for x in (None, "", 3, ["a"], "a" * 4096)),
    *(Refused(x, f"the weights are unchanged: {text}", 400, None, "not_loaded") for x, text in (
        ("no such folder", "'"), ("a" * 4095, "cannot open the folder 'a")))])
for field in "abort_all_requests", "is_async": only("W", field, False, True, 0)
for field in "flush_cache", "keep_pause": only("W", field, True, False, 1)
for field in "torch_empty_cache", "recapture_cuda_graph", "token_step":
    row("W", field, "any", same=[None, 2, "a"])


def declared():
    """The fields and endpoints of fields.def."""
    text = (pathlib.Path(__file__).resolve().parents[3] / "src/server/fields.def").read_text()
    found = re.findall(r'^[A-Z]+\("(\w+)", ([A-Z |]+)[,)]', text, re.M)
    assert len(found) == len(re.findall(r'^[A-Z]+\("', text, re.M)), "a line of fields.def is not read"
    return [(endpoint, field) for field, endpoints in found for endpoint in endpoints.split(" | ")]
