/* Tests every collective on data whose exact results are known. Every type and many sizes are tested, in place
 * and out of place, repeatedly until the time is up. A group's size is any divisor of the number of ranks, and
 * its members are consecutive or strided. All groups of a split communicate concurrently. Before each call,
 * both buffers are filled with a pattern. After each call, a guard zone at the end of the output is checked.
 * Inexact sums are computed repeatedly, and every result is compared with the first. The results are also
 * hashed, because the order of summation may differ between libraries, but must not differ between runs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "measure/exact.h"
#include "validate/stage.h"

enum { GUARD = 256, FILL = 0xa5, MOST_GROUPS = 32, FIRST_COUNT = 1003 };

/* A way to split the world into groups. Every rank is in exactly one group. */
typedef struct Split {
    Group group;
    char text[64];
} Split;

typedef struct Check {
    StageRank *r;
    Split split[MOST_GROUPS];
    int n_splits;
    size_t bytes; /* size of one buffer in bytes, without the guard */
    char *in, *out, *host;
    int64_t calls;
    bool wrong[N_COLLECTIVES]; /* for each collective, whether a fault in it has already been reported */
} Check;

/* The faults that a rank has found in one call. */
typedef struct Seen {
    ExactWrong wrong;
    int64_t beyond; /* number of changed bytes beyond the output */
    uint64_t hash;
} Seen;

/* ---- sizes ---- */

/* Returns a size to test. The sizes are a few small numbers, followed by powers of two, each with its two
 * neighbours. */
static int64_t size_of(int index) {
    static const int64_t SMALL[] = {0, 1, 2, 3, 7, 8, 9};
    enum { SMALLS = sizeof SMALL / sizeof *SMALL, FIRST = 5, STEP = 3 };
    if (index < SMALLS) return SMALL[index];
    index -= SMALLS;
    return (INT64_C(1) << (FIRST + STEP * (index / 3))) + index % 3 - 1;
}

static void add_split(Check *c, Group g, const char *how) {
    if (c->n_splits == MOST_GROUPS) return;
    Split *s = &c->split[c->n_splits++];
    s->group = g;
    if (g.size == c->r->world)
        snprintf(s->text, sizeof s->text, "all ranks");
    else
        snprintf(s->text, sizeof s->text, "%s groups of %d", how, g.size);
}

/* Lists the splits of the world into groups. The split whose group contains all ranks must be the first. */
static void split_world(Check *c) {
    Group all = comm_everyone(c->r->comm);
    add_split(c, all, "");
    for (int size = 2; size < c->r->world; size++)
        if (c->r->world % size == 0) {
            add_split(c, group_inner(&all, size), "consecutive");
            add_split(c, group_outer(&all, c->r->world / size), "strided");
        }
}

/* ---- one call ---- */

static size_t larger(const Exact *x) {
    const int64_t in = exact_in_count(x), out = exact_out_count(x);
    return (size_t)(in > out ? in : out) * dtype_size(x->type->type);
}

static void fill_buffer(const Check *c, const Exact *x, char *at) {
    const size_t bytes = larger(x) + GUARD;
    memset(c->host, FILL, bytes);
    device_write(c->r->device, at, c->host, bytes);
}

static int64_t changed_behind(const Check *c, const Exact *x, const CommCall *call) {
    const char *end = (const char *)call->out + (size_t)exact_out_count(x) * dtype_size(call->dtype);
    unsigned char guard[GUARD];
    int64_t n = 0;
    /* If other parts of a larger buffer follow the output, there is no guard zone to check. */
    if (x->in_place && x->of->splits) return 0;
    device_read(c->r->device, guard, end, GUARD);
    for (int i = 0; i < GUARD; i++) n += guard[i] != FILL;
    return n;
}

static Seen run_call(Check *c, const Exact *x) {
    const CommCall call = exact_call(x);
    fill_buffer(c, x, c->in), fill_buffer(c, x, c->out);
    exact_fill(x, &call);
    exact_run(x, call);
    Seen o = {.wrong = exact_check(x, &call)};
    o.beyond = changed_behind(c, x, &call);
    c->calls++;
    return o;
}

static void describe(const Exact *x, const Split *s, char *out, size_t n) {
    snprintf(out, n, "%s %s of %" PRId64 "%s, %s", x->of->name, x->type->name, x->count,
             x->in_place ? " in place" : "", s->text);
}

