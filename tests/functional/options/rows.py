"""The table: for each option of options.def that changes numbers, and for each model family that reads it, a row that
uses the option and checks the numbers. A row of one of the kinds in table.py is one line. The other rows are
functions."""
import base64
import copy
import functools
import glob
import json
import math
import pathlib
import re
import struct

import fim
from generation import generate
from program import BOUND, U, bits, compare, expect, joined, lane, same_number
from table import (ALL, BERT, CUT, ENCODERS, FP8, GPT, NOT_BERT, NOT_T5, ONE, PRECISION, STAGES, T5, legs, plain,
                   low_precision, resumed, rounded, row, scheduled, shown, witnessed)
from trainer import Options, Trainer, iterations

EXPERTS = "--num-experts 4 --moe-ffn-hidden-size 8 --disable-bias-linear "
CHUNKED = " --cross-entropy-loss-fusion --cross-entropy-fusion-impl linear --cross-entropy-chunk-size 6"
SAMPLES = "--global-batch-size 4 --train-samples 32 "  # instead of --train-iters


# ---- model ----

LAYOUTS = (ONE, CUT, STAGES, "--ranks 2", "--ranks 2 --context-parallel-size 2 --cp-comm-type a2a")
RING, GATHER = ("--ranks 4 --context-parallel-size 4 --cp-comm-type " + x for x in ("p2p", "allgather"))
COMMON = ("num_layers hidden_size num_attention_heads seq_length data_path split global_batch_size train_iters lr lane eval_iters eval_interval"
          " init_method_std hidden_dropout attention_dropout log_params_norm log_jsonl")
witnessed(COMMON + " vocab_size", layouts=LAYOUTS, families=GPT, steps=4)
witnessed(COMMON + " model vocab_file", layouts=LAYOUTS, families=BERT, steps=4)
witnessed(COMMON + " model vocab_file decoder_num_layers decoder_seq_length vocab_extra_ids", families=T5, steps=4, layouts=(
    *LAYOUTS, "--ranks 4 --pipeline-model-parallel-size 4", "--ranks 2 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"))
witnessed("ffn_hidden_size", "--ffn-hidden-size 24")
witnessed("activation", "--swiglu --ffn-hidden-size 24")
witnessed("activation", "--activation geglu-tanh --ffn-hidden-size 24")
witnessed("activation", "--activation geglu-erf --disable-bias-linear")
witnessed("activation", "--squared-relu")
witnessed("activation", "--activation quick-gelu")
witnessed("activation", "--activation xielu --init-method-std 0.3")
witnessed("bias_gelu_fusion", "--no-bias-gelu-fusion")
witnessed("add_bias_linear", "--disable-bias-linear")
witnessed("add_qkv_bias", "--disable-bias-linear --add-qkv-bias")
witnessed("add_attn_proj_bias", "--disable-bias-linear --add-attn-proj-bias")
witnessed("add_mlp_bias", "--disable-bias-linear --add-mlp-bias")
witnessed("kv_channels", "--kv-channels 6")
witnessed("group_query_attention num_query_groups", "--group-query-attention --num-query-groups 2", families=NOT_T5)
witnessed("max_position_embeddings log_num_zeros_in_grad untie_embeddings_and_output_weights",
          "--max-position-embeddings 24 --untie-embeddings-and-output-weights --log-num-zeros-in-grad --disable-bias-linear", families=GPT)
witnessed("max_position_embeddings log_num_zeros_in_grad untie_embeddings_and_output_weights", families=ENCODERS,
          words="--max-position-embeddings 40 --untie-embeddings-and-output-weights --log-num-zeros-in-grad --disable-bias-linear")
witnessed("vocab_size", "--vocab-size 56", families=ENCODERS)
witnessed("decoder_seq_length", "--decoder-seq-length 40 --attention-dropout 0.2", families=T5)  # longer than the encoder's
witnessed("position_embedding_type", "--position-embedding-type none")
ALIBI = "--position-embedding-type alibi --attention-dropout 0.2 "
witnessed("position_embedding_type", ALIBI, families=NOT_T5)
witnessed("position_embedding_type alibi_bias_max",
          ALIBI + "--alibi-bias-max 3 --num-attention-heads 6 --kv-channels 4", families=NOT_T5,
          layouts=(ONE, "--ranks 4 --tensor-model-parallel-size 2 --context-parallel-size 2 --cp-comm-type p2p",
                   "--ranks 2 --context-parallel-size 2 --cp-comm-type a2a --recompute-granularity selective"))
witnessed("position_embedding_type", ALIBI + "--window-size 5,0 --mtp-num-layers 1", families=GPT,
          layouts=(ONE, "--ranks 2 --context-parallel-size 2"))
witnessed("embedding_layernorm norm_epsilon", "--embedding-layernorm --norm-epsilon 1e-2", families=NOT_T5)
RELATIVE = "--position-embedding-type relative --relative-attention-num-buckets 8 --relative-attention-max-distance 11 --attention-dropout 0.2"
witnessed("position_embedding_type relative_attention_num_buckets relative_attention_max_distance embedding_init_method_std",
          RELATIVE + " --embedding-init-method-std 0.1", families=T5, layouts=(
    ONE, "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel", STAGES, "--ranks 2 --pipeline-model-parallel-size 2"))
witnessed("position_embedding_type normalization softmax_scale add_bias_linear activation untie_embeddings_and_output_weights",
          RELATIVE + " --normalization RMSNorm --disable-bias-linear --softmax-scale 1 --activation relu"
          " --untie-embeddings-and-output-weights", families=T5, layouts=(ONE, STAGES + CHUNKED))
witnessed("position_embedding_type normalization softmax_scale add_bias_linear activation", RELATIVE + " --normalization RMSNorm"
          " --disable-bias-linear --softmax-scale 1 --activation relu", families=T5, layouts=(ONE, STAGES))
witnessed("position_embedding_type rotary_base", "--position-embedding-type rope --rotary-base 100")
witnessed("rotary_percent", "--position-embedding-type rope --rotary-percent 0.5")
witnessed("rotary_interleaved", "--position-embedding-type rope --rotary-interleaved")
witnessed("rotary_seq_len_interpolation_factor", "--position-embedding-type rope --rotary-seq-len-interpolation-factor 3")
witnessed("use_rope_scaling rope_scaling_factor rope_scaling_low_freq_factor rope_scaling_high_freq_factor"
          " rope_scaling_original_max_position_embeddings",
          "--position-embedding-type rope --rotary-base 4 --kv-channels 8 --use-rope-scaling --rope-scaling-factor 3"
          " --rope-scaling-low-freq-factor 2 --rope-scaling-high-freq-factor 5 --rope-scaling-original-max-position-embeddings 40")
LONG = "--position-embedding-type rope --kv-channels 6 --rope-short-factor 1 1.5 2 --rope-long-factor 2 3 4.5"
witnessed("rope_short_factor", LONG + " --rope-scaling-original-max-position-embeddings 16 --max-position-embeddings 64")
witnessed("rope_long_factor", LONG + " --rope-scaling-original-max-position-embeddings 8 --max-position-embeddings 64")
witnessed("rope_attention_factor", LONG + " --rope-attention-factor 1.3")
YARN = ("--position-embedding-type yarn --rotary-base 20 --kv-channels 12 --rotary-scaling-factor 3"
        " --yarn-original-max-position-embeddings 40")
DYNAMIC = "--position-embedding-type rope --rope-dynamic-factor 3 --rope-scaling-original-max-position-embeddings "
witnessed("position_embedding_type rotary_scaling_factor yarn_original_max_position_embeddings", YARN)
witnessed("yarn_beta_fast yarn_beta_slow", YARN + " --yarn-beta-fast 1.5 --yarn-beta-slow 0.5 --rotary-interleaved")
witnessed("yarn_correction_range_round_to_int", YARN + " --no-yarn-correction-range-round-to-int --rotary-percent 0.7")
witnessed("mscale mscale_all_dim", YARN + " --mscale 0.7 --mscale-all-dim 1.6")
witnessed("rope_attention_factor rope_local_base_freq", YARN + " --rope-attention-factor 1.3 --rope-local-base-freq 30"
          " --window-size 5,0 --window-attn-skip-freq 2", families=GPT)
witnessed("rope_dynamic_factor", DYNAMIC + "9")
witnessed("rope_dynamic_factor", DYNAMIC + "90", families=GPT, layouts=(ONE,))
witnessed("no_rope_freq", "--position-embedding-type rope --no-rope-freq 2", families=NOT_T5)
witnessed("no_rope_freq", "--position-embedding-type rope --no-rope-freq [1,0] --qk-layernorm", families=NOT_T5)
witnessed("rope_local_base_freq", "--position-embedding-type rope --rotary-base 1000 --rotary-seq-len-interpolation-factor 3"
          " --rope-local-base-freq 30 --window-size 5,0 --window-attn-skip-freq 2", families=GPT)
witnessed("normalization", "--normalization RMSNorm")
witnessed("norm_epsilon apply_layernorm_1p", "--norm-epsilon 1e-2 --apply-layernorm-1p")
witnessed("qk_layernorm", "--qk-layernorm", families=NOT_T5)
witnessed("qk_layernorm_whole", "--qk-layernorm --qk-layernorm-whole --group-query-attention --num-query-groups 2 --normalization RMSNorm",
          layouts=(ONE, "--ranks 4 --context-parallel-size 4", STAGES), families=NOT_T5)
witnessed("qk_layernorm_after_rope", "--qk-layernorm --qk-layernorm-after-rope --position-embedding-type rope"
                                     " --rotary-base 30"
          " --no-rope-freq [0,1] --group-query-attention --num-query-groups 2 --init-method-std 0.1",
          layouts=(ONE, "--ranks 4 --tensor-model-parallel-size 4", STAGES), families=NOT_T5)
# One layer has no rotation.
MIXED = "--num-layers 3 --position-embedding-type rope --rotary-interleaved --no-rope-freq 3 "
OFFLOADED = ("--fine-grained-activation-offloading --min-offloaded-tensor-size 0"
             " --offload-modules attn_norm mlp_norm qkv_linear core_attn")
SELECTED = "--ranks 2 --recompute-granularity selective"
witnessed("qk_l2_norm norm_epsilon", "--qk-l2-norm --norm-epsilon 1e-2", families=NOT_T5)
witnessed("qk_l2_norm", MIXED + "--qk-l2-norm", families=GPT, layouts=(ONE, CUT, SELECTED))
witnessed("qk_l2_norm qk_l2_norm_rope_layers_only norm_epsilon", families=NOT_T5, layouts=(
    ONE, CUT, "--ranks 4 --tensor-model-parallel-size 4"), words=MIXED + "--qk-l2-norm --qk-l2-norm-rope-layers-only"
    " --norm-epsilon 1e-2 --normalization RMSNorm --group-query-attention --num-query-groups 2")
witnessed("attention_chunk_size", MIXED + "--attention-chunk-size 5 --attention-dropout 0.2", families=GPT,
          layouts=(ONE, CUT, SELECTED, LAYOUTS[-1], RING, GATHER))
witnessed("no_rope_temperature_scale", MIXED + "--no-rope-temperature-scale 0.4 --no-rope-temperature-floor 3",
          families=GPT,
          layouts=(ONE, CUT, SELECTED, RING))
witnessed("no_rope_temperature_floor", MIXED + "--no-rope-temperature-scale 0.4 --no-rope-temperature-floor 5"
                                               " --qk-layernorm"
          " --softmax-type learnable", families=GPT, layouts=(ONE, CUT))
BOTH = MIXED + "--rope-temperature-scale 0.4 --rope-temperature-floor 3 "
witnessed("rope_temperature_scale no_rope_temperature_scale", BOTH + "--no-rope-temperature-scale 0.3"
          " --no-rope-temperature-floor 5 --rotary-percent 0.5", families=GPT, layouts=(ONE, CUT, SELECTED, RING))
witnessed("rope_temperature_floor qk_layernorm_after_rope", BOTH + "--qk-layernorm --qk-layernorm-after-rope"
          " --reset-position-ids --group-query-attention --num-query-groups 2", families=GPT,
          layouts=(ONE, "--ranks 4 --tensor-model-parallel-size 4"))
