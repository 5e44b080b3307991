#include "parity/precision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/statistics.h"
#include "comm/comm.h"
#include "parity/storage.h"
#include "tensor/fp8.h"

/* ---- runs ---- */

typedef struct Draw {
    Trace *x, *y, *z; /* the runs x, y and z of precision.h */
    bool shared;      /* whether y and z are owned by a PrecisionShared */
} Draw;

typedef struct Judge {
    const Case *of;
    Config config; /* options for the run under test */
    Report *report;
    Precision *out;
    int first_row; /* the report's first row that belongs to this verdict */
    StorageLog log;
    Draw draw[PRECISION_DRAWS];
    double arithmetic; /* relative error of sums in the lane's arithmetic, u sqrt(K) */
    int64_t steps;
    bool refuted; /* whether a row has failed for a reason that more draws cannot change */
} Judge;

/* The number of steps per draw: enough to test warm-up, moments and decay. */
enum { STEPS = 8 };

bool precision_is_low(const Config *c) {
    return c->lane == LANE_BF16 || c->lane == LANE_FP16 || c->lane == LANE_EXACT ||
           (c->fp8_format != FP8_NONE && c->lane != LANE_FP64);
}

static bool is_fp8(const Judge *p) { return p->config.fp8_format != FP8_NONE; }

/* Returns d: a few ulps of the coarsest type, so that draws round independently, but at most 1/4. */
static double dither_of(const Config *c) {
    double u = c->lane == LANE_BF16 ? dtype_roundoff(BF16) : dtype_roundoff(F16);
    if (c->fp8_format != FP8_NONE) u = fp8_roundoff(c->fp8_format == FP8_HYBRID ? E5M2 : E4M3);
    return fmin(4 * u, 0.25);
}

/* The callbacks' argument. */
typedef struct Watch {
    Storage storage;
    ChoiceProbe choices;
} Watch;

static void on_begin(void *arg, Trainer *t) { storage_begin(&((Watch *)arg)->storage, t); }
static void on_step(void *arg, Trainer *t, int64_t step) {
    Watch *w = arg;
    choices_step(&w->choices, t->run.comm ? comm_rank(t->run.comm) : 0, step);
    if (w->storage.log) storage_step(&w->storage, t);
}
static void on_gradients(void *arg, Trainer *t, const StepReport *r) {
    (void)r;
    storage_gradients(&((Watch *)arg)->storage, t);
}
static void on_updated(void *arg, Trainer *t, const StepReport *r) {
    (void)r;
    storage_updated(&((Watch *)arg)->storage, t);
}
static void on_record(void *arg, const OpDef *op, const Call *call) {
    storage_record(&((Watch *)arg)->storage, op, call);
}
static void on_op(void *arg, const OpDef *op, const Call *call) {
    storage_round(&((Watch *)arg)->storage, op, call);
}
static void on_probe(void *arg, const Tape *t, TapePoint point, const OpDef *op, const Call *call,
                     Need need) {
    (void)need;
    choices_probe(&((Watch *)arg)->choices, t, point, op, call);
}

static void on_judged_update(void *arg, Trainer *t, const StepReport *r) {
    (void)r;
    ChoiceProbe *choices = &((Watch *)arg)->choices;
    if (t->run.comm && comm_processes() > 1 && choices->record->routers)
        choices_merge(choices, t->run.comm, choices->rank[comm_rank(t->run.comm)].step);
}

static Noise noise_of(const Judge *p, int draw) { return (Noise){draw, p->out->dither, 0}; }

static CaseWatch watch_of(const Judge *p, Watch *w, const Trace *out) {
    return (CaseWatch){.step = on_step,
                       .probe = out->choices.routers ? on_probe : NULL,
                       .arg = w,
                       .logits = true,
                       .steps = p->steps};
}

