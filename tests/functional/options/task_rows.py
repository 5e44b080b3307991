"""The rows for `isotron finetune`: the numbers of its steps and epochs must match the reference trainer (task.py)."""
import dataclasses
import functools
import json
import pathlib
import re

import numpy as np

import draws
from program import ARITHMETIC, U, Run, bits, compare, expect, joined, write_pieces
from rows import same_scalars, scalars
from table import CUT, FP8, ONE, STAGES, Row, check_read, legs, low_precision
from task import TaskTrainer

ROWS = []

BASE = """--model bert --num-layers 2 --hidden-size 16 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 20
  --tokenizer-type BertWordPieceLowerCase --vocab-file pieces.txt --make-vocab-size-divisible-by 8 --lane fp64
  --task labels --train-data train.tsv --valid-data valid.tsv --epochs 2 --micro-batch-size 2 --global-batch-size 4 --lr 1e-2
  --log-interval 1 --init-method-std 0.3 --hidden-dropout 0 --attention-dropout 0 --log-params-norm""".split()


def row(fields, words=""):
    def add(check):
        ROWS.append(Row(fields.split(), check, words.strip(), "finetune"))
        return check
    return add


def write_files():
    """Writes texts of 1 to 14 words, so that some pairs are too long. The ids of the special tokens differ from those
    in all other vocabularies of the tests."""
    rng = np.random.default_rng(5)
    plain = [chr(c) for c in range(ord("a"), ord("p"))]
    pieces = [*plain[:4], "[SEP]", *plain[4:9], "[MASK]", "[PAD]", *plain[9:], ".", "[UNK]", "##x", "##xy", "[CLS]", "_", "?"]
    pathlib.Path("pieces.txt").write_text("".join(f"{p}\n" for p in pieces))

    def text(most=14):
        words = [*plain, "ax", "BXY", "cxyx", "?", "a . b", "unknown"]
        return " ".join(words[i] for i in rng.integers(0, len(words), rng.integers(1, most)))

    def write(name, rows):
        pathlib.Path(name).parent.mkdir(exist_ok=True)
        pathlib.Path(name).write_text("".join(f"{row}\n" for row in rows))

    def labelled(n, labels):
        return ["\t".join([labels[i], text(), *[text()] * int(rng.integers(2))]) for i in rng.integers(0, len(labels), n)]

    def table(n, columns, first, labels):
        def line(k):
            cells = [str(k)] * columns
            cells[first:first + 2], cells[-1] = [text(), text()], labels[rng.integers(len(labels))]
            return "\t".join(cells)
        return ["\t".join(["header"] * columns), *map(line, range(n))]

    def questions(n):
        return [json.dumps({"article": text(30), "questions": [text(4) + " _ ? _", text(4)], "options": [[text(4) for _ in range(4)] for _ in range(2)],
                            "answers": ["ABCD"[i] for i in rng.integers(0, 4, 2)]}) for _ in range(n)]
    write_pieces("pieces", pieces, bos_token="[MASK]", eos_token="[UNK]")
    write("train.tsv", labelled(11, ["neg", "pos", "Pos"]))
    write("valid.tsv", labelled(7, ["neg", "pos", "Pos"]))
    write("more.tsv", labelled(5, ["pos", "Pos"]))
    write("mnli.tsv", table(9, 12, 8, ["neutral", "entailment", "contradiction"]))
    write("more-mnli.tsv", table(3, 11, 8, ["neutral", "entailment"]))
    write("qqp.tsv", table(9, 6, 3, ["0", "1"]))
    for name, n in (("b", 2), ("c", 1), ("a", 3)):  # neither this order nor its reverse is that of the names
        write(f"race/{name}.txt", questions(n))
    write("race/a.text", questions(1))
    write("race.txt", questions(3))
    write("other.tsv", labelled(9, ["x", "y", "z"]))


@functools.lru_cache(None)
def expected(words, until=None):
    return TaskTrainer(words).run(until)


