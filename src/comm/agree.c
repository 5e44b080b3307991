#include "comm/agree.h"

Group comm_everyone(const Comm *c) {
    const int world = comm_world(c);
    return (Group){
        .size = world, .rank = comm_rank(c), .n_axes = 1, .axis_size = {world}, .axis_stride = {1}};
}

Err comm_agree(Comm *c, Err e) {
    if (!c) return e;
    const Group g = comm_everyone(c);
    int32_t first = e.code ? g.rank : g.size;
    comm_run(c, &(CommCall){.kind = COMM_ALL_REDUCE,
                            .reduction = COMM_MIN,
                            .dtype = I32,
                            .group = g,
                            .site = "agree",
                            .in = &first,
                            .out = &first,
                            .n = 1});
    if (first == g.size) return e;
    comm_run(c, &(CommCall){.kind = COMM_BROADCAST,
                            .dtype = U8,
                            .group = g,
                            .site = "agree",
                            .in = &e,
                            .out = &e,
                            .n = sizeof e,
                            .peer = first});
    return e;
}