witnessed("apply_wd_to_qk_layernorm weight_decay", "--qk-layernorm --apply-wd-to-qk-layernorm --weight-decay 0.1", families=NOT_T5)
LATENT = ("--multi-latent-attention --kv-lora-rank 6 --qk-head-dim 5 --qk-pos-emb-head-dim 4 --v-head-dim 7"
          " --disable-bias-linear"
          " --position-embedding-type rope --rotary-base 20 ")
LONGER = "--rotary-scaling-factor 3 --yarn-original-max-position-embeddings 40 --mscale 0.7 --mscale-all-dim 1.6 "
witnessed("multi_latent_attention kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim rope_type", families=GPT,
          layouts=LAYOUTS,
          words=LATENT + "--rope-type rope --rotary-percent 0.5 --rotary-scaling-factor 3")
witnessed("q_lora_rank qk_layernorm latent_norm_epsilon", families=GPT, layouts=(*LAYOUTS, RING, GATHER, OFFLOADED),
          words=LATENT + LONGER + "--q-lora-rank 9 --qk-layernorm --latent-norm-epsilon 1e-2 --normalization RMSNorm"
                                  " --attention-dropout 0.2")
witnessed("mla_rotary_interleaved", LATENT + LONGER + "--no-mla-rotary-interleaved", families=GPT, layouts=(ONE,))
witnessed("rope_temperature_scale rope_temperature_floor", LATENT.replace("dim 5", "dim 6") + LONGER +
          "--rope-temperature-scale 0.5 --rope-temperature-floor 3", families=GPT, layouts=(ONE, CUT, SELECTED))
witnessed("qk_layernorm rotary_scaling_factor mscale mscale_all_dim", families=GPT,
          words=LATENT + LONGER + "--qk-layernorm --softmax-type learnable --window-size 5,0 --add-attn-proj-bias"
                                  " --init-method-std 0.3")
witnessed("reset_position_ids", LATENT + LONGER + "--reset-position-ids", families=GPT)
witnessed("reset_attention_mask eod_mask_loss",
          LATENT + LONGER + "--qk-layernorm --reset-position-ids --reset-attention-mask"
          " --eod-mask-loss", families=GPT)
witnessed("softmax_scale attn_logit_softcapping", LATENT + "--softmax-scale 0.3 --attn-logit-softcapping 0.05",
          families=GPT)
MAMBA = "--mamba-head-dim 4 --mamba-state-dim 5 --mamba-num-groups 2 --position-embedding-type none --disable-bias-linear "
MAMBA_LAYOUTS = (ONE, "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel", STAGES,
                 "--ranks 2 --tensor-model-parallel-size 2", "--ranks 2 --use-megatron-fsdp", CUT,
                 "--ranks 4 --context-parallel-size 4", "--ranks 4 --context-parallel-size 2 --use-megatron-fsdp")
witnessed("hybrid_layer_pattern mamba_state_dim mamba_head_dim mamba_num_groups", layouts=MAMBA_LAYOUTS, families=GPT,
          words=MAMBA + "--num-layers 4 --hybrid-layer-pattern M-M* --normalization RMSNorm")
witnessed("mamba_num_heads weight_decay", MAMBA + "--num-layers 1 --hybrid-layer-pattern M --mamba-num-heads 6 --weight-decay 0.1",
          families=GPT, layouts=(ONE, *MAMBA_LAYOUTS[3:5]))
witnessed("reset_attention_mask", MAMBA + "--num-layers 4 --hybrid-layer-pattern M|M|*|M --reset-attention-mask", families=GPT,
          layouts=(ONE, "--ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", *MAMBA_LAYOUTS[5:]))
AHEAD = "--position-embedding-type rope --mtp-num-layers 2 --init-method-std 0.2 "
AHEAD_LAYOUTS = (*LAYOUTS, RING, CUT + CHUNKED,
                 "--ranks 8 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|t|mm|L",
                 "--ranks 2 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|m|mL",
                 "--ranks 2 --use-megatron-fsdp")
FULLY_SHARDED = ("--ranks 4 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"
                 " --pipeline-model-parallel-size 2")
witnessed("mtp_num_layers", AHEAD + "--hidden-dropout 0.1 --attention-dropout 0.1", layouts=AHEAD_LAYOUTS, families=GPT)
witnessed("mtp_num_layers mtp_loss_scaling_factor",
          AHEAD + "--mtp-loss-scaling-factor 0.7 --calculate-per-token-loss --reset-position-ids"
          " --reset-attention-mask --eod-mask-loss --untie-embeddings-and-output-weights", layouts=AHEAD_LAYOUTS,
          families=GPT)
witnessed("mtp_num_layers mtp_loss_scaling_factor",
          AHEAD + "--mtp-loss-scaling-factor 2 --mtp-num-layers 3 --normalization RMSNorm"
          " --window-size 3,0 --window-attn-skip-freq [0,1] --no-rope-freq [0,1] --reset-attention-mask",
          layouts=LAYOUTS, families=GPT)
witnessed("mtp_use_repeated_layer", AHEAD + "--mtp-use-repeated-layer --mtp-loss-scaling-factor 3 --hidden-dropout 0.1",
          families=GPT,
          layouts=(*AHEAD_LAYOUTS, "--ranks 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
                                   " --ddp-num-buckets 4",
                   "--ranks 2 --pipeline-model-parallel-size 2 --pipeline-schedule zero-bubble"))
witnessed("mtp_detach_heads", AHEAD
          + "--mtp-detach-heads --mtp-loss-scaling-factor 5 --clip-grad 0.5 --log-num-zeros-in-grad",
          layouts=AHEAD_LAYOUTS, families=GPT)
witnessed("mtp_detach_heads mtp_use_repeated_layer", families=GPT, layouts=(ONE, CUT + CHUNKED, STAGES, FULLY_SHARDED),
          words=AHEAD + "--mtp-detach-heads --mtp-use-repeated-layer --untie-embeddings-and-output-weights")
# The gradient of the keys' biases is 0, and Adam makes steps of the rounding errors of such a gradient.
CLIPPED = "--qk-clip --qk-clip-threshold 0.7 --qk-clip-alpha 0.3 "
QUERIES = "--group-query-attention --num-query-groups 2 "
witnessed("qk_clip qk_clip_alpha qk_clip_threshold", CLIPPED + QUERIES + "--disable-bias-linear --window-size 6,0",
          families=GPT, steps=4,
          layouts=(*LAYOUTS, RING, GATHER, "--ranks 4 --tensor-model-parallel-size 4",
                   "--ranks 2 --use-distributed-optimizer",
                   "--ranks 2 --data-parallel-sharding-strategy optim_grads_params --use-megatron-fsdp"))
witnessed("qk_clip qk_clip_alpha qk_clip_threshold", CLIPPED + LATENT + LONGER + "--q-lora-rank 9 --qk-layernorm",
          families=GPT, steps=4,
          layouts=(*LAYOUTS, RING, GATHER, "--ranks 2 --use-distributed-optimizer"))
witnessed("qk_clip", CLIPPED + LATENT + "--rope-type rope --attention-backend unfused --calculate-per-token-loss",
          families=GPT, layouts=(CUT + " --cp-comm-type allgather", ONE))
witnessed("qk_clip", CLIPPED + QUERIES + EXPERTS
          + "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
          " --optimizer sgd --lane fp32", families=GPT, layouts=(STAGES, ONE))
witnessed("qk_clip", CLIPPED + AHEAD + "--disable-bias-linear", families=GPT,
          layouts=(CUT, "--ranks 2 --pipeline-model-parallel-size 2"))
witnessed("qk_clip lane", CLIPPED + QUERIES + "--disable-bias-linear --lane bf16", families=GPT,
          layouts=(ONE, "--ranks 2 --use-distributed-optimizer", "--ranks 4 --tensor-model-parallel-size 2"))
witnessed("qk_clip attention_chunk_size", CLIPPED + MIXED + "--disable-bias-linear --attention-chunk-size 5"
          " --no-rope-temperature-scale 2 --no-rope-temperature-floor 3", families=GPT,
          layouts=(ONE, CUT, RING, GATHER))
witnessed("log_max_attention_logit", "--log-max-attention-logit --disable-bias-linear", layouts=(ONE, CUT, STAGES),
          families=GPT)
witnessed("window_size", "--window-size 3,0", families=GPT)
witnessed("window_attn_skip_freq", "--num-layers 3 --window-size 3,0 --window-attn-skip-freq 2", layouts=(ONE, CUT), families=GPT)
witnessed("window_attn_skip_freq", "--num-layers 4 --window-size 3,0 --window-attn-skip-freq [1,0]*2", families=GPT)
witnessed("softmax_type", "--softmax-type off-by-one", families=NOT_T5)
witnessed("softmax_type", "--softmax-type learnable", families=NOT_T5)
witnessed("norm_placement", "--norm-placement post --hidden-dropout 0.1", families=NOT_T5)
witnessed("norm_placement", "--norm-placement sandwich --normalization RMSNorm --residual-multiplier 0.5", families=NOT_T5)
witnessed("parallel_residual", "--parallel-residual two-norms --hidden-dropout 0.1", families=NOT_T5)
witnessed("parallel_residual", "--parallel-residual one-norm --disable-bias-linear", families=NOT_T5)
witnessed("norm_bias", "--disable-norm-bias --qk-layernorm", families=GPT)
witnessed("norm_bias", "--disable-norm-bias", families=T5)
witnessed("norm_weight", "--disable-norm-weight --qk-layernorm --apply-wd-to-qk-layernorm --weight-decay 0.1",
          families=GPT)
witnessed("norm_weight", "--disable-norm-weight", families=ENCODERS)
witnessed("norm_weight normalization", "--disable-norm-weight --normalization RMSNorm", layouts=(ONE, STAGES),
          families=GPT)
witnessed("norm_weight norm_bias", "--disable-norm-weight --disable-norm-bias", families=GPT)
witnessed("norm_bias parallel_residual", "--disable-norm-bias --parallel-residual one-norm", layouts=(ONE, STAGES),
          families=NOT_T5)
witnessed("add_output_layer_bias", "--add-output-layer-bias --weight-decay 0.1", families=GPT)
witnessed("add_output_layer_bias untie_embeddings_and_output_weights",
          "--add-output-layer-bias --untie-embeddings-and-output-weights"
          " --final-logit-softcapping 0.7", families=GPT, layouts=(ONE, CUT, STAGES))
witnessed("scale_embedding", "--scale-embedding --hidden-dropout 0.1")
MULTIPLIED = "--embedding-multiplier 3 --residual-multiplier 0.3 --softmax-scale 0.3 --hidden-dropout 0.1"
witnessed("embedding_multiplier residual_multiplier softmax_scale", MULTIPLIED, families=BERT)
witnessed("embedding_multiplier residual_multiplier softmax_scale logits_scaling", MULTIPLIED + " --logits-scaling 6", families=NOT_BERT,
          layouts=(ONE, CUT, STAGES))
witnessed("logits_scaling untie_embeddings_and_output_weights", "--logits-scaling 6 --untie-embeddings-and-output-weights", families=NOT_BERT,
          layouts=(ONE, CUT + CHUNKED, STAGES))
MUP = "--use-mup --mup-base-hidden-size 3 "
witnessed("use_mup mup_base_hidden_size mup_embedding_mult", MUP + "--mup-embedding-mult 1.7 --adam-eps 1e-3 --min-lr 1e-3",
          families=GPT, layouts=(ONE, CUT, STAGES))
witnessed("use_mup mup_base_head_dim mup_attn_scale_power mup_output_mult", families=GPT, layouts=(ONE, CUT + CHUNKED, STAGES),
          words=MUP + "--mup-base-head-dim 3 --mup-attn-scale-power 0.7 --mup-output-mult 0.6 --untie-embeddings-and-output-weights"
          " --embedding-init-method-std 0.1 --decoupled-lr 3e-2 --lr-warmup-iters 2 --lr-warmup-init 2e-3")
witnessed("use_mup", "--use-mup", families=GPT)
for words in ("", "--decoupled-lr 3e-2"):
    witnessed("use_mup", MUP + "--optimizer sgd --sgd-momentum 0.5 --weight-decay 0.1 " + words, families=GPT, layouts=(ONE, STAGES))
