/* Compares reductions and all-gathers of data-parallel ranks with formulas. A gradient is a function of
 * (rank, parameter, element, pass), so each rank can compute the expected sum over any ranks in any order. */
#include "unit/cmocka_all.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "comm/transport.h"
#include "param/bucket.h"
#include "param/sync.h"

enum { PASSES = 3 };

typedef struct World {
    const char *name;
    int ranks, size[AXES];
    bool exact; /* gradients are small integers, so that any order gives the same sum */
} World;

/* ---- a model: three layers between an embedding and a norm ---- */

static void add(Registry *r, const char *name, int64_t rows, int64_t columns, int split, unsigned flags) {
    param_add(r, (ParamSpec){.name = name,
                             .ndim = columns ? 2 : 1,
                             .dim = {rows, columns},
                             .tp_split = split,
                             .init = {INIT_NORMAL, 1},
                             .flags = flags});
}

/* Whether a pipeline rank has a copy of a tied parameter. One table is on the first and last rank, one on
 * unevenly spaced ranks, and one on all ranks. */
static bool holds(const World *w, const char *name, int rank) {
    const int ranks = w->size[AXIS_PP];
    if (!strcmp(name, "embedding")) return rank == 0 || rank == ranks - 1;
    if (!strcmp(name, "positions")) return ranks == 4 && rank != 1;
    return !strcmp(name, "shared") && ranks > 1;
}

static void add_tied(Registry *r, const World *w, const char *name, int64_t rows, int64_t columns,
                     int split) {
    if (!holds(w, name, r->layout.mesh.coordinate[AXIS_PP])) return;
    add(r, name, rows, columns, split, 0);
    for (int rank = 0; rank < w->size[AXIS_PP]; rank++)
        if (holds(w, name, rank)) param_add_holder(r, registry_find(r, name), rank);
}

static Registry *registry(const World *w, int rank, DataParallel data, Device *d, DType storage) {
    const Layout layout = {
        .mesh = mesh_make(w->ranks, rank, w->size), .sequence_parallel = true, .data = data};
    const bool first = layout.mesh.coordinate[AXIS_PP] == 0;
    Registry *r = registry_new(&layout);
    if (first) add_tied(r, w, "embedding", 12, 6, 0);
    if (first) add_tied(r, w, "positions", 7, 6, 1);
    registry_begin_unit(r);
    add_tied(r, w, "shared", 5, 4, 1);
    add(r, "norm", 6, 0, SPLIT_NONE, 0);
    add(r, "fc1", 8, 6, 0, 0);
    add(r, "bias", 8, 0, 0, 0);
    registry_begin_unit(r);
    add(r, "fc2", 12, 8, 1, 0);
    add(r, "expert_bias", 5, 0, SPLIT_NONE, PARAM_BUFFER);
    add(r, "router", 4, 6, SPLIT_NONE, 0);
    param_add(r, (ParamSpec){.name = "experts",
                             .ndim = 2,
                             .dim = {4 * 6, 6},
                             .tp_split = SPLIT_NONE,
                             .expert = true,
                             .init = {INIT_NORMAL, 1},
                             .groups = 4,
                             .n_parts = 1,
                             .parts = {{"whole", 6}}});
    registry_begin_unit(r);
    add(r, "final_norm", 6, 0, SPLIT_NONE, 0);
    if (!first) add_tied(r, w, "positions", 7, 6, 1); /* in a different order from that on the first rank */
    if (!first) add_tied(r, w, "embedding", 12, 6, 0);
    registry_allocate(r, d, storage, true);
    return r;
}

/* ---- expected results ---- */

typedef struct Sum {
    const World *world;
    const Param *param;
    const DataParallel *data;
    DType type;
    int64_t at; /* index of the element in the parameter */
} Sum;

static double rounded(DType type, double x) {
    if (type == BF16) return (double)bf16_to_float(bf16_from_float((float)x));
    return type == F64 ? x : (double)(float)x;
}

