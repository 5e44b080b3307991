/* Runs all ranks of a run. A run has a single rank, or several ranks that are threads of this process (--ranks) or
 * processes that a launcher has started. */
#pragma once

#include "base/err.h"
#include "comm/comm.h"
#include "config/config.h"
#include "tensor/device.h"

/* The main function of a rank. comm is NULL if there is only one rank. */
typedef Err RankMain(void *arg, Comm *comm);

/* Runs fn on every rank of this process, and returns the error of the lowest rank that fails. If there are
 * several processes, each process is one rank, and errors of ranks other than 0 have no message. */
Err world_run(const Config *, RankMain *fn, void *arg);
/* Sets the environment variable CUDA_DEVICE_MAX_CONNECTIONS to 32 unless its value is at least 8. The variable sets the
 * number of queues (8 by default) that the streams of a GPU share. An NCCL receive never ends if work on which the
 * sender depends is later in the same queue. CUDA reads the variable during its initialization, so world_run calls this
 * function first if several ranks use GPUs. */
void world_raise_queues(void);
/* If there are several processes, sets --ranks to the number of processes. Returns a user error if --ranks is
 * set to a different number. */
Err world_size(Config *);

/* Returns the device that a rank opens. comm may be NULL. */
DeviceSpec rank_device_spec(const Config *, const Comm *);
/* Opens a rank's device, and the transport for its memory. All ranks must call this function, and all ranks get the
 * same error. `text` describes the transport (comm_open_device). Free the device with rank_free_device. comm may be
 * NULL. */
Err rank_open_device(const Config *, Comm *, Device **, char text[200]);
void rank_free_device(Comm *, Device *); /* both may be NULL */

/* Returns the largest number of ranks in this process that share a device. Ranks that run as threads are assigned to
 * devices round-robin. comm may be NULL. */
int64_t rank_sharing(const Comm *, const Device *);

/* Returns whether this rank prints. Only rank 0 prints. */
bool rank_is_printer(const Comm *);