witnessed("use_mup", MUP + "--optimizer muon --untie-embeddings-and-output-weights", families=GPT, layouts=(ONE, STAGES))
witnessed("use_mup", MUP + EXPERTS + "--moe-router-topk 2 --mtp-num-layers 2 --position-embedding-type rope", families=GPT,
          layouts=(ONE, "--ranks 2 --expert-model-parallel-size 2"))
witnessed("attn_logit_softcapping", "--attn-logit-softcapping 0.05 --attention-dropout 0.1", layouts=(ONE, CUT, STAGES, GATHER))
witnessed("attn_logit_softcapping", "--attn-logit-softcapping 0.05 --window-size 5,0 --softmax-type learnable", layouts=(ONE, RING), families=GPT)
witnessed("attn_logit_softcapping", "--attn-logit-softcapping 0.05 --attention-backend unfused", layouts=(ONE, STAGES))
witnessed("final_logit_softcapping", "--final-logit-softcapping 0.7 --logits-scaling 0.5 --untie-embeddings-and-output-weights",
          families=NOT_BERT, layouts=(ONE, CUT + CHUNKED, STAGES, CUT))
witnessed("bert_binary_head", "--bert-no-binary-head --hidden-dropout 0.1", families=BERT)
witnessed("bert_binary_head num_token_types", "--bert-no-binary-head --num-token-types 1", families=BERT)
witnessed("num_token_types", "--num-token-types 4", families=BERT)
witnessed("embedding_init_method_std", "--embedding-init-method-std 0.1 --untie-embeddings-and-output-weights")
GATED = "--quick-geglu --ffn-hidden-size 16 --init-method-std 0.3 "
witnessed("activation glu_linear_offset activation_func_clamp_value",
          GATED + "--glu-linear-offset 1 --activation-func-clamp-value 0.5")
witnessed("activation", GATED)
witnessed("hidden_dropout", "--hidden-dropout 0.2")
witnessed("attention_dropout", "--attention-dropout 0.3")
witnessed("seed", "--seed 7 --hidden-dropout 0.2 --attention-dropout 0.2")

# ---- experts ----

TOGETHER = f"{STAGES} --expert-model-parallel-size 2"
ALONE = "--ranks 2 --pipeline-model-parallel-size 2"  # for options that depend on the microbatches of other data-parallel ranks


def experts(fields, words, layouts=(CUT, TOGETHER), without=""):
    witnessed(fields, EXPERTS + words, without, layouts, families=GPT)


experts("num_experts moe_ffn_hidden_size", "")
experts("moe_layer_freq", "--moe-layer-freq 2")
for mode in "duplicated", "distributed":
    experts("optimizer num_experts",
            "--optimizer muon --lr 1e-3 --global-batch-size 8 --swiglu --ffn-hidden-size 8"
            f" --moe-shared-expert-intermediate-size 16 --muon-tp-mode {mode}", (
        "--ranks 8 --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"
        " --expert-model-parallel-size 2 "
        "--expert-tensor-parallel-size 1 --use-distributed-optimizer",
        "--ranks 8 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2"
        " --expert-tensor-parallel-size 2"))
experts("norm_placement", "--norm-placement sandwich")
experts("parallel_residual", "--parallel-residual one-norm")
experts("moe_layer_freq", "--moe-layer-freq [0,1]")
BIASED = "--num-experts 4 --moe-ffn-hidden-size 8 --weight-decay 0.1 "
RANKS = "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 "
witnessed("add_bias_linear weight_decay", BIASED,
          layouts=(CUT, TOGETHER, RANKS, RANKS + "--moe-token-dispatcher-type alltoall"), families=GPT)
witnessed("add_bias_linear moe_latent_size", BIASED + "--moe-latent-size 6 --swiglu --ffn-hidden-size 16", families=GPT,
          layouts=(RANKS.replace("expert-model", "expert-tensor"),
                   "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel"
                   " --expert-tensor-parallel-size 2 --expert-model-parallel-size 2"
                   " --moe-token-dispatcher-type alltoall"))
witnessed("add_bias_linear moe_apply_probs_on_input",
          BIASED + "--moe-apply-probs-on-input --moe-expert-capacity-factor 0.7", families=GPT,
          layouts=(CUT, "--moe-pad-expert-input-to-capacity"))
experts("moe_router_topk", "--moe-router-topk 3")
# a layer of experts that predicts further tokens is alone on its stage
AHEAD_ALONE = ("--ranks 8 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|m|L"
               " --expert-model-parallel-size 2 ")
experts("mtp_num_layers", "--position-embedding-type rope --mtp-num-layers 1 --mtp-loss-scaling-factor 0.7"
        " --moe-aux-loss-coeff 0.3 --moe-z-loss-coeff 0.1 --moe-router-score-function sigmoid"
        " --moe-router-enable-expert-bias",
        layouts=(AHEAD_ALONE + "--context-parallel-size 2", TOGETHER, CUT, AHEAD_ALONE +
                 "--tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 2"))
experts("mtp_num_layers moe_layer_freq", LATENT + "--mtp-num-layers 2 --moe-layer-freq [0,1]")
experts("moe_router_pre_softmax", "--moe-router-pre-softmax")
experts("moe_router_score_function moe_router_topk_scaling_factor", "--moe-router-score-function sigmoid --moe-router-topk-scaling-factor 1.5")
experts("moe_router_num_groups moe_router_group_topk moe_aux_loss_coeff",
        "--moe-router-num-groups 2 --moe-router-group-topk 1 --moe-aux-loss-coeff 0.3")
experts("moe_router_group_score_topk", "--num-experts 8 --moe-router-topk 3 --moe-router-num-groups 4"
                                       " --moe-router-group-topk 2 --moe-router-group-score-topk 2")
experts("moe_router_group_score_topk", "--num-experts 8 --moe-router-num-groups 2 --moe-router-group-topk 1"
                                       " --moe-router-group-score-topk 1")
experts("moe_router_score_function", "--moe-router-score-function sqrtsoftplus --moe-aux-loss-coeff 0.3"
                                     " --moe-router-enable-expert-bias"
        " --moe-router-bias-update-rate 0.05")
experts("moe_router_score_function", "--moe-router-score-function sqrtsoftplus --moe-router-topk 1")
experts("moe_router_score_function moe_router_topk_scaling_factor moe_router_sparsemixer_eps",
        "--moe-router-score-function sparsemixer --moe-router-sparsemixer-eps 0.4 --moe-router-topk-scaling-factor 1.5"
        " --moe-aux-loss-coeff 0.3")
experts("moe_apply_probs_on_input", "--moe-apply-probs-on-input --moe-router-topk 1 --moe-router-pre-softmax")
experts("moe_apply_probs_on_input", "--moe-apply-probs-on-input --swiglu --ffn-hidden-size 16",
        (TOGETHER, "--ranks 2 --tensor-model-parallel-size 2"
        " --sequence-parallel --expert-tensor-parallel-size 2"))
experts("moe_latent_size", "--moe-latent-size 6")
experts("activation_func_clamp_value", GATED + "--glu-linear-offset -0.5 --activation-func-clamp-value 0.1")
experts("activation_func_clamp_value", "--swiglu --ffn-hidden-size 16 --moe-layer-freq [0,1] --init-method-std 0.3"
                                       " --activation-func-clamp-value 0.2"
        " --moe-shared-expert-intermediate-size 8")
experts("moe_latent_size", "--moe-latent-size 6 --moe-shared-expert-intermediate-size 8", (
    RANKS + "--moe-token-dispatcher-type alltoall",
    "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel"))
experts("moe_router_enable_expert_bias moe_router_bias_update_rate", "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"
        " --moe-router-bias-update-rate 0.05 --hidden-dropout 0.1")
experts("moe_router_enable_expert_bias moe_router_bias_update_rate",
        "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.05 --moe-aux-loss-coeff 0.3")
experts("moe_router_enable_expert_bias", "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.05"
                                         " --moe-router-pre-softmax"
        " --moe-router-topk-scaling-factor 1.5")
experts("moe_router_enable_expert_bias moe_router_num_groups",
        "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.05 --num-experts 8"
        " --moe-router-num-groups 4 --moe-router-group-topk 2 --moe-router-group-score-topk 2")
experts("moe_router_enable_expert_bias moe_aux_loss_coeff moe_router_load_balancing_type",
        "--moe-router-score-function sigmoid --moe-router-enable-expert-bias"
        " --moe-router-bias-update-rate 0.05 --moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.3",
        (CUT, ALONE))
experts("moe_aux_loss_coeff", "--moe-aux-loss-coeff 0.3")
experts("moe_aux_loss_coeff calculate_per_token_loss", "--moe-aux-loss-coeff 0.3 --moe-z-loss-coeff 0.1 --calculate-per-token-loss --eod-mask-loss")
experts("moe_aux_loss_coeff", "--moe-aux-loss-coeff 0.3 --moe-router-score-function sigmoid")
experts("moe_router_load_balancing_type", "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.3")
experts("moe_router_load_balancing_type", "--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.3", (CUT, ALONE))
experts("moe_router_load_balancing_type moe_aux_loss_coeff",
        "--moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.3 0.2")
experts("moe_router_load_balancing_type", "--moe-router-load-balancing-type sinkhorn", (CUT, ALONE))
experts("moe_router_load_balancing_type", "--moe-router-load-balancing-type quantile_balancing"
                                          " --moe-router-score-function sigmoid")
experts("moe_router_quantile_balancing_ema",
        "--moe-router-load-balancing-type quantile_balancing --moe-router-quantile-balancing-ema 0.3"
        " --moe-z-loss-coeff 0.1")
experts("moe_z_loss_coeff", "--moe-z-loss-coeff 0.1")
experts("moe_input_jitter_eps", "--moe-input-jitter-eps 0.2")
experts("moe_router_force_load_balancing", "--moe-router-force-load-balancing --moe-aux-loss-coeff 0.3")
experts("moe_router_force_biased", "--moe-router-force-biased 0.7")
experts("moe_router_force_biased", "--moe-router-force-biased -0.7 --moe-z-loss-coeff 0.1")
experts("moe_expert_capacity_factor", "--moe-expert-capacity-factor 0.7")
experts("moe_token_drop_policy", "--moe-expert-capacity-factor 0.7 --moe-token-drop-policy position")
experts("moe_shared_expert_intermediate_size", "--moe-shared-expert-intermediate-size 8")
experts("moe_shared_expert_gate", "--moe-shared-expert-intermediate-size 8 --moe-shared-expert-gate --swiglu --ffn-hidden-size 16")

# ---- batches ----

witnessed("micro_batch_size", "--micro-batch-size 1 --eod-mask-loss", families=GPT)
witnessed("calculate_per_token_loss", "--calculate-per-token-loss --eod-mask-loss", families=GPT)
witnessed("micro_batch_size", "--micro-batch-size 1 --short-seq-prob 0.5", families=ENCODERS)
witnessed("calculate_per_token_loss", "--calculate-per-token-loss --short-seq-prob 0.5", families=ENCODERS, layouts=LAYOUTS)
witnessed("short_seq_prob", "--batch-invariant-mode --global-batch-size 8 --micro-batch-size 4 --short-seq-prob 0.5", families=ENCODERS,
          layouts=(ONE, CUT))
scheduled("train_samples", SAMPLES, "train-iters")
scheduled("rampup_batch_size", "--global-batch-size 12 --rampup-batch-size 4 4 20 --train-samples 60", "train-iters")
for families, samples in (NOT_BERT, 50), (BERT, 60):  # the last step is partial, and BERT's data have no samples for the rest of it
    witnessed("step_batch_size_schedule", f"--step-batch-size-schedule 0:4,128:8,0.4K:12 --train-samples {samples}",
              "train-iters global-batch-size", families=families)
for more in (" --reset-attention-mask --reset-position-ids", " --calculate-per-token-loss"):
    witnessed("moe_router_load_balancing_type eod_mask_loss", EXPERTS + "--batch-invariant-mode --eod-mask-loss --micro-batch-size 4"
              " --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.3" + more, layouts=(ONE, CUT), families=GPT)

# ---- optimizer ----

