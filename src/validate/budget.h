/* Divides the time of `isotron validate` among its stages. */
#pragma once

/* A stage that has not run yet. */
typedef struct StageTime {
    /* share of the time that remains after all minimums; 0 means that the stage receives exactly its minimum */
    double share;
    double least; /* seconds */
} StageTime;

/* Returns the time in seconds for stages[0], the next of n stages. A stage whose share is 0 receives its minimum. At
 * most two fifths of the `all` seconds are reserved for stages without a share, and for the `overhead` seconds outside
 * stages. The time that remains after `gone` seconds is divided among the other stages: each stage receives its
 * minimum, plus its share of the rest. If the minimums exceed three quarters of the remaining time, each stage receives
 * only part of its minimum. If a stage exceeds its time, later stages therefore receive less time. */
double stage_budget(const StageTime *stages, int n, double all, double gone, double overhead);
