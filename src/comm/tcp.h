/* TCP connections between the processes in a world. */
#pragma once

#include "comm/comm.h"

/* Connects each pair of processes. Sets `socket` [processes] to the connections, and to -1 for this process. */
Err tcp_meet(const CommLaunch *, const CommOptions *, int *socket);