static double gradient(const Sum *s, int rank, int pass) {
    const double z =
        philox_normal((uint64_t)(rank * PASSES + pass), hash_name(s->param->spec.name), (uint64_t)s->at);
    return s->world->exact ? floor(4 * z) : rounded(s->type, z);
}

static double passes(const Sum *s, int rank) {
    double sum = 0;
    for (int pass = 0; pass < PASSES; pass++) sum = rounded(s->type, sum + gradient(s, rank, pass));
    return sum;
}

typedef double Term(const Sum *, int rank, int pass);

/* Sums in order, in the arithmetic type, and rounds the result to the storage type. */
static double over(const Sum *s, const Group *g, Term *term, int pass) {
    const DType arithmetic = s->type == F64 ? F64 : F32;
    double sum = term(s, mesh_member(g, 0), pass);
    for (int i = 1; i < g->size; i++) sum = rounded(arithmetic, sum + term(s, mesh_member(g, i), pass));
    return rounded(s->type, sum);
}

static double all_passes(const Sum *s, int rank, int pass) {
    (void)pass;
    return passes(s, rank);
}

static Group replicas(const Sum *s, int rank) {
    const Mesh m = mesh_make(s->world->ranks, rank, s->world->size);
    return mesh_group(&m, s->param->spec.expert ? 1u << AXIS_EDP : 1u << AXIS_CP | 1u << AXIS_DP);
}

/* The first sum, over the ranks of an optimizer instance. */
static double first_sum(const Sum *s, int rank, int unused) {
    (void)unused;
    const Group all = replicas(s, rank), g = group_inner(&all, all.size / s->data->instances);
    if (s->data->stage < 2 || g.size == 1) return over(s, &g, all_passes, 0);
    double sum = 0;
    for (int pass = 0; pass < PASSES; pass++) sum = rounded(s->type, sum + over(s, &g, gradient, pass));
    return sum;
}

static double data_sum(const Sum *s, int rank, int unused) {
    (void)unused;
    const Group all = replicas(s, rank), g = group_outer(&all, all.size / s->data->instances);
    return over(s, &g, first_sum, 0);
}

/* Sums a tied parameter's copies, in the order of pipeline ranks. If they are not evenly spaced, the
 * sum is rounded after each addition. */
static double tied_sum(const Sum *s, const Mesh *m) {
    const bool even = strcmp(s->param->spec.name, "positions") != 0;
    const DType type = even && s->type == BF16 ? F32 : s->type;
    const int stride = m->world / m->size[AXIS_PP], bottom = m->rank - m->coordinate[AXIS_PP] * stride;
    double sum = data_sum(s, bottom, 0);
    for (int i = 1; i < m->size[AXIS_PP]; i++)
        if (holds(s->world, s->param->spec.name, i))
            sum = rounded(type, sum + data_sum(s, bottom + i * stride, 0));
    return rounded(s->type, sum);
}

static double expected(const Sum *s, int rank) {
    const Mesh m = mesh_make(s->world->ranks, rank, s->world->size);
    if (param_is_tied(s->param)) return tied_sum(s, &m);
    const bool summand = s->param->spec.tp_split == SPLIT_NONE;
    const Group g = mesh_group(&m, summand ? 1u << (s->param->spec.expert ? AXIS_ETP : AXIS_TP) : 0);
    return over(s, &g, data_sum, 0);
}

/* ---- a step ---- */

static double load(const void *x, DType type, int64_t i) {
    double y;
    dtype_convert(&y, F64, (const char *)x + i * (int64_t)dtype_size(type), type, 1);
    return y;
}

static void add_to(Tensor *grad, int64_t i, double x) {
    if (grad->dtype == F64)
        ((double *)grad->data)[i] += x;
    else if (grad->dtype == F32)
        ((float *)grad->data)[i] += (float)x;
    else {
        uint16_t *at = (uint16_t *)grad->data + i;
        *at = bf16_from_float(bf16_to_float(*at) + (float)x);
    }
}

