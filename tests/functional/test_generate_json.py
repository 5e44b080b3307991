"""generate adds prompts over time, suspends its engine, runs on several ranks, streams texts and reads JSON Lines. None
of this changes the text. functional/generate_fields tests what generate prints and writes."""
import os
import pty
import re
import time

from harness import *

NULL = ["--tokenizer-type", "NullTokenizer", "--vocab-size", 40]
data, saved, lines, path = corpus(), WORK / "saved", WORK / "prompts.jsonl", WORK / "out.json"
pretrain(data, WORK / "letters", "--max-position-embeddings", 2**15)
isotron(*BASE, "--mock-data", *NULL, "--train-iters", 2, "--lr-warmup-iters", 0, "--save", saved)


def generate(*words, load=saved, status=0, stdin=None):
    """Runs generate with --output-path. Returns standard output, standard error and the JSON."""
    path.unlink(missing_ok=True)
    words = [PROGRAM, "generate", "--load", load, "--output-path", path, "--temperature", 0, *words, *OPTIONS]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, errors="surrogateescape", input=stdin)
    assert done.returncode == status, (words, done)
    assert path.exists() == (status == 0), done
    return done.stdout, done.stderr, json.loads(path.read_text()) if path.exists() else {}


RUN = {"throughput", "mem-max-allocated-bytes", "lifetime_prefill_token_count", "async_sched_step_count",
       "async_sched_compaction_step_count"}
PROMPTS = ["1 2 3 4 5", "6", "7 8 9"]
ASK = ["--prompts", *PROMPTS, "--num-tokens-to-generate", 6, "--termination-id", -1, "--fp64"]


def tokens(told):
    return [told[str(i)]["generated_tokens"] for i in range(len(told) - len(RUN & set(told)))]


# No token depends on how prompts are added, on suspensions, on the engine's limits or on repeats. Options select what
# the file contains.
wanted = tokens(generate(*ASK)[2])
for more, passes, count in ((["--incoming-requests-per-step", 1], 8, 9), (["--inference-max-requests", 1], 18, 9),
                            (["--inference-dynamic-batching-max-tokens", 2], 0, 9),
                            (["--inference-dynamic-batching-block-size", 128], 6, 9),
                            (["--inference-dynamic-batching-buffer-size-gb", 1e-6], 18, 9),
                            (["--incoming-requests-per-sec", 100], 0, 9), (["--incoming-requests-per-sec", -1], 6, 9),
                            (["--suspend-resume-interval", 2], 0, 0),
                            (["--suspend-resume-interval", 2, "--rl-kv-cache-management-mode", "offload"], 6, 9),
                            (["--suspend-resume-interval", 1, "--suspend-timeout", 1e-3, "--ranks", 2], 0, 0),
                            (["--suspend-resume-interval", 1, "--inference-dynamic-batching-max-tokens", 2], 0, 0),
                            (["--ranks", 3], 6, 9), (["--ranks", 4, "--incoming-requests-per-sec", 100], 0, 9)):
    told = generate(*ASK, *more, "--inference-repeat-n", 3)[2]
    assert tokens(told) == wanted and len(told["throughput"]) == 3, (more, told)
    assert passes in (0, told["0"]["step_count"]), (more, told)
    assert count in (0, told["lifetime_prefill_token_count"]), (more, told)
again = generate(*ASK, "--suspend-resume-interval", 2)[2]["lifetime_prefill_token_count"]
assert again > 9, again  # prompts are computed again
start = time.monotonic()
generate(*ASK, "--suspend-resume-interval", 2, "--suspend-timeout", 0.5)
assert time.monotonic() - start > 1, "two suspensions take a second"

# The results of replicas and of processes are those of one rank. Only the first process reads prompts.
ask = ["--prompts", *PROMPTS, "--num-tokens-to-generate", 6, "--return-log-probs", "--top-n-logprobs", 3,
       "--batch-invariant-mode", "--temperature", 1.3]
TIMES = {"latency", "ttft", "tpot", "step_count"}


def results(told):
    return [{key: value for key, value in told[str(i)].items() if key not in TIMES} for i in range(len(PROMPTS))]


text, _, alone = generate(*ask, "--stream")
for ranks in 2, 3:
    got, _, told = generate(*ask, "--stream", "--ranks", ranks)
    assert got == text and results(told) == results(alone), (ranks, told, alone)
path.unlink()
done = subprocess.run([*map(str, [sys.executable, ROOT / "tests/functional/launcher.py", 3, PROGRAM, "generate",
                                  "--load", saved, "--output-path", path, *ask, *OPTIONS,
                                  "--prompts", "-", "--stream"])],
                      input=PROMPTS[0], capture_output=True, text=True)
