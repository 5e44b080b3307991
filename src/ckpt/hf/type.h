/* The model types of Hugging Face (config/hf_types.def) and the rows that describe their
 * config.json: which keys transformers honours for a type, and what a missing key means there. One importer
 * and one exporter (config.c) go through the rows. Source: transformers 5.23,
 * models/<type>/configuration_<type>.py (defaults) and modeling_<type>.py (what is read). */
#pragma once

#include "base/str.h"
#include "ckpt/hf/tensors.h"
#include "config/enums.h"

typedef struct HfForm HfForm; /* form.h */

/* A row of <type>.def. It replaces an earlier row with the same name, in its place. */
typedef struct HfRow {
    const char *name;   /* of the option; "key " and the key if the row has no option */
    int option;         /* of options.def; -1: none */
    const char *key;    /* of config.json; NULL: none */
    double fallback;    /* value of a missing key */
    const char *word;   /* depends on the form: a fallback that is a text, a second key, a reason, a value */
    int choice;         /* HfWindows */
    const HfForm *form; /* NULL: the type has no row with that name */
} HfRow;

enum { HF_REQUIRED = -1, HF_USUAL = -2, HF_MOST_ROWS = 64 };

typedef struct HfType {
    const char *name, *architecture;
    HfFamily family; /* of the tensors' names */
    const HfRow *rows;
    int num_rows;
} HfType;

extern const HfType HF_TYPE[HF_TYPES];

/* NULL if no type has that name. */
const HfType *hf_type_find(const char *name);
/* The effective rows, in the order of the keys in the file; returns their number. */
int hf_type_rows(const HfType *, const HfRow *out[HF_MOST_ROWS]);
/* "gpt2, llama, ... and the last one" */
void hf_type_names(Str *out);
