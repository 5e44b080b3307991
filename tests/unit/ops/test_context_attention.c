/* Compares attention on context-parallel ranks (threads) with attention on one rank, for every communication
 * type and mask. Rank r of n has chunks r and 2n-1-r of 2n, which the test computes independently. */
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"
#include "unit/cmocka_all.h"
#include "unit/recording.h"

#include "kernels/ops.h"
#include "ops/attention.h"
#include "ops/context_attention.h"
#include "ops/residual.h"
#include "unit/ops/case.h"

enum {
    SAMPLES = 2,
    WIDTH = 6,
    COUNTED = 5,
    BYTES = 1 << 24,
    UNSET_BYTES = 1 << 20,
    MOST_HEADS = 16,
    BUCKETS = 8
};

typedef struct Case {
    int cp, tp;
    ContextPlan plan;
    int64_t s, g, r;     /* length of the whole sequence, kv groups of all ranks, heads per group */
    int64_t values;      /* width of the values; 0 means that of the keys */
    int64_t keys;        /* length of the other sequence that has the keys and values; 0 means
                            self-attention */
    int64_t left, right; /* window; 0: none, causal */
    int64_t chunk;       /* keys per chunk, or 0 if there is none */
    bool packed;         /* documents of 23 positions, marked by first_key */
    bool full;           /* not causal */
    double dropout, alibi;
    bool sinks, bias;           /* there are sinks, a bias of each head */
    bool padded;                /* samples have lengths */
    bool unfused, exact, twice; /* twice: two attentions have the same q, k, v, so that gradients are added */
    bool together;              /* exchange q, k and v in one operation, if possible */
    DType dtype;
} Case;

static int64_t value_width(const Case *c) { return c->values ? c->values : WIDTH; }

/* Numbers of columns of a group: the key and value; the queries, with key and value in self-attention. */
static int64_t width_of_kv(const Case *c) { return WIDTH + value_width(c); }
static int64_t width_of_qkv(const Case *c) { return c->r * WIDTH + (c->keys ? 0 : width_of_kv(c)); }

/* The full results of one run, as doubles. Each rank writes its part. */
typedef struct Outcome {
    int64_t n_y, n_qkv, n_kv, n_heads;
    double *y, *dqkv, *dkv; /* [s,b,g*r*e], [s,b,g*width], [keys,b,g*(d+e)] */
    double *dheads;         /* [cp,1+BUCKETS,g*r] dsink and dbias of each rank; [0] becomes their sum */
    int64_t count[COUNTED];
} Outcome;

static const char *const COUNTED_OPS[COUNTED] = {"ring_keys", "ring_gradients", "attention", "attention_grad",
                                                 "seq_to_heads"};

typedef struct Rank {
    const Case *c;
    Outcome *out;
    int tp_rank, cp_rank;
    int64_t rows, groups; /* number of rows and groups of this rank */
    int64_t count[COUNTED];
} Rank;

/* The position of this rank's row in a sequence of `total` positions. */
static int64_t position(const Rank *k, int64_t total, int64_t row) {
    const int n = k->c->cp;
    const int64_t chunk = total / (2 * n);
    return n == 1 ? row : (row / chunk ? 2 * n - 1 - k->cp_rank : k->cp_rank) * chunk + row % chunk;
}

/* For element e of this rank's x [rows,b,width], the index in the whole [s,b,tp*width]. */
static int64_t whole_at(const Rank *k, const Tensor *x, int64_t e) {
    const int64_t width = x->dim[2], line = e / width, all = width * k->c->tp;
    return (position(k, x->dim[0] * k->c->cp, line / SAMPLES) * SAMPLES + line % SAMPLES) * all +
           k->tp_rank * width + e % width;
}

static int bits(const Case *c) { return c->exact || dtype_is_16bit(c->dtype) ? GRID_COARSE : GRID_FINE; }

static void fill_slice(const Rank *k, Tensor *x, int which) {
    for (int64_t e = 0; e < tensor_count(x); e++)
        store_element(x, e, grid_value("context", which, whole_at(k, x, e), bits(k->c)));
}

static void gather_slice(const Rank *k, const Tensor *x, double *whole) {
    for (int64_t e = 0; e < tensor_count(x); e++) whole[whole_at(k, x, e)] = load_element(x, e);
}

static void count_op(void *arg, const OpDef *op, const Call *c) {
    Rank *k = arg;
    for (int i = 0; i < COUNTED; i++)
        if (!strcmp(op->name, COUNTED_OPS[i]))
            k->count[i] += i < 2 ? c->in[0] ? tensor_count(c->in[0]) : 0 : 1;
}

