"""The page of the server streams texts in a browser, shows the probabilities of the API, and stops a request.

usage: test_serve_page.py [PROGRAM]; PICTURES=FOLDER keeps pictures of the page"""
from browser import *
from serving import *

if not CHROMIUM:
    print("skipped: there is no Chromium (ci/install-deps)")
    sys.exit(77)

KEY = "secret"
folder = WORK / "chat"
folder.mkdir()
shutil.copy(ROOT / "tests/data/tokenizer/metaspace.json", folder / "tokenizer.json")
(folder / "tokenizer_config.json").write_text(json.dumps({
    "bos_token": "<s>", "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"}))
saved = WORK / "saved"
corpus()
pretrain(["--mock-data"], saved, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder,
         "--train-iters", 3, "--max-position-embeddings", 2**20, "--position-embedding-type", "none")
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.08, "--api-key", KEY)
status, headers, page = server.request("GET", "/")
assert status == 200 and b"http://" not in page and b"https://" not in page, "the page needs other resources"
browser = Browser()
value, wait = browser.value, browser.wait
set_value = lambda name, text: value(f"document.getElementById({json.dumps(name)}).value = {json.dumps(text)}")
texts = lambda: value("[...document.querySelectorAll('.text')].map(t => t.textContent)")
asked = {"seed": 5, "temperature": 1.5, "max_tokens": 24}
REPORT = "document.getElementById('send').disabled ? '' : document.getElementById('status').textContent"

# Without the key, the page states what is missing; with it, which model is served.
browser.open(f"http://127.0.0.1:{server.port}/")
wait("document.getElementById('model').textContent.includes('Authorization')")
refused = browser.errors()
assert len(refused) == 1 and refused[0]["params"]["entry"]["text"].count("401"), refused
browser.events.clear()
set_value("key", KEY)
value("void showModel()")
wait(f"document.getElementById('model').textContent.startsWith({json.dumps(NAME)})")
server.headers = {"Authorization": f"Bearer {KEY}"}

# A text and its tokens are those of the API. So are the probabilities that the page shows below the pointer.
TIP = """[...document.querySelectorAll('.text span')].filter(s => s.tokens.length).map(s => {
    s.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))
    return [...document.querySelectorAll('#tip tr')].map(r => [r.className, ...[...r.cells].map(c => c.textContent)])
})"""
for name, number in asked.items(): set_value(name, number)
for stop in "", "ss\\n":
    set_value("prompt", "The ")
    set_value("stop", stop)
    value("void send()")
    wait(f"({REPORT}).startsWith('ended by ')")
    one = server.post(COMPLETE, prompt="The ", logprobs=5, **asked,
                      **({"stop": stop.replace("\\n", "\n")} if stop else {}))["choices"][0]
    assert texts() == ["The " + one["text"]], (texts(), one)
    shown = [row[2] for rows in value(TIP) for row in rows if row[0] == "chosen"]
    lists = one["logprobs"]
    assert shown == [f"{100 * math.exp(p):.2f} %" for p in lists["token_logprobs"]], (shown, lists)
    others = sorted(row[2] for rows in value(TIP) for row in rows if not row[0])
    assert others == sorted(f"{100 * math.exp(p):.2f} %" for chosen, top in zip(lists["tokens"], lists["top_logprobs"])
                            for token, p in top.items() if token != chosen), (others, lists)
set_value("stop", "")

# A conversation.
value("document.querySelector('[value=chat]').click()")
messages = []
for question in "The", "loss":
    messages.append({"role": "user", "content": question})
    answer = server.post(CHAT, messages=messages, **asked)["choices"][0]["message"]
    messages.append(answer)
    set_value("prompt", question)
    value("void send()")
    wait(f"({REPORT}).startsWith('ended by ')")
    assert texts() == [m["content"] for m in messages], (texts(), messages)

# A request that is wrong, and one that is stopped.
set_value("top_p", "3")
value("void send()")
wait(f"({REPORT}).startsWith('top_p')")
set_value("top_p", "")
value("document.querySelector('[value=completion]').click()")
set_value("prompt", "")
value("void send()")
wait(f"({REPORT}).includes('a prompt has no tokens')")
browser.events.clear()  # a browser reports a status of 400
set_value("prompt", "a")
set_value("max_tokens", 100000)
set_value("temperature", 0)  # no end token
value("void send()")
wait("document.querySelectorAll('.text span').length > 3")
server.wait(num_requests_running=1)
value("document.getElementById('stop').click()")
wait(f"({REPORT}).startsWith('stopped after ')")
server.idle()
wait("document.getElementById('metrics').rows[0].cells[1].textContent === '0'")

# A conversation that is left while the model answers is forgotten.
value("document.querySelector('[value=chat]').click()")
value("void send()")
wait("document.querySelectorAll('.text span').length > 3")
value("document.querySelector('[value=completion]').click()")
wait(f"({REPORT}).startsWith('stopped after ')")
assert value("messages.length") == 0 and texts() == [], texts()
server.idle()

if "PICTURES" in os.environ:
    set_value("max_tokens", 150), set_value("temperature", 1)
    set_value("prompt", "The loss ")
    value("void send()")
    wait(f"({REPORT}).startsWith('ended by ')")
    for scheme in "light", "dark":
        for name, width in ("wide", 1200), ("narrow", 390):
            browser.size(width, 900, scheme)
            value("(s => { const {x, y} = s.getBoundingClientRect(); tip(s, x, y) })"
                  "(document.querySelectorAll('.text span')[9])")
            browser.screenshot(pathlib.Path(os.environ["PICTURES"]) / f"{scheme}-{name}.png")
stopped = [e for e in browser.errors() if not e["params"].get("canceled")]
assert not stopped, stopped
server.end()
