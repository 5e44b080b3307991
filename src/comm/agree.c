#include "comm/agree.h"

void comm_all_reduce(Comm *c, Group group, const char *site, CommReduction reduction, DType dtype, void *x,
                     int64_t n) {
    comm_run(c, &(CommCall){.kind = COMM_ALL_REDUCE,
                            .reduction = reduction,
                            .dtype = dtype,
                            .group = group,
                            .site = site,
                            .in = x,
                            .out = x,
                            .n = n});
}

Err comm_agree(Comm *c, Err e) {
    if (!c) return e;
    const Group g = comm_everyone(c);
    int32_t first = e.code ? g.rank : g.size;
    comm_all_reduce(c, g, "agree", COMM_MIN, I32, &first, 1);
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
