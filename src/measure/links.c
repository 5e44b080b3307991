#include "measure/links.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "measure/exact.h"

enum { SMALL = 64 << 10 }; /* bytes whose time is a latency */

/* A collective on a group, or a copy. */
typedef struct Query {
    int kind, members, per_host;
} Query;

static bool across(const Query *q) { return q->members > q->per_host; }

/* ---- the description ---- */

/* Returns the bytes on the busiest link, per byte of the larger buffer. */
static double factor(const Query *q) {
    const double n = q->members;
    if (q->kind == COMM_ALL_TO_ALL && across(q)) return (n - q->per_host) / n;
    for (int i = 0; i < N_COLLECTIVES; i++)
        if ((int)COLLECTIVES[i].kind == q->kind) return exact_bus_factor(&COLLECTIVES[i], q->members);
    return 1;
}

static double latency_of(const LinkHost *h, const Query *q) {
    const int hosts = (q->members + q->per_host - 1) / q->per_host;
    switch (q->kind) {
    case LINK_TO_DEVICE:
    case LINK_TO_HOST:
        return h->pcie_ns;
    case COMM_SEND:
        return across(q) ? h->nic_ns : h->nvlink_ns;
    case COMM_BARRIER:
    case COMM_ALL_REDUCE:
        return 2 * ((q->per_host - 1) * h->nvlink_ns + ceil(log2(hosts)) * h->nic_ns);
    default:
        return (q->members - hosts) * h->nvlink_ns + (hosts - 1) * h->nic_ns;
    }
}

/* Returns the ns per byte. */
static double slope_of(const LinkHost *h, const Query *q) {
    const double n = q->members, r = q->per_host, nics = h->nic * h->nics / h->ranks;
    if (q->kind >= COMM_KINDS) return 1 / h->pcie;
    if (!across(q)) return factor(q) / h->nvlink;
    if (q->kind != COMM_ALL_TO_ALL) return factor(q) / fmin((q->kind == COMM_SEND ? 1 : r) * nics, h->nvlink);
    const double inside = (r - 1) / n + factor(q) * (h->rails - 1) / h->rails;
    return fmax(factor(q) / nics, inside / h->nvlink);
}

static double described(const Links *l, const Query *q, double bytes, LinkSource *source) {
    *source = l->described && (!across(q) || l->host.nics > 0) ? LINK_DESCRIBED : LINK_NONE;
    return *source == LINK_NONE ? 0 : latency_of(&l->host, q) + slope_of(&l->host, q) * bytes;
}

/* ---- measured times ---- */

