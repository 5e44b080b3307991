/* TCP connections between the processes of a world. */
#ifndef ISOTRON_COMM_TCP_H
#define ISOTRON_COMM_TCP_H

#include "comm/comm.h"

/* Connects each pair of processes. `socket` [processes]: the connections; -1 for this process. */
Err tcp_meet(const CommLaunch *, const CommOptions *, int *socket);

#endif
