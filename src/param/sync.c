#include "param/sync.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "param/bucket.h"
#include "param/gather.h"
#include "param/bucket_pool.h"

enum { SLOTS = 2 }; /* one slot to which a sweep adds, and one slot that is being summed */

typedef struct Piece {
    int64_t to_come; /* number of sync_ready calls before the bucket's sum can start */
    /* stages 2 and 3: number of parameters for which sync_grad, but not yet sync_ready, has been called */
    int64_t adding;
    CommWork *work;
    void *slot; /* stages 2 and 3: the full bucket's gradients while a sweep accumulates them */
    /* whether the sum starts immediately, because no attention op followed in an earlier sweep */
    bool at_once;
    /* stages 2 and 3: true until the first sum is added to this rank's part of the main gradients */
    bool unwritten;
    int64_t started; /* the sum's number, in the order in which sums were started */
} Piece;

struct Sync {
    Registry *registry;
    Comm *comm; /* NULL if no data is transferred */
    Gather *gather;
    Piece *piece; /* [n_buckets] */
    /* [parameter number], at stages 2 and 3: whether sync_grad, but not yet sync_ready, has been called */
    bool *adding;
    BucketPool slots, small_slots; /* small_slots: for buckets whose mates have FP8 weights */
    int next;                      /* stages 0 and 1: the first bucket whose sum has not been started */
    /* stages 2 and 3: the bucket whose sum starts at the next attention op, or -1 if there is none */
    int due;
    int64_t started; /* number of sums that have been started */
    bool finished;   /* true if no step is in progress, or if all sums of the step are complete */
    void *message;   /* the gradients to sum over tensor-parallel ranks */
    int64_t message_elements;
};

static Bucket *bucket(const Sync *s, int k) { return &s->registry->buckets[k]; }
/* Returns whether this rank keeps only its part of the bucket's main gradients. */
static bool is_shared(const Sync *s, int k) {
    return bucket_is_shared(s->registry, bucket(s, k), FLAT_GRADS);
}

static bool is_small(const Bucket *b) { return b->mate >= 0 && !b->fp8; }

static BucketPool *slots_of(Sync *s, int k) { return is_small(bucket(s, k)) ? &s->small_slots : &s->slots; }

static size_t grad_bytes(const Sync *s, int64_t n) { return (size_t)n * dtype_size(s->registry->gradients); }

/* Returns this rank's part of the bucket's main gradients. */
static Tensor part_of(const Sync *s, int k) {
    Registry *r = s->registry;
    const FlatRange part = bucket_part(r, bucket(s, k));
    return registry_slice(r, FLAT_GRADS, r->grads, k, part.begin, part.end - part.begin);
}

static CommWork *all_reduce(Sync *s, const Group *group, const char *site, void *x, int64_t n) {
    if (!s->comm || group->size == 1) return NULL;
    return comm_start(s->comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                           .dtype = s->registry->gradients,
                                           .group = *group,
                                           .site = site,
                                           .in = x,
                                           .out = x,
                                           .n = n,
                                           .device = s->registry->device});
}

static void wait(Sync *s, CommWork **work) {
    if (*work) comm_wait(s->comm, *work);
    *work = NULL;
}

/* ---- stages 2 and 3: memory for a bucket's gradients ---- */

static Tensor flat(const Sync *s, void *data, int64_t n) {
    return tensor_make(data, s->registry->gradients, 1, &n);
}

static void show(Sync *s, int k, char *slot) {
    const Bucket *b = bucket(s, k);
    s->piece[k].slot = slot;
    for (int i = b->first; i < b->first + b->n; i++) {
        Param *p = s->registry->laid[i];
        p->main_grad.data = slot ? slot + grad_bytes(s, p->offset - b->begin) : NULL;
    }
}

/* Acquires a slot, and marks its gradients as unwritten. Sets the gaps between parameters to zero, because
 * the sum includes the gaps. */
