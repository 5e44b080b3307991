#!/usr/bin/env python3
"""Writes cases.json next to chat templates. It contains the texts that transformers renders for conversations, and for
many short templates.

usage: tools/oracle/chat_templates.py tests/data/chat

The templates *.jinja were written for these tests. They use the constructs of well-known models' templates. "rendered"
contains the text of each conversation with each template, or null if the template raises an error. "ids" contains the
ids of the texts of "llama" from the tokenizer tests/data/tokenizer/llama3.json. "snippets" are pairs of a template and
its text or null, rendered with the variables "variables". The templates are the expressions of expressions.txt and the
lines of snippets.txt, in which \\n, \\r and \\t are control characters. The time is "now"."""
import copy, datetime, json, os, pathlib

from cli import Command

command = Command(__doc__, "transformers tokenizers jinja2")
command.add_argument("folder", type=pathlib.Path)
options = command.parse_args()

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical")
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 7, 4, 9, 5, 7)
SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = Frozen


def message(role, content, **keys):
    return {"role": role, "content": content, **keys}


def call(name, arguments, id="abc123def"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather. \u00bfD\u00f3nde? \"Here\" & <there>", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "The city"},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "area": {"type": "object", "properties": {"lat": {"type": "number"}, "names": {"type": "array"}},
                     "required": ["lat"]},
            "any": {"oneOf": [{"type": "number", "description": "a number", "default": 1.5}, {"type": "string"}]},
            "maybe": {"type": ["string", "null"]}}}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time.",
                                          "parameters": {"type": "object", "properties": {}}}}
HELLO, ANSWER = message("user", " Hello, w\u00f6rld! \u4f60\u597d \U0001f600 "), message("assistant", "Hi there.\n")
SYSTEM = message("system", "You are 'terse'.\n")
WEATHER_CALL = message("assistant", None, tool_calls=[call("get_weather", {"city": "K\u00f6ln", "days": [1, 2]})])
RESULT = message("tool", "{\"temperature\": 21.5}", name="get_weather", tool_call_id="abc123def")
PARTS = message("user", [{"type": "text", "text": "What is on "}, {"type": "image"}, {"type": "text", "text": "it?\n"}])
CONVERSATIONS = {
    "one-question": {"messages": [HELLO], "add_generation_prompt": True},
    "system": {"messages": [SYSTEM, message("user", "Hello")], "add_generation_prompt": True},
    "turns": {"messages": [SYSTEM, HELLO, ANSWER, message("user", "And \"you\"?"), message("assistant", "Fine <b>.")]},
    "parts": {"messages": [PARTS], "add_generation_prompt": True},
    "tools": {"messages": [SYSTEM, message("user", "Rain?")], "tools": [WEATHER, CLOCK], "add_generation_prompt": True,
              "chat_template_kwargs": {"date_string": "1 May 2025"}},
    "tool-result": {"messages": [message("user", "Rain?"), WEATHER_CALL, RESULT], "tools": [WEATHER],
                    "add_generation_prompt": True, "chat_template_kwargs": {"tools_in_user_message": False}},
    "two-calls": {"messages": [
        SYSTEM, message("user", "Rain and time?"),
        message("assistant", "Let me see.", tool_calls=[call("get_weather", {"city": "\u00c5"}), call("clock", {})]),
        RESULT, message("tool", "12:00", tool_call_id="abc123def"), message("assistant", "No rain at noon.")],
                  "tools": [WEATHER, CLOCK]},
    "thinking": {"messages": [
        message("user", "2+2?"), message("assistant", "<think>\nEasy.\n</think>\n\n4"), message("user", "3+3?"),
        message("assistant", "6", reasoning="Also easy.\n")], "chat_template_kwargs": {"thinking": True}},
    "no-thinking": {"messages": [message("user", "2+2?"), message("assistant", "4", thinking="Two\npairs."), HELLO],
                    "add_generation_prompt": True,
                    "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "high",
                                             "controls": {"citations": "no", "length": 1.0}}},
    "reasoning-names": {"messages": [
        message("user", "1+1?"), 
        message("assistant", "2", reasoning="First.", thinking="Second.", reasoning_content=None),
        message("user", "2+2?"), 
        message("assistant", "4", reasoning="Third.", thinking="Fourth.", reasoning_content="Fifth.")]},
    "reasoning-name": {"messages": [
        message("user", "2+2?"), message("assistant", "4", reasoning="First.", thinking="Second.")]},
    "documents": {"messages": [message("user", "Summarize.")], "add_generation_prompt": True, "documents": [
        {"title": "First", "text": "One. "}, {"title": "Second", "text": "Two\nlines"}, {"page_number": 3, "x": None}],
                  "chat_template_kwargs": {"controls": {"citations": True}}},
    "no-alternation": {"messages": [message("user", "a"), message("user", "b"), message("critic", "c")],
                       "add_generation_prompt": False},
    "continued": {"messages": [SYSTEM, HELLO, message("assistant", "Once upon  ", extra=None)],
                  "continue_final_message": True},
    "continued-parts": {"messages": [HELLO, message("assistant", [{"type": "text", "text": "Once "},
                                                                  {"type": "text", "text": "upon  "}])],
                        "continue_final_message": True},
    "bare": {"messages": [{"role": "assistant"}], "chat_template_kwargs": {"eos_token": "", "builtin_tools": ["a"]}},
}