/* A parameter for this rank's heads. */
typedef struct OfHeads {
    Tensor value, main_grad;
    int64_t first; /* index of its first row among the rows of all parameters */
    double values[BUCKETS * MOST_HEADS], gradient[BUCKETS * MOST_HEADS];
} OfHeads;

/* The index of this rank's element e among all heads and rows. */
static int64_t heads_at(const Rank *k, const OfHeads *p, int64_t e) {
    const int64_t n = k->groups * k->c->r;
    return (p->first + e / n) * n * k->c->tp + k->tp_rank * n + e % n;
}

/* The memory of the gradient is not initialized, so that the test detects unwritten elements. */
static void heads_open(const Rank *k, OfHeads *p, int64_t first, int ndim) {
    const Case *c = k->c;
    const int64_t n = k->groups * c->r, dim[] = {ndim == 1 ? n : BUCKETS, n};
    p->first = first;
    p->main_grad = tensor_make(p->gradient, c->dtype == F64 ? F64 : F32, ndim, dim);
    p->main_grad.flags = TENSOR_MAIN_GRAD;
    p->value = tensor_make(p->values, c->dtype, ndim, dim);
    p->value.flags = TENSOR_NEEDS_GRAD;
    p->value.grad = &p->main_grad;
    if (c->tp > 1) p->value.spmd = spmd_with(p->value.spmd, AXIS_TP, SPMD_V);
    if (c->cp > 1) p->value.spmd = spmd_with(p->value.spmd, AXIS_CP, SPMD_R);
    for (int64_t e = 0; e < tensor_count(&p->value); e++) {
        store_element(&p->value, e, grid_value("context", 2, heads_at(k, p, e), bits(c)));
        store_element(&p->main_grad, e, NAN);
    }
}

static void heads_close(const Rank *k, const OfHeads *p) {
    double *all = k->out->dheads + k->cp_rank * k->out->n_heads;
    for (int64_t e = 0; e < tensor_count(&p->value); e++)
        all[heads_at(k, p, e)] = load_element(&p->main_grad, e);
}

/* Returns n heads of d columns that begin at column `first` of each group of x [s,b,g*width] or
 * [s,b,g,heads,d]. */
static Tensor *part_of(Tape *t, Tensor *x, int64_t width, int64_t first, int64_t n, int64_t d) {
    const int64_t groups = tensor_count(x) / (x->dim[0] * SAMPLES * width);
    return tape_view(t, x, first, 5, (int64_t[]){x->dim[0], SAMPLES, groups, n, d},
                     (int64_t[]){x->stride[0], x->stride[1], width, d, 1});
}

static Tensor *attend(Tape *t, const Rank *k, Tensor *qkv, Tensor *kv, AttentionInputs inputs) {
    const Case *c = k->c;
    const int64_t d = WIDTH, e = value_width(c), s = k->rows, b = SAMPLES, g = k->groups, r = c->r;
    if (c->together && !kv && c->cp > 1) inputs.exchanged = context_exchange(t, &qkv, g, d, c->plan);
    const int64_t width = width_of_qkv(c);
    inputs.q = part_of(t, qkv, width, 0, r, d);
    inputs.k = kv ? part_of(t, kv, d + e, 0, 1, d) : part_of(t, qkv, width, r * d, 1, d);
    inputs.v = kv ? part_of(t, kv, d + e, d, 1, e) : part_of(t, qkv, width, (r + 1) * d, 1, e);
    const AttentionAttr attr = {
        .scale = 0.4,
        .window_left = c->left ? c->left : WINDOW_OFF,
        .window_right = c->full ? WINDOW_OFF : c->right,
        .chunk_size = c->chunk,
        .first_head = k->tp_rank * g * r,
        .heads = c->g * c->r,
        .bias_max_distance = 30,
        .bias_bidirectional = c->full,
        .alibi = c->alibi,
        .dropout = {.rate = c->dropout, .seed = 3, .site = 4, .seq_total = c->keys > c->s ? c->keys : c->s}};
    Tensor *y = op_context_attention(t, &inputs, attr, c->plan, c->unfused);
    if (c->twice) y = op_add(t, y, op_context_attention(t, &inputs, attr, c->plan, c->unfused));
    return tape_view(t, y, 0, 3, (int64_t[]){s, b, g * r * e}, (int64_t[]){b * g * r * e, g * r * e, 1});
}