/* Provides memory for the gradient, as the tape does. Clears it if it is unwritten, because add_to only
 * adds. */
static void begin_gradient(Sync *s, Param *p) {
    sync_grad(s, p);
    if (grad_is_unwritten(&p->main_grad)) memset(p->main_grad.data, 0, tensor_bytes(&p->main_grad));
    p->main_grad.flags |= TENSOR_ACCUM;
}

static void sweep(Sync *s, const World *w, Registry *r, const DataParallel *d, int pass) {
    for (int k = 0; k < r->n; k++) {
        Param *p =
            r->params[pass % 2 ? k : r->n - 1 - k]; /* only some passes have the order of the buckets */
        if (p->spec.flags & PARAM_BUFFER) continue;
        begin_gradient(s, p);
        for (int64_t i = 0; i < p->count; i++)
            add_to(&p->main_grad, i, gradient(&(Sum){w, p, d, r->gradients, i}, r->layout.mesh.rank, pass));
        sync_ready(s, p);
        if (k % 2) sync_attention(s);
    }
}

static bool is_in_param(const Registry *r, const Bucket *b, int64_t at) {
    for (int i = b->first; i < b->first + b->n; i++)
        if (at >= r->laid[i]->offset && at < r->laid[i]->offset + r->laid[i]->count) return true;
    return false;
}

/* Norms and updates also process the gaps between parameters, which must stay 0. */
static void check_gaps(const World *w, const Registry *r) {
    for (int k = 0; k < r->n_buckets; k++) {
        const FlatRange *h = &r->ranges[FLAT_GRADS][k];
        for (int64_t at = h->begin; at < h->end; at++)
            CHECK(is_in_param(r, &r->buckets[k], at) ||
                      load(r->grads, r->gradients, registry_place(r, FLAT_GRADS, k, at)) == 0,
                  "%s, stage %d: element %lld of this rank's part of bucket %d is padding and not 0", w->name,
                  r->layout.data.stage, (long long)(at - h->begin), k);
    }
}

static void check_sums(const World *w, const Registry *r, const DataParallel *d) {
    int64_t seen = 0;
    for (int k = 0; k < r->n; k++) {
        const Param *p = r->params[k];
        const FlatRange part = param_part_held(r, p);
        if (p->spec.flags & PARAM_BUFFER) continue;
        for (int64_t e = part.begin; e < part.end; e++, seen++) {
            const double got = load(r->grads, r->gradients, registry_place(r, FLAT_GRADS, p->bucket, e)),
                         want = expected(&(Sum){w, p, d, r->gradients, e - p->offset}, r->layout.mesh.rank);
            CHECK(got == want, "%s, stage %d, rank %d: element %lld of %s is %.17g, expected %.17g", w->name,
                  d->stage, r->layout.mesh.rank, (long long)(e - p->offset), p->spec.name, got, want);
        }
    }
    CHECK(seen > 0 || d->stage > 0, "nothing is held");
}

/* If only one parameter gets a gradient (of zeros) in a step, no main gradient may keep values of an earlier
 * step. */
static void check_idle(Sync *s, const World *w, Registry *r) {
    const char *only = "fc2";
    sync_begin(s, 1);
    begin_gradient(s, registry_find(r, only));
    sync_ready(s, registry_find(r, only));
    sync_finish(s);
    for (int k = 0; k < r->n; k++) {
        const Param *p = r->params[k];
        const FlatRange part = param_part_held(r, p);
        for (int64_t e = part.begin; e < part.end && !(p->spec.flags & PARAM_BUFFER); e++)
            CHECK(load(r->grads, r->gradients, registry_place(r, FLAT_GRADS, p->bucket, e)) == 0,
                  "%s, stage %d: the gradient of %s is not 0", w->name, r->layout.data.stage, p->spec.name);
    }
}

