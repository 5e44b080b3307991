/* Reads the environment variables that launchers set.
 *
 *   mpirun    OMPI_COMM_WORLD_* (Open MPI), PMI_* (MPICH), PMIX_RANK (srun --mpi=pmix)
 *   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; torchrun's store may listen on MASTER_PORT
 *   srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST, SLURM_JOB_ID */
#include <stdlib.h>
#include <string.h>

#include "comm/transport.h"

typedef const char *const Names[4];

static const Names MPI_RANKS = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"},
                   MPI_SIZES = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"},
                   MPI_LOCALS = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"},
                   SLURM_RANKS = {"SLURM_PROCID"}, SLURM_SIZES = {"SLURM_STEP_NUM_TASKS"},
                   SLURM_LOCALS = {"SLURM_LOCALID"};

static const char *text_of(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* Returns the variable's value, which is at least 0. Returns -1 if the variable is unset or invalid. */
static int number_of(const char *name) {
    const char *text = text_of(name);
    char *end;
    const long x = text ? strtol(text, &end, 10) : -1;
    return text && !*end && x >= 0 && x <= 1 << 20 ? (int)x : -1;
}

/* Returns the value of the first listed variable that is set. */
static int first_of(Names names) {
    for (int i = 0; i < 4 && names[i]; i++)
        if (text_of(names[i])) return number_of(names[i]);
    return -1;
}

/* Returns the number of processes on this host, or 0 if it is unknown. In srun's list "8(x2),4", the first number
 * belongs to the first host. */
static int processes_of_host(void) {
    static const Names NAMES = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                "SLURM_STEP_TASKS_PER_NODE"};
    for (int i = 0; i < 4; i++)
        if (text_of(NAMES[i])) return atoi(text_of(NAMES[i]));
    return 0;
}

/* Reads the variables. Stores the process index in `out` even if the other variables are invalid, because only
 * process 0 reports errors. */
static CommLaunch launch_of(CommLauncher by, Names ranks, Names sizes, Names locals, CommLaunch *out) {
    CommLaunch l = {
        .by = by, .processes = first_of(sizes), .process = first_of(ranks), .of_host = processes_of_host()};
    const int local = first_of(locals);
    l.local = local >= 0 ? local : l.process;
    out->process = l.process > 0 ? l.process : 0;
    return l;
}

static Err copy_host(CommLaunch *l, const char *host, size_t length) {
    if (length >= sizeof l->host)
        return err_user("MASTER_ADDR: the host name has %zu characters, but the limit is %zu: use a shorter "
                        "name or an IP address",
                        length, sizeof l->host - 1);
    memcpy(l->host, host, length);
    l->host[length] = 0;
    return ERR_OK;
}

/* ---- torchrun ---- */

static Err by_torchrun(CommLaunch *out) {
    static const char *const NEEDED[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    CommLaunch l = launch_of(COMM_TCP, (Names){"RANK"}, (Names){"WORLD_SIZE"}, (Names){"LOCAL_RANK"}, out);
    if (l.processes == 1 && (l.process == 0 || !text_of("RANK")))
        return ERR_OK; /* a single process needs no address */
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++)
        if (!text_of(NEEDED[i]))
            return err_user(
                "%s is set, but %s is not: processes that a launcher starts need RANK, WORLD_SIZE, "
                "MASTER_ADDR and MASTER_PORT; without a launcher, unset these variables and use --ranks",
                text_of("RANK") ? "RANK" : "WORLD_SIZE", NEEDED[i]);
    /* If torchrun's agent has a store, the store listens on MASTER_PORT, so process 0 uses the next port. */
    const char *agent = text_of("TORCHELASTIC_USE_AGENT_STORE"), *run = text_of("TORCHELASTIC_RUN_ID"),
               *turn = text_of("TORCHELASTIC_RESTART_COUNT");
    l.port = number_of("MASTER_PORT") + (agent && !strcmp(agent, "True"));
    snprintf(l.run, sizeof l.run, "%s %s", run ? run : "", turn ? turn : "");
    if (l.processes < 1 || l.process < 0 || l.process >= l.processes)
        return err_user("RANK '%s' and WORLD_SIZE '%s' are not valid: RANK must be from 0 to WORLD_SIZE - 1",
                        text_of("RANK"), text_of("WORLD_SIZE"));
    if (l.port < 1 || l.port > 65535)
        return err_user("MASTER_PORT '%s' is not a port: use a number from 1 to 65535",
                        text_of("MASTER_PORT"));
    *out = l;
    return copy_host(out, text_of("MASTER_ADDR"), strlen(text_of("MASTER_ADDR")));
}

