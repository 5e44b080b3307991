"""serve generates texts of a JSON schema, and calls of functions, whatever the weights are. The texts of random schemas
are parsed and validated, and do not depend on other requests, drafts, streams or ranks."""
import concurrent.futures
import random

from serving import *

try:
    import jsonschema
except ImportError:
    jsonschema = None

# ---- schemas and their values

NAMES = ["a", "ab", 'a"b', "é€", "b", "name", ""]
TYPES = {"string": str, "boolean": bool, "null": type(None), "object": dict, "array": list}
CONSTANTS = ["a", "é\n", "", 0, -7, 0.1, 1e30, True, False, None, [1, "x"], {"k": {"é": []}}]


def draw_schema(r, depth=0):
    kind = r.choice(["string", "integer", "number", "boolean", "null", "enum", "const", "any"] +
                    ["object", "object", "array", "anyOf", "types", "map", "ref"] * (depth < 3))
    if kind == "enum": return {"enum": r.sample(CONSTANTS, r.randint(1, 5))}
    if kind == "const": return {"const": r.choice(CONSTANTS), "description": "one value"}
    if kind == "any": return r.choice([{}, True])
    if kind == "ref": return {"$ref": r.choice(["#/$defs/tree", "#/$defs/word"])}
    if kind == "types": return {"type": r.sample(["string", "integer", "number", "boolean", "null"], 2)}
    if kind == "anyOf": return {"anyOf": [draw_schema(r, depth + 1) for _ in range(r.randint(1, 4))]}
    if kind == "map": return {"type": "object", "additionalProperties": draw_schema(r, depth + 1)}
    if kind == "array":
        least = r.randint(0, 3)
        counts = r.choice([{}, {"minItems": least}, {"maxItems": least}, {"minItems": least, "maxItems": least + 2}])
        return {"type": "array", "items": draw_schema(r, depth + 1), **counts}
    if kind != "object": return {"type": kind}
    names = r.sample(NAMES, r.randint(0, 4))
    required = [name for name in names if r.random() < 0.5]
    return {"type": "object", "properties": {name: draw_schema(r, depth + 1) for name in names},
            "required": required, **r.choice([{}, {"additionalProperties": False}])}


DEFINITIONS = {"word": {"enum": ["x", "y"]},
               "tree": {"type": "object",
                        "properties": {"left": {"$ref": "#/$defs/tree"}, "value": {"type": "integer"}},
                        "required": ["value"], "additionalProperties": False}}


def same(a, b):
    return type(a) is type(b) and (len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else
                                   a.keys() == b.keys() and all(same(a[k], b[k]) for k in a) if isinstance(a, dict)
                                   else a == b)


def is_type(value, name):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in ("integer", "number"): return number and (name == "number" or isinstance(value, int))
    return isinstance(value, TYPES[name])


def valid(value, s):
    """Whether the value conforms to this schema, for the keywords of draw_schema."""
    if s is True: return True
    if "$ref" in s: return valid(value, DEFINITIONS[s["$ref"].split("/")[-1]])
    types = s.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(is_type(value, name) for name in types): return False
    if "anyOf" in s and not any(valid(value, one) for one in s["anyOf"]): return False
    if "enum" in s and not any(same(value, one) for one in s["enum"]): return False
    if "const" in s and not same(value, s["const"]): return False
    if isinstance(value, list):
        return s.get("minItems", 0) <= len(value) <= s.get("maxItems", len(value)) and all(
            valid(one, s.get("items", True)) for one in value)
    if not isinstance(value, dict): return True
    known, others = s.get("properties", {}), s.get("additionalProperties", True)
    return {*s.get("required", [])} <= value.keys() and all(
        valid(one, known[name]) if name in known else others is not False and valid(one, others)
        for name, one in value.items())


def assert_valid(text, schema):
    value = json.loads(text)
    assert valid(value, schema), (text, schema)
    if jsonschema: jsonschema.Draft202012Validator({**schema, "$defs": DEFINITIONS}).validate(value)


# ---- texts of random schemas

folder = WORK / "chat"
folder.mkdir()
tokenizer = json.loads((ROOT / "tests/data/tokenizer/llama3.json").read_text())
marker = 1 + max(*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"]))
tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": marker, "content": "<tool_call>"})
(folder / "tokenizer.json").write_text(json.dumps(tokenizer))
FORMATS = {"default": "<tool_call>", "mistral": "[TOOL_CALLS]", "granite": "<|tool_call|>", "llama": "ipython",
           "qwen": "<tool_call><parameter=", "glm": "<tool_call><arg_key>", "seed": "<seed:tool_call><parameter=",
           "minimax": "<minimax:tool_call>"}
(folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end_of_text|>", "chat_template": {
    name: "{{ messages[0].content }}{# %s #}" % sign for name, sign in FORMATS.items()}}))