static void open_slot(Sync *s, int k) {
    const Bucket *b = bucket(s, k);
    char *slot = bucket_pool_take(slots_of(s, k));
    show(s, k, slot);
    for (int i = b->first; i < b->first + b->n; i++) {
        Param *p = s->registry->laid[i];
        const int64_t end = p->offset + p->count,
                      next = i + 1 < b->first + b->n ? s->registry->laid[i + 1]->offset : b->end;
        Tensor gap = flat(s, slot + grad_bytes(s, end - b->begin), next - end);
        if (next > end) registry_zero(s->registry, &gap);
        grad_mark_unwritten(p);
    }
}

/* Adds the summed gradients for this rank's part to this rank's main gradients. */
static void absorb(Sync *s, int k) {
    const Bucket *b = bucket(s, k);
    Tensor sum = flat(s, (char *)s->piece[k].slot + grad_bytes(s, b->inner.rank * b->shard), b->shard),
           main = part_of(s, k);
    main.flags = s->piece[k].unwritten ? 0 : TENSOR_ACCUM;
    s->piece[k].unwritten = false;
    call_run(&OPS[OP_copy], &(Call){.in = {&sum}, .out = {&main}, .device = s->registry->device});
    bucket_pool_give(slots_of(s, k), s->piece[k].slot);
    show(s, k, NULL);
}

/* ---- the first sum ---- */

static void start(Sync *s, int k) {
    const Bucket *b = bucket(s, k);
    Registry *r = s->registry;
    const int64_t n = b->end - b->begin;
    for (int i = b->first; i < b->first + b->n; i++) grad_zero_unwritten(r, r->laid[i]);
    if (!b->trained || b->inner.size == 1) return;
    char *all =
        is_shared(s, k) ? s->piece[k].slot : registry_slice(r, FLAT_GRADS, r->grads, k, b->begin, n).data;
    s->piece[k].started = ++s->started;
    if (!bucket_is_shared(r, b, FLAT_STATE))
        s->piece[k].work = all_reduce(s, &b->inner, "grad_sum", all, n);
    else if (s->comm)
        s->piece[k].work =
            comm_start(s->comm, &(CommCall){.kind = COMM_REDUCE_SCATTER,
                                            .dtype = r->gradients,
                                            .group = b->inner,
                                            .site = "grad_sum",
                                            .in = all,
                                            .out = all + grad_bytes(s, b->inner.rank * b->shard),
                                            .n = b->shard,
                                            .device = r->device});
}

static bool is_summing(const Sync *s, int k) { return s->piece[k].started > 0; }

static void finish(Sync *s, int k) {
    if (!is_summing(s, k)) return;
    wait(s, &s->piece[k].work);
    s->piece[k].started = 0;
    if (is_shared(s, k)) absorb(s, k);
}

/* Completes the oldest sum in `slots`, and frees its slot. */
static void finish_oldest(Sync *s, const BucketPool *slots) {
    int found = -1;
    for (int k = 0; k < s->registry->n_buckets; k++)
        if (s->piece[k].slot && slots_of(s, k) == slots && is_summing(s, k) &&
            (found < 0 || s->piece[k].started < s->piece[found].started))
            found = k;
    CHECK(found >= 0, "no sum of gradients is in progress");
    finish(s, found);
}

/* Starts the sum that is due. `attention` states whether an attention op follows. If no attention op follows,
 * later sums of this bucket will start immediately. */
static void start_due(Sync *s, bool attention) {
    const int k = s->due;
    if (k < 0) return;
    s->due = -1;
    s->piece[k].at_once = !attention;
    start(s, k);
}

/* At stages 2 and 3, returns whether gradients are being added to the bucket's slot. */
static bool is_open(const Sync *s, int k) { return s->piece[k].slot && !is_summing(s, k); }

/* Returns the number of slots that are needed. Each slot that stays open requires an additional slot. For
 * example, a sweep adds to the gradient of tied embeddings both at its start and at its end. */
static int slots_wanted(Sync *s, const BucketPool *slots) {
    int open = 0;
    for (int k = 0; k < s->registry->n_buckets; k++)
        open += slots_of(s, k) == slots && is_open(s, k) && k != s->due;
    return SLOTS + open;
}

bool sync_is_adding(const Sync *s, const Param *p) {
    return !is_shared(s, p->bucket) || (is_open(s, p->bucket) && p->bucket != s->due);
}

