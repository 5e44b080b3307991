#include "parity/localise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/statistics.h"
#include "parity/probe.h"
#include "parity/signature.h"

/* The bound on errors. Two correct fp64 runs differ by about 1e-12, and a fault causes a far larger error. */
static const double BOUND = 1e-8;
/* A tensor's error is relative to its RMS or, if larger, to SHARE times the largest RMS among tensors of its
 * kind. */
static const double SHARE = 1e-6;

typedef struct Search {
    const Case *of;
    Config config;
    const Trace *ours, *one;
    int ranks;
    int64_t step;                     /* the first differing step */
    double bound[RECORD_UPDATED + 1]; /* bound for each kind, from the RMS of its tensors */
    Log *ref, *logs;
    /* the first record whose error exceeds the bound, on the lowest rank that has such a record */
    const Record *found;
    int rank;
} Search;

/* ---- the first wrong step ---- */

static bool differs(double x, double y) { return !(fabs(x - y) <= BOUND * fabs(y)); }

static bool step_differs(const Search *s, const Trace *t, int64_t i) {
    const GoldenStep *x = &t->steps[i], *y = &s->one->steps[i];
    const bool exact = s->config.lane == LANE_EXACT;
    return exact ? x->loss != y->loss || x->grad_norm != y->grad_norm
                 : differs(x->loss, y->loss) || differs(x->grad_norm, y->grad_norm) ||
                       differs(x->clip, y->clip);
}

static bool tensors_differ(const Search *s, const double *x, const double *y) {
    const double d = distance_of(x, y, s->of->total);
    return s->config.lane == LANE_EXACT ? d != 0 : !(d <= BOUND * norm_of(y, s->of->total));
}

static bool wrong_until(const Search *s, const Trace *t, int64_t step) {
    for (int64_t i = 0; i <= step; i++)
        if (step_differs(s, t, i)) return true;
    if (step == 0 && tensors_differ(s, t->gradients, s->one->gradients)) return true;
    return step == s->of->golden->n_steps - 1 && tensors_differ(s, t->parameters, s->one->parameters);
}

/* Returns the first step in which a run differs from the oracle, or n_steps if no step differs. */
static int64_t first_wrong(const Golden *oracle, const Trace *t) {
    int64_t i = 0;
    while (i < oracle->n_steps && !differs(t->steps[i].loss, oracle->steps[i].loss) &&
           !differs(t->steps[i].grad_norm, oracle->steps[i].grad_norm) &&
           !differs(t->steps[i].lr, oracle->steps[i].lr))
        i++;
    return i;
}

/* ---- comparison ---- */

static void set_bounds(Search *s) {
    for (int64_t i = 0; i < s->ref->n; i++) {
        const Record *r = &s->ref->records[i];
        s->bound[r->kind] = fmax(s->bound[r->kind], SHARE * rms_of(r->shape.data, tensor_count(&r->shape)));
    }
}

/* Returns whether the error of x relative to the expected y exceeds the bound. */
static bool is_out(const Search *s, RecordKind kind, const double *x, const double *y, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(x[i] - y[i]) <= most)) most = fabs(x[i] - y[i]);
    if (s->config.lane == LANE_EXACT) return !(most <= ldexp(1, -EXACT_GRID_BITS - 4));
    return !(distance_of(x, y, n) <= BOUND * fmax(rms_of(y, n), s->bound[kind]) * sqrt((double)n));
}

static unsigned summand_axes(const Search *s, const Record *r) {
    const Mesh *m = &s->logs[0].mesh;
    unsigned axes = 0;
    for (int a = 0; a <= AXIS_CP; a++)
        if (m->size[a] > 1 && spmd_on(r->shape.spmd, a) == SPMD_P) axes |= 1u << a;
    return axes;
}

/* Sets x[n] to the elements of the record and y[n] to the corresponding elements of the full tensor. The ranks'
 * summands are added. Returns false if the elements cannot be determined. */