/* Creates this rank's rows of an input that has `width` columns per group. */
static Tensor *input_new(Tape *t, const Rank *k, int64_t rows, int64_t width, int which) {
    SpmdType type = 0;
    if (k->c->cp > 1) type = spmd_with(type, AXIS_CP, SPMD_V);
    if (k->c->tp > 1) type = spmd_with(type, AXIS_TP, SPMD_V);
    Tensor *x = tape_input(t, NULL, k->c->dtype, 3, (int64_t[]){rows, SAMPLES, k->groups * width}, type);
    fill_slice(k, x, which);
    return x;
}

/* Creates a space that is filled with NaN, so that reads of unwritten memory are detected. */
static Space *unset_space(Device *d) {
    Space *s = space_new(d, "transient", BYTES);
    void *block = space_take(s, UNSET_BYTES);
    memset(block, 0xff, UNSET_BYTES);
    space_give(s, block, UNSET_BYTES);
    return s;
}

static void run_rank(Rank *k, const Layout *layout, Comm *comm) {
    const Case *c = k->c;
    RunContext run = {
        .device = device_cpu(1), .dtype = c->dtype, .layout = layout, .comm = comm, .exact = c->exact};
    Space *slot = space_new(run.device, "slot", BYTES), *transient = unset_space(run.device);
    Tape *t = tape_new(&run, slot, transient);
    tape_begin(t, &RECORDING);
    tape_trace(t, count_op, k);
    Tensor *qkv = input_new(t, k, k->rows, width_of_qkv(c), 0), *kv = NULL;
    if (c->keys) kv = input_new(t, k, c->keys / c->cp, width_of_kv(c), 3);
    Tensor *first_key = tape_tensor(t, I64, 2, (int64_t[]){SAMPLES, k->rows});
    first_key->spmd = c->cp > 1 ? spmd_with(0, AXIS_CP, SPMD_V) : 0;
    for (int64_t i = 0; i < SAMPLES * k->rows;
         i++) /* documents begin at different positions in each sample */
        ((int64_t *)first_key->data)[i] =
            (position(k, c->s, i % k->rows) + 5 * (i / k->rows)) / 23 * 23 - 5 * (i / k->rows);
    Tensor *lengths = tape_tensor(t, I64, 1, (int64_t[]){SAMPLES});
    if (c->cp > 1) lengths->spmd = spmd_with(0, AXIS_CP, SPMD_R);
    const int64_t keys = c->keys ? c->keys : c->s;
    for (int64_t i = 0; i < SAMPLES; i++) ((int64_t *)lengths->data)[i] = i ? keys * 2 / 3 : keys / 5;
    OfHeads sink, bias;
    heads_open(k, &sink, 0, 1), heads_open(k, &bias, 1, 2);
    Tensor *y = attend(t, k, qkv, kv,
                       (AttentionInputs){.first_key = c->packed ? first_key : NULL,
                                         .lengths = c->padded ? lengths : NULL,
                                         .sink = c->sinks ? &sink.value : NULL,
                                         .bias = c->bias ? &bias.value : NULL});
    Tensor *dy = tape_tensor(t, c->dtype, 3, y->dim);
    fill_slice(k, dy, 1);
    gather_slice(k, y, k->out->y);
    tape_backward(t, y, dy, NEED_ALL);
    gather_slice(k, tape_grad(t, qkv), k->out->dqkv);
    if (kv) gather_slice(k, tape_grad(t, kv), k->out->dkv);
    if (c->sinks) heads_close(k, &sink);
    if (c->bias) heads_close(k, &bias);
    if (k->tp_rank == 0 && k->cp_rank == 0) memcpy(k->out->count, k->count, sizeof k->count);
    tape_free(t);
    space_free(slot), space_free(transient);
    device_free(run.device);
}

static void rank_main(void *arg, Comm *comm) {
    Outcome *out = ((void **)arg)[1];
    const Case *c = ((void **)arg)[0];
    const Layout layout = {
        .mesh = mesh_make(comm_world(comm), comm_rank(comm), (const int[AXES]){c->tp, c->cp, 1, 1, 1, 1, 1})};
    const int *at = layout.mesh.coordinate;
    run_rank(&(Rank){.c = c,
                     .out = out,
                     .tp_rank = at[AXIS_TP],
                     .cp_rank = at[AXIS_CP],
                     .rows = c->s / c->cp,
                     .groups = c->g / c->tp},
             &layout, comm);
}