void sync_grad(Sync *s, Param *p) {
    const int k = p->bucket;
    if (k == s->due) start_due(s, false); /* the gradient belongs to the next sweep */
    if (!is_shared(s, k)) return;
    s->piece[k].adding += !s->adding[p->number];
    s->adding[p->number] = true;
    if (is_open(s, k)) return;
    finish(s, k);
    if (!bucket_pool_can_take(slots_of(s, k), slots_wanted(s, slots_of(s, k))))
        finish_oldest(s, slots_of(s, k));
    open_slot(s, k);
}

/* Starts sums in bucket order, not in the order in which they become ready, so that the order is the same on
 * all ranks. */
static void start_until(Sync *s, bool all) {
    for (; s->next < s->registry->n_buckets; s->next++) {
        if (is_shared(s, s->next)) continue;
        if (!all && bucket(s, s->next)->trained && s->piece[s->next].to_come > 0) return;
        start(s, s->next);
    }
}

/* At ZeRO stages 2 and 3, several of this rank's pipeline stages can share a bucket. The bucket's sum starts
 * after a fixed number of sync_ready calls. The sum can start in the middle of a sweep, while a postponed
 * gradient (tape_postpone) still needs memory. */
void sync_ready(Sync *s, Param *p) {
    const int k = p->bucket;
    const DataParallel *data = &s->registry->layout.data;
    const bool waits = data->overlap_grads && data->with_attention && !s->piece[k].at_once;
    s->piece[k].to_come--;
    s->piece[k].adding -= s->adding[p->number];
    s->adding[p->number] = false;
    if (!is_shared(s, k)) {
        if (data->overlap_grads && !waits) start_until(s, false);
    } else if (s->piece[k].to_come <= 0 && !s->piece[k].adding) {
        s->piece[k].to_come += bucket(s, k)->n;
        if (!is_open(s, k) || s->due == k) return; /* the sum of this sweep has started or is due */
        start_due(s, false);
        s->due = k;
        if (!waits) start_due(s, false);
        if (!data->overlap_grads) finish(s, k);
    }
}

void sync_attention(Sync *s) {
    const DataParallel *data = &s->registry->layout.data;
    if (!data->with_attention) return;
    if (data->overlap_grads && !s->finished) start_until(s, false), start_due(s, true);
    gather_attention(s->gather);
}

/* ---- later sums ---- */

static void over_instances(Sync *s) {
    const int n = s->registry->n_buckets;
    for (int k = 0; k < n; k++) {
        const Tensor part = part_of(s, k);
        if (bucket(s, k)->trained)
            s->piece[k].work =
                all_reduce(s, &bucket(s, k)->outer, "grad_sum_instances", part.data, part.dim[0]);
    }
    for (int k = 0; k < n; k++) wait(s, &s->piece[k].work);
}

/* Returns the group of pipeline ranks that hold copies `first` to `last` (inclusive) of a tied parameter. The ranks
 * must be evenly spaced. */
static Group holders_group(const Registry *r, const Param *p, int first, int last) {
    const Mesh *m = &r->layout.mesh;
    const int stride = m->world / m->size[AXIS_PP], at = m->coordinate[AXIS_PP], n = last - first + 1,
              step = (p->holders[last] - p->holders[first]) / (n - 1);
    return (Group){.size = n,
                   .rank = (at - p->holders[first]) / step,
                   .first = m->rank + (p->holders[first] - at) * stride,
                   .n_axes = 1,
                   .axis_size = {n},
                   .axis_stride = {step * stride}};
}

/* Returns the group of the two ranks that hold the first copy and copy `copy`. */
static Group pair_group(const Registry *r, const Param *p, int copy) {
    Param two = *p;
    two.holders = (int[]){p->holders[0], p->holders[copy]};
    return holders_group(r, &two, 0, 1);
}

static bool are_evenly_spaced(const Param *p) {
    for (int i = 2; i < p->n_holders; i++)
        if (p->holders[i] - p->holders[i - 1] != p->holders[1] - p->holders[0]) return false;
    return true;
}

static int copy_of(const Registry *r, const Param *p) {
    int i = 0;
    while (p->holders[i] != r->layout.mesh.coordinate[AXIS_PP]) i++;
    return i;
}

