/* The model types of Hugging Face that convert reads and writes, and what tells them apart in config.json:
 * which keys transformers honours for a type, and what a missing key means there. Source: transformers 5.23,
 * models/<type>/configuration_<type>.py (defaults) and modeling_<type>.py (what is read). */
#ifndef ISOTRON_CKPT_HF_TYPE_H
#define ISOTRON_CKPT_HF_TYPE_H

#include "base/str.h"
#include "ckpt/hf.h"

typedef enum HfTypeId {
    TYPE_GPT2,
    TYPE_LLAMA,
    TYPE_MISTRAL,
    TYPE_QWEN2,
    TYPE_QWEN3,
    TYPE_STABLELM,
    TYPE_NEMOTRON,
    TYPE_MIXTRAL, /* from here on mixtures of experts */
    TYPE_QWEN2_MOE,
    TYPE_QWEN3_MOE,
    TYPE_GLM4_MOE,
    HF_TYPES
} HfTypeId;

/* Which layers have a sliding window. */
typedef enum HfWindows {
    HF_WINDOWS_NONE,
    HF_WINDOWS_ALL,      /* all, if sliding_window is a number */
    HF_WINDOWS_SWITCHED, /* all, if use_sliding_window too */
    HF_WINDOWS_LATE,     /* if use_sliding_window: those of layer_types, else from max_window_layers on */
    HF_WINDOWS_EVEN, /* if use_sliding_window: those of layer_types, else 0, 2, ... below max_window_layers */
} HfWindows;

typedef struct HfType {
    const char *name, *architecture, *eps_key;
    HfFamily family; /* of the tensors' names */
    HfWindows windows;
    bool partial_rotary; /* honours partial_rotary_factor */
    /* Defaults of keys that are missing. */
    double eps, theta, rotated;
    int64_t kv_heads, head_dim; /* 0: as many as heads; hidden_size / heads */
    int64_t window;             /* 0: none */
} HfType;

extern const HfType HF_TYPE[HF_TYPES];

/* NULL if there is none of that name. */
const HfType *hf_type_find(const char *name);
static inline HfTypeId hf_type_id(const HfType *t) { return (HfTypeId)(t - HF_TYPE); }
static inline bool hf_type_has_experts(const HfType *t) { return hf_type_id(t) >= TYPE_MIXTRAL; }
/* Whether layer_types decides which layers have a window. */
static inline bool hf_type_reads_layers(const HfType *t) { return t->windows >= HF_WINDOWS_LATE; }
/* "gpt2, llama, ... and glm4_moe" */
void hf_type_names(Str *out);

#endif
