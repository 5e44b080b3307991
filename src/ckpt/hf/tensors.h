/* Maps the registry's parameters to a Hugging Face model's tensors. Tensors have the names and shapes that
 * transformers' save_pretrained writes; ckpt/hf/names.def has a row for each name. Sources: transformers
 * models/gpt2/modeling_gpt2.py and models/llama/modeling_llama.py. param.h describes the order of rows of linear_qkv
 * and linear_fc1 in Megatron-LM. */
#pragma once

#include "ckpt/hf/problems.h"
#include "ckpt/safetensors.h"
#include "param/param.h"

typedef enum HfFamily {
#define FAMILY(constant, ...) HF_##constant,
#define PAIRED(...)
#define MAP(...)
#include "ckpt/hf/names.def"
    HF_FAMILIES
} HfFamily;

/* The order of a parameter's rows in a tensor (names.def). */
typedef enum HfLayout {
    OUT_IN,
    IN_OUT,
    BY_GROUP,
    BY_HEAD,
    AFTER_PADDING,
    SCALAR,
    PLUS_ONE,
    CHANNELS,
    PACKED,
    PACKED_IN_OUT,
    PACKED_PAIRS
} HfLayout;

/* RoBERTa's first position is 1 + the id of its padding token, and this id is 1. */
enum { HF_ALL_GROUPS = -1, HF_PADDING_TOKEN = 1, HF_PADDING_ROWS = HF_PADDING_TOKEN + 1 };

typedef struct HfTensor {
    const char *name;
    int ndim;
    int64_t dim[3];
    const Param *param;
    int first, parts; /* consecutive parts of the parameter */
    int64_t group;    /* the expert; HF_ALL_GROUPS means all experts */
    /* The tensor is a list of matrices, each of which contains `rows` rows of the parameter. A transposed matrix has
     * the shape [in, out]. */
    int64_t rows, columns;
    bool transposed;
    bool scalar;    /* whether the tensor has one element and, in the file, no dimensions */
    int64_t unused; /* number of unused rows before the parameter's rows; an export writes zeros */
    int64_t pieces; /* rows are stored piece by piece; each piece contains equally many rows of each part */
    bool plus_one;  /* whether each element is 1 larger than in the parameter */
    bool pairs;     /* whether the rows of a group's two parts alternate */
} HfTensor;

typedef struct HfMap {
    HfTensor *tensors; /* tensors in registry order, without a tied output layer */
    int64_t count;
    HfFamily family;
    /* number of layers in the longest stack, including those that predict additional tokens */
    int64_t layers;
    int64_t main_layers; /* like `layers`, but without the layers that predict additional tokens */
    bool init_heads;     /* whether head tensors may be missing */
    Arena *arena;
} HfMap;

/* Maps every parameter except FP8 state to its tensors. The error names a parameter that the family lacks.
 * The registry must outlive the map. Call hf_map_free even after an error. */
Err hf_map(const Registry *, HfFamily, HfMap *out);
void hf_map_free(HfMap *);
/* Determines the family from the tensor names in a file. */
Err hf_detect(const Safetensors *, HfFamily *out);
/* The tensors in a file that store a weight. */
typedef struct HfStored {
    const Tensor *values;             /* NULL if the tensor is missing */
    const Tensor *scales;             /* NULL if the scales are missing, or if the weight is not quantized */
    const struct HfQuantization *how; /* NULL if the weight is not quantized */
} HfStored;
/* Finds a weight, with or without the leading "transformer." or "model.". */
HfStored hf_find(const Safetensors *, const HfMap *, const HfTensor *);

int64_t hf_count(const HfTensor *); /* number of elements */
/* Returns whether x has the same type, shape and values as `of`. Returns false if `of` is NULL. */
bool hf_is_copy(const Tensor *x, const Tensor *of);

/* hf_gather and hf_scatter copy between a tensor in Hugging Face's layout and a flat buffer in the registry's layout
 * (values, main gradients, masters, optimizer state). The flat buffer is in device memory, or in host memory if the
 * device is NULL. Floating-point types are converted. */
void hf_gather(const HfTensor *, Device *, const void *flat, DType flat_type, void *hf, DType hf_type);
void hf_scatter(const HfTensor *, const void *hf, DType hf_type, Device *, void *flat, DType flat_type);

/* Checks the tensors in a file without allocating parameters. The error lists all tensors that are missing or
 * unexpected, or whose shape or type is wrong. */
Err hf_check(const Safetensors *, const HfMap *);
/* If the names contain "language_model.", removes this part of them, and all tensors that do not belong to the language
 * model. Adds the names of the removed tensors to `left`. */
void hf_keep_language_model(Safetensors *, HfProblem *left);
/* The expected family of a weight file, and whether heads that the file lacks are initialized. */
typedef struct HfSource {
    HfFamily family; /* the family for the model's type; hf_detect may find its base model's family instead */
    bool init_heads;
} HfSource;
/* Calls hf_detect, hf_map and hf_check. Call hf_map_free even after an error. If the source is NULL, the family is
 * identified only by the names, and no tensor may be missing. */
Err hf_match(const Safetensors *, const Registry *, const HfSource *, HfMap *out);
/* Returns whether the file contains a pooler that the model does not use. hf_check accepts such a pooler. */
bool hf_leaves_pooler(const Safetensors *, const HfMap *);
/* Returns whether the file contains layers after the model's last layer. In DeepSeek-V3 and GLM-4.5, layers after the
 * last layer predict additional tokens (MTP). Like transformers, hf_check accepts and ignores such layers if the
 * model has no MTP layers. */
bool hf_leaves_layers(const Safetensors *, const HfMap *);
/* Sets all parameters (masters and values) of an allocated registry from a file that hf_match has accepted, except for
 * heads that the file lacks. If a value is NaN or infinite, in the file or after conversion to the registry's precise
 * type, returns an error and sets no parameter. */
Err hf_import(const Safetensors *, const HfMap *, Registry *);
/* Returns the name that transformers and --hf-dtype use for a floating-point type, such as "float32". */
const char *hf_dtype_name(DType);
/* Writes all masters as `dtype` into one .safetensors file, atomically. Returns an error, and writes no file, if a
 * value is NaN or infinite before or after conversion. */
Err hf_export(const Registry *, HfFamily, const char *path, DType dtype);
