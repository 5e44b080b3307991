#include "validate/load.h"

#include <stdio.h>

#include "base/mem.h"

LoadText load_text(const NvmlLoad *l) {
    LoadText t = {""};
    if (l->known)
        snprintf(t.s, sizeof t.s, "clock down to %u MHz, up to %u C and %.0f W%s%s", l->sm_mhz, l->celsius,
                 l->watts, *l->limits ? "; clock lowered by: " : "", l->limits);
    return t;
}

NvmlWatch *load_watch(const StageRank *r) { return nvml_watch(r->device->id, 20); }

NvmlLoad *loads_of_ranks(const StageRank *r, NvmlWatch *watch) {
    const NvmlLoad mine = nvml_watch_end(watch);
    NvmlLoad *all = mem_zero((size_t)r->world, sizeof *all);
    stage_gather(r, &mine, all, sizeof mine);
    for (int i = 0; r->out && i < r->world; i++) {
        char name[32];
        snprintf(name, sizeof name, "load of rank %d", i);
        if (all[i].known) outcome_fact(r->out, false, name, "%s", load_text(&all[i]).s);
    }
    return all;
}
