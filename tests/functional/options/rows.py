"""The table: for each option of options.def that changes numbers a row that says how to exercise it and who knows the right numbers.

A row is a function of a Program that raises Wrong; `fields` are the options that it has to notice. Three kinds need one line:

  witnessed  a run has the numbers of the witness (trainer.py), on one rank, on layouts, and resumed on another layout
  rounded    a run near the witness whose bits are others than without the option
  shown      what is printed or written shows the option, and the numbers have the bits of a run without it

The others follow as functions."""
import dataclasses
import glob
import json
import math
import os
import pathlib
import re
from typing import Callable

import draws
from decoder import Pass, Shape
from program import Wrong, bits, compare, expect, joined, lane
from trainer import Batch, Options, Trainer

BASE = """--num-layers 2 --hidden-size 16 --num-attention-heads 4 --seq-length 16 --vocab-size 40 --tokenizer-type NullTokenizer
  --make-vocab-size-divisible-by 8 --data-path text --split 70,20,10 --lane fp64 --micro-batch-size 2 --global-batch-size 4 --lr 1e-2
  --train-iters 4 --log-interval 1 --eval-iters 1 --eval-interval 2 --init-method-std 0.3 --hidden-dropout 0 --attention-dropout 0
  --log-params-norm""".split()
EXPERTS = "--num-experts 4 --moe-ffn-hidden-size 8 --disable-bias-linear "
ONE = ""
CUT = "--ranks 4 --tensor-model-parallel-size 2 --context-parallel-size 2 --sequence-parallel"
STAGES = "--ranks 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer"
SAMPLES = "--global-batch-size 4 --train-samples 32 "  # instead of --train-iters
ROWS = []


@dataclasses.dataclass
class Row:
    fields: list
    check: Callable  # of a Program, and whether to look at its first run alone

    @property
    def name(self):
        return self.fields[0] if len(self.fields) == 1 else f"{self.fields[0]} and {len(self.fields) - 1} more"


def row(fields):
    def add(check):
        ROWS.append(Row(fields.split(), check))
        return check
    return add


