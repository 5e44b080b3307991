"""OpenAI's Python client gets the same texts, streams and log-probabilities from serve as plain requests do, and raises
the right exception for each status."""
import sys

from serving import *

PACKAGES = ROOT / "build/clients"  # ci/install-deps puts the client there
sys.path.insert(0, str(PACKAGES))
try:
    import openai
except ImportError:
    print(f"skipped: {PACKAGES} has no client of OpenAI (ci/install-deps)")
    sys.exit(77)

KEY, LONG = "secret", {"max_tokens": 100000, "extra_body": {"ignore_eos": True}}
folder = WORK / "chat"
folder.mkdir()
shutil.copy(ROOT / "tests/data/tokenizer/metaspace.json", folder / "tokenizer.json")
(folder / "tokenizer_config.json").write_text(json.dumps({
    "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"}))
saved = WORK / "saved"
corpus()
pretrain(["--mock-data"], saved, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder,
         "--train-iters", 3, "--max-position-embeddings", 2**20, "--position-embedding-type", "none")
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.08, "--api-key", KEY,
                "--inference-max-requests", 1, "--max-queued-requests", 1)
server.headers = {"Authorization": f"Bearer {KEY}"}
url = f"http://127.0.0.1:{server.port}/v1"
client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
messages = [{"role": "system", "content": "loss"}, {"role": "user", "content": [{"type": "text", "text": "The"}]}]
draw = {"model": NAME, "max_tokens": 30, "seed": 7, "temperature": 1.5}

model, = client.models.list()
assert model.id == NAME and model.object == "model", model
plain = server.post(COMPLETE, prompt="The", logprobs=2, **draw)
got = client.completions.create(prompt="The", logprobs=2, **draw)
assert got.choices[0].model_dump() == plain["choices"][0] and got.usage.total_tokens == plain["usage"]["total_tokens"]
parts = [*client.completions.create(prompt="The", logprobs=2, stream=True, stream_options={"include_usage": True},
                                    **draw)]
assert "".join(p.choices[0].text for p in parts[:-1]) == got.choices[0].text, parts
assert sum((p.choices[0].logprobs.token_logprobs for p in parts[:-1]), []) == got.choices[0].logprobs.token_logprobs
assert parts[-1].usage == got.usage and not parts[-1].choices, parts

plain = server.post(CHAT, messages=messages, logprobs=True, top_logprobs=2, **draw)["choices"][0]
got = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, **draw)
choice = got.choices[0]
assert choice.message.role == "assistant" and choice.message.content == plain["message"]["content"], got
assert [t.model_dump() for t in choice.logprobs.content] == plain["logprobs"]["content"], got
with client.chat.completions.create(messages=messages, stream=True, **draw) as stream:
    parts = [part.choices[0] for part in stream]
assert "".join(p.delta.content or "" for p in parts) == choice.message.content, parts
assert parts[0].delta.role == "assistant" and parts[-1].finish_reason == choice.finish_reason, parts

# ---- exceptions


def raises(kind, call, said):
    try:
        call()
    except openai.APIError as e:
        assert type(e) is kind and said in str(e), (kind, said, type(e), e)
        return e
    sys.exit(f"no {kind.__name__}")


complete = client.completions.create
raises(openai.BadRequestError, lambda: complete(prompt="The", **{**draw, "temperature": 3}), "'temperature' must be")
raises(openai.NotFoundError, lambda: complete(prompt="The", **{**draw, "model": "other"}), "there is no model")
raises(openai.AuthenticationError, openai.OpenAI(base_url=url, api_key="other", max_retries=0).models.list,
       "needs the server's key")
streams = [complete(prompt="The", model=NAME, stream=True, **LONG) for _ in range(2)]
server.wait(num_requests_running=1, num_requests_waiting=1)
full = raises(openai.RateLimitError, lambda: complete(prompt="The", **draw), "too many requests are waiting")
assert int(full.response.headers["Retry-After"]) > 0, full.response.headers
streams[1].close()
server.wait(num_requests_waiting=0)
server.process.send_signal(signal.SIGTERM)
server.wait_for_signal()
raises(openai.InternalServerError, lambda: complete(prompt="The", **draw), "the server is shutting down")
streams[0].close()
server.process.communicate(timeout=20)
assert server.process.returncode == 0

# An error after the beginning of a stream.
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.08, "--request-timeout", 1)
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
raises(openai.APIError, lambda: [*client.completions.create(prompt="The", model=NAME, stream=True, **LONG)],
       "(--request-timeout)")
server.end()
