"""generate --interactive answers each line of a terminal with the chat template. An answer is what generate writes
after the text of the whole conversation."""
import os
import pty
import re
import termios

from harness import *

folder, saved = WORK / "chat", WORK / "saved"
folder.mkdir()
shutil.copy(ROOT / "tests/data/tokenizer/metaspace.json", folder / "tokenizer.json")
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% if m.content == 'refused' %}"
            "{{ raise_exception('not this') }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")
(folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": TEMPLATE}))
corpus()
isotron(*BASE, "--mock-data", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder, "--save", saved,
        "--train-iters", 1, "--lr-warmup-iters", 0, "--init-method-std", 0.5, "--max-position-embeddings", 160)
BASICS = ["--load", saved, "--fp64"]


def render(messages):
    return "".join(f"{'assistant' if i % 2 else 'user'}: {text}\n" for i, text in enumerate(messages)) + "assistant:"


def expected(messages, *words):
    """The continuation of the text of a conversation."""
    prompt = render(messages)
    said = subprocess.run([*map(str, [PROGRAM, "generate", *BASICS, "--stream", *words, *OPTIONS, "--prompt", prompt])],
                          capture_output=True, text=True, check=True).stdout
    assert said.startswith(prompt), said
    return said[len(prompt):-1]


def printed(*words):
    done = subprocess.run([*map(str, [PROGRAM, "generate", *BASICS, "--tokens-to-generate", 8, *words, *OPTIONS])],
                          capture_output=True, text=True, check=True)
    return done.stdout


# A text begins with the prompt as it was given, although the tokenizer ignores case and has no token for "\u00e9", and
# the new text keeps its first space. A stream prints the same.
GIVEN, FILE = "The \u00e9", WORK / "out.json"
for seed in range(100):
    drawn = ["--prompt", GIVEN, "--random-seed", seed]
    new = printed(*drawn).removeprefix(GIVEN)[:-1]
    if new.startswith(" ") and new.isprintable(): break
else:
    sys.exit("no seed draws a text that begins with a space")
for stop, kept in ([], new), (["--stop", new[:3]], ""):
    for stream in [], ["--stream"]:
        assert printed(*drawn, *stop, *stream, "--output-path", FILE) == GIVEN + kept + "\n", (new, stop, stream)
        assert json.loads(FILE.read_text())["0"]["generated_text"] == kept, new


def tokens(text):
    """The number of tokens of a text."""
    told = isotron("tokenize", "--text", text, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder)
    return len(json.loads(told)["ids"])


def line_of(n):
    """A message with which a conversation has n tokens."""
    line = "a" * (n - tokens(render([""])))
    while tokens(render([line])) > n: line = line[:-1]
    while tokens(render([line])) < n: line += "q"
    return line


class Talk:
    """A conversation at a terminal that does not echo."""

    def __init__(self, *words):
        self.main, terminal = pty.openpty()
        modes = termios.tcgetattr(terminal)
        modes[1] &= ~termios.ONLCR
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(terminal, termios.TCSANOW, modes)
        self.process = subprocess.Popen([*map(str, [PROGRAM, "generate", *BASICS, "--interactive", *words, *OPTIONS])],
                                        stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, text=True)
        os.close(terminal)
        self.until()

    def until(self):
        """Reads up to the next "> "."""
        said = b""
        while not said.endswith(b"> "):
            try:
                said += os.read(self.main, 1000)
            except OSError:  # the end of a terminal
                sys.exit(f"{said}, {self.process.communicate()}")
        return said[:-2].decode()

    def say(self, line):
        os.write(self.main, line.encode() + b"\n")
        return self.until()

    def end(self, bytes_):
        os.write(self.main, bytes_)
        told = self.process.communicate(timeout=60)[1]
        os.close(self.main)
        assert self.process.returncode == 0, told
        return told


GREEDY = ["--temperature", 0, "--tokens-to-generate", 8]
for ranks in 1, 2:
    talk, history = Talk(*GREEDY, *(["--tensor-model-parallel-size", ranks] if ranks > 1 else [])), []
    for line in "The loss", "A rank is é", "the":
        history.append(line)
        told = talk.say(line)
        assert told == expected(history, *GREEDY) + "\n" and len(told) > 4, (told, history)
        history.append(told[:-1])
    assert talk.say("") == ""  # an empty line asks for nothing
    assert talk.say("refused") == "" and talk.say("the") == expected([*history, "the"], *GREEDY) + "\n"
    assert talk.say("/clear") == "" and talk.say("The loss") == history[1] + "\n"  # as at the start
    told = talk.end(b"/exit\n")
    assert told.count("isotron: ") == 1 and "not this" in told and "note:" not in told, told
    assert f"isotron: '{folder}/tokenizer_config.json': line 2 of the chat template: " in told, told

# An answer ends at a stop text, which is not part of the history, or where the context is full. Then nothing fits.
whole = expected(["The loss"], *GREEDY)
talk = Talk(*GREEDY, "--stop", whole[6:9])
assert talk.say("The loss") == whole[:whole.index(whole[6:9])] + "\n"
talk.end(b"\x04")  # the end of the input
for words in [], ["--tokens-to-generate", 155]:  # more tokens than fit
    talk = Talk("--temperature", 0, "--termination-id", -1, *words)
    full = talk.say("The loss")
    assert len(full) > len(whole) and talk.say("and more") == "" and talk.say("/clear") == ""
    for n, fits in (160, False), (159, True):  # there must be room for one token of an answer
        assert bool(talk.say(line_of(n))) == fits and talk.say("/clear") == "", n
    assert talk.say("The loss").startswith(whole)
    told = talk.end(b"/exit\n")
    assert "note: the answer ends because the context of 160 tokens is full" in told, told
    n = tokens(render(["The loss", full[:-1], "and more"]))
    assert f"has {n} tokens, but the model has room for only 160 tokens including the answer: /clear" in told, told
talk = Talk("--temperature", 0, "--termination-id", -1, "--inference-dynamic-batching-buffer-size-gb", 1e-6)
assert talk.say("The loss").startswith(whole)
assert "context of 64 tokens is full" in talk.end(b"/exit\n")
DRAWN = ["--tokens-to-generate", 8, "--temperature", 2, "--random-seed", 3]
talk = Talk(*DRAWN)
answers = [talk.say("The loss") + talk.say("/clear") for _ in range(3)]
talk.end(b"/exit\n")
said = isotron("generate", *BASICS, *DRAWN, "--prompt", *[render(["The loss"])] * 3)  # each with other random numbers
drawn = re.findall(r"^--- \d\n.*?assistant:(.*?\n)(?=\n---|  successfully)", said, re.M | re.S)
assert answers == drawn and len({*answers}) == 3, (answers, said)

# Without a terminal there is no "> ". Text that is not UTF-8 is refused, and the conversation goes on.
done = subprocess.run([*map(str, [PROGRAM, "generate", *BASICS, "--interactive", *GREEDY, *OPTIONS])],
                      input=b"caf\xe9\nThe loss\r\n/exit\r\nthe\n", capture_output=True, check=True)
assert done.stdout.decode() == whole + "\n" and b"byte 0xe9 at offset 3" in done.stderr, done
for words, problem in (
        (["--prompt", "a"], "are mutually exclusive"), (["--output-path", "x"], "--output-path has no effect without"),
        (["--tokenizer-type", "NullTokenizer", "--vocab-size", 40], "")):
    said = isotron("generate", *BASICS, "--interactive", *words, expect=0 if "effect" in problem else 2)
    assert problem in said, said
print("generate converses")