/* Runs x for the draws [first, end). */
static Err run_judged(const Judge *p, int first, int end) {
    Watch w[PRECISION_DRAWS];
    CaseWatch watch[PRECISION_DRAWS];
    CaseTurn turns[PRECISION_DRAWS];
    for (int k = first; k < end; k++) {
        Trace *out = p->draw[k].x;
        w[k] = (Watch){.choices = {p->of->init->registry, &out->choices, NULL, NULL}};
        w[k].choices.rank = mem_zero((size_t)config_ranks(&p->config), sizeof *w[k].choices.rank);
        watch[k] = watch_of(p, &w[k], out);
        watch[k].updated = on_judged_update;
        turns[k] = (CaseTurn){noise_of(p, k), &watch[k], out};
    }
    const Err e = case_run_turns(p->of, &p->config, turns + first, end - first);
    for (int k = first; k < end; k++) free(w[k].choices.rank);
    return e;
}

/* Runs y or, if `stores` is true, z. */
static Err run_fp64(Judge *p, int draw, const Trace *followed, bool stores, Trace *out) {
    ChoiceRank rank;
    Watch w = {.choices = {p->of->init->registry, &out->choices, &followed->choices, &rank}};
    CaseWatch watch = watch_of(p, &w, out);
    watch.on_host = true;
    if (stores) {
        w.storage = (Storage){.log = &p->log, .lane = &p->config, .draw = draw};
        watch.begin = on_begin, watch.gradients = on_gradients, watch.updated = on_updated,
        watch.trace = on_op;
        watch.quantises = true;
    }
    return case_run_alone(p->of, LANE_FP64, noise_of(p, draw), &watch, out);
}

/* Records the types that a run in the lane stores. */
static Err record_types(Judge *p) {
    if (p->config.lane == LANE_EXACT) return ERR_OK; /* the exact lane rounds the outputs of every op */
    Trace *out = trace_new(p->of);
    Watch w = {.storage = {.log = &p->log, .lane = &p->config}};
    const CaseWatch watch = {.trace = on_record, .arg = &w, .logits = true, .steps = p->steps};
    Config c = p->of->config;
    c.lane = p->config.lane, c.device = ON_CPU;
    Err e = case_run(p->of, &c, (Noise){.draw = NO_NOISE}, &watch, out);
    trace_free(out);
    return e;
}

/* Runs x for all draws up to `draws`, and then y and z in the process that has the results. */
static Err run_draws(Judge *p, int draws, const PrecisionShared *shared) {
    const int first = p->out->draws;
    for (int k = first; k < draws; k++) {
        Draw *d = &p->draw[p->out->draws++];
        *d = (Draw){.x = trace_new(p->of), .shared = shared && k < PRECISION_SHARED};
        d->y = d->shared ? shared->y[k] : trace_new(p->of);
        d->z = d->shared ? shared->z[k] : trace_new(p->of);
    }
    ERR_RETURN(run_judged(p, first, draws));
    for (int k = first; k < draws; k++) {
        const Draw *d = &p->draw[k];
        if (!d->x->has_steps || d->shared) continue;
        ERR_RETURN(run_fp64(p, k, d->x, false, d->y));
        ERR_RETURN(run_fp64(p, k, d->x, true, d->z));
    }
    return ERR_OK;
}

static void free_draw(Draw *d) {
    trace_free(d->x);
    if (!d->shared) trace_free(d->y), trace_free(d->z);
}

/* Creates a judge for the lane that the options set. */
static Judge new_judge(const Case *of, const Config *config, Precision *out) {
    const double u = config->lane == LANE_EXACT ? dtype_roundoff(F64) : dtype_roundoff(F32);
    Judge p = {.of = of,
               .config = *config,
               .out = out,
               .steps = of->golden->n_steps < STEPS ? of->golden->n_steps : STEPS,
               .arithmetic = u * sqrt((double)(config->derived.global_batch_size * config->seq_length))};
    case_set_loss_scale(&p.config);
    *out = (Precision){.dither = dither_of(config)};
    return p;
}

bool precision_shares(const Case *of) { return !i64_is_set(of->config.num_experts); }