/* Sums a parameter's copies if their ranks are not evenly spaced, and therefore do not form a group. Each copy is added
 * to the first copy. The first copy's rank then sends the sum to the other ranks. */
static void over_pairs(Sync *s, const Param *p, const Tensor *part) {
    const Registry *r = s->registry;
    const int own = copy_of(r, p), n = p->n_holders;
    for (int i = 1; i < n; i++)
        if (own == 0 || own == i) {
            const Group pair = pair_group(r, p, i);
            CommWork *work = all_reduce(s, &pair, "tied_grad_sum", part->data, part->dim[0]);
            wait(s, &work);
        }
    for (int i = 1; i + 1 < n; i++)
        if (s->comm && (own == 0 || own == i))
            comm_run(s->comm, &(CommCall){.kind = COMM_BROADCAST,
                                          .dtype = r->gradients,
                                          .group = pair_group(r, p, i),
                                          .site = "tied_grad",
                                          .in = part->data,
                                          .out = part->data,
                                          .n = part->dim[0],
                                          .device = r->device});
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(Param *const *)a)->spec.name, (*(Param *const *)b)->spec.name);
}

static bool sums_copies(const Param *p) { return param_is_tied(p) && param_is_trained(p); }

/* Returns the trained tied parameters. The order is the same on all ranks, to avoid deadlock. */
static Param **tied_params(const Registry *r, int *n) {
    Param **tied = mem_zero((size_t)r->n + 1, sizeof(Param *));
    *n = 0;
    for (int i = 0; i < r->n; i++)
        if (sums_copies(r->params[i])) tied[(*n)++] = r->params[i];
    qsort(tied, (size_t)*n, sizeof *tied, by_name);
    return tied;
}

static void over_copies(Sync *s) {
    int n;
    Param **tied = tied_params(s->registry, &n);
    for (int i = 0; i < n; i++) {
        const Param *p = tied[i];
        const Tensor part = part_of(s, p->bucket);
        if (!are_evenly_spaced(p)) {
            over_pairs(s, p, &part);
            continue;
        }
        const Group all = holders_group(s->registry, p, 0, p->n_holders - 1);
        CommWork *work = all_reduce(s, &all, "tied_grad_sum", part.data, part.dim[0]);
        wait(s, &work);
    }
    free(tied);
}

typedef enum Direction { COUNT, PACK, UNPACK } Direction;

/* Copies this rank's part of the gradients that are summed over `axes` to the message (PACK), or back from the
 * message (UNPACK), in flat order. Returns the number of elements. */
static int64_t move(Sync *s, unsigned axes, Direction way) {
    Registry *r = s->registry;
    int64_t at = 0;
    for (int i = 0; i < r->n; i++) {
        Param *p = r->laid[i];
        const FlatRange h = param_part_held(r, p);
        if (!(param_sum_axes(p) & axes) || !bucket(s, p->bucket)->trained || h.end <= h.begin) continue;
        const int64_t n = h.end - h.begin;
        if (way != COUNT) {
            Tensor packed = flat(s, (char *)s->message + grad_bytes(s, at), n);
            Tensor grad = registry_slice(r, FLAT_GRADS, r->grads, p->bucket, h.begin, n);
            Call call = {.in = {way == PACK ? &grad : &packed},
                         .out = {way == PACK ? &packed : &grad},
                         .device = r->device};
            call_run(&OPS[OP_copy], &call);
        }
        at += n;
    }
    return at;
}

static void over_tensor_ranks(Sync *s, Axis axis) {
    const Group group = mesh_group(&s->registry->layout.mesh, 1u << axis);
    if (group.size == 1 || !s->comm) return;
    const int64_t n = move(s, 1u << axis, PACK);
    CommWork *work = all_reduce(s, &group, "replicated_grad_sum", s->message, n);
    wait(s, &work);
    move(s, 1u << axis, UNPACK);
}

/* ---- a step ---- */

/* Returns how often sync_ready is called for the bucket in one sweep through each of this rank's pipeline stages. */
static int64_t calls_of_a_pass(const Sync *s, int k) {
    const Bucket *b = bucket(s, k);
    int64_t calls = 0;
    for (int i = b->first; i < b->first + b->n; i++) calls += s->registry->laid[i]->stages;
    return calls;
}

