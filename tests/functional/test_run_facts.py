"""Before the first step, a run prints its model, data and epochs, layout and machine, without delay even if the output
is redirected. An explicit evaluation without data is refused."""
import os
import re
import time

from harness import *

data = corpus()
SPLIT = [*data[:2], "--split"]


def shown(name, said):
    return re.search(rf"^{name}: +(.*)$", said, re.M)[1]


# The dataset has 2992 tokens. Validation gets its share of the split, which is read repeatedly if needed.
said = isotron(*BASE, *SPLIT, "80,20,0", "--eval-iters", 9, "--train-iters", 60, "--exit-interval", 1, "--ranks", 4,
               "--tensor-model-parallel-size", 2, "--use-distributed-optimizer")
assert "2 layers of width 48, 4 heads (2 of keys and values); number of parameters: " in shown("model", said), said
assert shown("layout", said) == "4 ranks: tensor 2, data 2, distributed optimizer", said
assert shown("precision", said) == "fp32", said
assert shown("data", said) == str(data[1]) and "ByteLevelTokenizer" in shown("tokenizer", said), said
tokens = 0
for name, samples in {"training": 60 * 8, "validation": 9 * 8}.items():
    own, read, epochs = re.fullmatch(r"(\d+) tokens; the run reads (\d+) samples, ([\d.]+) epochs",
                                     shown(name, said)).groups()
    assert int(read) == samples and abs(float(epochs) - samples * 32 / int(own)) < 0.01, (name, said)
    tokens += int(own)
assert tokens == 2992, said

# The sizes of this layout differ.
SIZES = ["--mock-data", "--train-iters", 9, "--group-query-attention=false", "--num-query-groups", 1]
said = isotron(*BASE, "--check-options", *SIZES, "--ranks", 420, "--tensor-model-parallel-size", 2,
               "--sequence-parallel", "--context-parallel-size", 3, "--pipeline-model-parallel-size", 5,
               "--num-layers", 10, "--num-experts", 7, "--moe-router-topk", 3, "--expert-model-parallel-size", 7,
               "--expert-tensor-parallel-size", 1, "--disable-bias-linear", "--seq-length", 24,
               "--global-batch-size", 280, "--make-vocab-size-divisible-by", 300)
assert shown("model", said).startswith("gpt, 10 layers of width 48, 4 heads, 7 experts (3 per token); number of"), said
assert shown("batch", said) == "280 samples of 24 tokens, in microbatches of 2; 9 steps", said
assert shown("layout", said) == "420 ranks: tensor 2, pipeline 5, context 3, data 14, expert 7, sequence-parallel", said
assert shown("tokenizer", said) == "ByteLevelTokenizer, vocabulary of 512 padded to 600", said
assert re.match(r"rank \d+, the largest: parameters ", shown("memory", said)), said
said = isotron(*BASE, "--check-options", *SIZES, "--model", "t5", "--decoder-num-layers", 3, "--decoder-seq-length", 40,
               "--position-embedding-type", "relative", "--bf16")
assert shown("model", said).startswith("t5, 2 encoder and 3 decoder layers of width 48, 4 heads; "), said
assert shown("batch", said) == "8 samples of 32 encoder and 40 decoder tokens, in microbatches of 2; 9 steps", said
assert shown("layout", said) == "1 rank" and shown("precision", said) == "bf16", said
assert shown("memory", said).startswith("rank 0: parameters "), said

# A blend has the tokens of all its datasets, and as many epochs as the dataset that is read most often. The first one
# is smaller here. With weights, 1 % more samples are requested than are drawn.
(WORK / "small.txt").write_text((ROOT / "tests/data/corpus.txt").read_text()[:700])
isotron("preprocess", "--input", WORK / "small.txt", "--input-format", "paragraphs", "--output-prefix", WORK / "small",
        "--append-eod", *TOKENIZER)