scheduled("eval_global_batch_size", "--eval-global-batch-size 8")
scheduled("adam_beta1 adam_beta2 adam_eps", "--adam-beta1 0.8 --adam-beta2 0.95 --adam-eps 1e-3")
scheduled("optimizer", "--optimizer sgd")
scheduled("sgd_momentum", "--optimizer sgd --sgd-momentum 0.5")
scheduled("clip_grad", "--clip-grad 0 --optimizer sgd")
MUON = "--optimizer muon --lr 1e-3 --weight-decay 0.1 "
scheduled("optimizer", MUON)
scheduled("muon_momentum", MUON + "--muon-momentum 0.5")
scheduled("muon_nesterov", MUON + "--muon-nesterov")
scheduled("muon_split_qkv", MUON + "--muon-no-split-qkv")
scheduled("muon_scale_mode", MUON + "--muon-scale-mode unit_rms_norm")
scheduled("muon_scale_mode muon_extra_scale_factor",
          MUON + "--muon-scale-mode shape_scaling --muon-extra-scale-factor 0.2")
# more than the set has
for kind, number in (("simple", 6), ("quintic", 7), ("polar_express", 9), ("cans", 6), ("aol", 6), ("deepseekv4", 12)):
    scheduled("muon_coefficient_type" * (kind != "quintic") + " muon_num_ns_steps",
              MUON + f"--muon-coefficient-type {kind} --muon-num-ns-steps {number}")
scheduled("muon_coefficient_type", MUON + "--muon-coefficient-type cubic5")
# a bias of keys has no gradient, so the sign would depend on rounding
SIGNS = MUON + "--disable-bias-linear --muon-scalar-optimizer lion "
scheduled("muon_scalar_optimizer", SIGNS)
scheduled("lion_beta1 lion_beta2", SIGNS + "--lion-beta1 0.8 --lion-beta2 0.9")
SPLIT = "--ranks 4 --tensor-model-parallel-size 2 "
BLOCKS = MUON + "--muon-tp-mode blockwise --swiglu --ffn-hidden-size 24"
witnessed("muon_tp_mode", BLOCKS, layouts=(SPLIT, SPLIT + "--use-distributed-optimizer"),
          witness="--tensor-model-parallel-size 2")
DISTRIBUTED = MUON + "--muon-tp-mode distributed --swiglu --ffn-hidden-size 24"
witnessed("optimizer", DISTRIBUTED, layouts=(SPLIT, SPLIT + "--use-distributed-optimizer"))
GROUPS = MUON + "--group-query-attention --num-query-groups 2 --swiglu --ffn-hidden-size 24 "
witnessed("optimizer muon_nesterov", GROUPS + "--muon-nesterov", families=NOT_T5, steps=4, layouts=(
    # more ranks than groups
    "--ranks 4 --tensor-model-parallel-size 4", "--ranks 8 --tensor-model-parallel-size 4 --use-distributed-optimizer"))
WHOLE = "--ranks 2 --optimizer dist_muon --overlap-grad-reduce --overlap-param-gather --ddp-num-buckets 3"
witnessed("optimizer", GROUPS, families=NOT_T5,
          layouts=(WHOLE, SPLIT + "--num-distributed-optimizer-instances 2 --use-distributed-optimizer"))
witnessed("optimizer freeze_parameters", MUON + "--freeze-parameters decoder.layers.1.mlp embedding", families=GPT)
witnessed("optimizer qk_clip", MUON + "--disable-bias-linear --qk-clip --qk-clip-threshold 0.5", families=GPT)
rounded("optimizer", "--optimizer muon --lane bf16", like="--lane bf16")
rounded("muon_fp32_matmul_prec", "--optimizer muon --lane fp32 --muon-fp32-matmul-prec high",
        like="--optimizer muon --lane fp32")
witnessed("clip_grad", "--clip-grad 0.1 --optimizer sgd")
witnessed("weight_decay", "--weight-decay 0.3")
witnessed("freeze_parameters", "--hidden-dropout 0.1 --freeze-parameters embedding decoder.layers.0",
          families=GPT, steps=4)
witnessed("freeze_parameters", "--untie-embeddings-and-output-weights --freeze-parameters output_layer"
          " decoder.layers.0.input_layernorm.bias decoder.layers.1.self_attention.linear_qkv.weight", families=GPT,
          layouts=(CUT + CHUNKED, ONE))
experts("freeze_parameters", "--freeze-parameters decoder.layers.0.mlp.experts decoder.layers.1.mlp.router")
witnessed("freeze_parameters", "--freeze-parameters embedding encoder.layers.0 lm_head.dense", families=BERT)
witnessed("freeze_parameters", "--freeze-parameters embedding encoder decoder.layers.1", families=T5)

# ---- schedules ----

@row("use_checkpoint_opt_param_scheduler")
def schedules_of_the_checkpoint(program, quick):
    """A resumed run reads all settings of schedules from the checkpoint, whether they count steps or samples."""
    both = "--lr-decay-style cosine --min-lr 1e-3 --decoupled-lr 2e-2 --decoupled-min-lr 4e-3"
    other = "--lr 1 --min-lr 0.5 --lr-decay-style constant --decoupled-lr 1 --decoupled-min-lr 0.5"
    for words, less, changes in (("--weight-decay 0.1 --lr-warmup-fraction 0.6", "", "--lr-decay-iters 9 --lr-warmup-iters 1"
                                  " --lr-warmup-fraction 0.1 --weight-decay 0.5"),
                                 ("--weight-decay-incr-style linear --start-weight-decay 0.1 --end-weight-decay 0.4 --train-samples 16 --lr-decay-samples 14"
                                  " --lr-warmup-samples 6", "train-iters", "--lr-decay-samples 16 --lr-warmup-samples 1 --start-weight-decay 0.2"
                                  " --end-weight-decay 0.3 --weight-decay-incr-style cosine")):
        o, save = program.words(f"{both} {words}", less), program.fresh()
        before = program.pretrain(o, "--save", save, "--save-interval", 1000, "--exit-interval", 2)
        after = program.pretrain(o, *other.split(), *changes.split(), "--use-checkpoint-opt_param-scheduler", "--load", save)
        compare(joined(before, after), Trainer(o).run(), o)


@row("use_checkpoint_opt_param_scheduler train_iters train_samples", families=GPT)
def decay_of_a_longer_run(program, quick):
    """A longer resumed run keeps the decay length of the saved run."""
    for planned, longer, decay, less in (("--train-iters 4", "--train-iters 6", "--lr-decay-iters 4", ""),
                                         ("--train-samples 16", "--train-samples 24", "--lr-decay-samples 16",
                                          "train-iters")):
        o, whole = (program.words("--lr-decay-style cosine --min-lr 1e-3 " + words, less)
                    for words in (planned, f"{longer} {decay}"))
        save = program.fresh()
        program.pretrain(o, "--save", save, "--save-interval", 2, "--exit-interval", 2)
        run = program.pretrain(program.words(longer, less), "--use-checkpoint-opt_param-scheduler", "--load", save)
        rates, wanted = ([r["learning_rate"] for r in records]
                         for records in (run.records, Trainer(whole).run()[0][2:]))
        expect(len(rates) == len(wanted) and all(map(math.isclose, rates, wanted)), f"rates {rates} and not {wanted}")


LONG = "--train-iters 8 --min-lr 1e-3 --eval-interval 4 "
scheduled("min_lr", LONG)
scheduled("lr_decay_style", LONG + "--lr-decay-style constant")
scheduled("lr_decay_style lr_warmup_iters lr_warmup_init", LONG + "--lr-decay-style cosine --lr-warmup-iters 3 --lr-warmup-init 2e-3")
scheduled("lr_decay_style", LONG + "--lr-decay-style inverse-square-root --lr-warmup-iters 2")
scheduled("lr_decay_iters", LONG + "--lr-decay-iters 5")
scheduled("lr_warmup_fraction", LONG + "--lr-warmup-fraction 0.3")
scheduled("lr_warmup_fraction lr_decay_iters", LONG + "--lr-warmup-fraction 0.3 --lr-decay-iters 6")  # the fraction is of the decay
for style in ("linear", "cosine", "exponential", "minus_sqrt"):
    scheduled("lr_decay_style lr_wsd_decay_iters" + (" lr_wsd_decay_style" if style != "exponential" else ""),
              LONG + f"--lr-decay-style WSD --lr-wsd-decay-style {style} --lr-wsd-decay-iters 5")
scheduled("lr_decay_samples lr_warmup_samples", SAMPLES + "--lr-decay-samples 27 --lr-warmup-samples 7", "train-iters")
scheduled("lr_wsd_decay_samples", SAMPLES + "--lr-decay-style WSD --lr-wsd-decay-samples 19", "train-iters")
witnessed("decoupled_lr decoupled_min_lr", LONG + "--decoupled-lr 3e-2 --decoupled-min-lr 5e-3")
witnessed("decoupled_lr", LONG + "--decoupled-lr 3e-2 --untie-embeddings-and-output-weights")
for style in ("linear", "cosine"):
    scheduled("weight_decay_incr_style start_weight_decay end_weight_decay",
              LONG + f"--weight-decay-incr-style {style} --start-weight-decay 0.1 --end-weight-decay 0.5 --lr-decay-iters 6")

# ---- data ----

SPARSE = "--ranks 4 --tensor-model-parallel-size 2 --context-parallel-size 2"
RINGS = (ONE, CUT, STAGES, *(f"{SPARSE} --cp-comm-type {how}" for how in ("allgather", "a2a")))
witnessed("eod_mask_loss tokenizer_type", "--eod-mask-loss", families=GPT)
witnessed("null_tokenizer_eod_id", "--eod-mask-loss --null-tokenizer-eod-id 5", families=GPT)
witnessed("null_tokenizer_pad_id", "--null-tokenizer-pad-id 5", families=GPT)
witnessed("reset_position_ids", "--reset-position-ids", layouts=RINGS, families=GPT)
witnessed("reset_position_ids", "--reset-position-ids --position-embedding-type rope", layouts=RINGS, families=GPT)
witnessed("reset_attention_mask", "--reset-attention-mask", layouts=RINGS, families=GPT)
witnessed("reset_attention_mask reset_position_ids eod_mask_loss", "--reset-attention-mask --reset-position-ids --eod-mask-loss"
          " --window-size 4,0", families=GPT)
witnessed("attention_chunk_size reset_attention_mask", MIXED + "--attention-chunk-size 4 --reset-attention-mask",
          families=GPT,
          layouts=(ONE, CUT, RING))
witnessed("attention_chunk_size no_rope_temperature_floor reset_position_ids", families=GPT, layouts=(*RINGS[3:], RING),
          words=MIXED + "--attention-chunk-size 5 --no-rope-temperature-scale 0.4 --no-rope-temperature-floor 3"
                        " --qk-l2-norm"
          " --reset-attention-mask --reset-position-ids --eod-mask-loss")
witnessed("mock_data", "--mock-data", "data-path split")
witnessed("data_path", "--data-path 0.3 text 0.5 more 0.2 third")
witnessed("data_path", "--data-path more third text --split 50,30,20")
witnessed("data_args_path", "--data-args-path paths", "data-path", witness="--data-path 0.3 text 0.5 more 0.2 third")
witnessed("per_split_data_args_path", "--per-split-data-args-path paths.json", "data-path split",
          witness="--train-data-path 2 text 1 third --valid-data-path more")
witnessed("data_path", "--data-path long", families=T5)  # documents of one sentence may be long, others are omitted
witnessed("mid_level_dataset_surplus", "--data-path 0.3 text 0.5 third 0.2 more --mid-level-dataset-surplus 1 --train-iters 12")
witnessed("train_data_path valid_data_path test_data_path", "--train-data-path text --valid-data-path more --test-data-path third",
          "data-path split")
witnessed("train_data_path valid_data_path", "--train-data-path 2 text 1 third --valid-data-path more", "data-path split")
witnessed("split", "--split 40,50,10")


def fills(fields, words=""):
    files = "--data-path code --tokenizer-type GPT2BPETokenizer --vocab-file code.json --merge-file code.txt "
    witnessed(fields, "--fim-data " + files + words, "vocab-size", families=GPT,
              witness=f"--vocab-size {fim.SIZE} --null-tokenizer-eod-id {fim.EOD}")