static Outcome outcome_new(const Case *c) {
    const int64_t rows = c->s * SAMPLES * c->g;
    Outcome o = {.n_y = rows * c->r * value_width(c),
                 .n_qkv = rows * width_of_qkv(c),
                 .n_kv = c->keys * SAMPLES * c->g * width_of_kv(c),
                 .n_heads = (1 + BUCKETS) * c->g * c->r};
    o.y = mem_zero((size_t)o.n_y, sizeof *o.y);
    o.dqkv = mem_zero((size_t)o.n_qkv, sizeof *o.dqkv);
    o.dkv = mem_zero((size_t)o.n_kv + 1, sizeof *o.dkv);
    o.dheads = mem_zero((size_t)(c->cp * o.n_heads), sizeof *o.dheads);
    assert_true(c->g * c->r <= MOST_HEADS);
    return o;
}

static Outcome run_ranks(const Case *c) {
    Outcome o = outcome_new(c);
    comm_threads(c->tp * c->cp, NULL, rank_main, (void *[]){(void *)c, &o});
    for (int64_t e = o.n_heads; e < c->cp * o.n_heads; e++) o.dheads[e % o.n_heads] += o.dheads[e];
    return o;
}

static Outcome run_single(Case c) {
    c.cp = c.tp = 1;
    Outcome o = outcome_new(&c);
    run_rank(&(Rank){.c = &c, .out = &o, .rows = c.s, .groups = c.g}, NULL, NULL);
    return o;
}

static void outcome_free(Outcome *o) { free(o->y), free(o->dqkv), free(o->dkv), free(o->dheads); }

static void describe(const Case *c, const char *what, char *out, size_t n) {
    snprintf(out, n, "cp %d tp %d exchange %d %s s %d keys %d g %d r %d%s%s%s%s%s%s%s%s%s%s%s %s, %s", c->cp,
             c->tp, c->plan.exchange, c->plan.gather ? "gather" : "ring", (int)c->s, (int)c->keys, (int)c->g,
             (int)c->r, c->left ? " window" : "", c->chunk ? " chunks" : "", c->packed ? " packed" : "",
             c->full ? " full" : "", c->sinks ? " sinks" : "", c->padded ? " padded" : "",
             c->bias ? " bias" : "", c->alibi != 0 ? " alibi" : "", c->dropout > 0 ? " dropout" : "",
             c->unfused ? " unfused" : "", c->twice ? " twice" : "", dtype_name(c->dtype), what);
}

/* The bound: sums have at most s r + s + d + e terms, each at most 1. The softmax also turns the
 * absolute error of a score, |scale| d u, into a relative error. */
static void near(const Case *c, const char *what, const double *got, const double *want, int64_t n) {
    const double terms =
                     dtype_is_16bit(c->dtype) ? WIDTH : (double)(c->s * c->r + c->s + WIDTH + value_width(c)),
                 softmax = 1 + 0.4 * WIDTH;
    double worst = 0, largest = 1;
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs(got[i] - want[i]);
        largest = fmax(largest, fabs(want[i]));
        if (!(error <= worst) && !isnan(worst)) worst = error;
    }
    const double bound = 4 * sqrt(terms) * softmax * dtype_roundoff(c->dtype) * largest;
    char name[200];
    describe(c, what, name, sizeof name);
    print_message("    %-70s error %.3g, bound 4 sqrt(%g terms) (1 + scale d) u %.3g = %.3g\n", name, worst,
                  terms, largest, bound);
    if (!(worst <= bound)) fail_msg("%s: error %.3g > %.3g", name, worst, bound);
}

static void same(const Case *c, const char *what, const double *got, const double *want, int64_t n) {
    char name[200];
    describe(c, what, name, sizeof name);
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s: element %d is %.17g, not %.17g", name, (int)i, got[i], want[i]);
}

static void check(Case c) {
    Outcome got = run_ranks(&c), want = run_single(c);
    near(&c, "y", got.y, want.y, want.n_y);
    near(&c, "dqkv", got.dqkv, want.dqkv, want.n_qkv);
    near(&c, "dkv", got.dkv, want.dkv, want.n_kv);
    near(&c, "dsink, dbias", got.dheads, want.dheads, want.n_heads);
    outcome_free(&got), outcome_free(&want);
}

/* In the exact lane, results must be bitwise equal. The gradient of a parameter is a sum over ranks that is
 * not rounded to a grid, so it equals that of one rank only up to rounding. */
static void check_same(Case c) {
    Outcome got = run_ranks(&c), want = run_single(c);
    same(&c, "y", got.y, want.y, want.n_y);
    same(&c, "dqkv", got.dqkv, want.dqkv, want.n_qkv);
    same(&c, "dkv", got.dkv, want.dkv, want.n_kv);
    near(&c, "dsink, dbias", got.dheads, want.dheads, want.n_heads);
    outcome_free(&got), outcome_free(&want);
}