static int compare(const void *a, const void *b) {
    const LinkTime *x = a, *y = b;
    if (x->kind != y->kind) return x->kind - y->kind;
    if (x->per_host != y->per_host) return x->per_host - y->per_host;
    if (x->members != y->members) return x->members - y->members;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static bool same_group(const LinkTime *a, const LinkTime *b) {
    return a->kind == b->kind && a->members == b->members && a->per_host == b->per_host;
}

static int run_of(const LinkTime *t, int n) {
    int i = 1;
    while (i < n && same_group(t, &t[i])) i++;
    return i;
}

/* Sorts the times, replaces times for the same size by their mean, and raises times that decrease. */
static void sort(Links *l) {
    int n = 0;
    if (l->n) qsort(l->time, (size_t)l->n, sizeof *l->time, compare);
    for (int i = 0, k; i < l->n; i += k) {
        LinkTime mean = l->time[i];
        for (k = 1; i + k < l->n && !compare(&mean, &l->time[i + k]); k++) mean.ns += l->time[i + k].ns;
        mean.ns /= k;
        if (n && same_group(&mean, &l->time[n - 1])) mean.ns = fmax(mean.ns, l->time[n - 1].ns);
        l->time[n++] = mean;
    }
    l->n = n;
}

/* Finds the times of the group or, if it was not measured, of the group from which its time is extrapolated. */
static const LinkTime *find(const Links *l, const Query *q, int *n) {
    const LinkTime *best = NULL;
    for (int i = 0, k; i < l->n; i += k) {
        const LinkTime *t = &l->time[i];
        k = run_of(t, l->n - i);
        const bool other = t->members > t->per_host;
        if (t->kind != q->kind || other != across(q) || (other && t->per_host != q->per_host)) continue;
        if (!best || t->members <= q->members) best = t, *n = k; /* the list is sorted by members */
    }
    return best;
}

/* Returns the time of the measured group. */
static double time_of(const LinkTime *t, int n, double bytes, double latency) {
    int i = 0;
    while (i < n && t[i].bytes < bytes) i++;
    if (i == n) return t[n - 1].ns * (bytes / t[n - 1].bytes);
    if (i == 0) return latency + (t[0].ns - latency) * (bytes / t[0].bytes);
    const double part = (bytes - t[i - 1].bytes) / (t[i].bytes - t[i - 1].bytes);
    return t[i - 1].ns + part * (t[i].ns - t[i - 1].ns);
}

static double measured(const Links *l, const LinkTime *t, int n, const Query *q, double bytes) {
    const Query from = {t->kind, t->members, t->per_host};
    const double known = l->described ? latency_of(&l->host, &from) : 0,
                 latency = t->bytes <= SMALL ? t->ns : fmin(t->ns, known), ns = time_of(t, n, bytes, latency);
    if (t->members == q->members) return ns;
    const double f = factor(q) / factor(&from), steps = (q->members - 1.) / (from.members - 1.),
                 more = q->kind == COMM_SEND ? 1 : fmax(fmax(f, 1), steps);
    return latency * more + (ns - latency) * f;
}

static double predict(const Links *l, const Query *q, double bytes, LinkSource *source) {
    int n = 0;
    const LinkTime *t = find(l, q, &n);
    if (!t) return described(l, q, bytes, source);
    const bool inside = t->members == q->members && bytes >= t->bytes && bytes <= t[n - 1].bytes;
    *source = inside ? LINK_MEASURED : LINK_BEYOND;
    return measured(l, t, n, q, bytes);
}

static double collective(const Links *l, CommKind kind, double bytes, int members, int per_host,
                         LinkSource *source) {
    const Query q = {kind == COMM_RECV ? COMM_SEND : kind, members, per_host < members ? per_host : members};
    *source = LINK_MEASURED;
    return members > 1 ? predict(l, &q, bytes, source) : 0;
}

double links_time(const Links *l, CommKind kind, double bytes, int members, int per_host) {
    LinkSource source;
    return collective(l, kind, bytes, members, per_host, &source);
}

LinkSource links_source(const Links *l, CommKind kind, double bytes, int members, int per_host) {
    LinkSource source;
    collective(l, kind, bytes, members, per_host, &source);
    return source;
}

double links_copy_time(const Links *l, LinkCopy kind, double bytes, LinkSource *source) {
    return predict(l, &(Query){(int)kind, 1, 1}, bytes, source);
}

/* ---- files ---- */

/* Returns NULL for a kind that is not measured. */
static const char *kind_name(int kind) {
    for (int i = 0; i < N_COLLECTIVES; i++)
        if ((int)COLLECTIVES[i].kind == kind) return COLLECTIVES[i].name;
    return kind == LINK_TO_DEVICE ? "to_device" : kind == LINK_TO_HOST ? "to_host" : NULL;
}

json_t *links_json(const Links *l) {
    json_t *all = json_array();
    for (const LinkTime *t = l->time; t < l->time + l->n; t++)
        json_array_append_new(all, json_pack("{s:s, s:i, s:i, s:I, s:f}", "kind", kind_name(t->kind),
                                             "members", t->members, "per_host", t->per_host, "bytes",
                                             (json_int_t)t->bytes, "us", t->ns * 1e-3));
    return all;
}

/* A member that is a number. */
typedef struct Field {
    const char *name;
    double least, most, scale;
    bool whole;
    size_t at; /* offset in LinkHost */
} Field;
#define FIELD(at, name, ...)                                                                                 \
    { name, __VA_ARGS__, offsetof(LinkHost, at) }
enum { RANKS_MOST = 1 << 20 };
static const double LEAST = 1e-6, MOST = 1e6;
static const Field HOST[] = {
    FIELD(ranks, "ranks", 1, 1024, 1, true),
    FIELD(nvlink, "nvlink_gbytes", LEAST, MOST, 1, false),
    FIELD(nvlink_ns, "nvlink_us", 0, MOST, 1e3, false),
    FIELD(nics, "nics", 0, 1024, 1, true),
    FIELD(nic, "nic_gbytes", LEAST, MOST, 1, false),
    FIELD(nic_ns, "nic_us", 0, MOST, 1e3, false),
    FIELD(rails, "rails", 1, 1024, 1, true),
    FIELD(pcie, "pcie_gbytes", LEAST, MOST, 1, false),
    FIELD(pcie_ns, "pcie_us", 0, MOST, 1e3, false),
};
enum { N_HOST = sizeof HOST / sizeof *HOST };

static Err read_field(const json_t *in, const Field *f, double *out) {
    const json_t *v = json_object_get(in, f->name);
    const double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= f->least && x <= f->most) || (f->whole && x != floor(x)))
        return err_user("'%s' is not a %s from %g to %g", f->name, f->whole ? "whole number" : "number",
                        f->least, f->most);
    *out = x * f->scale;
    return ERR_OK;
}

static Err read_host(const json_t *host, Links *l) {
    const char *name;
    json_t *v;
    if (!json_is_object(host)) return err_user("'host' is not an object");
    if (l->described) return err_user("this is the second description of hosts");
    for (int i = 0; i < N_HOST; i++)
        ERR_RETURN(read_field(host, &HOST[i], (double *)((char *)&l->host + HOST[i].at)));
    json_object_foreach((json_t *)host, name, v) {
        int i = 0;
        while (i < N_HOST && strcmp(HOST[i].name, name)) i++;
        if (i == N_HOST) return err_user("'host' has an unknown member %s", quote(name).s);
    }
    l->described = true;
    return ERR_OK;
}

