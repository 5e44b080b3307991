/* A sweep as a table, as JSON and as JUnit XML. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "validate/sweep.h"

static const char *const VERDICTS[] = {
    [VERDICT_PASS] = "pass", [VERDICT_FAIL] = "FAIL", [VERDICT_SKIPPED] = "skip"};

static const Row *worst_of(const Cell *c) {
    return c->job && c->job->end == JOB_DONE ? cell_worst(c->result) : NULL;
}

static double seconds_of(const Cell *c) { return c->job ? c->job->seconds : 0; }

/* ---- table ---- */

static void print_finding(const Finding *f, Str *out) {
    if (!f->found) return;
    str_printf(out, "    localised: step %lld, ", (long long)f->step + 1);
    if (f->sample >= 0) str_printf(out, "sample %lld, ", (long long)f->sample);
    str_printf(out, "%s of %s", f->phase, f->op);
    if (*f->inside && strcmp(f->inside, f->op)) str_printf(out, " (inside: %s)", f->inside);
    str_printf(out, " at %s, rank %s, %s: %s%s\n", f->place, f->ranks, f->slice, f->signature,
               f->confirmed ? " (confirmed: the step is correct with the tensor of one rank)" : "");
}

static void print_cell(const Cell *c, Str *out) {
    const Verdict v = cell_verdict(c);
    const Row *w = worst_of(c);
    str_printf(out, "%-24s %-5s %-4s %5.0f ms  %-48s", c->of->golden->name, Lane_spellings[c->lane],
               VERDICTS[v], 1e3 * seconds_of(c), c->layout);
    if (w) str_printf(out, " %.2e of %.2e", w->error.relative, w->bound);
    if (w && isfinite(c->result->ratio)) str_printf(out, ", R %.2f", c->result->ratio);
    if (v != VERDICT_PASS) {
        str_puts(out, "  ");
        cell_reason(c, out);
    }
    str_puts(out, "\n");
    if (v == VERDICT_FAIL && c->result) print_finding(&c->result->finding, out);
}

void sweep_summary(const Sweep *s, Str *out) {
    const SweepCounts n = sweep_counts(s);
    str_printf(out, "%lld %s, %lld %s, %lld %s skipped (not a pass)", (long long)n.passed,
               n.passed == 1 ? "cell passes" : "cells pass", (long long)n.failed,
               n.failed == 1 ? "fails" : "fail", (long long)n.skipped, n.skipped == 1 ? "is" : "are");
    if (s->left_out)
        str_printf(out, ", %lld %s of cases that are not given", (long long)s->left_out,
                   s->left_out == 1 ? "line is" : "lines are");
    str_printf(out, "; %lld layout%s in %.1f s", (long long)n.layouts, n.layouts == 1 ? "" : "s", s->seconds);
}

void sweep_print(const Sweep *s, Str *out) {
    str_printf(out, "%-24s %-5s %-4s %8s  %-48s %s\n", "case", "lane", "", "", "layout",
               "worst error of bound");
    for (int64_t i = 0; i < s->n_cells; i++) print_cell(&s->cells[i], out);
    sweep_summary(s, out);
    str_puts(out, "\n");
}

/* ---- JSON ---- */

static void json_member(Str *out, const char *key, const char *value) {
    str_printf(out, "\"%s\": ", key);
    compare_json_text(out, value);
    str_puts(out, ", ");
}

static void json_finding(const Finding *f, Str *out) {
    str_printf(out, "\"localised\": {\"step\": %lld, \"sample\": %lld, ", (long long)f->step + 1,
               (long long)f->sample);
    json_member(out, "phase", f->phase);
    json_member(out, "op", f->op);
    json_member(out, "inside", f->inside);
    json_member(out, "place", f->place);
    json_member(out, "ranks", f->ranks);
    json_member(out, "slice", f->slice);
    json_member(out, "signature", f->signature);
    str_printf(out, "\"confirmed\": %s}, ", f->confirmed ? "true" : "false");
}

