/* Prints a sweep as one static page. The page contains a description of the run, an explanation, the failures,
 * a grid of layouts and precisions, the error in each layer, and the loss curves. Every error is shown as a
 * fraction of its bound, so that precisions can be compared. The page uses only SVG and CSS. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/junit.h"
#include "parity/sweep.h"

static const char STYLE[] =
    "body{font:14px sans-serif;margin:24px;max-width:1200px}table{border-collapse:collapse;margin:8px 0 24px}"
    "td,th{border:1px solid #ccc;padding:2px 6px;text-align:left;font-weight:normal;vertical-align:top}"
    "th{background:#eee}th.case{background:#dde5ee;font-weight:bold}td.n{text-align:right}.fail{background:#"
    "f4a6a0}"
    ".skip{color:#777}code{font-size:12px}svg{margin:4px 0 24px}svg text{font:11px sans-serif;fill:#555}"
    "summary{font-size:1.3em;font-weight:bold;margin:16px 0 8px}.PASS{color:#1a7f37}.FAIL{color:#d02020}";

static bool has_run(const Cell *c) { return c->job && c->job->end == JOB_DONE; }

static void put_code(const char *text, Str *out) {
    str_puts(out, "<td><code>");
    xml_text(out, text);
    str_puts(out, "</code></td>");
}

/* Appends a color: green to yellow up to the bound, and red above it. */
static void put_color(double ratio, Str *out) {
    if (!(ratio <= 1))
        str_puts(out, "#f4a6a0");
    else
        str_printf(out, "rgb(%d,%d,%d)", (int)lround(200 + 55 * ratio), (int)lround(235 - 5 * ratio),
                   (int)lround(200 - 60 * ratio));
}

/* Begins a table cell and writes the ratio. The caller ends the cell. */
static void put_ratio(const Cell *c, double ratio, const char *title, Str *out) {
    str_puts(out, "<td class=\"n\" style=\"background:");
    put_color(ratio, out);
    if (*title) str_puts(out, "\" title=\"");
    xml_text(out, title);
    str_puts(out, "\">");
    sweep_fraction(c, ratio, out);
}

static bool case_has_run(const Sweep *s, const SweepCase *of) {
    for (int64_t i = 0; i < s->n_cells; i++)
        if (s->cells[i].of == of && has_run(&s->cells[i])) return true;
    return false;
}

/* ---- description of the run ---- */

static void provenance(const Sweep *s, Str *out) {
    SweepFact fact[SWEEP_FACTS];
    sweep_facts(s, fact);
    str_puts(out, "<table>\n");
    for (int i = 0; i < SWEEP_FACTS; i++) {
        str_printf(out, "<tr><th>%s</th>", fact[i].name);
        put_code(fact[i].value, out);
        str_puts(out, "</tr>\n");
    }
    str_puts(out, "</table>\n");
}

static void legend(Str *out) {
    str_puts(out, "<h2>How to read this</h2><ul>\n<li>A number is the largest error of a cell <b>as a "
                  "fraction of its bound</b>: ");
    static const double EXAMPLES[] = {0, 0.5, 1};
    for (int i = 0; i < 3; i++) {
        str_puts(out, "<span style=\"padding:0 6px;background:");
        put_color(EXAMPLES[i], out);
        str_printf(out, "\">%g</span> ", EXAMPLES[i]);
    }
    str_puts(
        out,
        "pass, <span class=\"fail\" style=\"padding:0 6px\">1.01</span> fails. Its tooltip shows the "
        "quantity, the error and the bound.</li>\n"
        "<li>fp64 and fp32 are compared with an independent implementation in float64 and with one rank. The "
        "bound is the error that rounding can cause, computed from types and sizes.</li>\n"
        "<li>Lower precisions are compared with fp64. <b>R</b> is the error divided by the error that "
        "rounding is expected to cause, about 1 in a correct run. <b>Power</b> is the smallest relative "
        "error of a layer's gradients that would have failed.</li>\n"
        "<li>In the exact lane, the results of every layout must be bitwise equal to those on one rank. The "
        "errors shown are those of one rank.</li></ul>\n");
}

/* ---- failures ---- */

