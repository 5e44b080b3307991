/* Draws a simulated step: a row for the ops of each pipeline stage's first rank, and a row for each of its channels. */
#pragma once

#include "plan/step_trace.h"

typedef struct Timeline {
    SimSpan *span; /* [n], from SimStep.draw */
    int64_t n, room;
} Timeline;

/* Adds a span; `arg` is a Timeline. */
void timeline_add(void *arg, const SimSpan *);
void timeline_free(Timeline *);
/* Checks that the name ends in .svg or .json. */
Err timeline_check(const char *path);
/* Writes the spans of the trace's last step, as an SVG or as a trace that Chrome and Perfetto open. `title` is a
 * sentence. */
Err timeline_write(const Timeline *, const Trace *, const char *title, const char *path);