static void json_cell(const Cell *c, Str *out) {
    const Verdict v = cell_verdict(c);
    Str reason = {0};
    cell_reason(c, &reason);
    str_puts(out, "    {");
    json_member(out, "case", c->of->golden->name);
    json_member(out, "lane", Lane_spellings[c->lane]);
    json_member(out, "layout", c->layout);
    json_member(out, "options", c->words);
    json_member(out, "reason", reason.s ? reason.s : "");
    if (c->job && c->job->end == JOB_DONE) {
        const CellResult *r = c->result;
        str_puts(out, "\"oracle\": ");
        report_json(&r->oracle.rows, out);
        str_puts(out, ", \"one_rank\": ");
        report_json(&r->one_rank, out);
        str_puts(out, ", ");
        compare_json_number(out, "R", r->ratio);
        str_printf(out, "\"hash\": \"%016llx\", ", (unsigned long long)trace_hash(&c->of->run, c->trace));
        if (r->finding.found) json_finding(&r->finding, out);
    }
    str_printf(out, "\"line\": %lld, \"ranks\": %lld, \"seconds\": %.3f, \"verdict\": \"%s\"}",
               (long long)c->line, (long long)(c->skipped ? 0 : config_ranks(&c->config)), seconds_of(c),
               v == VERDICT_PASS   ? "pass"
               : v == VERDICT_FAIL ? "fail"
                                   : "skipped");
    str_free(&reason);
}

void sweep_json(const Sweep *s, Str *out) {
    const SweepCounts n = sweep_counts(s);
    str_printf(
        out,
        "{\n  \"schema\": 1,\n  \"passed\": %lld, \"failed\": %lld, \"skipped\": %lld, \"layouts\": %lld, "
        "\"seconds\": %.3f,\n  \"cells\": [\n",
        (long long)n.passed, (long long)n.failed, (long long)n.skipped, (long long)n.layouts, s->seconds);
    for (int64_t i = 0; i < s->n_cells; i++) {
        json_cell(&s->cells[i], out);
        str_puts(out, i + 1 < s->n_cells ? ",\n" : "\n");
    }
    str_puts(out, "  ]\n}\n");
}

/* ---- JUnit XML ---- */

void sweep_xml_text(Str *out, const char *s) {
    for (; *s; s++) switch (*s) {
        case '<':
            str_puts(out, "&lt;");
            break;
        case '>':
            str_puts(out, "&gt;");
            break;
        case '&':
            str_puts(out, "&amp;");
            break;
        case '"':
            str_puts(out, "&quot;");
            break;
        case '\n':
            str_puts(out, "\n");
            break;
        default:
            if ((unsigned char)*s >= 32) str_add(out, s, 1);
        }
}

static void property(Str *out, const char *name, const char *value) {
    str_printf(out, "        <property name=\"%s\" value=\"", name);
    sweep_xml_text(out, value);
    str_puts(out, "\"/>\n");
}

static void number_property(Str *out, const char *name, double x) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", x);
    property(out, name, text);
}

static void junit_cell(const Cell *c, Str *out) {
    const Verdict v = cell_verdict(c);
    const Row *w = worst_of(c);
    Str reason = {0};
    cell_reason(c, &reason);
    str_printf(out, "    <testcase classname=\"parity.%s.%s\" name=\"", c->of->golden->name,
               Lane_spellings[c->lane]);
    sweep_xml_text(out, c->layout);
    str_printf(out, "\" time=\"%.3f\">\n      <properties>\n", seconds_of(c));
    property(out, "layout", c->layout);
    property(out, "lane", Lane_spellings[c->lane]);
    property(out, "options", c->words);
    if (w) {
        property(out, "quantity", w->quantity);
        number_property(out, "bound", w->bound);
        number_property(out, "observed", w->error.relative);
        number_property(out, "R", c->result->ratio);
    }
    str_puts(out, "      </properties>\n");
    if (v != VERDICT_PASS) {
        str_printf(out, "      <%s message=\"", v == VERDICT_FAIL ? "failure" : "skipped");
        sweep_xml_text(out, reason.s ? reason.s : "");
        str_puts(out, "\">");
        if (v == VERDICT_FAIL) {
            Str more = {0};
            print_finding(&c->result->finding, &more);
            sweep_xml_text(out, more.s ? more.s : "");
            sweep_xml_text(out, c->job->output);
            str_free(&more);
        }
        str_printf(out, "</%s>\n", v == VERDICT_FAIL ? "failure" : "skipped");
    }
    str_puts(out, "    </testcase>\n");
    str_free(&reason);
}

void sweep_junit(const Sweep *s, Str *out) {
    const SweepCounts n = sweep_counts(s);
    str_printf(out,
               "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"parity sweep\" "
               "tests=\"%lld\" "
               "failures=\"%lld\" skipped=\"%lld\" time=\"%.3f\">\n",
               (long long)s->n_cells, (long long)n.failed, (long long)n.skipped, s->seconds);
    for (int64_t i = 0; i < s->n_cells; i++) junit_cell(&s->cells[i], out);
    str_puts(out, "  </testsuite>\n</testsuites>\n");
}
