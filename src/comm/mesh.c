#include "comm/mesh.h"

#include <string.h>

#include "base/fault.h"

/* The axes of each view, in order, starting with the fastest-varying axis. The expert view has no
 * context-parallel axis. */
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
    CHECK(dense > 0 && world % dense == 0, "%d ranks are not a multiple of tp*cp*pp = %d", world, dense);
    CHECK(expert > 0 && world % expert == 0, "%d ranks are not a multiple of etp*ep*pp = %d", world, expert);
    CHECK(rank >= 0 && rank < world, "rank %d is not in a world of %d ranks", rank, world);
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
        if (m->size[view[i]] > 1) g.axes |= 1u << view[i];
    }
    return g;
}

const char *axis_name(Axis a) {
    static const char NAME[AXES][4] = {"tp", "cp", "dp", "pp", "etp", "ep", "edp"};
    return NAME[a];
}

const char *mesh_axes_text(unsigned axes, char text[32]) {
    strcpy(text, axes ? "" : "world");
    for (int a = 0; a < AXES; a++) {
        if (!(axes & 1u << a)) continue;
        if (*text) strcat(text, "-");
        strcat(text, axis_name(a));
    }
    return text;
}

int mesh_member(const Group *g, int i) {
    int rank = g->first;
    for (int a = 0; a < g->n_axes; a++) {
        rank += i % g->axis_size[a] * g->axis_stride[a];
        i /= g->axis_size[a];
    }
    return rank;
}

/* Appends an axis to the group, or extends the last axis if the new axis continues it. */
static void add_axis(Group *g, int size, int stride) {
    if (size == 1) return;
    int last = g->n_axes - 1;
    g->size *= size;
    if (last >= 0 && stride == g->axis_stride[last] * g->axis_size[last]) {
        g->axis_size[last] *= size;
        return;
    }
    g->axis_size[g->n_axes] = size;
    g->axis_stride[g->n_axes++] = stride;
}

Group group_simplify(const Group *g) {
    Group s = {.size = 1, .rank = g->rank, .first = g->first};
    for (int a = 0; a < g->n_axes; a++) add_axis(&s, g->axis_size[a], g->axis_stride[a]);
    return s;
}

static void cut(const Group *g, int size, Group *inner, Group *outer) {
    CHECK(size > 0 && g->size % size == 0, "%d members cannot be divided into blocks of %d", g->size, size);
    const Group s = group_simplify(g);
    *inner = (Group){.size = 1, .rank = g->rank % size, .first = mesh_member(g, g->rank - g->rank % size)};
    *outer = (Group){.size = 1, .rank = g->rank / size, .first = mesh_member(g, g->rank % size)};
    for (int a = 0, left = size; a < s.n_axes; a++) {
        int n = s.axis_size[a], in = left < n ? left : n;
        CHECK(n % in == 0 && left % in == 0, "a block of %d members ends inside an axis of size %d", size, n);
        add_axis(inner, in, s.axis_stride[a]);
        add_axis(outer, n / in, s.axis_stride[a] * in);
        left /= in;
    }
    inner->axes = outer->axes = g->axes;
}

Group group_inner(const Group *g, int size) {
    Group inner, outer;
    return cut(g, size, &inner, &outer), inner;
}

Group group_outer(const Group *g, int size) {
    Group inner, outer;
    return cut(g, size, &inner, &outer), outer;
}
