/* TCP connections between the processes of a world. */
#pragma once

#include "comm/comm.h"

/* Connects each pair of processes. `socket` [processes] receives the connections, and -1 for this process. */
Err tcp_meet(const CommLaunch *, const CommOptions *, int *socket);
