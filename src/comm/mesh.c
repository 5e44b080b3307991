#include "comm/mesh.h"

#include "base/fault.h"

/* The axes of each view, fastest first. Context parallelism has no expert counterpart. */
static const Axis DENSE[] = {AXIS_TP, AXIS_CP, AXIS_DP, AXIS_PP};
static const Axis EXPERT[] = {AXIS_ETP, AXIS_EP, AXIS_EDP, AXIS_PP};

static void place(Mesh *m, const Axis *view) {
    int rest = m->rank;
    for (int i = 0; i < 4; i++) {
        m->coordinate[view[i]] = rest % m->size[view[i]];
        rest /= m->size[view[i]];
    }
}

Mesh mesh_make(int world, int rank, const int size[AXES]) {
    Mesh m = {.world = world, .rank = rank};
    for (int a = 0; a < AXES; a++) m.size[a] = size[a];
    int dense = size[AXIS_TP] * size[AXIS_CP] * size[AXIS_PP],
        expert = size[AXIS_ETP] * size[AXIS_EP] * size[AXIS_PP];
    CHECK(dense > 0 && world % dense == 0, "%d ranks do not divide by tp*cp*pp = %d", world, dense);
    CHECK(expert > 0 && world % expert == 0, "%d ranks do not divide by etp*ep*pp = %d", world, expert);
    CHECK(rank >= 0 && rank < world, "rank %d of %d", rank, world);
    m.size[AXIS_DP] = world / dense;
    m.size[AXIS_EDP] = world / expert;
    place(&m, DENSE);
    place(&m, EXPERT);
    return m;
}

Group mesh_group(const Mesh *m, unsigned mask) {
    const Axis *view = mask & ~(unsigned)MASK_DENSE ? EXPERT : DENSE;
    CHECK(!(mask & ~(unsigned)MASK_DENSE) || !(mask & ~(unsigned)MASK_EXPERT),
          "mask %#x mixes dense and expert axes", mask);
    Group g = {.size = 1, .first = m->rank};
    for (int i = 0, stride = 1; i < 4; stride *= m->size[view[i]], i++) {
        if (!(mask & 1u << view[i])) continue;
        int at = m->coordinate[view[i]];
        g.rank += at * g.size;
        g.first -= at * stride;
        g.axis_size[g.n_axes] = m->size[view[i]];
        g.axis_stride[g.n_axes++] = stride;
        g.size *= m->size[view[i]];
    }
    return g;
}

int mesh_member(const Group *g, int i) {
    int rank = g->first;
    for (int a = 0; a < g->n_axes; a++) {
        rank += i % g->axis_size[a] * g->axis_stride[a];
        i /= g->axis_size[a];
    }
    return rank;
}
