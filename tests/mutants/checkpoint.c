/* Planted bugs in what a checkpoint saves and restores. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "mutants/mutants.h"
#include "train/checkpoint.h"

static void swap_blocks(void *flat, size_t bytes) {
    char *a = flat, *b = a + bytes, *kept = mem_alloc(bytes);
    memcpy(kept, a, bytes);
    memcpy(a, b, bytes);
    memcpy(b, kept, bytes);
    free(kept);
}

HOOK(Err, ckpt_load, const Ckpt *c, const Registry *r, const CkptItem *items, int n) {
    CkptItem list[1 + OPTIM_BUFFERS];
    memcpy(list, items, (size_t)n * sizeof *list);
    if (mutant_is(M_ckpt_moments_swapped) && n == 3)
        list[1].flat = items[2].flat, list[2].flat = items[1].flat;
    if (mutant_is(M_ckpt_moments_forgotten)) n = 1;
    const Err e = __real_ckpt_load(c, r, list, n);
    if (!e.code && mutant_is(M_ckpt_rows_permuted))
        swap_blocks(items[0].flat, PARAM_ALIGN * dtype_size(items[0].dtype));
    return e;
}

HOOK(Err, trainer_load, Trainer *r, bool *loaded) {
    const Err e = __real_trainer_load(r, loaded);
    if (e.code || !*loaded) return e;
    if (mutant_is(M_resume_data_again)) r->consumed_samples = 0;
    if (mutant_is(M_resume_adam_step)) r->optimizer->step = 0;
    if (mutant_is(M_resume_schedule)) r->schedule_samples = 0;
    if (mutant_is_named(M_evaluation_from_the_start)) r->consumed_valid_samples = 0;
    if (mutant_is_named(M_fresh_optimizer_keeps_step) && !r->run.config->load_optim)
        r->optimizer->step = r->iteration;
    return e;
}

/* Saves main weights that are rounded to 16 bits. */
HOOK(Err, ckpt_save, const char *dir, const CkptSaveOptions *o, Comm *comm, const Registry *r,
     const CkptItem *items, int n, const json_t *state) {
    if (mutant_is(M_ckpt_saves_rounded)) {
        const size_t count = (size_t)r->held[r->masters == r->values ? FLAT_VALUES : FLAT_MASTERS];
        void *rounded = mem_alloc(count * dtype_size(BF16) + 1);
        dtype_convert(rounded, BF16, items[0].flat, items[0].dtype, count);
        dtype_convert(items[0].flat, items[0].dtype, rounded, BF16, count);
        free(rounded);
    }
    return __real_ckpt_save(dir, o, comm, r, items, n, state);
}
