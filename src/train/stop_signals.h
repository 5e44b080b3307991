/* Signals that request the end of a run: SIGINT (Ctrl-C), and with --exit-signal-handler the --exit-signal. A thread
 * receives them, so each is answered immediately, however long the step is. */
#pragma once

#include "config/config.h"

typedef struct StopSignals StopSignals;

/* Call it before any other thread of the run starts, because threads inherit the mask. Until
 * stop_signals_defer a signal ends the process immediately, because nothing is trained yet. */
StopSignals *stop_signals_new(const Config *);
/* From here on the first signal only stops the run, which polls stop_signals_seen, and a second one ends the
 * process. Under a launcher, which sends several signals and kills its processes itself, a second one is
 * ignored. */
void stop_signals_defer(StopSignals *);
/* The number of the signal that this process has received, 0: none. Any thread may call it. */
int stop_signals_seen(const StopSignals *);
/* The number of --exit-signal. */
int stop_signals_number(const Config *);
/* From here on signals have their default action again. */
void stop_signals_free(StopSignals *);
