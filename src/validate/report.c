/* The reports of validate as text, JSON and JUnit XML. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/hash.h"
#include "base/junit.h"
#include "base/statistics.h"
#include "base/utf8.h"
#include "config/enums.h"
#include "run/provenance.h"
#include "validate/compare.h"
#include "validate/conclusion.h"
#include "validate/rates_page.h"

static StageVerdict verdict_of(const ValidateRow *row) {
    const StageVerdict a = outcome_verdict(row->a), b = row->b ? outcome_verdict(row->b) : VALIDATE_PASS;
    return a > b ? a : b;
}

StageVerdict validate_verdict(const Validation *a) {
    StageVerdict worst = VALIDATE_PASS;
    bool passed = false;
    for (int i = 0; i < STAGES; i++) {
        if (!a->row[i].a) continue;
        const StageVerdict v = verdict_of(&a->row[i]);
        passed |= v == VALIDATE_PASS;
        if (v > worst) worst = v;
    }
    return worst == VALIDATE_INCONCLUSIVE && passed ? VALIDATE_PASS : worst;
}

/* ---- the command that repeats a stage ---- */

/* Returns whether the command that repeats a stage omits the given option and its value. */
static bool is_left_out(const char *word) {
    static const char *const NAMES[] = {"--only", "--json", "--junit", "--html"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const size_t n = strlen(NAMES[i]);
        if (!strncmp(word, NAMES[i], n) && (!word[n] || word[n] == '=')) return true;
    }
    return false;
}

static void put_word(Str *out, const char *word) {
    const bool plain =
        *word && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+%@") ==
                     strlen(word);
    str_puts(out, plain ? " " : " '");
    for (; *word; word++)
        if (*word == '\'')
            str_puts(out, "'\\''");
        else
            str_add(out, word, 1);
    if (!plain) str_puts(out, "'");
}

void validate_command(const Validation *a, const ValidateRow *row, Str *out) {
    const ValidateOptions *o = a->options;
    bool leave = false;
    str_puts(out, "isotron validate");
    for (int i = 0; i < o->argc; i++) {
        const bool option = !strncmp(o->argv[i], "--", 2);
        if (option) leave = is_left_out(o->argv[i]);
        if (!leave) put_word(out, o->argv[i]);
    }
    str_printf(out, " --only %s", row->name);
}

/* ---- text ---- */

static void print_evidence(const Outcome *r, const char *who, Str *out) {
    for (int i = 0; i < r->n_evidence; i++) {
        const Evidence *e = &r->evidence[i];
        if (!*e->suspect) continue; /* the stage could not run, and is listed as not certified */
        str_printf(out, "    %s%s, suspect %s: %s\n", who, e->verdict ? STAGE_VERDICTS[e->verdict] : "note",
                   e->suspect, e->text);
    }
    if (r->n_lost) str_printf(out, "    and %d more\n", r->n_lost);
}

void validate_print_row(const Validation *a, const ValidateRow *row, Str *out) {
    const StageVerdict v = verdict_of(row);
    const Outcome *r = row->a;
    str_printf(out, "%-12s %-12s %6.1f s  %s\n", row->name, STAGE_VERDICTS[v],
               r->seconds + (row->b ? row->b->seconds : 0),
               *r->summary   ? r->summary
               : r->n_limits ? r->limit[0]
                             : row->what);
    print_evidence(r, row->b ? "A: " : "", out);
    if (row->b) print_evidence(row->b, "B: ", out);
    if (v < VALIDATE_DEGRADED) return;
    str_puts(out, "    to repeat it: ");
    validate_command(a, row, out);
    str_puts(out, "\n");
}

/* Prints the limitations of a stage. Limitations that libraries A and B have in common are printed once. */
static void print_limits(const ValidateRow *row, const char *indent, Str *out) {
    const Outcome *a = row->a, *b = row->b;
    for (int i = 0; i < a->n_limits; i++) str_printf(out, "%snot certified: %s\n", indent, a->limit[i]);
    for (int i = 0; b && i < b->n_limits; i++)
        if (!outcome_has_limit(a, b->limit[i]))
            str_printf(out, "%snot certified: B: %s\n", indent, b->limit[i]);
}

static void print_classes(const ValidateRow *row, Str *out) {
    RateClass c[RATE_CLASSES];
    const int n = compare_classes(row, c);
    for (int i = 0; i < n; i++) {
        str_printf(out, "%-16s ", c[i].name);
        compare_class_text(&c[i], out);
        str_puts(out, "\n");
    }
}