static bool side_by_side(const Search *s, int rank, const Record *r, const Record *whole, double **x,
                         double **y, int64_t *n) {
    const Group g = mesh_group(&s->logs[rank].mesh, summand_axes(s, r));
    const int64_t all = tensor_count(&whole->shape);
    double *sum = mem_zero((size_t)(all ? all : 1), sizeof *sum);
    bool *have = mem_zero((size_t)(all ? all : 1), sizeof *have), told = true;
    for (int i = 0; i < g.size && told; i++) {
        const int member = mesh_member(&g, i);
        const Record *part = member == rank ? r : log_find(&s->logs[member], r);
        int64_t *at = part ? record_index(part, &s->logs[member].mesh, whole) : NULL;
        told = at != NULL;
        for (int64_t k = 0; told && k < tensor_count(&part->shape); k++)
            if (at[k] >= 0) sum[at[k]] += ((double *)part->shape.data)[k], have[at[k]] = true;
        free(at);
    }
    *x = mem_zero((size_t)(all ? all : 1), sizeof **x), *y = mem_zero((size_t)(all ? all : 1), sizeof **y),
    *n = 0;
    for (int64_t k = 0; told && k < all; k++)
        if (have[k]) (*x)[*n] = sum[k], (*y)[(*n)++] = ((double *)whole->shape.data)[k];
    free(sum), free(have);
    return told;
}

static bool record_is_out(const Search *s, int rank, const Record *r, const Record *whole) {
    double *x, *y;
    int64_t n;
    const bool out = side_by_side(s, rank, r, whole, &x, &y, &n) && is_out(s, r->kind, x, y, n);
    free(x), free(y);
    return out;
}

/* Returns the one-rank run's corresponding record, or NULL if the record is not compared. */
static const Record *whole_of(const Search *s, const Record *r) {
    if (r->received) { /* the record is an input of the next record's op */
        const Record *taker = log_find(s->ref, r + 1);
        return taker && taker->from >= 0 ? &s->ref->records[taker->from] : NULL;
    }
    if (!r->name || r->kind == RECORD_PARTIAL || (r->moved && r->kind != RECORD_OUTPUT)) return NULL;
    return log_find(s->ref, r);
}

/* Finds the first wrong record in the order of the one-rank run, so that the inputs of this record are correct.
 * A collective's result comes after the value from which the collective computed it. */
static void find_first(Search *s) {
    int64_t first = INT64_MAX;
    for (int rank = 0; rank < s->ranks; rank++)
        for (int64_t i = 0; i < s->logs[rank].n; i++) {
            const Record *r = &s->logs[rank].records[i], *whole = whole_of(s, r);
            if (!whole) continue;
            const int64_t order = 2 * (whole - s->ref->records) + r->moved;
            if (order >= first || !record_is_out(s, rank, r, whole)) continue;
            first = order, s->found = r, s->rank = rank;
        }
}

/* ---- the finding ---- */

static const Record *same_on(const Search *s, int rank) {
    if (rank == s->rank) return s->found;
    for (int64_t i = 0; i < s->logs[rank].n; i++) {
        const Record *r = &s->logs[rank].records[i], *f = s->found;
        if (r->name == f->name && r->kind == f->kind && r->which == f->which && r->step == f->step &&
            r->sample == f->sample && r->again == f->again && !strcmp(r->op, f->op))
            return r;
    }
    return NULL;
}

static void put_ranks(const Search *s, char *out, size_t size) {
    Str text = {0};
    for (int rank = 0; rank < s->ranks; rank++) {
        const Record *r = same_on(s, rank);
        if (!r || !record_is_out(s, rank, r, whole_of(s, r))) continue;
        str_printf(&text, "%s%d", text.len ? "," : "", rank);
    }
    snprintf(out, size, "%s", text.s ? text.s : "");
    str_free(&text);
}

static bool is_parameter_kind(RecordKind k) {
    return k == RECORD_START || k == RECORD_WEIGHT || k == RECORD_SUM || k == RECORD_UPDATED;
}

