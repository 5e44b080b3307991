/* Attention with cuDNN's fused kernels: decides which calls these kernels support, builds the plans, and runs
 * them.
 *
 * Each kv group of a sample, with the query heads of the group, is passed to cuDNN as one batch element. The
 * heads of Megatron-LM's [s, b, groups, (q.., k, v), d] are therefore evenly spaced, and q, k, v and their
 * gradients are used in place.
 *
 * The dry run builds the plans (cuda_plans_attention), at a cost of about a second per shape. Shapes without
 * a plan use Isotron's kernels, for example in generation, where each step has a new shape. Calls that cuDNN
 * does not support, or that cuDNN is known or suspected to compute wrongly, also use Isotron's kernels.
 * attention_path describes which implementation computes a call, and why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/attention_graph.cuh"

extern "C" {
#include "base/mem.h"
#include "kernels/cuda/attention/attention_lengths.h"
#include "kernels/cuda/attention/attention_path.h"
}

/* ---- a device's state ---- */

/* A plan and its data. */
typedef struct Entry {
    AttentionShape shape;
    AttentionNumbers numbers;
    Graph graph; /* has no plan if cuDNN does not support the shape */
    struct Entry *next;
} Entry;

typedef struct State {
    cudnnHandle_t handle; /* NULL until the first plan is built */
    Entry *entries;
    AttentionCounts counts;
    char path[256];
} State;

#define CUDNN_CHECK(call) cudnn_check(call, #call)
static void cudnn_check(cudnnStatus_t e, const char *call) {
    CHECK(e == CUDNN_STATUS_SUCCESS, "%s: %s", call, cudnnGetErrorString(e));
}

static void state_free(void *at) {
    State *s = (State *)at;
    for (Entry *e = s->entries, *next; e; e = next) {
        next = e->next;
        graph_free(&e->graph);
        free(e);
    }
    if (s->handle) CUDNN_CHECK(cudnnDestroy(s->handle));
    free(s);
}

static State *state_of(const Device *d) {
    CudaState *slot = &cuda_of(d)->state[CUDA_ATTENTION];
    if (!slot->at) {
        slot->at = mem_zero(1, sizeof(State));
        slot->free = state_free;
    }
    return (State *)slot->at;
}

static Entry *find(const State *s, const AttentionShape *shape) {
    Entry *e = s->entries;
    while (e && memcmp(&e->shape, shape, sizeof *shape)) e = e->next;
    return e;
}

/* Returns the shape's entry, and creates the entry if it does not exist yet. The entry has a plan if cuDNN
 * supports the shape. */
static Entry *prepare(const Device *d, const AttentionShape *shape) {
    State *s = state_of(d);
    Entry *e = find(s, shape);
    if (e) return e;
    if (!s->handle) {
        CUDNN_CHECK(cudnnCreate(&s->handle));
        CUDNN_CHECK(cudnnSetStream(s->handle, cuda_of(d)->stream));
    }
    e = (Entry *)mem_zero(1, sizeof *e);
    e->shape = *shape;
    e->numbers = attention_numbers(shape);
    attention_graph(shape, &e->graph);
    graph_plan(&e->graph, s->handle);
    e->next = s->entries;
    s->entries = e;
    return e;
}

/* ---- what a call requests ---- */

typedef struct Operands {
    const Tensor *q, *k, *v, *y, *lse, *first_key, *lengths, *bias;
    const Tensor *dy, *dq, *dk, *dv; /* used only in the backward pass */
} Operands;

/* in the backward pass, in[3] is v, with 5 dimensions */
static bool is_backward(const Call *c) { return c->in[3] && c->in[3]->ndim == 5; }

static Operands operands(const Call *c) {
    Tensor *const *in = c->in, *const *out = c->out;
    const Operands forward = {in[0], in[1], in[2], out[0], out[1], in[3],
                              in[4], in[5], NULL,  NULL,   NULL,   NULL};
    const Operands backward = {in[1], in[2], in[3], in[4],  in[5],  in[6],
                               in[7], in[8], in[0], out[0], out[1], out[2]};
    return is_backward(c) ? backward : forward;
}