assert done.returncode == 0 and done.stdout.startswith(text[6:].partition("\n")[0]), (done, text)
assert results(json.loads(path.read_text()) | {"1": {}, "2": {}})[0] == results(alone)[0], done
slow = generate("--prompts", *["1"] * 20, "--num-tokens-to-generate", 1, "--incoming-requests-per-sec", 40)[2]
assert slow["throughput"][0] < 200, slow["throughput"]  # on average, 19 prompts arrive in 0.475 s
assert set(generate(*ASK, "--no-record-throughput")[2]) == RUN - {"throughput"} | {"0", "1", "2"}
assert set(generate(*ASK, "--throughput-check-only")[2]) == {"throughput"}

# A stream prints what is printed at the end, and a terminal sees it before the end.
letters = ["--num-tokens-to-generate", 30, "--return-log-probs"]
for stop in [], ["--stop", "e ", "th"]:
    for prompts in ["The "], ["The ", "A rank", "No"]:
        ask = ["--prompt", *prompts, *letters, *stop]
        plain = generate(*ask, load=WORK / "letters")[0]
        assert generate(*ask, "--stream", "--inference-repeat-n", 2, load=WORK / "letters")[0] == plain, plain
main, terminal = pty.openpty()
process = subprocess.Popen([PROGRAM, "generate", "--load", WORK / "letters", "--prompt", "The ", "--stream",
                            "--temperature", "0", "--num-tokens-to-generate", "30000", *OPTIONS],
                           stdout=terminal, stderr=subprocess.DEVNULL)
os.close(terminal)
said = b""
while len(said) < 6:
    said += os.read(main, 100)
assert said.startswith(b"The ") and process.poll() is None, said
process.kill()
process.wait()
os.close(main)

# JSON Lines
OBJECTS = ['{"text": "1 2 3 4 5", "chatgpt_output_token_length": 2}', '{"prompt": "6"}']
lines.write_text("\n".join(OBJECTS))
told = generate("--prompt-file", lines, *ASK[4:])[2]
assert tokens(told) == wanted[:2], told
assert tokens(generate("--prompt-file", "-", *ASK[4:], stdin=lines.read_text())[2]) == wanted[:2]
for end in "\r\n", "\r", "\n\n":
    for name, prompts in ("--prompt-file", [*OBJECTS, " \t"]), ("--prompts-file", ["1 2 3 4 5", "6"]):
        lines.write_text("".join(prompt + end for prompt in prompts), newline="")
        told = generate(name, lines, *ASK[4:])[2]
        assert tokens(told) == wanted[:2] and told["1"]["input_prompt"] == "6", (name, end, told)
for line, more, problem in (
        ("1 2 3", [], "line 2: not valid JSON"), ("1 2 3", [], "for lines of plain text use --prompts-file"),
        ('["a"]', [], "line 2: "), ('{"texts": "1"}', [], 'neither "text" nor "prompt"'),
        ('{"text": "1", "prompt": "2"}', [], 'both "text" and "prompt"'),
        ('{"text": 1}', [], "line 2: the value of the key 'text' is not a string; write it in quotes"),
        ('{"text": "a\\u0000b"}', [], 'line 2: "text" contains \\u0000'),
        ('{"text": ""}', [], "prompt 2: the prompt is empty"),
        *(('{"text": "1"%s}' % length, ["--num-tokens-from-file"], '"chatgpt_output_token_length" must be a number')
          for length in ("", *(f', "chatgpt_output_token_length": {x}' for x in ("0", "1.5", '"2"', "1e99", "null"))))):
    lines.write_text(f'{{"text": "1 2 3", "chatgpt_output_token_length": 1}}\n{line}\n')
    told = generate("--prompt-file", lines, "--num-tokens-to-generate", 1, *more, status=2)[1]
    assert problem in told, (line, told)
for words, problem in (
        (["--prompts", "1", "--top-n-logprobs", 2], "add --return-log-probs"),
        (["--prompts", "1", "--top-n-logprobs", 99, "--return-log-probs"], "exceeds the vocabulary of 40 tokens"),
        (["--prompts", "1", "--termination-id", 40], "is outside the vocabulary of 40 tokens"),
        (["--prompt-file", path], "--output-path and --prompt-file are the same file"),
        (["--prompts", "1", "--output-request-events"], "--output-request-events is not supported"),
        (["--prompts", "1", "--model-provider", "t5"], "--model-provider t5 is not supported"),
        (["--num-tokens-to-prompt", 4, 8], "Set --prompt, --prompts-file or --prompt-file"),
        (["--prompts", "1", "--output-path", WORK / "absent" / "out.json"], "absent"),
        (["--prompts", "-", "1", "-"], "--prompt reads standard input (-) more than once"),
        (["--prompts", "1", "--prompt-file", lines], "are mutually exclusive")):
    assert problem in generate(*words, status=2)[1], (words, problem)
(WORK / "hf").mkdir()
(WORK / "hf/config.json").write_text("{}")
said = generate(*ASK, load=WORK / "hf", status=2)[1]
assert "no checkpoint; it contains a Hugging Face model, which isotron convert --from-hf converts" in said, said
said = generate(*ASK, "--model-provider", "gpt")[1]
assert "--model-provider has no effect: Isotron has only one kind of decoder (GPT)" in said, said
print("generate writes JSON")