/* Writes the bounding box of all wrong elements on this rank, in indices of the full tensor. */
static void put_slice(const Search *s, const Record *whole, char *out, size_t size) {
    const Record *r = s->found;
    const Tensor *w = &whole->shape;
    int64_t *at = record_index(r, &s->logs[s->rank].mesh, whole), low[TENSOR_DIMS], high[TENSOR_DIMS];
    const bool matrix = is_parameter_kind(r->kind) && r->columns > 1;
    const int64_t rows_columns[] = {whole->n_map, whole->columns}, *extent = matrix ? rows_columns : w->dim;
    const int dims = matrix ? 2 : w->ndim;
    for (int d = 0; d < dims; d++) low[d] = INT64_MAX, high[d] = -1;
    for (int64_t k = 0; at && k < tensor_count(&r->shape); k++) {
        const double x = ((double *)r->shape.data)[k], y = at[k] < 0 ? x : ((double *)w->data)[at[k]];
        if (at[k] < 0 || fabs(x - y) <= BOUND * fmax(fabs(y), s->bound[r->kind])) continue;
        int64_t rest = at[k] + whole->begin;
        for (int d = dims; d-- > 0; rest /= extent[d]) {
            const int64_t i = rest % extent[d];
            if (i < low[d]) low[d] = i;
            if (i > high[d]) high[d] = i;
        }
    }
    Str text = {0};
    for (int d = 0; d < dims && high[d] >= 0; d++)
        str_printf(&text, "%s%lld:%lld", d ? ", " : "[", (long long)low[d], (long long)high[d] + 1);
    snprintf(out, size, "%s%s", text.s ? text.s : "no individual elements", text.s ? "]" : "");
    str_free(&text);
    free(at);
}

/* Writes each rank's summand of the found record in the record's layout. A summand is the op's result before its
 * collective, or the sum of the microbatches' gradients. `out` has a row for each rank. Returns false if a summand is
 * unknown. */
static bool summands(const Search *s, const Record *whole, double *out, int64_t n) {
    int known = 0;
    for (int rank = 0; rank < s->ranks; rank++) {
        const Record *r = same_on(s, rank);
        const Log *log = &s->logs[rank];
        for (int64_t i = 0; i < log->n && r; i++) {
            const Record *part = &log->records[i];
            const bool mine = r->kind == RECORD_SUM ? part->kind == RECORD_WEIGHT && part->step == r->step &&
                                                          !strcmp(part->place, r->place)
                                                    : i == r->partial;
            int64_t *at = mine ? record_index(part, &log->mesh, whole) : NULL;
            for (int64_t k = 0; at && k < tensor_count(&part->shape); k++)
                if (at[k] >= 0)
                    out[rank * n + at[k]] +=
                        ((double *)part->shape.data)[k] * (r->kind == RECORD_SUM ? log->scale : 1);
            known += at != NULL;
            free(at);
        }
    }
    return known > 0;
}

static void put_signature(const Search *s, const Record *whole, Finding *f) {
    const Record *r = s->found;
    const int64_t all = tensor_count(&whole->shape);
    double *x, *y, *parts = mem_zero((size_t)(all * s->ranks + 1), sizeof *parts);
    int64_t n;
    if (side_by_side(s, s->rank, r, whole, &x, &y, &n)) {
        const bool has_parts = n == all && summands(s, whole, parts, n);
        signature_of((Suspect){.x = x,
                               .y = y,
                               .n = n,
                               .summands = has_parts ? parts : NULL,
                               .ranks = s->ranks,
                               .rank = s->rank},
                     f->signature, sizeof f->signature);
        /* Checks whether x is the tensor from a different microbatch or step. */
        for (int64_t i = 0; i < s->ref->n; i++) {
            const Record *o = &s->ref->records[i];
            if (o == whole || o->name != r->name || o->kind != r->kind || o->which != r->which || n != all ||
                tensor_count(&o->shape) != n)
                continue;
            if (!is_out(s, r->kind, x, o->shape.data, n))
                snprintf(f->signature, sizeof f->signature, "stale: from sample %lld of step %lld",
                         (long long)o->sample, (long long)o->step + 1);
        }
    }
    free(x), free(y), free(parts);
}

static const char *const PHASES[] = {
    [RECORD_START] = "parameter before the step",
    [RECORD_OUTPUT] = "forward",
    [RECORD_GRADIENT] = "backward",
    [RECORD_INPUT] = "backward",
    [RECORD_WEIGHT] = "weight gradient",
    [RECORD_SUM] = "gradient sum",
    [RECORD_NUMBER] = "end of the step",
    [RECORD_UPDATED] = "update",
};

/* Returns the op that caused a wrong incoming gradient: the last collective whose backward pass wrote the
 * gradient on this rank. If no op wrote the gradient, returns the transfer from the next pipeline stage. */
