/* The drills of the stage `hang`. */
#pragma once

#include <stdbool.h>

/* Returns the time limit of the stage `hang` in seconds. `exclusive` has the same meaning as in
 * StageInput. */
double hang_most_seconds(bool exclusive);