/* Returns the reason why cuDNN cannot use a tensor. If cuDNN can use the tensor, returns NULL and sets `to` to
 * the tensor's strides. cuDNN needs contiguous columns in each head, and evenly spaced (sample, group)
 * pairs. */
static const char *refuse_tensor(const Tensor *x, int dtype, HeadStrides *to) {
    if (x->dtype != dtype) return "operands of different types";
    if (x->dim[4] % 8 || x->dim[4] > 256) return "head sizes that are not multiples of 8 up to 256";
    const bool pairs = x->dim[1] > 1 && x->dim[2] > 1;
    if (pairs && x->stride[1] != x->dim[2] * x->stride[2])
        return "(sample, group) pairs that are not evenly spaced";
    /* A dimension with one element can have any stride. */
    const int64_t any = x->dim[4];
    to->batch = x->dim[2] > 1 ? x->stride[2] : x->dim[1] > 1 ? x->stride[1] : any;
    to->head = x->dim[3] > 1 ? x->stride[3] : any;
    to->row = x->dim[0] > 1 ? x->stride[0] : any;
    /* With a stride of 4 elements, cuDNN accepts the call, but returns wrong results or faults. */
    if (to->batch % 8 || to->head % 8 || to->row % 8 || !aligned_16(x->data))
        return "rows that do not begin at multiples of 16 bytes";
    return NULL;
}

static const char *refuse_tensors(const Operands *o, AttentionShape *a) {
    const Tensor *const x[] = {o->q, o->k, o->v, o->y, o->dy, o->dq, o->dk, o->dv};
    HeadStrides *const to[] = {&a->q, &a->k, &a->v, &a->y, &a->dy, &a->dq, &a->dk, &a->dv};
    const char *why = NULL;
    for (int i = 0; i < (a->backward ? 8 : 4) && !why; i++) {
        if (!x[i])
            why = "a gradient that is not needed";
        else if (i >= 5 && accumulates(x[i]))
            why = "gradients that are added to existing values";
        else
            why = refuse_tensor(x[i], o->q->dtype, to[i]);
    }
    if (!why &&
        (!o->lse || o->lse->dtype != F32 || !tensor_is_contiguous(o->lse) || !aligned_16(o->lse->data)))
        why = "an lse that is not F32 in one piece";
    return why;
}

/* Checks the mask: query i attends to keys [i + shift - window_left, i + shift + window_right]. */
static const char *refuse_mask(const AttentionAttr *at, AttentionShape *a) {
    if (at->query.chunk || at->key.chunk) return "positions in chunks (context parallelism)";
    const int64_t shift = at->query.first - at->key.first;
    const int64_t last_query = at->query.first + a->s - 1;
    if (at->chunk_size && attention_begin(WINDOW_OFF, at->chunk_size, last_query, 0) > at->key.first)
        return "keys in chunks (--attention-chunk-size)";
    const int64_t last = shift + at->window_right;            /* the first query's last key */
    const int64_t first = a->s - 1 + shift - at->window_left; /* the last query's first key */
    const bool ends = at->window_right != WINDOW_OFF && last < a->t - 1,
               begins = at->window_left != WINDOW_OFF && first > 0;
    /* For a query that attends to no key, cuDNN's results would be NaN, but Isotron's are 0. */
    if ((ends && last < 0) || (begins && first >= a->t)) return "a query that attends to no key";
    if (!ends && !begins) return NULL;
    if (!ends) return "a window without a causal mask";
    if (last != 0 && last != a->t - a->s)
        return "a causal mask that is not aligned with the first or the last key";
    a->mask = last == 0 ? MASK_TOP_LEFT : MASK_BOTTOM_RIGHT;
    if (!begins) return NULL;
    if (at->window_right != 0 || shift != 0 || a->s > a->t)
        return "a window that does not end at the position of the query";
    a->window = at->window_left + 1;
    return NULL;
}

/* Refuses calls that this version of cuDNN computes wrongly, and calls that have not been compared with a
 * reference. */
