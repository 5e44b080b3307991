"""Rows of options for Gated DeltaNet, and for the gate of attention."""
from rows import GATHER, LATENT, RING
from table import BF16, CUT, FP8, GPT, ONE, STAGES, rounded, witnessed

# The epsilon bounds the amplification of small outputs.
DELTA = ("--linear-key-head-dim 3 --linear-value-head-dim 5 --linear-num-key-heads 2 --linear-num-value-heads 4"
         " --position-embedding-type rope --norm-epsilon 0.01 ")
GDN = "--experimental-attention-variant gdn --linear-attention-freq 2 " + DELTA
LAYOUTS = (ONE, "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel", STAGES,
           "--ranks 2 --tensor-model-parallel-size 2", "--ranks 2 --use-megatron-fsdp", CUT,
           "--ranks 4 --context-parallel-size 4", "--ranks 4 --context-parallel-size 2 --use-megatron-fsdp")
witnessed("experimental_attention_variant linear_attention_freq linear_key_head_dim linear_value_head_dim"
          " linear_num_key_heads linear_num_value_heads attention_output_gate", layouts=LAYOUTS, families=GPT,
          words=GDN + "--num-layers 4 --attention-output-gate --normalization RMSNorm --apply-layernorm-1p --swiglu"
          " --ffn-hidden-size 24")
witnessed("linear_attention_freq linear_conv_kernel_dim",
          GDN.replace("gdn", "gated_delta_net").replace("-freq 2", "-freq [1,0]") + "--linear-conv-kernel-dim 3"
          " --linear-num-value-heads 6 --weight-decay 0.1 --num-experts 4", families=GPT,
          layouts=(ONE, LAYOUTS[4], "--ranks 2 --expert-model-parallel-size 2"))
witnessed("hybrid_layer_pattern", DELTA + "--num-layers 4 --hybrid-layer-pattern G|M|*|G --mamba-head-dim 4"
          " --mamba-state-dim 5 --mamba-num-groups 2 --init-method-std 0.1", families=GPT, layouts=(ONE, STAGES, CUT))
witnessed("reset_attention_mask", GDN + "--reset-attention-mask --num-layers 3", families=GPT,
          layouts=(ONE, "--ranks 2 --tensor-model-parallel-size 2", *LAYOUTS[5:]))
witnessed("mtp_num_layers", GDN.replace("freq 2", "freq [0,1]") + "--mtp-num-layers 1", families=GPT,
          layouts=(ONE, *LAYOUTS[3:5]))
witnessed("multi_latent_attention", GDN + LATENT, families=GPT, layouts=(ONE, LAYOUTS[3]))
GATE = "--position-embedding-type rope --attention-output-gate "
witnessed("attention_output_gate", GATE + "--attention-dropout 0.2", families=GPT,
          layouts=(ONE, CUT, STAGES, RING, GATHER))
witnessed("attention_output_gate", GATE + "--group-query-attention --num-query-groups 1 --qk-layernorm"
          " --recompute-granularity selective", families=GPT, layouts=(ONE, CUT))
witnessed("attention_output_gate qk_layernorm_whole",
          GATE + "--group-query-attention --num-query-groups 1 --qk-layernorm --qk-layernorm-whole", families=GPT,
          layouts=(ONE, CUT))
witnessed("attention_output_gate qk_clip", GATE + "--qk-clip --qk-clip-threshold 0.1 --group-query-attention"
          " --num-query-groups 2", families=GPT, layouts=(ONE, CUT))
MUON = GDN + "--attention-output-gate --optimizer muon --lr 1e-3 --weight-decay 0.1 "
witnessed("optimizer", MUON, families=GPT, steps=4, layouts=(ONE, LAYOUTS[1], STAGES))
witnessed("optimizer muon_tp_mode", MUON + "--muon-tp-mode blockwise", families=GPT, steps=4, layouts=(LAYOUTS[1],),
          witness="--tensor-model-parallel-size 2")
witnessed("optimizer muon_split_qkv", MUON + "--muon-no-split-qkv", families=GPT, steps=4, layouts=(ONE, LAYOUTS[1]))
witnessed("use_mup mup_base_hidden_size", GDN + "--use-mup --mup-base-hidden-size 4 --adam-eps 1e-3", families=GPT,
          layouts=(ONE, LAYOUTS[1], STAGES))
# all linear layers are in_proj or out_proj
COARSE = DELTA + "--norm-epsilon 0.5 --hybrid-layer-pattern GGG "
rounded("fp8_format", COARSE + FP8, families=GPT, like=COARSE + "--num-layers 3 --lane fp32 --lr 1e-3")
rounded("experimental_attention_variant", BF16 + GDN, like=BF16 + DELTA, families=GPT)
witnessed("hybrid_layer_pattern mtp_num_layers", families=GPT, layouts=(ONE, STAGES, CUT),
          words=DELTA + "--num-layers 4 --hybrid-layer-pattern G-*G/*G --init-method-std 0.2")
