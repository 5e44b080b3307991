#include "infer/fleet_state.h"

static const char *const STATES[FLEET_STATES] = {"running",    "pausing",   "paused",   "unpausing",
                                                 "suspending", "suspended", "resuming", "resumed",
                                                 "stopping",   "stopped"};
static const char *const NAMES[SIGNALS] = {"pause", "unpause", "suspend", "resume", "stop", "weights"};

/* The state after a signal, plus one; 0 if the signal is not allowed. */
#define TO(state) FLEET_##state + 1
static const unsigned char NEXT[FLEET_STATES][SIGNALS] = {
    [FLEET_RUNNING] = {[SIGNAL_PAUSE] = TO(PAUSING)},
    [FLEET_PAUSED] = {[SIGNAL_PAUSE] = TO(PAUSED),
                      [SIGNAL_WEIGHTS] = TO(PAUSED),
                      [SIGNAL_UNPAUSE] = TO(UNPAUSING),
                      [SIGNAL_SUSPEND] = TO(SUSPENDING),
                      [SIGNAL_STOP] = TO(STOPPING)},
    [FLEET_SUSPENDED] = {[SIGNAL_PAUSE] = TO(SUSPENDED),
                         [SIGNAL_WEIGHTS] = TO(SUSPENDED),
                         [SIGNAL_RESUME] = TO(RESUMING),
                         [SIGNAL_STOP] = TO(STOPPING)},
};

static const unsigned char SETTLED[FLEET_STATES] = {
    [FLEET_RUNNING] = FLEET_RUNNING,      [FLEET_PAUSING] = FLEET_PAUSED,
    [FLEET_PAUSED] = FLEET_PAUSED,        [FLEET_UNPAUSING] = FLEET_RUNNING,
    [FLEET_SUSPENDING] = FLEET_SUSPENDED, [FLEET_SUSPENDED] = FLEET_SUSPENDED,
    [FLEET_RESUMING] = FLEET_RESUMED,     [FLEET_RESUMED] = FLEET_PAUSED,
    [FLEET_STOPPING] = FLEET_STOPPED,     [FLEET_STOPPED] = FLEET_STOPPED,
};

const char *fleet_state_name(FleetState s) { return STATES[s]; }

Err fleet_state_signal(FleetState *state, FleetSignal signal) {
    const unsigned char next = NEXT[*state][signal];
    if (!next)
        return err_user("the signal '%s' is not allowed while the fleet is %s: wait for another state",
                        NAMES[signal], STATES[*state]);
    *state = (FleetState)(next - 1);
    return ERR_OK;
}

FleetState fleet_state_settled(FleetState s) { return (FleetState)SETTLED[s]; }
