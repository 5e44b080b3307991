"""generate prints, and writes for each key of --output-path, the values that an oracle computes from the options."""
import needs_numpy
import re
import time

from harness import *

sys.path.insert(0, str(ROOT / "tests/functional/fields"))
sys.dont_write_bytecode = True
import model
from judge import difference, plain
from model import repaired, visible
from oracle import Choice

model.write(WORK / "hf")
isotron("convert", "--from-hf", WORK / "hf", "--save", WORK / "saved")
OUT, LINES = WORK / "out.json", WORK / "lines"
PROMPTS = ["The e", "Th\u00e9", "b", "The e"]
NULL = ("cuda_graph_request_count_map", "routing_indices", "routing_indices_token_indices")


def size(n):
    """An amount of memory as the program prints it."""
    unit = 0
    while n >= 1023.95: n, unit = n / 1024, unit + 1
    return f"{n:.1f} {' KMG'[unit]}iB" if unit else f"{n} B"


def run(*words, status=0, stdin=""):
    """Returns standard output, standard error, and the duration in seconds."""
    began = time.monotonic()
    done = subprocess.run([*map(str, [PROGRAM, "generate", "--load", WORK / "saved", "--fp64", "--output-path", OUT,
        *words])],
                          capture_output=True, input=stdin.encode())
    assert done.returncode == status, (words, done)
    return done.stdout, done.stderr.decode(), time.monotonic() - began


def top(choice, first, end, n):
    maps = []
    for i in range(first, end):
        maps.append({})
        for token, x in choice.likeliest(i, n): maps[-1].setdefault(repaired(visible(token, True)), x)
    return maps


def check(*words, prompts=PROMPTS[:1], most=20, lengths=None, seed=5, streams=True, given=True, repeats=1, every=1,
        passes=None, shared=0, **ask):
    """Runs generate with these prompts, and compares all that it prints and writes with the oracle. A text has at most
    `most` or lengths[i] new tokens. `every` and `repeats` are values of options; `shared` tokens of prompts are in the
    cache."""
    ask = {"temperature": 1.3, "top_k": 0, "top_p": 1, "min_p": 0, "special": True, **ask}
    ends, logprobs, skip, n = ask.get("ends", model.ENDS), ask.get("logprobs"), ask.get("skip"), ask.get("top", 0)
    lengths = lengths or [most] * len(prompts)
    texts = [Choice(model.encode(p), {**ask, "ignore_eos": True, "stop_token_ids": ends}, seed, length, stream=i)
             for i, (p, length) in enumerate(zip(prompts, lengths))]
    options = ["--temperature", ask["temperature"], "--random-seed", seed, "--tokens-to-generate", most,
        "--inference-repeat-n", repeats,
               "--output-every-n-results", every, *(["--prompt", *prompts] if given else []), *words,
               *(["--logprobs"] if logprobs else []), *(["--skip-prompt-log-probs"] if skip else []),
               *(["--stop", *ask["stop"]] if "stop" in ask else []), *(["--top-n-logprobs", n] if n else []),
               *(["--termination-id", *(ends or [-1])] if "ends" in ask else [])]
    for stream in (False, True) if streams else (False,):
        out, err, took = run(*options, *(["--stream"] if stream else []))
        wanted = b""
        for i, (prompt, c) in enumerate(zip(prompts, texts)):
            if len(prompts) > 1: wanted += f"{chr(10) * (i > 0)}--- {i + 1}\n".encode()
            wanted += prompt.encode() + c.text.encode() + b"\n"
            kept = len(c.tokens()) - (c.end is not None)
            for k in range(len(c.prompt) if skip else 1, kept if logprobs else 0):
                kind = "prompt" if k < len(c.prompt) else "new"
                wanted += f"{kind} {k}\t{c.tokens()[k]}\t{c.logprob(k):.9g}\n".encode()
        assert out == wanted, f"{options} {stream}\n got {out}\nwant {wanted}"
        told, new = json.loads(OUT.read_text()), sum(len(c.new) for c in texts)
        found = re.search(r"  generated (\d+) tokens? in (\d+\.\d\d) s: (\d+\.\d) tokens/s; "
                          r"a rank allocated at most (.*)\n", err)
        rates, most_bytes = told.pop("throughput"), told.pop("mem-max-allocated-bytes")
        printed = new, f"{rates[-1]:.1f}", size(most_bytes)
        assert (int(found[1]), found[3], found[4]) == printed, (found, printed)
        assert len(rates) == repeats and abs(new / rates[-1] - float(found[2])) < 0.0051, (found, rates)
        assert sum(new / rate for rate in rates) < took, (rates, took)
        samples = [i for i in range(len(texts)) if i % every == 0 or i == len(texts) - 1]
        assert told.keys() == {*map(str, samples), "lifetime_prefill_token_count", "async_sched_step_count",
                               "async_sched_compaction_step_count"}, told.keys()
        assert told["lifetime_prefill_token_count"] == sum(len(c.prompt) for c in texts) - shared, told
        assert told["async_sched_step_count"] == told["async_sched_compaction_step_count"] == 0, told
        for i in samples:
            c, sample = texts[i], told[str(i)]
            times = {name: sample.pop(name) for name in ("latency", "ttft", "tpot")}
            assert len(times["tpot"]) == len(c.new) and times["ttft"] == times["tpot"][0], times
            assert min(times["tpot"]) >= 0 and 0 <= times["latency"] - sum(times["tpot"]) + 1e-9 < 0.05, times
            most_time = new / rates[-1] if repeats == 1 else took
            assert times["latency"] < most_time + 1e-6, (times, most_time)
            end, begin = len(c.tokens()), len(c.prompt) if skip else 1
            want = {"input_prompt": prompts[i], "generated_text": c.text, "generated_tokens": c.new, **{name: None
                for name in NULL},
                    "step_count": passes or max(len(c.new) for c in texts),
                    "top_n_logprobs": top(c, len(c.prompt), end, n) if n else None,
                    "generated_top_n_logprobs": top(c, len(c.prompt), end, n) if n else None,
                    "prompt_top_n_logprobs": top(c, 1, len(c.prompt), n) if n and not skip else None}
            if logprobs:
                values = [c.logprob(k) for k in range(begin, end)]
                want |= {"prompt_logprobs": values[:len(c.prompt) - begin],
                    "generated_logprobs": values[len(c.prompt) - begin:],
                         "logprobs": values}
            assert not difference(sample, plain(want)), (options, difference(sample, plain(want)), sample, want)
    return texts, err