/* ---- srun ---- */

/* Returns the first host in a list: "node07" for "node[07,10-12],gpu3". Process 0 runs on this host. */
static Err first_host(CommLaunch *l, const char *list) {
    char name[sizeof l->host];
    size_t n = 0;
    for (const char *c = list; *c && *c != ',' && n < sizeof name; c++) {
        if (*c != '[') {
            name[n++] = *c;
            continue;
        }
        for (c++; *c && !strchr(",-]", *c) && n < sizeof name; c++) name[n++] = *c;
        c = strchr(c, ']');
        if (!c) return err_user("SLURM_STEP_NODELIST '%s' is not a list of hosts: set MASTER_ADDR", list);
    }
    return copy_host(l, name, n);
}

/* Derives a port from the job number, as PyTorch Lightning does, so that jobs on one host rarely use the same port. */
static int port_of_job(void) {
    const char *job = text_of("SLURM_JOB_ID");
    const size_t digits = job ? strlen(job) : 0;
    return 15000 + (job ? atoi(job + (digits > 4 ? digits - 4 : 0)) : 0);
}

static Err by_srun(CommLaunch *out) {
    CommLaunch l = launch_of(COMM_TCP, SLURM_RANKS, SLURM_SIZES, SLURM_LOCALS, out);
    if (l.processes == 1) return ERR_OK;
    if (l.processes < 1 || l.process < 0 || l.process >= l.processes)
        return err_user(
            "SLURM_PROCID and SLURM_STEP_NUM_TASKS are missing or not valid: start the program with srun");
    const char *host = text_of("MASTER_ADDR"), *list = text_of("SLURM_STEP_NODELIST"),
               *job = text_of("SLURM_JOB_ID"), *step = text_of("SLURM_STEP_ID");
    if (!host && !list) host = text_of("SLURM_LAUNCH_NODE_IPADDR");
    if (!host && !list)
        return err_user("srun started %d processes, but neither MASTER_ADDR nor SLURM_STEP_NODELIST is set: "
                        "set MASTER_ADDR to the host of process 0",
                        l.processes);
    l.port = text_of("MASTER_PORT") ? number_of("MASTER_PORT") : port_of_job();
    if (l.port < 1 || l.port > 65535)
        return err_user("MASTER_PORT '%s' is not a port: use a number from 1 to 65535",
                        text_of("MASTER_PORT"));
    snprintf(l.run, sizeof l.run, "%s.%s", job ? job : "", step ? step : "");
    *out = l;
    return host ? copy_host(out, host, strlen(host)) : first_host(out, list);
}

/* ---- mpirun ---- */

static Err by_mpirun(CommLaunch *out) {
    const CommLaunch l = launch_of(COMM_MPI, MPI_RANKS, MPI_SIZES, MPI_LOCALS, out);
    if (l.processes == 1) return ERR_OK;
    if (l.processes < 1)
        return err_user(
            "the launcher did not report the number of processes: use mpirun, or --ranks without a launcher");
    if (!comm_mpi_built())
        return err_user("mpirun started %d processes, but this isotron was built without MPI, so each would "
                        "be a separate run: install Open MPI (ci/install-deps) and build again, or use "
                        "torchrun, srun or --ranks",
                        l.processes);
    *out = l;
    return ERR_OK;
}

/* ---- */

Err comm_launch(CommLaunch *l) {
    const bool elastic = text_of("TORCHELASTIC_RUN_ID"), mpi = first_of(MPI_RANKS) >= 0,
               slurm = text_of("SLURM_PROCID") && text_of("SLURM_STEP_NUM_TASKS"),
               half = text_of("RANK") || text_of("WORLD_SIZE"),
               torch = slurm ? text_of("RANK") && text_of("WORLD_SIZE") : half;
    *l = (CommLaunch){.by = COMM_ALONE, .processes = 1};
    if (elastic) return by_torchrun(l);
    if (mpi && (comm_mpi_built() || (!torch && !slurm))) return by_mpirun(l);
    if (torch) return by_torchrun(l);
    return slurm ? by_srun(l) : ERR_OK;
}

int comm_process(void) {
    CommLaunch l;
    comm_launch(&l);
    return l.process;
}

int comm_processes(void) {
    CommLaunch l;
    return comm_launch(&l).code ? -1 : l.processes;
}

int comm_ranks_of_host(const Comm *c) {
    enum { USUAL = 8 };
    CommLaunch l;
    if (c->host && !c->processes_by) return c->world;
    const bool known = c->host && !comm_launch(&l).code && l.of_host > 0;
    return known ? l.of_host : USUAL;
}
