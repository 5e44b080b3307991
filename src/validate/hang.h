/* The drills of the stage `hang`. */
#pragma once

#include <stdbool.h>

/* The seconds that the stage may take. exclusive: as in StageInput. */
double hang_most_seconds(bool exclusive);
