/* Tests how the environment variables of launchers are read. */
#include "unit/cmocka_all.h"

#include <stdlib.h>
#include <string.h>

#include "comm/transport.h"

static const char *const NAMES[] = {"OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "PMIX_RANK",
                                    "RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_RUN_ID",
                                    "TORCHELASTIC_USE_AGENT_STORE",
                                    "TORCHELASTIC_RESTART_COUNT",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_STEP_NODELIST",
                                    "SLURM_LAUNCH_NODE_IPADDR",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "SLURM_STEP_TASKS_PER_NODE",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "LOCAL_WORLD_SIZE"};

/* Sets these variables ("NAME=value NAME=value"), and clears the variables of all launchers. */
static void set(const char *variables) {
    char *copy = strdup(variables), *rest = copy;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) unsetenv(NAMES[i]);
    for (char *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value = 0;
        setenv(word, value + 1, 1);
    }
    free(copy);
}

#define TORCH "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=node0 MASTER_PORT=29500"
#define SRUN                                                                                                 \
    "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_JOB_ID=4123456 SLURM_STEP_ID=2 "            \
    "SLURM_STEP_NODELIST="
#define MPIRUN "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2"

TEST(each_launcher_is_understood) {
    const CommLauncher mpi = comm_mpi_built() ? COMM_MPI : COMM_ALONE;
    const struct {
        const char *variables;
        CommLauncher by;
        int processes, process, local;
        const char *host;
        int port;
        const char *run;
    } cases[] = {
        {"", COMM_ALONE, 1, 0, 0, "", 0, ""},
        {"RANK=0 WORLD_SIZE=1", COMM_ALONE, 1, 0, 0, "", 0, ""},
        {TORCH, COMM_TCP, 8, 5, 1, "node0", 29500, " "},
        {"RANK=5 WORLD_SIZE=8 MASTER_ADDR=::1 MASTER_PORT=1", COMM_TCP, 8, 5, 5, "::1", 1, " "},
        {TORCH " TORCHELASTIC_RUN_ID=job TORCHELASTIC_RESTART_COUNT=2", COMM_TCP, 8, 5, 1, "node0", 29500,
         "job 2"},
        {TORCH " TORCHELASTIC_RUN_ID=job TORCHELASTIC_USE_AGENT_STORE=True", COMM_TCP, 8, 5, 1, "node0",
         29501, "job "},
        {TORCH " TORCHELASTIC_USE_AGENT_STORE=False", COMM_TCP, 8, 5, 1, "node0", 29500, " "},
        {SRUN "node07", COMM_TCP, 8, 5, 1, "node07", 18456, "4123456.2"},
        {SRUN "node[07,10-12],gpu3", COMM_TCP, 8, 5, 1, "node07", 18456, "4123456.2"},
        {SRUN "r[2-3]n[040-99]-ib,x", COMM_TCP, 8, 5, 1, "r2n040-ib", 18456, "4123456.2"},
        {SRUN "a,b MASTER_ADDR=c MASTER_PORT=77", COMM_TCP, 8, 5, 1, "c", 77, "4123456.2"},
        {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LAUNCH_NODE_IPADDR=10.0.0.9", COMM_TCP, 2, 1, 1,
         "10.0.0.9", 15000, "."},
        {"SLURM_PROCID=0 SLURM_JOB_ID=1", COMM_ALONE, 1, 0, 0, "", 0, ""}, /* a batch script without srun */
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", COMM_ALONE, 1, 0, 0, "", 0, ""},
        {SRUN "node1 " TORCH, COMM_TCP, 8, 5, 1, "node0", 29500, " "}, /* torchrun under srun */
        {SRUN "node1 WORLD_SIZE=8", COMM_TCP, 8, 5, 1, "node1", 18456, "4123456.2"},
        {MPIRUN, mpi, mpi ? 4 : 1, 3, mpi ? 2 : 0, "", 0, ""},
        {MPIRUN " " TORCH, mpi ? mpi : COMM_TCP, mpi ? 4 : 8, mpi ? 3 : 5, mpi ? 2 : 1, mpi ? "" : "node0",
         mpi ? 0 : 29500, mpi ? "" : " "},
        {MPIRUN " " TORCH " TORCHELASTIC_RUN_ID=job", COMM_TCP, 8, 5, 1, "node0", 29500,
         "job "}, /* torchrun under mpirun */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CommLaunch l;
        set(cases[i].variables);
        const Err e = comm_launch(&l);
        if (e.code && (mpi || cases[i].by)) fail_msg("%s: %s", cases[i].variables, e.msg);
        const bool same = l.by == cases[i].by && l.processes == cases[i].processes &&
                          l.process == cases[i].process && l.local == cases[i].local &&
                          !strcmp(l.host, cases[i].host) && l.port == cases[i].port &&
                          !strcmp(l.run, cases[i].run);
        if (!same)
            fail_msg("%s: by %d, process %d (%d) of %d, at %s %d, run '%s'", cases[i].variables, (int)l.by,
                     l.process, l.local, l.processes, l.host, l.port, l.run);
    }
}

