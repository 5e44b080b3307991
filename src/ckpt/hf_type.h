/* The model types of Hugging Face (config/hf_types.def) and the rows that describe their
 * config.json: which keys transformers honours for a type, and what a missing key means there. One importer
 * and one exporter (hf_config.c) go through the rows. Source: transformers 5.23,
 * models/<type>/configuration_<type>.py (defaults) and modeling_<type>.py (what is read). */
#ifndef ISOTRON_CKPT_HF_TYPE_H
#define ISOTRON_CKPT_HF_TYPE_H

#include "base/str.h"
#include "ckpt/hf.h"
#include "config/enums.h"

typedef struct HfForm HfForm; /* hf_form.h */

/* A row of <type>.def. It replaces an earlier row of the same name, in the place of that one. */
typedef struct HfRow {
    const char *name;   /* of the option; "key " and the key where a row has another subject */
    int option;         /* of options.def; -1: none */
    const char *key;    /* of config.json; NULL: none */
    double fallback;    /* what a missing key means */
    const char *word;   /* a fallback that is a text, a second key, a reason, a value: as the form takes it */
    int choice;         /* HfWindows */
    const HfForm *form; /* NULL: the type has no row of that name */
} HfRow;

enum { HF_REQUIRED = -1, HF_USUAL = -2, HF_MOST_ROWS = 64 };

typedef struct HfType {
    const char *name, *architecture;
    HfFamily family; /* of the tensors' names */
    const HfRow *rows;
    int num_rows;
} HfType;

extern const HfType HF_TYPE[HF_TYPES];

/* NULL if there is none of that name. */
const HfType *hf_type_find(const char *name);
/* The rows that hold, in the order of the keys in the file; returns how many. */
int hf_type_rows(const HfType *, const HfRow *out[HF_MOST_ROWS]);
/* "gpt2, llama, ... and the last one" */
void hf_type_names(Str *out);

#endif