static const char *refuse_version(const Cuda *cuda, const AttentionShape *a) {
    const size_t version = cudnnGetVersion();
    if (cuda->capability != 90) return "cuDNN's graphs have been tested only on sm_90";
    if (version < 91400)
        return "cuDNN is older than 9.14.0 (9.10.0 and 9.10.1 are wrong, the others have not been tested)";
    if (version == 91400 && a->window) return "cuDNN 9.14.0 is wrong for windows";
    if (version <= 91500 && a->backward && a->t % 128)
        return "cuDNN up to 9.15.0 needs a padding mask for keys that are not a multiple of 128";
    return NULL;
}

/* cuDNN's deterministic backward pass also computes the scores outside the window; the nondeterministic pass
 * does not. Without a window, Isotron's kernels are two thirds as fast as cuDNN's. With a window, Isotron's kernels are
 * faster, at least if a query attends to a quarter of the keys or less. */
static bool is_narrow(const AttentionShape *a) {
    return a->backward && !a->any_order && a->window && 4 * a->window <= a->t;
}

/* Returns the reason why cuDNN does not support a call. If cuDNN supports the call, returns NULL and sets `a`
 * to the call's shape. */
static const char *refuse(const Call *c, AttentionShape *a) {
    const Operands o = operands(c);
    const AttentionAttr *at = (const AttentionAttr *)c->attr;
    memset(a, 0, sizeof *a);
    if (!dtype_is_16bit((DType)o.q->dtype)) return "arithmetic in more than 16 bits";
    a->backward = is_backward(c), a->any_order = a->backward && c->device->any_order;
    a->type = o.q->dtype == BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    a->batch = o.q->dim[1] * o.q->dim[2], a->heads = o.q->dim[3];
    a->s = o.q->dim[0], a->t = o.k->dim[0], a->d = o.q->dim[4], a->e = o.v->dim[4];
    a->scale = at->scale;
    if (a->batch < 1 || a->batch > 65535 || a->heads < 1 || a->heads > 65535)
        return "no heads, or more than 65535 (sample, group) pairs";
    if (a->s < 2 || a->t < 2 || a->t > INT32_MAX / 2 || a->s > INT32_MAX / 2)
        return "less than two queries or keys";
    if (a->e > a->d) return "values that are wider than keys";
    if (at->dropout.rate > 0) return "dropout";
    if (at->softcap != 0) return "a soft cap on the scores";
    /* cuDNN's ragged sequences would require a maximum number of documents, but only the GPU knows the number of
     * documents. */
    if (o.first_key) return "documents packed into a sequence";
    if (o.bias) return "a relative position bias";
    if (at->alibi != 0) return "ALiBi";
    const char *why = refuse_tensors(&o, a);
    if (!why) why = refuse_mask(at, a);
    a->padded = o.lengths != NULL;
    /* A padding query might attend to no key, for example if there are more queries than keys. */
    if (!why && a->padded && (a->window || a->mask == MASK_BOTTOM_RIGHT))
        why = "padded keys with a window or an offset of the mask";
    if (!why) why = refuse_version(cuda_of(c->device), a);
    if (!why && is_narrow(a))
        why = "a narrow window, which cuDNN's deterministic backward pass does not exploit";
    return why;
}

/* ---- division into parts ---- */

static int64_t round_up(int64_t n, int64_t to) { return ceil_div(n, to) * to; }

/* Returns how many bytes of scratch memory the backward pass needs for one (sample, group) pair: for ds or
 * for the sums of dq in F32, and for each head's dk and dv. */
static int64_t bytes_of_one(const AttentionShape *a) {
    const int64_t ds = 2 * round_up(a->s, 64) * round_up(a->t, 128), sums = 4 * a->s * a->d,
                  gradients = a->heads > 1 ? 2 * a->t * (a->d + a->e) : 0;
    return a->heads * ((a->any_order ? sums : ds) + gradients);
}

/* Returns the number of (sample, group) pairs that are processed in one part. The backward pass is
 * deterministic, unless the device allows a nondeterministic order of sums. A deterministic backward pass needs
 * scratch memory that is quadratic in the sequence length. A part may therefore use only 1/64 of the GPU's
 * memory (2 GiB on an H200). Parts of this size are still large enough to keep the GPU busy. A single pair may
 * use 1/8 of the memory (on an H200: 4 heads of 46k positions). Larger pairs use Isotron's kernels, which need
 * only linear scratch memory. The result depends only on sizes, so every run makes the same decision. The
 * nondeterministic backward pass needs only linear memory, but has the same limits. */
