/* A fleet's states, and the signals that change them, as in Megatron-LM (core/inference/engines/dynamic_engine.py). */
#pragma once

#include "infer/engine.h"

typedef enum FleetState {
    FLEET_RUNNING,
    FLEET_PAUSING,
    FLEET_PAUSED, /* no pass runs; requests keep their rows */
    FLEET_UNPAUSING,
    FLEET_SUSPENDING,
    FLEET_SUSPENDED, /* like FLEET_PAUSED, but engine_suspend has been called */
    FLEET_RESUMING,
    FLEET_RESUMED,
    FLEET_STOPPING,
    FLEET_STOPPED,
    FLEET_STATES
} FleetState;

typedef enum FleetSignal {
    SIGNAL_PAUSE,
    SIGNAL_UNPAUSE,
    SIGNAL_SUSPEND,
    SIGNAL_RESUME, /* leads to the paused state */
    SIGNAL_STOP,
    SIGNAL_WEIGHTS, /* all ranks load other parameters; the state does not change */
    SIGNALS
} FleetSignal;

const char *fleet_state_name(FleetState);
/* Changes the state for a signal. Returns a user error if the signal is not allowed in this state. */
Err fleet_state_signal(FleetState *, FleetSignal);
/* Returns the state after the next step boundary. */
FleetState fleet_state_settled(FleetState);
