#include "param/bucket.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "param/quantized.h"

static int64_t aligned(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

typedef enum Kind {
    DENSE,
    EXPERTS,
    FP8,
    FP8_EXPERTS,
    MATRICES,
    EXPERT_MATRICES,
    FP8_MATRICES,
    FP8_EXPERT_MATRICES,
    QUANTIZED,
    FROZEN,
    BUFFERS,
    KINDS
} Kind;

static Kind kind_of(const Param *p) {
    const bool matrix = p->spec.flags & PARAM_MATRIX;
    if (param_is_quantized(p)) return QUANTIZED;
    if (!param_is_trained(p)) return p->spec.flags & PARAM_BUFFER ? BUFFERS : FROZEN;
    static const Kind KIND[2][2][2] = {{{DENSE, MATRICES}, {EXPERTS, EXPERT_MATRICES}},
                                       {{FP8, FP8_MATRICES}, {FP8_EXPERTS, FP8_EXPERT_MATRICES}}};
    return KIND[p->fp8 != NULL][p->spec.expert][matrix];
}

static bool is_apart(const Param *p) { return p->spec.flags & PARAM_APART; }

static bool is_offloaded(const Param *p) { return p->spec.flags & PARAM_OFFLOADED; }

/* ---- groups ---- */

/* Sets the bucket's groups. `p` is one of the bucket's parameters. */
static void set_groups(const Registry *r, Bucket *b, const Param *p) {
    const Kind kind = kind_of(p);
    const DataParallel *d = &r->layout.data;
    b->trained = kind < QUANTIZED;
    const unsigned copies = !b->trained ? 0 : p->spec.expert ? 1u << AXIS_EDP : 1u << AXIS_CP | 1u << AXIS_DP;
    const Group all = mesh_group(&r->layout.mesh, copies);
    b->apart = is_apart(p);
    b->offloaded = is_offloaded(p);
    b->matrices = b->trained && p->spec.flags & PARAM_MATRIX;
    b->fp8 = p->fp8 || kind == QUANTIZED;
    b->quantized = kind == QUANTIZED;
    const int instances = b->trained && d->instances > 1 ? d->instances : 1;
    CHECK(all.size % instances == 0, "%d data-parallel ranks cannot be divided into %d equal instances",
          all.size, instances);
    b->inner = group_inner(&all, all.size / instances);
    b->outer = group_outer(&all, all.size / instances);
}

/* ---- assignment of parameters to buckets ---- */

static int64_t limit(const Registry *r) {
    const DataParallel *d = &r->layout.data;
    int64_t total = 0;
    if (d->bucket_size) return d->bucket_size;
    if (!d->num_buckets) return INT64_MAX;
    for (int i = 0; i < r->n; i++) total += aligned(r->params[i]->count, PARAM_ALIGN);
    return (total + d->num_buckets - 1) / d->num_buckets;
}

static bool ends_with_units(const Registry *r) {
    const DataParallel *d = &r->layout.data;
    return d->stage == 3 || (d->stage == 2 && !d->bucket_size && !d->num_buckets);
}

/* Assigns each parameter to a bucket. Buckets are numbered in descending order of their last registered parameters.
 * Returns the number of buckets. */
static int fill(Registry *r) {
    const bool by_unit = ends_with_units(r);
    const int64_t full = limit(r);
    enum { SORTS = 4 * KINDS };
    int n = 0, open[SORTS], unit[SORTS] = {0};
    int64_t size[SORTS] = {0};
    for (int k = 0; k < SORTS; k++) open[k] = -1;
    for (int i = r->n; i--;) {
        Param *p = r->params[i];
        const int k = 4 * (int)kind_of(p) + 2 * is_apart(p) + is_offloaded(p);
        const bool alone = param_is_tied(p);
        if (open[k] < 0 || alone || (by_unit && p->unit != unit[k])) open[k] = n++, size[k] = 0;
        unit[k] = p->unit;
        p->bucket = open[k];
        size[k] += aligned(p->count, PARAM_ALIGN);
        if (alone || size[k] >= full) open[k] = -1;
    }
    return n;
}

/* Renumbers the buckets in the order in which a backward pass completes them: in descending order of each
 * bucket's first registered parameter. */
static void sort(Registry *r, int n) {
    int *first = mem_alloc((size_t)n * sizeof *first), *number = mem_alloc((size_t)n * sizeof *number),
        at = 0;
    for (int i = r->n; i--;) first[r->params[i]->bucket] = i;
    for (int i = r->n; i--;)
        if (first[r->params[i]->bucket] == i) number[r->params[i]->bucket] = at++;
    for (int i = 0; i < r->n; i++) {
        Param *p = r->params[i];
        p->bucket = number[p->bucket];
        r->buckets[p->bucket].n++;
        if (r->buckets[p->bucket].n == 1) set_groups(r, &r->buckets[p->bucket], p);
    }
    free(first), free(number);
}

/* ---- offsets ---- */

static int by_size(const void *a, const void *b) {
    const Param *x = *(Param *const *)a, *y = *(Param *const *)b;
    return x->count != y->count ? (x->count < y->count ? 1 : -1) : y->number - x->number;
}

static int by_offset(const void *a, const void *b) {
    const Param *x = *(Param *const *)a, *y = *(Param *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Assigns each parameter, from the largest to the smallest, to the member that has the fewest elements so far.
 * Sets the parameters' offsets, and returns the size of a member's part. */
static int64_t share_whole(Param **laid, int n, int64_t begin, int members) {
    int64_t *size = mem_zero((size_t)members, sizeof *size), most = 0;
    int *member = mem_alloc((size_t)n * sizeof *member);
    qsort(laid, (size_t)n, sizeof *laid, by_size);
    for (int i = 0; i < n; i++) {
        int at = 0;
        for (int k = 1; k < members; k++)
            if (size[k] < size[at]) at = k;
        member[i] = at;
        laid[i]->offset = size[at];
        size[at] += aligned(laid[i]->count, PARAM_ALIGN);
        if (size[at] > most) most = size[at];
    }
    for (int i = 0; i < n; i++) laid[i]->offset += begin + member[i] * most;
    qsort(laid, (size_t)n, sizeof *laid, by_offset);
    free(size), free(member);
    return most;
}

/* Sets the offsets of the bucket's parameters in the given order. Returns the size of a member's part. */
static int64_t share_evenly(Param *const *laid, int n, int64_t begin, int members) {
    int64_t at = begin;
    for (int i = 0; i < n; i++) {
        laid[i]->offset = at;
        at += aligned(laid[i]->count, PARAM_ALIGN);
    }
    return aligned(at - begin, PARAM_ALIGN * members) / members;
}

static void place(Registry *r) {
    int params = 0;
    for (int k = 0; k < r->n_buckets; k++) {
        r->buckets[k].first = params;
        params += r->buckets[k].n;
        r->buckets[k].n = 0;
    }
    for (int i = r->n; i--;) {
        Bucket *b = &r->buckets[r->params[i]->bucket];
        r->laid[b->first + b->n++] = r->params[i];
    }
    r->elements = 0;
    for (int k = 0; k < r->n_buckets; k++) {
        Bucket *b = &r->buckets[k];
        const int members = r->layout.data.stage ? b->inner.size : 1;
        b->begin = r->elements;
        b->shard = b->matrices && members > 1 ? share_whole(r->laid + b->first, b->n, b->begin, members)
                                              : share_evenly(r->laid + b->first, b->n, b->begin, members);
        r->elements = b->end = b->begin + b->shard * members;
    }
}

/* ---- mates ---- */

static bool are_mates(const Registry *r, const Bucket *fp8, const Bucket *other) {
    const Param *a = r->laid[fp8->first], *b = r->laid[other->first];
    return fp8->fp8 && !a->spec.expert && kind_of(b) == DENSE && fp8->apart == other->apart &&
           fp8->offloaded == other->offloaded && !param_is_tied(b) && a->unit == b->unit && other->mate < 0;
}

static void pair(Registry *r) {
    const int n = r->n_buckets;
    for (int i = 0; i < n; i++) r->buckets[i].mate = -1;
    for (int i = 0; i < n && ends_with_units(r); i++)
        for (int k = 0; k < n && r->buckets[i].mate < 0; k++)
            if (are_mates(r, &r->buckets[i], &r->buckets[k])) r->buckets[i].mate = k, r->buckets[k].mate = i;
}

/* ---- buffers ---- */

FlatBuffer bucket_values(const Bucket *b) { return b->fp8 ? FLAT_FP8 : FLAT_VALUES; }

/* In an FP8 bucket, FLAT_VALUES only provides memory for the masters (see exists). */
bool bucket_is_shared(const Registry *r, const Bucket *b, FlatBuffer which) {
    static const int FROM_STAGE[] = {[FLAT_VALUES] = 3,  [FLAT_FP8] = 3,   [FLAT_GRADS] = 2,
                                     [FLAT_MASTERS] = 1, [FLAT_STATE] = 1, [FLAT_MATRIX_STATE] = 1};
    if (which == FLAT_VALUES && b->fp8) which = FLAT_MASTERS;
    return b->inner.size > 1 && r->layout.data.stage >= FROM_STAGE[which];
}

/* Returns whether any rank has memory for the bucket in the given buffer. */
static bool exists(const Registry *r, const Bucket *b, FlatBuffer which) {
    if (b->quantized) return which == FLAT_FP8;
    if (which == FLAT_FP8) return b->fp8;
    if (which == FLAT_VALUES) return !b->fp8 || !dtype_is_16bit(r->storage);
    if (which == FLAT_MASTERS) return r->trains || !b->trained || !dtype_is_16bit(r->storage);
    if (which == FLAT_STATE && b->matrices) return false;
    if (which == FLAT_MATRIX_STATE && !b->matrices) return false;
    return r->trains && b->trained;
}

bool bucket_is_whole(const Registry *r, const Bucket *b, FlatBuffer which) {
    return exists(r, b, which) && !bucket_is_shared(r, b, which);
}

static bool is_same_group(const Group *a, const Group *b) {
    const Group x = group_simplify(a), y = group_simplify(b);
    return !memcmp(&x, &y, sizeof x);
}

void buckets_register(const Registry *r, Comm *comm, void *memory, size_t bytes) {
    for (int k = 0; k < r->n_buckets; k++) {
        bool again = false;
        for (int i = 0; i < k && !again; i++)
            again = is_same_group(&r->buckets[i].inner, &r->buckets[k].inner);
        if (!again) comm_register(comm, &r->buckets[k].inner, memory, bytes);
    }
}

FlatRange bucket_part(const Registry *r, const Bucket *b) {
    if (!bucket_is_shared(r, b, FLAT_STATE)) return (FlatRange){b->begin, b->end, 0, false};
    const int64_t begin = b->begin + b->inner.rank * b->shard;
    return (FlatRange){begin, begin + b->shard, 0, false};
}

/* Sets the ranges of a buffer that this rank keeps. Masters that share memory with the values (masters ==
 * values) have the values' offsets. */
static void keep(Registry *r, FlatBuffer which) {
    const bool alias = which == FLAT_MASTERS && !dtype_is_16bit(r->storage);
    r->ranges[which] = arena_alloc(r->arena, (size_t)r->n_buckets * sizeof(FlatRange));
    for (int k = 0; k < r->n_buckets; k++) {
        const Bucket *b = &r->buckets[k];
        FlatRange *h = &r->ranges[which][k];
        *h = bucket_is_shared(r, b, which) ? bucket_part(r, b) : (FlatRange){b->begin, b->end, 0, false};
        if (!exists(r, b, which)) h->end = h->begin;
        if (alias) {
            const FlatRange *value = &r->ranges[FLAT_VALUES][k];
            h->at = value->at + h->begin - value->begin;
            continue;
        }
        h->on_host = b->offloaded && r->trains && which >= FLAT_MASTERS;
        int64_t *n = h->on_host ? &r->offloaded[which] : &r->held[which];
        h->at = *n;
        *n += h->end - h->begin;
    }
}

void buckets_lay(Registry *r) {
    r->laid = arena_alloc(r->arena, (size_t)r->n * sizeof *r->laid);
    r->n_buckets = fill(r);
    r->buckets = arena_alloc(r->arena, (size_t)r->n_buckets * sizeof *r->buckets);
    sort(r, r->n_buckets);
    place(r);
    pair(r);
    for (int which = 0; which < FLAT_BUFFERS; which++) keep(r, (FlatBuffer)which);
}

/* ---- look-up ---- */

const FlatRange *registry_ranges(const Registry *r, FlatBuffer which, int *n) {
    *n = r->n_buckets;
    for (int k = 0; k < r->n_buckets; k++)
        if (!bucket_is_whole(r, &r->buckets[k], which) || r->ranges[which][k].on_host)
            return r->ranges[which];
    *n = 0;
    return NULL;
}

int64_t registry_place(const Registry *r, FlatBuffer which, int bucket, int64_t at) {
    const FlatRange *h = &r->ranges[which][bucket];
    return h->at + at - h->begin;
}

Tensor registry_slice_of(const Registry *r, FlatBuffer which, DType type, void *flat, int bucket, int64_t at,
                         int64_t n) {
    if (which == FLAT_MASTERS && r->ranges[which][bucket].on_host) flat = r->host_masters;
    /* The null device has no host memory. */
    char *data =
        flat ? (char *)flat + registry_place(r, which, bucket, at) * (int64_t)dtype_size(type) : NULL;
    return tensor_make(data, type, 1, &n);
}

Tensor registry_slice(const Registry *r, FlatBuffer which, void *flat, int bucket, int64_t at, int64_t n) {
    return registry_slice_of(r, which, registry_dtype(r, which), flat, bucket, at, n);
}

FlatRange param_part_held(const Registry *r, const Param *p) {
    FlatRange h = bucket_part(r, &r->buckets[p->bucket]);
    const int64_t end = p->offset + param_filled_rows(p) * p->columns;
    if (h.begin < p->offset) h.begin = p->offset;
    if (h.end > end) h.end = end;
    return h;
}

bool param_is_primary_for(const Registry *r, const Param *p, bool sharded) {
    const Bucket *b = &r->buckets[p->bucket];
    if (!sharded || !b->trained) return param_is_owned(r, p);
    return b->outer.rank == 0 && param_is_owned_on(r, p, 1 << AXIS_TP | 1 << AXIS_ETP | 1 << AXIS_EP);
}

bool param_is_primary(const Registry *r, const Param *p) {
    return param_is_primary_for(r, p, bucket_is_shared(r, &r->buckets[p->bucket], FLAT_STATE));
}
