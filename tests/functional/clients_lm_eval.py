"""With serve (model local-completions), lm-evaluation-harness computes the same log-likelihoods of samples and the same
greedy texts as with transformers in fp32 (model hf). The test needs lm-eval, torch and transformers (ci/install-deps
nightly)."""
import os
import sys

from serving import *

sys.path.insert(0, str(ROOT / "build/nightly/clients"))
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(WORK / "hf"),
               "TOKENIZERS_PARALLELISM": "false"}
import lm_eval

CONTEXT = 256
folder = WORK / "tokenizer"
folder.mkdir()
shutil.copy(ROOT / "tests/data/tokenizer/metaspace.json", folder / "tokenizer.json")
(folder / "tokenizer_config.json").write_text(json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}))
HF = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder]
(WORK / "run.conf").write_text(CONF)
text = (ROOT / "tests/data/corpus.txt").read_text()[:20000]
(WORK / "text.txt").write_text(text)
isotron("preprocess", "--input", WORK / "text.txt", "--input-format", "paragraphs", "--output-prefix", WORK / "text",
        "--append-eod", *HF)
saved, exported = WORK / "saved", WORK / "exported"
pretrain(["--data-path", WORK / "text_text_document", "--split", "100,0,0"], saved, *HF, "--train-iters", 60,
         "--lr", 1e-2, "--max-position-embeddings", CONTEXT)
isotron("convert", "--load", saved, "--to-hf", exported)

paragraphs = [p.replace("\n", " ") for p in text.split("\n\n") if len(p) > 80][:24]
words = [p.split() for p in paragraphs]
rows = [{"query": " ".join(w[:6]), "answer": k % 3,
         "choices": [" ".join(o[6:8 + i]) for i, o in enumerate((w, words[k - 1], words[k - 2]))],
         "page": p * (1 + 4 * (k % 3))} for k, (w, p) in enumerate(zip(words, paragraphs))]
(WORK / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def task(name, **changes):
    return {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(WORK / "rows.jsonl")}},
            "test_split": "test", "doc_to_text": "{{query}}", "doc_to_target": "{{answer}}", **changes}


tasks = [
    task("choices", output_type="multiple_choice", doc_to_choice="{{choices}}",
         metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}]),
    task("pages", output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{page}}",
         metric_list=[{"metric": "byte_perplexity"}]),
    task("texts", output_type="generate_until", metric_list=[{"metric": "exact_match"}],
         generation_kwargs={"until": ["."], "max_gen_toks": 24, "temperature": 0}),
]
server = Server(saved, "--inference-dynamic-batching-buffer-size-gb", 0.05)
remote = dict(model="local-completions", model_args={
    "base_url": f"http://127.0.0.1:{server.port}{COMPLETE}", "model": NAME, "tokenizer": str(exported),
    "tokenized_requests": True, "max_length": CONTEXT, "num_concurrent": 4, "batch_size": 3})
# For the windows of long pages, local-completions subtracts 2 from its length.
local = dict(model="hf", model_args={"pretrained": str(exported), "dtype": "float32", "device": "cpu",
                                     "max_length": CONTEXT - 2, "batch_size": 8})
results = [lm_eval.simple_evaluate(tasks=tasks, log_samples=True, bootstrap_iters=0, **kind)
           for kind in (remote, local)]
compared, worst, characters = 0, 0.0, 0
for one in tasks:
    pairs = [sorted(r["samples"][one["task"]], key=lambda s: s["doc_id"]) for r in results]
    assert len(pairs[0]) == len(pairs[1]) == len(rows), one
    for got, wanted in zip(*pairs):
        for a, b in zip(got["filtered_resps"], wanted["filtered_resps"], strict=True):
            if isinstance(b, str):
                assert a.lstrip() == b.lstrip(), (a, b)  # hf decodes the new tokens alone, without a first blank
                characters += len(a)
            else:
                (value, *greedy), (reference, *likeliest) = (x if isinstance(x, tuple) else (x,) for x in (a, b))
                worst = max(worst, abs(value - reference))
                allowed = max(1e-4, abs(reference) * 2**-23)  # hf sums a page in fp32
                assert abs(value - reference) <= allowed and greedy == likeliest, (one["task"], a, b)
            compared += 1
    for name, value in results[1]["results"][one["task"]].items():
        told = results[0]["results"][one["task"]][name]
        assert told == value or math.isclose(told, value, rel_tol=1e-5), (one, name, told, value)
assert compared == 5 * len(rows) and characters > 100, (compared, characters)
server.end()
print(f"{compared} samples are equal; log-likelihoods differ by {worst:.1e} at most")
