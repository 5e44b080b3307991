/* TCP connections between the processes in a world. */
#pragma once

#include "comm/comm.h"

/* Connects each pair of processes. Sets socket[i] to the connection to process i, or to -1 for this process. */
Err tcp_meet(const CommLaunch *, const CommOptions *, int *socket);
