/* The length of a bar is the median rate in this run, divided by the roof or, if no roof is known, by the
 * median in the good run. All bars share one axis, so that they can be compared. */
#include "validate/rates_page.h"

#include <math.h>

#include "base/junit.h"
#include "validate/compare.h"

/* The colours used by tools/figure.py. */
static const char *const BAR[] = {"#0072b2", "#009e73"}, GOOD[] = "#d55e00", ROOF[] = "#57606a";
enum { AXIS = 320, LABEL = 250, BAR_HEIGHT = 10, ROW_HEIGHT = 16 }; /* pixels */
/* The largest share that a bar can represent. A longer bar is cut off at the end of the axis. */
static const double MOST_SHARE = 2;

typedef struct Rate {
    const ValidateRow *row;
    const Metric *of[2]; /* rates with library A and library B; NULL if there is no rate */
    double roof, good;   /* 0 if the rate is not known */
} Rate;

typedef struct RatesPage {
    const Validation *a;
    /* whether two libraries are compared, whether roofs are known, and whether the rates of a good run are known */
    bool two, roofs, goods;
    double most; /* the share at the end of the axis */
} RatesPage;

static Rate rate_of(const Validation *a, const ValidateRow *row, int i) {
    const Metric *m = &row->a->metric[i];
    return (Rate){row,
                  {m, row->b ? outcome_metric(row->b, m->name) : NULL},
                  m->roof,
                  compare_good_median(a, row, m->name)};
}

/* Returns the rate that is drawn as 100 %, or 0 if there is no bar. */
static double whole(const Rate *r) { return r->roof > 0 ? r->roof : r->good; }

static void each_rate(RatesPage *p, Str *out, void (*fn)(RatesPage *, const Rate *, Str *out)) {
    for (int i = 0; i < STAGES; i++) {
        const ValidateRow *row = &p->a->row[i];
        for (int k = 0; row->a && k < row->a->n_metrics; k++) {
            const Rate r = rate_of(p->a, row, k);
            fn(p, &r, out);
        }
    }
}

static void look_at(RatesPage *p, const Rate *r, Str *out) {
    (void)out;
    p->roofs |= r->roof > 0, p->goods |= r->good > 0;
    if (whole(r) <= 0) return;
    const double all[] = {metric_median(r->of[0]), metric_median(r->of[1]), r->good};
    for (int i = 0; i < 3; i++) p->most = fmin(fmax(p->most, all[i] / whole(r)), MOST_SHARE);
}

static double place(const RatesPage *p, double share) { return AXIS * fmin(share, p->most) / p->most; }

static void put_tick(const char *colour, double x, int height, Str *out) {
    str_printf(out, "<rect x=\"%.1f\" width=\"3\" height=\"%d\" fill=\"%s\"/>", fmax(x - 1.5, 0), height,
               colour);
}

/* Writes "67 % of the roof, 101 % of the good run". */
static void put_label(const Rate *r, double median, int y, Str *out) {
    str_printf(out, "<text x=\"%d\" y=\"%d\">", AXIS + 6, y);
    if (r->roof > 0) str_printf(out, "%.0f %% of the roof", 100 * median / r->roof);
    if (r->good > 0)
        str_printf(out, "%s%.0f %% of the good run", r->roof > 0 ? ", " : "", 100 * median / r->good);
    str_puts(out, "</text>");
}

static void put_bars(const RatesPage *p, const Rate *r, Str *out) {
    const int height = ROW_HEIGHT * (r->of[1] ? 2 : 1);
    str_printf(out, "<td><svg width=\"%d\" height=\"%d\">", AXIS + LABEL, height);
    for (int i = 0; i < 2; i++) {
        if (!r->of[i]) continue;
        const double median = metric_median(r->of[i]);
        str_printf(out, "<rect y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>",
                   i * ROW_HEIGHT + (ROW_HEIGHT - BAR_HEIGHT) / 2, place(p, median / whole(r)), BAR_HEIGHT,
                   BAR[i]);
        put_label(r, median, i * ROW_HEIGHT + 12, out);
    }
    if (r->roof > 0) put_tick(ROOF, place(p, 1), height, out);
    if (r->good > 0) put_tick(GOOD, place(p, r->good / whole(r)), height, out);
    str_puts(out, "</svg></td>");
}