/* all communication types for each number of cp ranks */
static const struct {
    int cp;
    ContextPlan plan;
} WAYS[] = {
    {2, {1, false}}, {3, {1, false}}, {4, {1, false}},
    {8, {1, false}}, /* p2p */
    {2, {1, true}},  {3, {1, true}},  {4, {1, true}},
    {8, {1, true}},                                    /* allgather */
    {2, {2, false}}, {4, {4, false}}, {8, {8, false}}, /* a2a */
    {4, {2, false}}, {8, {2, false}}, {8, {4, false}},
    {8, {2, true}}, /* a2a+p2p; the last is a2a with allgather */
};
enum { N_WAYS = sizeof WAYS / sizeof *WAYS };

/* Runs the case with all communication types and 8 heads in g groups. */
static void check_ways(Case c, void (*with)(Case)) {
    for (int i = 0; i < N_WAYS; i++) {
        c.cp = WAYS[i].cp, c.plan = WAYS[i].plan, c.tp = 1, c.r = 8 / c.g;
        c.s = c.cp *
              (c.cp == 3 ? 26 : 96 / c.cp); /* chunks of 6 to 24 positions, which are smaller than tiles */
        if (c.unfused && c.plan.exchange < c.cp && !c.plan.gather)
            continue; /* unfused attention needs all keys in memory */
        with(c);
    }
}

TEST(every_way_is_one_rank) {
    static const int64_t GROUPS[] = {8, 2, 1}; /* MHA, GQA with fewer groups than ranks, MQA */
    for (int i = 0; i < 3; i++) check_ways((Case){.g = GROUPS[i]}, check);
}

TEST(masks_are_of_the_whole_sequence) {
    check_ways((Case){.g = 4, .left = 9, .packed = true}, check);
    check_ways((Case){.g = 4, .left = 40}, check);
    check_ways((Case){.g = 2, .left = 2, .right = 7}, check);
    check_ways((Case){.g = 4, .full = true, .packed = true}, check);
}

/* Chunks that are smaller than those of context parallelism, that are equal to them, and that end elsewhere. Chunks are
 * counted from the beginning of a document. */
TEST(chunks_are_of_the_whole_sequence) {
    check_ways((Case){.g = 4, .chunk = 5}, check);
    check_ways((Case){.g = 2, .chunk = 12}, check);
    check_ways((Case){.g = 8, .chunk = 41}, check);
    check_ways((Case){.g = 4, .chunk = 9, .packed = true}, check);
    check_ways((Case){.g = 2, .chunk = 7, .dropout = 0.3, .sinks = true}, check);
    check_ways((Case){.g = 1, .chunk = 31, .padded = true, .unfused = true}, check);
}

TEST(dropout_is_of_the_whole_sequence) {
    check_ways((Case){.g = 2, .dropout = 0.3, .packed = true, .left = 30}, check);
}

TEST(unfused_too) {
    check_ways((Case){.g = 4, .unfused = true, .dropout = 0.3}, check);
    check_ways((Case){.g = 1, .unfused = true, .packed = true, .left = 20}, check);
}

TEST(sinks_are_of_all_rows) {
    check_ways((Case){.g = 8, .sinks = true}, check);
    check_ways((Case){.g = 2, .sinks = true, .left = 9, .packed = true, .dropout = 0.3}, check);
    check_ways((Case){.g = 1, .sinks = true, .twice = true}, check);
    check_ways((Case){.g = 4, .sinks = true, .unfused = true, .left = 30}, check);
}

TEST(padding_is_of_the_whole_sequence) {
    check_ways((Case){.g = 4, .full = true, .padded = true}, check);
    check_ways((Case){.g = 2, .padded = true, .packed = true, .left = 40, .dropout = 0.3}, check);
    check_ways((Case){.g = 1, .full = true, .padded = true, .unfused = true}, check);
}

TEST(biases_are_of_all_rows) {
    check_ways((Case){.g = 8, .full = true, .bias = true, .padded = true}, check);
    check_ways((Case){.g = 2, .bias = true, .sinks = true, .left = 30, .dropout = 0.3}, check);
    check_ways((Case){.g = 1, .bias = true, .twice = true}, check);
    check_ways((Case){.g = 4, .full = true, .bias = true, .unfused = true}, check);
}

