/* Forms of parallel residuals, which are written in other keys by each type of model. */
#include "ckpt/hf_form.h"

static void set_parallel(HfReader *r, const HfRow *row, ParallelResidual v) {
    hf_set_text(r, row->option, ParallelResidual_spellings[v]);
}

static void two_norms_read(HfReader *r, const HfRow *row) {
    set_parallel(r, row, hf_get_flag(r, row->key, row->fallback != 0) ? PARALLEL_TWO_NORMS : PARALLEL_NONE);
}

static void two_norms_write(HfWriter *w, const HfRow *row) {
    hf_put_flag(w, row->key, w->config->parallel_residual == PARALLEL_TWO_NORMS);
}

const HfForm hf_form_two_norms = {two_norms_read, two_norms_write};
