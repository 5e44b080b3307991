"""Rows of options for Mamba-2 layers that Megatron-LM lacks."""
from rows import MAMBA, MAMBA_LAYOUTS
from table import GPT, ONE, witnessed

witnessed("mamba_dt_min", MAMBA + "--num-layers 2 --hybrid-layer-pattern MM --mamba-dt-min 0.01", families=GPT,
          layouts=(ONE, MAMBA_LAYOUTS[1]))
