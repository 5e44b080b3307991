"""VaultGemma: Gemma 2 with norms only at the inputs of attention and MLP."""
from families import gemma2
from families.decoder import FEW, FULL, MISSING, SLIDING

CASES = {}
BASE = gemma2.BASE
SPELLINGS = {name: keys for name, keys in FEW.items() if name != "gelu"} | {
    "list": {"layer_types": [FULL, SLIDING, SLIDING]},
    "no caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "scale by default": {"query_pre_attn_scalar": MISSING},
}
