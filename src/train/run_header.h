/* Builds the first record of a log. The record describes the run. */
#pragma once

#include <jansson.h>

#include "base/str.h"
#include "train/trainer.h"

/* Returns {"kind": "run", ...}: the time, version, given options, layout, device, parameters and data
 * (docs/reference/formats.md). `data` is NULL if there is no data. */
json_t *run_header(const Trainer *, const Data *, int64_t parameters);
/* Appends a header's options as a Markdown table. */
void run_header_options(const json_t *header, Str *out);