fills("fim_data")
fills("fim_rate fim_spm_rate", "--fim-rate 0.8 --fim-spm-rate 0.2 --reset-position-ids --reset-attention-mask")
fills("fim_split_sample fim_fragment_rate", "--fim-rate 0.9 --fim-split-sample e --fim-fragment-rate 0.7")
fills("fim_no_prefix", "--fim-rate 1 --fim-no-prefix a")
fills("fim_prefix_token fim_middle_token fim_suffix_token", "--fim-prefix-token <p> --fim-middle-token <m>"
      " --fim-suffix-token <s>")
fills("fim_pad_token fim_eod_token", "--fim-rate 0.2 --fim-pad-token <q> --fim-eod-token d")
witnessed("mask_prob", "--mask-prob 0.3", families=ENCODERS)
witnessed("short_seq_prob", "--short-seq-prob 0.5 --train-iters 8 --eval-interval 4", families=ENCODERS)
witnessed("mock_data", "--mock-data --tokenizer-type NullTokenizer --vocab-size 120", "data-path split vocab-file vocab-extra-ids", families=ENCODERS)
BLEND = "--data-path text more --split 80,20,0 --train-iters 16 --eval-interval 8 --dataloader-type cyclic"  # several epochs of both
witnessed("dataloader_type", BLEND, layouts=(ONE, "--ranks 2 --tensor-model-parallel-size 2"))
witnessed("dataloader_type", BLEND, layouts=("--ranks 2",), witness="--data-parallel-ranks 2")
witnessed("dataloader_type data_sharding", BLEND + " --no-data-sharding", layouts=("--ranks 2",), witness="--data-parallel-ranks 2")


# ---- layouts: these options change numbers only by rounding ----

RECOMPUTED = "--recompute-granularity full --recompute-num-layers 1 --recompute-method "
LAID_OUT = (
    ONE, f"{RECOMPUTED} uniform", f"{RECOMPUTED} block", "--recompute-granularity selective --recompute-modules core_attn mlp",
    "--cpu-offloading-num-layers 2", OFFLOADED, "--cpu-threads 2",
    "--ranks 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
    "--ranks 2 --use-megatron-fsdp", "--ranks 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-num-buckets 3",
    "--ranks 2 --pipeline-model-parallel-size 2 --pipeline-schedule gpipe", "--ranks 2 --pipeline-model-parallel-size 2 --pipeline-schedule zero-bubble",
    "--ranks 2 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
    "--ranks 2 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|tttL",
    "--ranks 2 --tensor-model-parallel-size 2", "--ranks 2 --tensor-model-parallel-size 2 --interleaved-microbatches 2",
    "--ranks 2 --context-parallel-size 2 --cp-comm-type allgather")
DROPPED = "--hidden-dropout 0.2 --attention-dropout 0.2"
witnessed("hidden_dropout attention_dropout", f"--num-layers 4 {DROPPED} --reset-attention-mask", layouts=LAID_OUT, families=GPT)
witnessed("hidden_dropout attention_dropout", f"--num-layers 4 {DROPPED}", layouts=LAID_OUT, families=BERT)
witnessed("hidden_dropout attention_dropout", f"{DROPPED} --decoder-seq-length 40", layouts=LAID_OUT, families=T5)  # more queries than keys
experts("moe_aux_loss_coeff moe_expert_capacity_factor moe_input_jitter_eps",
        "--moe-aux-loss-coeff 0.3 --moe-expert-capacity-factor 0.7 --moe-input-jitter-eps 0.2",
        (ONE, "--moe-pad-expert-input-to-capacity", "--ranks 2 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall",
         "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1 --expert-model-parallel-size 2",
         "--recompute-granularity selective --recompute-modules moe"))


# ---- other arithmetic: the loss scale of fp16 depends on the steps that overflow ----

