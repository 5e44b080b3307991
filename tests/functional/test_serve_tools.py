"""serve finds calls of functions in the text of a chat, streamed or not, and its templates read earlier calls and their
results. The model has learned one answer by heart."""
from serving import *

TEXT, CALLS = "let me see.\n", [("weather", {"city": "bonn", "days": [1, 0.1]}), ("time", {})]
ANSWER = TEXT + "".join(f'<tool_call>\n{json.dumps({"name": name, "arguments": arguments})}\n'
                        "</tool_call>" for name, arguments in CALLS)
folder = WORK / "chat"
folder.mkdir()
shutil.copy(ROOT / "tests/data/tokenizer/metaspace.json", folder / "tokenizer.json")
(folder / "tokenizer_config.json").write_text(json.dumps({
    "eos_token": "</s>", "chat_template": {
        "default": "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}"
                   "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
                   "{{ c.function.arguments | tojson }}{% endfor %}{{ '\\n' }}{% endfor %}assistant:",
        "plain": "{{ messages[0].content }}", "fails": "{{ a.b }}"}}))
HF = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder]
(WORK / "text").write_text(json.dumps({"text": f"weather time user: rain?\nassistant:{ANSWER}"}))
(WORK / "run.conf").write_text(CONF)
isotron("preprocess", "--input", WORK / "text", "--output-prefix", WORK / "text", "--append-eod", *HF)
saved = WORK / "saved"
pretrain(["--data-path", WORK / "text_text_document", "--split", "100,0,0"], saved, *HF, "--train-iters", 150,
         "--lr", 1e-2, "--seq-length", 160, "--max-position-embeddings", 320, "--hidden-dropout", 0,
         "--attention-dropout", 0)
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.01)
tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name, _ in CALLS]
messages = [{"role": "user", "content": "rain?"}]
ask = {"messages": messages, "tools": tools, "temperature": 0, "max_tokens": 200}
plain = {"prompt": "weather time user: rain?\nassistant:", "add_special_tokens": False}
raw = server.post(COMPLETE, temperature=0, max_tokens=200, **plain)
assert raw["choices"][0]["text"] == ANSWER, raw


def calls_of(calls):
    assert all(len(c["id"]) == 9 and c["id"].isalnum() and c["type"] == "function" for c in calls), calls
    assert len({c["id"] for c in calls}) == len(calls), calls
    assert all(c["function"]["arguments"] == json.dumps(json.loads(c["function"]["arguments"])) for c in calls), calls
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


for n in 1, 2:
    whole = server.post(CHAT, n=n, **ask)
    for choice in whole["choices"]:
        message = choice["message"]
        assert message["content"] == TEXT and calls_of(message["tool_calls"]) == CALLS, whole
        assert choice["finish_reason"] == "tool_calls" and "index" not in message["tool_calls"][0], whole
    events = server.stream(CHAT, n=n, logprobs=True, stream_options={"include_usage": True}, **ask)
    assert events[-1]["usage"] == whole["usage"], (events[-1], whole)
    for i in range(n):
        parts = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == i]
        assert "".join(p["delta"]["content"] or "" for p in parts) == TEXT, parts
        sent = sum((p["delta"].get("tool_calls", []) for p in parts), [])
        assert calls_of(sent) == CALLS and [c["index"] for c in sent] == [0, 1], parts
        assert parts[-1]["finish_reason"] == "tool_calls", parts
        tokens = sum(len(p["logprobs"]["content"]) for p in parts)
        assert tokens * n == whole["usage"]["completion_tokens"], (tokens, whole)

# A text that ends within a call, and a text in which calls are not wanted.
short = server.post(CHAT, **{**ask, "max_tokens": 40})["choices"][0]
assert short["finish_reason"] == "length" and "tool_calls" not in short["message"], short
assert ANSWER.startswith(short["message"]["content"]) and "<tool_call>" in short["message"]["content"], short
cut = (server.post(CHAT, **{**ask, "max_tokens": n})["choices"][0] for n in range(40, 200, 4))
one = next(c for c in cut if "tool_calls" in c["message"])
assert one["finish_reason"] == "length" and calls_of(one["message"]["tool_calls"]) == CALLS[:1], one
# Without parallel calls, a text ends after its first call.
first = server.post(CHAT, **ask, parallel_tool_calls=False, return_token_ids=True, n=2)
for choice in first["choices"]:
    assert choice["finish_reason"] == "tool_calls" and choice["stop_reason"] is None, first
    assert choice["message"]["content"] == TEXT and calls_of(choice["message"]["tool_calls"]) == CALLS[:1], first
    said = server.post("/detokenize", tokens=choice["token_ids"])["prompt"]
    assert ANSWER.startswith(said) and said.endswith("</tool_call>") and said.count("</tool_call>") == 1, said
