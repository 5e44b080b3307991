/* Checkpoints: folders iter_{7 digits} with a manifest.json (manifest.h) and shard_{rank}.bin files. A
 * tracker file next to them, latest_checkpointed_iteration.txt, has the number of the newest (names as in
 * Megatron-LM training/checkpointing.py).
 *
 * A checkpoint appears complete or not at all: it is written into iter_N.tmp, every file and the folder are
 * synced, the folder is renamed, and only then the tracker changes. Every tensor carries a hash of its bytes,
 * which is checked before any byte reaches live memory.
 *
 * Tensors are stored by parameter and part, as boxes of global rows and columns. Each rank writes those for
 * which it is primary. Loading intersects boxes, so a checkpoint does not depend on the layout that wrote it.
 *
 * With a Comm all ranks of the world (the registry's mesh) call the same functions in the same order and get
 * the same error. Without one (NULL) there is one rank. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "ckpt/manifest.h"
#include "comm/comm.h"
#include "param/param.h"

/* A flat buffer laid out like the registry, in the memory of its device. */
typedef struct CkptItem {
    const char *suffix; /* "" the parameters; ".exp_avg", ".exp_avg_sq", ...: optimizer state */
    void *flat;
    DType dtype;  /* a float type */
    bool convert; /* loading: convert from another stored dtype instead of refusing it */
    bool sharded; /* saving: data-parallel ranks shard what is trained, else each of them has all of it */
    /* [n_ranges] ascending: the elements in `flat`; NULL: all. */
    const FlatRange *ranges;
    int n_ranges;
    /* Loading: beginnings of names, NULL-terminated, of tensors that the model or the checkpoint may lack. Such
     * tensors of the model keep their values. NULL: none. */
    const char *const *optional;
} CkptItem;

typedef struct CkptSaveOptions {
    int64_t iteration; /* >= 0 */
    /* older checkpoints are deleted unless retain_interval keeps them; <= 0: none is deleted */
    int64_t keep_newest;
    /* multiples of this are never deleted; <= 0: none. Alone it implies keep_newest = 1 */
    int64_t retain_interval;
} CkptSaveOptions;

/* Saves all parts of all parameters, for each item, and rank 0's `state` (an object, borrowed). Deletes old
 * checkpoints last. On an error no earlier checkpoint is lost, and no incomplete one looks complete. */
Err ckpt_save(const char *dir, const CkptSaveOptions *, Comm *, const Registry *, const CkptItem *,
              int n_items, const json_t *state);

/* Saves during the run (--async-save). The start copies the data that this rank stores to host memory, and a
 * thread writes it. The finish waits for the thread and publishes the checkpoint. Only one save at a time in
 * a folder. If the start fails *out is NULL. The finish always frees the CkptSaving. */
typedef struct CkptSaving CkptSaving;
Err ckpt_save_start(const char *dir, const CkptSaveOptions *, Comm *, const Registry *, const CkptItem *,
                    int n_items, const json_t *state, CkptSaving **out);
/* Whether the threads of all ranks are done, so that the finish will not wait. */
bool ckpt_save_is_written(const CkptSaving *);
Err ckpt_save_finish(CkptSaving *);

/* Creates the folder, checks before any computation whether it is writable, and locks it against other runs
 * that save. *lock: a descriptor to close() at the end; -1 on an error. */
Err ckpt_lock(const char *dir, int *lock);

/* An open checkpoint: its manifest is valid, and its files exist with the right sizes. */
typedef struct Ckpt Ckpt;

/* The iteration in the tracker file, or of the newest checkpoint if there is no tracker; -1 if there is no
 * checkpoint. */
Err ckpt_latest(const char *dir, int64_t *iteration);
/* Resolves a path that may also name one checkpoint, DIR/iter_N: then *dir is DIR and *iteration N, else the path and
 * -1. Release *dir with free(). A user error if the path is one checkpoint by another name. */
Err ckpt_locate(const char *path, char **dir, int64_t *iteration);
/* The checkpoints that look complete, ascending. Release with free(). */
Err ckpt_list(const char *dir, int64_t **iterations, int64_t *n);
/* `iteration` -1: that of ckpt_latest. An error of this and of the functions below names the newest other
 * checkpoint that is sound, and the option that loads it. On an error *out is NULL. */
Err ckpt_open(const char *dir, int64_t iteration, Comm *, Ckpt **out);
void ckpt_close(Ckpt *);
/* Owned by the checkpoint: the manifest with the iteration, the state and all tensors. */
const Manifest *ckpt_manifest(const Ckpt *);
/* Whether any tensor with this suffix is stored. */
bool ckpt_has(const Ckpt *, const char *suffix);
/* Whether FP8's delayed scales are stored (PARAM_FP8_STATE). */
bool ckpt_has_fp8_state(const Ckpt *);
/* Checks the hashes of all tensors. */
Err ckpt_verify(const Ckpt *);
/* Fills this rank's part of the items, and reads no other data. The registries of all ranks together must have exactly
 * the stored parameters, apart from the items' optional ones. FP8's delayed scales are an exception: if only one side
 * has some, stored ones are ignored, or those of the registry stay unchanged. Padding rows stay unchanged too. On an
 * error no item of any rank has changed. The caller rounds values of 16-bit storage (registry_round_values). */
Err ckpt_load(const Ckpt *, const Registry *, const CkptItem *, int n_items);
/* Appends a line for each part: the XXH3-128 of its content (row-major, as one box), dtype, shape, name; and
 * at the end the hash of these lines. Equal for equal content, however it is sharded. */
Err ckpt_digest(const Ckpt *, Str *out);