Err precision_share(const Case *of, Lane lane, const PrecisionShared *shared) {
    Config config = of->config;
    config.lane = lane;
    Precision out;
    Judge p = new_judge(of, &config, &out);
    Err e = record_types(&p);
    for (int k = 0; k < PRECISION_SHARED && !e.code; k++) {
        e = run_fp64(&p, k, shared->y[k], false, shared->y[k]);
        if (!e.code) e = run_fp64(&p, k, shared->y[k], true, shared->z[k]);
    }
    storage_log_free(&p.log);
    return e;
}

/* ---- statistics of one tensor ---- */

/* A tensor under test. It has n numbers per draw, in rows of `width`. The quantity under test is the difference from
 * `base`. `also` is a second direction in which errors are tested. */
typedef struct Magnitudes {
    const double *x[PRECISION_DRAWS], *y[PRECISION_DRAWS], *z[PRECISION_DRAWS], *base[PRECISION_DRAWS],
        *also[PRECISION_DRAWS];
    int64_t n, width;
    int draws;
    double arithmetic;
} Magnitudes;

/* A series with one number per draw. */
typedef struct Series {
    double at[PRECISION_DRAWS];
} Series;

static double mean(const Series *s, int n) { return mean_of(s->at, n); }

static double mean_square(const Series *s, int n) {
    const double rms = rms_of(s->at, n);
    return rms * rms;
}

/* Returns the median, because it is insensitive to a single draw with a rare large error. */
static double median(const Series *s, int n) { return median_of(s->at, n); }

/* Returns the squared standard error of the median's logarithm: pi / 2 times the squared standard error of the mean. */
static double spread(const Series *s, double least, int n) {
    Series logs;
    for (int i = 0; i < n; i++) logs.at[i] = log(s->at[i] + least);
    const double m = mean(&logs, n);
    /* rounding can make the variance of equal numbers negative */
    return acos(0) * fmax(mean_square(&logs, n) - m * m, 0) / (n - 1);
}

/* For each draw: the sums of squares of both errors and of the quantity, and the sums of their products. */
typedef struct Moments {
    Series xx, zz, yy, xy, zy, xa, za, aa, whole;
} Moments;

static Moments moments(const Magnitudes *t) {
    Moments m = {0};
    for (int s = 0; s < t->draws; s++)
        for (int64_t i = 0; i < t->n; i++) {
            const double y = t->y[s][i], x = t->x[s][i] - y, z = t->z[s][i] - y,
                         a = t->also[s] ? t->also[s][i] : 0, q = y - (t->base[s] ? t->base[s][i] : 0);
            m.xx.at[s] += x * x, m.zz.at[s] += z * z, m.yy.at[s] += q * q, m.whole.at[s] += y * y;
            m.xy.at[s] += x * q, m.zy.at[s] += z * q;
            m.xa.at[s] += x * a, m.za.at[s] += z * a, m.aa.at[s] += a * a;
        }
    return m;
}

typedef struct Statistic {
    double value, bound;
} Statistic;

/* Returns the component of the errors along a direction, as a multiple of the direction's vector. `length` is
 * the squared length of the vector. The noise of the mean is the noise of z or, if a rare large error affects
 * only x, the spread of x over the draws. */
static Statistic component(const Series *x, const Series *z, const Series *length, double arithmetic, int n) {
    Series a, of_z;
    for (int s = 0; s < n; s++) {
        of_z.at[s] = length->at[s] > 0 ? z->at[s] / length->at[s] : 0;
        a.at[s] = length->at[s] > 0 ? x->at[s] / length->at[s] - of_z.at[s] : 0;
    }
    const double m = mean(&a, n), predicted = 2 * (mean_square(&of_z, n) + arithmetic * arithmetic),
                 seen = (mean_square(&a, n) - m * m) * n / (n - 1);
    return (Statistic){fabs(m), 8 * sqrt(fmax(predicted, seen) / n)};
}

typedef struct Judgement {
    Statistic error, element, scale, decay;
    int64_t worst; /* index of an element */
    /* the smallest e such that a factor 1 + e is rejected; infinite if no factor is rejected */
    double power;
} Judgement;

/* Returns the largest error of any element, in units of the noise in the element's row. An element's error is
 * the minimum over the draws. A wrong value is wrong in all draws, whereas the Adam update of an element with
 * a nearly zero gradient has a random sign. */
