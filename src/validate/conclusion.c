#include "validate/conclusion.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/mem.h"

enum { MOST_NAMED = 16, MOST_FINDINGS = 2 * STAGES * OUTCOME_EVIDENCE, MOST_TIED = 4 };

typedef enum Kind { RANK, LINK, LIBRARY, HOST } Kind;

typedef struct Component {
    Kind kind;
    /* RANK: a is the rank. LINK: a < b are the two ranks. LIBRARY: a is 0 for library A, and 1 for library B. */
    int a, b;
} Component;

/* The components that a finding names. */
typedef struct Finding {
    Component named[MOST_NAMED];
    int n;
    bool of_all; /* the finding is about all ranks, so any component can be the cause */
} Finding;

static void name(Finding *f, Kind kind, int a, int b) {
    if (f->n < MOST_NAMED) f->named[f->n++] = (Component){kind, a < b ? a : b, a < b ? b : a};
}

/* Reads the ranks that a suspect names: "GPU 1 (rank 1)", "links of rank 0 or rank 1", "op linear, ranks 0,2". */
static void name_ranks(Finding *f, const char *suspect) {
    int rank, n;
    for (const char *at = suspect; (at = strstr(at, "rank")); at++) {
        const char *digits = at + strlen("rank") + (at[strlen("rank")] == 's');
        for (; sscanf(digits, "%*1[ ,]%d%n", &rank, &n) == 1; digits += n) name(f, RANK, rank, rank);
    }
}

/* Reads a finding. The driver counts as part of the host, although every rank reports a driver. */
static Finding read_finding(const char *suspect, int stage, bool is_b, int ranks) {
    Finding f = {.n = 0};
    int a, b;
    if (!strncmp(suspect, "NCCL", 4))
        name(&f, LIBRARY, is_b, is_b);
    else if (sscanf(suspect, "link %d-%d", &a, &b) == 2)
        name(&f, LINK, a, b);
    else if (strncmp(suspect, "driver", 6))
        name_ranks(&f, suspect);
    if (f.n > 2 && f.n == ranks) f.n = 0;
    if (!f.n && stage == STAGE_inventory) name(&f, HOST, 0, 0);
    f.of_all = !f.n && strcmp(suspect, "not known");
    return f;
}

static bool is_same(Component x, Component y) { return x.kind == y.kind && x.a == y.a && x.b == y.b; }

static bool names(const Finding *f, Component c) {
    for (int i = 0; i < f->n; i++)
        if (is_same(f->named[i], c)) return true;
    return false;
}

static bool explains(Component c, const Finding *f) {
    bool link_of_rank = false;
    for (int i = 0; i < f->n && c.kind == RANK; i++)
        link_of_rank |= f->named[i].kind == LINK && (f->named[i].a == c.a || f->named[i].b == c.a);
    return f->of_all || link_of_rank || names(f, c);
}

static int read_findings(const Validation *a, Finding *out) {
    int n = 0;
    for (int i = 0; i < STAGES; i++) {
        const Outcome *const of[] = {a->row[i].a, a->row[i].b};
        for (int b = 0; b < 2; b++)
            for (int k = 0; of[b] && k < of[b]->n_evidence; k++)
                if (of[b]->evidence[k].verdict >= VALIDATE_DEGRADED)
                    out[n++] = read_finding(of[b]->evidence[k].suspect, i, b, a->ranks);
    }
    return n;
}

/* Returns the score of a component. If two components explain the same number of findings, the component that more
 * findings name has the higher score. A component that no finding names has the score 0, because a slow link alone is
 * not evidence against a rank. */
static int score(Component c, const Finding *f, int n) {
    int explained = 0, named = 0;
    for (int i = 0; i < n; i++) explained += explains(c, &f[i]), named += names(&f[i], c);
    return named ? explained * (MOST_FINDINGS + 1) + named : 0;
}

static void put_component(const Validation *a, Component c, Str *out) {
    const Outcome *inventory = a->row[STAGE_inventory].a;
    const int devices = inventory && a->options->config->device == ON_CUDA ? inventory->devices : 0;
    if (c.kind == RANK && devices > 0)
        str_printf(out, "GPU %d (rank %d)", c.a % devices, c.a);
    else if (c.kind == RANK)
        str_printf(out, "rank %d", c.a);
    else if (c.kind == LINK)
        str_printf(out, "link %d-%d", c.a, c.b);
    else if (c.kind == HOST)
        str_puts(out, "the host");
    else
        str_printf(out, "NCCL%s%s", *a->nccl_name[c.a] ? c.a ? " B, " : " A, " : "", a->nccl_name[c.a]);
}

static void put_holders(const Validation *a, Component c, Str *out) {
    const Outcome *inventory = a->row[STAGE_inventory].a;
    char fact[64];
    snprintf(fact, sizeof fact, OTHERS_OF_RANK, c.a);
    for (int i = 0; inventory && c.kind == RANK && i < inventory->n_facts; i++)
        if (!strcmp(inventory->fact[i].name, fact))
            str_printf(out, "; another process holds it: %s", inventory->fact[i].value);
}

void conclusion_of(const Validation *a, Str *out) {
    Finding *f = mem_zero(MOST_FINDINGS, sizeof *f);
    Component best[MOST_TIED];
    const int n = read_findings(a, f);
    int most = 0, tied = 0, explained = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < f[i].n; k++) {
            const Component c = f[i].named[k];
            const int points = score(c, f, n);
            bool known = false;
            if (points > most) most = points, tied = 0;
            for (int t = 0; t < tied && t < MOST_TIED; t++) known |= is_same(best[t], c);
            if (points < most || known) continue;
            if (tied < MOST_TIED) best[tied] = c;
            tied++;
        }
    for (int i = 0; i < n && tied; i++) explained += explains(best[0], &f[i]);
    for (int t = 0; t < tied && t < MOST_TIED; t++) {
        if (t) str_puts(out, " or ");
        put_component(a, best[t], out);
    }
    if (tied > MOST_TIED) str_printf(out, " or %d others", tied - MOST_TIED);
    if (tied)
        str_printf(out, " %s %d of %s", tied > 1 ? "each explain" : "explains", explained,
                   amount(n, "finding").s);
    for (int t = 0; t < tied && t < MOST_TIED; t++) put_holders(a, best[t], out);
    if (n && !tied)
        str_printf(out, "no single component explains %s", n > 1 ? "the findings" : "the finding");
    free(f);
}