def tune(program, words, *more):
    rows, text = program.logged("finetune", *words, *more)
    return Run([r for r in rows if "kind" not in r], [r for r in rows if r.get("kind") == "validation"], text)


def compare_task(run, wanted, words):
    """Compares the accuracy on each file and on all files, as logged and as printed."""
    compare(dataclasses.replace(run, evaluations=[]), (wanted[0], []), words)
    found = [(e["iteration"], e["epoch"]) for e in run.evaluations]
    expect(found == [(i, epoch) for i, epoch, _ in wanted[1]], f"accuracies at (step, epoch) {found}")
    printed = []
    for e, (_, epoch, files) in zip(run.evaluations, wanted[1]):
        right, total = (sum(x[k] for x in files.values()) for k in (1, 2))
        whole = sum(loss * n for loss, _, n in files.values()) / total, right, total
        expect(list(e["files"]) == list(files), f"files {list(e['files'])}")
        parts = [(f"> |epoch: {epoch}| metrics for {f}", e["files"][f], x) for f, x in files.items()]
        for name, got, (loss, right, n) in [*parts, (f">> |epoch: {epoch}| overall", e, whole)]:
            expect((got["correct"], got["total"]) == (right, n), f"{name}: {got['correct']} of {got['total']}, not {right} of {n}")
            expect(abs(got["loss"] - loss) <= ARITHMETIC * U["fp64"] * loss, f"{name}: loss {got['loss']} and not {loss}")
            expect(got["accuracy"] == right / n, f"{name}: accuracy {got['accuracy']}")
            if len(files) > 1 or got is e:
                printed.append(f" {name}: correct / total = {right} / {n} = {100 * right / n:.4f} % | lm loss value: {got['loss']:.6E}")
    lines = [line for line in run.text.splitlines() if "|epoch: " in line]
    expect(lines == printed, f"{lines} is printed, and not {printed}")


def resumed(program, words, steps, first, second):
    save = program.fresh()
    before = tune(program, words, *first.split(), "--save", save, "--exit-interval", steps)
    return joined(before, tune(program, words, *second.split(), "--load", save))


@functools.cache
def plain(program, *words):
    return bits(tune(program, words))


def tuned(fields, words="", without="", layouts=(), witness=""):
    """A row whose run is saved in the middle of an epoch, before its last step, and resumed in another layout.
    `witness` has options for the reference trainer only."""
    def check(program, quick):
        o = program.words(words, without)
        wanted, (halves, whole) = expected((*o, *witness.split())), legs(layouts)
        if quick:
            halves, whole = None, (layouts or (ONE,))[:1]
        runs = [tune(program, o, *layout.split()) for layout in whole]
        for run in runs + ([resumed(program, o, len(wanted[0]) - 1, *halves)] if halves else []):
            compare_task(run, wanted, o)
            check_read(fields, run)
    row(fields, words)(check)


def rounded(fields, words, like=""):
    """A row for options that change only rounding: the run must be close to the reference trainer, but not bitwise
    equal to a run with the options `like`."""
    def check(program, quick):
        o = program.words(words)
        run = tune(program, o)
        compare(dataclasses.replace(run, evaluations=[]), (expected(tuple(o))[0], []), o)
        expect(bits(run) != plain(program, *program.words(like)), f"not different from {like or 'without'}")
    row(fields, words)(check)


# ---- samples, epochs, classes ----

tuned("model task train_data valid_data epochs num_layers hidden_size num_attention_heads seq_length tokenizer_type vocab_file lane lr"
      " global_batch_size init_method_std log_params_norm log_jsonl", layouts=(ONE, CUT, STAGES, "--ranks 2 --use-megatron-fsdp"))
