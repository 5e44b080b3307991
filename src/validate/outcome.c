#include "validate/outcome.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/statistics.h"
#include "base/utf8.h"

const char *const STAGE_VERDICTS[] = {"PASS", "INCONCLUSIVE", "INTERRUPTED", "DEGRADED", "FAIL"};

/* Replaces bytes that are not UTF-8 with '?', because JSON cannot contain them. The environment and the output of a
 * library can contain any bytes, and a truncated text can end inside a character. */
static void make_valid(char *s) {
    enum { LONGEST = 4 };
    for (size_t n = 0; *s; s += n) {
        for (n = 1; n <= LONGEST && !utf8_valid(s, n);) n++;
        if (n > LONGEST) *s = '?', n = 1;
    }
}

#define WRITE(to, fmt)                                                                                       \
    do {                                                                                                     \
        va_list args_;                                                                                       \
        va_start(args_, fmt);                                                                                \
        vsnprintf(to, sizeof(to), fmt, args_);                                                               \
        va_end(args_);                                                                                       \
        make_valid(to);                                                                                      \
    } while (0)

/* Returns the least severe evidence or, if several are equally severe, the last of them. */
static Evidence *least_severe(Outcome *r) {
    Evidence *least = r->evidence;
    for (int i = 1; i < r->n_evidence; i++)
        if (r->evidence[i].verdict <= least->verdict) least = &r->evidence[i];
    return least;
}

void outcome_add(Outcome *r, StageVerdict verdict, const char *suspect, const char *fmt, ...) {
    const bool full = r->n_evidence == OUTCOME_EVIDENCE;
    Evidence *e = full ? least_severe(r) : &r->evidence[r->n_evidence++];
    r->n_lost += full;
    if (full && e->verdict >= verdict) return;
    e->verdict = verdict;
    snprintf(e->suspect, sizeof e->suspect, "%s", suspect);
    make_valid(e->suspect);
    WRITE(e->text, fmt);
}

void outcome_limit(Outcome *r, const char *fmt, ...) {
    char limit[sizeof r->limit[0]];
    WRITE(limit, fmt);
    if (outcome_has_limit(r, limit)) return;
    if (r->n_limits == OUTCOME_LIMITS)
        snprintf(r->limit[OUTCOME_LIMITS - 1], sizeof limit,
                 "further limitations of this stage, after the first %d", OUTCOME_LIMITS - 1);
    else
        snprintf(r->limit[r->n_limits++], sizeof limit, "%s", limit);
}

void outcome_fact(Outcome *r, bool lasting, const char *name, const char *fmt, ...) {
    if (r->n_facts == OUTCOME_FACTS) {
        outcome_limit(r, "facts of the machine after the first %d", (int)OUTCOME_FACTS);
        return;
    }
    Fact *f = &r->fact[r->n_facts++];
    f->lasting = lasting;
    snprintf(f->name, sizeof f->name, "%s", name);
    make_valid(f->name);
    WRITE(f->value, fmt);
}

void outcome_doing(Outcome *r, const char *fmt, ...) { WRITE(r->doing, fmt); }

void outcome_sum_up(Outcome *r, const char *fmt, ...) { WRITE(r->summary, fmt); }

void outcome_hash(Outcome *r, uint64_t hash, const char *name) {
    if (r->n_hashes == OUTCOME_HASHES) return;
    OrderHash *h = &r->hash[r->n_hashes++];
    snprintf(h->name, sizeof h->name, "%s", name);
    h->hash = hash;
}

const Metric *outcome_metric(const Outcome *r, const char *name) {
    for (int i = 0; i < r->n_metrics; i++)
        if (!strcmp(r->metric[i].name, name)) return &r->metric[i];
    return NULL;
}

void outcome_sample(Outcome *r, const char *unit, double sample, const char *name) {
    Metric *m = (Metric *)outcome_metric(r, name);
    if (!m) {
        if (r->n_metrics == OUTCOME_METRICS) {
            outcome_limit(r, "rates after the first %d", (int)OUTCOME_METRICS);
            return;
        }
        m = &r->metric[r->n_metrics++];
        m->n = 0, m->roof = 0; /* the memory can contain values of an earlier attempt */
        snprintf(m->name, sizeof m->name, "%s", name);
        snprintf(m->unit, sizeof m->unit, "%s", unit);
    }
    if (m->n < OUTCOME_SAMPLES) m->sample[m->n++] = sample;
}

void outcome_roof(Outcome *r, double roof, const char *name) {
    Metric *m = (Metric *)outcome_metric(r, name);
    if (m && roof > 0) m->roof = roof;
}

static bool has_evidence(const Outcome *r, const Evidence *e) {
    for (int i = 0; i < r->n_evidence; i++)
        if (r->evidence[i].verdict == e->verdict && !strcmp(r->evidence[i].suspect, e->suspect) &&
            !strcmp(r->evidence[i].text, e->text))
            return true;
    return false;
}

bool outcome_has_limit(const Outcome *r, const char *limit) {
    for (int i = 0; i < r->n_limits; i++)
        if (!strcmp(r->limit[i], limit)) return true;
    return false;
}

static const OrderHash *find_hash(const Outcome *r, const char *name) {
    for (int i = 0; i < r->n_hashes; i++)
        if (!strcmp(r->hash[i].name, name)) return &r->hash[i];
    return NULL;
}

static void merge_hash(Outcome *to, const OrderHash *h) {
    const OrderHash *other = find_hash(to, h->name);
    if (!other)
        outcome_hash(to, h->hash, h->name);
    else if (other->hash != h->hash)
        outcome_add(to, VALIDATE_DEGRADED, "order of sums", "%s differs bitwise between two processes",
                    h->name);
}

void outcome_merge(Outcome *to, const Outcome *from) {
    for (int i = 0; i < from->n_evidence; i++) {
        const Evidence *e = &from->evidence[i];
        if (!has_evidence(to, e)) outcome_add(to, e->verdict, e->suspect, "%s", e->text);
    }
    for (int i = 0; i < from->n_metrics; i++) {
        const Metric *m = &from->metric[i];
        for (int k = 0; k < m->n; k++) outcome_sample(to, m->unit, m->sample[k], m->name);
        outcome_roof(to, m->roof, m->name);
    }
    for (int i = 0; i < from->n_limits; i++) outcome_limit(to, "%s", from->limit[i]);
    for (int i = 0; i < from->n_facts && to->seconds == 0; i++)
        outcome_fact(to, from->fact[i].lasting, from->fact[i].name, "%s", from->fact[i].value);
    for (int i = 0; i < from->n_hashes; i++) merge_hash(to, &from->hash[i]);
    if (*from->summary) outcome_sum_up(to, "%s", from->summary);
    if (*from->transport) memcpy(to->transport, from->transport, sizeof to->transport);
    to->n_lost += from->n_lost, to->devices = from->devices;
    to->done = from->done, to->error = from->error;
    to->seconds += from->seconds;
}

double metric_median(const Metric *m) { return m && m->n ? median_of(m->sample, m->n) : 0; }

StageVerdict outcome_verdict(const Outcome *r) {
    StageVerdict worst = VALIDATE_PASS;
    for (int i = 0; i < r->n_evidence; i++)
        if (r->evidence[i].verdict > worst) worst = r->evidence[i].verdict;
    return worst;
}