Err links_append(Links *l, LinkTime t) {
    if (l->n == LINKS_MOST) return err_user("there are more than %d times", LINKS_MOST);
    if (!(l->n & (l->n - 1))) l->time = mem_grow(l->time, (size_t)(l->n ? 2 * l->n : 1), sizeof t);
    l->time[l->n++] = t;
    return ERR_OK;
}

static Err add_time(Links *l, const char *kind, double members, double per_host, double bytes, double ns) {
    LinkTime t = {0, (int)members, (int)per_host, bytes, ns};
    while (t.kind < LINK_KINDS && !(kind_name(t.kind) && !strcmp(kind_name(t.kind), kind))) t.kind++;
    if (t.kind == LINK_KINDS) return err_user("%s is not a collective or a copy", quote(kind).s);
    const bool copies = t.kind >= COMM_KINDS;
    if (copies ? members != 1 || per_host != 1 : members < 2 || per_host > members)
        return err_user("%s cannot have %.0f members and %.0f per host", kind, members, per_host);
    return links_append(l, t);
}

static const Field MEMBERS = {"members", 1, RANKS_MOST, 1, true, 0},
                   PER_HOST = {"per_host", 1, RANKS_MOST, 1, true, 0}, BYTES = {"bytes", 1, 1e15, 1, true, 0},
                   US = {"us", 1e-6, 1e12, 1e3, false, 0}, MEDIAN = {"median", 1e-6, 1e12, 1e3, false, 0},
                   GROUP = {"group", 2, RANKS_MOST, 1, true, 0}, RANKS = {"ranks", 2, RANKS_MOST, 1, true, 0};

static Err read_time(const json_t *row, Links *l) {
    const char *kind = json_string_value(json_object_get(row, "kind"));
    double members, per_host, bytes, ns;
    if (!kind) return err_user("'kind' is not a string");
    ERR_RETURN(read_field(row, &MEMBERS, &members));
    ERR_RETURN(read_field(row, &PER_HOST, &per_host));
    ERR_RETURN(read_field(row, &BYTES, &bytes));
    ERR_RETURN(read_field(row, &US, &ns));
    return add_time(l, kind, members, per_host, bytes, ns);
}

/* Reads a row of bench comm, or of its comparison with another program in bench/results. */
static Err read_row(const json_t *root, const json_t *row, Links *l) {
    const char *kind = json_string_value(json_object_get(row, "collective"));
    const json_t *separate = json_object_get(row, "out_of_place"), *ours = json_object_get(row, "ours_us");
    double members, per_host, bytes, ns;
    if (!kind) return err_user("'collective' is not a string");
    if (json_object_get(root, "group"))
        ERR_RETURN(read_field(root, &GROUP, &members));
    else
        ERR_RETURN(read_field(json_object_get(root, "provenance"), &RANKS, &members));
    per_host = members;
    if (json_object_get(root, "per_host")) ERR_RETURN(read_field(root, &PER_HOST, &per_host));
    ERR_RETURN(read_field(row, &BYTES, &bytes));
    if (ours)
        ERR_RETURN(read_field(ours, &MEDIAN, &ns));
    else
        ERR_RETURN(read_field(separate ? separate : json_object_get(row, "in_place"), &US, &ns));
    return add_time(l, kind, members, per_host, bytes, ns);
}

static Err read_all(const json_t *root, Links *l) {
    if (!root) return err_user("it is not JSON");
    const json_t *host = json_object_get(root, "host"), *links = json_object_get(root, "links"),
                 *rows = json_object_get(root, "rows");
    if (!host && !links && !rows && !json_object_get(root, "rates_version"))
        return err_user("it has none of the members 'host', 'links' and 'rows'");
    if (host) ERR_RETURN(read_host(host, l));
    if ((links && !json_is_array(links)) || (rows && !json_is_array(rows)))
        return err_user("'%s' is not a list", links ? "links" : "rows");
    for (size_t i = 0; i < json_array_size(links); i++) ERR_RETURN(read_time(json_array_get(links, i), l));
    for (size_t i = 0; i < json_array_size(rows); i++) ERR_RETURN(read_row(root, json_array_get(rows, i), l));
    return ERR_OK;
}

Err links_add(const char *path, const json_t *root, Links *l) {
    const Err e = read_all(root, l);
    sort(l);
    if (!e.code) return e;
    return err_user(
        "%.300s does not describe links: %.500s. Measure links with 'isotron bench comm --json FILE', or "
        "describe them as in docs/reference/formats.md",
        path, e.msg);
}

Err links_read(const char *path, Links *l) {
    Str text = {0};
    Err e = file_read_stream(path, &text);
    const int n = l->n;
    const bool described = l->described;
    if (!e.code) {
        json_t *root = json_loadb(text.s ? text.s : "", text.len, JSON_REJECT_DUPLICATES, NULL);
        e = links_add(path, root, l);
        json_decref(root);
    }
    if (!e.code && l->n == n && l->described == described)
        e = err_user("%.300s contains neither times of links nor a description of hosts: measure links with "
                     "'isotron bench comm --json FILE'",
                     path);
    str_free(&text);
    return e;
}

void links_free(Links *l) { free(l->time); }