small = int(re.search(r", (\d+) tokens", isotron("inspect", "--dataset", WORK / "small_text_document"))[1])
for first, second, read, epochs in (["3"], ["1"], 480, 360 * 32 / small), ([], [], 80, 80 / (small // 32 + 2992 // 32)):
    said = isotron(*BASE, "--data-path", *first, WORK / "small_text_document", *second, data[1], "--split", "100,0,0",
                   "--train-iters", read // 8, "--exit-interval", 1)
    own, samples, times = re.fullmatch(r"(\d+) tokens; the run reads (\d+) samples, ([\d.]+) epochs",
                                       shown("training", said)).groups()
    assert (int(own), int(samples)) == (2992 + small, read) and 0.99 < float(times) / epochs < 1.02, (epochs, said)

said = isotron(*BASE, "--check-options", "--data-path", *6 * [data[1]])
assert shown("data", said) == " ".join(map(str, 4 * [data[1]])) + " and 2 more", said

# If evaluation is requested explicitly, it must have data. If it is only the default, a note says that there is no
# data.
for words, text in {"80,x,0": "'x' in the split", "1e2,5": "'1e2' in the split",
                    "90,-5,5": "'-5' in the split"}.items():
    assert text in isotron(*BASE, *SPLIT, words, expect=2), words
for words in (["--eval-iters", 2], ["--eval-iters", 2, "--eval-interval", 5]):
    said = isotron(*BASE, *data, *words, expect=2)
    assert f"{words[-2]} requests evaluation" in said and "--eval-iters 0" in said, said
(WORK / "run.conf").write_text(CONF.replace("eval-iters = 0", ""))
said = isotron(*BASE, *data, "--train-iters", 3)
assert shown("validation", said) == "none, so there is no evaluation (--split 100,0,0)", said

# In a step that takes minutes, the first lines are in the file before it ends.
with open(WORK / "out", "w") as file:
    words = [*BASE, *data, "--global-batch-size", 80000, "--train-iters", 3]
    process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=file)
    atexit.register(process.kill)
end = time.monotonic() + 20
while "training:" not in (said := (WORK / "out").read_text()) and time.monotonic() < end:
    time.sleep(0.05)
process.kill()
process.wait()
assert "training:" in said and "iteration" not in said, said
# The log begins with a record of the run. A resumed run appends to the file, even after an incomplete line of a killed
# run.
log, save = WORK / "log.jsonl", WORK / "save"
words = [*SPLIT, "80,20,0", "--eval-iters", 2, "--eval-interval", 4, "--train-iters", 8, "--lr-warmup-iters", 0,
         "--log-jsonl", log]
said = pretrain(words, save, "--exit-interval", 6)
STEP = r"\] iteration +(\d+)/ +8 \| consumed samples: +(\d+) \|.* global batch size: +8 \|"
TOLD = [r"successfully saved checkpoint at iteration +(\d+) to",
        r"scheduled an async checkpoint save at iteration +(\d+) to",
        r"successfully loaded checkpoint from \S+ at iteration (\d+)\n",
        r"exiting at iteration (\d+) because of --exit",
        r" loss at iteration (\d+) on validation set"]
told = lambda: [[int(n) for n in re.findall(text, said)] for text in TOLD]
assert [(int(n), int(samples)) for n, samples in re.findall(STEP, said)] == [(n, 8 * n) for n in range(1, 7)], said
assert told() == [[6], [], [], [6], [4]], said
with open(log, "a") as file:
    file.write('{"itera')
said = pretrain(words, save, "--load", save, "--seed", 1234, "--async-save", "--save-interval", 7, "--log-progress")
assert [(int(n), int(samples)) for n, samples in re.findall(STEP, said)] == [(7, 56), (8, 64)], said
assert told() == [[7, 8], [7, 8], [6], [], [8, 8]], said
progress = re.findall(r"\tSaved async checkpoint\tIteration: (\d)\t.*\tFLOPs so far: (\S+)\n",
                      (save / "progress.txt").read_text())
(first, before), (last, after) = progress
DIGITS = 0.5e-6  # relative error of a number that is printed with %.6e
assert (first, last) == ("7", "8"), progress
assert math.isclose(float(before) / float(after), 7 / 8, rel_tol=2.01 * DIGITS), progress
lines = log.read_text().splitlines()
assert lines.pop(8) == '{"itera', lines
rows = [json.loads(line) for line in lines]
steps = lambda kind: [r["iteration"] for r in rows if r.get("kind") == kind]
assert steps(None) == [*range(1, 9)] and steps("run") == [0, 6] and steps("validation") == [4, 8, 8], rows
head, again = (r for r in rows if r.get("kind") == "run")
assert head["options"]["eval_interval"] == 4 and "seed" not in head["options"], head
assert again["options"]["seed"] == 1234, head
assert head["parameters"] == 76400 and head["layout"]["ranks"] == 1, head
for part, samples in {"training": 8 * 8, "validation": 6 * 8}.items():
    facts = head["data"][part]
    assert facts["samples"] == samples and abs(facts["epochs"] - samples * 32 / facts["tokens"]) < 0.01, head
assert sum(facts["tokens"] for facts in head["data"].values()) == 2992, head
assert all(abs(math.log(r["perplexity"]) - r["loss"]) < 1e-9 for r in rows if r.get("kind") == "validation")

# A line prints the values of the step's record. The embedding of 512 tokens of width 48 is not trained. Chunks of up to
# 5 tokens have 2 positions of the 2 samples of a microbatch.
LINE = {"elapsed time per iteration (ms)": ("seconds", ".1f", 1000), "learning rate": ("learning_rate", ".6E", 1),
        "lm loss": ("lm_loss", ".6E", 1), "loss scale": ("loss_scale", ".1f", 1), "grad norm": ("grad_norm", ".3f", 1),
        "num zeros": ("num_zeros", ".0f", 1), "params norm": ("params_norm", ".3f", 1),
        "max attention logit": ("max_attention_logit", ".3f", 1), "global batch size": ("batch_size", "5", 1),
        "throughput per rank (TFLOP/s)": ("tflops", ".3g", 1), "tokens per second": ("tokens_per_second", ".0f", 1)}
log.unlink()
said = isotron(*BASE, *data, "--train-iters", 4, "--log-params-norm", "--log-num-zeros-in-grad", "--log-jsonl", log,
               "--log-max-attention-logit", "--log-throughput", "--freeze-parameters", "embedding",
               "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "linear", "--cross-entropy-chunk-size", 5)
assert "number of parameters: 76400, of which %d are trained\n" % (76400 - 512 * 48) in said, said
assert "\nlogits: 16 chunks of at most 4 tokens\n" in said, said
for row in (rows := records(log)):
    line = re.search(rf"^.* iteration +{row['iteration']}/.*$", said, re.M)[0]
    for text, (field, form, factor) in LINE.items():
        assert f"| {text}: {row[field] * factor:{form}} |" in line, (text, row, line)
assert len(rows) == 4, rows
log.unlink()
said = isotron(*BASE, *data, "--train-iters", 4, "--log-jsonl", log, "--log-format", "short")
for row in (rows := records(log)):
    line = re.search(rf"^step {row['iteration']}/4 \| .*$", said, re.M)[0]
    parts = (f"loss {row['lm_loss']:.4f} | {row['tokens_per_second']:.0f} tokens/s | 0:00:0",
             f" left | grad norm {row['grad_norm']:.3f} | lr {row['learning_rate']:.3g}")
    assert all(part in line for part in parts), (parts, line)
assert len(rows) == 4, rows

print("the first lines say what the run is")