/* Determines the kind of fault from the indices and values of the wrong elements. */
static void explain(const Exact *x, const ExactWrong *w, char *out, size_t n) {
    const int64_t count = exact_out_count(x), tail = w->last - w->first + 1;
    if (w->rounded == w->count && x->type->bits > 11 && x->of->reduces)
        snprintf(out, n, "it sums in 16 bits: element %" PRId64 " is %g, not %g", w->first, w->got,
                 w->wanted);
    else if (tail == w->count && w->last == count - 1 && w->count < count)
        snprintf(out, n, "the last %" PRId64 " elements are missing: element %" PRId64 " is %g, not %g",
                 w->count, w->first, w->got, w->wanted);
    else
        snprintf(out, n, "the first wrong element is %" PRId64 ": %g, not %g", w->first, w->got, w->wanted);
}

/* A fault in the library affects all ranks of a group. If only one rank has wrong results, that rank is the
 * suspect. */
static void report(Check *c, const Exact *x, const Split *s, const Seen *all) {
    StageRank *r = c->r;
    char what[160], why[200];
    int bad = 0, first = -1;
    int64_t wrong = 0, beyond = 0;
    for (int i = 0; i < r->world; i++) {
        wrong += all[i].wrong.count, beyond += all[i].beyond;
        if (!all[i].wrong.count && !all[i].beyond) continue;
        if (!bad++) first = i;
    }
    describe(x, s, what, sizeof what);
    const Suspect suspect = bad == 1 && r->world > 2 ? stage_suspect(r, first) : stage_transport(r);
    if (wrong)
        explain(x, &all[first].wrong, why, sizeof why);
    else
        snprintf(why, sizeof why, "%" PRId64 " bytes beyond the output are overwritten", beyond);
    outcome_add(r->out, VALIDATE_FAIL, suspect.s,
                "%s: %" PRId64 " elements are wrong on %d of %d ranks (first on rank %d); %s", what, wrong,
                bad, r->world, first, why);
}

/* Runs a call, and returns whether the results on all ranks are correct. `all` [world] receives each rank's
 * faults. */
static bool is_right(Check *c, const Exact *x, const Split *s, Seen *all) {
    char what[160];
    describe(x, s, what, sizeof what);
    STAGE_DOING(c->r, "%s", what);
    const Seen mine = run_call(c, x);
    stage_gather(c->r, &mine, all, sizeof mine);
    bool good = true;
    for (int i = 0; i < c->r->world; i++) good &= !all[i].wrong.count && !all[i].beyond;
    return good;
}

static bool fits(const Check *c, const Exact *x) { return larger(x) <= c->bytes; }

/* Repeats a failed call with a larger size, which shows more of the fault. */
static void diagnose(Check *c, const Exact *x, const Split *s, Seen *all) {
    enum { COUNT = 1000 };
    Exact larger = *x;
    larger.count = COUNT;
    Seen *more = mem_zero((size_t)c->r->world, sizeof *more);
    const bool use = x->count < COUNT && fits(c, &larger) && !is_right(c, &larger, s, more);
    if (c->r->out) report(c, use ? &larger : x, s, use ? more : all);
    free(more);
}

static void check_call(Check *c, const Exact *x, const Split *s) {
    Seen *all = mem_zero((size_t)c->r->world, sizeof *all);
    bool *wrong = &c->wrong[x->of - COLLECTIVES];
    if (!*wrong && !is_right(c, x, s, all)) {
        diagnose(c, x, s, all);
        *wrong = true;
    }
    free(all);
}

/* ---- all calls ---- */

static Exact exact_of(const Check *c, const Split *s, int collective, int type, int64_t count,
                      bool in_place) {
    return (Exact){.comm = c->r->comm,
                   .group = s->group,
                   .device = c->r->device,
                   .in = c->in,
                   .out = c->out,
                   .of = &COLLECTIVES[collective],
                   .type = &EXACT_TYPES[type],
                   .count = count,
                   .in_place = in_place};
}

/* A variant of NCCL applies only to some collectives; for example, trees apply only to all-reduce. No variant applies
 * to point-to-point messages. */
static bool is_of_variant(const Check *c, const Collective *of) {
    const char *variant = c->r->in->variant;
    if (!variant || of->kind == COMM_ALL_REDUCE) return true;
    return strstr(variant, "Ring") && of->kind != COMM_ALL_TO_ALL && of->kind != COMM_SEND;
}

/* Checks all collectives with one size in one split. Unless `always` is true, stops when the time is up.
 * Returns whether all collectives were checked. */
static bool check_size(Check *c, const Split *s, int64_t count, bool always) {
    for (int k = 0; k < N_COLLECTIVES; k++)
        for (int t = 0; t < N_EXACT_TYPES; t++)
            for (int in_place = 0; in_place < 2; in_place++) {
                const Exact x = exact_of(c, s, k, t, count, in_place);
                if (in_place ? !x.of->in_place : !x.of->out_of_place) continue;
                if (!fits(c, &x) || !is_of_variant(c, x.of)) continue;
                if (!always && !stage_has_time(c->r, 0.9)) return false;
                check_call(c, &x, s);
            }
    return true;
}

