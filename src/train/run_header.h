/* The first record of a log: the facts of the run. */
#pragma once

#include <jansson.h>

#include "base/str.h"
#include "train/trainer.h"

/* {"kind": "run", ...}: time, version, given options, layout, device, parameters and data
 * (docs/reference/formats.md). data NULL: no data. */
json_t *run_header(const Trainer *, const Data *, int64_t parameters);
/* Appends the options of a header as a table in Markdown. */
void run_header_options(const json_t *header, Str *out);
