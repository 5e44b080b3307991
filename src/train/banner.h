/* Prints the first lines of a run, which describe the model, the data, the layout and the machine. */
#pragma once

#include "config/config.h"
#include "data/data.h"
#include "models/model.h"

/* Prints the values that are derived from the options, and the full model's number of parameters. Call this function
 * before slow work. tokenizer_size is the tokenizer's vocabulary size, or 0 if there is no tokenizer. */
void banner_print(const Config *, int64_t tokenizer_size, const ModelCount *parameters);
/* Prints the source of each split's samples. */
void banner_print_data(const Config *, const Data *);
/* Prints one line. Names and texts are aligned in columns. */
void banner_line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
