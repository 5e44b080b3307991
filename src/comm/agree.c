#include "comm/agree.h"

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