static double largest_element(const Magnitudes *t, const double *noise, const double *const *x,
                              int64_t *worst) {
    double largest = 0;
    for (int64_t i = 0; i < t->n; i++) {
        double least = INFINITY;
        for (int s = 0; s < t->draws; s++) {
            const double e = fabs(x[s][i] - t->y[s][i]) / noise[i / t->width];
            if (e < least) least = e;
        }
        if (least > largest) largest = least, *worst = i;
    }
    return largest;
}

/* Judges single elements. By chance, a row may have almost no rounding error. The noise of each row is
 * therefore at least a small part of the tensor's noise, plus the arithmetic error. */
static void judge_elements(const Magnitudes *t, double tensor_noise, double tensor_size, Judgement *j) {
    const int64_t rows = (t->n + t->width - 1) / t->width;
    double *noise = mem_zero((size_t)rows, sizeof *noise),
           least = 1e-3 * tensor_noise + t->arithmetic * tensor_size;
    for (int s = 0; s < t->draws; s++)
        for (int64_t i = 0; i < t->n; i++) {
            const double z = t->z[s][i] - t->y[s][i];
            noise[i / t->width] += z * z / (double)(t->draws * t->width);
        }
    for (int64_t r = 0; r < rows; r++) noise[r] = fmax(sqrt(noise[r]), fmax(least, 1e-300));
    int64_t unused = 0;
    const double predicted = largest_element(t, noise, t->z, &unused);
    j->element = (Statistic){largest_element(t, noise, t->x, &j->worst), fmax(4, 2 * predicted)};
    free(noise);
}

/* Returns the smallest e at which errors that grow by sign * e * quantity are rejected. */
static double power_of_error(const Moments *m, double limit, double sign, int n) {
    double low = 1e-15, high = 1e3;
    while (high > 1.0001 * low) {
        const double e = sqrt(low * high);
        Series squares;
        for (int s = 0; s < n; s++)
            squares.at[s] = m->xx.at[s] + 2 * sign * e * m->xy.at[s] + e * e * m->yy.at[s];
        *(median(&squares, n) > limit ? &high : &low) = e;
    }
    return high;
}

/* Returns the smallest e that the most sensitive of the tests rejects. */
static double power_of(const Moments *m, const Judgement *j, double noise, int n) {
    const double limit = j->error.bound * j->error.bound * noise;
    if (!(mean(&m->yy, n) > 0)) return INFINITY;
    return fmin(fmax(power_of_error(m, limit, 1, n), power_of_error(m, limit, -1, n)),
                j->scale.bound + j->scale.value);
}

/* Returns whether all moments are finite. Checks every draw, because a median would ignore a single NaN. */
static bool is_finite(const Moments *m, int n) {
    return isfinite(mean(&m->xx, n)) && isfinite(mean(&m->zz, n)) && isfinite(mean(&m->yy, n));
}

static Judgement judge(const Magnitudes *t) {
    const int n = t->draws;
    const Moments m = moments(t);
    if (!is_finite(&m, n)) return (Judgement){.error = {INFINITY, 1}, .power = INFINITY};
    const double least = fmax(t->arithmetic * t->arithmetic * mean(&m.whole, n), 1e-300),
                 noise = median(&m.zz, n) + least;
    Judgement j = {.error = {sqrt(median(&m.xx, n) / noise),
                             1.5 * exp(3 * sqrt(spread(&m.xx, least, n) + spread(&m.zz, least, n)))},
                   .scale = component(&m.xy, &m.zy, &m.yy, t->arithmetic, n),
                   .decay = component(&m.xa, &m.za, &m.aa, t->arithmetic, n)};
    judge_elements(t, sqrt((mean(&m.zz, n) + least) / (double)t->n), sqrt(mean(&m.whole, n) / (double)t->n),
                   &j);
    j.power = power_of(&m, &j, noise, n);
    return j;
}

/* ---- quantities ---- */

static Row *new_row(Judge *p, const char *format, const char *quantity) {
    char name[32];
    snprintf(name, sizeof name, format, quantity);
    return report_row(p->report, name);
}

