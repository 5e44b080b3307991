#include "measure/rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "kernels/attr.h"
#include "measure/op_cost.h"

/* ---- work ---- */

/* Returns the first operand that is, or is not, a tensor of integers. */
static const Tensor *first(const Call *c, bool integers) {
    for (int i = 0; i < CALL_IN + CALL_OUT; i++) {
        const Tensor *t = i < CALL_IN ? c->in[i] : c->out[i - CALL_IN];
        if (t && (t->dtype == I64) == integers) return t;
    }
    return NULL;
}

static void set_sizes(Rate *r, int n, const double *size) {
    r->sizes = n;
    memcpy(r->size, size, (size_t)n * sizeof *size);
}

static void set_gemm(Rate *r, const OpDef *op, const Call *c, GemmShape p) {
    const Tensor *offsets = first(c, true);
    double size[RATE_SIZES] = {(double)p.m, (double)p.n, (double)p.k, 1};
    if (offsets) {
        size[3] = (double)(tensor_count(offsets) - 1);
        size[op->number == OP_grouped_linear_wgrad || op->number == OP_fp8_grouped_wgrad ? 2 : 0] /= size[3];
    }
    set_sizes(r, offsets ? 4 : 3, size);
}

static const char *attention_variant(const OpDef *op, const Call *c) {
    static const char *const NAMES[2][2][2] = {
        {{" full", " full deterministic"}, {" full biased", " full biased deterministic"}},
        {{" causal", " causal deterministic"}, {" causal biased", " causal biased deterministic"}}};
    const AttentionAttr *a = c->attr;
    const bool ordered = op->number == OP_attention_grad && c->device && !c->device->any_order;
    return NAMES[a->window_right != WINDOW_OFF][a->bias_max_distance > 0][ordered];
}

/* Returns the kernel's properties that the name contains. */
static const char *variant(const OpDef *op, const Call *c) {
    if (!c->attr) return "";
    switch ((int)op->number) {
    case OP_attention:
    case OP_attention_unfused:
    case OP_attention_grad:
    case OP_attention_unfused_grad:
        return attention_variant(op, c);
    case OP_fp8_gemm:
    case OP_fp8_grouped_linear:
    case OP_fp8_grouped_wgrad: {
        const Fp8GemmAttr *a = c->attr;
        const bool to_f32 = c->out[0] && c->out[0]->dtype == F32;
        if (a->fixed_order) return " fixed";
        return a->a != FP8_WHOLE ? to_f32 ? " blocks to F32" : " blocks"
               : a->fast         ? " fast"
               : to_f32          ? " to F32"
                                 : "";
    }
    case OP_linear:
    case OP_linear_dgrad:
    case OP_linear_wgrad:
    case OP_linear_quantized:
    case OP_grouped_linear:
    case OP_grouped_linear_dgrad:
    case OP_grouped_linear_wgrad: {
        const LinearAttr *a = c->attr;
        return !a->fixed_order ? "" : a->by_chunks && op->number == OP_linear_wgrad ? " chunks" : " fixed";
    }
    case OP_linear_heads:
        return ((const LinearHeadsAttr *)c->attr)->fixed_order ? " fixed" : "";
    }
    return "";
}

Rate rate_of(const OpDef *op, const Call *c) {
    Rate r = {.ns = 0};
    GemmShape p;
    const Tensor *t = first(c, false);
    const DType type = t ? (DType)t->dtype : I64;
    snprintf(r.name, sizeof r.name, "%s %s%s", op->name, dtype_is_fp8(type) ? "FP8" : dtype_name(type),
             variant(op, c));
    if (work_gemm((OpNumber)op->number, c, &p)) {
        set_gemm(&r, op, c, p);
    } else if (work_flops((OpNumber)op->number, c) > 0) {
        const bool grad = op->number == OP_attention_grad || op->number == OP_attention_unfused_grad;
        const Tensor *q = c->in[grad], *k = c->in[1 + grad];
        const double width = (double)tensor_width(q);
        set_sizes(&r, 3, (double[]){(double)tensor_count(q) / width, work_keys(c->attr, k), width});
    } else {
        set_sizes(&r, 1, (double[]){work_bytes((OpNumber)op->number, c)});
    }
    return r;
}

/* ---- prediction ---- */

static bool same_op(const Rate *a, const Rate *b) {
    return !strcmp(a->name, b->name) && a->sizes == b->sizes;
}

/* Returns the number of rates that are equal, according to the function, to the first of n rates. */
static int run_of(const Rate *r, int n, bool equal(const Rate *, const Rate *)) {
    int i = 1;
    while (i < n && equal(r, &r[i])) i++;
    return i;
}

/* Interpolates between the rates of one op, sorted by bytes. */
static double time_of_bytes(const Rate *r, int n, double bytes, double least) {
    int i = 0;
    while (i < n && r[i].size[0] < bytes) i++;
    if (i == n) return r[n - 1].ns * (bytes / r[n - 1].size[0]);
    if (i == 0) return fmax(least, r[0].ns * (bytes / r[0].size[0]));
    const double part = (bytes - r[i - 1].size[0]) / (r[i].size[0] - r[i - 1].size[0]);
    return r[i - 1].ns + part * (r[i].ns - r[i - 1].ns);
}

