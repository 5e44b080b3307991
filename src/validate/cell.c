#include "validate/cell.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What layouts may differ by, relative (see the head of cell.h). */
static const double STEP_1 = 1e-12, LAST_STEP = 1e-9, RATIO = 1.5;

/* A tensor is measured against itself if it has this share of the largest of its quantity: the sums that make
 * it carry the roundings of values of that size, u sqrt(K) of them, which is 1e-12 of this share. */
static const double SHARE = 1e-3;

static Row *new_row(CellResult *r, const char *quantity) {
    Row *row = &r->rank[r->rank_rows++];
    *row = (Row){0};
    snprintf(row->quantity, sizeof row->quantity, "%s", quantity);
    return row;
}

static double norm_of_difference(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - (y ? y[i] : 0)) * (x[i] - (y ? y[i] : 0));
    return sqrt(sum);
}

/* ||x - y|| / max(||y||, SHARE of the largest ||y||) of tensor i; not finite: infinite. */
static double share_of(const Case *c, int64_t i, const double *x, const double *y, double largest) {
    const int64_t n = case_count(&c->map.tensors[i]), at = c->at[i];
    const double d = norm_of_difference(x + at, y + at, n);
    if (!isfinite(d)) return INFINITY;
    return d == 0 ? 0 : d / fmax(norm_of_difference(y + at, NULL, n), SHARE * largest);
}

static double largest_of(const Case *c, const double *y) {
    double largest = 0;
    for (int64_t i = 0; i < c->map.count; i++)
        largest = fmax(largest, norm_of_difference(y + c->at[i], NULL, case_count(&c->map.tensors[i])));
    return largest;
}

static void judge_tensors(const Case *c, const double *x, const double *y, double bound, Row *row) {
    const double largest = largest_of(c, y);
    for (int64_t i = 0; i < c->map.count; i++)
        row_add(row, c->map.tensors[i].name, (TensorError){.relative = share_of(c, i, x, y, largest)}, bound,
                INFINITY);
}

static void judge_number(CellResult *r, const char *quantity, double x, double y) {
    const double e = x == y ? 0 : fabs(x - y) / fabs(y);
    row_add(new_row(r, quantity), "step 1", (TensorError){.relative = isfinite(e) ? e : INFINITY}, STEP_1,
            INFINITY);
}

/* ---- by lane ---- */

static void judge_fp64(const Case *c, const Trace *x, const Trace *y, CellResult *r) {
    judge_number(r, "loss", x->steps[0].loss, y->steps[0].loss);
    judge_number(r, "grad norm", x->steps[0].grad_norm, y->steps[0].grad_norm);
    judge_number(r, "clip coefficient", x->steps[0].clip, y->steps[0].clip);
    judge_tensors(c, x->gradients, y->gradients, STEP_1, new_row(r, "gradient of step 1"));
    judge_tensors(c, x->parameters, y->parameters, LAST_STEP, new_row(r, "parameter at the end"));
}

static bool is_finite(const Case *c, const Trace *x) {
    bool finite = true;
    for (int64_t i = 0; i < c->total; i++) finite &= isfinite(x->parameters[i]) && isfinite(x->gradients[i]);
    for (int64_t i = 0; i < c->golden->n_steps; i++) finite &= isfinite(x->steps[i].loss) != 0;
    return finite;
}

static void judge_exact(const Case *c, const Trace *x, const Trace *y, CellResult *r) {
    const double tiny = 0x1p-1000; /* anything but 0 fails */
    const bool equal = is_finite(c, x) && trace_hash(c, x) == trace_hash(c, y);
    judge_tensors(c, x->gradients, y->gradients, tiny, new_row(r, "gradient of step 1"));
    judge_tensors(c, x->parameters, y->parameters, tiny, new_row(r, "parameter at the end"));
    row_add(new_row(r, "hash"), "losses and parameters", (TensorError){.relative = equal ? 0 : INFINITY},
            tiny, INFINITY);
}

