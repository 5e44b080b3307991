#include "parity/choices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernels/ops.h"

/* ---- sizes ---- */

static bool is_router(const Param *p) {
    static const char SUFFIX[] = ".router.weight";
    const size_t n = strlen(p->spec.name), end = sizeof SUFFIX - 1;
    return n > end && !strcmp(p->spec.name + n - end, SUFFIX);
}

/* Returns the number of routers among the first `until` parameters. */
static int64_t routers_before(const Registry *r, int until) {
    int64_t n = 0;
    for (int i = 0; i < until; i++) n += is_router(r->params[i]);
    return n;
}

Choices choices_of(const Registry *r, const Config *c, int64_t steps, int64_t samples, int64_t seq) {
    Choices of = {.steps = steps, .routers = routers_before(r, r->n), .samples = samples, .seq = seq};
    if (of.routers) of.topk = c->moe_router_topk, of.experts = c->num_experts;
    return of;
}

static int64_t tokens(const Choices *c) { return c->samples * c->seq; }

static int64_t experts_of_all(const Choices *c) {
    return c->steps * c->routers * CHOICES_PASSES * tokens(c) * c->topk;
}

static int64_t logits_of_all(const Choices *c) { return c->steps * c->routers * tokens(c) * c->experts; }

int64_t choices_elements(const Choices *c) {
    return experts_of_all(c) + logits_of_all(c) + c->steps * c->routers;
}

void choices_place(Choices *c, double *memory) {
    c->expert = memory;
    c->logits = c->expert + experts_of_all(c);
    c->margin = c->logits + logits_of_all(c);
    for (int64_t i = 0; i < experts_of_all(c); i++) c->expert[i] = -1;
    for (int64_t i = 0; i < logits_of_all(c); i++) c->logits[i] = -INFINITY;
}

static double *experts_of(const Choices *c, const ChoiceRank *at, int64_t token) {
    const int64_t pass = (at->step * c->routers + at->router) * CHOICES_PASSES + at->pass;
    return c->expert + (pass * tokens(c) + token) * c->topk;
}

static double *logits_of(const Choices *c, const ChoiceRank *at, int64_t token) {
    return c->logits + ((at->step * c->routers + at->router) * tokens(c) + token) * c->experts;
}

/* ---- a call's tokens ---- */

/* The logits [s,b,e] of a call to op_route, and the index of each row's token within the step. */
typedef struct Rows {
    const Call *call;
    Device *device;
    int64_t n, topk, experts;
    int64_t *token; /* [n] */
} Rows;

static Rows rows_of(const Choices *c, const Tape *t, const Call *call) {
    const Tensor *logits = call->in[0];
    const int64_t s = logits->dim[0], b = logits->dim[1];
    const int64_t first =
        /* the sample's index in the step, which has c->samples samples */
        tape_microbatch(t)->first_sample % c->samples;
    Rows r = {call, tape_context(t)->device, s * b, call->out[1]->dim[2], logits->dim[2], NULL};
    r.token = mem_alloc((size_t)(r.n + 1) * sizeof *r.token);
    int64_t total;
    const SequenceSlice slice = tape_slice(t, logits, &total);
    CHECK(total == c->seq && r.topk == c->topk && r.experts == c->experts,
          "the router's sequence length, top-k or number of experts differs from the case's");
    for (int64_t i = 0; i < r.n; i++) r.token[i] = (first + i % b) * c->seq + slice_position(&slice, i / b);
    return r;
}

static void record(const Choices *c, const ChoiceRank *at, const Rows *r) {
    const Tensor *logits = r->call->in[0], *expert = r->call->out[1];
    DeviceView scores = device_view(r->device, logits->data, tensor_bytes(logits), VIEW_READ),
               chosen = device_view(r->device, expert->data, tensor_bytes(expert), VIEW_READ);
    for (int64_t i = 0; i < r->n; i++) {
        double *out = experts_of(c, at, r->token[i]);
        for (int64_t j = 0; j < r->topk; j++) out[j] = (double)((int64_t *)chosen.data)[i * r->topk + j];
        dtype_convert(logits_of(c, at, r->token[i]), F64,
                      (char *)scores.data + (size_t)(i * r->experts) * dtype_size((DType)logits->dtype),
                      (DType)logits->dtype, (size_t)r->experts);
    }
    device_view_end(&chosen);
    device_view_end(&scores);
}

/* ---- routing like the followed run ---- */

static bool same_choice(const Rows *r, int64_t row, const int64_t *chosen, const double *wanted) {
    for (int64_t j = 0; j < r->topk; j++)
        if (chosen[row * r->topk + j] != (int64_t)wanted[j]) return false;
    return true;
}