enum { EXPERTS = 3 }; /* the index of a size */

static double volume(const double *x, int n, double tile) {
    double v = 1;
    for (int i = 0; i < n; i++) v *= i == EXPERTS ? x[i] : x[i] + tile;
    return v;
}

/* Computes the prediction from the header's bounds. */
static double time_of_shape(const Rate *rates, int n, const Rate *x, double tile) {
    double low = 0, high = INFINITY, least = 0, most = INFINITY, times = 0, volumes = 0;
    for (const Rate *p = rates; p < rates + n; p++) {
        double lower[RATE_SIZES], upper[RATE_SIZES];
        bool below = true, above = true; /* p is nowhere larger, nowhere smaller */
        for (int i = 0; i < x->sizes; i++) {
            lower[i] = fmin(x->size[i], p->size[i]), upper[i] = fmax(x->size[i], p->size[i]);
            below &= p->size[i] <= x->size[i], above &= p->size[i] >= x->size[i];
        }
        const double v = volume(p->size, x->sizes, tile), per_volume = p->ns / v;
        times += p->ns, volumes += v;
        low = fmax(low, per_volume * volume(lower, x->sizes, tile));
        high = fmin(high, per_volume * volume(upper, x->sizes, tile));
        if (below) least = fmax(least, p->ns);
        if (above) most = fmin(most, p->ns);
    }
    const double estimate = volume(x->size, x->sizes, tile) * times / volumes;
    return fmax(least, fmin(most, fmax(low, fmin(high, estimate))));
}

/* Returns whether the work is outside of the range of the measured work. */
static bool is_beyond(const Rate *rates, int n, const Rate *x) {
    double least = INFINITY, most = 0;
    for (int i = 0; i < n; i++) {
        const double v = volume(rates[i].size, x->sizes, 0);
        least = fmin(least, v), most = fmax(most, v);
    }
    const double v = volume(x->size, x->sizes, 0);
    return v < least || v > most;
}

static double roof_time(const Rates *r, const OpDef *op, const Call *c, RateSource *source) {
    const OpNumber number = (OpNumber)op->number;
    const Tensor *t = first(c, false);
    const double flops = work_flops(number, c), rate = t ? r->gemm[t->dtype] : 0;
    *source = r->copy > 0 && (flops <= 0 || rate > 0) ? RATE_ROOF : RATE_NONE;
    if (*source == RATE_NONE) return 0;
    return fmax(work_bytes(number, c) / r->copy, flops > 0 ? flops / rate : 0);
}

double rates_time(const Rates *r, const OpDef *op, const Call *c, RateSource *source) {
    const Rate x = rate_of(op, c);
    int i = 0;
    while (i < r->n && !same_op(&r->rate[i], &x)) i++;
    if (i == r->n) return roof_time(r, op, c, source);
    const Rate *rates = r->rate + i;
    const int n = run_of(rates, r->n - i, same_op);
    *source = is_beyond(rates, n, &x) ? RATE_BEYOND : RATE_MEASURED;
    return x.sizes == 1 ? time_of_bytes(rates, n, x.size[0], r->least_ns)
                        : time_of_shape(rates, n, &x, r->tile);
}

/* ---- order ---- */

static int compare(const void *a, const void *b) {
    const Rate *x = a, *y = b;
    const int names = strcmp(x->name, y->name);
    if (names) return names;
    if (x->sizes != y->sizes) return x->sizes - y->sizes;
    for (int i = 0; i < x->sizes; i++)
        if (x->size[i] != y->size[i]) return x->size[i] < y->size[i] ? -1 : 1;
    return 0;
}

static bool same_call(const Rate *a, const Rate *b) { return !compare(a, b); }

/* Replaces rates for the same call by their mean. */
static void merge_equal(Rates *r) {
    int n = 0;
    for (int i = 0, k; i < r->n; i += k) {
        Rate mean = r->rate[i];
        k = run_of(r->rate + i, r->n - i, same_call);
        for (int j = 1; j < k; j++) mean.ns += r->rate[i + j].ns;
        mean.ns /= k;
        r->rate[n++] = mean;
    }
    r->n = n;
}

/* Isotonic regression: replaces decreasing times by their mean. */
static void pool_times(Rate *r, int n) {
    int *count = mem_alloc((size_t)n * sizeof *count), blocks = 0;
    double *mean = mem_alloc((size_t)n * sizeof *mean);
    for (int i = 0; i < n; i++) {
        mean[blocks] = r[i].ns, count[blocks++] = 1;
        for (; blocks > 1 && mean[blocks - 2] > mean[blocks - 1]; blocks--) {
            const int a = count[blocks - 2], b = count[blocks - 1];
            mean[blocks - 2] = (mean[blocks - 2] * a + mean[blocks - 1] * b) / (a + b);
            count[blocks - 2] = a + b;
        }
    }
    for (int i = 0, k = 0; k < blocks; k++)
        for (const int end = i + count[k]; i < end; i++) r[i].ns = mean[k];
    free(count), free(mean);
}

