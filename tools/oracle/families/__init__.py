"""The Hugging Face model types that the oracle supports. Each type has a module with the following members:

CASES         golden cases: name -> (Megatron-LM options, {init: type of the initial weights, mask: whether there is a
              loss mask})
config(o)     the type's config.json for Megatron-LM options
expert_names  (optional) names of an expert's block, gate, up and down projection in files
packed        (optional) True if files have all experts in one tensor
on_disk(w)    (optional) weights in memory -> weights with the names and shapes that save_pretrained writes
llama(w, o)   (optional) weights on disk -> the same under Llama's names and in its layout, for the witness
centred(w)    (optional) weights on disk -> the same with w instead of 1 + w, for gains that files contain as 1 + w
file_names    (optional) names in files of tensors that have other names in the model
model(o), batches(o, rng, tokens), losses(model, batch), witness(o, init, batch)
              (optional, together) a model that is not a decoder (see t5.py)
BASE          config.json of a small model, and SPELLINGS: name -> keys to change. A "!" before a name means that
              transformers has the model and Isotron does not
"""
import importlib

NAMES = """gpt2 llama mistral qwen2 qwen3 stablelm nemotron mixtral qwen2_moe qwen3_moe glm4_moe deepseek_v2
  deepseek_v3 starcoder2 granite gemma2 gemma3_text gpt_neox falcon olmo2 phi3 arcee seed_oss smollm3 glm glm4 helium
  ernie4_5 gemma exaone4 olmo3 flex_olmo dots1 minimax_m2 granitemoe granitemoeshared ministral ministral3 vaultgemma
  gpt_oss llama4_text cohere cohere2 olmoe phi phimoe opt glm4_moe_lite solar_open exaone_moe jais2 internlm3 olmo
  iquestcoder exaone persimmon youtu granitemoehybrid gpt_bigcode biogpt gpt_neo hyperclovax hunyuan_v1_dense
  hunyuan_v1_moe gptj ernie4_5_moe bloom mpt cwm apertus mamba2 nemotron_h bamba qwen3_next qwen3_5_text
  qwen3_5_moe_text bert megatron_bert roberta t5 mt5""".split()
FAMILIES = {name: importlib.import_module(f"families.{name}") for name in NAMES}
CASES = {case: (family, *what) for family, module in FAMILIES.items() for case, what in module.CASES.items()}