/* Checks the sum after each rank has added 1 to the gradient of p. */
static void check_ones(Sync *s, const World *w, Registry *r, const Param *p) {
    sync_finish(s);
    const Group all = replicas(&(Sum){.world = w, .param = p}, r->layout.mesh.rank);
    const double ranks = all.size * (r->layout.sequence_parallel ? r->layout.mesh.size[AXIS_TP] : 1);
    const FlatRange part = param_part_held(r, p);
    for (int64_t e = part.begin; e < part.end; e++) {
        const double got = load(r->grads, r->gradients, registry_place(r, FLAT_GRADS, p->bucket, e));
        CHECK(got == ranks, "%s, stage %d: the sum over %g ranks is %g", w->name, r->layout.data.stage, ranks,
              got);
    }
}

/* Begins the gradients of p's bucket. */
static const Bucket *begin_bucket(Sync *s, Registry *r, const Param *p) {
    const Bucket *b = &r->buckets[p->bucket];
    sync_begin(s, 2);
    for (int i = b->first; i < b->first + b->n; i++) begin_gradient(s, r->laid[i]);
    return b;
}

/* A bucket that is ready twice in a sweep, because its gradients came early, must be reduced only once. */
static void check_early(Sync *s, const World *w, Registry *r) {
    Param *p = registry_find(r, "final_norm");
    if (!p) return;
    const Bucket *b = begin_bucket(s, r, p);
    for (int64_t i = 0; i < p->count; i++) add_to(&p->main_grad, i, 1);
    for (int twice = 0; twice < 2; twice++)
        for (int i = b->first; i < b->first + b->n; i++) sync_ready(s, r->laid[i]);
    check_ones(s, w, r, p);
}

/* A postponed gradient must keep its memory although the other parameters of its bucket are ready twice,
 * after two sweeps. */
static void check_postponed(Sync *s, const World *w, Registry *r) {
    Param *p = registry_find(r, "final_norm");
    if (!p) return;
    const Bucket *b = begin_bucket(s, r, p);
    for (int twice = 0; twice < 2; twice++)
        for (int i = b->first; i < b->first + b->n; i++)
            if (r->laid[i] != p) sync_ready(s, r->laid[i]);
    for (int64_t i = 0; i < p->count; i++) add_to(&p->main_grad, i, 1);
    sync_ready(s, p);
    check_ones(s, w, r, p);
}

/* Initial masters depend only on name and index, so every rank can compute the values of other ranks. */
static void check_values(Sync *s, const World *w, Registry *r, Device *device, DType storage) {
    Registry *whole = registry(w, r->layout.mesh.rank, (DataParallel){0}, device, storage);
    registry_init(whole, 7);
    registry_init(r, 7);
    sync_publish(s);
    for (int round = 0; round < 2; round++)
        for (int k = 0; k < r->n; k++) {
            Param *p = r->params[round ? r->n - 1 - k : k], *two[] = {p, r->params[k ? k - 1 : 0]};
            sync_use(s, two, 2);
            if (k % 2) sync_attention(s);
            for (int j = 0; j < 2; j++) {
                const Tensor *got = &two[j]->value, *want = &whole->params[two[j]->number]->value;
                CHECK(!memcmp(got->data, want->data, tensor_bytes(want)),
                      "%s, stage %d: '%s' is not what was drawn", w->name, r->layout.data.stage,
                      two[j]->spec.name);
            }
        }
    registry_free(whole);
}

static void step(const World *w, Comm *comm, Device *device, DataParallel d, DType storage) {
    Registry *r = registry(w, comm_rank(comm), d, device, storage);
    Sync *s = sync_new(r, comm);
    for (int repeat = 0; repeat < 2; repeat++) {
        sync_begin(s, PASSES);
        for (int pass = 0; pass < PASSES; pass++) sweep(s, w, r, &d, pass);
        sync_finish(s);
        check_sums(w, r, &d);
        check_gaps(w, r);
    }
    check_idle(s, w, r);
    check_early(s, w, r);
    check_postponed(s, w, r);
    check_values(s, w, r, device, storage);
    sync_free(s);
    registry_free(r);
}