static const char *bringer(const Search *s) {
    const Record *f = s->found, *first = s->logs[s->rank].records;
    for (const Record *r = f; r >= first && r->step == f->step; r--)
        if (r->kind == RECORD_INPUT && r->at == f->at && r->sample == f->sample)
            return r->moved ? r->op : NULL;
    return s->logs[s->rank].mesh.size[AXIS_PP] > 1 ? "pipeline_gradient" : NULL;
}

/* Infers the wrong gradient sum from the set of wrong parameters. */
static const char *which_sum(const Search *s) {
    const Log *log = &s->logs[s->rank];
    int out[2] = {0}, all[2] = {0}; /* the index is 1 if the parameter is replicated over tp, otherwise 0 */
    bool others = false;
    for (int64_t i = 0; i < log->n; i++) {
        const Record *r = &log->records[i],
                     *whole = r->kind == RECORD_SUM && r->step == s->found->step ? whole_of(s, r) : NULL;
        if (!whole) continue;
        const bool is_out = record_is_out(s, s->rank, r, whole),
                   replicated = spmd_on(r->shape.spmd, AXIS_TP) != SPMD_V;
        all[replicated]++, out[replicated] += is_out;
        others |= is_out && !r->tied;
    }
    const Mesh *m = &log->mesh;
    if (!others && s->found->tied) return "tied_grad_sum";
    if (m->size[AXIS_TP] > 1 && out[true] && !out[false] && all[false]) return "replicated_grad_sum";
    return out[true] == all[true] && out[false] == all[false] ? "gradient" : "grad_sum";
}

/* Finds an output that is one rank's summand, and that an op used before the sum over ranks was computed. */
static const Record *unsummed(const Search *s) {
    const Record *f = s->found;
    if (f->kind != RECORD_OUTPUT || f->moved || f->from < 0) return NULL;
    const Record *from = &s->logs[s->rank].records[f->from];
    return summand_axes(s, from) && !summand_axes(s, f) ? from : NULL;
}

/* Returns whether the update of the parameter was correct. If so, the fault is in the all-gather of
 * parameters. */
static bool was_right(const Search *s) {
    const Record *f = s->found;
    if (f->kind != RECORD_START || (f->step > 0 && f->step == s->logs[s->rank].first)) return false;
    const Mesh *m = &s->logs[s->rank].mesh;
    return m->size[AXIS_DP] * m->size[AXIS_CP] > 1;
}

/* Returns the kernel that computed a wrong gradient. If the sum of the ranks' results is correct, returns the
 * collective after the kernel. If the cause is unknown, returns NULL. */
static const char *backward_part(const Search *s, const Record *whole) {
    const Record *r = s->found;
    const int64_t all = tensor_count(&whole->shape);
    double *parts = mem_zero((size_t)(all * s->ranks + 1), sizeof *parts),
           *sum = mem_zero((size_t)(all + 1), sizeof *sum);
    const char *part = r->partial >= 0 ? s->logs[s->rank].records[r->partial].op : r->inside;
    if (r->partial >= 0 && summands(s, whole, parts, all)) {
        for (int64_t i = 0; i < all * s->ranks; i++) sum[i % all] += parts[i];
        if (!is_out(s, r->kind, sum, whole->shape.data, all))
            part = spmd_on(r->shape.spmd, AXIS_TP) == SPMD_V ? "reduce_scatter" : "all_reduce";
    }
    free(parts), free(sum);
    return *part && strcmp(part, "copy") ? part : NULL;
}

static void describe(const Search *s, Finding *f) {
    const Record *r = s->found, *whole = whole_of(s, r), *summand = unsummed(s);
    *f = (Finding){.found = true, .step = r->step, .sample = r->sample == END_OF_STEP ? -1 : r->sample};
    put_ranks(s, f->ranks, sizeof f->ranks);
    put_slice(s, whole, f->slice, sizeof f->slice);
    put_signature(s, whole, f);
    const char *op = r->kind == RECORD_GRADIENT                            ? bringer(s)
                     : r->kind == RECORD_SUM                               ? which_sum(s)
                     : summand                                             ? "all_reduce"
                     : r->kind == RECORD_INPUT || r->kind == RECORD_WEIGHT ? backward_part(s, whole)
                                                                           : NULL;
    if (r->kind == RECORD_SUM && !strcmp(op, "gradient") && strncmp(f->signature, "scaled", 6))
        op = "grad_sum";
    if (was_right(s)) op = "param_gather";
    if (summand)
        snprintf(f->signature, sizeof f->signature,
                 "op '%s' received a summand: the sum over ranks is missing", r->op);
    snprintf(f->phase, sizeof f->phase, "%s", r->again ? "recompute" : PHASES[r->kind]);
    snprintf(f->op, sizeof f->op, "%s", op ? op : !strcmp(r->op, "bias") ? "linear" : r->op);
    snprintf(f->place, sizeof f->place, "%s", r->received ? whole->place : r->place);
    const bool missing = strstr(f->signature, "sum over ranks is missing") != NULL;
    const char *sum = spmd_on(r->shape.spmd, AXIS_TP) == SPMD_V ? "reduce_scatter" : "all_reduce";
    snprintf(f->inside, sizeof f->inside, "%s", missing && r->sample != END_OF_STEP ? sum : r->inside);
}

