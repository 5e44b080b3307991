/* A sweep as one static page: counts, a grid of layouts and lanes, the error of each layer's gradients, the
 * overlaid loss curves. SVG and CSS only. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "validate/sweep.h"

static const char STYLE[] =
    "body{font:14px sans-serif;margin:24px;max-width:1200px}table{border-collapse:collapse;margin:8px 0 24px}"
    "td,th{border:1px solid #ccc;padding:2px 6px;text-align:left;font-weight:normal}th{background:#eee}"
    ".pass{background:#bfe5bf}.fail{background:#f4a6a0}.skip{background:#eee;color:#777}code{font-size:12px}"
    "svg{border:1px solid #ccc;margin:4px 0 24px}";

static const char *css(const Cell *c) {
    static const char *const NAMES[] = {
        [VERDICT_PASS] = "pass", [VERDICT_FAIL] = "fail", [VERDICT_SKIPPED] = "skip"};
    return NAMES[cell_verdict(c)];
}

static bool has_run(const Cell *c) { return c->job && c->job->end == JOB_DONE; }

/* ---- layouts x lanes ---- */

static bool same_row(const Cell *a, const Cell *b) { return a->of == b->of && !strcmp(a->layout, b->layout); }

static bool is_first(const Sweep *s, int64_t i) {
    for (int64_t k = 0; k < i; k++)
        if (same_row(&s->cells[k], &s->cells[i])) return false;
    return true;
}

static void grid_cell(const Sweep *s, const Cell *of, Lane lane, Str *out) {
    for (int64_t i = 0; i < s->n_cells; i++) {
        const Cell *c = &s->cells[i];
        if (c->lane != lane || !same_row(c, of)) continue;
        Str reason = {0};
        cell_reason(c, &reason);
        str_printf(out, "<td class=\"%s\" title=\"", css(c));
        sweep_xml_text(out, reason.s ? reason.s : "");
        str_puts(out, "\">");
        const Row *w = has_run(c) ? cell_worst(c->result) : NULL;
        if (w)
            str_printf(out, "%.1e", w->error.relative);
        else
            str_puts(out, css(c));
        str_puts(out, "</td>");
        str_free(&reason);
        return;
    }
    str_puts(out, "<td></td>");
}

static void grid(const Sweep *s, Str *out) {
    str_puts(
        out,
        "<h2>Layouts and lanes</h2><p>The largest error relative to its bound; the tooltip of a skipped or "
        "failed cell has the reason.</p><table><tr><th>case</th><th>layout</th>");
    for (int lane = 0; lane < LANES; lane++) str_printf(out, "<th>%s</th>", Lane_spellings[lane]);
    str_puts(out, "</tr>\n");
    for (int64_t i = 0; i < s->n_cells; i++) {
        if (!is_first(s, i)) continue;
        str_printf(out, "<tr><td>%s</td><td><code>", s->cells[i].of->golden->name);
        sweep_xml_text(out, s->cells[i].layout);
        str_puts(out, "</code></td>");
        for (int lane = 0; lane < LANES; lane++) grid_cell(s, &s->cells[i], (Lane)lane, out);
        str_puts(out, "</tr>\n");
    }
    str_puts(out, "</table>\n");
}

/* ---- error by layer ---- */

/* White at 1e-17 and below, dark red at 1. */
static void heat(Str *out, double error) {
    const double x = error > 0 ? fmin(fmax((log10(error) + 17) / 17, 0), 1) : 0;
    const int fade = (int)lround(255 * (1 - x));
    str_printf(out, "<td style=\"background:rgb(255,%d,%d)\" title=\"%.3g\">&nbsp;</td>", fade, fade, error);
}

static void heat_map(const Sweep *s, Str *out) {
    str_puts(
        out,
        "<h2>Error by layer</h2><p>Largest relative difference of a gradient of step 1 from the run on one "
        "rank: white 1e-17, red 1; last column: embeddings, final norm, output.</p><table>\n");
    for (int64_t i = 0; i < s->n_cells; i++) {
        const Cell *c = &s->cells[i];
        if (!has_run(c)) continue;
        str_printf(out, "<tr><td>%s</td><td>%s</td><td><code>", c->of->golden->name, Lane_spellings[c->lane]);
        sweep_xml_text(out, c->layout);
        str_puts(out, "</code></td>");
        for (int64_t k = 0; k < c->config.num_layers && k < CELL_LAYERS; k++)
            heat(out, c->result->layer_error[k]);
        heat(out, c->result->layer_error[CELL_LAYERS]);
        str_puts(out, "</tr>\n");
    }
    str_puts(out, "</table>\n");
}

/* ---- loss ---- */

enum { WIDTH = 640, HEIGHT = 240 };

static void curve(const Golden *g, const GoldenStep *steps, double low, double high, const char *color,
                  double width, Str *out) {
    str_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" points=\"", color, width);
    for (int64_t i = 0; i < g->n_steps; i++)
        if (isfinite(steps[i].loss))
            str_printf(out, "%.1f,%.1f ",
                       10 + (double)i * (WIDTH - 20) / (double)(g->n_steps > 1 ? g->n_steps - 1 : 1),
                       HEIGHT - 10 - (steps[i].loss - low) / (high - low) * (HEIGHT - 20));
    str_puts(out, "\"/>\n");
}

/* The oracle is a thick line, overlaid by one line per cell: equal curves coincide. */
static void losses(const Sweep *s, const SweepCase *of, Str *out) {
    const Golden *g = of->golden;
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < g->n_steps; i++)
        low = fmin(low, g->steps[i].loss), high = fmax(high, g->steps[i].loss);
    if (high <= low) high = low + 1;
    str_printf(out,
               "<h3>%s</h3><p>Loss %.4f to %.4f over %lld steps: oracle grey, passing cells green, failing "
               "red.</p>\n",
               g->name, g->steps[0].loss, g->steps[g->n_steps - 1].loss, (long long)g->n_steps);
    str_printf(out, "<svg width=\"%d\" height=\"%d\">\n", WIDTH, HEIGHT);
    curve(g, g->steps, low, high, "#bbb", 6, out);
    for (int64_t i = 0; i < s->n_cells; i++) {
        const Cell *c = &s->cells[i];
        if (c->of == of && has_run(c))
            curve(g, c->trace->steps, low, high, cell_verdict(c) == VERDICT_PASS ? "#2a8f2a" : "#d02020", 1,
                  out);
    }
    str_puts(out, "</svg>\n");
}

void sweep_html(const Sweep *s, Str *out) {
    str_printf(out,
               "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Parity "
               "sweep</title><style>%s"
               "</style></head><body>\n<h1>Parity sweep</h1>\n",
               STYLE);
    str_puts(out, "<p>");
    sweep_summary(s, out);
    str_puts(out, ".</p>\n");
    grid(s, out);
    heat_map(s, out);
    str_puts(out, "<h2>Loss</h2>\n");
    for (int64_t i = 0; i < s->n_cases; i++) losses(s, &s->cases[i], out);
    str_puts(out, "</body></html>\n");
}
