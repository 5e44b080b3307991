/* Loads the model of --speculative-model, which computes drafts for generate and serve. */
#pragma once

#include "infer/engine.h"
#include "main/command.h"
#include "run/model_run.h"

/* Reads the options of the checkpoint. Options of the machine, the layout and the precision are copied from the run.
 * Returns a user error if the checkpoint is not of a GPT with the same vocabulary. If --speculative-model is not set,
 * the call has no effect. */
Err draft_setup(const Setup *, Setup *draft);
/* Loads the model on the device of `main`, and sets *out to the speculation of the options. Close it with
 * draft_close. */
Err draft_open(const Setup *, const Setup *draft, const ModelRun *main, ModelRun *run, Speculation *out);
void draft_close(const Setup *, ModelRun *run);