corpus()
saved = WORK / "saved"
pretrain(["--mock-data"], saved, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder,
         "--train-iters", 3, "--max-position-embeddings", 640, "--position-embedding-type", "none")
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.02)
QUOTE, END = (server.post("/tokenize", prompt=text, add_special_tokens=False)["tokens"][0] for text in '"}')


def ask(schema, r):
    """A request; the model would rarely end a string by itself."""
    return {"prompt": "a", "max_tokens": 400, "seed": r.randint(0, 10**6), "temperature": r.choice([0.5, 1, 1.7]),
            "logit_bias": {str(QUOTE): r.choice([3, 5, 7]), str(END): 2}, "response_format": {
                "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


r = random.Random(1)
schemas = [{**s, "$defs": DEFINITIONS} if isinstance(s := draw_schema(r), dict) else {} for _ in range(200)]
asks = [ask(schema, r) for schema in schemas]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    choices = [*pool.map(lambda body: server.post(COMPLETE, **body)["choices"][0], asks)]
finished = 0
for schema, choice in zip(schemas, choices):
    assert choice["finish_reason"] in ("stop", "length"), choice
    if choice["finish_reason"] == "stop": assert_valid(choice["text"], schema)
    finished += choice["finish_reason"] == "stop"
assert finished > 150 and len({c["text"] for c in choices}) > 100, finished
print(f"{finished} of 200 texts are complete and valid", "" if jsonschema else "(without jsonschema)")

# Alone, as a stream, and with the same seed in a request of two choices.
for i in range(0, 200, 10):
    assert server.post(COMPLETE, **asks[i])["choices"][0] == choices[i], asks[i]
    assert joined(server.stream(COMPLETE, **asks[i])) == (choices[i]["text"], choices[i]["finish_reason"]), asks[i]
    two = server.post(COMPLETE, **{**asks[i], "n": 2})["choices"]
    assert two[0] == choices[i], (two, choices[i])
    if two[1]["finish_reason"] == "stop": assert_valid(two[1]["text"], schemas[i])

# White space is one blank after a comma or a colon at most. The end token is allowed only at the end, and is needed
# only if the text has more than one.
tree = {"$ref": "#/$defs/tree", "$defs": DEFINITIONS}
body = {**asks[0], "temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"schema": tree}}}
text = server.post(COMPLETE, **body)["choices"][0]["text"]
assert " }" not in text and text[0] == "{", text
fixed = {"type": "json_schema", "json_schema": {"schema": {"const": [1, "a"]}}}
for stop, reason in (None, "stop"), ("1", "stop"), ([QUOTE], "stop"):
    limit = {"stop_token_ids": stop} if isinstance(stop, list) else {"stop": stop}
    choice = server.post(COMPLETE, **{**asks[0], "response_format": fixed, "logit_bias": {}, **limit})["choices"][0]
    assert choice["finish_reason"] == reason and (stop or json.loads(choice["text"]) == [1, "a"]), choice
    assert choice["text"][:2] == ("[" if stop == "1" else "[1") and choice["stop_reason"] in (stop, QUOTE), choice
for ignore in False, True:  # without end tokens, the text ends by itself
    whole = server.post(COMPLETE, **{**asks[0], "response_format": fixed, "ignore_eos": ignore, "logprobs": 0,
                                     "return_token_ids": True})
    choice = whole["choices"][0]
    assert json.loads(choice["text"]) == [1, "a"] and choice["finish_reason"] == "stop", choice
    assert whole["usage"]["completion_tokens"] == len(choice["logprobs"]["tokens"]) == len(choice["token_ids"]), whole
    assert ("<|end_of_text|>" in choice["logprobs"]["tokens"]) != ignore, choice
for seed in range(8):
    choice = server.post(COMPLETE, **{**asks[seed], "response_format": {"type": "json_object"}})["choices"][0]
    if choice["finish_reason"] == "stop": assert isinstance(json.loads(choice["text"]), dict), choice
plain = {**asks[0], "response_format": None, "max_tokens": 20}
assert server.post(COMPLETE, **plain)["choices"] == server.post(
    COMPLETE, **{**plain, "response_format": {"type": "text"}})["choices"]
# All escapes that a string may have are valid: the text begins an escape wherever it can.
slash = server.post("/tokenize", prompt="\\", add_special_tokens=False)["tokens"][0]
for seed in range(20):
    body = {**ask({"type": "string"}, r), "seed": seed}
    body["logit_bias"] = {str(slash): 7, str(QUOTE): 3, **{str(
        server.post("/tokenize", prompt=c, add_special_tokens=False)["tokens"][0]): 3 for c in "u0dD8"}}
    choice = server.post(COMPLETE, **body)["choices"][0]
    if choice["finish_reason"] == "stop":
        json.loads(choice["text"]).encode()  # no surrogate
        assert "\\u0000" not in choice["text"], choice

# ---- calls

TOOLS = [{"type": "function", "function": {"name": name, **more}} for name, more in (
    ("weather", {"parameters": {"type": "object", "properties": {"city": {"enum": ["Bonn", "Köln"]}, "days": {
        "$ref": "#/$defs/d"}}, "required": ["city"], "$defs": {"d": {"type": "integer"}}}}), ("time", {}))]
chat = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS, "max_tokens": 300, "return_token_ids": True,
        "logit_bias": {str(QUOTE): 6, str(END): 6}}
seen = set()
for template in FORMATS:
    for seed in range(12):
        for choice, single, names in ("required", {}, ["weather", "time"]), (
                "required", {"parallel_tool_calls": False}, ["weather", "time"]), (
                {"type": "function", "function": {"name": "weather"}}, {}, ["weather"]):
            body = {**chat, "chat_template": template, "seed": seed, "tool_choice": choice, **single}
            got = server.post(CHAT, **body)["choices"][0]
            if got["finish_reason"] == "length": continue
            calls = got["message"]["tool_calls"]
            assert got["finish_reason"] == "tool_calls" and not got["message"]["content"], got
            assert len(calls) == 1 or choice == "required" and not single, (body, got)
            for call in calls:
                arguments = json.loads(call["function"]["arguments"])
                assert call["function"]["name"] in names and isinstance(arguments, dict), got
                if call["function"]["name"] == "weather":
                    assert valid(arguments, {**TOOLS[0]["function"]["parameters"], "properties": {
                        "city": {"enum": ["Bonn", "Köln"]}, "days": {"type": "integer"}}}), got
                seen |= {(template, call["function"]["name"]), (template, "several" if len(calls) > 1 else "one")}
            if len(calls) > 1 and template == "default":
                ids = got["token_ids"]  # the marker before a call is one token, which the text of tokens omits
                ends = [server.post("/detokenize", tokens=ids[:i])["prompt"][-1:] for i in range(1, len(ids))
                        if ids[i] == ids[0]]
                seen |= {"\n" if end == "\n" else "none" for end in ends}
            if seed > 4: continue  # a stream has the same calls
            events = [e["choices"][0]["delta"] for e in server.stream(CHAT, **body)]
            sent = sum((delta.get("tool_calls", []) for delta in events), [])
            assert [c["function"] for c in sent] == [c["function"] for c in calls], (sent, calls)
assert len(seen) == 4 * len(FORMATS) + 2, seen  # a newline may separate calls

# ---- refusals


def nested(depth): return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "null"}


def chained(*more): return {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, *more]}}, "$ref": "#/$defs/a"}