static void run_world(void *arg, Comm *comm) {
    const World *w = arg;
    static const DataParallel BUCKETS[] = {
        {.bucket_size = 0}, {.bucket_size = 1}, {.bucket_size = 200}, {.num_buckets = 3}};
    Device *device = device_cpu(1);
    const Mesh m = mesh_make(w->ranks, comm_rank(comm), w->size);
    for (int stage = 0; stage < 4; stage++)
        for (int b = 0; b < 4; b++)
            for (int overlap = 0; overlap < 3; overlap++) /* 2: with attention */
                for (int instances = 1; instances < 3; instances++) {
                    DataParallel d = BUCKETS[b];
                    const bool divides =
                        m.size[AXIS_DP] % instances == 0 && m.size[AXIS_EDP] % instances == 0;
                    if (!divides || (instances > 1 && (!stage || !overlap))) continue;
                    d.stage = stage, d.instances = instances;
                    d.overlap_grads = d.overlap_values = overlap > 0;
                    d.with_attention = overlap > 1;
                    step(w, comm, device, d, b == 1 ? BF16 : F64);
                    d.bf16_grads = true;
                    if (b == 2) step(w, comm, device, d, BF16);
                }
    device_free(device);
}

TEST(sums_and_values_are_what_the_formulas_say) {
    static const World WORLDS[] = {
        {"one rank", 1, {1, 1, 0, 1, 1, 1, 0}, false},
        {"dp2", 2, {1, 1, 0, 1, 1, 1, 0}, false},
        {"dp3", 3, {1, 1, 0, 1, 1, 1, 0}, false},
        {"dp4", 4, {1, 1, 0, 1, 1, 1, 0}, false},
        {"dp8", 8, {1, 1, 0, 1, 1, 1, 0}, false},
        {"cp2 dp2", 4, {1, 2, 0, 1, 1, 1, 0}, false},
        {"tp2 dp2", 4, {2, 1, 0, 1, 2, 1, 0}, false},
        {"tp2 dp2 etp1", 4, {2, 1, 0, 1, 1, 1, 0}, false},
        {"dp4 ep2", 4, {1, 1, 0, 1, 1, 2, 0}, false},
        {"dp4 ep4", 4, {1, 1, 0, 1, 1, 4, 0}, false},
        {"pp2 dp2", 4, {1, 1, 0, 2, 1, 1, 0}, false},
        {"pp3 dp2", 6, {1, 1, 0, 3, 1, 1, 0}, false},
        {"tp2 pp2 dp2", 8, {2, 1, 0, 2, 1, 2, 0}, false},
        {"pp4 dp2", 8, {1, 1, 0, 4, 1, 1, 0}, false},
        {"dp4, exact sums", 4, {1, 1, 0, 1, 1, 1, 0}, true},
    };
    for (size_t i = 0; i < sizeof WORLDS / sizeof *WORLDS; i++)
        comm_threads(WORLDS[i].ranks, NULL, run_world, (void *)&WORLDS[i]);
}

/* ---- when operations start ---- */

static int64_t operations(Comm *comm) {
    pthread_mutex_lock(&comm->recorder.lock);
    const int64_t n = comm->recorder.count;
    pthread_mutex_unlock(&comm->recorder.lock);
    return n;
}

/* Whether an attention op follows the bucket, as is the case for all buckets except the last two. */
static bool is_followed(const Registry *r, int k) { return k + 2 < r->n_buckets; }

