/* The tensors of a Hugging Face model, with the names and shapes of transformers' save_pretrained, in terms
 * of the parameter registry. ckpt/hf/names.def has a row for each name. Sources: transformers
 * models/gpt2/modeling_gpt2.py and models/llama/modeling_llama.py; Megatron-LM's row order of linear_qkv and
 * linear_fc1 is in param.h. */
#pragma once

#include "ckpt/safetensors.h"
#include "param/param.h"

typedef enum HfFamily {
#define FAMILY(constant, ...) HF_##constant,
#define MAP(...)
#include "ckpt/hf/names.def"
    HF_FAMILIES
} HfFamily;

/* The order of a parameter's rows in a tensor: names.def. */
typedef enum HfLayout { OUT_IN, IN_OUT, BY_GROUP, AFTER_PADDING } HfLayout;

/* RoBERTa counts positions from 1 + the id of its padding token, which is 1. */
enum { HF_ALL_PARTS = -1, HF_ALL_GROUPS = -1, HF_PADDING_TOKEN = 1, HF_PADDING_ROWS = HF_PADDING_TOKEN + 1 };

typedef struct HfTensor {
    const char *name;
    int ndim;
    int64_t dim[2];
    const Param *param;
    int part;        /* of the parameter; HF_ALL_PARTS: all, in order */
    int64_t group;   /* an expert; HF_ALL_GROUPS: all */
    bool transposed; /* [in, out] */
    int64_t unused;  /* rows of the tensor before those of the parameter; written as zeros */
    bool by_group;   /* rows in the order of the parameter; else part by part */
} HfTensor;

typedef struct HfMap {
    HfTensor *tensors; /* in the order of the registry; without a tied output layer */
    int64_t count;
    HfFamily family;
    bool init_heads; /* tensors of heads may be missing */
    Arena *arena;
} HfMap;

/* Maps every parameter to exactly one tensor; the error names a parameter that the family lacks. The registry
 * must outlive the map. Call hf_map_free also after an error. */
Err hf_map(const Registry *, HfFamily, HfMap *out);
void hf_map_free(HfMap *);
/* Finds the family by the names in a file. */
Err hf_detect(const Safetensors *, HfFamily *out);
/* The file's tensor, with or without the leading "transformer." or "model."; NULL if there is none. */
const Tensor *hf_find(const Safetensors *, const HfMap *, const HfTensor *);

/* Whether x has the type, shape and values of the other tensor; false if `of` is NULL. */
bool hf_is_copy(const Tensor *x, const Tensor *of);

/* Copies between a tensor in Hugging Face's layout and a flat buffer laid out like the registry (values, main
 * gradients, masters, optimizer state) in the device's memory (NULL: the host's). Converts between float
 * types. */
void hf_gather(const HfTensor *, Device *, const void *flat, DType flat_type, void *hf, DType hf_type);
void hf_scatter(const HfTensor *, const void *hf, DType hf_type, Device *, void *flat, DType flat_type);

/* An error lists every missing, unexpected and mis-shaped tensor of the file. Needs no memory for parameters. */
Err hf_check(const Safetensors *, const HfMap *);
/* The origin of a file of weights. */
typedef struct HfSource {
    HfFamily family; /* of the model's type: without their prefix, its names can be those of its base */
    bool init_heads;
} HfSource;
/* hf_detect, hf_map and hf_check; hf_map_free also after an error. The source may be NULL: then the names alone
 * identify the family, and no tensor may be missing. */
Err hf_match(const Safetensors *, const Registry *, const HfSource *, HfMap *out);
/* Whether the file has a pooler that the model has no use for: hf_check accepts it. */
bool hf_leaves_pooler(const Safetensors *, const HfMap *);
/* Sets all parameters (masters and values) of an allocated registry from a file that hf_match has accepted, except
 * heads that the file lacks.
 * NaN and infinite values, in the file or after conversion to the registry's precise type, are an error; then
 * nothing is set. */
Err hf_import(const Safetensors *, const HfMap *, Registry *);
/* transformers' name of a float type, also for --hf-dtype: "float32". */
const char *hf_dtype_name(DType);
/* Writes all masters as `dtype` into one .safetensors file, atomically. NaN and infinite values, before or
 * after conversion, are an error; then nothing is written. */
Err hf_export(const Registry *, HfFamily, const char *path, DType dtype);