/* The ALiBi bias of a head depends on its index in the model, and on positions in the whole sequence. */
TEST(alibi_is_of_the_whole_model) {
    const ContextPlan plans[] = {{1, false}, {1, true}, {2, false}};
    check_ways((Case){.g = 8, .alibi = 8}, check);
    check_ways((Case){.g = 2, .alibi = 3, .sinks = true, .left = 30, .packed = true, .dropout = 0.3}, check);
    check_ways((Case){.g = 4, .alibi = 8, .full = true, .padded = true, .together = true}, check);
    check_ways((Case){.g = 2, .alibi = 8, .unfused = true}, check);
    for (int i = 0; i < 3; i++) check((Case){2, 2, plans[i], .s = 92, .g = 4, .r = 3, .alibi = 8});
}

/* The other sequence is longer or shorter than that of the queries. */
TEST(cross_attention_too) {
    check_ways((Case){.g = 8, .keys = 240, .full = true, .padded = true}, check);
    check_ways((Case){.g = 2, .keys = 48, .full = true, .padded = true, .bias = true, .dropout = 0.3}, check);
    check_ways((Case){.g = 4, .keys = 48, .full = true, .unfused = true, .twice = true}, check);
    /* Causal: in the first step of a rank, none or only some of its queries see keys. */
    check_ways((Case){.g = 4, .keys = 240}, check);
    check_ways((Case){.g = 2, .keys = 480}, check);
}

/* Queries, keys and values are exchanged in one operation, or in three if members share a group. The gradient
 * of y needs one more operation. */
TEST(one_exchange_of_all) {
    check_ways((Case){.g = 8, .together = true}, check);
    check_ways((Case){.g = 4, .together = true, .left = 9, .packed = true, .dropout = 0.3}, check);
    check_ways((Case){.g = 2, .together = true, .sinks = true, .bias = true, .padded = true, .twice = true},
               check);
    for (int together = 0; together < 2; together++)
        for (int64_t g = 2; g <= 4; g += 2) {
            const Case c = {4, 1, {4, false}, .s = 96, .g = g, .r = 2, .together = together};
            Outcome o = run_ranks(&c);
            assert_int_equal(o.count[4], together && g == 4 ? 2 : 4);
            outcome_free(&o);
        }
}

/* Values are narrower or wider than keys. */
TEST(values_have_their_own_width) {
    check_ways((Case){.g = 8, .values = 4}, check);
    check_ways((Case){.g = 2, .values = 9, .sinks = true, .left = 30, .packed = true, .dropout = 0.3}, check);
    check_ways((Case){.g = 1, .values = 4, .keys = 48, .full = true, .padded = true, .twice = true}, check);
    check_ways((Case){.g = 4, .values = 9, .unfused = true, .bias = true}, check);
    check_ways((Case){.g = 8, .values = 4, .exact = true}, check_same);
}

TEST(gradients_add_up) { check_ways((Case){.g = 2, .twice = true}, check); }

TEST(beside_tensor_parallel_ranks) {
    const ContextPlan plans[] = {{1, false}, {1, true}, {2, false}};
    for (int i = 0; i < 3; i++) check((Case){2, 2, plans[i], .s = 92, .g = 4, .r = 2, .dropout = 0.3});
    for (int i = 0; i < 3; i++) check((Case){2, 2, plans[i], .s = 92, .g = 4, .r = 2, .sinks = true});
    for (int i = 0; i < 3; i++) check((Case){2, 2, plans[i], .s = 92, .g = 4, .r = 2, .bias = true});
    check((Case){2, 4, {2, false}, .s = 36, .g = 4, .r = 2, .packed = true});
    check((Case){4, 2, {2, false}, .s = 48, .g = 2, .r = 4, .left = 17});
}

TEST(in_every_type) {
    const ContextPlan plans[] = {{1, false}, {1, true}, {4, false}, {2, false}};
    for (DType type = F32; type <= F16; type++)
        for (int i = 0; i < 4; i++)
            for (int sinks = 0; sinks < 2; sinks++)
                for (int64_t left = 0; left <= 40; left += 40)
                    check((Case){4, 1, plans[i], .s = 96, .g = 2, .r = 4, .dtype = type, .left = left,
                                 .sinks = sinks, .bias = sinks});
}

TEST(exact_lane_is_bitwise) {
    check_ways((Case){.g = 4, .exact = true, .dropout = 0.3}, check_same);
    check_ways((Case){.g = 1, .exact = true, .packed = true, .twice = true}, check_same);
    check_ways((Case){.g = 2, .exact = true, .unfused = true, .left = 30}, check_same);
    check_ways((Case){.g = 2, .exact = true, .sinks = true, .left = 30}, check_same);
    check_ways((Case){.g = 2, .exact = true, .bias = true, .padded = true, .full = true}, check_same);
    check_ways((Case){.g = 2, .exact = true, .keys = 48, .padded = true, .full = true}, check_same);
    check_ways((Case){.g = 2, .exact = true, .keys = 240}, check_same);
}

