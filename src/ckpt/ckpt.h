/* Checkpoints: folders iter_{7 digits} with a manifest.json (manifest.h) and shard_{rank}.bin files, beside a
 * tracker file latest_checkpointed_iteration.txt with the number of the newest (names as in Megatron-LM
 * training/checkpointing.py).
 *
 * A checkpoint appears complete or not at all: it is written into iter_N.tmp, every file and the folder are
 * synced, the folder is renamed, and only then the tracker changes. Every tensor carries a hash of its bytes,
 * which is checked before any byte reaches live memory. Tensors are stored by parameter and part as boxes of
 * global rows and columns; each rank writes those for which it is primary, and loading intersects boxes, so that a
 * checkpoint does not know the layout that wrote it.
 *
 * With a Comm all ranks of the world (the registry's mesh) call the same functions in the same order and get
 * the same error; without one (NULL) there is one rank. */
#ifndef ISOTRON_CKPT_CKPT_H
#define ISOTRON_CKPT_CKPT_H

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
    DType dtype;             /* a float type */
    bool convert;            /* loading: another stored dtype is converted instead of refused */
    const FlatRange *ranges; /* [n_ranges] ascending: what `flat` holds, where data-parallel ranks share out
                                the elements; NULL: all */
    int n_ranges;
    bool is_copy; /* of ranges: another rank with the same ones is primary */
} CkptItem;

typedef struct CkptSaveOptions {
    int64_t iteration; /* >= 0 */
    /* older checkpoints are deleted, <= 0: all stay unless retain_interval says otherwise */
    int64_t keep_newest;
    /* but multiples of this always stay, <= 0: none. Alone it implies keep_newest = 1 */
    int64_t retain_interval;
} CkptSaveOptions;

/* Saves all parts of all parameters, for each item, and `state` (an object, not taken over; rank 0's counts).
 * Deletes old checkpoints last. On an error nothing that was there before is lost, and nothing incomplete can
 * be taken for a checkpoint. */
Err ckpt_save(const char *dir, const CkptSaveOptions *, Comm *, const Registry *, const CkptItem *,
              int n_items, const json_t *state);

/* The same during the run (--async-save): the start copies what this rank stores to host memory, a thread
 * writes it, and the finish, which waits for the thread, publishes the checkpoint. One at a time in a folder.
 * On an error of the start *out is NULL; the finish ends it in any case. */
typedef struct CkptSaving CkptSaving;
Err ckpt_save_start(const char *dir, const CkptSaveOptions *, Comm *, const Registry *, const CkptItem *,
                    int n_items, const json_t *state, CkptSaving **out);
/* Whether the threads of all ranks are done, so that the finish will not wait. */
bool ckpt_save_is_written(const CkptSaving *);
Err ckpt_save_finish(CkptSaving *);

/* Makes the folder, finds out before anything is computed whether it can be written, and keeps other runs
 * that ask from saving into it. *lock: a descriptor to close() at the end; -1 on an error. */
Err ckpt_lock(const char *dir, int *lock);

/* An open checkpoint: its manifest is checked, its files are there and have the right size. */
typedef struct Ckpt Ckpt;

/* The iteration in the tracker file, or of the newest checkpoint if there is no tracker; -1 if there is no
 * checkpoint. */
Err ckpt_latest(const char *dir, int64_t *iteration);
/* Where a path leads that may also name one checkpoint, DIR/iter_N: *dir is DIR and *iteration N, else the path and
 * -1. Release *dir with free(). A user error if the path is one checkpoint by another name. */
Err ckpt_locate(const char *path, char **dir, int64_t *iteration);
/* The complete-looking checkpoints, ascending. Release with free(). */
Err ckpt_list(const char *dir, int64_t **iterations, int64_t *n);
/* `iteration` -1: ckpt_latest's. An error of this and of the functions below names the newest other
 * checkpoint that is sound and the option that loads it. On an error *out is NULL. */
Err ckpt_open(const char *dir, int64_t iteration, Comm *, Ckpt **out);
void ckpt_close(Ckpt *);
/* Owned by the checkpoint: the manifest with the iteration, the state and all tensors. */
const Manifest *ckpt_manifest(const Ckpt *);
/* Whether anything of this suffix is stored. */
bool ckpt_has(const Ckpt *, const char *suffix);
/* Whether FP8's delayed scales are stored (PARAM_FP8_STATE). */
bool ckpt_has_fp8_state(const Ckpt *);
/* Hashes everything that is stored. */
Err ckpt_verify(const Ckpt *);
/* Fills what this rank holds of the items, and reads nothing else; the registries of all ranks together must
 * have exactly the parameters that are stored, but for FP8's delayed scales: where only one side has any,
 * those stored are left out, or those of the registry left as they are. Padding rows are left alone. On an
 * error no item of any rank has changed. Values of 16-bit storage are the caller's to round
 * (registry_round_values). */
Err ckpt_load(const Ckpt *, const Registry *, const CkptItem *, int n_items);
/* Appends a line for each part: the XXH3-128 of its content (row-major, as one box), dtype, shape, name; and
 * last the hash of these lines. Equal for equal content, however layouts have cut it. */
Err ckpt_digest(const Ckpt *, Str *out);

#endif
