/* Compares the machine and the work of two results, using the properties that both results state. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gate/gate.h"

/* Returns a member of the result, such as "device", or of its provenance, such as "cpu". */
static const json_t *member(const Result *r, const char *name) {
    const json_t *of_result = json_object_get(r->json, name);
    return of_result ? of_result : json_object_get(json_object_get(r->json, "provenance"), name);
}

/* Compares two values. Reals are compared with a tolerance, because files have six significant digits. */
static bool is_equal(const json_t *a, const json_t *b) {
    if (!json_is_real(a) && !json_is_real(b)) return a == b || json_equal(a, b);
    const double x = json_number_value(a), y = json_number_value(b);
    return json_is_number(a) && json_is_number(b) && fabs(x - y) <= 1e-5 * fmax(fabs(x), fabs(y));
}

static Err differs(const Gate *g, const char *of, const char *name, const json_t *ours,
                   const json_t *theirs) {
    char *a = ours ? json_dumps(ours, JSON_ENCODE_ANY | JSON_COMPACT) : NULL,
         *b = theirs ? json_dumps(theirs, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    Err e = err_user("%s\"%s\" is %.200s here and %.200s in '%s': times of different machines or work cannot "
                     "be compared; %s",
                     of, name, a ? a : "missing", b ? b : "missing", g->theirs.path,
                     g->options->against ? "name a program that does the same work with these options"
                                         : "measure a baseline here, or use --against");
    free(a), free(b);
    return e;
}

/* ---- facts ---- */

static const struct {
    const char *name;
    /* true if every version writes this property, and false if only versions whose gate compares the property
     * write it */
    bool always;
} FACTS_OF_WORK[] = {
    {"device", true},
    {"cpu", true},
    {"cores", true},
    {"ranks", false},
    {"transport", false},
    {"threads", false},
    {"type", false},
    {"tokens", true},
    {"step_flops", false},
    {"micro_batch_size", true},
    {"global_batch_size", true},
    {"graph", true},
    {"deterministic", false},
    {"gemm_tuning", false},
};

/* With --against, both programs had the same command line, so an older program may omit a property that only
 * later versions state. With --baseline, the command line of the earlier result is unknown, so both results
 * must state all properties. */
static bool may_miss(const Gate *g, bool always, const json_t *ours, const json_t *theirs) {
    return g->options->against && !always && (!ours || !theirs);
}

static Err check_facts(const Gate *g, bool early) {
    for (size_t i = 0; i < sizeof FACTS_OF_WORK / sizeof *FACTS_OF_WORK; i++) {
        const char *name = FACTS_OF_WORK[i].name;
        const json_t *ours = member(&g->ours, name), *theirs = member(&g->theirs, name);
        if (early && !ours) continue; /* this program has not measured the value yet */
        if (!is_equal(ours, theirs) && !may_miss(g, FACTS_OF_WORK[i].always, ours, theirs))
            return differs(g, "", name, ours, theirs);
    }
    return ERR_OK;
}

/* ---- options of a step ---- */

/* Returns the value of an option. The member "model" contains only the options that were given. "options"
 * contains all options, but files from earlier versions have no member "options". */
static const json_t *option(const Result *r, const char *name, bool *given) {
    const json_t *value = json_object_get(json_object_get(r->json, "model"), name);
    *given = value != NULL;
    return value ? value : json_object_get(json_object_get(r->json, "options"), name);
}

/* Checks the step's options. If one version lacks an option, the other version must leave the option at its default. */
static Err check_options_of(const Gate *g, json_t *names) {
    const char *name;
    json_t *unused;
    json_object_foreach(names, name, unused) {
        bool here, there;
        const json_t *ours = option(&g->ours, name, &here), *theirs = option(&g->theirs, name, &there);
        const bool both = ours && theirs;
        if (both ? !is_equal(ours, theirs) : here || there) return differs(g, "option ", name, ours, theirs);
    }
    return ERR_OK;
}

static Err check_options(const Gate *g) {
    static const char *const LISTS[] = {"model", "options"};
    const bool either =
        json_object_get(g->ours.json, "options") || json_object_get(g->theirs.json, "options");
    if (g->options->baseline && either && !json_object_get(g->theirs.json, "options"))
        return err_user("'%s' does not state its options, because it was written by an older version of "
                        "Isotron: measure a baseline with this version, or use --against",
                        g->theirs.path);
    for (int i = 0; i < 2; i++) {
        ERR_RETURN(check_options_of(g, json_object_get(g->ours.json, LISTS[i])));
        ERR_RETURN(check_options_of(g, json_object_get(g->theirs.json, LISTS[i])));
    }
    return ERR_OK;
}

/* ---- rows of ops ---- */

static Err check_row(const Gate *g, const json_t *ours, const char *name, bool early) {
    static const char *const SAME[] = {"op", "type", "shape", "operands"};
    const ResultRow *row = result_find(&g->theirs, name);
    if (!row)
        return err_user("'%s' has no row %s: %s", g->theirs.path, name,
                        g->options->against ? "select rows that both have with --filter"
                                            : "measure the baseline with the same options");
    char of[120];
    snprintf(of, sizeof of, "%s: ", name);
    for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++) {
        const json_t *a = json_object_get(ours, SAME[i]), *b = json_object_get(row->json, SAME[i]);
        const bool is_new = !strcmp(SAME[i], "operands");
        if ((early && !a) || is_equal(a, b) || may_miss(g, !is_new, a, b)) continue;
        return differs(g, of, SAME[i], a, b);
    }
    return ERR_OK;
}

Err gate_check_work(const Gate *g, bool early) {
    ERR_RETURN(check_facts(g, early));
    ERR_RETURN(check_options(g));
    const json_t *rows = json_object_get(g->ours.json, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        char name[RESULT_NAME];
        const json_t *row = json_array_get(rows, i);
        ERR_RETURN(result_name(row, name) ? check_row(g, row, name, early) : ERR_OK);
    }
    return ERR_OK;
}

/* ---- permitted differences ---- */

void gate_note_differences(const Gate *g, Str *notes) {
    static const char *const MAY[] = {"compiler", "flags", "blas", "blas_core"};
    for (size_t i = 0; i < sizeof MAY / sizeof *MAY; i++)
        if (!is_equal(member(&g->ours, MAY[i]), member(&g->theirs, MAY[i])))
            str_printf(notes, "note: \"%s\" is %s here and %s in '%s'\n", MAY[i],
                       result_fact(&g->ours, MAY[i]), result_fact(&g->theirs, MAY[i]), g->theirs.path);
    for (size_t i = 0; i < sizeof FACTS_OF_WORK / sizeof *FACTS_OF_WORK; i++)
        if (member(&g->ours, FACTS_OF_WORK[i].name) && !member(&g->theirs, FACTS_OF_WORK[i].name))
            str_printf(notes, "note: '%s' does not state its \"%s\"\n", g->theirs.path,
                       FACTS_OF_WORK[i].name);
}
