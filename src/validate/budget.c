#include "validate/budget.h"

#include <math.h>

static const double MOST_FOR_MINIMUMS = 0.75;           /* fraction of the remaining time */
static const double MOST_KEPT = 0.4, LEAST_LEFT = 0.01; /* fractions of the total time */

double stage_budget(const StageTime *stages, int n, double all, double gone, double overhead) {
    if (stages->share == 0) return stages->least;
    double least = 0, shares = 0, kept = overhead;
    for (const StageTime *s = stages; s < stages + n; s++) {
        *(s->share > 0 ? &least : &kept) += s->least;
        shares += s->share;
    }
    const double left = fmax(all - gone - fmin(kept, MOST_KEPT * all), LEAST_LEFT * all),
                 part = fmin(1, MOST_FOR_MINIMUMS * left / least);
    return part * stages->least + (left - part * least) * stages->share / shares;
}
