#include "base/mem.h"
#include "comm/backend.h"

Comm *comm_null(int world, int rank) {
    Comm *c = mem_alloc(sizeof *c);
    comm_init(c, NULL, NULL, world, rank, NULL);
    return c;
}
