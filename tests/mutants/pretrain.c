/* Planted bugs in how `pretrain` and `generate` apply their options, on any number of ranks. The table of
 * options (tests/functional/options) must find them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/durable_file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/data.h"
#include "data/random/mt19937.h"
#include "models/model.h"
#include "mutants/mutants.h"
#include "ops/context_attention.h"
#include "ops/dropout.h"
#include "train/log.h"
#include "train/microbatches.h"
#include "train/trainer.h"

/* ---- data ---- */

HOOK(const Dataset *, data_split, const Data *d, DataSplit split) {
    if (mutant_is_named(M_test_is_validation) && split == SPLIT_TEST) split = SPLIT_VALID;
    return __real_data_split(d, split);
}

HOOK(void, mt19937_torch_randperm, uint32_t seed, int64_t *out, int64_t n) {
    __real_mt19937_torch_randperm(mutant_is_named(M_epochs_shuffled_alike) ? 0 : seed, out, n);
}

/* ---- batches ---- */

static _Thread_local const Trainer *running;

HOOK(void, trainer_microbatches, Trainer *r, const Batch *batches, int64_t count, int64_t n,
     StepReport *report) {
    running = r;
    __real_trainer_microbatches(r, batches, count, n, report);
}

HOOK(int64_t, config_batch_size, const Config *c, int64_t consumed) {
    const bool scheduled = mutant_is_named(M_rampup_counts_scheduled) && running;
    return __real_config_batch_size(c, scheduled ? running->schedule_samples : consumed);
}

/* ---- model ---- */

HOOK(bool, config_layer_pattern, const char *text, int64_t n, bool *out) {
    const bool valid = __real_config_layer_pattern(text, n, out);
    if (!mutant_is_named(M_windows_counted_from_0) || strchr(text, '[') || n < 1) return valid;
    const bool last = out[n - 1];
    memmove(out + 1, out, (size_t)(n - 1) * sizeof *out);
    out[0] = last;
    return valid;
}

HOOK(Tensor *, op_dropout, Tape *t, Tensor *x, double rate, uint64_t site) {
    const bool left_out = mutant_is_named(M_embedding_not_dropped) && site == hash_name("embedding.dropout");
    return __real_op_dropout(t, x, left_out ? 0 : rate, site);
}

/* Masks keys as if the padding of a sample preceded its tokens. */
static AttentionInputs hides_on_the_left(Tape *t, const AttentionInputs *inputs) {
    AttentionInputs x = *inputs;
    const int64_t s = x.q->dim[0], b = x.q->dim[1], *lengths = x.lengths->data;
    x.first_key = tape_tensor(t, I64, 2, (int64_t[]){b, s});
    x.lengths = NULL;
    for (int64_t i = 0; i < b * s; i++) ((int64_t *)x.first_key->data)[i] = s - lengths[i / s];
    return x;
}

HOOK(Tensor *, op_context_attention, Tape *t, const AttentionInputs *inputs, AttentionAttr attr,
     ContextPlan plan, bool unfused) {
    AttentionInputs x = *inputs;
    if (mutant_is_named(M_cp_ignores_documents) && tape_axis(t, AXIS_CP) > 1) x.first_key = NULL;
    if (mutant_is_named(M_cp_sees_padding) && tape_axis(t, AXIS_CP) > 1) x.lengths = NULL;
    if (mutant_is(M_cross_sees_padding) && x.q->dim[0] != x.k->dim[0]) x.lengths = NULL;
    if (mutant_is(M_padding_on_the_left)) x = hides_on_the_left(t, &x);
    return __real_op_context_attention(t, &x, attr, plan, unfused);
}

/* ---- losses ---- */

HOOK(void, trainer_evaluate, Trainer *r, const Batch *b, LossSum sum[MODEL_LOSSES]) {
    const double before = sum->weight;
    __real_trainer_evaluate(r, b, sum);
    if (mutant_is_named(M_evaluation_ignores_mask))
        sum->weight = before + (double)(b->b * r->run.config->seq_length);
}

HOOK(void, microbatches_add, Microbatches *m, int64_t number, const Batch *b, LossWeights weights,
     int64_t first_sample) {
    if (mutant_is_named(M_router_losses_per_microbatch) && running &&
        !running->run.config->calculate_per_token_loss)
        weights.aux = running->scaler.scale;
    for (int i = 1; mutant_is(M_mtp_loss_not_averaged) && i < MODEL_LOSSES; i++) weights.loss[i] *= 2;
    __real_microbatches_add(m, number, b, weights, first_sample);
}

/* The counters of a layer are the number of tokens that chose each expert, the number that would have chosen it by
 * scores alone, and the losses. */
HOOK(void, states_begin_step, Registry *r) {
    const Tensor *t = states_counters(r, COMM_SUM);
    if (!mutant_is_named(M_counts_of_earlier_steps) || !t->ndim || !running) {
        __real_states_begin_step(r);
        return;
    }
    const int64_t experts = running->run.config->num_experts, each = router_counters(experts);
    double *kept = mem_alloc(tensor_bytes(t));
    memcpy(kept, t->data, tensor_bytes(t));
    __real_states_begin_step(r);
    for (int64_t i = experts; i < t->dim[0]; i += each)
        memcpy((double *)t->data + i, kept + i, (size_t)experts * sizeof *kept);
    free(kept);
}

/* ---- logs and checkpoints ---- */

HOOK(Err, train_log_step, TrainLog *log, const Trainer *r, const StepReport *s, int64_t ns,
     const Times *times) {
    StepReport told = *s;
    if (mutant_is_named(M_params_norm_unrooted)) told.optim.params_norm *= told.optim.params_norm;
    for (int i = 0; i < ROUTER_LOSSES; i++)
        if (mutant_is_named(M_router_losses_not_averaged))
            told.router_loss[i] *= r->run.layout.mesh.size[AXIS_DP];
    return __real_train_log_step(log, r, &told, ns, times);
}

/* Not a bug, but a delay, so that the next steps change the values that an asynchronous save must have
 * copied. */
HOOK(Err, sink_open, Sink *s, const char *path) {
    enum { LONGER_THAN_A_STEP_US = 200000 };
    if (mutant_is_named(M_writes_slowly) && strstr(path, "/shard_")) usleep(LONGER_THAN_A_STEP_US);
    return __real_sink_open(s, path);
}