def scaled(fields, words, without="", layouts=(ONE, "--ranks 2 --tensor-model-parallel-size 2 --sequence-parallel"),
           overflowing=True, families=ALL):
    """A run in fp16. The run reports which steps overflowed, and the reference trainer computes the rest from these."""
    def check(program, quick):
        o = program.words("--lane fp16 --eval-iters 0 --train-iters 12 " + words, without)
        expected = functools.cache(lambda overflows: Trainer(o).run(overflows=overflows))
        halves, whole = legs(layouts)
        runs = [program.pretrain(o, *layout.split()) for layout in (layouts[:1] if quick else whole)]
        if halves and not quick:
            runs.append(resumed(program, o, iterations(Options(o)) // 2, *halves))
        for run in runs:
            overflows = frozenset(r["iteration"] for r in run.records if r["skipped"])
            compare(run, expected(overflows), o)
            expect(bool(overflows) == overflowing, f"overflows in steps {sorted(overflows)}")
    row(fields, words, families)(check)


def scaled_alike(fields, words, without="", overflowing=True):
    """Like scaled, for options whose code all families share: only GPT runs in layouts."""
    scaled(fields, words, without, overflowing=overflowing, families=GPT)
    scaled(fields, words, without, (ONE,), overflowing, ENCODERS)


scaled_alike("lane initial_loss_scale loss_scale_window hysteresis", "--initial-loss-scale 16777216 --loss-scale-window 3 --hysteresis 1")
scaled_alike("hysteresis", "--initial-loss-scale 1048576 --loss-scale-window 1 --hysteresis 3")
scaled_alike("min_loss_scale", "--initial-loss-scale 16777216 --hysteresis 1 --min-loss-scale 2097152")
scaled_alike("loss_scale", "--loss-scale 256", overflowing=False)
scaled("loss_scale moe_aux_loss_coeff", EXPERTS + "--loss-scale 256 --moe-aux-loss-coeff 3 --moe-z-loss-coeff 0.5 --lr 1e-4",
       overflowing=False, families=GPT)
scaled_alike("rampup_batch_size", "--initial-loss-scale 16777216 --hysteresis 1 --global-batch-size 12 --rampup-batch-size 4 4 20"
       " --train-samples 96 --lr-warmup-samples 30", "train-iters")  # skipped steps count towards the ramp-up, not the schedule

low_precision(rounded)
rounded("lane", "--lane exact")
rounded("fp8_format", FP8.replace("hybrid", "e4m3"), like="--num-layers 3 --lane fp32 --lr 1e-3")


@row("te_precision_config_file", FP8 + PRECISION)
def check_precision_file(program, quick):
    other = program.words(FP8 + "--fp8-recipe tensorwise --first-last-layers-bf16")
    expect(bits(program.pretrain(program.words(FP8 + PRECISION))) == plain(program, *other),
           "not equal to a run with options for all layers")


rounded("fp8_output_proj", FP8 + "--fp8-output-proj", like=FP8)
CHUNKS = "--lane fp32 --cross-entropy-loss-fusion --cross-entropy-fusion-impl linear "
for families, untied in (GPT, ""), (T5, "--untie-embeddings-and-output-weights "):
    rounded("cross_entropy_loss_fusion cross_entropy_fusion_impl", untied + CHUNKS + "--cross-entropy-chunk-size 10", untied + "--lane fp32",
            families=families)
    rounded("cross_entropy_chunk_size", untied + CHUNKS + "--cross-entropy-chunk-size 10", untied + CHUNKS, families=families)


# ---- checkpoints ----

SAVES = "--save-interval 1"


def saved(program, words=SAVES):
    """Runs the program, and saves a checkpoint after every step. Returns the folder, and the state of the reference
    trainer after two steps."""
    save, o = program.fresh(), program.words(words)
    program.pretrain(o, "--save", save)
    trainer = Trainer(o)
    trainer.run(until=2)
    return save, trainer.state


def continued(program, words, state, *options, without=""):
    """Runs the program with `words`, which load a checkpoint, and compares it with the reference trainer, which starts
    from `state`."""
    o = program.words(words, without)
    compare(program.pretrain(o, *options), Trainer(program.words(words), state).run(), program.words(words))


@row("save save_interval load ckpt_step")
def load(program, quick):
    save, state = saved(program)
    continued(program, "--ckpt-step 2", state, "--load", save)


@row("eval_interval")
def validation_begins_again(program, quick):
    """The saved run has read more validation samples than the resumed run builds with its options."""
    save, o, more = program.fresh(), program.words("--eval-interval 1 --save-interval 1000"), program.words("--train-iters 5", "eval-interval")
    trainer = Trainer(o)
    compare(program.pretrain(o, "--save", save), trainer.run(), o)
    compare(program.pretrain(more, "--load", save), Trainer(more, trainer.state).run(), more)


@row("load_optim")
def no_load_optim(program, quick):
    save, state = saved(program)
    fresh = Trainer(program.words())
    state.moments, state.optimizer_step, state.scheduled = fresh.state.moments, 0, 0
    for more in "", " --use-checkpoint-opt_param-scheduler --lr 2e-2":  # the schedules are not loaded, so the options' apply
        continued(program, "--ckpt-step 2 --no-load-optim" + more, copy.deepcopy(state), "--load", save)


@row("load_optim lane")
def no_load_optim_of_half(program, quick):
    """The loss scale restarts with --no-load-optim, because it is part of the optimizer's state."""
    save, words = program.fresh(), "--lane fp16 --initial-loss-scale 64 --loss-scale-window 2 "
    program.pretrain(program.words(words + "--save-interval 2"), "--save", save)
    run = program.pretrain(program.words(words + "--ckpt-step 2 --no-load-optim"), "--load", save)
    expect([r["loss_scale"] for r in run.records] == [64, 64], f"loss scales {[r['loss_scale'] for r in run.records]}")


@row("override_opt_param_scheduler")
def schedules_count_all_samples(program, quick):
    """After --no-load-optim, the schedules lag behind the consumed samples; this option advances them to these
    samples."""
    save, again = program.fresh(), program.fresh()
    program.pretrain(program.words(SAVES), "--save", save)
    program.pretrain(program.words(SAVES + " --ckpt-step 2 --no-load-optim --exit-interval 3"), "--load", save, "--save", again)
    rates = [program.pretrain(program.words(more), "--load", again).records[-1]["learning_rate"]
             for more in ("", "--override-opt_param-scheduler")]
    expect(rates == [0.75e-2, 0.25e-2], f"learning rates {rates}")


def weights_of(state, trainer):
    trainer.state.weights = state.weights
    return trainer.state


@row("finetune")
def finetune(program, quick):
    save, state = saved(program)
    continued(program, "--ckpt-step 2 --finetune", weights_of(state, Trainer(program.words())), "--load", save)


@row("pretrained_checkpoint")
def pretrained(program, quick):
    save, _ = saved(program)
    whole = Trainer(program.words())
    whole.run()
    state = weights_of(whole.state, Trainer(program.words()))
    continued(program, "", state, "--pretrained-checkpoint", save, "--load", program.fresh())


@row("save_optim")
def no_save_optim(program, quick):
    save, state = saved(program, "--save-interval 1 --no-save-optim")
    program.pretrain(program.words("--ckpt-step 2"), "--load", save, status=2)
    state.moments, state.optimizer_step, state.scheduled = Trainer(program.words()).state.moments, 0, 0
    continued(program, "--ckpt-step 2 --no-load-optim", state, "--load", save)


@row("use_checkpoint_args")
def checkpoint_args(program, quick):
    save, state = saved(program)
    stored = "num-layers hidden-size num-attention-heads seq-length hidden-dropout attention-dropout make-vocab-size-divisible-by"
    continued(program, "--ckpt-step 2", state, "--load", save, "--use-checkpoint-args", without=stored)


for families, tokens in (GPT, "--null-tokenizer-eod-id 5 --null-tokenizer-pad-id 6 --eod-mask-loss"), (BERT, "--tokenizer-special-tokens <a> <b> --vocab-extra-ids 3"):
    @row("use_checkpoint_args", tokens, families)
    def tokenizer_of_the_checkpoint(program, quick, tokens=tokens):
        save, state = saved(program, f"{SAVES} {tokens}")
        stored = " ".join(w[2:] for w in tokens.split() if w.startswith("--") and w != "--eod-mask-loss")
        continued(program, "--ckpt-step 2 " + tokens, state, "--load", save, "--use-checkpoint-args", without=f"tokenizer-type vocab-file vocab-size {stored}")


@row("exit_on_missing_checkpoint")
def missing(program, quick):
    program.pretrain(program.words("--exit-on-missing-checkpoint"), "--load", program.fresh(), status=2)
    continued(program, "", None, "--load", program.fresh())


@row("lane initial_loss_scale")
def other_lane(program, quick):
    """A run that is resumed in another precision starts with a new loss scale."""
    save, state = saved(program, SAVES + " --lane fp32")
    state.scale = 1024.0
    continued(program, "--ckpt-step 2 --lane fp16 --initial-loss-scale 1024", state, "--load", save)


@row("hidden_dropout finetune")
def other_dropout(program, quick):
    """Dropout may change in a resumed run, and in a run that loads only weights."""
    save, state = saved(program)
    o = "--ckpt-step 2 --hidden-dropout 0.2"
    continued(program, o, state, "--load", save)
    continued(program, o + " --finetune", weights_of(state, Trainer(program.words())), "--load", save)


def kept(program, words):
    save = program.fresh()
    program.pretrain(program.words("--train-iters 6 --save-interval 1 " + words), "--save", save)
    return sorted(int(p.name[5:]) for p in pathlib.Path(save).glob("iter_*"))


@row("most_recent_k save_retain_interval")
def retained(program, quick):
    expect(kept(program, "--most-recent-k 2") == [5, 6], "not the newest two are kept")
    expect(kept(program, "--save-retain-interval 3") == [3, 6], "not every third is kept")


@row("async_save")
def async_save(program, quick):
    save, state = saved(program, SAVES + " --async-save")
    continued(program, "--ckpt-step 2", state, "--load", save)
    text = program.pretrain(program.words(SAVES + " --async-save"), "--save", program.fresh()).text
    expect("scheduled an async checkpoint save" in text, "the save is not asynchronous")


@row("exit_interval")
def exit_interval(program, quick):
    o = program.words("--exit-interval 3")
    compare(program.pretrain(o), Trainer(o).run(until=3), o)


@row("skip_train")
def skip_train(program, quick):
    """With --skip-train, evaluation starts at the first validation sample that the saved run has not yet read."""
    save, state = saved(program)
    continued(program, "--ckpt-step 2 --skip-train", state, "--load", save)


def not_finite(program, quick, words=""):
    """A loss that is not finite: each step multiplies the trained weights by -1e12, until float overflows."""
    o = program.words("--lane fp32 --lr 1e6 --weight-decay 1e6 --lr-decay-style constant --train-iters 8 --eval-iters 0"
                      " --log-interval 8 " + words)
    expect("is not finite" in program.pretrain(o, status=1).text, "the run does not say why it stops")
    run = program.pretrain(o, "--no-check-for-nan-in-loss-and-grad")
    expect(len(run.records) == 8 and run.records[-1]["skipped"], "steps that are not finite are not skipped")
    skipped = sum(r["skipped"] for r in run.records)
    nan = sum(None in (r["lm_loss"], r.get("sop_loss", 0)) for r in run.records)
    told = f"number of skipped iterations: {skipped:3} | number of nan iterations: {nan:3} |"
    expect(nan and told in run.text, f"no '{told}' in the log")
    return run


row("check_for_nan_in_loss_and_grad")(not_finite)


@row("check_for_nan_in_loss_and_grad", families=BERT)
def second_not_finite(program, quick):
    run = not_finite(program, quick, "--freeze-parameters embedding encoder lm_head output_layer pooler")
    expect(all(r["lm_loss"] for r in run.records), "the first loss is not finite, although its weights are frozen")


# ---- tokenizers: vocabulary size, end of document and padding ----

TOKENIZERS = pathlib.Path(__file__).resolve().parents[2] / "data/tokenizer"
witnessed("tokenizer_type", "--tokenizer-type BertWordPieceCase", "vocab-extra-ids", families=ENCODERS)
witnessed("tokenizer_type tokenizer_model", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model pieces", "vocab-file",
          witness="--vocab-file vocab.txt --bos w3 --eos w5", families=ENCODERS)
witnessed("vocab_file", "", "tokenizer-type", (ONE,), families=ENCODERS)
witnessed("tokenizer_special_tokens vocab_extra_ids", "--tokenizer-special-tokens <a> <b> --vocab-extra-ids 15", families=ENCODERS)
witnessed("tokenizer_type", "--tokenizer-type ByteLevelTokenizer --eod-mask-loss", "vocab-size",
          witness="--vocab-size 512 --null-tokenizer-eod-id 0 --pad 1", families=GPT)


@row("tokenizer_model allow_ambiguous_pad_tokens", families=GPT)
def hugging_face(program, quick):
    """In this tokenizer, token 39 is both the end of documents and the padding."""
    folder = pathlib.Path(program.fresh())
    made = json.loads((TOKENIZERS / "qwen2.json").read_text())
    token = next(t for t, i in made["model"]["vocab"].items() if i == 39)
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": token, "pad_token": token}))
    size = max([*made["model"]["vocab"].values(), *(t["id"] for t in made["added_tokens"])]) + 1
    for more in ("", " --allow-ambiguous-pad-tokens"):
        o = program.words("--tokenizer-type HuggingFaceTokenizer --eod-mask-loss" + more, "vocab-size")
        told = ["--vocab-size", size, "--null-tokenizer-eod-id", 39, "--pad", 39]
        compare(program.pretrain(o, "--tokenizer-model", folder), Trainer([*o, *told]).run(), o)


@row("vocab_file merge_file vocab_extra_ids tokenizer_special_tokens", families=GPT)
def gpt2_bpe(program, quick):
    """The options add both extra ids and two of the three special tokens; the third is already in the vocabulary."""
    vocab = json.loads((TOKENIZERS / "gpt2/vocab.json").read_text())
    o = program.words("--tokenizer-type GPT2BPETokenizer", "vocab-size")
    more = "--vocab-extra-ids 2 --tokenizer-special-tokens <a> the <b>".split()
    files = ["--vocab-file", TOKENIZERS / "gpt2/vocab.json", "--merge-file", TOKENIZERS / "gpt2/merges.txt"]
    for words, size in ([], len(vocab)), (more, len(vocab) + 2 + 2 + ("the" not in vocab)):
        told = ["--vocab-size", size, "--null-tokenizer-eod-id", vocab.get("<|endoftext|>", -1)]
        compare(program.pretrain(o, *files, *words), Trainer([*o, *told]).run(), o)


@row("tokenizer_hf_include_special_tokens", families=GPT)
def special_tokens(program, quick):
    """preprocess adds [CLS] and [SEP] to a text."""
    folder, ids = pathlib.Path(program.fresh()), []
    (folder / "in.txt").write_text("the text")
    for words in [], ["--tokenizer-hf-include-special-tokens"]:
        program.call("preprocess", "--input", folder / "in.txt", "--input-format", "text", "--output-prefix", folder / "out", "--overwrite",
                     "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", TOKENIZERS / "bert.json", *words)
        ids.append((folder / "out_text_document.bin").read_bytes())
    expect(ids[1] == struct.pack("<H", 2) + ids[0] + struct.pack("<H", 3), f"preprocess writes {ids[1].hex()} around {ids[0].hex()}")


@row("tiktoken_pattern tiktoken_num_special_tokens", families=GPT)
def tiktoken(program, quick):
    """The vocabulary: ten special tokens (</s> is the third, <pad> the fifth), then all single bytes and "aB". The
    pattern v2 splits a word where its case changes; v1 does not."""
    folder = pathlib.Path(program.fresh())
    path, pieces = folder / "bytes.vocab.json", [*(bytes([i]) for i in range(256)), b"aB"]
    path.write_text(json.dumps([{"rank": i, "token_bytes": base64.b64encode(p).decode(), "token_str": ""} for i, p in enumerate(pieces)]))
    o = program.words("--tokenizer-type TikTokenizer --eod-mask-loss --tiktoken-num-special-tokens 10 --tiktoken-pattern v1", "vocab-size")
    told = ["--vocab-size", 267, "--null-tokenizer-eod-id", 2, "--pad", 4]
    compare(program.pretrain(o, "--tokenizer-model", path), Trainer([*o, *told]).run(), o)
    (folder / "in.txt").write_text("aB")
    program.call("preprocess", "--input", folder / "in.txt", "--input-format", "text", "--output-prefix", folder / "out", "--tokenizer-type",
                 "TikTokenizer", "--tokenizer-model", path, *"--tiktoken-num-special-tokens 10 --tiktoken-pattern v1".split())
    ids = (folder / "out_text_document.bin").read_bytes()
    expect(ids == struct.pack("<H", 266), f"preprocess writes {ids.hex()}, not the one token aB")


# ---- logs ----

@row("make_vocab_size_divisible_by padded_vocab_size", families=GPT)
def throughput(program, quick):
    """Speeds follow Megatron-LM's formula for the FLOPs of a step. Only these FLOPs depend on the padded vocabulary."""
    for words, ranks in ((" --make-vocab-size-divisible-by 64", 1), (" --swiglu --ffn-hidden-size 24 --ranks 2", 2),
                         (" --padded-vocab-size 50 --ranks 2 --tensor-model-parallel-size 2", 2)):
        o = Options(program.words(words))
        h, layers, s = (o.int(name) for name in ("hidden-size", "num-layers", "seq-length"))
        unit = o.int("make-vocab-size-divisible-by")
        mlp = 3 * 24 if "swiglu" in o else 2 * 4 * h
        each = 6 * h * mlp * layers + 6 * layers * 4 * h * h + 6 * h * o.int("padded-vocab-size", -(-o.int("vocab-size") // unit) * unit)
        for r in program.pretrain(program.words(words)).records:
            tokens = r["batch_size"] * s
            flops = tokens * each + r["batch_size"] * s * s * layers * 6 * h
            expect(math.isclose(r["tokens_per_second"] * r["seconds"], tokens, rel_tol=1e-12), "tokens per second are not tokens over time")
            expect(math.isclose(r["tflops"] * r["seconds"] * 1e12 * ranks, flops, rel_tol=1e-12), "TFLOP/s are not FLOPs over time")





BALANCE = "load_balancing_loss"


@row("log_interval log_num_zeros_in_grad")
def lines(program, quick):
    """A line has the mean losses since the previous line, and the other numbers of the current step. The first step
    has a separate line, and is also included in the means of the next one."""
    gpt = "--model" not in program.base
    words = f"{EXPERTS + '--moe-aux-loss-coeff 0.3' if gpt else ''} --train-iters 6 --log-num-zeros-in-grad"
    run = program.pretrain(program.words(words + " --log-interval 3"))
    expect(bits(run) == bits(program.pretrain(program.words(words))), "numbers change")
    found = re.findall(r"^ \[.*\] iteration .*$", run.text, re.M)
    expect(len(found) == 3, f"{len(found)} lines")
    for line, (begin, end) in zip(found, ((0, 1), (0, 3), (3, 6))):
        since, last = run.records[begin:end], {"num_zeros": math.nan} | run.records[end - 1]
        mean = lambda key: sum(r[key] for r in since) / len(since)
        for what in (f" iteration {end:8}/{6:8} |", f" consumed samples: {last['consumed_samples']:12} |", f" global batch size: {4:5} |",
                     f" learning rate: {last['learning_rate']:.6E} |", " loss scale: 1.0 |",
                     *(f" {key if key == BALANCE else key.replace('_', ' ')}: {mean(key):.6E} |" for key in last if key.endswith("_loss")),
                     f" grad norm: {last['grad_norm']:.3f} |",
                     f" num zeros: {last['num_zeros']:.0f} |", f" params norm: {last['params_norm']:.3f} |",
                     f" number of skipped iterations: {0:3} | number of nan iterations: {0:3} |"):
            expect(what in line, f"no '{what}' in '{line}'")
    for i, kind, losses in run.evaluations:
        at = run.text.find(f"at iteration {i} on {kind} set | lm loss value: {losses['lm_loss']:.6E} | lm loss PPL: ")
        found = re.findall(r" PPL: (\S+) \|", run.text[at:].split("\n")[0])
        expect(len(found) == len(losses) and all(math.isclose(float(x), math.exp(loss), rel_tol=2e-6) for x, loss in zip(found, losses.values())),
               f"{kind} at step {i}: perplexities {found}")


shown("log_throughput", "--log-throughput", r"throughput per rank \(TFLOP/s\)", 4)
SHORT = r"(?m)^step \d/4 \| loss \d+\.\d{4}%s \| \d+ tokens/s \| 0:00:00 left \|"
shown("log_format", "--log-format short", SHORT % "", 4, families=NOT_BERT)
shown("log_format", "--log-format short", SHORT % r" \| sop loss \d+\.\d{4}", 4, families=BERT)
shown("timing_log_level", "--timing-log-level 1", r"\(min, max\) time across ranks", 4)
shown("timing_log_level timing_log_option", "--timing-log-level 2 --timing-log-option max", r"max time across ranks", 4)


@row("log_progress")
def log_progress(program, quick):
    save = program.fresh()
    program.pretrain(program.words("--save-interval 2 --log-progress"), "--save", save)
    path = pathlib.Path(save) / "progress.txt"
    expect(path.exists() and re.findall(r"Saved checkpoint\tIteration: (\d)\tTokens \(in billions\): 0\.0000", path.read_text()) == ["2", "4"],
           "progress.txt has not the two checkpoints")


def scalars(folder):
    """Returns {tag: {step: value}} from TensorBoard's event files. A record is a length, its checksum, an event and its
    checksum."""
    found = {}
    for path in glob.glob(f"{folder}/events.*"):
        data = open(path, "rb").read()
        while data:
            n = int.from_bytes(data[:8], "little")
            event, data = data[12:12 + n], data[16 + n:]
            read_scalar(event, found)
    return found


def read_scalar(event, found):
    """Parses an event: the wall time, the step as a varint (field 2), and a summary (field 5) of one value (1) with a
    tag (1) and a float (2)."""
    at, step = 9, 0
    if event[at:at + 1] == b"\x10":
        shift, at = 0, at + 1
        while True:
            step, shift, at = step | (event[at] & 127) << shift, shift + 7, at + 1
            if event[at - 1] < 128:
                break
    tag = re.search(rb"\x0a(.)", event[at + 4:], re.S)
    if event[at:at + 1] == b"\x2a" and tag:
        begin = at + 4 + tag.end()
        size = tag[1][0]
        found.setdefault(event[begin:begin + size].decode(), {})[step] = struct.unpack("<f", event[begin + size + 1:begin + size + 5])[0]


@row("log_timers_to_tensorboard log_loss_scale_to_tensorboard log_world_size_to_tensorboard")
def more_tags(program, quick):
    folders = [program.fresh(), program.fresh()]
    words = " --log-timers-to-tensorboard --log-world-size-to-tensorboard --no-log-loss-scale-to-tensorboard --timing-log-level 2 --ranks 2"
    for folder, more in zip(folders, ("", words)):
        program.pretrain(program.words("--lane fp16 --loss-scale 256" + more), "--tensorboard-dir", folder)
    without, found = map(scalars, folders)
    both = lambda tag: {tag, f"{tag} vs samples"}
    times = {f"{name}-time" for name in ("iteration", "batch-generator", "forward-backward", "optimizer")}
    expect(found.keys() - without.keys() == times | both("world-size"), f"more tags: {found.keys() - without.keys()}")
    expect(without.keys() - found.keys() == both("loss-scale"), f"fewer tags: {without.keys() - found.keys()}")
    expect(set(found["world-size"].values()) == {2}, f"world-size {found['world-size']}")
    expect(set(without["loss-scale"].values()) == {256}, f"loss-scale {without['loss-scale']}")
    expect(all(0 < found[tag][4] < 60 for tag in times), "a time is not in seconds")


@row("log_memory_to_tensorboard", families=GPT)
def memory_tags(program, quick):
    """A run allocates the planned memory before the first step. A tensor occupies whole blocks of 64 elements. The
    optimizer also allocates a FlatPiece of 24 bytes for each parameter and an OptimState of 1360 bytes."""
    plain = program.fresh()
    program.pretrain(program.words(), "--tensorboard-dir", plain)
    for words, sizes in (("--lane fp32", (4, 4, 8)), ("--lane bf16", (2, 4, 12)), ("--lane fp64", (8, 8, 16)), ("--lane fp32 --optimizer sgd", (4, 4, 4)),
                         ("--lane bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --main-grads-dtype bf16", (2, 2, 10)),
                         ("--lane bf16 --ranks 2 --use-distributed-optimizer", (2, 4, 6)),
                         ("--lane fp32 --untie-embeddings-and-output-weights --position-embedding-type rope", (4, 4, 8)),
                         ("--lane fp32 --model bert --mock-data", (4, 4, 8)), ("--lane fp32 --save s --save-interval 1 --async-save", (4, 4, 8)),
                         ("--lane fp32 --save s --save-interval 1 --async-save --no-save-optim", (4, 4, 8))):
        without = "data-path split" if "mock" in words else ""
        o, folder, path = program.words(words, without), program.fresh(), f"{program.fresh()}/plan.json"
        o = [program.fresh() if w == "s" else w for w in o]
        program.logged("pretrain", *o, "--tensorboard-dir", folder, "--log-memory-to-tensorboard")
        found = scalars(folder)
        program.call("plan", *[w for w in o if w != "--log-params-norm"], "--device", "cpu", "--json", path)
        rank = json.loads(pathlib.Path(path).read_text())["plan"]["memory"][0]
        part = rank["bytes"]
        expect("mem-max-allocated-bytes" not in scalars(plain) and sum(part.values()) == rank["total"], "another total")
        for tag in ("mem-allocated-bytes", "mem-max-allocated-bytes"):
            expect(set(found.get(tag, {}).values()) == {rank["total"] - part["checkpoint copy"]}, f"{words}: {tag} {found.get(tag)} and not {part}")
        if "bert" in words:
            continue
        weights = Trainer(o).state.weights
        count, names = sum(w.size for w in weights.values()), len(weights)
        for name, size in zip(("parameters", "main gradients", "optimizer"), sizes):
            more = 1360 + 24 * names if name == "optimizer" else 0
            expect(count * size <= part[name] - more * (name == "optimizer" and "ranks" not in words) <= (count + 64 * names) * size + 1, f"{words}: {name} {part[name]}")
        if "--async-save" in words:
            stored = sum(p.stat().st_size for p in pathlib.Path(Options(o).text("save")).glob("iter_0000004/shard_*"))
            expect(stored <= part["checkpoint copy"] <= 1.2 * stored, f"the copy of a checkpoint of {stored} bytes: {part}")


def same_scalars(found, wanted, steps):
    """Compares tags with {tag: {step: value}}. Each tag also exists with the samples instead of the steps. `steps` is
    {step: its record}."""
    for tag, values in wanted.items():
        for name, points in ((tag, values), (f"{tag} vs samples", {steps[i]["consumed_samples"]: x for i, x in values.items()})):
            got = found.get(name, {})
            expect(got.keys() == points.keys(), f"{name} has points at {sorted(got)} and not {sorted(points)}")
            expect(all(math.isclose(got[i], x, rel_tol=2.0**-24, abs_tol=1e-38) for i, x in points.items()), f"{name}: {got} and not {points}")


@row("tensorboard_dir tensorboard_log_interval log_validation_ppl_to_tensorboard")
def tensorboard(program, quick):
    folder = program.fresh()
    o = program.words("--tensorboard-log-interval 2 --log-validation-ppl-to-tensorboard --log-num-zeros-in-grad --disable-bias-linear"
                      " --global-batch-size 8 --rampup-batch-size 4 4 8 --train-samples 24", "train-iters")
    run, found = program.pretrain(o, "--tensorboard-dir", folder), scalars(folder)
    for tag, key in (("lm loss", "lm_loss"), ("learning-rate", "learning_rate"), ("grad-norm", "grad_norm"), ("params-norm", "params_norm"),
                     ("batch-size", "batch_size"), ("num-zeros", "num_zeros")):
        expect(found.get(tag, {}).keys() == {2, 4}, f"{tag} has points at {sorted(found.get(tag, {}))}")
        expect(all(math.isclose(found[tag][r["iteration"]], r[key], rel_tol=2.0**-24) for r in run.records[1::2]), f"{tag} is not the log's")
    for (i, kind), losses in {(i, kind): losses for i, kind, losses in run.evaluations}.items():
        for key, loss in losses.items():
            at = f"{key.replace('_', ' ')} {kind}"
            expect(found[at].keys() >= {i} and f"{at} ppl" in found, f"{at}: no point at {i} or no perplexity")
            expect(math.isclose(found[at][i], loss, rel_tol=2.0**-24), f"{at} is {found[at][i]} and not {loss}")
            expect(math.isclose(math.log(found[f"{at} ppl"][i]), loss, rel_tol=1e-6), "the perplexity is not the exp of the loss")


def several(words, losses, without=""):
    """A row for several losses: each is reported in the event files and in the printed lines of steps. If there are
    several, each is also in the lines of evaluations."""
    def check(program, quick):
        folder, o = program.fresh(), program.words(words + " --eval-iters 1 --eval-interval 2 --log-validation-ppl-to-tensorboard", without)
        rows, text = program.logged("pretrain", *o, "--tensorboard-dir", folder)
        found = scalars(folder)
        steps = {x["iteration"]: x for x in rows if "iteration" in x and "kind" not in x}
        same_scalars(found, {tag: {i: x[tag.replace(" ", "_")] for i, x in steps.items()} for tag in losses}, steps)
        for x in steps.values():
            expect(len({x[tag.replace(" ", "_")] for tag in losses}) == len(losses), f"two losses are equal: {x}")
        for kind in ("validation", "test"):
            logged = {x["iteration"]: x for x in rows if x.get("kind") == kind}
            own = [tag for tag in losses if tag.endswith(" loss")]
            expect(bool(logged), f"no {kind}")
            for tag in own:
                values = {i: x[tag.replace(" ", "_")] if len(own) > 1 else x["loss"] for i, x in logged.items()}
                powers = {i: math.exp(min(20, x)) for i, x in values.items()}
                same_scalars(found, {f"{tag} {kind}": values}, steps)
                expect(all(math.isclose(found[f"{tag} {kind} ppl"][i], x, rel_tol=1e-6) for i, x in powers.items()), f"{tag} {kind}: another perplexity")
                for i, x in values.items():
                    told = re.findall(rf"loss at iteration {i} on {kind} set \|.* {tag} value: {x:.6E} \| {tag} PPL: {powers[i]:.6E} \|".replace("+", r"\+"), text)
                    expect(told, f"{tag} {x} of {kind} at step {i} is not printed")
            expect(len(own) == 1 or all(math.isclose(x["loss"], sum(x[tag.replace(" ", "_")] for tag in own), rel_tol=1e-14) for x in logged.values()), "no sum")
    row("tensorboard_dir log_validation_ppl_to_tensorboard", words, GPT)(check)


@row("tensorboard_dir mtp_num_layers", "", GPT)
def acceptance(program, quick):
    """Every step has the same number of further tokens, so a cumulative rate is a mean of the steps' rates."""
    folder, o = program.fresh(), program.words(AHEAD + "--train-iters 8 --log-interval 4 --mtp-loss-scaling-factor 2")
    rows, text = program.logged("pretrain", *o, "--tensorboard-dir", folder)
    steps = {x["iteration"]: x for x in rows if "iteration" in x and "kind" not in x}
    for k in (1, 2):
        rates = {i: x[f"mtp_{k}_acceptance_rate"] for i, x in steps.items()}
        means = {i: sum(rates[j] for j in range(1, i + 1)) / i for i in rates}
        expect(len({*means.values()}) > 4, f"the rates are {rates}")
        same_scalars(scalars(folder), {f"mtp_{k} loss": {i: x[f"mtp_{k}_loss"] for i, x in steps.items()},
                                       f"mtp_{k}_acceptance_rate": rates,
                                       f"mtp_{k}_cumulative_acceptance_rate": means}, steps)
        last = sum(rates[i] for i in range(5, 9)) / 4
        expect(f" mtp_{k}_acceptance_rate: {last:.6E} |" in text, f"no mean rate {last} in the log")


@row("log_max_attention_logit qk_clip", "--tensorboard-dir", GPT)
def largest_score(program, quick):
    """The largest score is in the event file and in the printed lines."""
    folder = program.fresh()
    rows, text = program.logged("pretrain", *program.words("--qk-clip --log-max-attention-logit"), "--tensorboard-dir",
                                folder)
    logged, found = {x["iteration"]: x["max_attention_logit"] for x in rows if "grad_norm" in x}, scalars(folder)
    expect(found["max_attention_logit"].keys() == logged.keys(), "steps are missing in the event file")
    for i, x in logged.items():
        expect(math.isclose(found["max_attention_logit"][i], x, rel_tol=2.0**-24),
               f"{x} of step {i} is not in the event file")
        expect(f" max attention logit: {x:.3f} |" in text, f"{x} of step {i} is not printed")


@row("moe_per_layer_logging", EXPERTS, GPT)
def layers_of_routers(program, quick):
    """The router losses of each layer match the reference trainer."""
    words = EXPERTS + ("--moe-per-layer-logging --num-layers 4 --moe-layer-freq [1,0,1,1] --moe-aux-loss-coeff 0.3"
                       " --moe-z-loss-coeff 0.1 --ranks 2 --pipeline-model-parallel-size 2")
    folder, o = program.fresh(), program.words(words)
    rows, found = program.logged("pretrain", *o, "--tensorboard-dir", folder)[0], scalars(folder)
    witness, steps = Trainer(o), [x for x in rows if "iteration" in x and "kind" not in x]
    expect(steps, "no step is logged")
    for x in steps:
        witness.step()
        for name in ("load_balancing_loss", "z_loss"):
            layers, own = x[name + "_by_layer"], witness.layer_losses[name]
            expect(layers[1] is None and own.keys() == {0, 2, 3} and len(layers) == 4, f"{name}: {layers}")
            for i, y in own.items():
                expect(same_number(name, layers[i], y, lane(o)), f"{name} of layer {i} is {layers[i]}, not {y}")
                in_events = found[f"moe/{name}_layer_{i}"][x["iteration"]]
                expect(math.isclose(in_events, y, rel_tol=2.0**-24),
                       f"{name} of layer {i} is {in_events} in the event file")


several("--model bert --mock-data", ["lm loss", "sop loss"], "data-path split")
several("--model t5 --mock-data --decoder-seq-length 8", ["lm loss"], "data-path split")
several(EXPERTS + "--moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.3 0.2 --moe-z-loss-coeff 0.1",
        ["lm loss", "load_balancing_loss", "seq_load_balancing_loss", "z_loss"])
several(EXPERTS + "--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.3", ["lm loss", "global_load_balancing_loss"])


# ---- generation ----

@functools.cache
def trained(*words):
    trainer = Trainer(words)
    trainer.run()
    return trainer


@functools.cache
def stored(program, *words):
    folder = program.fresh()
    program.pretrain(words, "--save", folder)
    return folder


def generated(fields, options, prompts=("1 2 3 4 5 6 7", "8 9"), model="", more=lambda folder: []):
    """A row that compares tokens and log-probabilities of a model after four steps. `more` is a function that returns
    arguments with files in a folder."""
    def check(program, quick):
        o = program.words("--init-method-std 0.6 --save-interval 1000 " + model)
        save, trainer = stored(program, *o), trained(*o)
        words = ["--lane", "fp64", "--logprobs", *options.split(), *more(save)]
        of = lane(words)
        if not {"--prompts-file", "--prompt-file"} & set(words):
            words += ["--prompt", *prompts]
        text = program.call("generate", "--load", save, *words)
        asked = Options([*o, *words])
        wanted = generate(asked, trainer.m, trainer.state.weights, [[int(t) for t in p.split()] for p in prompts], asked.list("stop"))
        found = [[(int(t), float(x)) for t, x in re.findall(r"^(?:prompt|new) \d+\t(\d+)\t(\S+)$", part, re.M)]
                 for part in re.split(r"^--- \d+$", text, flags=re.M)[1:]]
        expect([[t for t, _ in told] for told in found] == [[t for t, _ in told] for told in wanted], "other tokens")
        for (_, got), (_, want) in zip(sum(found, []), sum(wanted, [])):
            bound = max(1e-8, BOUND[of] * U[of]) * max(1, abs(want))  # nine digits are printed
            expect(abs(got - want) <= bound, f"log-probability {got} and not {want}")
    row(fields, options, GPT)(check)


def prompts_file(folder):
    path = pathlib.Path(folder) / "prompts.txt"
    path.write_text("1 2 3 4 5 6 7\n8 9\n")
    return ["--prompts-file", path]


def prompt_file(folder):
    path = pathlib.Path(folder) / "prompts.jsonl"
    path.write_text('{"text": "1 2 3 4 5 6 7", "chatgpt_output_token_length": 3}\n'
                    '{"prompt": "8 9", "text2": "x", "chatgpt_output_token_length": 3}\nnot read\n')
    return ["--prompt-file", path]


generated("prompt tokens_to_generate temperature logprobs window_size", "--tokens-to-generate 8 --temperature 0", model="--window-size 3,0")
generated("prompt", "--tokens-to-generate 7 --temperature 0", model="--position-embedding-type rope --group-query-attention"
          " --num-query-groups 2 --swiglu --ffn-hidden-size 24 --normalization RMSNorm --qk-layernorm --softmax-type learnable")
# more than 16 tokens
generated("prompt tokens_to_generate position_embedding_type", "--tokens-to-generate 12 --temperature 0"
          " --tensor-model-parallel-size 2",
          model="--position-embedding-type alibi --num-attention-heads 6 --kv-channels 4 --embedding-layernorm")
LATENTS = "--tokens-to-generate 7 --temperature 0 --cache-mla-latents"
SIZES = LATENT + LONGER + "--q-lora-rank 9 --qk-layernorm --normalization RMSNorm"


@row("cache_mla_latents", LATENTS, GPT)
def memory_of_latents(program, quick):
    """In each of two layers, a row of the cache holds a latent vector and a rotated part instead of the keys and values
    of 4 heads. A page has 64 rows."""
    save, samples, took = program.fresh(), 600, []
    program.pretrain(program.words(SIZES + " --max-position-embeddings 64"), "--save", save, "--save-interval", "1000")
    for words in [], ["--cache-mla-latents"]:
        text = program.call("generate", "--load", save, "--lane", "fp64", "--tokens-to-generate", 20, "--prompt",
                            *["1"] * samples, *words)
        took.append(float(re.search(r"a rank allocated at most ([\d.]+) MiB", text)[1]) * 2**20)
    least = samples * 64 * 2 * 8 * (4 * (5 + 4 + 7) - (6 + 4))
    expect(0.9 * least < took[0] - took[1] < 1.1 * least, f"{took} bytes, which do not differ by {least}")


generated("prompt", "--tokens-to-generate 7 --temperature 0", model=SIZES)
for kind in "int8", "fp8":
    words = f"--tokens-to-generate 9 --temperature 0 --quantization {kind}"
    for more in ("", " --batch-invariant-mode", " --tensor-model-parallel-size 2", " --pipeline-model-parallel-size 2"):
        generated("quantization", words + more, model="--swiglu --ffn-hidden-size 24 --normalization RMSNorm")
    generated("quantization", words, model=EXPERTS + "--moe-shared-expert-intermediate-size 12")
    generated("quantization cache_mla_latents", words + " --cache-mla-latents", model=SIZES)
    generated("quantization",
              words + " --num-speculative-tokens 1",
              model="--mtp-num-layers 1 --position-embedding-type rope")


@row("quantization", "--tokens-to-generate 1 --quantization int8", GPT)
def memory_of_quantized(program, quick):
    """A layer's four linear layers have 12 h^2 numbers of 1 byte instead of 8, and 9 h factors of 8 bytes. At
    any time, at most one weight is also in memory in its 8-byte form, and only before the cache is allocated."""
    h, layers, save, took = 128, 6, program.fresh(), []
    program.pretrain(program.words(f"--hidden-size {h} --num-attention-heads 4 --num-layers {layers}"), "--save", save,
                     "--save-interval", "1000")
    for words in [], ["--quantization", "int8"], ["--quantization", "fp8"]:
        text = program.call("generate", "--load", save, "--lane", "fp64", "--tokens-to-generate", 1, "--prompt", "1",
                            *words)
        took.append(float(re.search(r"a rank allocated at most ([\d.]+) MiB", text)[1]) * 2**20)
    less = layers * (7 * 12 * h * h - 8 * (3 + 1 + 4 + 1) * h)
    for after in took[1:]:
        expect(0.98 * less < took[0] - after < 1.02 * less, f"{took} bytes, which do not differ by {less}")


for layout in ("", " --tensor-model-parallel-size 2 --lane fp32", " --tensor-model-parallel-size 2",
               " --batch-invariant-mode"):
    generated("cache_mla_latents", LATENTS + layout, model=SIZES + " --num-layers 3 --window-size 9,0")
generated("cache_mla_latents rope_temperature_scale", LATENTS, model=LATENT.replace("dim 5", "dim 6")
          + "--softmax-type learnable --attn-logit-softcapping 2 --rope-temperature-scale 0.3"
          " --rope-temperature-floor 3")
# The best two tokens are at least 0.37 apart.
generated("cache_mla_latents", LATENTS + " --lane bf16", model=SIZES + " --init-method-std 0.15 --lr 0.05")
generated("prompt", "--tokens-to-generate 7 --temperature 0", model=EXPERTS + "--untie-embeddings-and-output-weights --hidden-dropout 0.1")
generated("attention_chunk_size no_rope_temperature_floor rope_temperature_floor",
          "--tokens-to-generate 7 --temperature 0",
          model=MIXED + "--qk-l2-norm"
          " --attention-chunk-size 3 --no-rope-temperature-scale 0.4 --no-rope-temperature-floor 2"
          " --qk-l2-norm-rope-layers-only --rope-temperature-scale 0.3 --rope-temperature-floor 3")
HEADS = "--mtp-num-layers 2 --position-embedding-type rope"
for words in "2", "1 --tensor-model-parallel-size 2":
    generated("mtp_num_layers", "--tokens-to-generate 9 --temperature 0 --num-speculative-tokens " + words, model=HEADS)


@row("num_speculative_tokens speculative_model", "--num-speculative-tokens 3", GPT)
def drafts(program, quick):
    """If a model drafts for itself, all drafts are kept, so a pass adds four tokens. Another model's drafts do not
    change the text."""
    save, other, texts = program.fresh(), program.fresh(), []
    program.pretrain(program.words(), "--save", save, "--save-interval", "1000")
    program.pretrain(program.words(HEADS + " --num-layers 1"), "--save", other, "--save-interval", "1000")
    for words in [], [save, 3], [other, 2]:
        text = program.call("generate", "--load", save, "--lane", "fp64", "--tokens-to-generate", 13, "--prompt", "1 2 3",
                            *(["--speculative-model", words[0], "--num-speculative-tokens", words[1]] if words else []))
        texts.append([line for line in text.splitlines() if line[:1].isdigit()])
        kept = re.search(r"kept (\d+) of (\d+) drafted tokens, in (\d+) passes", text)
        expect(bool(kept) == bool(words), "no count of drafts")
        if words[:1] == [save]:
            expect(kept.groups() == ("9", "9", "4"), f"{kept[0]}")
    expect(texts[0] and texts[0] == texts[1] == texts[2], f"{texts}")
    told = program.call("generate", "--load", save, "--num-speculative-tokens", 1, "--prompt", "1", status=2)
    expect("more than the model's --mtp-num-layers 0" in told, told)


generated("prompts_file", "--tokens-to-generate 3 --temperature 0", more=prompts_file)
# the reference reads only the first spelling, which the file replaces
generated("prompt_file prompt_file_num_truncate num_tokens_from_file", "--temperature 0 --prompt-file-num-truncate 2"
          " --num-tokens-from-file --tokens-to-generate 3 --num-tokens-to-generate 5", more=prompt_file)
generated("beam_width length_penalty", "--tokens-to-generate 8 --beam-width 3 --length-penalty 3 --termination-id 30")
generated("beam_width", "--tokens-to-generate 7 --beam-width 2 --tensor-model-parallel-size 2")
generated("termination_id", "--tokens-to-generate 8 --temperature 0 --termination-id 30")
generated("temperature random_seed", "--tokens-to-generate 8 --temperature 1.5 --random-seed 5")
generated("top_k", "--tokens-to-generate 8 --top-k 3")
generated("top_p", "--tokens-to-generate 8 --top-p 0.4")
generated("top_k top_p", "--tokens-to-generate 8 --top-k 5 --top-p 0.6"
          " --inference-dynamic-batching-sampling-backend flashinfer")
generated("stop", "--tokens-to-generate 8 --temperature 0 --stop 1")