/* Checks one size in all splits. The time limit does not apply, because a verdict requires this check. */
static void check_first(Check *c) {
    for (int s = 0; s < c->n_splits; s++) check_size(c, &c->split[s], FIRST_COUNT, true);
}

/* Checks the other sizes repeatedly while there is time. Returns the first size that was not checked, or -1
 * if all sizes were checked. */
static int64_t check_sizes(Check *c) {
    bool again = false;
    for (; stage_has_time(c->r, 0.9); again = true)
        for (int i = 0; (size_t)size_of(i) <= c->bytes / sizeof(double) / (size_t)c->r->world; i++)
            for (int s = 0; s < c->n_splits; s++)
                if (!check_size(c, &c->split[s], size_of(i), false)) return again ? -1 : size_of(i);
    return again ? -1 : size_of(0);
}

/* ---- order of sums ---- */

static uint64_t sum_inexact(const Check *c, const Exact *x) {
    const CommCall call = exact_call(x);
    const int64_t n = exact_in_count(x), out = exact_out_count(x);
    const size_t size = dtype_size(call.dtype);
    fill_buffer(c, x, c->out);
    for (int64_t i = 0; i < n; i++) {
        const Philox4 p = philox4x32(7, (uint64_t)x->group.rank, (uint64_t)i);
        dtype_store(c->host, call.dtype, i, ((double)p.v[0] - 0x1p31) * 0x1p-31);
    }
    device_write(c->r->device, (char *)call.in, c->host, (size_t)n * size);
    exact_run(x, call);
    device_read(c->r->device, c->host, call.out, (size_t)out * size);
    return hash64(c->host, (size_t)out * size, 0);
}

static void check_order(Check *c, int collective, int type) {
    enum { TIMES = 3, COUNT = 1000 };
    StageRank *r = c->r;
    const Exact x = exact_of(c, &c->split[0], collective, type, COUNT, false);
    if (!fits(c, &x)) return;
    uint64_t first = 0, *all = mem_zero((size_t)r->world, sizeof *all);
    bool varies = false;
    STAGE_DOING(r, "inexact sums, %s %s", x.of->name, x.type->name);
    for (int i = 0; i < TIMES; i++) {
        const uint64_t hash = sum_inexact(c, &x);
        if (i == 0) first = hash;
        varies |= hash != first;
    }
    varies = stage_reduce(r, COMM_MAX, varies) > 0;
    stage_gather(r, &first, all, sizeof first);
    if (r->out) {
        char name[64];
        snprintf(name, sizeof name, "%s %s", x.of->name, x.type->name);
        outcome_hash(r->out, hash64(all, (size_t)r->world * sizeof *all, 0), name);
        if (varies)
            outcome_add(r->out, VALIDATE_DEGRADED, stage_transport(r).s,
                        "%s of %d: repetitions of rounded sums differ bitwise, although exact sums are "
                        "correct: runs are not deterministic",
                        name, (int)COUNT);
    }
    free(all);
}

static void check_orders(Check *c) {
    for (int k = 0; k < N_COLLECTIVES; k++)
        for (int t = 0; COLLECTIVES[k].reduces && t < N_EXACT_TYPES; t++)
            if (dtype_is_float(EXACT_TYPES[t].type)) check_order(c, k, t);
}

/* ---- the stage ---- */

static Err on_rank(StageRank *r) {
    Check c = {.r = r, .bytes = device_is_discrete(r->device) ? 64 << 20 : 1 << 20};
    split_world(&c);
    c.in = device_alloc(r->device, c.bytes + GUARD, "collectives");
    c.out = device_alloc(r->device, c.bytes + GUARD, "collectives");
    c.host = mem_alloc(c.bytes + GUARD);
    check_first(&c);
    if (!r->in->variant) check_orders(&c);
    const int64_t left_out = check_sizes(&c);
    if (r->out && !r->in->variant) {
        stage_note_transport(r);
        outcome_sum_up(r->out, "%s: %s in %s of %s", r->transport, amount(c.calls, "call").s,
                       amount(c.n_splits, "split").s, amount(r->world, "rank").s);
        if (left_out >= 0)
            outcome_limit(r->out, "collectives: sizes from %s, except %d, for which there was no time",
                          amount(left_out, "element").s, (int)FIRST_COUNT);
        if (stage_on_gpu(r->in) && !stage_is_nccl(r->transport))
            outcome_limit(r->out, "collectives: NCCL, because the ranks communicate %s", r->transport);
    }
    device_release(r->device, c.in, c.bytes + GUARD);
    device_release(r->device, c.out, c.bytes + GUARD);
    free(c.host);
    return ERR_OK;
}

Err stage_collectives(const StageInput *in) { return stage_on_ranks(in, on_rank); }
