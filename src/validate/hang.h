/* The drills of the stage `hang`. */
#ifndef ISOTRON_VALIDATE_HANG_H
#define ISOTRON_VALIDATE_HANG_H

#include <stdbool.h>

/* The seconds that the stage may take. exclusive: as in StageInput. */
double hang_most_seconds(bool exclusive);

#endif