/* If a rank attends to all keys in the order of positions, its results are bitwise equal to those of one rank. */
TEST(whole_rows_are_bitwise) {
    for (DType type = F64; type <= F16; type++) {
        check_same((Case){4, 1, {4, false}, .s = 104, .g = 4, .r = 2, .dtype = type, .packed = true});
        const Case c = {4, 1, {1, true}, .s = 104, .g = 2, .r = 2, .dtype = type, .dropout = 0.3};
        Outcome got = run_ranks(&c), want = run_single(c);
        same(&c, "y", got.y, want.y, want.n_y);
        const int64_t group = (c.r + 2) * WIDTH;
        for (int64_t i = 0; i < want.n_qkv; i++)
            if (i % group < c.r * WIDTH) same(&c, "dq", &got.dqkv[i], &want.dqkv[i], 1);
        outcome_free(&got), outcome_free(&want);
    }
}

TEST(twice_is_the_same) {
    const Case c = {8, 1, {2, false}, .s = 96, .g = 2, .r = 4, .dtype = F32};
    Outcome a = run_ranks(&c), b = run_ranks(&c);
    same(&c, "y", a.y, b.y, a.n_y);
    same(&c, "dqkv", a.dqkv, b.dqkv, a.n_qkv);
    outcome_free(&a), outcome_free(&b);
}

/* ---- what a step computes ---- */

static bool sees(const AttentionAttr *a, int64_t query, int64_t key) {
    return (a->window_left == WINDOW_OFF || key >= query - a->window_left) &&
           (a->window_right == WINDOW_OFF || key <= query + a->window_right) &&
           (!a->chunk_size || key / a->chunk_size >= query / a->chunk_size);
}

static bool same_mask(const AttentionAttr *a, const AttentionAttr *b) {
    return !memcmp(&a->query, &b->query, sizeof a->query) && !memcmp(&a->key, &b->key, sizeof a->key) &&
           a->window_left == b->window_left && a->window_right == b->window_right &&
           a->chunk_size == b->chunk_size;
}

/* Checks that a query-key pair is visible in the step if and only if it is visible in the whole sequence. Returns
 * whether the slices of the step have no chunks. */
static bool check_step(const AttentionAttr *a) {
    const int64_t queries = 2 * a->query.chunk, keys = 2 * a->key.chunk;
    const RingStep s = context_ring_step(a, false), whole = context_ring_step(a, true);
    int64_t visible = 0;
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++) {
            const int64_t row = i - s.query, column = j - s.key;
            const bool want = sees(a, slice_position(&a->query, i), slice_position(&a->key, j)),
                       inside = row >= 0 && row < s.queries && column >= 0 && column < s.keys,
                       got = inside && sees(&s.attr, slice_position(&s.attr.query, row),
                                            slice_position(&s.attr.key, column));
            assert_int_equal(got, want);
            visible += want;
        }
    assert_int_equal(s.queries > 0, visible > 0);
    /* Other documents may have other chunks. */
    const bool all = visible || (a->chunk_size && whole.queries);
    assert_int_equal(whole.queries, all ? queries : 0);
    assert_int_equal(whole.keys, all ? keys : 0);
    assert_true(same_mask(&whole.attr, a));
    if (!s.attr.query.chunk) return true;
    assert_true(same_mask(&s.attr, a));
    if (visible) assert_int_equal(s.queries * s.keys, queries * keys);
    return false;
}

static AttentionAttr attr_of_step(int n, int rank, int from, int64_t rows, int64_t keys, int64_t left,
                                  int64_t right) {
    AttentionAttr a = {.scale = 1, .window_left = left, .window_right = right};
    a.query = slice_zigzag(2 * n * rows, n, rank), a.key = slice_zigzag(2 * n * keys, n, from);
    return a;
}

/* With a causal mask, a rank applies the mask only to its own keys. All of its queries see half of the keys
 * of an earlier rank, and half of its queries see all keys of a later rank. */