void sync_begin(Sync *s, int64_t passes) {
    s->finished = false;
    s->next = 0;
    for (int k = 0; k < s->registry->n_buckets; k++) {
        const Bucket *b = bucket(s, k);
        const bool shared = s->piece[k].unwritten = is_shared(s, k);
        s->piece[k].to_come = shared ? b->n : passes * calls_of_a_pass(s, k);
        for (int i = b->first; i < b->first + b->n && !shared; i++) grad_mark_unwritten(s->registry->laid[i]);
    }
}

void sync_finish(Sync *s) {
    const int n = s->registry->n_buckets;
    if (s->finished) return;
    s->finished = true;
    for (int k = s->next; k < n; k++) s->piece[k].at_once |= !is_shared(s, k);
    start_until(s, true);
    start_due(s, false);
    for (int k = 0; k < n; k++) /* a parameter in the bucket had no gradient, so the sum was not started */
        if (is_open(s, k)) start(s, k);
    for (int k = 0; k < n; k++) {
        Tensor part = part_of(s, k);
        finish(s, k);
        if (s->piece[k].unwritten) registry_zero(s->registry, &part);
    }
    over_instances(s);
    over_copies(s);
    over_tensor_ranks(s, AXIS_TP);
    over_tensor_ranks(s, AXIS_ETP);
}

typedef struct GraphWork {
    Sync *sync;
    void (*work)(void *arg);
    void *arg;
} GraphWork;

static void graph_work(void *arg) {
    const GraphWork *w = arg;
    gather_begin_graph(w->sync->gather);
    w->work(w->arg);
    sync_finish(w->sync);
    gather_end_graph(w->sync->gather);
}

void sync_replay(Sync *s, DeviceRecording *r, void (*work)(void *arg), void *arg) {
    gather_before_graph(s->gather);
    device_replay(s->registry->device, r, graph_work, &(GraphWork){s, work, arg});
    gather_after_graph(s->gather);
    grads_mark_written(s->registry);
    s->finished = true;
    if (r->graph) sync_launched(s, "a step's CUDA graph");
}

void sync_launched(Sync *s, const char *site) {
    if (s->comm) comm_launched(s->comm, site);
}

void sync_publish(Sync *s) { gather_publish(s->gather); }
void sync_use(Sync *s, Param *const *p, int n) { gather_use(s->gather, p, n); }

void sync_world_sum(Sync *s, DType type, void *x, int64_t n) {
    if (s && s->comm)
        comm_run(s->comm, &(CommCall){.kind = COMM_ALL_REDUCE,
                                      .dtype = type,
                                      .group = comm_everyone(s->comm),
                                      .site = "world_sum",
                                      .in = x,
                                      .out = x,
                                      .n = n,
                                      .device = s->registry->device});
}

static void of_shards(Sync *s, const Param *p, CommCall call) {
    call.group = mesh_group(&s->registry->layout.mesh, 1u << (p->spec.expert ? AXIS_ETP : AXIS_TP));
    call.device = s->registry->device;
    if (s->comm) comm_run(s->comm, &call);
}

void sync_sum_shards(Sync *s, const Param *p, DType type, void *x, int64_t n) {
    of_shards(
        s, p,
        (CommCall){.kind = COMM_ALL_REDUCE, .dtype = type, .site = "shards", .in = x, .out = x, .n = n});
}

void sync_gather_shards(Sync *s, const Param *p, DType type, const void *in, void *out, int64_t n) {
    of_shards(
        s, p,
        (CommCall){.kind = COMM_ALL_GATHER, .dtype = type, .site = "shards", .in = in, .out = out, .n = n});
}

/* ---- construction ---- */

