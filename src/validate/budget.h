/* Divides the time of `isotron validate` among its stages. */
#pragma once

/* A stage that has not run yet. */
typedef struct StageTime {
    double
        share; /* of the time that remains after all minimums; 0: it gets its minimum, regardless of the budget */
    double least; /* seconds */
} StageTime;

/* The seconds of stages[0], the next of n. A stage without a share gets its minimum. At most two fifths of `all`
 * seconds are kept for such stages and for `overhead` seconds outside stages. The time that is left after `gone`
 * seconds is divided: each other stage gets its minimum, and its share of the rest. If the minimums together exceed
 * three quarters of it, each gets only part of its minimum. If a stage takes too long, the later stages thus get less
 * time. */
double stage_budget(const StageTime *stages, int n, double all, double gone, double overhead);
