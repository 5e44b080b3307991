"""generate prints only the text to standard output, ends it before a stop text, reads prompts from standard input, runs
on several ranks, and refuses unsuitable options and tokenizers."""
import itertools
import re

from harness import *

data = corpus()
saved = WORK / "saved"
pretrain(data, saved, "--max-position-embeddings", 2**30, "--position-embedding-type", "none")


def generate(*words, stdin="", status=0):
    """Runs generate. Returns standard output and standard error."""
    words = [PROGRAM, "generate", "--load", saved, "--temperature", 0, *words, *OPTIONS]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, errors="surrogateescape", input=stdin)
    assert done.returncode == status, (words, done)
    return done.stdout, done.stderr


LENGTH = ["--tokens-to-generate", 24]
whole, told = generate("--prompt", "The ", *LENGTH)
assert whole.startswith("The ") and whole.count("\n") == whole[4:-1].count("\n") + 1, whole
assert "successfully loaded" in told and re.search(r"generated 24 tokens in \d+\.\d\d s: [\d.]+ tokens/s", told), told
assert generate("--prompt", "-", *LENGTH, stdin="The \n")[0] == whole
ended = generate("--prompt", "The ", *LENGTH, "--termination-id", ord(whole[6]))[1]  # the end token is counted
assert f"generated {whole[4:].index(whole[6]) + 1} token" in ended, (whole, ended)
assert "'-', line 2: byte 0xe9 at offset 5" in generate("--prompt", "-", stdin="The\nc\udce9", status=2)[1]
assert "text 2 of --stop, line 1: byte 0xe9 at offset 1" in generate("--prompt", "a", "--stop", "a",
                                                                     "c\udce9", status=2)[1]

# The text ends before the first stop text, even if that consists of several tokens: a token of this tokenizer is at
# most one byte, and a stop text has two. No stop text may occur earlier in the drawn text.
for seed in itertools.count():
    draw = ["--prompt", "The ", *LENGTH, "--temperature", 0.3, "--random-seed", seed]
    new = generate(*draw)[0][4:-1]
    starts = [new.find(new[a:b]) for a, b in ((5, 7), (12, 14), (5, 10))]
    if new.isascii() and new.isprintable() and len(new) > 14 and starts == [5, 12, 5]:
        break
for stops in [new[12:14], new[5:7]], [new[5:10], new[3:10], new[4:10]]:  # the second ones end with the same token
    at = min(new.index(s) for s in stops)
    assert generate(*draw, "--stop", *stops)[0] == "The " + new[:at] + "\n", (new, stops)
assert generate("--prompt", "The ", *LENGTH, "--stop", "no such text")[0] == whole
# A stop text inside a prompt does not end the generation, even if other prompts are longer.
both = generate("--prompt", "The ", "Another prompt, ", *LENGTH)[0]
found = re.fullmatch(r"--- 1\nThe (.*)\n\n--- 2\nAnother prompt, (.*)\n", both, re.DOTALL)
for stop in "prompt, ", "The ":
    assert all(stop not in text for text in found.groups()), both
    assert generate("--prompt", "The ", "Another prompt, ", *LENGTH, "--stop", stop)[0] == both

# Tensor-parallel ranks, even more than there are query groups, and pipeline-parallel ranks generate the same text as
# one rank.
many = ["--prompt", "The ", "Another prompt, ", *LENGTH, "--fp64", "--logprobs"]
alone = generate(*many)[0]
TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
for layout in [TP, 2], [TP, 4], [PP, 2], [TP, 2, PP, 2]:
    assert_same_text(generate(*many, *layout)[0], alone, layout)
told = generate("--prompt", "a", PP, 3, status=2)[1]
assert "2 layers cannot be divided evenly among 3 pipeline ranks" in told, told
# Routers that depend on other tokens in training do not depend on them in generation, and generate knows the router.
experts = ["--num-experts", 4, "--moe-router-topk", 1, "--moe-router-pre-softmax", "--train-iters", 1,
           "--lr-warmup-iters", 0]