TEST(causal_steps_are_rectangles) {
    enum { CHUNK = 3 };
    for (int n = 2; n <= 6; n++)
        for (int r = 0; r < n; r++)
            for (int from = 0; from < n; from++) {
                const AttentionAttr causal = attr_of_step(n, r, from, CHUNK, CHUNK, WINDOW_OFF, 0),
                                    full = attr_of_step(n, r, from, CHUNK, 5, WINDOW_OFF, WINDOW_OFF);
                const AttentionAttr longest = attr_of_step(n, r, from, CHUNK, CHUNK, 2 * n * CHUNK - 1, 0);
                assert_true(check_step(&causal) && check_step(&full) && check_step(&longest));
                const RingStep s = context_ring_step(&causal, false), f = context_ring_step(&full, false);
                assert_int_equal(s.query, from > r ? CHUNK : 0);
                assert_int_equal(s.queries, from > r ? CHUNK : 2 * CHUNK);
                assert_int_equal(s.key, 0);
                assert_int_equal(s.keys, from < r ? CHUNK : 2 * CHUNK);
                assert_int_equal(s.attr.window_right, from == r ? 0 : WINDOW_OFF);
                assert_int_equal(f.queries, 2 * CHUNK);
                assert_int_equal(f.keys, 2 * 5);
            }
}

TEST(steps_compute_what_is_visible) {
    int64_t rectangles = 0, others = 0;
    for (int n = 2; n <= 5; n++)
        for (int r = 0; r < n; r++)
            for (int from = 0; from < n; from++)
                for (int64_t keys = 1; keys <= 9; keys += 4)
                    for (int64_t left = WINDOW_OFF; left <= 21; left += 2)
                        for (int64_t right = WINDOW_OFF; right <= 21; right++) {
                            const AttentionAttr a = attr_of_step(n, r, from, 4, keys, left, right);
                            const bool is_rectangle = check_step(&a);
                            rectangles += is_rectangle, others += !is_rectangle;
                        }
    assert_true(rectangles > 1000 && others > 1000);
}

/* A step that has no work for any query also has none for documents that begin anywhere. */
TEST(steps_of_chunks) {
    int64_t rectangles = 0, others = 0, none = 0;
    for (int n = 2; n <= 5; n++)
        for (int r = 0; r < n; r++)
            for (int from = 0; from < n; from++)
                for (int64_t chunk = 1; chunk <= 45; chunk++) {
                    AttentionAttr a = attr_of_step(n, r, from, 4, 4, WINDOW_OFF, 0);
                    a.chunk_size = chunk;
                    const bool is_rectangle = check_step(&a);
                    rectangles += is_rectangle, others += !is_rectangle;
                    if (context_ring_step(&a, true).queries) continue;
                    none++;
                    for (int64_t i = 0; i < 8; i++)
                        for (int64_t j = 0; j < 8; j++) {
                            const int64_t query = slice_position(&a.query, i),
                                          key = slice_position(&a.key, j);
                            for (int64_t first = 0; first <= key && key <= query; first++)
                                assert_true(attention_begin(WINDOW_OFF, chunk, query, first) > key);
                        }
                }
    assert_true(rectangles > 100 && others > 100 && none > 100);
}

/* Number of steps in which a query of rank 0 sees a key. */
static int64_t seeing_steps(const Case *c) {
    const Rank me = {.c = c};
    int64_t steps = 0;
    for (int from = 0; from < c->cp; from++) {
        const Rank other = {.c = c, .cp_rank = from};
        bool sees = false;
        for (int64_t i = 0; i < c->s / c->cp; i++)
            for (int64_t j = 0; j < c->s / c->cp; j++) {
                const int64_t distance = position(&me, c->s, i) - position(&other, c->s, j);
                sees |= distance >= 0 && (!c->left || distance <= c->left);
            }
        steps += sees;
    }
    return steps;
}

/* Each rank receives the keys and values of every other rank once, which is (n-1)/n of all. Gradients need
 * one more step to return to their ranks. Steps without visible keys must not be computed. */
TEST(the_ring_moves_what_it_must) {
    for (int cp = 2; cp <= 8; cp *= 2)
        for (int64_t left = 0; left <= 60; left += 12) {
            const Case c = {cp, 1, {1, false}, .s = 96, .g = 2, .r = 2, .left = left};
            Outcome o = run_ranks(&c);
            const int64_t own = 2 * c.s / cp * SAMPLES * c.g * WIDTH;
            assert_int_equal(o.count[0], 2 * (cp - 1) * own); /* in forward and backward */
            assert_int_equal(o.count[1], cp * own);
            assert_int_equal(o.count[2], seeing_steps(&c));
            assert_int_equal(o.count[3], seeing_steps(&c));
            outcome_free(&o);
        }
}
