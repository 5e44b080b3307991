/* The first lines of a run: model, data, layout and machine, one fact a line. */
#pragma once

#include "config/config.h"
#include "data/data.h"
#include "models/model.h"

/* Call it before slow work: prints the facts in the options, and the number of parameters of the full
 * model. tokenizer_size: ids of the tokenizer, 0: none. */
void banner_print(const Config *, int64_t tokenizer_size, const ModelCount *parameters);
/* Prints the source of each split's samples. */
void banner_print_data(const Config *, const Data *);
/* One line; names and texts are columns. */
void banner_line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
