/* Planted bugs in the arguments or the results of a kernel. Every kernel of every rank is called through
 * call_run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "mutants/mutants.h"

typedef void CallRun(const OpDef *, const Call *);
CallRun __real_call_run;

static void with(const OpDef *op, const Call *c, const void *attr) {
    Call x = *c;
    x.attr = attr;
    __real_call_run(op, &x);
}

/* ---- attention ---- */

static AttentionAttr attention(const Call *c) { return *(const AttentionAttr *)c->attr; }

static void leak_next_key(const OpDef *op, const Call *c) {
    AttentionAttr a = attention(c);
    a.window_right = 1;
    with(op, c, &a);
}

static void window_one_wider(const OpDef *op, const Call *c) {
    AttentionAttr a = attention(c);
    if (a.window_left != WINDOW_OFF) a.window_left++;
    with(op, c, &a);
}

static void chunk_one_longer(const OpDef *op, const Call *c) {
    AttentionAttr a = attention(c);
    if (a.chunk_size) a.chunk_size++;
    with(op, c, &a);
}

static void scale_by_local_heads(const OpDef *op, const Call *c) {
    AttentionAttr a = attention(c);
    a.scale *= sqrt(mutant_place()->mesh.size[AXIS_TP]);
    with(op, c, &a);
}

static void scores_too_large(const OpDef *op, const Call *c) {
    AttentionAttr a = attention(c);
    if (c->in[0]->dtype != F64) a.scale *= 1.05;
    with(op, c, &a);
}

static void same_heads_drop(const OpDef *op, const Call *c) {
    AttentionAttr a = attention(c);
    a.first_head = 0;
    with(op, c, &a);
}

/* Shifts the table by one row, so that row i has the bias of bucket i + 1. */
static void bias_of_next_bucket(const OpDef *op, const Call *c) {
    const Tensor *bias = c->in[5];
    Call x = *c;
    Tensor moved;
    char rows[4096];
    const size_t bytes = bias ? tensor_bytes(bias) : 0, row = bias ? bytes / (size_t)bias->dim[0] : 0;
    if (bytes && bytes <= sizeof rows) {
        memcpy(rows, bias->data, bytes);
        memmove(rows, rows + row, bytes - row);
        moved = *bias;
        moved.data = rows;
        x.in[5] = &moved;
    }
    __real_call_run(op, &x);
}

/* Uses the sinks of the first heads, as if the all-to-all had not exchanged heads for rows. */
static void sinks_of_first_heads(const OpDef *op, const Call *c) {
    AttentionAttr a = attention(c);
    a.first_local = 0;
    with(op, c, &a);
}

/* Discards the merged log-sum-exps, so that the backward pass uses the old ones. */
static void merge_keeps_lse(const OpDef *op, const Call *c) {
    Tensor *lse = c->out[1];
    double kept[4096];
    const size_t bytes = tensor_extent(lse);
    if (bytes <= sizeof kept) memcpy(kept, lse->data, bytes);
    __real_call_run(op, c);
    if (bytes <= sizeof kept) memcpy(lse->data, kept, bytes);
}

static void nothing(const OpDef *op, const Call *c) { (void)op, (void)c; }

static void twice(const OpDef *op, const Call *c) {
    __real_call_run(op, c);
    Call again = *c;
    Tensor out[CALL_OUT];
    for (int i = 0; i < CALL_OUT; i++) {
        if (!c->out[i]) continue;
        out[i] = *c->out[i];
        out[i].flags |= TENSOR_ACCUM;
        again.out[i] = &out[i];
    }
    __real_call_run(op, &again);
}

static void overwrite(const OpDef *op, const Call *c) {
    Call x = *c;
    Tensor out;
    if (c->out[0]) {
        out = *c->out[0];
        out.flags &= ~(unsigned)TENSOR_ACCUM;
        x.out[0] = &out;
    }
    __real_call_run(op, &x);
}

/* ---- vocabulary ---- */

static void loss_offset(const OpDef *op, const Call *c) {
    LossAttr a = *(const LossAttr *)c->attr;
    a.first--;
    with(op, c, &a);
}

static void embedding_offset(const OpDef *op, const Call *c) {
    EmbeddingAttr a = *(const EmbeddingAttr *)c->attr;
    if (a.first) a.first++;
    with(op, c, &a);
}

/* ---- random numbers ---- */

static void other_seed(const OpDef *op, const Call *c) {
    DropoutAttr a = *(const DropoutAttr *)c->attr;
    a.seed += (uint64_t)mutant_place()->mesh.rank;
    with(op, c, &a);
}