static int64_t pairs_at_a_time(const Cuda *cuda, const AttentionShape *a) {
    const int64_t one = bytes_of_one(a), memory = (int64_t)cuda->memory;
    if (!a->backward) return a->batch;
    if (one > memory / 8) return 0;
    const int64_t most = memory / 64 / one < 1 ? 1 : memory / 64 / one;
    if (most >= a->batch) return a->batch;
    /* each part's lse must begin at a multiple of 16 bytes */
    if (a->heads * a->s % 4) return most / 4 * 4;
    return ceil_div(a->batch, ceil_div(a->batch, most));
}

/* The parts of a call. Each part except the last consists of `pairs` pairs. */
typedef struct Work {
    int64_t pairs, parts;
    Entry *part, *last;
} Work;

static Entry *entry_of(const Device *d, AttentionShape shape, int64_t batch, bool make) {
    shape.batch = batch;
    return make ? prepare(d, &shape) : find(state_of(d), &shape);
}

/* Returns the reason why cuDNN does not support a call. If cuDNN supports the call, returns NULL and sets `w`
 * to the call's parts. */
static const char *arrange(const Call *c, bool make, Work *w) {
    AttentionShape shape;
    const char *why = refuse(c, &shape);
    if (why) return why;
    w->pairs = pairs_at_a_time(cuda_of(c->device), &shape);
    if (!w->pairs) return "a backward pass whose scratch memory is too large";
    w->parts = ceil_div(shape.batch, w->pairs);
    w->part = entry_of(c->device, shape, w->pairs, make);
    w->last = entry_of(c->device, shape, shape.batch - (w->parts - 1) * w->pairs, make);
    if (!w->part || !w->last) return "a shape for which no dry run has made a plan";
    if (!w->part->graph.plan) return w->part->graph.why;
    return w->last->graph.plan ? NULL : w->last->graph.why;
}

/* ---- running ---- */

/* Byte offsets of the parts of the scratch memory: cuDNN's workspace at 0, then delta, the sums of dq, and the
 * lengths. cuDNN 9.6 and later versions clear the sums of dq. */
typedef struct Scratch {
    size_t delta, dq_sums, lengths, bytes;
} Scratch;
static int64_t bytes_of_lengths(const AttentionShape *a) {
    return round_up(a->batch * (int64_t)sizeof(int32_t), SPACE_ALIGN);
}
static Scratch scratch_of(const Entry *e) {
    const AttentionShape *a = &e->shape;
    const int64_t floats = a->backward ? a->batch * a->heads * a->s * (int64_t)sizeof(float) : 0;
    Scratch x;
    x.delta = (size_t)round_up((int64_t)e->graph.workspace, SPACE_ALIGN);
    x.dq_sums = x.delta + (size_t)round_up(floats, SPACE_ALIGN);
    x.bytes = a->any_order ? x.dq_sums + (size_t)(floats * a->d) : x.delta + (size_t)floats;
    x.lengths = (size_t)round_up((int64_t)x.bytes, SPACE_ALIGN);
    if (a->padded) x.bytes = x.lengths + (size_t)(2 * bytes_of_lengths(a));
    return x;
}

static void *from_pair(const Tensor *x, HeadStrides stride, int64_t first) {
    return x ? (char *)x->data + (size_t)(first * stride.batch) * dtype_size((DType)x->dtype) : NULL;
}

static PaddedPairs pairs_of(const Call *c, const AttentionShape *a, int64_t first) {
    const Operands o = operands(c);
    const PaddedPairs p = {
        ids_of(o.lengths), ((const AttentionAttr *)c->attr)->key, first, a->batch, o.q->dim[2], a->s, a->t};
    return p;
}

static void clear_blind(const Call *c, const PaddedPairs *p) {
    const Operands o = operands(c);
    const Tensor *const backward[] = {o.dq, o.dk, o.dv}, *const forward[] = {o.y, NULL, NULL};
    for (int i = 0; i < 3; i++) attention_clear_blind(c, p, is_backward(c) ? backward[i] : forward[i]);
    if (!is_backward(c)) attention_clear_blind_lse(c, p, o.lse);
}