for schema, said in [
        ({"type": "string", "pattern": "a"}, "'pattern'"), ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"properties": {"a": {"items": {"minimum": 3}}}}, "'minimum'"), ({"oneOf": [{}]}, "'oneOf'"),
        (False, "object or true"),
        ({"type": "text"}, "'type'"), ({"type": []}, "'type'"), ({"type": ["string", 3]}, "'type'"),
        ({"enum": []}, "'enum'"), ({"type": "string", "enum": [1]}, "'enum'"),
        ({"type": "null", "const": 1}, "'const'"),
        ({"anyOf": []}, "'anyOf'"), ({"anyOf": [{"a": 1}]}, "'a'"), ({"anyOf": [{}], "type": "null"}, "only one of"),
        ({"enum": [1], "const": 1}, "only one of"), ({"anyOf": [{}], "$ref": "#"}, "only one of"),
        ({"const": 1, "items": {}}, "only one of"), ({"$ref": "#/b"}, "there is no '#/b'"),
        ({"$ref": 3}, "there is no"),
        (chained({}), "its own alternative"), ({"$ref": "#"}, "its own alternative"),
        ({"properties": []}, "'properties'"),
        ({"required": "a"}, "'required'"), ({"required": [1]}, "'required'"),
        ({"required": ["a"], "additionalProperties": False}, "'a' is required"),
        ({"additionalProperties": 1}, "'additional"),
        ({"items": {}, "minItems": -1}, "'minItems'"), ({"minItems": 2, "maxItems": 1}, "'minItems'"),
        ({"maxItems": 1.5}, "'maxItems'"), ({"maxItems": 10**9}, "'maxItems'"),
        ({"items": {}, "maxItems": 65536}, "nodes"),
        ({"enum": ["a" * 70000]}, "nodes"), ({"properties": {x * 70000: {"enum": [1]} for x in "ab"}}, "nodes"),
        (nested(64), "nested"),
        ({"properties": {str(i): {} for i in range(1001)}}, "'properties'"), ({"enum": [*range(1001)]}, "'enum'")]:
    error = server.post(COMPLETE, 400, **{**asks[0], "response_format": {"type": "json_schema", "json_schema": {
        "schema": schema}}})["error"]
    assert error["param"] == "response_format" and said in error["message"], (schema, error)
