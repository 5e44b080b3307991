"""The language model of Qwen3.5 with experts. Its rotation has three positions, which are equal for text."""
from families.qwen3_next import ATTENTION, BASE as NEXT

CASES = {}
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5,
                                "mrope_section": [1, 1, 0], "mrope_interleaved": True}}
BASE = {key: value for key, value in NEXT.items() if key != "intermediate_size"}
SPELLINGS = ATTENTION | {"sections": SECTIONS, "width that is not read": {"intermediate_size": 9}}
