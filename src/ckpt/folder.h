/* The folders of a checkpoint directory: names, list, retention. */
#ifndef ISOTRON_CKPT_FOLDER_H
#define ISOTRON_CKPT_FOLDER_H

#include <stdint.h>

#include "base/err.h"
#include "ckpt/ckpt.h"

/* "DIR/iter_0000020" + suffix; release with free(). */
char *folder_path(const char *dir, int64_t iteration, const char *suffix);
/* Deletes what a replaced checkpoint or an interrupted save or deletion has left. */
Err folder_clean(const char *dir);
/* Renames the complete, synced folder iter_N.tmp to iter_N, in place of an older one, and then points the
 * tracker at it; both are durable. */
Err folder_publish(const char *dir, int64_t iteration);
/* Deletes what the options say, never the saved iteration or a later one, and what a replaced checkpoint has
 * left. */
Err folder_retain(const char *dir, const CkptSaveOptions *);

#endif