/* Returns the change in the logit of expert e per unit of push towards the wanted experts. The result is 1 for
 * wanted experts, and `beside` for other experts in a wanted expert's group, because their scores help the
 * group but compete with the wanted expert. For all other experts, the result is -1. */
static double push_of(const Rows *r, const double *wanted, int64_t e, double beside) {
    const int64_t groups = ((const RouteAttr *)r->call->attr)->groups,
                  size = r->experts / (groups > 1 ? groups : r->experts);
    double sign = -1;
    for (int64_t j = 0; j < r->topk; j++) {
        if ((int64_t)wanted[j] == e) return 1;
        if ((int64_t)wanted[j] / size == e / size) sign = beside;
    }
    return sign;
}

/* The direction of a push: the logits from which it starts, and its effect on unwanted experts in a wanted
 * expert's group. */
typedef struct Direction {
    const double *const *from; /* [n], the initial logits; NULL means the router's logits */
    double beside;             /* the effect on unwanted experts in a wanted expert's group (push_of) */
} Direction;

/* Sets chosen [n,k] to the experts that the router selects if the direction's initial logits are pushed by
 * `by` towards the wanted experts. If the router selects by Sinkhorn scores instead of logits, the scores are
 * multiplied by exp(push), because they are exponentials of logits. */
static void choose_pushed(const Rows *r, const double *const *wanted, const double *by, Direction towards,
                          int64_t *chosen) {
    const Call *c = r->call;
    const size_t bytes = (size_t)(r->n * r->experts) * sizeof(double);
    Tensor logits = *c->in[0], select = c->in[1] ? *c->in[1] : *c->in[0], probs = *c->out[0],
           out = *c->out[1];
    logits.data = mem_alloc(bytes), select.data = mem_alloc(bytes);
    probs.data = mem_alloc((size_t)(r->n * r->topk) * sizeof(double)), out.data = chosen;
    memcpy(logits.data, c->in[0]->data, bytes);
    if (c->in[1]) memcpy(select.data, c->in[1]->data, bytes);
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t e = 0; e < r->experts; e++) {
            double *logit = (double *)logits.data + i * r->experts + e,
                   push = push_of(r, wanted[i], e, towards.beside) * by[i];
            if (towards.from) push += towards.from[i][e] - *logit;
            *logit += push;
            ((double *)select.data)[i * r->experts + e] *= exp(push);
        }
    call_run(&OPS[OP_route], &(Call){.in = {&logits, c->in[1] ? &select : NULL, c->in[2]},
                                     .out = {&probs, &out},
                                     .attr = c->attr,
                                     .device = r->device});
    free(logits.data), free(select.data), free(probs.data);
}

/* Returns the largest difference between the router's logits and the direction's initial logits in row i. */
static double start_of(const Rows *r, Direction towards, int64_t i) {
    const double *own = (const double *)r->call->in[0]->data + i * r->experts;
    double most = 0;
    for (int64_t e = 0; towards.from && e < r->experts; e++)
        most = fmax(most, fabs(towards.from[i][e] - own[e]));
    return most;
}

/* By bisection, lowers each margin to the smallest push in one direction that makes the router select the
 * wanted experts. A margin of 0 means that the router already selects the wanted experts. */
static void lower_margins(const Rows *r, const double *const *wanted, Direction towards, double *margin) {
    enum { HALVINGS = 40 };
    const double widest = 64; /* rounding cannot swap two experts whose logits differ by more than `widest` */
    double *low = mem_zero((size_t)r->n + 1, sizeof *low), *high = mem_zero((size_t)r->n + 1, sizeof *high),
           *by = mem_zero((size_t)r->n + 1, sizeof *by);
    int64_t *chosen = mem_alloc((size_t)(r->n * r->topk + 1) * sizeof *chosen);
    for (int64_t i = 0; i < r->n; i++) high[i] = INFINITY;
    for (int round = 0; round < HALVINGS + 2;
         round++) { /* first tries no push, then the widest push, and then bisects */
        choose_pushed(r, wanted, by, towards, chosen);
        for (int64_t i = 0; i < r->n; i++) {
            const bool reached = same_choice(r, i, chosen, wanted[i]);
            if (reached) high[i] = by[i];
            if (!reached && round != 1) low[i] = by[i];
            by[i] = low[i] < high[i] && isfinite(high[i]) ? (low[i] + high[i]) / 2 : 0;
            if (round == 0 && !reached) by[i] = widest;
        }
    }
    for (int64_t i = 0; i < r->n; i++) margin[i] = fmin(margin[i], start_of(r, towards, i) + high[i]);
    free(low), free(high), free(by), free(chosen);
}

