/* Tests the tape's notifications to data parallelism. The gradient of a weight that several ops and
 * recomputed blocks use must be complete after the last of them, once per sweep. Its value must be available
 * whenever an op reads it. */
#include "unit/cmocka_all.h"
#include "unit/recording.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/philox.h"
#include "ops/linear.h"
#include "ops/residual.h"
#include "param/bucket.h"
#include "tape/tape.h"

enum { S = 3, B = 2, H = 8, WEIGHTS = 3, RANKS = 2, PASSES = 2 };
enum { SHARED, OWN, LAST }; /* SHARED is used outside of blocks and in both blocks */

typedef struct Net {
    Registry *registry;
    Param *weight[WEIGHTS];
} Net;

typedef struct Layer {
    const Net *net;
    int weight;
} Layer;

static Tensor *linear(Tape *t, const Net *n, int weight, Tensor *x) {
    return op_linear(t, x, &(LinearLayer){.w_oi = &n->weight[weight]->value});
}

static Tensor *layer(Tape *t, void *self, Tensor *x) {
    const Layer *l = self;
    return op_add(t, x, linear(t, l->net, l->weight, linear(t, l->net, SHARED, x)));
}

static Tensor *input(Tape *t, uint64_t site) {
    Tensor *x = tape_tensor(t, F64, 3, (int64_t[]){S, B, H});
    for (int i = 0; i < S * B * H; i++) ((double *)x->data)[i] = philox_normal(1, site, (uint64_t)i);
    x->spmd = spmd_with(0, AXIS_DP, SPMD_V);
    return x;
}

static void pass(Tape *t, Net *n, uint64_t site, bool blocks, bool two_sweeps) {
    Layer own = {n, OWN}, last = {n, LAST};
    tape_begin(t, &RECORDING);
    Tensor *x = linear(t, n, SHARED, input(t, site));
    x = blocks ? tape_block(t, layer, &own, x) : layer(t, &own, x);
    x = blocks ? tape_block(t, layer, &last, x) : layer(t, &last, x);
    Tensor *dy = input(t, site + 1);
    tape_backward(t, x, dy, two_sweeps ? NEED_DX : NEED_ALL);
    if (two_sweeps) tape_backward(t, x, NULL, NEED_DW);
    tape_end(t);
}

typedef struct Case {
    DataParallel data;
    bool blocks, two_sweeps;
    double grad[RANKS][WEIGHTS * H * H]; /* nonzero only in the part that a rank owns */
} Case;

static void take_grads(const Net *n, double *out) {
    const Registry *r = n->registry;
    for (int i = 0; i < WEIGHTS; i++) {
        const Param *p = n->weight[i];
        const FlatRange part = param_part_held(r, p);
        for (int64_t e = part.begin; e < part.end; e++)
            out[i * H * H + e - p->offset] =
                ((double *)r->grads)[registry_place(r, FLAT_GRADS, p->bucket, e)];
    }
}

static void run(void *arg, Comm *comm) {
    static const char *const NAMES[WEIGHTS] = {"shared", "own", "last"};
    Case *c = arg;
    const int rank = comm_rank(comm);
    const Layout layout = {.mesh = mesh_make(RANKS, rank, (const int[AXES]){1, 1, 0, 1, 1, 1, 0}),
                           .data = c->data};
    Net n = {.registry = registry_new(&layout)};
    for (int i = 0; i < WEIGHTS; i++) {
        registry_begin_unit(n.registry);
        n.weight[i] = param_add(n.registry, (ParamSpec){.name = NAMES[i],
                                                        .ndim = 2,
                                                        .dim = {H, H},
                                                        .tp_split = SPLIT_NONE,
                                                        .init = {INIT_NORMAL, 0.5}});
    }
    Device *d = device_cpu(1);
    registry_allocate(n.registry, d, F64, true);
    Sync *s = sync_new(n.registry, comm);
    registry_init(n.registry, 3);
    sync_publish(s);
    const RunContext context = {.device = d, .dtype = F64, .layout = &layout, .comm = comm, .sync = s};
    Space *slot = space_new(d, "slot", SPACE_UNPLANNED),
          *transient = space_new(d, "transient", SPACE_UNPLANNED);
    Tape *t = tape_new(&context, slot, transient);
    sync_begin(s, PASSES);
    for (int i = 0; i < PASSES; i++) pass(t, &n, (uint64_t)(10 * i + 2 * rank), c->blocks, c->two_sweeps);
    sync_finish(s);
    take_grads(&n, c->grad[rank]);
    tape_free(t), space_free(slot), space_free(transient);
    sync_free(s), registry_free(n.registry), device_free(d);
}

static double *grads(Case c) {
    double *sum = mem_zero(WEIGHTS * H * H, sizeof *sum);
    comm_threads(RANKS, NULL, run, &c);
    for (int i = 0; i < WEIGHTS * H * H; i++)
        sum[i] = c.data.stage ? c.grad[0][i] + c.grad[1][i]
                              : c.grad[0][i]; /* if gradients are sharded, the other part is 0 */
    return sum;
}

TEST(a_shared_weight_is_complete_after_its_last_use) {
    for (int stage = 0; stage < 4; stage++) {
        const Case plain = {.data = {.stage = stage, .bucket_size = 1}};
        double *want = grads(plain);
        for (int k = 1; k < 8; k++) {
            Case c = plain;
            c.blocks = k & 1, c.two_sweeps = k & 2;
            c.data.overlap_grads = c.data.overlap_values = k & 4;
            double *got = grads(c);
            if (memcmp(got, want, WEIGHTS * H * H * sizeof *want))
                fail_msg("stage %d, blocks %d, two sweeps %d, overlap %d: other gradients", stage, k & 1,
                         k >> 1 & 1, k >> 2);
            free(got);
        }
        free(want);
    }
}