def half(records):
    return records[len(records) // 2 - 1]["iteration"]


def resumed(program, words, steps, first, second):
    """Saved after so many steps, and loaded by another layout."""
    save = program.fresh()
    before = program.pretrain(words, *first.split(), "--save", save, "--save-interval", 1000, "--exit-interval", steps)
    return joined(before, program.pretrain(words, *second.split(), "--load", save))


def witnessed(fields, words="", without="", layouts=(ONE, CUT, STAGES), witness=""):
    """witness: options that it has to be told, which the program finds out by itself."""
    def check(program, quick):
        o = program.words(words, without)
        expected = Trainer([*o, *witness.split()]).run()
        compare(program.pretrain(o, *layouts[0].split()), expected, o)
        if quick:
            return
        for layout in layouts[1:]:
            compare(program.pretrain(o, *layout.split()), expected, o)
        compare(resumed(program, o, half(expected[0]), layouts[0], layouts[1 % len(layouts)]), expected, o)
    row(fields)(check)


def rounded(fields, words, like="", without=""):
    """like: the options of the run whose bits must be others."""
    def check(program, quick):
        o = program.words(words, without)
        run = program.pretrain(o)
        compare(run, Trainer(o).run(), o)
        expect(bits(run) != bits(program.pretrain(program.words(like, without))), f"the same bits as {like or 'without'}")
    row(fields)(check)


def shown(fields, words, pattern, count=None):
    """pattern: a regular expression of what is printed; count: how often."""
    def check(program, quick):
        o, plain = program.words(words), program.words()
        run = program.pretrain(o)
        expect(bits(run) == bits(program.pretrain(plain)), "numbers change")
        found = len(re.findall(pattern, run.text))
        expect(found == count if count is not None else found > 0, f"'{pattern}' is printed {found} times")
    row(fields)(check)


# ---- model ----

witnessed("num_layers hidden_size num_attention_heads seq_length vocab_size data_path split global_batch_size train_iters lr lane"
          " micro_batch_size eval_iters eval_interval init_method_std hidden_dropout attention_dropout log_params_norm log_jsonl",
          layouts=(ONE, CUT, STAGES, "--ranks 2", "--ranks 2 --context-parallel-size 2 --cp-comm-type a2a"))
witnessed("ffn_hidden_size", "--ffn-hidden-size 24")
witnessed("activation", "--swiglu --ffn-hidden-size 24")
witnessed("activation", "--squared-relu")
witnessed("activation", "--activation quick-gelu")
witnessed("activation", "--activation gelu-erf")
witnessed("add_bias_linear", "--disable-bias-linear")
witnessed("add_qkv_bias", "--disable-bias-linear --add-qkv-bias")
witnessed("kv_channels", "--kv-channels 6")
witnessed("group_query_attention num_query_groups", "--group-query-attention --num-query-groups 2")
witnessed("max_position_embeddings log_num_zeros_in_grad untie_embeddings_and_output_weights",
          "--max-position-embeddings 24 --untie-embeddings-and-output-weights --log-num-zeros-in-grad --disable-bias-linear")
witnessed("position_embedding_type", "--position-embedding-type none")
witnessed("position_embedding_type rotary_base", "--position-embedding-type rope --rotary-base 100")
witnessed("rotary_percent", "--position-embedding-type rope --rotary-percent 0.5")
witnessed("rotary_interleaved", "--position-embedding-type rope --rotary-interleaved")
witnessed("rotary_seq_len_interpolation_factor", "--position-embedding-type rope --rotary-seq-len-interpolation-factor 3")
witnessed("use_rope_scaling rope_scaling_factor rope_scaling_low_freq_factor rope_scaling_high_freq_factor"
          " rope_scaling_original_max_position_embeddings",
          "--position-embedding-type rope --rotary-base 4 --kv-channels 8 --use-rope-scaling --rope-scaling-factor 3"
          " --rope-scaling-low-freq-factor 2 --rope-scaling-high-freq-factor 5 --rope-scaling-original-max-position-embeddings 40")
witnessed("normalization", "--normalization RMSNorm")
witnessed("norm_epsilon apply_layernorm_1p", "--norm-epsilon 1e-2 --apply-layernorm-1p")
witnessed("qk_layernorm", "--qk-layernorm")
witnessed("apply_wd_to_qk_layernorm weight_decay", "--qk-layernorm --apply-wd-to-qk-layernorm --weight-decay 0.1")
witnessed("window_size", "--window-size 3,0")
witnessed("window_attn_skip_freq", "--num-layers 3 --window-size 3,0 --window-attn-skip-freq 2", layouts=(ONE, CUT))
witnessed("window_attn_skip_freq", "--num-layers 4 --window-size 3,0 --window-attn-skip-freq [1,0]*2")
witnessed("softmax_type", "--softmax-type off-by-one")
witnessed("softmax_type", "--softmax-type learnable")
witnessed("embedding_init_method_std", "--embedding-init-method-std 0.1 --untie-embeddings-and-output-weights")
witnessed("hidden_dropout", "--hidden-dropout 0.2")
witnessed("attention_dropout", "--attention-dropout 0.3")
witnessed("seed", "--seed 7 --hidden-dropout 0.2 --attention-dropout 0.2")

# ---- experts ----

TOGETHER = f"{STAGES} --expert-model-parallel-size 2"
ALONE = "--ranks 2 --pipeline-model-parallel-size 2"  # for what sees the microbatches of other data-parallel ranks


def experts(fields, words, layouts=(ONE, CUT, TOGETHER), without=""):
    witnessed(fields, EXPERTS + words, without, layouts)


experts("num_experts moe_ffn_hidden_size", "")
experts("moe_layer_freq", "--moe-layer-freq 2")
experts("moe_layer_freq", "--moe-layer-freq [0,1]")
experts("moe_router_topk", "--moe-router-topk 3")
experts("moe_router_pre_softmax", "--moe-router-pre-softmax")
experts("moe_router_score_function moe_router_topk_scaling_factor", "--moe-router-score-function sigmoid --moe-router-topk-scaling-factor 1.5")
experts("moe_router_num_groups moe_router_group_topk", "--num-experts 8 --moe-router-num-groups 4 --moe-router-group-topk 2")
experts("moe_router_enable_expert_bias moe_router_bias_update_rate", "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"
        " --moe-router-bias-update-rate 0.05 --hidden-dropout 0.1")
experts("moe_aux_loss_coeff", "--moe-aux-loss-coeff 0.3")
experts("moe_aux_loss_coeff calculate_per_token_loss", "--moe-aux-loss-coeff 0.3 --moe-z-loss-coeff 0.1 --calculate-per-token-loss --eod-mask-loss")
experts("moe_aux_loss_coeff", "--moe-aux-loss-coeff 0.3 --moe-router-score-function sigmoid")
experts("moe_router_load_balancing_type", "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.3")
experts("moe_router_load_balancing_type", "--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.3", (ONE, CUT, ALONE))
experts("moe_router_load_balancing_type moe_aux_loss_coeff",
        "--moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.3 0.2")
experts("moe_router_load_balancing_type", "--moe-router-load-balancing-type sinkhorn", (ONE, CUT, ALONE))
experts("moe_z_loss_coeff", "--moe-z-loss-coeff 0.1")
experts("moe_input_jitter_eps", "--moe-input-jitter-eps 0.2")
experts("moe_expert_capacity_factor", "--moe-expert-capacity-factor 0.7")
experts("moe_token_drop_policy", "--moe-expert-capacity-factor 0.7 --moe-token-drop-policy position")
experts("moe_shared_expert_intermediate_size", "--moe-shared-expert-intermediate-size 8")
experts("moe_shared_expert_gate", "--moe-shared-expert-intermediate-size 8 --moe-shared-expert-gate --swiglu --ffn-hidden-size 16")

# ---- batches ----

witnessed("micro_batch_size", "--micro-batch-size 1 --eod-mask-loss")
witnessed("calculate_per_token_loss", "--calculate-per-token-loss --eod-mask-loss")
witnessed("train_samples", SAMPLES, "train-iters")
witnessed("rampup_batch_size", "--global-batch-size 12 --rampup-batch-size 4 4 20 --train-samples 60", "train-iters")
witnessed("step_batch_size_schedule", "--step-batch-size-schedule 0:4,128:8,0.4K:12 --train-samples 60", "train-iters global-batch-size")
witnessed("batch_invariant_mode", EXPERTS + "--batch-invariant-mode --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.3"
          " --eod-mask-loss --micro-batch-size 4", layouts=(ONE, CUT))

# ---- optimizer ----

witnessed("adam_beta1 adam_beta2 adam_eps", "--adam-beta1 0.8 --adam-beta2 0.95 --adam-eps 1e-3")
witnessed("optimizer", "--optimizer sgd")
witnessed("sgd_momentum", "--optimizer sgd --sgd-momentum 0.5")
witnessed("clip_grad", "--clip-grad 0 --optimizer sgd")
witnessed("clip_grad", "--clip-grad 0.1 --optimizer sgd")
witnessed("weight_decay", "--weight-decay 0.3")

# ---- schedules ----

LONG = "--train-iters 8 --min-lr 1e-3 --eval-interval 4 "
witnessed("min_lr", LONG)
witnessed("lr_decay_style", LONG + "--lr-decay-style constant")
witnessed("lr_decay_style lr_warmup_iters lr_warmup_init", LONG + "--lr-decay-style cosine --lr-warmup-iters 3 --lr-warmup-init 2e-3")
witnessed("lr_decay_style", LONG + "--lr-decay-style inverse-square-root --lr-warmup-iters 2")
witnessed("lr_decay_iters", LONG + "--lr-decay-iters 5")
witnessed("lr_warmup_fraction", LONG + "--lr-warmup-fraction 0.3")
for style in ("linear", "cosine", "exponential", "minus_sqrt"):
    witnessed("lr_decay_style lr_wsd_decay_iters" + (" lr_wsd_decay_style" if style != "exponential" else ""),
              LONG + f"--lr-decay-style WSD --lr-wsd-decay-style {style} --lr-wsd-decay-iters 5")
witnessed("lr_decay_samples lr_warmup_samples", SAMPLES + "--lr-decay-samples 27 --lr-warmup-samples 7", "train-iters")
witnessed("lr_wsd_decay_samples", SAMPLES + "--lr-decay-style WSD --lr-wsd-decay-samples 19", "train-iters")
witnessed("decoupled_lr decoupled_min_lr", LONG + "--decoupled-lr 3e-2 --decoupled-min-lr 5e-3")
witnessed("decoupled_lr", LONG + "--decoupled-lr 3e-2 --untie-embeddings-and-output-weights")
for style in ("linear", "cosine"):
    witnessed("weight_decay_incr_style start_weight_decay end_weight_decay",
              LONG + f"--weight-decay-incr-style {style} --start-weight-decay 0.1 --end-weight-decay 0.5")

# ---- data ----

SPARSE = "--ranks 4 --tensor-model-parallel-size 2 --context-parallel-size 2"
RINGS = (ONE, CUT, STAGES, *(f"{SPARSE} --cp-comm-type {how}" for how in ("allgather", "a2a")))
witnessed("eod_mask_loss tokenizer_type", "--eod-mask-loss")
witnessed("null_tokenizer_eod_id", "--eod-mask-loss --null-tokenizer-eod-id 5")
witnessed("reset_position_ids", "--reset-position-ids", layouts=RINGS)
witnessed("reset_position_ids", "--reset-position-ids --position-embedding-type rope", layouts=RINGS)
witnessed("reset_attention_mask", "--reset-attention-mask", layouts=RINGS)
witnessed("reset_attention_mask reset_position_ids eod_mask_loss", "--reset-attention-mask --reset-position-ids --eod-mask-loss --window-size 4,0")
witnessed("mock_data", "--mock-data", "data-path split")
witnessed("data_path", "--data-path 0.3 text 0.5 more 0.2 third")
witnessed("data_path", "--data-path more third text --split 50,30,20")
witnessed("mid_level_dataset_surplus", "--data-path 0.3 text 0.5 third 0.2 more --mid-level-dataset-surplus 1 --train-iters 12")
witnessed("train_data_path valid_data_path test_data_path", "--train-data-path text --valid-data-path more --test-data-path third",
          "data-path split")
witnessed("train_data_path valid_data_path", "--train-data-path 2 text 1 third --valid-data-path more", "data-path split")
witnessed("split", "--split 40,50,10")
BLEND = "--data-path text more --split 100,0,0 --train-iters 16 --global-batch-size 4 --dataloader-type cyclic"  # several epochs of both
witnessed("dataloader_type", BLEND, layouts=(ONE, "--ranks 2 --tensor-model-parallel-size 2"))
witnessed("dataloader_type", BLEND, layouts=("--ranks 2",), witness="--data-parallel-ranks 2")
witnessed("dataloader_type data_sharding", BLEND + " --no-data-sharding", layouts=("--ranks 2",), witness="--data-parallel-ranks 2")


# ---- 16 bits, 32 bits and FP8 ----

rounded("lane", "--lane fp32")
rounded("lane", "--lane bf16", like="--lane fp32")
rounded("attention_backend", "--attention-backend unfused")
rounded("batch_invariant_mode", "--batch-invariant-mode")