static double largest_margin(const Rows *r, const double *const *wanted, const double *const *followed,
                             const bool *differs) {
    /* if the experts are not grouped, every value of `beside` gives the same result */
    static const double beside[] = {-1, -0.5, 0, 0.5, 1};
    const int directions =
        ((const RouteAttr *)r->call->attr)->groups > 1 ? (int)(sizeof beside / sizeof *beside) : 1;
    double *margin = mem_alloc((size_t)(r->n + 1) * sizeof *margin), largest = 0;
    for (int64_t i = 0; i < r->n; i++) margin[i] = differs[i] ? INFINITY : 0;
    for (int k = 0; k < directions; k++) lower_margins(r, wanted, (Direction){NULL, beside[k]}, margin);
    lower_margins(r, wanted, (Direction){followed, -1}, margin);
    for (int64_t i = 0; i < r->n; i++) largest = fmax(largest, margin[i]);
    free(margin);
    return largest;
}

/* Replaces a call's selected experts and their probabilities by running the op with a score of 1 for each
 * wanted expert, and 0 for all others. */
static void replace(const Rows *r, const double *const *wanted) {
    const Call *c = r->call;
    Tensor select = *c->in[0];
    double *score = select.data = mem_zero((size_t)(r->n * r->experts), sizeof *score);
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < r->topk; j++) score[i * r->experts + (int64_t)wanted[i][j]] = 1;
    RouteAttr attr = *(const RouteAttr *)c->attr;
    attr.groups = attr.group_topk = 0;
    call_run(&OPS[OP_route], &(Call){.in = {c->in[0], &select},
                                     .out = {c->out[0], c->out[1]},
                                     .attr = &attr,
                                     .device = r->device});
    free(score);
}

/* Replaces the selected experts with those of the followed run. `counts` is false in one of the two runs of a
 * recomputed block, so that differences are counted only once. */
static void follow(const ChoiceProbe *p, const ChoiceRank *at, const Rows *r, bool counts) {
    const double **wanted = mem_alloc((size_t)(r->n + 1) * sizeof *wanted),
                 **logits = mem_alloc((size_t)(r->n + 1) * sizeof *logits);
    bool *differs = mem_zero((size_t)r->n + 1, sizeof *differs);
    int64_t flips = 0;
    for (int64_t i = 0; i < r->n; i++) {
        wanted[i] = experts_of(p->follow, at, r->token[i]), logits[i] = logits_of(p->follow, at, r->token[i]);
        CHECK(wanted[i][0] >= 0, "the followed run has no experts for token %lld of step %lld",
              (long long)r->token[i], (long long)at->step + 1);
        differs[i] = !same_choice(r, i, r->call->out[1]->data, wanted[i]);
        flips += differs[i];
    }
    if (flips && counts) {
        double *margin = &p->record->margin[at->step * p->record->routers + at->router];
        *margin = fmax(*margin, largest_margin(r, wanted, logits, differs));
        p->record->flips += flips;
    }
    if (flips) replace(r, wanted);
    free(wanted), free(logits), free(differs);
}

/* ---- the probe ---- */

void choices_step(ChoiceProbe *p, int rank, int64_t step) { p->rank[rank] = (ChoiceRank){.step = step}; }

void choices_merge(ChoiceProbe *p, Comm *comm, int64_t step) {
    const Choices *c = p->record;
    const int64_t experts = experts_of_all(c) / c->steps, logits = logits_of_all(c) / c->steps;
    const Group all = comm_everyone(comm);
    comm_all_reduce(comm, all, "experts", COMM_MAX, F64, c->expert + step * experts, experts);
    comm_all_reduce(comm, all, "router logits", COMM_MAX, F64, c->logits + step * logits, logits);
}

void choices_probe(ChoiceProbe *p, const Tape *t, TapePoint point, const OpDef *op, const Call *call) {
    if (point != TAPE_RAN) return;
    const RunContext *context = tape_context(t);
    ChoiceRank *at = &p->rank[context->comm ? comm_rank(context->comm) : 0];
    const Tensor *w = op == &OPS[OP_linear] ? call->in[1] : NULL;
    if (w && w->grad && is_router(param_of(w))) {
        const Param *whole = registry_find(p->whole, param_of(w)->spec.name);
        CHECK(whole, "the whole model has no router '%s'", param_of(w)->spec.name);
        at->logits = call->out[0], at->pass = -1;
        at->router = routers_before(p->whole, whole->number);
    }
    if (op != &OPS[OP_route] || call->in[0] != at->logits) return;
    at->pass++;
    CHECK(at->pass < CHOICES_PASSES, "a router was called more than %d times", CHOICES_PASSES);
    Rows rows = rows_of(p->record, t, call);
    record(p->record, at, &rows);
    if (p->follow) follow(p, at, &rows, tape_is_recording(t));
    free(rows.token);
}
