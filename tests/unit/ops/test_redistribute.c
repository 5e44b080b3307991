/* Tests each row of the table in ops/redistribute.h, forward and backward, along each dimension, on three
 * ranks, with one and two consumers of x. All values are small integers, so that sums are exact. */
#include "tape/tape_backward.h"
#include "unit/cmocka_all.h"
#include "unit/recording.h"

#include "base/fault.h"
#include "comm/comm.h"
#include "ops/redistribute.h"
#include "ops/residual.h"
#include "unit/ops/elements.h"

enum { RANKS = 3, ROWS = 6, COLUMNS = 12, SPACE = 1 << 20 };

typedef struct Case {
    Spmd from, to;
    int dim, consumers;
} Case;

/* Element (row, column) of the tensor `what` on a rank. */
static double value(int what, int rank, int64_t row, int64_t column) {
    return (double)((what + 1) * (1 + (7 * row + 5 * column + 11 * rank) % 13));
}

/* The element of a rank. For types I and R, it is equal on all ranks. */
static double on_rank(int what, Spmd type, int rank, int64_t row, int64_t column) {
    return value(what, type == SPMD_V || type == SPMD_P ? rank : 0, row, column);
}

/* The shape of a rank's part. */
static void dims_of(Spmd type, int dim, int64_t d[2]) {
    d[0] = ROWS, d[1] = COLUMNS;
    if (type == SPMD_V) d[dim] /= RANKS;
}

/* An element of the global tensor: the sum over ranks for P, or the concatenated parts for V. */
static double whole(int what, Spmd type, int dim, int64_t row, int64_t column) {
    int64_t d[2], at[] = {row, column};
    dims_of(type, dim, d);
    const int rank = type == SPMD_V ? (int)(at[dim] / d[dim]) : 0;
    at[dim] %= d[dim];
    double sum = on_rank(what, type, rank, at[0], at[1]);
    for (int r = 1; type == SPMD_P && r < RANKS; r++) sum += on_rank(what, type, r, row, column);
    return sum;
}

/* The element that a rank must have after the tensor `what` was redistributed from type `from` to `to`. */
static double moved(int what, Spmd from, Spmd to, int dim, int rank, int64_t row, int64_t column) {
    int64_t d[2], at[] = {row, column};
    dims_of(to, dim, d);
    if (to == SPMD_V) at[dim] += rank * d[dim];
    if (to == SPMD_P) { /* only V can become P */
        dims_of(from, dim, d);
        if (at[dim] / d[dim] != rank) return 0;
    }
    return whole(what, from, dim, at[0], at[1]);
}

/* Does not use spmd_dual, because this test also checks that. */
static Spmd dual(Spmd type) { return type == SPMD_R ? SPMD_P : type == SPMD_P ? SPMD_R : type; }

static void set(Tensor *x, int what, Spmd type, int rank) {
    for (int64_t e = 0; e < tensor_count(x); e++)
        store_element(x, e, on_rank(what, type, rank, e / x->dim[1], e % x->dim[1]));
}

static void check(const char *name, const Tensor *x, int what, Spmd from, Spmd to, const Case *c, int rank,
                  int times) {
    for (int64_t e = 0; e < tensor_count(x); e++) {
        const double wanted = times * moved(what, from, to, c->dim, rank, e / x->dim[1], e % x->dim[1]);
        CHECK(load_element(x, e) == wanted, "%s from %c to %c along %d, rank %d, element %lld: %g and not %g",
              name, spmd_letter(c->from), spmd_letter(c->to), c->dim, rank, (long long)e, load_element(x, e),
              wanted);
    }
}

static void rank_main(void *arg, Comm *comm) {
    const Case *c = arg;
    const int rank = comm_rank(comm),
              size[AXES] = {[AXIS_TP] = RANKS, [AXIS_CP] = 1, [AXIS_PP] = 1, [AXIS_ETP] = 1, [AXIS_EP] = 1};
    const Layout layout = {.mesh = mesh_make(RANKS, rank, size)};
    Device *device = device_cpu(1);
    RunContext run = {.device = device, .dtype = F64, .layout = &layout, .comm = comm};
    Space *slot = space_new(device, "slot", SPACE), *transient = space_new(device, "transient", SPACE);
    Tape *t = tape_new(&run, slot, transient);
    int64_t dim[2];
    tape_begin(t, &RECORDING);
    dims_of(c->from, c->dim, dim);
    Tensor *x = tape_input(t, NULL, F64, 2, dim, spmd_with(0, AXIS_TP, c->from));
    set(x, 0, c->from, rank);
    Tensor *y = op_redistribute(t, x, AXIS_TP, c->to, c->dim);
    check("forward", y, 0, c->from, c->to, c, rank, 1);
    for (int i = 1; i < c->consumers; i++) y = op_add(t, y, op_redistribute(t, x, AXIS_TP, c->to, c->dim));
    dims_of(c->to, c->dim, dim);
    Tensor *dy = tape_tensor(t, F64, 2, dim);
    set(dy, 1, dual(c->to), rank);
    tape_backward(t, y, dy, NEED_ALL);
    check("backward", tape_grad(t, x), 1, dual(c->to), dual(c->from), c, rank, c->consumers);
    tape_free(t);
    space_free(slot), space_free(transient);
    device_free(device);
}

TEST(every_row_of_the_table) {
    static const Spmd ROW[][2] = {{SPMD_I, SPMD_R}, {SPMD_P, SPMD_I}, {SPMD_P, SPMD_R}, {SPMD_V, SPMD_R},
                                  {SPMD_P, SPMD_V}, {SPMD_V, SPMD_I}, {SPMD_I, SPMD_V}, {SPMD_R, SPMD_V}};
    for (size_t i = 0; i < sizeof ROW / sizeof *ROW; i++)
        for (int dim = 0; dim < 2; dim++)
            for (int consumers = 1; consumers <= 2; consumers++) {
                Case c = {ROW[i][0], ROW[i][1], dim, consumers};
                comm_threads(RANKS, NULL, rank_main, &c);
            }
}