static void failure(const Sweep *s, const Cell *c, Str *out) {
    Str reason = {0}, command = {0};
    cell_reason(c, &reason);
    if (c->result) {
        str_puts(&reason, "\n");
        sweep_finding(&c->result->finding, "", &reason);
    }
    str_printf(out, "<tr><td>%s</td><td>%s</td>", c->of->golden->name, Lane_spellings[c->lane]);
    put_code(c->layout, out);
    str_puts(out, "<td class=\"fail\" style=\"white-space:pre-wrap\">");
    xml_text(out, reason.s ? reason.s : "");
    str_puts(out, "</td>");
    sweep_command(s, c, &command);
    put_code(command.s, out);
    str_puts(out, "</tr>\n");
    str_free(&reason), str_free(&command);
}

static void failures(const Sweep *s, Str *out) {
    if (!sweep_counts(s).of[VERDICT_FAIL]) return;
    str_puts(out, "<h2>Failures</h2><table><tr><th>case</th><th>precision</th><th>layout</th><th>why</th>"
                  "<th>command to run only this cell</th></tr>\n");
    for (int64_t i = 0; i < s->n_cells; i++)
        if (cell_verdict(&s->cells[i]) == VERDICT_FAIL) failure(s, &s->cells[i], out);
    str_puts(out, "</table>\n");
}

static void skipped(const Sweep *s, Str *out) {
    if (!sweep_counts(s).of[VERDICT_SKIPPED]) return;
    str_puts(out, "<details><summary>Skipped: these options break a rule</summary><table>\n");
    for (int64_t i = 0; i < s->n_cells; i++) {
        const Cell *c = &s->cells[i];
        if (cell_verdict(c) != VERDICT_SKIPPED) continue;
        Str reason = {0};
        cell_reason(c, &reason);
        str_printf(out, "<tr class=\"skip\"><td>%s</td><td>%s</td>", c->of->golden->name,
                   Lane_spellings[c->lane]);
        put_code(c->words, out);
        str_puts(out, "<td>");
        xml_text(out, reason.s ? reason.s : "");
        str_puts(out, "</td></tr>\n");
        str_free(&reason);
    }
    str_puts(out, "</table></details>\n");
}

/* ---- grid of layouts and precisions ---- */

static bool is_in_grid(const Cell *c) { return cell_verdict(c) != VERDICT_SKIPPED; }

/* Returns whether the cell is the first cell with its layout. */
static bool is_first(const Sweep *s, int64_t i) {
    for (int64_t k = 0; k < i; k++)
        if (s->cells[k].of == s->cells[i].of && is_in_grid(&s->cells[k]) &&
            !strcmp(s->cells[k].layout, s->cells[i].layout))
            return false;
    return is_in_grid(&s->cells[i]);
}

static void describe(const Cell *c, const Row *w, Str *out) {
    row_describe(w, out);
    if (isfinite(c->result->ratio)) str_printf(out, "; R of gradients %.2f", c->result->ratio);
    if (isfinite(cell_power(c->result))) str_printf(out, "; power %.2g %%", 100 * cell_power(c->result));
}

/* Returns the largest error as a fraction of its bound. Returns infinity if there is no error, or if the cell fails
 * for another reason. */
static double badness(const Cell *c) {
    const Row *w = sweep_worst(c);
    const double ratio = w ? row_excess(w) : INFINITY;
    return isnan(ratio) || (ratio <= 1 && cell_verdict(c) == VERDICT_FAIL) ? INFINITY : ratio;
}

/* Returns the worst cell for a layout and lane. Cells with the same layout and lane may differ in other options. */
static const Cell *worst_like(const Sweep *s, const Cell *like, Lane lane) {
    const Cell *worst = NULL;
    for (const Cell *c = s->cells; c < s->cells + s->n_cells; c++)
        if (c->lane == lane && c->of == like->of && is_in_grid(c) && !strcmp(c->layout, like->layout) &&
            (!worst || badness(c) > badness(worst)))
            worst = c;
    return worst;
}

