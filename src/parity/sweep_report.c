/* Prints a sweep as a table, as JSON and as JUnit XML. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/json_text.h"
#include "base/junit.h"
#include "base/mem.h"
#include "parity/sweep.h"

static const struct {
    const char *name, *json, *one, *many; /* such as "1 cell passes" and "2 cells pass" */
} NAMES[VERDICTS] = {
    [VERDICT_PASS] = {"pass", "pass", "passes", "pass"},
    [VERDICT_FAIL] = {"FAIL", "fail", "fails", "fail"},
    [VERDICT_SKIPPED] = {"skip", "skipped", "is skipped (not a pass)", "are skipped (not a pass)"},
    [VERDICT_PLANNED] = {"planned", "planned", "is planned", "are planned"},
};

const Row *sweep_worst(const Cell *c) {
    return c->job && c->job->end == JOB_DONE ? cell_worst(c->result) : NULL;
}

static double seconds_of(const Cell *c) { return c->job ? c->job->seconds : 0; }

/* ---- provenance ---- */

/* Appends a space and a word of n bytes, quoted for a shell if necessary. */
static void put_word(const char *word, size_t n, Str *out) {
    static const char PLAIN[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./,:@%";
    str_puts(out, " ");
    if (n && strspn(word, PLAIN) >= n) {
        str_add(out, word, n);
        return;
    }
    str_puts(out, "'");
    for (size_t i = 0; i < n; i++)
        if (word[i] == '\'')
            str_puts(out, "'\\''");
        else
            str_add(out, word + i, 1);
    str_puts(out, "'");
}

static void put_sweep(const SweepOptions *o, char *out, size_t n) {
    Str text = {0};
    str_puts(&text, "isotron parity");
    for (int64_t i = 0; i < o->n_dirs; i++) put_word(o->dirs[i], strlen(o->dirs[i]), &text);
    for (int i = 0; i < o->n_words; i++) put_word(o->words[i], strlen(o->words[i]), &text);
    snprintf(out, n, "%s", text.s);
    str_free(&text);
}

/* Returns the number of words that an option of the sweep occupies, or 0 for other options. */
static int count_own(const SweepOptions *o, int at) {
    const char *word = o->words[at];
    const size_t n = strcspn(word, "=");
    for (int64_t i = 0; n > 2 && i < o->own.count; i++) {
        const Arg *row = &o->own.rows[i];
        if (!args_same_name(row->names, arg_name_len(row), word + 2, n - 2)) continue;
        return row->type == ARG_FLAG || word[n] ? 1 : 2;
    }
    return 0;
}

static void put_options(const Sweep *s, Str *out) {
    const SweepOptions *o = s->options;
    for (int i = 0; i < o->n_words;) {
        const int own = count_own(o, i);
        if (!own) put_word(o->words[i], strlen(o->words[i]), out);
        i += own ? own : 1;
    }
}

/* Returns whether only a sweep reproduces the verdict. A single run is compared only with the oracle, whereas a cell is
 * also compared with the one-rank run. */
static bool needs_sweep(const Cell *c) {
    return c->lane == LANE_EXACT ||
           (sweep_worst(c) && !c->result->pass && report_passes(&c->result->oracle.rows));
}

void sweep_command(const Sweep *s, const Cell *c, Str *out) {
    const bool sweeps = needs_sweep(c);
    if (sweeps) {
        char *line = mem_printf("%s%s%s", Lane_spellings[c->lane], *c->words ? " " : "", c->words);
        str_puts(out, "echo");
        put_word(line, strlen(line), out);
        str_puts(out, " | ");
        free(line);
    }
    str_puts(out, "isotron parity");
    put_word(c->of->dir, strlen(c->of->dir), out);
    if (sweeps)
        str_puts(out, " --sweep /dev/stdin");
    else
        str_printf(out, " --lane %s", Lane_spellings[c->lane]);
    put_options(s, out);
    for (const char *word = c->words; *word && !sweeps;) {
        const size_t n = strcspn(word, " ");
        put_word(word, n, out);
        word += n + (word[n] == ' ');
    }
}

void sweep_threads(const Sweep *s, const Provenance *p, char *out, size_t n) {
    int64_t least = INT64_MAX, most = 0;
    for (int64_t i = 0; i < s->n_cells; i++) {
        if (s->cells[i].skipped) continue;
        const int64_t threads = provenance_threads(p, s->cells[i].config.derived.cpu_threads);
        least = threads < least ? threads : least, most = threads > most ? threads : most;
    }
    snprintf(out, n,
             least < most ? "%lld to %lld"
             : most       ? "%lld"
                          : "none",
             (long long)least, (long long)most);
}

void sweep_facts(const Sweep *s, SweepFact out[SWEEP_FACTS]) {
    const Provenance p = provenance_read();
    for (int i = 0; i < FACTS; i++) {
        out[i].name = PROVENANCE_NAMES[i];
        snprintf(out[i].value, sizeof out->value, "%s", p.text[i]);
    }
    SweepFact *more = out + FACTS;
    more[0].name = "threads", more[1].name = "list", more[2].name = "command";
    sweep_threads(s, &p, more[0].value, sizeof more->value);
    snprintf(more[1].value, sizeof more->value, "%s", s->options->list);
    put_sweep(s->options, more[2].value, sizeof more->value);
}

/* ---- table ---- */

void sweep_finding(const Finding *f, const char *indent, Str *out) {
    if (f->agrees_until)
        str_printf(
            out,
            "%snot localised: the one-rank run also differs from the oracle, in step %lld; every op agrees "
            "until the update in this step\n",
            indent, (long long)f->agrees_until);
    if (!f->found) return;
    str_printf(out, "%slocalised: step %lld, ", indent, (long long)f->step + 1);
    if (f->sample >= 0) str_printf(out, "sample %lld, ", (long long)f->sample);
    str_printf(out, "%s of %s", f->phase, f->op);
    if (*f->inside && strcmp(f->inside, f->op)) str_printf(out, " (inside: %s)", f->inside);
    str_printf(out, " at %s, rank %s, %s: %s%s\n", f->place, f->ranks, f->slice, f->signature,
               f->confirmed ? " (confirmed: the step is correct with the tensor of the one-rank run)" : "");
}

void sweep_fraction(const Cell *c, double ratio, Str *out) {
    if (c->lane == LANE_EXACT && (ratio == 0 || ratio > 1e9))
        str_puts(out, ratio == 0 ? "equal" : "differs");
    else if (ratio == 0)
        str_puts(out, "0");
    else
        str_printf(out, ratio < 0.001 || ratio >= 1000 ? "%.0e" : "%.2g", ratio);
}

/* Appends a text such as "0.67 of the bound (gradient, R: 1 of 1.5), power 2.1 %". */
static void put_worst(const Cell *c, const Row *w, Str *out) {
    const double power = cell_power(c->result);
    const RowPair p = row_pair(w);
    str_puts(out, " ");
    sweep_fraction(c, row_excess(w), out);
    if (p.bound == BOUND_EQUAL)
        str_printf(out, " (%s)", w->quantity);
    else
        str_printf(out, " of the bound (%s%s: %.3g of %.3g)", w->quantity,
                   p.is_element ? " of an element" : "", p.error, p.bound);
    if (isfinite(power)) str_printf(out, ", power %.2g %%", 100 * power);
}

static void print_cell(const Sweep *s, const Cell *c, Str *out) {
    const Verdict v = cell_verdict(c);
    const Row *w = sweep_worst(c);
    str_printf(out, "%-24s %-9s %-7s %5.0f ms  %-48s", c->of->golden->name, Lane_spellings[c->lane],
               NAMES[v].name, 1e3 * seconds_of(c), c->name);
    if (w && v == VERDICT_PASS) put_worst(c, w, out);
    if (v == VERDICT_FAIL || v == VERDICT_SKIPPED) {
        str_puts(out, "  ");
        cell_reason(c, out);
    }
    str_puts(out, "\n");
    if (v != VERDICT_FAIL) return;
    str_puts(out, "    to run it alone: ");
    sweep_command(s, c, out);
    str_puts(out, "\n");
    if (c->result) sweep_finding(&c->result->finding, "    ", out);
}

static int64_t cases_without_cells(const Sweep *s) {
    int64_t n = s->n_cases;
    for (int64_t k = 0; k < s->n_cases; k++)
        for (int64_t i = 0; i < s->n_cells; i++)
            if (s->cells[i].of == &s->cases[k]) {
                n--;
                break;
            }
    return n;
}

void sweep_summary(const Sweep *s, Str *out) {
    const SweepCounts n = sweep_counts(s);
    const bool dry = n.of[VERDICT_PLANNED] > 0;
    for (int v = 0, first = 1; v < VERDICTS; v++) {
        if ((v == VERDICT_PLANNED) > dry || (dry && v < VERDICT_PLANNED)) continue;
        str_printf(out, "%s%lld %s%s", first ? "" : ", ", (long long)n.of[v],
                   !first         ? ""
                   : n.of[v] == 1 ? "cell "
                                  : "cells ",
                   n.of[v] == 1 ? NAMES[v].one : NAMES[v].many);
        first = 0;
    }
    if (s->left_out)
        str_printf(out, ", %lld %s for cases that are not given", (long long)s->left_out,
                   s->left_out == 1 ? "line is" : "lines are");
    const int64_t idle = cases_without_cells(s);
    if (idle)
        str_printf(out, ", %lld given %s no cell", (long long)idle, idle == 1 ? "case has" : "cases have");
    str_printf(out, "; %s in %.1f s", amount(n.layouts, "layout").s, s->seconds);
}

void sweep_print(const Sweep *s, Str *out) {
    bool power = false;
    str_printf(out, "%-24s %-9s %-7s %8s  %-48s %s\n", "case", "precision", "", "", "layout",
               "largest error");
    for (int64_t i = 0; i < s->n_cells; i++) {
        print_cell(s, &s->cells[i], out);
        power |= sweep_worst(&s->cells[i]) && isfinite(cell_power(s->cells[i].result));
    }
    str_puts(out,
             "of the bound: the largest error of any quantity, divided by its bound; at most 1 passes\n");
    if (power)
        str_puts(
            out,
            "R: the error divided by the error that rounding is expected to cause, about 1 in a correct run\n"
            "power: the smallest relative error of a layer's gradients that would have failed\n");
    const Provenance p = provenance_read();
    char threads[48];
    sweep_threads(s, &p, threads, sizeof threads);
    provenance_print(&p, threads, out);
    sweep_summary(s, out);
    str_puts(out, "\n");
}

/* ---- JSON ---- */

static json_t *json_provenance(const Sweep *s) {
    SweepFact fact[SWEEP_FACTS];
    json_t *facts = json_object();
    sweep_facts(s, fact);
    for (int i = 0; i < SWEEP_FACTS; i++)
        json_object_set_new(facts, fact[i].name, compare_json_text(fact[i].value));
    return facts;
}

static json_t *json_finding(const Finding *f) {
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "step", (json_int_t)f->step + 1,
                     "sample", (json_int_t)f->sample, "phase", compare_json_text(f->phase), "op",
                     compare_json_text(f->op), "inside", compare_json_text(f->inside), "place",
                     compare_json_text(f->place), "ranks", compare_json_text(f->ranks), "slice",
                     compare_json_text(f->slice), "signature", compare_json_text(f->signature), "confirmed",
                     f->confirmed);
}

