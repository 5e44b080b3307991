#include "ckpt/hf_type.h"

#include <string.h>

#define RMS "rms_norm_eps"

/* name, class, key of the epsilon, tensors, windows, partial rotary; epsilon, theta, rotated part, key and
 * value heads, head size, window */
const HfType HF_TYPE[HF_TYPES] = {
    [TYPE_GPT2] = {"gpt2", "GPT2LMHeadModel", "layer_norm_epsilon", HF_GPT2, HF_WINDOWS_NONE, false, 1e-5, 0,
                   0, 0, 0, 0},
    [TYPE_LLAMA] = {"llama", "LlamaForCausalLM", RMS, HF_LLAMA, HF_WINDOWS_NONE, false, 1e-6, 1e4, 1, 0, 0,
                    0},
    [TYPE_MISTRAL] = {"mistral", "MistralForCausalLM", RMS, HF_LLAMA, HF_WINDOWS_ALL, false, 1e-6, 1e4, 1, 8,
                      0, 4096},
    [TYPE_QWEN2] = {"qwen2", "Qwen2ForCausalLM", RMS, HF_LLAMA, HF_WINDOWS_LATE, false, 1e-6, 1e4, 1, 32, 0,
                    4096},
    [TYPE_QWEN3] = {"qwen3", "Qwen3ForCausalLM", RMS, HF_LLAMA, HF_WINDOWS_LATE, false, 1e-6, 1e4, 1, 32, 128,
                    4096},
    [TYPE_STABLELM] = {"stablelm", "StableLmForCausalLM", "layer_norm_eps", HF_LLAMA, HF_WINDOWS_NONE, true,
                       1e-5, 1e4, 0.25, 32, 0, 0},
    [TYPE_NEMOTRON] = {"nemotron", "NemotronForCausalLM", "norm_eps", HF_LLAMA, HF_WINDOWS_NONE, true, 1e-5,
                       1e4, 0.5, 0, 0, 0},
    [TYPE_MIXTRAL] = {"mixtral", "MixtralForCausalLM", RMS, HF_MIXTRAL, HF_WINDOWS_ALL, false, 1e-5, 1e6, 1,
                      8, 0, 0},
    [TYPE_QWEN2_MOE] = {"qwen2_moe", "Qwen2MoeForCausalLM", RMS, HF_QWEN_MOE, HF_WINDOWS_EVEN, false, 1e-6,
                        1e4, 1, 16, 0, 4096},
    [TYPE_QWEN3_MOE] = {"qwen3_moe", "Qwen3MoeForCausalLM", RMS, HF_QWEN_MOE, HF_WINDOWS_SWITCHED, false,
                        1e-6, 1e4, 1, 4, 0, 4096},
    [TYPE_GLM4_MOE] = {"glm4_moe", "Glm4MoeForCausalLM", RMS, HF_GLM_MOE, HF_WINDOWS_NONE, true, 1e-5, 1e4,
                       0.5, 8, 0, 0},
};

const HfType *hf_type_find(const char *name) {
    for (int i = 0; i < HF_TYPES; i++)
        if (!strcmp(HF_TYPE[i].name, name)) return &HF_TYPE[i];
    return NULL;
}

void hf_type_names(Str *out) {
    for (int i = 0; i < HF_TYPES; i++)
        str_printf(out, "%s%s", i == 0 ? "" : i + 1 < HF_TYPES ? ", " : " and ", HF_TYPE[i].name);
}