static void put_number(double x, Str *out) {
    str_puts(out, "<td>");
    if (x > 0) str_printf(out, x < 1e4 ? "%.4g" : "%.0f", x);
    str_puts(out, "</td>");
}

static void put_rate(RatesPage *p, const Rate *r, Str *out) {
    str_printf(out, "<tr><td>%s</td><td>", r->row->name);
    xml_text(out, r->of[0]->name);
    str_puts(out, "</td>");
    for (int i = 0; i < (p->two ? 2 : 1); i++) put_number(metric_median(r->of[i]), out);
    if (p->roofs) put_number(r->roof, out);
    if (p->goods) put_number(r->good, out);
    str_printf(out, "<td>%s</td>", r->of[0]->unit);
    if (whole(r) > 0)
        put_bars(p, r, out);
    else if (p->roofs || p->goods)
        str_puts(out, "<td></td>");
    str_puts(out, "</tr>\n");
}

/* Writes the name of a column, which is a library unless there is only one column. */
static void put_name(const RatesPage *p, int i, Str *out) {
    if (p->two) str_printf(out, "%c: ", "AB"[i]);
    xml_text(out, p->two ? p->a->nccl_name[i] : "median");
}

static void put_swatch(const char *colour, int width, Str *out) {
    str_printf(out,
               "&emsp;<svg width=\"%d\" height=\"12\"><rect width=\"%d\" height=\"12\" fill=\"%s\"/></svg> ",
               width, width, colour);
}

static void put_legend(const RatesPage *p, Str *out) {
    str_printf(out, "<p>100 %% is the %s.",
               !p->roofs  ? "median of the good run"
               : p->goods ? "roof, or the median of the good run where no roof is known"
                          : "roof");
    for (int i = 0; i < (p->two ? 2 : 1); i++) {
        put_swatch(BAR[i], 24, out);
        put_name(p, i, out);
    }
    if (p->roofs) put_swatch(ROOF, 3, out);
    if (p->roofs) str_puts(out, "roof: the rate that the vendor states, or that follows from the links");
    if (p->goods) put_swatch(GOOD, 3, out);
    if (p->goods) str_puts(out, "good run");
    str_puts(out, "</p>\n");
}

static void put_axis(const RatesPage *p, Str *out) {
    str_printf(out, "<th><svg width=\"%d\" height=\"16\" font-weight=\"normal\">", AXIS + LABEL);
    for (int percent = 0; percent <= 100 * p->most; percent += 50)
        str_printf(out, "<text x=\"%.1f\" y=\"12\"%s>%d %%</text>", place(p, percent / 100.),
                   percent ? " text-anchor=\"middle\"" : "", percent);
    str_puts(out, "</svg></th>");
}

void rates_page(const Validation *a, Str *out) {
    RatesPage p = {.a = a, .two = a->options->nccl_b, .most = 1};
    each_rate(&p, NULL, look_at);
    const bool bars = p.roofs || p.goods;
    str_puts(out, "<h2>Rates</h2>\n");
    if (bars) put_legend(&p, out);
    str_puts(out, "<table><tr><th>stage</th><th>rate</th>");
    for (int i = 0; i < (p.two ? 2 : 1); i++) {
        str_puts(out, "<th>");
        put_name(&p, i, out);
        str_puts(out, "</th>");
    }
    str_printf(out, "%s%s<th>unit</th>", p.roofs ? "<th>roof</th>" : "", p.goods ? "<th>good run</th>" : "");
    if (bars) put_axis(&p, out);
    str_puts(out, "</tr>\n");
    each_rate(&p, out, put_rate);
    str_puts(out, "</table>\n");
}