static void run_part(const Call *c, Entry *e, int64_t first) {
    const AttentionShape *a = &e->shape;
    const Operands o = operands(c);
    const HeadStrides of_lse = {a->heads * a->s, a->s, 1};
    const Scratch place = scratch_of(e);
    char *scratch = (char *)cuda_scratch(c->device, place.bytes);
    void *at[GRAPH_IDS] = {NULL};
    at[AT_Q] = from_pair(o.q, a->q, first), at[AT_K] = from_pair(o.k, a->k, first);
    at[AT_V] = from_pair(o.v, a->v, first), at[AT_Y] = from_pair(o.y, a->y, first);
    at[AT_DQ] = from_pair(o.dq, a->dq, first), at[AT_DK] = from_pair(o.dk, a->dk, first);
    at[AT_DV] = from_pair(o.dv, a->dv, first), at[AT_DY] = from_pair(o.dy, a->dy, first);
    at[AT_LSE] = from_pair(o.lse, of_lse, first);
    at[AT_DELTA] = scratch + place.delta, at[AT_DQ_SUMS] = scratch + place.dq_sums;
    at[AT_SCALE] = &e->numbers.scale, at[AT_ONE] = &e->numbers.one;
    at[AT_HIDDEN] = at[AT_HIDDEN_BEFORE] = at[AT_HIDDEN_PADDING] = &e->numbers.hidden;
    at[AT_WINDOW] = &e->numbers.window;
    at[AT_KEYS] = &e->numbers.keys, at[AT_QUERIES] = &e->numbers.queries;
    const PaddedPairs pairs = pairs_of(c, a, first);
    if (a->padded) {
        char *lengths = scratch + place.lengths;
        at[AT_QUERY_LENGTHS] = lengths, at[AT_KEY_LENGTHS] = lengths + bytes_of_lengths(a);
        attention_put_lengths(c, &pairs, (int32_t *)at[AT_QUERY_LENGTHS], (int32_t *)at[AT_KEY_LENGTHS]);
    }
    graph_run(&e->graph, state_of(c->device)->handle, at, scratch);
    if (a->padded) clear_blind(c, &pairs);
}

static bool run(const Call *c) {
    State *s = state_of(c->device);
    Work w;
    if (arrange(c, false, &w)) {
        s->counts.own++;
        return false;
    }
    for (int64_t i = 0; i < w.parts; i++) run_part(c, i + 1 < w.parts ? w.part : w.last, i * w.pairs);
    s->counts.cudnn++;
    return true;
}

bool attention_cudnn(const Call *c) { return run(c); }
bool attention_grad_cudnn(const Call *c) { return run(c); }

extern "C" size_t cuda_plans_attention(const Call *c) {
    Work w;
    return arrange(c, true, &w) ? attention_scratch(c) : scratch_of(w.part).bytes;
}

extern "C" size_t cuda_plans_attention_grad(const Call *c) {
    Work w;
    if (arrange(c, true, &w)) return attention_grad_scratch(c);
    const size_t part = scratch_of(w.part).bytes, last = scratch_of(w.last).bytes;
    return part > last ? part : last;
}

static const char *form(const AttentionShape *a) {
    return !a->backward ? "" : a->any_order ? ", not deterministic" : ", deterministic";
}

const char *attention_path(const Call *c) {
    const size_t version = cudnnGetVersion();
    Work w;
    if (!cuda_of(c->device)) return "not on a GPU";
    char *path = state_of(c->device)->path;
    const size_t room = sizeof state_of(c->device)->path;
    const char *why = arrange(c, false, &w);
    if (why)
        snprintf(path, room, "own kernels: %s", why);
    else
        snprintf(path, room,
                 "cuDNN %zu.%zu.%zu%s, %lld part%s of %lld x %lld heads, %zu bytes of scratch memory",
                 version / 10000, version / 100 % 100, version % 100, form(&w.part->shape),
                 (long long)w.parts, w.parts > 1 ? "s" : "", (long long)w.pairs,
                 (long long)w.part->shape.heads, scratch_of(w.part).bytes);
    return path;
}

AttentionCounts attention_counts(const Device *d) {
    const AttentionCounts none = {0, 0};
    return cuda_of(d) ? state_of(d)->counts : none;
}