/* A reduction must start with the next attention op, or immediately if none followed it in an earlier step. */
static void sums_wait(Sync *s, Registry *r, Comm *comm, int step) {
    sync_begin(s, 1);
    for (int k = 0; k < r->n_buckets; k++) {
        const int64_t before = operations(comm);
        for (int i = r->buckets[k].first; i < r->buckets[k].first + r->buckets[k].n; i++) {
            if (r->laid[i]->spec.flags & PARAM_BUFFER) continue;
            sync_grad(s, r->laid[i]);
            sync_ready(s, r->laid[i]);
        }
        const int64_t ready = operations(comm) - before;
        if (is_followed(r, k)) sync_attention(s);
        const bool follows = is_followed(r, k), sums = r->buckets[k].trained;
        CHECK(step == 0 || ready == (sums && !follows), "stage %d, bucket %d: %lld sums have started",
              r->layout.data.stage, k, (long long)ready);
        CHECK((!follows && step == 0) || operations(comm) - before == sums,
              "stage %d, bucket %d: %lld sums have started after the attention", r->layout.data.stage, k,
              (long long)(operations(comm) - before));
    }
    sync_finish(s);
}

/* The next bucket's all-gather must start with this bucket's attention op, or immediately if this bucket had none in an
 * earlier step. */
static void gathers_wait(Sync *s, Registry *r, Comm *comm, int step) {
    sync_publish(s);
    for (int k = r->n_buckets - 1; k > 0; k--) {
        Param *first = r->laid[r->buckets[k].first];
        if (!r->buckets[k].trained) continue; /* buffers, which are not sharded */
        int64_t before = operations(comm);
        sync_use(s, &first, 1);
        const bool follows = is_followed(r, k), own = k == r->n_buckets - 1 && r->layout.data.stage == 3;
        const int64_t used = operations(comm) - before - own;
        if (follows) sync_attention(s);
        CHECK(step == 0 || used == !follows, "stage %d, bucket %d: %lld gathers have started",
              r->layout.data.stage, k, (long long)used);
        CHECK(operations(comm) - before - own == 1,
              "stage %d, bucket %d: %lld gathers have started after the attention", r->layout.data.stage, k,
              (long long)(operations(comm) - before - own));
    }
}

static void nothing(void *unused) { (void)unused; }

/* A CUDA graph must also all-gather values that it does not use, because later uses do not gather them. */
static void graphs_gather_all(Sync *s, Registry *r, Comm *comm) {
    DeviceRecording recording = {0};
    sync_publish(s);
    const int64_t before = operations(comm);
    int64_t gathers = 0;
    sync_begin(s, 1);
    sync_replay(s, &recording, nothing, NULL);
    for (int k = 0; k < r->n_buckets; k++)
        gathers += 2 * r->buckets[k].trained; /* an all-gather and a reduction */
    CHECK(operations(comm) - before == gathers, "stage %d: %lld operations and not %lld",
          r->layout.data.stage, (long long)(operations(comm) - before), (long long)gathers);
}

static void wait_for_attention(void *arg, Comm *comm) {
    const World *w = arg;
    Device *device = device_cpu(1);
    for (int stage = 0; stage < 4; stage++) {
        const DataParallel d = {.stage = stage,
                                .instances = 1,
                                .bucket_size = stage < 2,
                                .overlap_grads = true,
                                .overlap_values = true,
                                .with_attention = true};
        Registry *r = registry(w, comm_rank(comm), d, device, F64);
        Sync *s = sync_new(r, comm);
        registry_init(r, 7);
        for (int step = 0; step < 3; step++) {
            if (stage) gathers_wait(s, r, comm, step);
            sums_wait(s, r, comm, step);
        }
        if (stage == 1) graphs_gather_all(s, r, comm);
        sync_free(s);
        registry_free(r);
    }
    device_free(device);
}

TEST(operations_start_with_attention) {
    const World w = {"dp2", 2, {1, 1, 0, 1, 1, 1, 0}, false};
    comm_threads(w.ranks, NULL, wait_for_attention, (void *)&w);
}