void rates_sort(Rates *r) {
    if (r->n) qsort(r->rate, (size_t)r->n, sizeof *r->rate, compare);
    merge_equal(r);
    r->least_ns = r->n ? r->rate[0].ns : 0;
    for (int i = 0; i < r->n; i++) r->least_ns = fmin(r->least_ns, r->rate[i].ns);
    for (int i = 0, k; i < r->n; i += k) {
        k = run_of(r->rate + i, r->n - i, same_op);
        if (r->rate[i].sizes == 1) pool_times(r->rate + i, k);
    }
}

/* ---- files ---- */

static json_t *rate_json(const Rate *r) {
    json_t *size = json_array();
    for (int i = 0; i < r->sizes; i++) json_array_append_new(size, json_real(r->size[i]));
    return json_pack("{s:s, s:o, s:f}", "op", r->name, "size", size, "us", r->ns * 1e-3);
}

json_t *rates_json(const Rates *r) {
    json_t *gemm = json_object(), *rates = json_array();
    for (int type = 0; type < DTYPES; type++)
        if (r->gemm[type] > 0) json_object_set_new(gemm, dtype_name(type), json_real(r->gemm[type]));
    for (int i = 0; i < r->n; i++) json_array_append_new(rates, rate_json(&r->rate[i]));
    return json_pack("{s:i, s:f, s:f, s:{s:f, s:o}, s:o, s:o}", "rates_version", RATES_VERSION, "tile",
                     r->tile, "launch_us", r->launch_ns * 1e-3, "roofs", "copy_gbytes", r->copy,
                     "gemm_gflops", gemm, "rates", rates, "links", links_json(&r->links));
}

/* Reads a number that is finite and at least 0. */
static bool read_number(const json_t *v, double scale, double *out) {
    *out = json_number_value(v) * scale;
    return json_is_number(v) && isfinite(*out) && *out >= 0;
}

static bool read_rate(const json_t *row, Rate *r) {
    const char *name = json_string_value(json_object_get(row, "op"));
    const json_t *size = json_object_get(row, "size");
    const size_t n = json_array_size(size);
    if (!name || strlen(name) >= sizeof r->name || n < 1 || n > RATE_SIZES) return false;
    *r = (Rate){.sizes = (int)n};
    strcpy(r->name, name);
    for (size_t i = 0; i < n; i++)
        if (!read_number(json_array_get(size, i), 1, &r->size[i]) || r->size[i] <= 0) return false;
    return read_number(json_object_get(row, "us"), 1e3, &r->ns) && r->ns > 0;
}

static bool read_roofs(const json_t *roofs, Rates *r) {
    const char *name;
    json_t *v;
    json_object_foreach(json_object_get(roofs, "gemm_gflops"), name, v) {
        DType type;
        if (!dtype_parse(name, &type) || !read_number(v, 1, &r->gemm[type])) return false;
    }
    return read_number(json_object_get(roofs, "copy_gbytes"), 1, &r->copy);
}

static bool read_all(const json_t *root, Rates *r) {
    const char *device = json_string_value(json_object_get(root, "device")),
               *date = json_string_value(json_object_get(json_object_get(root, "provenance"), "date"));
    const json_t *rates = json_object_get(root, "rates");
    if (!device || !date || !json_is_array(rates) || json_array_size(rates) > RATES_MOST) return false;
    snprintf(r->device, sizeof r->device, "%s", device);
    snprintf(r->date, sizeof r->date, "%.10s", date);
    r->rate = mem_zero(json_array_size(rates) + 1, sizeof *r->rate);
    for (size_t i = 0; i < json_array_size(rates); i++, r->n++)
        if (!read_rate(json_array_get(rates, i), &r->rate[i])) return false;
    return read_number(json_object_get(root, "tile"), 1, &r->tile) &&
           read_number(json_object_get(root, "launch_us"), 1e3, &r->launch_ns) &&
           read_roofs(json_object_get(root, "roofs"), r);
}

Err rates_read(const char *path, Rates *r) {
    Str text = {0};
    *r = (Rates){.n = 0};
    Err e = file_read_stream(path, &text);
    json_t *root = e.code ? NULL : json_loadb(text.s ? text.s : "", text.len, JSON_REJECT_DUPLICATES, NULL);
    const json_int_t version = json_integer_value(json_object_get(root, "rates_version"));
    if (!e.code && version != RATES_VERSION)
        e = err_user(
            "%.500s is not a rates file of version %d: measure one with 'isotron bench rates --json FILE'",
            path, RATES_VERSION);
    else if (!e.code && !read_all(root, r))
        e = err_user("the rates file %.500s is damaged after %d rates: measure it again with 'isotron bench "
                     "rates --json FILE'",
                     path, r->n);
    if (!e.code) e = links_add(path, root, &r->links);
    rates_sort(r);
    json_decref(root);
    str_free(&text);
    return e;
}

void rates_free(Rates *r) {
    free(r->rate);
    links_free(&r->links);
}