static void grid_cell(const Sweep *s, const Cell *like, Lane lane, Str *out) {
    const Cell *c = worst_like(s, like, lane);
    const Row *w = c ? sweep_worst(c) : NULL;
    Str title = {0};
    if (w) {
        if (c->name != c->layout) str_printf(&title, "%s: ", c->name);
        describe(c, w, &title);
        put_ratio(c, badness(c), title.s, out);
    } else if (c && cell_verdict(c) == VERDICT_PLANNED)
        str_puts(out, "<td>planned");
    else
        str_puts(out, c ? "<td class=\"fail\">no result" : "<td>");
    str_puts(out, "</td>");
    str_free(&title);
}

static void grid_of(const Sweep *s, const SweepCase *of, Str *out) {
    bool begun = false;
    for (int64_t i = 0; i < s->n_cells; i++) {
        if (s->cells[i].of != of || !is_first(s, i)) continue;
        if (!begun)
            str_printf(out, "<tr><th class=\"case\" colspan=\"%d\">%s</th></tr>\n", LANES + 1,
                       of->golden->name);
        begun = true;
        str_puts(out, "<tr>");
        put_code(s->cells[i].layout, out);
        for (int lane = 0; lane < LANES; lane++) grid_cell(s, &s->cells[i], (Lane)lane, out);
        str_puts(out, "</tr>\n");
    }
}

static void grid(const Sweep *s, Str *out) {
    str_puts(out, "<details open><summary>Layouts and precisions</summary><table><tr><th>layout</th>");
    for (int lane = 0; lane < LANES; lane++) str_printf(out, "<th>%s</th>", Lane_spellings[lane]);
    str_puts(out, "</tr>\n");
    for (int64_t i = 0; i < s->n_cases; i++) grid_of(s, &s->cases[i], out);
    str_puts(out, "</table></details>\n");
}

/* ---- error by layer ---- */

static void layers_of(const Cell *c, Str *out) {
    str_printf(out, "<tr><td>%s</td>", Lane_spellings[c->lane]);
    put_code(c->name, out);
    for (int k = 0; k <= ROW_LAYERS; k++)
        if (k < c->config.num_layers || k == ROW_LAYERS) {
            put_ratio(c, cell_layer(c->result, k), "", out);
            str_puts(out, "</td>");
        }
    str_puts(out, "</tr>\n");
}

static void layers(const Sweep *s, Str *out) {
    str_puts(out,
             "<details><summary>Error by layer</summary><p>The largest fraction of the bound in the tensors "
             "of each layer; the last column has the rest: losses, norms, embeddings, output.</p><table>\n");
    for (int64_t k = 0; k < s->n_cases; k++) {
        const SweepCase *of = &s->cases[k];
        if (!case_has_run(s, of)) continue;
        const int64_t n = of->run.config.num_layers < ROW_LAYERS ? of->run.config.num_layers : ROW_LAYERS;
        str_printf(out, "<tr><th class=\"case\" colspan=\"2\">%s</th>", of->golden->name);
        for (int64_t i = 0; i < n; i++) str_printf(out, "<th>layer %lld</th>", (long long)i);
        str_puts(out, "<th>rest</th></tr>\n");
        for (int64_t i = 0; i < s->n_cells; i++)
            if (s->cells[i].of == of && has_run(&s->cells[i])) layers_of(&s->cells[i], out);
    }
    str_puts(out, "</table></details>\n");
}

/* ---- loss ---- */

enum { WIDTH = 680, HEIGHT = 260, LEFT = 60, RIGHT = 10, TOP = 10, BOTTOM = 40 };

/* A figure's axes: steps 1 to n, and losses from low to high. */
typedef struct Axes {
    int64_t n;
    double low, high;
} Axes;

static double x_of(const Axes *a, double step) {
    return LEFT + (step - 1) * (WIDTH - LEFT - RIGHT) / (double)(a->n > 1 ? a->n - 1 : 1);
}

static double y_of(const Axes *a, double loss) {
    return HEIGHT - BOTTOM - (loss - a->low) / (a->high - a->low) * (HEIGHT - TOP - BOTTOM);
}

/* Returns the distance between ticks: 1, 2 or 5 times a power of ten, so that the range has about `wanted` ticks. */
static double tick(double range, double wanted) {
    const double rough = range / wanted, power = pow(10, floor(log10(rough))), times = rough / power;
    return power * (times > 5 ? 10 : times > 2 ? 5 : times > 1 ? 2 : 1);
}