events = server.stream(CHAT, **ask, parallel_tool_calls=False)
sent = sum((e["choices"][0]["delta"].get("tool_calls", []) for e in events), [])
assert calls_of(sent) == CALLS[:1] and events[-1]["choices"][0]["finish_reason"] == "tool_calls", events
server.idle()
none = server.post(CHAT, **ask, tool_choice="none")
assert none["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"] and "tool_calls" not in str(none), none

# Earlier calls, whose arguments are JSON in a text, and their results.
called = [*messages, {"role": "assistant", "content": None, "tool_calls": [
    {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": text}}
    for text in ('{"a": [1]}', "")]},
    {"role": "tool", "tool_call_id": "123456789", "content": "wet"}]
ids = server.post("/tokenize", messages=called, tools=tools)["tokens"]
rendered = 'weather time user: rain?\nassistant: <tool_call>f{"a": [1]}<tool_call>f{}\ntool: wet\nassistant:'
made = server.post("/tokenize", prompt=rendered, add_special_tokens=False)["tokens"]
assert made == ids, [server.post("/detokenize", tokens=tokens) for tokens in (made, ids)]
# An empty list of calls counts as no list.
empty, bare = ({"messages": [{"role": "assistant", "content": "a", **more}], "chat_template":
                "{{ 'tool_calls' in messages[0] }}"} for more in ({"tool_calls": []}, {}))
assert server.post("/tokenize", **empty) == server.post("/tokenize", **bare)

deep = json.loads("[" * 500 + "]" * 500)
call = {"function": {"name": "f", "arguments": "{"}}
for field, change, said in [
        ("tools", {"tools": []}, "not empty"), ("tools", {"tools": "f"}, "not empty"),
        ("tools", {"tools": [3]}, "tool 1 is not"),
        ("tools", {"tools": [*tools, {"type": "function", "function": {"name": ""}}]}, "tool 3 is not"),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tool 1 is not"),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "description": 3}}]}, "tool 1 is not"),
        ("tools", {"chat_template": "plain"}, "no format of calls"),
        ("messages", {"tools": [{**tools[0], "a": deep}]}, '"tools" has values that are nested too deeply'),
        ("messages", {"chat_template_kwargs": {"a": deep}}, '"chat_template_kwargs" has values that are nested'),
        ("messages", {"messages": [*messages, {"role": "user", "a": deep}]}, '"messages" has values that are nested'),
        ("messages", {"chat_template": "{{ a.b }}<tool_call>"}, '"chat_template": line 1 of the chat template:'),
        ("messages", {"chat_template": "{% for %}<tool_call>"}, '"chat_template": line 1 of the chat template:'),
        ("tool_choice", {"tools": None, "tool_choice": "auto"}, "needs 'tools'"),
        ("tool_choice", {"tool_choice": "any"}, "must be \"auto\""),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "there is no function 'f'"),
        ("max_tokens", {"max_tokens": 0}, "an integer from 1"), ("messages", {"messages": None}, "a list of messages"),
        ("messages", {"messages": [{"role": "user", "content": 3}]}, "whose content is a text"),
        ("messages", {"messages": [{"role": "assistant", "tool_calls": 3}]}, "whose tool_calls are lists"),
        ("messages", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "no function with a name"),
        ("messages", {"messages": [{"role": "assistant", "tool_calls": [call]}]}, "not a JSON object: '{'")]:
    error = server.post(CHAT, 400, **{**ask, **change})["error"]
    assert error["param"] == field and said in error["message"], (change, error)
    assert str(folder) not in error["message"], error
    if field == "tools" and "tools" in change:
        assert server.post("/tokenize", 400, messages=messages, **change)["error"] == error, error
# An error in the tokenizer's template does not name its folder, which clients must not see.
told = server.post("/tokenize", 400, messages=messages, tools=tools, chat_template="fails")["error"]["message"]
assert told.startswith("line 1 of the chat template: ") and str(folder) not in told, told
server.end()
# The server does not start with settings that cannot be read. The error is local, so it names the file.
shutil.copytree(folder, WORK / "wrong")
(WORK / "wrong/tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": "default"}]}))
said = isotron("serve", "--load", saved, *HF[:-1], WORK / "wrong", expect=2)
assert f"'{WORK}/wrong/tokenizer_config.json': \"chat_template\" must be a string, or a list of objects" in said, said
