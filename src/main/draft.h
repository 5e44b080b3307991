/* Loads the --speculative-model, which computes drafts for generate and serve. */
#pragma once

#include "infer/engine.h"
#include "main/command.h"
#include "run/model_run.h"

/* Reads the checkpoint's options. Copies the options for the machine, layout and precision from the run.
 * Returns a user error unless the checkpoint contains a GPT with the same vocabulary. Has no effect if
 * --speculative-model is not set. */
Err draft_setup(const Setup *, Setup *draft);
/* Loads the model on the device of `main`, and sets *out to the speculation that the options describe. The caller must
 * call draft_close. */
Err draft_open(const Setup *, const Setup *draft, const ModelRun *main, ModelRun *run, Speculation *out);
void draft_close(const Setup *, ModelRun *run);
