/* Lists the differences between a continued run and the run that saved the checkpoint. */
#pragma once

#include <jansson.h>

#include "base/str.h"
#include "train/trainer.h"

/* Appends a line for each option whose value differs from that in the state of the checkpoint, and that changes data,
 * updates or rounding. Options of the model other than dropout have no line, because different values are an error. The
 * trainer must have the progress from which it continues. An option of a schedule has a line only if it changes the
 * remaining steps. Also appends a line if data of the same names have a different fingerprint, and if schedules do not
 * continue where those of the checkpoint stopped. */
void resume_notes(const Trainer *, const json_t *state, Str *out);
