/* Handles signals that request the end of a run: SIGINT (Ctrl-C) and, with --exit-signal-handler, also
 * --exit-signal. A separate thread receives the signals, so the program responds immediately, even during a long
 * step. */
#pragma once

#include "config/config.h"

typedef struct StopSignals StopSignals;

/* Call this function before any other thread of the run starts, because threads inherit the signal mask. Until
 * stop_signals_defer is called, a signal ends the process immediately, because nothing has been trained yet. */
StopSignals *stop_signals_new(const Config *);
/* From this call on, the first signal only requests a stop, and the run must poll stop_signals_seen. A second
 * signal ends the process. Under a launcher, a second signal is ignored, because launchers may repeat signals
 * and kill their processes themselves. */
void stop_signals_defer(StopSignals *);
/* Returns the number of the signal that this process has received, or 0 if there is none. Any thread may call
 * this function. */
int stop_signals_seen(const StopSignals *);
/* Returns the number of the signal that --exit-signal selects. */
int stop_signals_number(const Config *);
/* Restores the default actions of the signals. Under a launcher, later signals are ignored. */
void stop_signals_free(StopSignals *);
