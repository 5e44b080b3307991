"""The language model of a dense Qwen3.5."""
from families.decoder import SIZES
from families.qwen3_5_moe_text import SECTIONS
from families.qwen3_next import ATTENTION, DELTA

CASES = {}
BASE = SIZES | DELTA
SPELLINGS = ATTENTION | {"sections": SECTIONS}
