/* Prints a schedule as text. */
#pragma once

#include "pipeline/simulate.h"

/* Draws a line per rank, with a column for each `unit` of time. F3 is the forward pass of microbatch 3, B3 its
 * backward pass, I3 its input gradient and W3 its weight gradient, with a letter for the chunk if there are
 * several. "-" continues a pass, and "." means that the rank is idle. */
void pipeline_draw(const PipelineSpec *, const RankSchedule *schedules, const PipelineTimes *,
                   const Simulation *, double unit, Str *out);

/* Draws the schedule for stages with equal durations: 1 for a forward pass, and 1 for each of the two
 * gradients. Prints each rank's layers and slots, and the bubble compared with its closed form. A schedule that
 * is too large to draw is a user error. */
Err pipeline_report(const PipelineSpec *, const PipelineLayout *, Str *out);
