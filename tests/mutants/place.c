/* Keeps track of the calling thread's rank, step and bug. */
#include <stdlib.h>
#include <string.h>

#include "mutants/mutants.h"
#include "train/trainer.h"

/* A rank is a thread. */
static _Thread_local Place now = {.planted = {M_NONE, M_NONE}};

const Mutant MUTANT_TABLE[MUTANTS] = {
#define MUTANT(id, rank, family, op, issues, cells, what) {#id, rank, family, op, issues, cells, what},
#include "mutants/mutants.def"
#undef MUTANT
};

Place *mutant_place(void) { return &now; }

bool mutant_is(MutantId id) { return now.planted[0] == id || now.planted[1] == id; }

/* Bugs are named ID[:NUMBER][,ID[:NUMBER]]. */
static const char *named(void) {
    const char *s = getenv("ISOTRON_MUTANT");
    return s ? s : "";
}

static bool is_at(const char *s, const char *id) {
    const size_t n = strlen(id);
    return !strncmp(s, id, n) && (!s[n] || s[n] == ':' || s[n] == ',');
}

bool mutant_is_named(MutantId id) {
    const char *s = named(), *comma = strchr(s, ',');
    return is_at(s, MUTANT_TABLE[id].id) || (comma && is_at(comma + 1, MUTANT_TABLE[id].id));
}

double mutant_value(double otherwise) {
    const char *colon = strchr(named(), ':');
    return colon ? strtod(colon + 1, NULL) : otherwise;
}

static void plant(int rank) {
    int n = 0;
    now = (Place){.planted = {M_NONE, M_NONE}};
    for (MutantId id = 0; id < MUTANTS; id++)
        if (mutant_is_named(id) && n < 2 &&
            (MUTANT_TABLE[id].rank == EVERY_RANK || MUTANT_TABLE[id].rank == rank))
            now.planted[n++] = id;
}

typedef struct Started {
    CommMain *fn;
    void *arg;
} Started;

static void rank_main(void *arg, Comm *comm) {
    const Started *s = arg;
    plant(comm_rank(comm));
    s->fn(s->arg, comm);
    now = (Place){.planted = {M_NONE, M_NONE}};
}

HOOK(void, comm_threads, int world, const CommOptions *options, CommMain *fn, void *arg) {
    Started s = {fn, arg};
    __real_comm_threads(world, options, rank_main, &s);
}

/* The first mesh that a thread makes is that of its rank; with pipeline stages, a model also makes meshes of
 * other ranks. */
HOOK(Mesh, mesh_make, int world, int rank, const int size[AXES]) {
    const Mesh m = __real_mesh_make(world, rank, size);
    if (world > 1 && !now.mesh.world) now.mesh = m;
    return m;
}

HOOK(StepReport, trainer_begin_step, Trainer *r) {
    now.step++;
    return __real_trainer_begin_step(r);
}

HOOK(Optimizer *, optim_new, const Config *c, Registry *r, Sync *sync) {
    now.lays_norms = true;
    Optimizer *o = __real_optim_new(c, r, sync);
    now.lays_norms = false;
    return o;
}

HOOK(OptimResult, optim_step, Optimizer *o, OptimStep s) {
    now.optim = &s;
    const OptimResult result = __real_optim_step(o, s);
    now.optim = NULL;
    return result;
}