static void json_result(const Cell *c, json_t *cell) {
    const CellResult *r = c->result;
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)trace_hash(&c->of->run, c->trace));
    json_object_set_new(cell, "oracle", report_json(&r->oracle.rows));
    json_object_set_new(cell, "one_rank", report_json(&r->one_rank));
    json_object_set_new(cell, "R", json_finite(r->ratio));
    json_object_set_new(cell, "hash", json_string(hash));
    if (r->finding.found) json_object_set_new(cell, "localised", json_finding(&r->finding));
    if (r->finding.agrees_until)
        json_object_set_new(cell, "agrees_until_step", json_integer(r->finding.agrees_until));
}

static json_t *json_cell(const Sweep *s, const Cell *c) {
    Str reason = {0}, command = {0};
    cell_reason(c, &reason);
    sweep_command(s, c, &command);
    json_t *cell =
        json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:I, s:s, s:I, s:f, s:s}", "case",
                  compare_json_text(c->of->golden->name), "lane", Lane_spellings[c->lane], "layout",
                  compare_json_text(c->layout), "options", compare_json_text(c->words), "command",
                  compare_json_text(command.s), "reason", compare_json_text(reason.s ? reason.s : ""), "line",
                  (json_int_t)c->line, "device", DeviceOption_spellings[c->config.device], "ranks",
                  (json_int_t)(c->skipped ? 0 : config_ranks(&c->config)), "seconds", seconds_of(c),
                  "verdict", NAMES[cell_verdict(c)].json);
    if (c->job && c->job->end == JOB_DONE) json_result(c, cell);
    str_free(&reason), str_free(&command);
    return cell;
}