/* ---- confirmation ---- */

/* Overwrites every tensor of the found op and kind with the one-rank run's elements. */
static void splice(void *arg, Log *log, const Record *r, Tensor *live) {
    const Search *s = arg;
    const Record *f = s->found, *whole = whole_of(s, r);
    if (!whole || r->kind != f->kind || r->which != f->which || strcmp(r->op, f->op) || r->again != f->again)
        return;
    int64_t *at = record_index(r, &log->mesh, whole);
    bool first = true;
    for (int a = 0; a <= AXIS_CP; a++)
        if (summand_axes(s, r) & 1u << a) first &= log->mesh.coordinate[a] == 0;
    const int64_t n = tensor_count(&r->shape);
    const DType type = (DType)live->dtype;
    DeviceView view = record_view(log, live, VIEW_READ | VIEW_WRITE);
    for (int64_t k = 0; at && k < n; k++) {
        if (at[k] < 0) continue;
        double y = first ? ((double *)whole->shape.data)[at[k]] : 0;
        if (r->kind == RECORD_SUM) y /= log->scale;
        if (r->kind == RECORD_WEIGHT) y += log->before[r->operand][k];
        dtype_convert((char *)view.data + (size_t)record_place(live, k) * dtype_size(type), type, &y, F64, 1);
    }
    device_view_end(&view);
    free(at);
}

static void localise_run(const Search *s, bool alone, Log *logs, Trace *out) {
    Config c = s->config;
    if (alone) config_on_one_rank(&c, s->of->arena);
    const CaseWatch watch = logs_watch(logs);
    Err e = case_run(s->of, &c, (Noise){.draw = NO_NOISE}, &watch, out);
    if (e.code) fprintf(stderr, "%s\n", e.msg);
    for (int i = 0; i < (alone ? 1 : s->ranks); i++) log_index(&logs[i]);
}

static bool confirm(Search *s, int64_t first) {
    Trace *t = trace_new(s->of);
    Log *again = logs_new(s->ranks, first, s->step);
    for (int i = 0; i < s->ranks; i++) again[i].seen = splice, again[i].seen_arg = s;
    localise_run(s, false, again, t);
    const bool right = !wrong_until(s, t, s->step);
    logs_free(again, s->ranks);
    trace_free(t);
    return right;
}

void localise(const Case *of, const Config *c, const Trace *ours, const Trace *one, const Trace *truth,
              Finding *f) {
    Search s = {.of = of, .config = *c, .ours = ours, .one = one, .ranks = (int)config_ranks(c)};
    const int64_t end = of->golden->n_steps - 1, wrong = first_wrong(of->golden, truth),
                  last = wrong < end ? wrong + 1 : end; /* a wrong update has an effect one step later */
    while (s.step < last && !wrong_until(&s, ours, s.step)) s.step++;
    if (wrong <= end && !wrong_until(&s, ours, s.step)) {
        f->agrees_until = wrong + 1;
        return;
    }
    const int64_t first = s.step > 1 ? s.step - 2 : 0;
    s.ref = logs_new(1, first, s.step);
    s.logs = logs_new(s.ranks, first, s.step);
    Trace *unheard = trace_new(of);
    localise_run(&s, true, s.ref, unheard);
    localise_run(&s, false, s.logs, unheard);
    trace_free(unheard);
    set_bounds(&s);
    find_first(&s);
    if (s.found) {
        describe(&s, f);
        f->confirmed = confirm(&s, first);
    }
    logs_free(s.ref, 1);
    logs_free(s.logs, s.ranks);
}