static void print_libraries(const Validation *a, Str *out) {
    if (!a->options->nccl_b) return;
    str_printf(out, "\n%-12s A: %-20s B: %s\n", "stage", a->nccl_name[0], a->nccl_name[1]);
    for (int i = 0; i < STAGES; i++)
        if (a->row[i].b)
            str_printf(out, "%-12s %-23s %s\n", a->row[i].name, STAGE_VERDICTS[outcome_verdict(a->row[i].a)],
                       STAGE_VERDICTS[outcome_verdict(a->row[i].b)]);
    str_printf(out,
               "\nratios of the rates, B / A; all intervals of a stage hold simultaneously with a "
               "probability of %g %%\n",
               100 * (1 - INTERVAL_ERROR));
    for (int i = 0; i < STAGES; i++) print_classes(&a->row[i], out);
}

/* Returns the reason why a stage has no verdict, or NULL if it has a verdict. A stage states the reason in a
 * piece of evidence without a suspect. */
static const char *why_none(const ValidateRow *row) {
    if (!row->a) return "--only leaves it out";
    const StageVerdict v = verdict_of(row);
    if (v != VALIDATE_INCONCLUSIVE && v != VALIDATE_INTERRUPTED) return NULL;
    const Outcome *r = outcome_verdict(row->a) == v ? row->a : row->b;
    for (int i = 0; i < r->n_evidence; i++)
        if (r->evidence[i].verdict == v && !*r->evidence[i].suspect) return r->evidence[i].text;
    return "its results vary too much";
}

void validate_count(const Validation *a, Str *out) {
    const bool pass = validate_verdict(a) == VALIDATE_PASS;
    int passed = 0;
    for (int i = 0; i < STAGES; i++) passed += a->row[i].a && verdict_of(&a->row[i]) == VALIDATE_PASS;
    str_printf(out, "%d of %d stages%s", passed, (int)STAGES, pass ? "" : " pass");
    bool said[STAGES] = {false};
    for (int i = 0; i < STAGES; i++) {
        const char *why = said[i] ? NULL : why_none(&a->row[i]);
        /* lists this stage together with later stages that have the same reason */
        for (int k = i; why && k < STAGES; k++) {
            const char *other = why_none(&a->row[k]);
            if (!other || strcmp(other, why)) continue;
            str_printf(out, "%s%s", k == i ? "; " : ", ", a->row[k].name);
            said[k] = true;
        }
        const bool ran = a->row[i].a && a->row[i].a->seconds > 0;
        if (why) str_printf(out, ": not %s because %s", ran ? "certified" : "run", why);
    }
}

void validate_print(const Validation *a, Str *out) {
    print_libraries(a, out);
    str_puts(out, "\n");
    for (int i = 0; i < STAGES; i++)
        if (a->row[i].a) print_limits(&a->row[i], "", out);
    Str cause = {0};
    conclusion_of(a, &cause);
    if (cause.len) str_printf(out, "conclusion: %s\n", cause.s);
    str_free(&cause);
    str_printf(out, "verdict: %s, ", STAGE_VERDICTS[validate_verdict(a)]);
    validate_count(a, out);
    str_printf(out, " (%s, %.0f s)\n", amount(a->ranks, "rank").s, a->seconds);
}

/* ---- JSON ---- */

static void add_results(json_t *to, const Outcome *r) {
    json_t *evidence = json_array(), *limits = json_array(), *metrics = json_array(), *hashes = json_object();
    for (int i = 0; i < r->n_evidence; i++)
        json_array_append_new(evidence,
                              json_pack("{s:s, s:s, s:s}", "verdict", STAGE_VERDICTS[r->evidence[i].verdict],
                                        "suspect", r->evidence[i].suspect, "text", r->evidence[i].text));
    for (int i = 0; i < r->n_limits; i++) json_array_append_new(limits, json_string(r->limit[i]));
    for (int i = 0; i < r->n_metrics; i++) {
        const Metric *m = &r->metric[i];
        json_t *samples = json_array();
        for (int k = 0; k < m->n; k++) json_array_append_new(samples, json_real(m->sample[k]));
        json_t *metric = json_pack("{s:s, s:s, s:f, s:o}", "name", m->name, "unit", m->unit, "median",
                                   metric_median(m), "samples", samples);
        if (m->roof > 0) json_object_set_new(metric, "roof", json_real(m->roof));
        json_array_append_new(metrics, metric);
    }
    for (int i = 0; i < r->n_hashes; i++) {
        char hex[24];
        snprintf(hex, sizeof hex, "%016" PRIx64, r->hash[i].hash);
        json_object_set_new(hashes, r->hash[i].name, json_string(hex));
    }
    json_object_set_new(to, "summary", json_string(r->summary));
    if (*r->transport) json_object_set_new(to, "transport", json_string(r->transport));
    json_object_set_new(to, "evidence", evidence);
    json_object_set_new(to, "not_certified", limits);
    json_object_set_new(to, "metrics", metrics);
    json_object_set_new(to, "hashes", hashes);
}