static void first_rows_drop(const OpDef *op, const Call *c) {
    DropoutAttr a = *(const DropoutAttr *)c->attr;
    a.slice = (SequenceSlice){0};
    with(op, c, &a);
}

static void first_samples_drop(const OpDef *op, const Call *c) {
    DropoutAttr a = *(const DropoutAttr *)c->attr;
    a.first_sample -= mutant_place()->mesh.coordinate[AXIS_DP];
    with(op, c, &a);
}

/* Changes the seed of dropout in recomputed blocks; the forward pass has used the run's seed. */
static void seed_of_recompute(const OpDef *op, const Call *c) {
    DropoutAttr a = *(const DropoutAttr *)c->attr;
    a.seed += (uint64_t)mutant_place()->blocks;
    with(op, c, &a);
}

/* ---- optimizer ---- */

/* Returns the attributes, including the values that change in each step. */
static AdamAttr adam(const Call *c) {
    AdamAttr a = *(const AdamAttr *)c->attr;
    const StepNumbers *s = c->in[2]->data;
    memcpy(a.group, s->group, sizeof a.group);
    a.correction1 = 1 / s->unbias1, a.correction2 = 1 / s->unbias2, a.grad_scale = s->grad_scale;
    return a;
}

static void step_with(const OpDef *op, const Call *c, const AdamAttr *a) {
    Call call = *c;
    call.in[2] = NULL;
    call.attr = a;
    __real_call_run(op, &call);
}

static void correct_one_step_late(const OpDef *op, const Call *c) {
    AdamAttr a = adam(c);
    a.correction1 = 1 - (1 - a.correction1) * a.beta1;
    step_with(op, c, &a);
}

static void second_uncorrected(const OpDef *op, const Call *c) {
    AdamAttr a = adam(c);
    a.correction2 = 1;
    step_with(op, c, &a);
}

static void decay_everything(const OpDef *op, const Call *c) {
    AdamAttr a = adam(c);
    for (int i = 0; i < STEP_GROUPS; i++) a.group[i].weight_decay = mutant_place()->optim->weight_decay;
    step_with(op, c, &a);
}

static void eps_before_correction(const OpDef *op, const Call *c) {
    AdamAttr a = adam(c);
    for (int i = 0; i < STEP_GROUPS; i++) a.group[i].eps /= sqrt(a.correction2);
    step_with(op, c, &a);
}

static void half_an_update(const OpDef *op, const Call *c) {
    AdamAttr a = adam(c);
    for (int i = 0; i < STEP_GROUPS; i++) a.group[i].lr /= 2;
    step_with(op, c, &a);
}

static void unclipped(const OpDef *op, const Call *c) {
    AdamAttr a = adam(c);
    a.grad_scale = mutant_place()->optim->grad_scale;
    step_with(op, c, &a);
}

/* ---- experts ---- */

static void next_probs(const OpDef *op, const Call *c) {
    __real_call_run(op, c);
    double *p = c->out[0]->data;
    const int64_t k = c->out[0]->dim[2], n = tensor_count(c->out[0]);
    for (int64_t i = 0; c->out[0]->dtype == F64 && k > 1 && i < n; i += k) {
        const double first = p[i];
        memmove(&p[i], &p[i + 1], (size_t)(k - 1) * sizeof *p);
        p[i + k - 1] = first;
    }
}

/* Sends the first token of a call to an expert that it did not choose, with that expert's probability. */
static void first_token_elsewhere(const OpDef *op, const Call *c) {
    __real_call_run(op, c);
    const int64_t k = c->out[1]->dim[2], experts = c->in[0]->dim[2], tokens = tensor_count(c->out[1]) / k;
    const int64_t *chosen = c->out[1]->data;
    float score[4096] = {0};
    if (c->in[0]->dtype != F32 || c->in[1] || tokens * experts > 4096 || k >= experts) return;
    for (int64_t i = 0; i < tokens * k; i++) score[i / k * experts + chosen[i]] = 1;
    int64_t other = 0;
    while (score[other] != 0) other++;
    score[other] = 1, score[chosen[0]] = 0;
    Tensor select = *c->in[0];
    select.data = score;
    Call x = *c;
    x.in[1] = &select;
    __real_call_run(op, &x);
}

/* ---- Mamba-2 and Gated DeltaNet ---- */

static void steps_without_limit(const OpDef *op, const Call *c) {
    ScanAttr a = *(const ScanAttr *)c->attr;
    a.least = 0;
    with(op, c, &a);
}