static void judge_ratio(const Case *c, double u, const Trace *x, const Trace *one, const Trace *truth,
                        CellResult *r) {
    const double largest = largest_of(c, truth->gradients);
    double ours = 0, theirs = 0;
    for (int64_t i = 0; i < c->map.count; i++) {
        const double a = share_of(c, i, x->gradients, truth->gradients, largest),
                     b = share_of(c, i, one->gradients, truth->gradients, largest);
        ours += a * a;
        theirs += fmax(b * b, u * u); /* one rounding of the tensor itself */
    }
    r->ratio = sqrt(ours / theirs);
    row_add(new_row(r, "R of gradients"), "step 1",
            (TensorError){.relative = isfinite(r->ratio) ? r->ratio : INFINITY}, RATIO, INFINITY);
}

/* The layer in a Hugging Face name: "model.layers.3.mlp..." or "transformer.h.3..."; -1: none. */
static int layer_of(const char *name) {
    static const char *const MARKS[] = {"layers.", "h."};
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(name, MARKS[i]);
        if (at && at[strlen(MARKS[i])] >= '0' && at[strlen(MARKS[i])] <= '9')
            return atoi(at + strlen(MARKS[i]));
    }
    return -1;
}

static void judge_layers(const Case *c, const Trace *x, const Trace *y, CellResult *r) {
    const double largest = largest_of(c, y->gradients);
    for (int64_t i = 0; i < c->map.count; i++) {
        const int layer = layer_of(c->map.tensors[i].name);
        double *worst = &r->layer_error[layer >= 0 && layer < CELL_LAYERS ? layer : CELL_LAYERS];
        const double e = share_of(c, i, x->gradients, y->gradients, largest);
        if (e > *worst) *worst = e;
    }
}

void cell_judge(const Case *c, Lane lane, const Trace *ours, const Shared *shared, CellResult *r) {
    const Trace *one = shared->alone[lane], *truth = shared->alone[LANE_FP64];
    r->ratio = NAN;
    r->oracle = parity_report(c, lane);
    if (lane != LANE_EXACT) {
        r->oracle.draws = PARITY_DRAWS;
        r->error = parity_judge(c, ours, truth, shared->noisy[lane], &r->oracle);
        if (r->error.code) return;
    }
    if (lane == LANE_FP64)
        judge_fp64(c, ours, one, r);
    else if (lane == LANE_EXACT)
        judge_exact(c, ours, one, r);
    else
        judge_ratio(c, r->oracle.roundoff, ours, one, truth, r);
    judge_layers(c, ours, one, r);
    r->pass = lane == LANE_EXACT || r->oracle.pass;
    for (int i = 0; i < r->rank_rows; i++) r->pass &= r->rank[i].pass;
}

double row_excess(const Row *r) {
    return fmax(r->error.relative / r->bound, r->error.elementwise / r->elementwise_bound);
}

const Row *cell_worst(const CellResult *r) {
    const Row *worst = NULL;
    for (int i = 0; i < r->oracle.rows + r->rank_rows; i++) {
        const Row *row = i < r->oracle.rows ? &r->oracle.row[i] : &r->rank[i - r->oracle.rows];
        if (!worst || !(row_excess(row) <= row_excess(worst))) worst = row;
    }
    return worst;
}

/* ---- names ---- */

static void put(Str *out, const char *fmt, long long n) {
    if (out->len) str_puts(out, " ");
    str_printf(out, fmt, n);
}

static void put_pipeline(const Config *c, Str *out) {
    put(out, "pp%lld", (long long)c->pipeline_model_parallel_size);
    if (i64_is_set(c->num_virtual_stages_per_pipeline_rank) && c->num_virtual_stages_per_pipeline_rank > 1)
        put(out, "vpp%lld", (long long)c->num_virtual_stages_per_pipeline_rank);
    if (i64_is_set(c->num_layers_per_virtual_pipeline_stage))
        put(out, "chunk%lld", (long long)c->num_layers_per_virtual_pipeline_stage);
    if (c->pipeline_schedule != SCHEDULE_AUTO)
        str_printf(out, " %s", PipelineSchedule_spellings[c->pipeline_schedule]);
    if (i64_is_set(c->microbatch_group_size_per_virtual_pipeline_stage))
        put(out, "group%lld", (long long)c->microbatch_group_size_per_virtual_pipeline_stage);
    if (i64_is_set(c->decoder_first_pipeline_num_layers))
        put(out, "first%lld", (long long)c->decoder_first_pipeline_num_layers);
    if (i64_is_set(c->decoder_last_pipeline_num_layers))
        put(out, "last%lld", (long long)c->decoder_last_pipeline_num_layers);
    if (c->account_for_embedding_in_pipeline_split) str_puts(out, " embedding-counts");
    if (c->account_for_loss_in_pipeline_split) str_puts(out, " loss-counts");
    if (c->pipeline_model_parallel_layout) str_printf(out, " %s", c->pipeline_model_parallel_layout);
}