/* Adds the lasting facts as "fingerprint", and all other facts as "state". */
static void add_facts(json_t *to, const Outcome *r) {
    json_t *lasting = json_object(), *state = json_object();
    uint64_t hash = 0;
    for (int i = 0; i < r->n_facts; i++) {
        const Fact *f = &r->fact[i];
        json_object_set_new(f->lasting ? lasting : state, f->name, json_string(f->value));
        if (f->lasting) hash = hash64(f->value, strlen(f->value), hash ^ hash_name(f->name));
    }
    char hex[24];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    json_object_set_new(to, "fingerprint_hash", json_string(hex));
    json_object_set_new(to, "fingerprint", lasting);
    json_object_set_new(to, "state", state);
}

/* Returns the comparison of the two libraries. */
static json_t *classes_json(const ValidateRow *row) {
    RateClass c[RATE_CLASSES];
    const int n = compare_classes(row, c);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *one = json_pack("{s:s, s:f}", "name", c[i].name, "ratio", c[i].ratio.median);
        if (c[i].known) json_object_set_new(one, "low", json_real(c[i].ratio.low));
        if (c[i].known) json_object_set_new(one, "high", json_real(c[i].ratio.high));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *row_json(const Validation *a, const ValidateRow *row) {
    Str command = {0}, valid = {0};
    validate_command(a, row, &command);
    utf8_repair(command.s, command.len, &valid); /* the command line can contain any bytes */
    json_t *all = json_pack("{s:s, s:s, s:s, s:f, s:s}", "name", row->name, "certifies", row->what, "verdict",
                            STAGE_VERDICTS[verdict_of(row)], "seconds", row->a->seconds, "command", valid.s);
    str_free(&command), str_free(&valid);
    add_results(all, row->a);
    if (row->a->n_facts) add_facts(all, row->a);
    if (row->b) {
        json_t *b = json_pack("{s:s}", "verdict", STAGE_VERDICTS[outcome_verdict(row->b)]);
        add_results(b, row->b);
        json_object_set_new(b, "ratios", classes_json(row));
        json_object_set_new(all, "b", b);
    }
    return all;
}

void validate_json(const Validation *a, Str *out) {
    json_t *stages = json_array();
    for (int i = 0; i < STAGES; i++)
        if (a->row[i].a) json_array_append_new(stages, row_json(a, &a->row[i]));
    json_t *all = json_pack("{s:i, s:o, s:s, s:i, s:s, s:f, s:o}", "schema", (int)VALIDATE_SCHEMA,
                            "provenance", provenance_json(), "verdict", STAGE_VERDICTS[validate_verdict(a)],
                            "ranks", a->ranks, "device", DeviceOption_spellings[a->options->config->device],
                            "seconds", a->seconds, "stages", stages);
    Str cause = {0};
    conclusion_of(a, &cause);
    if (cause.len) json_object_set_new(all, "conclusion", json_string(cause.s));
    str_free(&cause);
    char *text = json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(8));
    str_puts(out, text);
    str_puts(out, "\n");
    free(text);
    json_decref(all);
}

/* ---- JUnit XML ---- */

static void junit_row(const Validation *a, const ValidateRow *row, Str *out) {
    const StageVerdict v = verdict_of(row);
    Str said = {0}, command = {0};
    print_evidence(row->a, "", &said);
    if (row->b) print_evidence(row->b, "B: ", &said);
    if (!said.len) print_limits(row, "", &said);
    validate_command(a, row, &command);
    str_printf(out, "    <testcase classname=\"validate\" name=\"%s\" time=\"%.3f\">\n      <properties>\n",
               row->name, row->a->seconds);
    junit_property(out, "        ", "command", command.s);
    junit_property(out, "        ", "verdict", STAGE_VERDICTS[v]);
    str_puts(out, "      </properties>\n");
    if (v != VALIDATE_PASS) {
        const char *kind = v < VALIDATE_DEGRADED ? "skipped" : "failure";
        str_printf(out, "      <%s message=\"%s\">", kind, STAGE_VERDICTS[v]);
        xml_text(out, said.s ? said.s : "");
        str_printf(out, "</%s>\n", kind);
    }
    str_puts(out, "    </testcase>\n");
    str_free(&said), str_free(&command);
}

void validate_junit(const Validation *a, Str *out) {
    int count[VALIDATE_VERDICTS] = {0}, rows = 0;
    for (int i = 0; i < STAGES; i++)
        if (a->row[i].a) count[verdict_of(&a->row[i])]++, rows++;
    str_printf(out,
               "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"validate\" "
               "tests=\"%d\" "
               "failures=\"%d\" skipped=\"%d\" time=\"%.3f\">\n",
               rows, count[VALIDATE_FAIL] + count[VALIDATE_DEGRADED],
               count[VALIDATE_INCONCLUSIVE] + count[VALIDATE_INTERRUPTED], a->seconds);
    for (int i = 0; i < STAGES; i++)
        if (a->row[i].a) junit_row(a, &a->row[i], out);
    str_puts(out, "  </testsuite>\n</testsuites>\n");
}