tuned("epochs seed", "--epochs 3 --seed 4294967294")
tuned("task train_data valid_data", "--task MNLI --train-data mnli.tsv --valid-data mnli.tsv more-mnli.tsv")
tuned("task keep_last epochs", "--task QQP --train-data qqp.tsv --valid-data qqp.tsv --keep-last --epochs 1")
LONG = "--seq-length 40 --max-position-embeddings 40 "
tuned("task classifier_dropout lr_warmup_iters lr_decay_iters", "--task RACE --train-data race --valid-data race.txt race --hidden-dropout 0.1"
      " --classifier-dropout 0.3 --lr-warmup-iters 2"
      " --lr-decay-iters 5 --min-lr 1e-3 " + LONG)
tuned("task keep_last", "--task RACE --train-data race.txt race/b.txt --valid-data race.txt --keep-last --batch-invariant-mode --hidden-dropout 0.1 " + LONG, layouts=(ONE, CUT, "--ranks 2"))
tuned("keep_last", "--keep-last --hidden-dropout 0.2 --attention-dropout 0.1")
tuned("class_labels seed", "--class-labels pos Pos unused neg --train-data train.tsv more.tsv --valid-data more.tsv valid.tsv --seed 7")
tuned("micro_batch_size", "--micro-batch-size 1", "global-batch-size", layouts=(ONE,))

# ---- tokenizers ----