assert server.post(COMPLETE, **{**ask(nested(60), r), "max_tokens": 1})["choices"][0]["text"] == "["
for wrong in ({}, {"type": "json"}, {"type": "json_object", "a": 1}, {"type": "json_schema"}, "json_object",
              {"type": "json_schema", "json_schema": {}},
              {"type": "json_schema", "json_schema": {"schema": {}, "a": 1}},
              {"type": "json_schema", "json_schema": {"schema": {}, "strict": 3}},
              {"type": "json_schema", "json_schema": {"schema": {}, "name": 3}}):
    error = server.post(COMPLETE, 400, **{**asks[0], "response_format": wrong})["error"]
    assert error["param"] == "response_format", (wrong, error)
for field, change in [
        ("tool_choice", {"tool_choice": "any"}), ("tool_choice", {"tool_choice": {"type": "function", "function": {}}}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ("tool_choice", {"tool_choice": "required", "tools": None}),
        ("tools", {"tool_choice": "required", "tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "string"}}}]}),
        ("tools", {"tool_choice": "required", "tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"properties": {"a": {"format": "date"}}}}}]}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("min_tokens", {"tool_choice": "required", "min_tokens": 1})]:
    error = server.post(CHAT, 400, **{**chat, **change})["error"]
    assert error["param"] == field and error["message"], (change, error)
assert server.post(COMPLETE, 400, **asks[0], min_tokens=2)["error"]["param"] == "min_tokens"
# A text has at most 1,024 alternatives, one of which can be a blank.
words = [f"{i:04}" for i in range(1025)]
for n, status in (1023, 200), (1025, 400):
    tools = [{"type": "function", "function": {"name": word}} for word in words[:n]]
    lists = {"items": {"anyOf": [{"enum": words[:512]}, {"enum": words[512:n]}]}, "minItems": 1}
    for path, body in (CHAT, {**chat, "seed": 1, "tool_choice": "required", "tools": tools, "max_tokens": 20}), (
            COMPLETE, {**asks[0], "max_tokens": 20, "response_format": {
                "type": "json_schema", "json_schema": {"schema": lists}}}):
        got = server.post(path, status, **body)
        assert status == 200 or "more than 1024" in got["error"]["message"] and \
            got["error"]["code"] == "schema_too_large", got
        if status == 400: assert server.stream(path, **body)[-1] == got, body
error = server.post(COMPLETE, 400, **{**asks[0], "allowed_token_ids": [QUOTE], "response_format": fixed})["error"]
assert "no token may follow 1 tokens" in error["message"], error
server.end()

# ---- the same texts with drafts, and on several ranks

for options in (["--num-speculative-tokens", 3, "--speculative-model", saved], ["--ranks", 2],
                ["--pipeline-model-parallel-size", 2], ["--tensor-model-parallel-size", 2]):
    server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.02, *options)
    for i in range(3, 200, 20):
        got = server.post(COMPLETE, **asks[i])["choices"][0]
        if "--tensor-model-parallel-size" not in options: assert got == choices[i], (options, got, choices[i])
        if got["finish_reason"] == "stop": assert_valid(got["text"], schemas[i])
    kept = server.metrics()["spec_decode_num_accepted_tokens_total"]
    assert "--speculative-model" not in options or kept > 20, kept
    server.end()

# A vocabulary with blanks and bytes of SentencePiece, and one whose tokens begin with blanks, so that no token can
# begin JSON.
for name in "metaspace", "bert":
    shutil.copy(ROOT / f"tests/data/tokenizer/{name}.json", WORK / "other.json")
    other = WORK / name
    pretrain(["--mock-data"], other, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
             WORK / "other.json",
             "--train-iters", 3, "--max-position-embeddings", 128)
    server = Server(other, "--inference-dynamic-batching-buffer-size-gb", 0.01)
    for seed in range(20):
        schema = {"enum": ["é €", "the the"]} if seed % 2 else {"items": {"enum": [" a", 1]}, "minItems": 3}
        body = {"prompt": "a", "max_tokens": 100, "seed": seed,
                "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        if name == "bert":
            error = server.post(COMPLETE, 400, **body)["error"]
            assert error["code"] == "no_token_allowed" and "may follow 1 tokens" in error["message"], error
            continue
        choice = server.post(COMPLETE, **body)["choices"][0]
        assert choice["finish_reason"] == "length" or valid(json.loads(choice["text"]), schema), choice
    server.end()