static Row *new_power(Judge *p, const char *quantity) {
    Row *row = new_row(p, "power: %s", quantity);
    row->is_power = true;
    return row;
}

static void precision_add(Row *row, const char *name, Statistic relative, Statistic element, int64_t worst,
                          int64_t rank) {
    /* a comparison would not detect a NaN */
    const bool finite = isfinite(relative.value) && !isnan(relative.bound) && isfinite(element.value);
    const TensorError e = {finite ? relative.value : INFINITY, element.value, worst};
    row_add(row, name, e, finite ? relative.bound : 1, element.bound, rank);
}

static const Statistic NOTHING = {0, INFINITY};

typedef struct Gate {
    double gradient, loss;
} Gate;

static Gate gate_of(const Judge *p) {
    if (is_fp8(p)) return (Gate){0.15, 1e-2};
    return p->config.lane == LANE_BF16 ? (Gate){0.03, 1e-3} : (Gate){0.01, 1e-3};
}

/* Judges a curve, which is one tensor with a value per step. */
static void judge_curve(Judge *p, const char *quantity, size_t member, double gate) {
    const int64_t n = p->steps;
    Magnitudes t = {.n = n, .width = n, .draws = p->out->draws, .arithmetic = p->arithmetic};
    double *values = mem_alloc((size_t)(3 * n * t.draws) * sizeof *values), *out = values;
    for (int s = 0; s < t.draws; s++) {
        const Trace *const run[] = {p->draw[s].x, p->draw[s].y, p->draw[s].z};
        const double **to[] = {&t.x[s], &t.y[s], &t.z[s]};
        for (int k = 0; k < 3; k++, out += n) {
            *to[k] = out;
            for (int64_t i = 0; i < n; i++)
                out[i] = *(const double *)((const char *)&run[k]->steps[i] + member);
        }
    }
    const Judgement j = judge(&t);
    char step[32];
    snprintf(step, sizeof step, "step %lld", (long long)j.worst + 1);
    precision_add(new_row(p, "%s, R", quantity), step, j.error, j.element, 0, NO_RANK);
    precision_add(new_row(p, "%s, scale", quantity), "all steps", j.scale, NOTHING, 0, NO_RANK);
    if (gate > 0)
        precision_add(new_power(p, quantity), "all steps", (Statistic){j.power, gate}, NOTHING, 0, NO_RANK);
    free(values);
}

/* Checks the learning rate, which must be bitwise equal in every lane. */
static void judge_learning_rate(Judge *p) {
    Row *row = new_row(p, "%s", "learning rate");
    for (int64_t i = 0; i < p->steps; i++) {
        const double x = p->draw[0].x->steps[i].lr, y = p->draw[0].y->steps[i].lr;
        char step[32];
        snprintf(step, sizeof step, "step %lld", (long long)i + 1);
        row_add(row, step, (TensorError){.relative = x == y ? 0 : INFINITY}, BOUND_EQUAL, INFINITY, NO_RANK);
    }
    p->refuted |= !row->pass;
}

static void judge_types(Judge *p) {
    const StorageLog *log = &p->log;
    Row *row = new_row(p, "%s", "values stored too narrow");
    row_add(row, log->narrow ? log->first_narrow : "none", (TensorError){.relative = (double)log->narrow},
            BOUND_EQUAL, INFINITY, NO_RANK);
    p->refuted |= !row->pass;
}

static Magnitudes sample_of(const Judge *p, const HfTensor *t, int64_t at, bool update) {
    Magnitudes s = {
        .n = hf_count(t), .width = t->dim[t->ndim - 1], .draws = p->out->draws, .arithmetic = p->arithmetic};
    for (int k = 0; k < s.draws; k++) {
        const Draw *d = &p->draw[k];
        s.x[k] = (update ? d->x->parameters : d->x->gradients) + at;
        s.y[k] = (update ? d->y->parameters : d->y->gradients) + at;
        s.z[k] = (update ? d->z->parameters : d->z->gradients) + at;
        s.base[k] = s.also[k] = update ? d->y->weights + at : NULL;
    }
    return s;
}