tuned("tokenizer_type tokenizer_model", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model pieces", "vocab-file")
tuned("tokenizer_type vocab_extra_ids tokenizer_special_tokens", "--tokenizer-type BertWordPieceCase --vocab-extra-ids 3"
      " --tokenizer-special-tokens <a> <b>")
tuned("vocab_size", "--vocab-size 29")

# ---- the model ----

tuned("classifier_dropout", "--classifier-dropout 0.4")
tuned("hidden_dropout", "--hidden-dropout 0.2")
tuned("hidden_dropout classifier_dropout", "--hidden-dropout 0.2 --classifier-dropout 0")
tuned("model", "", "hidden-dropout attention-dropout")  # their defaults
tuned("attention_dropout seed", "--attention-dropout 0.3 --seed 3", layouts=(ONE, CUT, STAGES, "--recompute-granularity selective", "--micro-batch-size 4"))
tuned("norm_placement", "--norm-placement post --hidden-dropout 0.2 --attention-dropout 0.1")
tuned("norm_placement normalization norm_epsilon", "--norm-placement sandwich --normalization RMSNorm --norm-epsilon 1e-2 --residual-multiplier 0.5")
tuned("parallel_residual apply_layernorm_1p", "--parallel-residual one-norm --apply-layernorm-1p")
tuned("bert_binary_head", "--bert-no-binary-head")
tuned("num_token_types", "--num-token-types 1")
tuned("num_token_types embedding_init_method_std", "--num-token-types 5 --embedding-init-method-std 0.2 --bert-no-binary-head")
tuned("activation ffn_hidden_size", "--swiglu --ffn-hidden-size 24")
tuned("bias_gelu_fusion", "--no-bias-gelu-fusion --norm-placement post")
tuned("add_bias_linear log_num_zeros_in_grad", "--disable-bias-linear --log-num-zeros-in-grad --num-token-types 3", layouts=(ONE,))
tuned("add_mlp_bias", "--disable-bias-linear --add-mlp-bias")
tuned("add_qkv_bias add_attn_proj_bias", "--disable-bias-linear --add-qkv-bias --add-attn-proj-bias")
tuned("kv_channels group_query_attention num_query_groups", "--kv-channels 6 --group-query-attention --num-query-groups 2")
tuned("max_position_embeddings scale_embedding", "--max-position-embeddings 17 --scale-embedding")
tuned("position_embedding_type rotary_base rotary_percent rotary_interleaved rotary_seq_len_interpolation_factor", "--position-embedding-type rope"
      " --kv-channels 8 --rotary-base 100 --rotary-percent 0.5 --rotary-interleaved --rotary-seq-len-interpolation-factor 3")
tuned("position_embedding_type alibi_bias_max",
      "--position-embedding-type alibi --alibi-bias-max 3 --num-attention-heads 6 --kv-channels 4")
tuned("no_rope_freq use_rope_scaling rope_scaling_factor rope_scaling_low_freq_factor rope_scaling_high_freq_factor"
      " rope_scaling_original_max_position_embeddings", "--position-embedding-type rope --no-rope-freq 2 --rotary-base 4 --kv-channels 8"
      " --use-rope-scaling --rope-scaling-factor 3 --rope-scaling-low-freq-factor 2 --rope-scaling-high-freq-factor 5"
      " --rope-scaling-original-max-position-embeddings 40")
ROPES = "--position-embedding-type rope --kv-channels 6 --rope-short-factor 1 1.5 2 --rope-long-factor 2 3 4.5 --max-position-embeddings 64"
tuned("rope_short_factor", ROPES + " --rope-scaling-original-max-position-embeddings 16", layouts=(ONE,))
tuned("rope_long_factor rope_attention_factor", ROPES + " --rope-scaling-original-max-position-embeddings 8 --rope-attention-factor 1.3", layouts=(ONE,))
tuned("position_embedding_type rotary_scaling_factor yarn_original_max_position_embeddings yarn_beta_fast"
      " yarn_beta_slow yarn_correction_range_round_to_int mscale mscale_all_dim",
      "--position-embedding-type yarn --rotary-base 20 --kv-channels 12"
      " --rotary-scaling-factor 3 --yarn-original-max-position-embeddings 40 --yarn-beta-fast 4 --yarn-beta-slow 0.5"
      " --no-yarn-correction-range-round-to-int --mscale 0.7 --mscale-all-dim 1.6")
tuned("rope_dynamic_factor", "--position-embedding-type rope --rope-dynamic-factor 3"
      " --rope-scaling-original-max-position-embeddings 9", layouts=(ONE,))
tuned("qk_layernorm apply_wd_to_qk_layernorm weight_decay", "--qk-layernorm --apply-wd-to-qk-layernorm --weight-decay 0.1")
tuned("qk_l2_norm qk_l2_norm_rope_layers_only",
      "--qk-l2-norm --qk-l2-norm-rope-layers-only --position-embedding-type rope"
      " --no-rope-freq 2")
tuned("embedding_layernorm", "--embedding-layernorm")
tuned("norm_bias", "--disable-norm-bias")
tuned("norm_weight", "--disable-norm-weight")
tuned("activation glu_linear_offset activation_func_clamp_value",
      "--quick-geglu --ffn-hidden-size 16 --init-method-std 0.3"
      " --glu-linear-offset 1 --activation-func-clamp-value 0.5")
tuned("qk_layernorm_after_rope", "--qk-layernorm --qk-layernorm-after-rope --position-embedding-type rope")
tuned("qk_layernorm_whole", "--qk-layernorm --qk-layernorm-whole --normalization RMSNorm", layouts=(ONE, STAGES))
tuned("softmax_type attn_logit_softcapping softmax_scale", "--softmax-type learnable --attn-logit-softcapping 0.3 --softmax-scale 0.4")
tuned("embedding_multiplier residual_multiplier", "--embedding-multiplier 3 --residual-multiplier 0.3")

# ---- optimizer and schedules: over the steps of all epochs ----

tuned("adam_beta1 adam_beta2 adam_eps clip_grad", "--adam-beta1 0.8 --adam-beta2 0.95 --adam-eps 1e-3 --clip-grad 0.1")
tuned("optimizer sgd_momentum clip_grad", "--optimizer sgd --sgd-momentum 0.5 --clip-grad 0.2")
MUON = "--optimizer muon --lr 1e-3 --weight-decay 0.1 "
tuned("optimizer muon_momentum muon_nesterov muon_scale_mode muon_extra_scale_factor muon_coefficient_type"
      " muon_num_ns_steps muon_split_qkv muon_scalar_optimizer lion_beta1 lion_beta2",
      MUON + "--muon-momentum 0.7 --muon-nesterov --muon-scale-mode shape_scaling"
      " --muon-extra-scale-factor 3 --muon-coefficient-type polar_express --muon-num-ns-steps 9 --muon-no-split-qkv"
      " --disable-bias-linear --muon-scalar-optimizer lion --lion-beta1 0.8 --lion-beta2 0.9")
tuned("optimizer", MUON)
tuned("muon_tp_mode", MUON + "--muon-tp-mode blockwise", layouts=("--ranks 2 --tensor-model-parallel-size 2",),
      witness="--tensor-model-parallel-size 2")
rounded("muon_fp32_matmul_prec", MUON + "--lane fp32 --muon-fp32-matmul-prec high", like=MUON + "--lane fp32")
tuned("freeze_parameters", "--freeze-parameters embedding encoder")
EPOCHS = "--epochs 4 --min-lr 1e-3 "
tuned("min_lr lr_warmup_fraction lr_decay_style weight_decay", EPOCHS + "--lr-warmup-fraction 0.3 --lr-decay-style cosine --weight-decay 0.3")
tuned("lr_warmup_iters lr_warmup_init lr_decay_iters", EPOCHS + "--lr-warmup-iters 3 --lr-warmup-init 2e-3 --lr-decay-iters 6")
tuned("lr_decay_style lr_wsd_decay_iters lr_wsd_decay_style", EPOCHS + "--lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 5",
      layouts=(ONE,))
tuned("weight_decay_incr_style start_weight_decay end_weight_decay decoupled_lr decoupled_min_lr", EPOCHS + "--weight-decay-incr-style linear"
      " --start-weight-decay 0.1 --end-weight-decay 0.5 --decoupled-lr 3e-2 --decoupled-min-lr 5e-3")

# ---- other arithmetic ----

low_precision(rounded, "--init-method-std 0.1 " + FP8)


def scaled(fields, words, overflowing=True):
    """A row in fp16. The run reports which steps overflowed, and the reference trainer computes the rest from these."""
    def check(program, quick):
        o = program.words("--lane fp16 --epochs 6 --lr 1e-3 " + words)
        run = tune(program, o)
        overflows = {r["iteration"] for r in run.records if r["skipped"]}
        compare(dataclasses.replace(run, evaluations=[]), (TaskTrainer(o).run(overflows=overflows)[0], []), o)
        expect(bool(overflows) == overflowing, f"overflows in steps {overflows}")
    row(fields, words)(check)


scaled("lane initial_loss_scale loss_scale_window hysteresis", "--initial-loss-scale 67108864 --loss-scale-window 2 --hysteresis 1")
scaled("min_loss_scale", "--initial-loss-scale 1073741824 --hysteresis 1 --min-loss-scale 33554432")
scaled("loss_scale", "--loss-scale 256", overflowing=False)

# ---- checkpoints ----

SIZES = "num-layers hidden-size num-attention-heads seq-length max-position-embeddings make-vocab-size-divisible-by"
TASK = "task train-data valid-data epochs"


def pretrained(program, words, *more):
    """Makes a pretraining checkpoint whose weights are the initial ones of --seed 5, because its only step has a
    learning rate of 0."""
    save = program.fresh()
    program.call("pretrain", *program.words(words, TASK), *more, *"--mock-data --seed 5 --lr 0 --train-iters 1 --eval-iters 0 --save-interval 1".split(),
                 "--save", save)
    return save


def head_of(trainer, names, other):
    """Combines the state of a new head with the weights of another trainer."""
    trainer.state.weights |= {n: w for n, w in other.state.weights.items() if not n.startswith(names)}
    return trainer.state


def continued(program, words, state, *more, without="", layouts=(ONE, STAGES)):
    """Compares a run that loads a checkpoint with the reference trainer, which starts from `state`."""
    o = program.words(words)
    for layout in layouts:
        compare_task(tune(program, program.words(words, without), *layout.split(), *more), TaskTrainer(o, state).run(), o)


for words, new in (("", "classification_head"), ("--bert-no-binary-head", ("classification_head", "pooler"))):
    @row("pretrained_checkpoint use_checkpoint_args", words)
    def new_head(program, quick, words=words, new=new):
        """A head that the checkpoint lacks is initialized with --seed."""
        save, o = pretrained(program, words), program.words(words)
        state = head_of(TaskTrainer(o), new, TaskTrainer([*o, "--seed", 5]))
        continued(program, words, state, "--pretrained-checkpoint", save)
        stored = SIZES + (" bert-no-binary-head" if words else "")
        continued(program, words, state, "--use-checkpoint-args", "--load", program.fresh(), "--pretrained-checkpoint", save, without=stored)


for fields, words, more in (
        ("tokenizer_model", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model pieces", ["--tokenizer-hf-include-special-tokens"]),
        ("vocab_file vocab_extra_ids tokenizer_special_tokens", "--tokenizer-type BertWordPieceCase --vocab-extra-ids 3"
         " --tokenizer-special-tokens <a> <b>", [])):
    @row(f"tokenizer_type use_checkpoint_args {fields}", words)
    def tokenizer_of_the_checkpoint(program, quick, words=words, more=more):
        """A text is surrounded by the checkpoint's [CLS] and [SEP], exactly once."""
        o, files = program.words(words), "tokenizer-type tokenizer-model vocab-file vocab-extra-ids tokenizer-special-tokens"
        save = pretrained(program, words, *more)
        state = head_of(TaskTrainer(o), "classification_head", TaskTrainer([*o, "--seed", 5]))
        continued(program, words, state, "--use-checkpoint-args", "--pretrained-checkpoint", save, without=files, layouts=(ONE,))


@row("class_labels classifier_dropout pretrained_checkpoint use_checkpoint_args")
def other_classes(program, quick):
    """A run can load the weights of another task, but uses neither the class names nor the dropout of that task."""
    save, words, o = program.fresh(), "--train-data other.tsv --valid-data other.tsv", program.words("--classifier-dropout 0.4")
    first = TaskTrainer(o)
    tune(program, o, "--save", save)
    first.run()
    state = weights_of(first.state, TaskTrainer(program.words(words)))
    for more, without in ([], ""), (["--use-checkpoint-args"], SIZES):
        continued(program, words, state, *more, "--pretrained-checkpoint", save, without=without, layouts=(ONE,))


def saved(program, words="--save-interval 1"):
    """Runs and saves every step. Returns the folder, and the state of the reference trainer after step 3, which is in
    the middle of an epoch."""
    save, o = program.fresh(), program.words(words)
    trainer = TaskTrainer(o)
    tune(program, o, "--save", save)
    trainer.run(until=3)
    return save, trainer.state


def weights_of(state, trainer):
    trainer.state.weights = state.weights
    return trainer.state


@row("save save_interval load ckpt_step load_optim finetune use_checkpoint_args")
def loaded(program, quick):
    save, state = saved(program)
    begin = ("--load", save, "--ckpt-step", 3)
    continued(program, "", state, *begin)
    continued(program, "", state, *begin, "--use-checkpoint-args", without=SIZES + " task model")
    continued(program, "", weights_of(state, TaskTrainer(program.words())), *begin, "--finetune")
    state.moments, state.optimizer_step, state.scheduled = TaskTrainer(program.words()).state.moments, 0, 0
    continued(program, "", state, *begin, "--no-load-optim")


def lose_weights(folder, name):
    """Removes the weights whose names begin with `name` from a checkpoint's list of tensors, but keeps their
    moments."""
    path = pathlib.Path(folder) / "manifest.json"
    lines = path.read_text().splitlines(True)[:-1]
    kept = "".join(line for line in lines if f'"name":"{name}' not in line or '"suffix":""' not in line)
    path.write_text(f'{kept}"xxh3_128": "{draws.digest(kept.encode())}"}}\n')


@row("load finetune")
def lost_head(program, quick):
    """A run that resumes needs the head of its task in the checkpoint. A run that loads only weights initializes a new
    head."""
    save, state = saved(program)
    lose_weights(f"{save}/iter_0000003", "classification_head.")
    begin = ("--load", save, "--ckpt-step", 3)
    said = program.call("finetune", *program.words(), *begin, status=2)
    expect("has no tensor 'classification_head.weight'" in said, f"the missing tensor is not named: {said}")
    fresh = TaskTrainer(program.words())
    state.weights |= {n: w for n, w in fresh.state.weights.items() if n.startswith("classification_head.")}
    continued(program, "", weights_of(state, fresh), *begin, "--finetune")


@row("save_optim async_save exit_on_missing_checkpoint")
def without_optimizer(program, quick):
    save, state = saved(program, "--save-interval 1 --no-save-optim --async-save")
    o = program.words("--ckpt-step 3")
    text = program.call("finetune", *o, "--load", save, status=2)
    expect("--no-load-optim" in text, f"not refused for its missing moments: {text}")
    state.moments, state.optimizer_step, state.scheduled = TaskTrainer(program.words()).state.moments, 0, 0
    continued(program, "", state, "--no-load-optim", "--load", save, "--ckpt-step", 3)
    program.call("finetune", *o, "--load", program.fresh(), "--exit-on-missing-checkpoint", status=2)
    expect("scheduled an async checkpoint save" in program.call("finetune", *program.words("--async-save"), "--save", program.fresh()), "not asynchronous")


@row("epochs")
def evaluated(program, quick):
    """With --epochs 0, a run only evaluates a checkpoint. So does a run that has no epochs left."""
    save, o = program.fresh(), program.words()
    trainer = TaskTrainer(o)
    tune(program, o, "--save", save)
    last = trainer.run()[1][-1:]
    again = tune(program, o, "--load", save)
    compare_task(again, ([], last), o)
    expect("nothing to train; raise --epochs to continue" in again.text, f"no remedy: {again.text}")
    longer = tune(program, program.words("--epochs 3"), "--load", save).text
    expect(re.findall(r"note: --(\S+) is", longer) == ["epochs"], f"another note than that of --epochs: {longer}")
    words = program.words("--epochs 0 --class-labels Pos neg pos", "train-data")
    compare_task(tune(program, words, "--load", save, "--ranks", 2), ([], [(0, 0, last[0][2])]), o)


@row("most_recent_k save_retain_interval")
def retained(program, quick):
    """Each epoch ends with a checkpoint, which is saved before the evaluation, because the evaluation may take long."""
    for words, steps in (("", [2, 4, 6]), ("--most-recent-k 2", [4, 6]), ("--save-interval 1 --save-retain-interval 3", [3, 6])):
        save = program.fresh()
        text = tune(program, program.words("--epochs 3 " + words), "--save", save).text
        found = sorted(int(p.name[5:]) for p in pathlib.Path(save).glob("iter_*"))
        expect(found == steps, f"checkpoints of steps {found} and not {steps}, with {words or 'no option'}")
        if "--save-interval" not in words:
            expect(re.findall(r"saved checkpoint|overall", text) == ["saved checkpoint", "overall"] * 3, text)


@row("use_checkpoint_opt_param_scheduler exit_interval")
def schedules_of_the_checkpoint(program, quick):
    o, save = program.words("--lr-decay-style cosine --min-lr 1e-3 --weight-decay 0.1"), program.fresh()
    before = tune(program, o, "--save", save, "--exit-interval", 3)
    after = tune(program, o, *"--lr 1 --lr-decay-style constant --lr-decay-iters 9 --lr-warmup-fraction 0.5 --weight-decay 0.5".split(),
                 "--use-checkpoint-opt_param-scheduler", "--load", save)
    compare_task(joined(before, after), expected(tuple(o)), o)


@row("check_for_nan_in_loss_and_grad")
def not_finite(program, quick):
    """A loss that is not finite: each step multiplies the weights by -1e12, until float overflows."""
    o = program.words("--lane fp32 --lr 1e6 --weight-decay 1e6 --lr-decay-style constant --epochs 4")
    expect("is not finite" in program.call("finetune", *o, status=1), "the run does not say why it stops")
    run = tune(program, o, "--no-check-for-nan-in-loss-and-grad")
    expect(len(run.records) == 8 and run.records[-1]["skipped"], "steps that are not finite are not skipped")


# ---- logs ----

def shown(fields, words, pattern, count):
    """A row whose output must match the pattern `count` times, and whose numbers must be bitwise equal to those of a
    run without the options."""
    def check(program, quick):
        run, save = tune(program, program.words(words), "--save", program.fresh()), program.fresh()
        expect(bits(run) == bits(tune(program, program.words(), "--save", save)), "numbers change")
        found = len(re.findall(pattern, run.text, re.M))
        expect(found == count, f"'{pattern}' is printed {found} times")
    row(fields, words)(check)


shown("log_interval", "--log-interval 2", r"^ \[.*\] iteration  *(1|2|4)/", 3)
shown("log_format", "--log-format short", r"^step \d/4 \| loss \d+\.\d{4} \|.*$|^epoch [12] \| validation accuracy 0\.\d{4}, \d of 7 \| loss", 6)
shown("log_throughput", "--log-throughput", r"throughput per rank \(TFLOP/s\)", 4)
shown("timing_log_level timing_log_option", "--timing-log-level 2 --timing-log-option max", r"max time across ranks", 4)


@row("log_progress")
def log_progress(program, quick):
    save = program.fresh()
    tune(program, program.words("--log-progress"), "--save", save)
    path = pathlib.Path(save) / "progress.txt"
    told = path.read_text() if path.exists() else ""
    expect(re.findall(r"Saved checkpoint\tIteration: (\d)\t", told) == ["2", "4"], f"progress.txt is {told}")


@row("tensorboard_dir tensorboard_log_interval log_timers_to_tensorboard log_loss_scale_to_tensorboard log_world_size_to_tensorboard"
     " log_memory_to_tensorboard")
def tensorboard(program, quick):
    """Every tag has the values of the log, once by step and once by samples."""
    folder, plain = program.fresh(), program.fresh()
    words = ("--tensorboard-log-interval 2 --log-timers-to-tensorboard --timing-log-level 2 --no-log-loss-scale-to-tensorboard --ranks 2"
             " --log-world-size-to-tensorboard --log-memory-to-tensorboard --valid-data valid.tsv more.tsv")
    tune(program, program.words(), "--tensorboard-dir", plain)
    run, found, fewer = tune(program, program.words(words), "--tensorboard-dir", folder), scalars(folder), scalars(plain)
    steps = {r["iteration"]: r for r in run.records}
    tags = [("lm loss", "lm_loss"), ("learning-rate", "learning_rate"), ("grad-norm", "grad_norm"), ("params-norm", "params_norm"), ("batch-size", "batch_size")]
    same_scalars(found, {tag: {i: steps[i][key] for i in (2, 4)} for tag, key in tags}, steps)
    same_scalars(found, {tag: {e["iteration"]: e[key] for e in run.evaluations} for tag, key in (("lm loss validation", "loss"), ("accuracy validation", "accuracy"))}, steps)
    times = {f"{name}-time" for name in ("iteration", "batch-generator", "forward-backward", "optimizer")}
    more = times | {"world-size", "world-size vs samples", "mem-allocated-bytes", "mem-max-allocated-bytes"}
    expect((found.keys() - fewer.keys(), fewer.keys() - found.keys()) == (more, {"loss-scale", "loss-scale vs samples"}), f"tags {sorted(found)}")
    expect(set(found["world-size"].values()) == {2} and set(found["lm loss"]) == {2, 4} and len(fewer["lm loss"]) == 4, "other values or steps")