new = check()[0][0].new
check(prompts=PROMPTS, logprobs=True, top=3)
check(prompts=PROMPTS[:2], logprobs=True, skip=True, top=262, most=3)
cold = check(ends=[], most=60, temperature=0.6)[0][0].new
check(ends=[cold[9]], logprobs=True, top=2, most=60, temperature=0.6)
check(ends=[], stop=[repaired(bytes(cold[7:9])), repaired(bytes(cold[20:22]))], temperature=0.6, most=60, logprobs=True)
check(prompts=PROMPTS, every=2, repeats=3)
check(prompts=PROMPTS, every=3)
check(prompts=PROMPTS[:3], every=5)
assert check(prompts=PROMPTS[:1], most=1)[1].count("generated 1 token in") == 1
# A pass also checks up to three drafts of an equal model. Passes have as many tokens as the prompt, so the draft model
# needs two passes to read the prompt and the first new token. The last new token needs no draft. The third draft of a
# pass is not kept if the second one ends the text.
for most, ends, drafts, kept, passes in (9, [], 5, 5, 4), (2, [], 0, 0, 2), (9, [new[4]], 3, 2, 3):
    err = check("--speculative-model", WORK / "saved", "--num-speculative-tokens", 3, "--batch-invariant-mode",
                ends=ends, most=most, passes=passes)[1]
    assert f"  kept {kept} of {drafts} drafted tokens, in {passes} passes\n" in err, err
check("--inference-max-requests", 1, prompts=["ab" * 40] * 2, ends=[], passes=20 + 20, shared=model.PAGE)
check("--inference-dynamic-batching-max-tokens", 2, passes=3 + 19)  # the prompt has 5 tokens
# The engine is suspended for most of the time. It then computes the prompt again, and the new tokens in another
# pass.
check("--suspend-resume-interval", 2, "--suspend-timeout", 0.5, ends=[], most=3, passes=4, shared=-5)
LINES.write_text("The e\n\nb\n")
check("--prompts-file", LINES, prompts=["The e", "b"], given=False)
LINES.write_text('{"text": "The e", "chatgpt_output_token_length": 1}\n'
                 '{"prompt": "b", "chatgpt_output_token_length": 7}\n')
check("--prompt-file", LINES, prompts=["The e", "b"], given=False)
check("--prompt-file", LINES, "--prompt-file-num-truncate", 2, prompts=["The e", "b"], given=False)
check("--prompt-file", LINES, "--prompt-file-num-truncate", 1, prompts=["The e"], given=False)
check("--prompt-file", LINES, "--num-tokens-from-file", prompts=["The e", "b"], lengths=[1, 7], given=False)

# Unlike in transformers, the tokenizer's special tokens are added only if the option is set. A note states this.
for words, noted in ([], True), (["--tokenizer-hf-include-special-tokens"], False), (
        ["--tokenizer-hf-no-include-special-tokens"], False):
    err = run("--prompt", "a", "--tokens-to-generate", 1, *words)[1]
    assert ("without the tokenizer's special tokens, such as '<s>': set" in err) == noted, (words, err)
