/* The model types of Hugging Face (config/hf_types.def), and the rows that describe their config.json. A type's rows
 * contain the keys that transformers reads for that type, and state what a missing key means. One importer and one
 * exporter (config.c) process all types' rows. Source: transformers 5.24, models/<type>/configuration_<type>.py
 * (defaults) and modeling_<type>.py (keys that are read). */
#pragma once

#include "base/str.h"
#include "ckpt/hf/tensors.h"
#include "config/enums.h"

typedef struct HfForm HfForm; /* form.h */

/* A row in <type>.def. A row replaces an earlier row with the same name in place. */
typedef struct HfRow {
    const char *name;   /* name of the option; if the row has no option, "key " followed by the key */
    int option;         /* the row in options.def, or -1 if there is none */
    const char *key;    /* the key in config.json, or NULL if there is none */
    double fallback;    /* the value if the key is missing */
    const char *word;   /* a fallback, second key, reason or value, depending on the form */
    int choice;         /* HfWindows, or the second number of GROUPS */
    const HfForm *form; /* NULL in a DROP row, which removes the earlier row with the same name */
} HfRow;

enum { HF_REQUIRED = -1, HF_USUAL = -2, HF_MOST_ROWS = 80 };

typedef struct HfType {
    const char *name, *architecture;
    HfFamily family; /* the family for the tensors' names */
    const HfRow *rows;
    int num_rows;
} HfType;

extern const HfType HF_TYPE[HF_TYPES];

/* Returns the type with this name, or NULL if there is none. */
const HfType *hf_type_find(const char *name);
/* Sets out[] to the effective rows, in the order in which an export writes their keys. Returns the number of rows. */
int hf_type_rows(const HfType *, const HfRow *out[HF_MOST_ROWS]);
/* Appends a list of all type names: "gpt2, llama, ... and t5". */
void hf_type_names(Str *out);