for name, more in (("capacity", ["--moe-expert-capacity-factor", 0.4]),
                   ("sinkhorn", ["--moe-router-load-balancing-type", "sinkhorn"]),
                   ("quantiles", ["--moe-router-load-balancing-type", "quantile_balancing"])):
    pretrain(data, WORK / name, *experts, *more)
    each = ["--load", WORK / name, "--tokens-to-generate", 5, "--fp64", "--logprobs", "--prompt"]
    both = generate(*each, "The 4th prompt", "The 4")[0].partition("--- 2\n")[2]
    assert_same_text(generate(*each, "The 4", *more)[0], both, name)
    invariant = generate(*each, "The 4th prompt", "The 4", "--batch-invariant-mode")[0].partition("--- 2\n")[2]
    assert generate(*each, "The 4", "--batch-invariant-mode")[0] == invariant, name
    assert_same_text(generate(*each, "The 4", *more, TP, 2, "--expert-model-parallel-size", 2,
                              "--expert-tensor-parallel-size", 1, PP, 2)[0], both, name)
assert "prompt 2, line 1: byte 0xe9 at offset 3" in generate("--prompt", "a", "caf\udce9", status=2)[1]

# Data-parallel replicas compute different prompts, alone or together with experts, and print what one rank prints.
# Beam search computes the same on each replica.
for load, layouts in ((saved, ([], [PP, 2], ["--num-speculative-tokens", 2, "--speculative-model", saved])),
                      (WORK / "sinkhorn", (["--expert-model-parallel-size", 2], [PP, 2]))):
    many = ["--load", load, "--prompt", "The ", "Another prompt, ", "The 4", "--tokens-to-generate", 12,
            "--temperature", 1.5, "--logprobs", "--stop", "zz", "--batch-invariant-mode"]
    alone = generate(*many)[0]
    for layout in layouts:
        for ranks in 2, 4:
            if PP in layout and ranks == 2: continue
            assert generate(*many, *layout, "--ranks", ranks)[0] == alone, (layout, ranks)
beams = [[PROGRAM, "generate", "--load", saved, "--prompt", "The ", *LENGTH, "--beam-width", 2, "--ranks", ranks,
          *OPTIONS] for ranks in (1, 2)]
assert len({subprocess.run([*map(str, words)], capture_output=True, check=True).stdout for words in beams}) == 1
told = generate("--load", WORK / "sinkhorn", "--prompt", "a", "--expert-model-parallel-size", 2, "--ranks", 1,
                status=2)[1]
assert "Set --ranks to a multiple of 2" in told, told
for words, message in ((["--load", WORK / "sinkhorn", "--prompt", "a", "a" * 9, "--tokens-to-generate", 30,
                         "--ranks", 2], "prompt 2: 9 prompt tokens and 30 new tokens exceed"),
                       (["--load", WORK / "sinkhorn", "--prompt", "a", "--expert-model-parallel-size", 2, "--ranks", 2,
                         "--num-speculative-tokens", 2, "--speculative-model", WORK / "sinkhorn"],
                        "share experts cannot speculate")):
    told = generate(*words, status=2)[1]
    assert message in told, (words, told)

# In each of 2 layers, the KV cache has 2 pools, each with half of the hidden size (24). A second prompt could wait.
for prompts in ["a"], ["a", "b"]:
    out, told = generate("--prompt", *prompts, "--tokens-to-generate", 10**9, status=2)
    pages = 10**9 // 64 + 1
    size = pages * 64 * 2 * 2 * 24 * 4 / 2**30
    assert not out and f"the KV cache ({pages} pages of 64 tokens) needs {size:.1f} GiB" in told, (size, told)
    assert "available" in told, told

# Generation keeps only parameters in memory: no gradients, optimizer state or main weights. The remaining memory is the
# cache of 28 positions in 2 layers, and 5 %: 2 tensors of half of the hidden size, or a latent and a rotated part.
large, latents = WORK / "large", WORK / "latents"
(WORK / "latents.conf").write_text("".join(line for line in CONF.splitlines(keepends=True) if "group" not in line))
latent_model = ["--config", WORK / "latents.conf", "--multi-latent-attention", "--kv-lora-rank", 64, "--qk-head-dim",
                16,
          "--qk-pos-emb-head-dim", 32, "--v-head-dim", 16, "--disable-bias-linear"]