Sync *sync_new(Registry *r, Comm *comm) {
    Sync *s = mem_zero(1, sizeof *s);
    if (!comm_starts(comm, r->device)) comm = NULL;
    CHECK(comm || r->layout.mesh.world == 1 || r->device->kind == DEVICE_NULL, "%d ranks need a Comm",
          r->layout.mesh.world);
    *s = (Sync){.registry = r, .comm = comm, .gather = gather_new(r, comm), .due = -1, .finished = true};
    s->piece = mem_zero((size_t)r->n_buckets, sizeof *s->piece);
    s->adding = mem_zero((size_t)r->n + 1, sizeof *s->adding);
    s->slots = s->small_slots = (BucketPool){.registry = r, .comm = comm, .what = "gradients of a bucket"};
    for (int k = 0; k < r->n_buckets; k++) {
        const size_t bytes = grad_bytes(s, bucket(s, k)->end - bucket(s, k)->begin);
        if (is_shared(s, k) && bytes > slots_of(s, k)->bytes) slots_of(s, k)->bytes = bytes;
    }
    const int64_t dense = move(s, 1u << AXIS_TP, COUNT), expert = move(s, 1u << AXIS_ETP, COUNT);
    s->message_elements = dense > expert ? dense : expert;
    s->message = device_alloc(r->device, grad_bytes(s, s->message_elements), "replicated gradients");
    buckets_register(r, comm, r->values, registry_flat_bytes(r, FLAT_VALUES));
    buckets_register(r, comm, r->fp8, registry_flat_bytes(r, FLAT_FP8));
    buckets_register(r, comm, r->grads, registry_flat_bytes(r, FLAT_GRADS));
    return s;
}

size_t sync_bytes(const Sync *s) {
    return bucket_pool_bytes(&s->slots) + bucket_pool_bytes(&s->small_slots) +
           grad_bytes(s, s->message_elements) + gather_bytes(s->gather);
}

typedef void GroupVisitor(const Sync *, Comm *, Group);

static void plan(const Sync *s, Comm *c, Group group) {
    comm_plan(c, &(CommCall){.kind = COMM_ALL_REDUCE, .dtype = s->registry->gradients, .group = group});
}

/* Opens a group's channel by running the group's first operation. */
static void open_channel(const Sync *s, Comm *c, Group group) {
    char none;
    if (group.size > 1)
        comm_run(c, &(CommCall){.kind = COMM_ALL_REDUCE,
                                .dtype = s->registry->gradients,
                                .group = group,
                                .site = "open",
                                .in = &none,
                                .out = &none,
                                .device = s->registry->device});
}

static void visit_copies(const Sync *s, Comm *c, GroupVisitor *visit) {
    const Registry *r = s->registry;
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        if (!sums_copies(p)) continue;
        const int own = copy_of(r, p), last = p->n_holders - 1;
        if (are_evenly_spaced(p)) visit(s, c, holders_group(r, p, 0, last));
        for (int k = 1; k <= last && !are_evenly_spaced(p); k++)
            if (own == 0 || own == k) visit(s, c, pair_group(r, p, k));
    }
}

/* Visits the groups for all sums and gathers; a group may be visited several times. */
static void visit_groups(const Sync *s, Comm *c, GroupVisitor *visit) {
    const Registry *r = s->registry;
    for (int k = 0; k < r->n_buckets; k++)
        if (bucket(s, k)->trained) visit(s, c, bucket(s, k)->inner), visit(s, c, bucket(s, k)->outer);
    visit_copies(s, c, visit);
    visit(s, c, mesh_group(&r->layout.mesh, 1u << AXIS_TP));
    visit(s, c, mesh_group(&r->layout.mesh, 1u << AXIS_ETP));
    visit(s, c, comm_everyone(c)); /* sync_world_sum */
}

void sync_plan(const Sync *s, Comm *c) { visit_groups(s, c, plan); }

void sync_prepare(Sync *s) {
    visit_groups(s, s->comm, open_channel);
    for (int k = 0; k < s->registry->n_buckets; k++) finish(s, k);
}

void sync_free(Sync *s) {
    if (!s) return;
    comm_unregister(s->comm, s->registry->values);
    comm_unregister(s->comm, s->registry->fp8);
    comm_unregister(s->comm, s->registry->grads);
    gather_free(s->gather);
    bucket_pool_free(&s->slots);
    bucket_pool_free(&s->small_slots);
    device_release(s->registry->device, s->message, grad_bytes(s, s->message_elements));
    free(s->piece);
    free(s->adding);
    free(s);
}
