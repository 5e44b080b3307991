/* Names, publishes and deletes the folders in a checkpoint directory. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "ckpt/ckpt.h"

/* Returns "DIR/iter_0000020" + suffix, which the caller must free. */
char *folder_path(const char *dir, int64_t iteration, const char *suffix);
/* Returns the error for a folder that Megatron-LM wrote. */
Err folder_of_megatron(const char *folder);
/* Deletes the files left by a replaced checkpoint, an interrupted save or an interrupted deletion. */
Err folder_clean(const char *dir);
/* Renames the complete, synced folder iter_N.tmp to iter_N, replacing an older iter_N, and then writes N into
 * the tracker. The rename and the write are durable. */
Err folder_publish(const char *dir, int64_t iteration);
/* Deletes old checkpoints according to the options, but never those for options->iteration or later. Calls folder_clean
 * at the end. */
Err folder_retain(const char *dir, const CkptSaveOptions *);
