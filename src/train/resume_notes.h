/* Differences between a continued run and the run that saved the checkpoint. */
#pragma once

#include <jansson.h>

#include "base/str.h"
#include "train/trainer.h"

/* Appends a line for each option whose value differs from that in the state of the checkpoint, and that changes data,
 * updates or rounding. Options of the model other than dropout are not among them, because different values are
 * refused. The trainer has the progress from which it continues; a line on an option of a schedule is about the
 * remaining steps. Also appends a line if data of the same names have a different fingerprint, if it is known, or if
 * schedules do not continue where the checkpoint's stopped. */
void resume_notes(const Trainer *, const json_t *state, Str *out);
