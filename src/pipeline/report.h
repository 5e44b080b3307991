/* Prints a schedule as text. */
#pragma once

#include "pipeline/simulate.h"

/* One line per rank, one column for each `unit` of time: F3 forward of microbatch 3, B3 backward, I3 input
 * gradient, W3 weight gradient, with a letter for the chunk if there are several; - continues, . idle. */
void pipeline_draw(const PipelineSpec *, const RankSchedule *schedules, const PipelineTimes *,
                   const Simulation *, double unit, Str *out);

/* Draws the schedule for stages of equal times (a forward and each of the two gradients take 1). Prints each rank's
 * layers and slots, and the bubble compared with its closed form. A schedule that is too large to draw is a user
 * error. */
Err pipeline_report(const PipelineSpec *, const PipelineLayout *, Str *out);
