#include <stdlib.h>

#include "comm/comm.h"

/* The value of the first of these variables that is set; -1: none. */
static int told(const char *const *names) {
    for (; *names; names++)
        if (getenv(*names)) return (int)strtol(getenv(*names), NULL, 10);
    return -1;
}

/* Open MPI; MPICH and others by PMI; launchers with PMIx only (srun --mpi=pmix). */
static int process(void) {
    return told((const char *const[]){"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL});
}

int comm_process(void) { return process() < 0 ? 0 : process(); }

int comm_processes(void) {
    if (process() < 0) return 1;
    return told((const char *const[]){"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL});
}