static void put_context(const Config *c, Str *out) {
    put(out, "cp%lld", (long long)c->context_parallel_size);
    for (int64_t i = 0; i < c->cp_comm_type.count; i++)
        if (c->cp_comm_type.count > 1 || strcmp(c->cp_comm_type.at[i], "p2p"))
            str_printf(out, "/%s", c->cp_comm_type.at[i]);
}

static void put_data(const Config *c, const Derived *d, Str *out) {
    static const int STAGE[] = {
        [SHARD_NONE] = 0, [SHARD_OPTIM] = 1, [SHARD_OPTIM_GRADS] = 2, [SHARD_OPTIM_GRADS_PARAMS] = 3};
    const int stage =
        c->use_megatron_fsdp ? STAGE[c->data_parallel_sharding_strategy] : c->use_distributed_optimizer;
    put(out, "dp%lld", (long long)d->data_parallel_size);
    if (stage) put(out, "zero%lld", stage);
    if (c->num_distributed_optimizer_instances > 1)
        put(out, "instances%lld", (long long)c->num_distributed_optimizer_instances);
    if (i64_is_set(c->ddp_num_buckets)) put(out, "buckets%lld", (long long)c->ddp_num_buckets);
    if (i64_is_set(c->ddp_bucket_size)) put(out, "bucket-size%lld", (long long)c->ddp_bucket_size);
    if (c->overlap_grad_reduce) str_puts(out, " overlap-grads");
    if (c->overlap_param_gather) str_puts(out, " overlap-params");
}

static void put_recompute(const Config *c, Str *out) {
    if (out->len) str_puts(out, " ");
    str_printf(out, "recompute=%s", RecomputeGranularity_spellings[c->recompute_granularity]);
    if (c->recompute_granularity == RECOMPUTE_FULL)
        str_printf(out, "/%s/%lld", RecomputeMethod_spellings[c->recompute_method],
                   (long long)c->recompute_num_layers);
    for (int64_t i = 0; i < c->recompute_modules.count; i++)
        str_printf(out, "/%s", c->recompute_modules.at[i]);
}

void cell_layout(const Config *c, const Derived *d, Str *out) {
    if (c->tensor_model_parallel_size > 1) put(out, "tp%lld", (long long)c->tensor_model_parallel_size);
    if (c->tensor_model_parallel_size > 1 && c->sequence_parallel) str_puts(out, " sp");
    if (c->pipeline_model_parallel_size > 1) put_pipeline(c, out);
    if (c->context_parallel_size > 1) put_context(c, out);
    if (c->expert_model_parallel_size > 1) put(out, "ep%lld", (long long)c->expert_model_parallel_size);
    if (i64_is_set(c->expert_tensor_parallel_size))
        put(out, "etp%lld", (long long)c->expert_tensor_parallel_size);
    if (c->expert_model_parallel_size > 1 && c->moe_token_dispatcher_type != DISPATCH_ALLGATHER)
        str_printf(out, " %s", TokenDispatcher_spellings[c->moe_token_dispatcher_type]);
    if (d->data_parallel_size > 1) put_data(c, d, out);
    if (c->recompute_granularity != RECOMPUTE_NONE) put_recompute(c, out);
    if (c->cpu_offloading_num_layers) put(out, "offload%lld", (long long)c->cpu_offloading_num_layers);
    if (d->micro_batch_size > 1) put(out, "mbs%lld", (long long)d->micro_batch_size);
    if (!out->len) str_puts(out, "one rank");
}
