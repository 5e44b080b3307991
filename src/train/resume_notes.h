/* Lists the differences between a continued run and the run that saved the checkpoint. */
#pragma once

#include <jansson.h>

#include "base/str.h"
#include "train/trainer.h"

/* Appends a line for each option that affects data, updates or rounding, and whose value differs from the
 * checkpoint's. Model options other than dropout have no line, because different values are an error. The
 * trainer must already have loaded the checkpoint's progress. A schedule option has a line only if it changes
 * the remaining steps. Also appends a line if data files with the same names have a different fingerprint, and
 * another line if the schedules do not continue at the checkpoint's position. */
void resume_notes(const Trainer *, const json_t *state, Str *out);
