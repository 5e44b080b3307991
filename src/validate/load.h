/* The clocks, temperature and power of each rank's GPU while a stage runs. */
#pragma once

#include "measure/nvml.h"
#include "validate/stage.h"

typedef struct LoadText {
    char s[256];
} LoadText;
/* Returns a text such as "clock down to 1320 MHz, up to 61 C and 690 W; clock lowered by: power limit". The text is
 * empty if the load is not known. */
LoadText load_text(const NvmlLoad *);

/* Starts watching this rank's GPU. Returns NULL if the GPU cannot be watched. */
NvmlWatch *load_watch(const StageRank *);
/* Stops watching this rank's GPU, and adds a fact for each rank to the result. All ranks must call this
 * function. Returns an array [world], which the caller frees. */
NvmlLoad *loads_of_ranks(const StageRank *, NvmlWatch *);