/* ---- HTML ---- */

static void html_row(const Validation *a, const ValidateRow *row, Str *out) {
    static const char *const COLORS[] = {"#cce8cc", "#eeeeee", "#eeeeee", "#ffe6a0", "#f4a6a0"};
    const StageVerdict v = verdict_of(row);
    Str said = {0}, command = {0};
    print_evidence(row->a, row->b ? "A: " : "", &said);
    if (row->b) print_evidence(row->b, "B: ", &said);
    validate_command(a, row, &command);
    str_printf(out, "<tr><td>%s</td><td style=\"background:%s\">%s</td><td>%.1f s</td><td>", row->name,
               COLORS[v], STAGE_VERDICTS[v], row->a->seconds);
    xml_text(out, row->a->summary);
    str_puts(out, "<pre>");
    xml_text(out, said.s ? said.s : "");
    str_puts(out, "</pre></td><td><code>");
    xml_text(out, command.s);
    str_puts(out, "</code></td></tr>\n");
    str_free(&said), str_free(&command);
}

static void html_head(const Validation *a, const Provenance *p, Str *out) {
    str_puts(out,
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Isotron validation, ");
    xml_text(out, p->text[FACT_DATE]);
    str_puts(out, "</title><style>"
                  "body{font:14px sans-serif;margin:24px;max-width:1400px;background:#fff;color:#24292f}"
                  "table{border-collapse:collapse;margin:8px 0 24px}td:nth-child(3){white-space:nowrap}"
                  "td,th{border:1px solid #ccc;padding:2px 6px;text-align:left;vertical-align:top}"
                  "svg{vertical-align:middle;font-size:12px;fill:#24292f}pre{white-space:pre-wrap;margin:0}."
                  "limits{border:2px solid #999;padding:0 12px 12px;margin:8px 0 24px}"
                  "</style></head><body>\n");
    static const char *const SAID[] = {"accepted", "no verdict", "interrupted", "not accepted",
                                       "not accepted"};
    const Outcome *inventory = a->row[STAGE_inventory].a;
    Str head = {0}, text = {0};
    str_printf(&head, "%s", p->text[FACT_HOST]);
    if (inventory && *inventory->summary) str_printf(&head, ", %s", inventory->summary);
    for (int i = 0; inventory && i < inventory->n_facts; i++)
        if (!strcmp(inventory->fact[i].name, "driver of rank 0"))
            str_printf(&head, ", driver %s", inventory->fact[i].value);
    str_printf(&head, ": %s", SAID[validate_verdict(a)]);
    str_puts(out, "<h1>");
    xml_text(out, head.s);
    str_printf(out, "</h1>\n<p><b>%s</b>, ", STAGE_VERDICTS[validate_verdict(a)]);
    validate_count(a, &text);
    xml_text(out, text.s);
    str_puts(out, ".</p>\n");
    text.len = 0;
    conclusion_of(a, &text);
    if (text.len) str_puts(out, "<p>Conclusion: ");
    if (text.len) xml_text(out, text.s);
    if (text.len) str_puts(out, ".</p>\n");
    str_free(&head), str_free(&text);
}

static void html_limits(const Validation *a, Str *out) {
    Str limits = {0};
    for (int i = 0; i < STAGES; i++)
        if (a->row[i].a) print_limits(&a->row[i], "", &limits);
    if (limits.len) {
        str_puts(out, "<div class=\"limits\"><h2>Limitations of the verdict</h2><pre>");
        xml_text(out, limits.s);
        str_puts(out, "</pre></div>\n");
    }
    str_free(&limits);
}

void validate_html(const Validation *a, Str *out) {
    const Provenance p = provenance_read();
    html_head(a, &p, out);
    str_puts(out, "<table><tr><th>stage</th><th>verdict</th><th>time</th><th>evidence</th>"
                  "<th>to repeat it</th></tr>\n");
    for (int i = 0; i < STAGES; i++)
        if (a->row[i].a) html_row(a, &a->row[i], out);
    str_puts(out, "</table>\n");
    html_limits(a, out);
    rates_page(a, out);
    str_puts(out, "<h2>Provenance</h2>\n<table>\n");
    for (int i = 0; i < FACTS; i++) {
        str_printf(out, "<tr><th>%s</th><td>", PROVENANCE_NAMES[i]);
        xml_text(out, p.text[i]);
        str_puts(out, "</td></tr>\n");
    }
    str_puts(out, "</table></body></html>\n");
}
