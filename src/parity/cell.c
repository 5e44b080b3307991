#include "parity/cell.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/statistics.h"

static bool is_finite(const Case *c, const Trace *x) {
    bool finite = true;
    for (int64_t i = 0; i < c->total; i++) finite &= isfinite(x->parameters[i]) && isfinite(x->gradients[i]);
    for (int64_t i = 0; i < c->golden->n_steps; i++) finite &= isfinite(x->steps[i].loss) != 0;
    return finite;
}

static void judge_bits(const Case *c, const char *quantity, const double *x, const double *y,
                       const double *ranks, Report *report) {
    Row *row = report_row(report, quantity);
    for (int64_t i = 0; i < c->map.count; i++) {
        const int64_t at = c->at[i], n = hf_count(&c->map.tensors[i]);
        TensorError e = {.relative = distance_of(x + at, y + at, n)};
        /* finds the first element that differs */
        while (e.worst < n - 1 && x[at + e.worst] == y[at + e.worst]) e.worst++;
        if (!isfinite(e.relative)) e.relative = INFINITY;
        row_add(row, c->map.tensors[i].name, e, BOUND_EQUAL, INFINITY, (int64_t)ranks[at + e.worst]);
    }
}

static void judge_exact(const Case *c, const Trace *x, const Shared *shared, CellResult *r) {
    const Trace *one = shared->alone[LANE_EXACT];
    const bool equal = is_finite(c, x) && trace_hash(c, x) == trace_hash(c, one);
    judge_bits(c, "gradient of step 1", x->gradients, one->gradients, x->ranks, &r->one_rank);
    judge_bits(c, "parameter at the end", x->parameters, one->parameters, x->ranks, &r->one_rank);
    row_add(report_row(&r->one_rank, "hash"), "losses and parameters",
            (TensorError){.relative = equal ? 0 : INFINITY}, BOUND_EQUAL, INFINITY, NO_RANK);
    r->oracle.rows = *shared->exact;
}

/* Judges a run in a lane by the bounds that parity.h describes. */
static Err judge_by_noise(const Case *c, Lane lane, const Trace *x, const Trace *reference,
                          const Shared *shared, ParityReport *report) {
    *report = parity_report(c, lane);
    report->draws = PARITY_DRAWS;
    return parity_judge(c, x, shared->alone[LANE_FP64], shared->noisy[lane], reference, report);
}

Err cell_judge(const Case *c, const Config *config, const Trace *ours, const Shared *shared, CellResult *r) {
    const Lane lane = config->lane;
    const Trace *one = shared->alone[lane], *truth = shared->alone[LANE_FP64];
    r->ratio = NAN;
    if (lane == LANE_EXACT)
        judge_exact(c, ours, shared, r);
    else if (precision_is_low(config)) {
        ERR_RETURN(judge_by_noise(c, LANE_FP64, truth, NULL, shared, &r->oracle));
        ERR_RETURN(precision_judge(c, config, precision_shares(c) ? &shared->precision[lane] : NULL,
                                   &r->oracle.rows, &r->oracle.precision));
        r->ratio = r->oracle.precision.ratio;
    } else {
        ParityReport same;
        ERR_RETURN(judge_by_noise(c, lane, ours, NULL, shared, &r->oracle));
        ERR_RETURN(judge_by_noise(c, lane, ours, one, shared, &same));
        r->one_rank = same.rows;
    }
    r->pass = is_finite(c, ours) && report_passes(&r->oracle.rows) && report_passes(&r->one_rank);
    return ERR_OK;
}

const Row *cell_worst(const CellResult *r) {
    const Report *const reports[] = {&r->oracle.rows, &r->one_rank};
    const Row *worst = NULL;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < reports[k]->n; i++) {
            const Row *row = &reports[k]->row[i];
            if (!worst || !(row_excess(row) <= row_excess(worst))) worst = row;
        }
    return worst;
}

double cell_layer(const CellResult *r, int layer) {
    const Report *const reports[] = {&r->oracle.rows, &r->one_rank};
    double largest = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < reports[k]->n; i++) largest = fmax(largest, reports[k]->row[i].layer[layer]);
    return largest;
}

double cell_power(const CellResult *r) {
    const Report *rows = &r->oracle.rows;
    for (int i = 0; i < rows->n; i++)
        if (!strcmp(rows->row[i].quantity, PRECISION_POWER)) return rows->row[i].error.relative;
    return NAN;
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

static void put_data(const Config *c, Str *out) {
    static const int STAGE[] = {
        [SHARD_NONE] = 0, [SHARD_OPTIM] = 1, [SHARD_OPTIM_GRADS] = 2, [SHARD_OPTIM_GRADS_PARAMS] = 3};
    const int stage =
        c->use_megatron_fsdp ? STAGE[c->data_parallel_sharding_strategy] : c->use_distributed_optimizer;
    put(out, "dp%lld", (long long)c->derived.data_parallel_size);
    if (stage) put(out, "zero%lld", stage);
    if (c->num_distributed_optimizer_instances > 1)
        put(out, "instances%lld", (long long)c->num_distributed_optimizer_instances);
    if (i64_is_set(c->ddp_num_buckets)) put(out, "buckets%lld", (long long)c->ddp_num_buckets);
    if (i64_is_set(c->ddp_bucket_size)) put(out, "bucket-size%lld", (long long)c->ddp_bucket_size);
    if (c->overlap_grad_reduce) str_puts(out, " overlap-grads");
    if (c->overlap_param_gather) str_puts(out, " overlap-params");
    if (!c->overlap_with_attention) str_puts(out, " not-with-attention");
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

void cell_layout(const Config *c, Str *out) {
    if (c->tensor_model_parallel_size > 1) put(out, "tp%lld", (long long)c->tensor_model_parallel_size);
    if (c->tensor_model_parallel_size > 1 && c->sequence_parallel) str_puts(out, " sp");
    if (c->pipeline_model_parallel_size > 1) put_pipeline(c, out);
    if (c->context_parallel_size > 1) put_context(c, out);
    if (c->expert_model_parallel_size > 1) put(out, "ep%lld", (long long)c->expert_model_parallel_size);
    if (i64_is_set(c->expert_tensor_parallel_size))
        put(out, "etp%lld", (long long)c->expert_tensor_parallel_size);
    if (c->expert_model_parallel_size > 1 && c->moe_token_dispatcher_type != DISPATCH_ALLGATHER)
        str_printf(out, " %s", TokenDispatcher_spellings[c->moe_token_dispatcher_type]);
    if (c->derived.data_parallel_size > 1) put_data(c, out);
    if (c->recompute_granularity != RECOMPUTE_NONE) put_recompute(c, out);
    if (c->cpu_offloading_num_layers) put(out, "offload%lld", (long long)c->cpu_offloading_num_layers);
    if (c->derived.micro_batch_size > 1) put(out, "mbs%lld", (long long)c->derived.micro_batch_size);
    if (!out->len) str_puts(out, "one rank");
}