/* Runs the op with different data in operand i. Frees the data. */
static void with_data(const OpDef *op, const Call *c, int i, Tensor operand, void *data) {
    Call x = *c;
    operand.data = data;
    x.in[i] = &operand;
    __real_call_run(op, &x);
    free(data);
}

/* Begins a document at the first position of each chunk. */
static void begin_documents(const OpDef *op, const Call *c, int64_t chunk) {
    const int64_t s = c->in[0]->dim[0], b = c->in[0]->dim[1];
    int64_t *start = mem_alloc((size_t)(s * b) * sizeof *start);
    for (int64_t i = 0; i < s * b; i++) start[i] = i % s / chunk * chunk;
    with_data(op, c, 5, tensor_make(NULL, I64, 2, (int64_t[]){b, s}), start);
}

static void scan_state_lost(const OpDef *op, const Call *c) {
    begin_documents(op, c, ((const ScanAttr *)c->attr)->chunk);
}

static void delta_state_lost(const OpDef *op, const Call *c) {
    begin_documents(op, c, ((const DeltaRuleAttr *)c->attr)->chunk);
}

static void taps_reversed(const OpDef *op, const Call *c) {
    const Tensor *w = c->in[1];
    double *taps = mem_copy(w->data, tensor_bytes(w));
    const int64_t k = w->dim[1];
    for (int64_t i = 0; w->dtype == F64 && i < tensor_count(w); i++)
        taps[i] = ((const double *)w->data)[i / k * k + k - 1 - i % k];
    with_data(op, c, 1, *w, taps);
}

/* Rotates the columns of two blocks, each of `own` columns, from column `first` on. */
static void with_rotated(const OpDef *op, const Call *c, int64_t first, int64_t own, int64_t by) {
    const Tensor *x = c->in[0];
    const int64_t width = x->dim[2];
    double *moved = mem_copy(x->data, tensor_bytes(x));
    for (int64_t i = 0; x->dtype == F64 && i < tensor_count(x); i++) {
        const int64_t at = i % width - first, block = at / own;
        if (at >= 0 && block < 2)
            moved[i] = ((const double *)x->data)[i - at + block * own + (at % own + by) % own];
    }
    with_data(op, c, 0, *x, moved);
}

/* Moves B and C of each group to the next group. */
static void states_of_next_group(const OpDef *op, const Call *c) {
    const ScanAttr *a = c->attr;
    const int64_t own = a->groups * a->state;
    with_rotated(op, c, c->in[0]->dim[2] - 2 * own, own, a->state);
}

/* Moves q and k of each key head to the next key head. */
static void keys_of_next_head(const OpDef *op, const Call *c) {
    const DeltaRuleAttr *a = c->attr;
    with_rotated(op, c, 0, a->key_heads * a->key_dim, a->key_dim);
}

static void with_zeros(const OpDef *op, const Call *c, int i) {
    with_data(op, c, i, *c->in[i], mem_zero(1, tensor_bytes(c->in[i])));
}

static void decay_without_rate(const OpDef *op, const Call *c) { with_zeros(op, c, 3); }
static void decay_without_bias(const OpDef *op, const Call *c) { with_zeros(op, c, 4); }

static void gate_by_silu(const OpDef *op, const Call *c) { with(op, c, &(GateAttr){.silu = true}); }

static void across_documents(const OpDef *op, const Call *c) {
    Call x = *c;
    x.in[op == &OPS[OP_causal_conv] ? 3 : 5] = NULL;
    __real_call_run(op, &x);
}

/* ---- hardware ---- */

/* Flips one bit of one element in one step: 63 is the sign, 62..52 the exponent, 51..0 the mantissa. */
static void flip(const Call *c, int bit) {
    Tensor *y = c->out[0];
    if (mutant_place()->step != 2 || !y || y->dtype != F64 || tensor_count(y) < 6) return;
    uint64_t x;
    char *at = (char *)y->data + 5 * sizeof x;
    memcpy(&x, at, sizeof x);
    x ^= UINT64_C(1) << bit;
    memcpy(at, &x, sizeof x);
}

static void flip_sign(const OpDef *op, const Call *c) {
    __real_call_run(op, c);
    flip(c, 63);
}

static void flip_exponent(const OpDef *op, const Call *c) {
    __real_call_run(op, c);
    flip(c, 52);
}

static void flip_mantissa(const OpDef *op, const Call *c) {
    __real_call_run(op, c);
    flip(c, (int)mutant_value(30));
}