for folder, width, model, more in (large, 2 * 128, BASE[1:], []), (latents, 64 + 32, latent_model,
                                                                   ["--cache-mla-latents"]):
    isotron("pretrain", *model, *data, "--save", folder, "--hidden-size", 256, "--train-iters", 1,
            "--lr-warmup-iters", 0, "--log-jsonl", f"{folder}.jsonl")
    parameters = json.loads(open(f"{folder}.jsonl").readline())["parameters"]
    assert parameters > 1e6, parameters
    for lane, each in ("fp32", 4), ("bf16", 2), ("fp64", 8):
        told = isotron("generate", "--load", folder, "--prompt", "The ", *LENGTH, "--lane", lane, *more)
        took = float(re.search(r"a rank allocated at most ([\d.]+) MiB", told)[1])
        least = (parameters + 2 * 28 * width) * each / 2**20
        scratch = 64 if "cuda" in OPTIONS else 0  # of GEMMs, for any model
        assert least - 0.1 <= took <= 1.05 * least + scratch + 0.1, (lane, took, least)
told = isotron("generate", "--load", large, "--prompt", "a", "--max-position-embeddings", 2**30,
               "--lane", "fp64", expect=2)
assert re.search(r"the model's parameters need [\d.]+ MiB and its tables need 512.0 GiB, but", told), told

# The message about a tokenizer that does not fit the model names it and both vocabulary sizes.
for more in ["--tokenizer-type", "NullTokenizer", "--vocab-size", 1000], ["--tokenizer-type", "GPT2BPETokenizer",
                                                                          "--vocab-file",
                                                                          ROOT / "tests/data/tokenizer/gpt2/vocab.json",
                                                                      "--merge-file", ROOT
                                                                          / "tests/data/tokenizer/gpt2/merges.txt"]:
    out, told = generate("--prompt", "5", *more, status=2)
    assert not out, told
    assert re.search(rf"the tokenizer {more[1]}( '.*vocab.json')? has (1000|900) tokens, but the model in '.*' has "
                     rf"512: set --tokenizer-type and", told), told

# A checkpoint stores absolute paths of the tokenizer's files, so that it can be loaded in another working directory.
for words in "GPT2BPETokenizer --vocab-file gpt2/vocab.json --merge-file gpt2/merges.txt", (
        "HuggingFaceTokenizer --tokenizer-model bert.json"):
    words = [*BASE, "--mock-data", "--train-iters", 1, "--lr-warmup-iters", 0, "--save", WORK / words[:3],
             "--tokenizer-type", *words.split(), *OPTIONS]
    subprocess.run([pathlib.Path(PROGRAM).resolve(), *map(str, words)], cwd=ROOT / "tests/data/tokenizer", check=True,
                   capture_output=True)
    isotron("generate", "--load", words[words.index("--save") + 1], "--prompt", "a", "--tokens-to-generate", 1)

# A draft model must have the vocabulary of the model.
for name, more, message in (("bytes", ["--vocab-size", 600],
                             "its vocabulary has 600 tokens, but the --load model's vocabulary has 512"),
                            ("numbers", ["--tokenizer-type", "NullTokenizer", "--vocab-size", 512],
                             "token 0 has a different text in the --load model's tokenizer")):
    pretrain(data, WORK / name, "--train-iters", 1, "--lr-warmup-iters", 0, *more)
    told = generate("--prompt", "a", "--num-speculative-tokens", 2, "--speculative-model", WORK / name, status=2)[1]
    assert f"--speculative-model {WORK / name}: {message}; specify a model with the same tokenizer" in told, told
told = generate("--prompt", "a", "--num-speculative-tokens", 2, "--speculative-model", WORK / "missing", status=2)[1]
assert f"--speculative-model {WORK / 'missing'}: '{WORK / 'missing'}'" in told, told
print("generate prints text")