static void gather_before_passes(void *arg, Comm *comm) {
    const World *w = arg;
    Device *device = device_cpu(1);
    Registry *r = registry(
        w, comm_rank(comm),
        (DataParallel){
            .stage = 1, .instances = 1, .bucket_size = 1, .overlap_values = true, .with_attention = true},
        device, F64);
    Sync *s = sync_new(r, comm);
    registry_init(r, 7);
    int64_t gathers = 0;
    for (int k = 0; k < r->n_buckets; k++) gathers += r->buckets[k].trained;
    const int64_t before = operations(comm);
    sync_publish(s);
    CHECK(gathers > 1 && operations(comm) - before == gathers, "%lld of %lld gathers have started",
          (long long)(operations(comm) - before), (long long)gathers);
    sync_free(s);
    registry_free(r);
    device_free(device);
}

TEST(pipelines_gather_before_passes) {
    const World w = {"pp2 dp2", 4, {1, 1, 0, 2, 1, 1, 0}, false};
    comm_threads(w.ranks, NULL, gather_before_passes, (void *)&w);
}

/* ---- the layout ---- */

/* Every element must be in exactly one bucket, parts of equal size must cover each bucket, and each FSDP unit
 * must have separate buckets. */
TEST(shards_cover_the_layout_once) {
    const World w = {"dp3", 3, {1, 1, 0, 1, 1, 1, 0}, false};
    Device *device = device_null();
    for (int stage = 1; stage < 4; stage++) {
        int64_t held = 0, elements = 0;
        for (int rank = 0; rank < 3; rank++) {
            Registry *r = registry(&w, rank, (DataParallel){.stage = stage}, device, F32);
            elements = r->elements;
            int64_t end = 0, params = 0;
            for (int k = 0; k < r->n_buckets; k++) {
                const Bucket *b = &r->buckets[k];
                const FlatRange *h = &r->ranges[FLAT_STATE][k];
                assert_int_equal(b->begin, end);
                end = b->end, params += b->n;
                if (b->trained) assert_int_equal(h->begin, b->begin + rank * (b->end - b->begin) / 3);
                assert_int_equal((h->end - h->begin) % PARAM_ALIGN, 0);
                if (!b->trained) assert_int_equal(h->end, h->begin);
                held += b->trained ? h->end - h->begin : rank == 0 ? b->end - b->begin : 0;
                for (int i = b->first; i < b->first + b->n; i++) {
                    assert_true(r->laid[i]->offset >= b->begin);
                    assert_true(r->laid[i]->offset + r->laid[i]->count <= b->end);
                    assert_int_equal((r->laid[i]->offset - b->begin) % PARAM_ALIGN, 0);
                    if (stage > 1) assert_int_equal(r->laid[i]->unit, r->laid[b->first]->unit);
                }
            }
            assert_int_equal(end, elements);
            assert_int_equal(params, r->n);
            registry_free(r);
        }
        assert_int_equal(held, elements);
    }
    device_free(device);
}

/* The expected bytes per element at each stage are those of ZeRO's table, on 4 ranks with 16-bit storage,
 * with fp32 and with bf16 gradients. */
TEST(memory_shrinks_by_the_stage) {
    const World w = {"dp4", 4, {1, 1, 0, 1, 1, 1, 0}, false};
    Device *device = device_null();
    const double each[2][4] = {{2 + 4 + 4, 2 + 4 + 1, 2 + 1 + 1, 0.5 + 1 + 1},
                               {2 + 2 + 4, 2 + 2 + 1, 2 + 0.5 + 1, 0.5 + 0.5 + 1}};
    for (int i = 0; i < 8; i++) {
        const int narrow = i / 4, stage = i % 4;
        const DataParallel data = {.stage = stage, .bf16_grads = narrow};
        Registry *r = registry(&w, 1, data, device, BF16);
        const double buffers = 64 * (2 + 4); /* values and masters of buffers, which all ranks have */
        assert_true((double)registry_bytes(r) == each[narrow][stage] * (double)(r->elements - 64) + buffers);
        registry_free(r);
    }
    device_free(device);
}
