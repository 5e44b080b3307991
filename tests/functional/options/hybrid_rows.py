"""Rows of options for models with Mamba-2 layers."""
from rows import MAMBA, MAMBA_LAYOUTS
from table import FP8, GPT, ONE, STAGES, rounded, witnessed

witnessed("mamba_dt_min", MAMBA + "--num-layers 2 --hybrid-layer-pattern MM --mamba-dt-min 0.01", families=GPT,
          layouts=(ONE, MAMBA_LAYOUTS[1]))
MIXED = MAMBA + "--num-layers 4 --hybrid-layer-pattern M-M* --normalization RMSNorm "
SCALED = MIXED + "--use-mup --mup-base-hidden-size 4 --adam-eps 1e-3 "
witnessed("use_mup mup_base_hidden_size", SCALED, families=GPT, layouts=(ONE, MAMBA_LAYOUTS[1], STAGES))
witnessed("use_mup", SCALED + "--optimizer sgd --sgd-momentum 0.5", families=GPT, layouts=(ONE,))
MUON = MIXED + "--optimizer muon --lr 1e-3 --weight-decay 0.1 "
witnessed("optimizer", MUON, families=GPT, steps=4, layouts=(ONE, MAMBA_LAYOUTS[1], STAGES))
witnessed("optimizer muon_tp_mode", MUON + "--muon-tp-mode blockwise", families=GPT, steps=4,
          layouts=(MAMBA_LAYOUTS[1],), witness="--tensor-model-parallel-size 2")
witnessed("optimizer muon_tp_mode", MUON + "--muon-tp-mode distributed", families=GPT, steps=4,
          layouts=(MAMBA_LAYOUTS[1],))
witnessed("optimizer use_mup", MUON + "--use-mup --mup-base-hidden-size 4 --untie-embeddings-and-output-weights",
          families=GPT, layouts=(ONE,))
witnessed("optimizer use_mup muon_scalar_optimizer", families=GPT, layouts=(ONE,),
          words=MUON + "--use-mup --mup-base-hidden-size 4 --muon-scalar-optimizer lion")
# all linear layers are in_proj or out_proj
rounded("fp8_format", MAMBA + FP8 + "--hybrid-layer-pattern MMM", families=GPT,
        like="--num-layers 3 --lane fp32 --lr 1e-3 --hybrid-layer-pattern MMM " + MAMBA)
AHEAD = MAMBA + "--num-layers 4 --normalization RMSNorm --hidden-dropout 0.1 --mtp-loss-scaling-factor 0.7 "
witnessed("hybrid_layer_pattern mtp_num_layers", AHEAD + "--hybrid-layer-pattern M-M*/M*-/M*-", families=GPT,
          layouts=(ONE, MAMBA_LAYOUTS[1], STAGES, *MAMBA_LAYOUTS[5:7]))
witnessed("hybrid_layer_pattern mtp_num_layers mtp_use_repeated_layer", families=GPT, layouts=(ONE, STAGES),
          words=AHEAD + "--hybrid-layer-pattern M|-|M|*/MM/MM --mtp-num-layers 2 --mtp-use-repeated-layer")
witnessed("hybrid_layer_pattern num_experts", families=GPT, layouts=(ONE, "--ranks 2 --expert-model-parallel-size 2"),
          words=AHEAD + "--hybrid-layer-pattern M-M*/E- --num-experts 4 --moe-aux-loss-coeff 0.3")