static void last_eight_zero(const OpDef *op, const Call *c) {
    __real_call_run(op, c);
    Tensor *y = c->out[0];
    const int64_t n = y ? tensor_count(y) : 0;
    const size_t size = n ? dtype_size((DType)y->dtype) : 0;
    if (n >= 8) memset((char *)y->data + (size_t)(n - 8) * size, 0, 8 * size);
}

/* ---- which ---- */

static const struct {
    MutantId id;
    OpNumber op;
    CallRun *run;
} TABLE[] = {
    {M_causal_leak, OP_attention, leak_next_key},
    {M_window_wider, OP_attention, window_one_wider},
    {M_chunk_longer, OP_attention, chunk_one_longer},
    {M_softmax_scale, OP_attention, scale_by_local_heads},
    {M_scores_of_low_precision, OP_attention, scores_too_large},
    {M_scores_of_low_precision, OP_attention_grad, scores_too_large},
    {M_dropout_same_heads, OP_attention, same_heads_drop},
    {M_dropout_same_heads, OP_attention_grad, same_heads_drop},
    {M_bias_of_next_bucket, OP_attention, bias_of_next_bucket},
    {M_cp_merge_lse, OP_attention_merge, merge_keeps_lse},
    {M_cp_merge_skipped, OP_attention_merge, nothing},
    {M_sinks_skipped, OP_attention_sink, nothing},
    {M_sinks_of_first_heads, OP_attention_sink, sinks_of_first_heads},
    {M_sink_gradient_of_first_heads, OP_attention_sink_grad, sinks_of_first_heads},
    {M_sink_gradient_overwrites, OP_attention_sink_grad, overwrite},
    {M_wgrad_twice, OP_linear_wgrad, twice},
    {M_dgrad_overwrites, OP_norm_grad, overwrite},
    {M_vocab_loss_offset, OP_cross_entropy_shard, loss_offset},
    {M_vocab_embedding_offset, OP_embedding, embedding_offset},
    {M_vocab_embedding_grad_offset, OP_embedding_grad, embedding_offset},
    {M_dropout_replicas_differ, OP_dropout, other_seed},
    {M_dropout_same_shards, OP_dropout, first_rows_drop},
    {M_dropout_same_samples, OP_dropout, first_samples_drop},
    {M_recompute_other_seed, OP_dropout, seed_of_recompute},
    {M_adam_bias_correction, OP_adamw, correct_one_step_late},
    {M_adam_second_uncorrected, OP_adamw, second_uncorrected},
    {M_adam_decays_norms, OP_adamw, decay_everything},
    {M_adam_eps, OP_adamw, eps_before_correction},
    {M_update_halved, OP_adamw, half_an_update},
    {M_clip_forgotten, OP_adamw, unclipped},
    {M_moe_other_probs, OP_route, next_probs},
    {M_moe_token_elsewhere, OP_route, first_token_elsewhere},
    {M_moe_tail_dropped, OP_permute, last_eight_zero},
    {M_scan_unlimited, OP_ssd_scan, steps_without_limit},
    {M_scan_state_lost, OP_ssd_scan, scan_state_lost},
    {M_delta_state_lost, OP_gated_delta_rule, delta_state_lost},
    {M_delta_next_key, OP_gated_delta_rule, keys_of_next_head},
    {M_delta_without_rate, OP_gated_delta_rule, decay_without_rate},
    {M_delta_without_bias, OP_gated_delta_rule, decay_without_bias},
    {M_delta_across_documents, OP_gated_delta_rule, across_documents},
    {M_attention_gate_silu, OP_gate, gate_by_silu},
    {M_scan_next_group, OP_ssd_scan, states_of_next_group},
    {M_conv_reversed, OP_causal_conv, taps_reversed},
    {M_scan_across_documents, OP_ssd_scan, across_documents},
    {M_conv_across_documents, OP_causal_conv, across_documents},
    {M_linear_tail_dropped, OP_linear, last_eight_zero},
    {M_flip_sign, OP_linear, flip_sign},
    {M_flip_exponent, OP_linear, flip_exponent},
    {M_flip_mantissa, OP_linear, flip_mantissa},
    {M_flip_gradient, OP_linear_dgrad, flip_exponent},
};

HOOK(void, call_run, const OpDef *op, const Call *c) {
    for (size_t i = 0; c->device->kind != DEVICE_NULL && i < sizeof TABLE / sizeof *TABLE; i++)
        if (op == &OPS[TABLE[i].op] && mutant_is(TABLE[i].id)) {
            TABLE[i].run(op, c);
            return;
        }
    __real_call_run(op, c);
}