/* Returns whether two tensors outside layers belong to the same linear layer, norm or embedding table. */
static bool module_same(const char *a, const char *b) {
    const char *end = strrchr(a, '.');
    const size_t n = end ? (size_t)(end - a) + 1 : 0;
    return end ? !strncmp(a, b, n) && !strchr(b + n, '.') : !strcmp(a, b);
}

/* Adds the report's power row, with the modules in map order. A fault is assumed to scale all gradients or
 * updates of a module together, so the power of a module is the power of its most sensitive tensor. A single
 * tensor may have almost no power. For example, the bias of BERT's sentence head has two numbers that always
 * change together. A module outside layers is judged at twice the gate, because the embeddings' gradients
 * contain the noise from all layers. */
static void judge_power(Judge *p, const char *quantity, double gate, const double *power) {
    const HfMap *map = &p->of->map;
    Row *row = new_power(p, quantity);
    for (int64_t i = 0; i < map->count; i++) {
        const char *of = map->tensors[i].name;
        const int layer = compare_layer(of);
        double least = INFINITY;
        bool counted = false, trained = false;
        for (int64_t k = 0; k < map->count; k++) {
            const char *other = map->tensors[k].name;
            if (compare_layer(other) != layer || (layer < 0 && !module_same(of, other))) continue;
            counted |= k < i;
            if (map->tensors[k].param->spec.flags & PARAM_BUFFER) continue;
            trained = true;
            least = fmin(least, power[k]);
        }
        char name[160];
        if (layer >= 0)
            snprintf(name, sizeof name, "layer %d", layer);
        else
            snprintf(name, sizeof name, "%.*s", (int)(strrchr(of, '.') ? strrchr(of, '.') - of : 159), of);
        if (!counted && trained)
            precision_add(row, name, (Statistic){least, (layer >= 0 ? 1 : 2) * gate}, NOTHING, 0, NO_RANK);
    }
}

static void judge_tensors(Judge *p, const char *quantity, bool update) {
    const HfMap *map = &p->of->map;
    double *power = mem_zero((size_t)map->count, sizeof *power);
    Row *error = new_row(p, "%s, R", quantity), *scale = new_row(p, "%s, scale", quantity),
        *decay = update ? new_row(p, "%s, decay", quantity) : NULL;
    for (int64_t i = 0; i < map->count; i++) {
        const HfTensor *t = &map->tensors[i];
        if (!update && t->param->spec.flags & PARAM_BUFFER) continue;
        const Magnitudes sample = sample_of(p, t, p->of->at[i], update);
        const Judgement j = judge(&sample);
        const int64_t rank = (int64_t)p->draw[0].x->ranks[p->of->at[i] + j.worst];
        precision_add(error, t->name, j.error, j.element, j.worst, rank);
        precision_add(scale, t->name, j.scale, NOTHING, j.worst, rank);
        if (decay) precision_add(decay, t->name, j.decay, NOTHING, j.worst, rank);
        power[i] = j.power;
    }
    if (!update) p->out->ratio = error->error.relative;
    judge_power(p, quantity, (update ? 2 : 1) * gate_of(p).gradient, power);
    free(power);
}

static void judge_logits(Judge *p) {
    const Golden *g = p->of->golden;
    if (!p->draw[0].x->has_logits) return;
    Magnitudes t = {.n = g->samples * g->all.shape.positions * p->of->vocab,
                    .width = p->of->vocab,
                    .draws = p->out->draws,
                    .arithmetic = p->arithmetic};
    for (int s = 0; s < t.draws; s++)
        t.x[s] = p->draw[s].x->logits, t.y[s] = p->draw[s].y->logits, t.z[s] = p->draw[s].z->logits;
    const Judgement j = judge(&t);
    precision_add(new_row(p, "%s, R", "logits"), "step 1", j.error, j.element, j.worst, 0);
    precision_add(new_row(p, "%s, scale", "logits"), "step 1", j.scale, NOTHING, j.worst, 0);
}