static void axes(const Axes *a, Str *out) {
    const double by = tick(a->high - a->low, 5), step = fmax(1, tick((double)a->n, 10));
    const int bottom = HEIGHT - BOTTOM;
    str_printf(out, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#555\"/>\n", LEFT, TOP, bottom,
               WIDTH - RIGHT);
    for (double y = ceil(a->low / by) * by; y <= a->high; y += by)
        str_printf(out,
                   "<path d=\"M%d %.1fh-4\" stroke=\"#555\"/><text x=\"%d\" y=\"%.1f\" "
                   "text-anchor=\"end\">%.4g</text>\n",
                   LEFT, y_of(a, y), LEFT - 7, y_of(a, y) + 4, y);
    for (double x = step; x <= (double)a->n; x += step)
        str_printf(out,
                   "<path d=\"M%.1f %dv4\" stroke=\"#555\"/><text x=\"%.1f\" y=\"%d\" "
                   "text-anchor=\"middle\">%g</text>\n",
                   x_of(a, x), bottom, x_of(a, x), bottom + 16, x);
    str_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n", (LEFT + WIDTH) / 2,
               HEIGHT - 6);
    str_printf(out, "<text transform=\"translate(12 %d) rotate(-90)\" text-anchor=\"middle\">loss</text>\n",
               bottom / 2);
}

static void curve(const Axes *a, const GoldenStep *steps, const char *color, double width, Str *out) {
    str_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" points=\"", color, width);
    for (int64_t i = 0; i < a->n; i++)
        if (isfinite(steps[i].loss))
            str_printf(out, "%.1f,%.1f ", x_of(a, (double)i + 1), y_of(a, steps[i].loss));
    str_puts(out, "\"/>\n");
}

static void widen(Axes *a, const GoldenStep *steps) {
    for (int64_t i = 0; i < a->n; i++)
        if (isfinite(steps[i].loss))
            a->low = fmin(a->low, steps[i].loss), a->high = fmax(a->high, steps[i].loss);
}

/* Draws the loss curves. The oracle's curve is a thick line over which the cells' curves are drawn, so equal
 * curves coincide. */
static void losses(const Sweep *s, const SweepCase *of, Str *out) {
    const Golden *g = of->golden;
    Axes a = {g->n_steps, INFINITY, -INFINITY};
    widen(&a, g->steps);
    for (int64_t i = 0; i < s->n_cells; i++)
        if (s->cells[i].of == of && has_run(&s->cells[i])) widen(&a, s->cells[i].trace->steps);
    if (!(a.high > a.low)) a.high = a.low + 1;
    str_printf(out, "<h3>%s</h3>\n<svg width=\"%d\" height=\"%d\">\n", g->name, WIDTH, HEIGHT);
    axes(&a, out);
    curve(&a, g->steps, "#bbb", 6, out);
    for (int64_t i = 0; i < s->n_cells; i++) {
        const Cell *c = &s->cells[i];
        if (c->of == of && has_run(c))
            curve(&a, c->trace->steps, cell_verdict(c) == VERDICT_PASS ? "#2a8f2a" : "#d02020", 1, out);
    }
    str_puts(out, "</svg>\n");
}

void sweep_html(const Sweep *s, Str *out) {
    const SweepCounts n = sweep_counts(s);
    const char *verdict = n.of[VERDICT_FAIL] ? "FAIL" : n.of[VERDICT_PASS] ? "PASS" : "no verdict";
    str_printf(out,
               SWEEP_HTML_HEAD
               "<style>%s</style></head><body>\n<h1>Parity sweep: <span class=\"%s\">%s</span></h1>\n",
               STYLE, verdict, verdict);
    str_puts(out, "<p>");
    sweep_summary(s, out);
    str_puts(out, ".</p>\n");
    provenance(s, out);
    failures(s, out);
    legend(out);
    grid(s, out);
    layers(s, out);
    skipped(s, out);
    str_puts(out, "<h2>Loss</h2><p>The independent implementation is grey, cells that pass are green, and "
                  "cells that fail are red. Equal curves coincide.</p>\n");
    for (int64_t i = 0; i < s->n_cases; i++)
        if (case_has_run(s, &s->cases[i])) losses(s, &s->cases[i], out);
    str_puts(out, "</body></html>\n");
}