TEST(a_missing_variable_is_named) {
    static const char *const CASES[][2] = {
        {"RANK=1", "RANK is set, but WORLD_SIZE is not"},
        {"WORLD_SIZE=4", "WORLD_SIZE is set, but RANK is not"},
        {"RANK=1 WORLD_SIZE=4", "RANK is set, but MASTER_ADDR is not"},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=a", "RANK is set, but MASTER_PORT is not"},
        {"RANK=4 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1", "RANK '4' and WORLD_SIZE '4' are not valid"},
        {"RANK=x WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1", "RANK 'x' and WORLD_SIZE '4' are not valid"},
        {"RANK=x WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=1", "RANK 'x' and WORLD_SIZE '1' are not valid"},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=65536", "MASTER_PORT '65536' is not a port"},
        {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "neither MASTER_ADDR nor SLURM_STEP_NODELIST is set"},
        {"SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=2 MASTER_ADDR=a", "are missing or not valid"},
        {SRUN "n[1-4", "is not a list of hosts"},
        {"PMIX_RANK=1", "did not report the number of processes"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        CommLaunch l;
        set(CASES[i][0]);
        const Err e = comm_launch(&l);
        if (e.code != ERR_USER || !strstr(e.msg, CASES[i][1])) fail_msg("%s: %s", CASES[i][0], e.msg);
        assert_int_equal(comm_processes(), -1);
    }
}

static void is_one_host(void *arg, Comm *c) {
    (void)arg;
    assert_int_equal(comm_ranks_of_host(c), 3);
}

TEST(the_ranks_of_a_host_are_known) {
    static const CommTransport HOST = {0};
    const Comm processes = {.host = &HOST, .processes_by = "TCP", .world = 32};
    const struct {
        const char *variables;
        int ranks;
    } cases[] = {
        {TORCH " LOCAL_WORLD_SIZE=4", 4},
        {TORCH, 8},
        {SRUN "a,b SLURM_STEP_TASKS_PER_NODE=16(x2)", 16},
        {SRUN "a SLURM_STEP_TASKS_PER_NODE=2 LOCAL_WORLD_SIZE=4 " TORCH, 4},
        {MPIRUN " OMPI_COMM_WORLD_LOCAL_SIZE=72", comm_mpi_built() ? 72 : 8},
        {"RANK=1 LOCAL_WORLD_SIZE=4", 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set(cases[i].variables);
        if (comm_ranks_of_host(&processes) != cases[i].ranks)
            fail_msg("%s: %d", cases[i].variables, comm_ranks_of_host(&processes));
    }
    comm_threads(3, NULL, is_one_host, NULL);
    Comm *imaginary = comm_null(32, 0);
    assert_int_equal(comm_ranks_of_host(imaginary), 8);
    comm_free(imaginary);
}