void sweep_json(const Sweep *s, Str *out) {
    const SweepCounts n = sweep_counts(s);
    json_t *cells = json_array();
    for (int64_t i = 0; i < s->n_cells; i++) json_array_append_new(cells, json_cell(s, &s->cells[i]));
    compare_json_write(json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "schema", 1, "passed",
                                 (json_int_t)n.of[VERDICT_PASS], "failed", (json_int_t)n.of[VERDICT_FAIL],
                                 "skipped", (json_int_t)n.of[VERDICT_SKIPPED], "planned",
                                 (json_int_t)n.of[VERDICT_PLANNED], "layouts", (json_int_t)n.layouts,
                                 "seconds", s->seconds, "provenance", json_provenance(s), "cells", cells),
                       out);
}

/* ---- JUnit XML ---- */

static void junit_properties(const Sweep *s, const Cell *c, const Row *w, Str *out) {
    static const char IN[] = "        ";
    Str command = {0};
    sweep_command(s, c, &command);
    str_puts(out, "      <properties>\n");
    junit_property(out, IN, "layout", c->layout);
    junit_property(out, IN, "lane", Lane_spellings[c->lane]);
    junit_property(out, IN, "options", c->words);
    junit_property(out, IN, "command", command.s);
    str_free(&command);
    if (w) {
        const RowPair p = row_pair(w);
        junit_property(out, IN, "quantity", w->quantity);
        junit_number(out, IN, "bound", p.bound == BOUND_EQUAL ? 0 : p.bound);
        junit_number(out, IN, "observed", p.error);
        junit_number(out, IN, "fraction of bound", row_excess(w));
        junit_number(out, IN, "R", c->result->ratio);
        junit_number(out, IN, "power", cell_power(c->result));
    }
    str_puts(out, "      </properties>\n");
}

