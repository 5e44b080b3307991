/* Signals that ask a run to stop: SIGINT (Ctrl-C), and with --exit-signal-handler the --exit-signal. A thread
 * takes them, so each is answered at once, however long the step is. */
#ifndef ISOTRON_TRAIN_STOP_SIGNALS_H
#define ISOTRON_TRAIN_STOP_SIGNALS_H

#include "config/config.h"

typedef struct StopSignals StopSignals;

/* Before any other thread of the run starts, because they inherit the mask. Until stop_signals_defer a signal
 * ends the process at once: nothing is trained yet. */
StopSignals *stop_signals_new(const Config *);
/* From here on the first signal waits for the run, which asks stop_signals_seen, and a second one ends the
 * process. Under a launcher, which sends its processes several and kills them itself, it is ignored. */
void stop_signals_defer(StopSignals *);
/* The number of the signal that has reached this process, 0: none. Any thread may ask. */
int stop_signals_seen(const StopSignals *);
/* The number of --exit-signal. */
int stop_signals_number(const Config *);
/* From here on a signal has its default action again. */
void stop_signals_free(StopSignals *);

#endif
