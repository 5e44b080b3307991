/* A checkpoint is a folder iter_{7 digits} that contains manifest.json (manifest.h) and shard_{rank}.bin files. A
 * tracker file next to the folders, latest_checkpointed_iteration.txt, contains the newest checkpoint's iteration.
 * Megatron-LM uses the same names (training/checkpointing.py).
 *
 * An incomplete checkpoint never appears to be complete. A save writes into iter_N.tmp, syncs every file and the
 * folder, renames the folder, and then changes the tracker. The hash of every tensor is checked before the tensor's
 * bytes are copied.
 *
 * The tensors of each parameter part are stored as boxes, which are ranges of global rows and columns. If
 * several ranks hold a box, only one of them writes the box. A load copies the intersections of the stored
 * boxes with the boxes that each rank needs. A checkpoint can therefore be loaded into any parallel layout.
 *
 * With a Comm, all ranks in the world (the registry's mesh) must call the same functions in the same order.
 * Each function returns the same error on all ranks. A NULL Comm means that there is only one rank. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "ckpt/manifest.h"
#include "comm/comm.h"
#include "param/param.h"

/* A flat buffer in the registry's layout, in the memory of the registry's device, except for ranges with `on_host`,
 * which are in `host`. */
typedef struct CkptItem {
    const char *suffix; /* "" for parameters; ".exp_avg", ".exp_avg_sq", ... for optimizer state */
    void *flat, *host;
    /* The item covers only parameters that have all flags in `with` and none in `without` (ParamFlags). */
    unsigned with, without;
    DType dtype; /* a floating-point type */
    /* loading: whether to convert tensors whose dtype differs; if false, a different dtype is an error */
    bool convert;
    /* saving: whether the trained parameters in `flat` are sharded over data-parallel ranks; if false, they are
     * replicated */
    bool sharded;
    /* [n_ranges], the elements that `flat` contains, in ascending order. NULL means all elements. */
    const FlatRange *ranges;
    int n_ranges;
    /* Loading: a NULL-terminated list of name prefixes. The model or the checkpoint may lack tensors whose
     * names start with these prefixes. A load does not change model values that the checkpoint lacks. NULL
     * means that no tensor may be missing. */
    const char *const *optional;
    /* Loading: if `each` is set, the item contains only quantized weights (param/quantized.h), and `flat` holds the
     * elements of just one of them, [rows, columns]. `each` is called after each weight is loaded, before the next one
     * overwrites it. */
    void (*each)(void *arg, Param *);
    void *arg;
} CkptItem;

typedef struct CkptSaveOptions {
    int64_t iteration; /* >= 0 */
    /* number of newest checkpoints to keep; if it is <= 0, no checkpoint is deleted unless retain_interval is set */
    int64_t keep_newest;
    /* Checkpoints whose iterations are multiples of this interval are never deleted. A value <= 0 disables this rule.
     * If the interval is set, keep_newest counts as at least 1. */
    int64_t retain_interval;
} CkptSaveOptions;

/* For each item, saves all parts of all parameters. Also saves rank 0's `state` (a borrowed object), and then
 * deletes old checkpoints. After an error, all earlier checkpoints still exist, and no incomplete checkpoint
 * appears to be complete. */
Err ckpt_save(const char *dir, const CkptSaveOptions *, Comm *, const Registry *, const CkptItem *,
              int n_items, const json_t *state);

/* Saves in the background (--async-save). ckpt_save_start copies this rank's data to host memory, and a thread writes
 * the copy. ckpt_save_finish waits for the thread, publishes the checkpoint, and always frees the CkptSaving. Only one
 * save may write into a folder at a time. If ckpt_save_start fails, *out is NULL. */
typedef struct CkptSaving CkptSaving;
Err ckpt_save_start(const char *dir, const CkptSaveOptions *, Comm *, const Registry *, const CkptItem *,
                    int n_items, const json_t *state, CkptSaving **out);
/* Returns whether the writer threads of all ranks have finished; if so, ckpt_save_finish does not wait. */
bool ckpt_save_is_written(const CkptSaving *);
Err ckpt_save_finish(CkptSaving *);
/* Returns the size of the copy that ckpt_save_start makes on this rank. */
int64_t ckpt_save_bytes(const Registry *, const CkptItem *, int n_items);

/* Creates the folder, checks that it is writable, and locks it so that no other run can save there. *lock is a file
 * descriptor, which the caller must close at the end, or -1 after an error. */
Err ckpt_lock(const char *dir, int *lock);

/* An open checkpoint. Its manifest is valid, and its files exist and have the correct sizes. */
typedef struct Ckpt Ckpt;

/* Sets *iteration to the iteration in the tracker file, to that of the newest checkpoint if there is no tracker file,
 * or to -1 if no checkpoint exists. */
Err ckpt_latest(const char *dir, int64_t *iteration);
/* Returns the error for a folder without a checkpoint. */
Err ckpt_missing(const char *dir);
/* Resolves a path to a checkpoint folder or to one checkpoint in it. For DIR/iter_N, *dir is DIR and
 * *iteration is N. For any other path, *dir is the path and *iteration is -1. Release *dir with free().
 * Returns a user error if the path is a checkpoint that is not named iter_N. */
Err ckpt_locate(const char *path, char **dir, int64_t *iteration);
/* Lists the iterations of all checkpoints that appear to be complete, in ascending order. Release the list with
 * free(). */
Err ckpt_list(const char *dir, int64_t **iterations, int64_t *n);
/* Opens the checkpoint for `iteration`, or the checkpoint that ckpt_latest finds if `iteration` is -1. If a checkpoint
 * is damaged, errors from this function, ckpt_verify, ckpt_load and ckpt_digest name the newest intact checkpoint.
 * After an error, *out is NULL. */
Err ckpt_open(const char *dir, int64_t iteration, Comm *, Ckpt **out);
/* Sets the advice in ckpt_load's errors about tensors that do not fit the model. The default advice names options. */
void ckpt_set_remedy(Ckpt *, const char *remedy);
void ckpt_close(Ckpt *);
/* Returns the manifest, which contains the iteration, the state and all tensors. The checkpoint owns the
 * manifest. */
const Manifest *ckpt_manifest(const Ckpt *);
/* Returns whether any tensor with this suffix is stored. */
bool ckpt_has(const Ckpt *, const char *suffix);
/* Returns whether the state for FP8 delayed scaling is stored (PARAM_FP8_STATE). */
bool ckpt_has_fp8_state(const Ckpt *);
/* Checks all tensors' hashes. */
Err ckpt_verify(const Ckpt *);
/* Loads this rank's part of the items, and reads no other data. Together, the registries on all ranks must contain
 * exactly the stored parameters, except for the items' optional tensors. The checkpoint or the registry may lack the
 * state for FP8 delayed scaling. Stored scales that the registry lacks are ignored, and registry scales that are not
 * stored keep their values. Padding rows also keep their values. After an error, no item has changed on any rank. After
 * the load, the caller must round values that are stored in 16 bits (registry_round_values). */
Err ckpt_load(const Ckpt *, const Registry *, const CkptItem *, int n_items);
/* Appends a line for each part: the XXH3-128 of its content (row-major, as one box), dtype, shape and name.
 * The last line is the hash of all previous lines. Equal content produces equal lines, regardless of how the
 * content is sharded. */
Err ckpt_digest(const Ckpt *, Str *out);
