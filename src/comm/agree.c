#include "comm/agree.h"

#include <stdlib.h>

#include "base/mem.h"

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

/* Computes minima with COMM_MAX, because max(~x) is ~min(x). */
int comm_first_difference(Comm *c, const int64_t *x, int n) {
    if (!c) return -1;
    int64_t *most = mem_alloc(2 * (size_t)n * sizeof *most);
    for (int i = 0; i < n; i++) most[i] = x[i], most[n + i] = ~x[i];
    comm_all_reduce(c, comm_everyone(c), "same", COMM_MAX, I64, most, 2 * (int64_t)n);
    int i = 0;
    while (i < n && most[i] == ~most[n + i]) i++;
    free(most);
    return i < n ? i : -1;
}