VARIABLES = {
    "messages": [message("system", "You are <b>\"x\"</b> 'y'\n"),
                 message("user", "h\u00e9llo w\u00f6rld \u2713 \U0001d11e\t!"),
                 message("assistant", None, tool_calls=[{"id": "a1", "function": {
                     "name": "f", "arguments": {"x": 1, "y": [1.5, True, None]}}}])],
    "n": 5, "f": 2.5, "s": "a b  c\n d", "e": "", "l": [3, 1, 2], "d": {"b": 1, "a": 2, "items": 7, "c": {"x": [1, 2]}},
    "t": True, "z": None, "big": 9007199254740993, "strs": ["b", "A", "c", "a"], "rows": [{"v": 2}, {"v": 1}, {"w": 0}],
}


def text_of(render):
    try: return render()
    except Exception: return None  # errors of jinja2, and errors of Python that it does not catch


def lines_of(name):
    return (options.folder / name).read_text().removesuffix("\n").split("\n")


def snippets():
    yield from ("{{ %s }}" % line for line in lines_of("expressions.txt"))
    for line in lines_of("snippets.txt"):
        for escape, text in ("\\\\", "\0"), ("\\n", "\n"), ("\\r", "\r"), ("\\t", "\t"), ("\0", "\\"):
            line = line.replace(escape, text)
        yield line


def compiled(source):
    # `l|indent` changes the list, so each template gets a copy.
    return lambda: chat_template_utils._compile_jinja_template(source).render(**copy.deepcopy(VARIABLES))


tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(options.folder.parent / "tokenizer/llama3.json"), **SPECIAL)
rendered, ids = {}, {}
for path in sorted(options.folder.glob("*.jinja")):
    for name, conversation in CONVERSATIONS.items():
        keys = {key: value for key, value in conversation.items() if key != "chat_template_kwargs"}
        keys |= conversation.get("chat_template_kwargs", {}) | {"chat_template": path.read_text()}
        apply = lambda **more: tokenizer.apply_chat_template(keys["messages"], **more, **{k: v for k, v in keys.items()
                                                                                          if k != "messages"})
        text = rendered.setdefault(path.stem, {})[name] = text_of(lambda: apply(tokenize=False))
        if path.stem == "llama" and text is not None:
            ids[name] = apply(tokenize=True, return_dict=False)
made = {"now": list(NOW.timetuple())[:8], "special": SPECIAL, "conversations": CONVERSATIONS, "rendered": rendered,
        "ids": ids, "variables": VARIABLES, "snippets": [[source, text_of(compiled(source))] for source in snippets()]}
(options.folder / "cases.json").write_text(json.dumps(made, indent=1) + "\n")
print(f"{sum(len(one) for one in rendered.values())} conversations, of which "
      f"{sum(text is None for one in rendered.values() for text in one.values())} are refused; "
      f"{len(made['snippets'])} snippets, of which {sum(text is None for _, text in made['snippets'])} are refused")
