/* The ranks of a run: one, threads of this process (--ranks), or the processes that a launcher has started. */
#pragma once

#include "base/err.h"
#include "comm/comm.h"
#include "config/config.h"
#include "tensor/device.h"

/* The main function of a rank; comm is NULL if it is the only one. */
typedef Err RankMain(void *arg, Comm *comm);

/* Runs fn on every rank of this process and returns the first error in the order of the ranks. If there are
 * several processes, each is one rank, and all except rank 0 return an error without a message. */
Err world_run(const Config *, RankMain *fn, void *arg);
/* Streams of a GPU share CUDA_DEVICE_MAX_CONNECTIONS queues, by default 8. If a receive of NCCL precedes, in the same
 * queue, the work that it waits for, both wait forever. This raises their number. CUDA reads the variable when it
 * starts, so world_run calls this first if several ranks use GPUs. */
void world_raise_queues(void);
/* With several processes, sets --ranks to their number. Returns a user error if the options give a different number. */
Err world_size(Config *);

/* The device of a rank. comm may be NULL. */
DeviceSpec rank_device_spec(const Config *, const Comm *);
/* Opens the device of a rank, and the transport of its memory. All ranks call it and get the same error. `text`
 * is that of comm_open_device. The device is freed with rank_free_device. comm may be NULL. */
Err rank_open_device(const Config *, Comm *, Device **, char text[200]);
void rank_free_device(Comm *, Device *); /* NULL is allowed for both */

/* The largest number of ranks of this process that share a device. Threads are assigned to devices round-robin.
 * comm may be NULL. */
int64_t rank_sharing(const Comm *, const Device *);

/* Whether this is the rank that prints, rank 0. */
bool rank_is_printer(const Comm *);