static void junit_failure(const Cell *c, Str *out) {
    Str more = {0};
    if (c->result) {
        report_failures(&c->result->oracle.rows, "", &more);
        report_failures(&c->result->one_rank, "against one rank: ", &more);
        sweep_finding(&c->result->finding, "", &more);
    }
    xml_text(out, more.s ? more.s : "");
    xml_text(out, c->job->output);
    str_free(&more);
}

static void junit_cell(const Sweep *s, const Cell *c, Str *out) {
    const Verdict v = cell_verdict(c);
    Str reason = {0};
    cell_reason(c, &reason);
    str_printf(out, "    <testcase classname=\"parity.%s.%s\" name=\"", c->of->golden->name,
               Lane_spellings[c->lane]);
    xml_text(out, c->name);
    str_printf(out, "\" time=\"%.3f\">\n", seconds_of(c));
    junit_properties(s, c, sweep_worst(c), out);
    if (v != VERDICT_PASS) {
        const char *kind = v == VERDICT_FAIL ? "failure" : "skipped";
        str_printf(out, "      <%s message=\"", kind);
        xml_text(out, v == VERDICT_PLANNED ? "planned, not run" : reason.s ? reason.s : "");
        str_puts(out, "\">");
        if (v == VERDICT_FAIL) junit_failure(c, out);
        str_printf(out, "</%s>\n", kind);
    }
    str_puts(out, "    </testcase>\n");
    str_free(&reason);
}

void sweep_junit(const Sweep *s, Str *out) {
    const SweepCounts n = sweep_counts(s);
    SweepFact fact[SWEEP_FACTS];
    sweep_facts(s, fact);
    str_printf(out,
               SWEEP_JUNIT_HEAD
               "tests=\"%lld\" failures=\"%lld\" skipped=\"%lld\" time=\"%.3f\">\n    <properties>\n",
               (long long)s->n_cells, (long long)n.of[VERDICT_FAIL],
               (long long)(n.of[VERDICT_SKIPPED] + n.of[VERDICT_PLANNED]), s->seconds);
    for (int i = 0; i < SWEEP_FACTS; i++) junit_property(out, "      ", fact[i].name, fact[i].value);
    str_puts(out, "    </properties>\n");
    for (int64_t i = 0; i < s->n_cells; i++) junit_cell(s, &s->cells[i], out);
    str_puts(out, "  </testsuite>\n</testsuites>\n");
}
