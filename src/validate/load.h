/* The clocks, temperature and power of each rank's GPU while a stage runs. */
#pragma once

#include "measure/nvml.h"
#include "validate/stage.h"

typedef struct LoadText {
    char s[256];
} LoadText;
/* "clock down to 1320 MHz, up to 61 C and 690 W; clock lowered by: power limit"; empty if it is not known. */
LoadText load_text(const NvmlLoad *);

/* Watches this rank's GPU; NULL if that is not possible. */
NvmlWatch *load_watch(const StageRank *);
/* Collective: ends the watch of this rank's GPU and adds a fact for each rank. Returns loads[world]; the caller frees
 * them. */
NvmlLoad *loads_of_ranks(const StageRank *, NvmlWatch *);