static void judge_router_logits(Judge *p) {
    const Choices *c = &p->draw[0].y->choices;
    Magnitudes t = {.n = p->steps * c->routers * c->samples * c->seq * c->experts,
                    .width = c->experts,
                    .draws = p->out->draws,
                    .arithmetic = p->arithmetic};
    for (int s = 0; s < t.draws; s++) {
        const Draw *d = &p->draw[s];
        t.x[s] = d->x->choices.logits, t.y[s] = d->y->choices.logits, t.z[s] = d->z->choices.logits;
    }
    const Judgement j = judge(&t);
    precision_add(new_row(p, "%s, R", "router logits"), "all steps and routers", j.error, j.element, 0,
                  NO_RANK);
    precision_add(new_row(p, "%s, scale", "router logits"), "all steps and routers", j.scale, NOTHING, 0,
                  NO_RANK);
}

/* Judges the routing. If the margin exceeds the error of the logits, a router must select the experts that fp64
 * selects. Another row judges this error. */
static void judge_choices(Judge *p) {
    const Choices *c = &p->draw[0].y->choices;
    if (!c->routers) return;
    judge_router_logits(p);
    Row *row = new_row(p, "%s", "experts: margin / noise");
    const int64_t scores = c->samples * c->seq * c->experts;
    int64_t flips = 0;
    for (int s = 0; s < p->out->draws; s++) flips += p->draw[s].y->choices.flips;
    for (int64_t i = 0; i < p->steps * c->routers; i++) {
        double noise = 0, margin = 0;
        for (int s = 0; s < p->out->draws; s++) {
            const Choices *x = &p->draw[s].x->choices, *y = &p->draw[s].y->choices,
                          *z = &p->draw[s].z->choices;
            margin = fmax(margin, y->margin[i]);
            for (int64_t k = i * scores; k < (i + 1) * scores; k++)
                noise =
                    fmax(noise, fmax(fabs(x->logits[k] - y->logits[k]), fabs(z->logits[k] - y->logits[k])));
        }
        char name[80];
        snprintf(name, sizeof name, "step %lld, router %lld (%lld of %lld selections differ in total)",
                 (long long)(i / c->routers) + 1, (long long)(i % c->routers), (long long)flips,
                 (long long)(p->out->draws * p->steps * c->routers * c->samples * c->seq));
        precision_add(row, name, (Statistic){margin / (noise + p->arithmetic), 2}, NOTHING, 0, NO_RANK);
    }
    p->refuted |= !row->pass;
}

/* Recomputes the report's rows from first_row on. */
static bool judge_all(Judge *p) {
    p->report->n = p->first_row;
    judge_curve(p, "loss", offsetof(GoldenStep, loss), gate_of(p).loss);
    judge_curve(p, "grad norm", offsetof(GoldenStep, grad_norm), 0);
    judge_curve(p, "clip coefficient", offsetof(GoldenStep, clip), 0);
    judge_learning_rate(p);
    judge_types(p);
    judge_logits(p);
    judge_tensors(p, "gradient", false);
    judge_tensors(p, "update", true);
    judge_choices(p);
    bool pass = true;
    for (int i = p->first_row; i < p->report->n; i++) pass &= p->report->row[i].pass;
    return pass;
}

/* Returns the initial number of draws. If there are several processes, only one process knows the verdict, so
 * the processes cannot agree to add draws. Therefore, all draws run in advance. */
static int first_draws(void) { return comm_processes() > 1 ? 16 : 4; }

Err precision_judge(const Case *of, const Config *config, const PrecisionShared *shared, Report *report,
                    Precision *out) {
    Judge p = new_judge(of, config, out);
    p.report = report, p.first_row = report->n;
    Err e = record_types(&p);
    bool pass = false;
    for (int draws = first_draws(); !e.code && !pass && !p.refuted && draws <= PRECISION_DRAWS; draws *= 2) {
        e = run_draws(&p, draws, shared);
        if (!e.code) pass = !p.draw[0].x->has_steps || judge_all(&p);
        if (comm_processes() > 1) break;
    }
    for (int k = 0; k < out->draws; k++) free_draw(&p.draw[k]);
    storage_log_free(&p.log);
    return e;
}
