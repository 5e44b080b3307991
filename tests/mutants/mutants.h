/* Planted bugs, which the test suite must find. A bug replaces a function of the program (ld --wrap), so the
 * program's sources contain no hooks. `isotron_mutants --mutant ID COMMAND ...` runs a command with the bug,
 * as does ISOTRON_MUTANT=ID in the environment; --mutant list prints all bugs.
 *
 * Most bugs affect only runs on several ranks: the reference run on one rank is correct. Bugs of the families
 * "comparator", "option", "dataset" and "plan" affect every run. A bug of "comparator" is in the comparison itself;
 * independent references find the others. Calls inside one object file are not replaced. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "comm/comm.h"
#include "optim/optim.h"
#include "tensor/call.h"

enum { EVERY_RANK = -1 };

typedef enum MutantId {
#define MUTANT(id, rank, family, op, issues, cells, what) M_##id,
#include "mutants/mutants.def"
#undef MUTANT
    MUTANTS,
    M_NONE = -1
} MutantId;

/* A row of mutants.def. rank: the rank that has the bug; op: the op that a report must name; issues: similar
 * bugs that were reported; cells: the cells (cells.list) that test for it, for bugs in the comparison as
 * probe@cell. */
typedef struct Mutant {
    const char *id;
    int rank;
    const char *family, *op, *issues, *cells, *what;
} Mutant;
extern const Mutant MUTANT_TABLE[MUTANTS];

/* The rank, the step and the bug of the calling thread. */
typedef struct Place {
    Mesh mesh;              /* world is 0 outside of ranks */
    int64_t step;           /* from 1 */
    const OptimStep *optim; /* the optimizer step in progress, or NULL */
    bool lays_norms;        /* whether the program is deciding which parameters a norm counts */
    int64_t blocks;         /* number of blocks recomputed so far */
    MutantId planted[2];    /* the bugs of this rank */
} Place;
Place *mutant_place(void);

/* Whether this rank has the bug. */
bool mutant_is(MutantId);
/* Whether the bug was requested, regardless of the rank. */
bool mutant_is_named(MutantId);
/* The number in --mutant ID:NUMBER, or `otherwise` if there is none. */
double mutant_value(double otherwise);

/* ignore.c: makes all commands ignore this option (a field of options.def). */
Err ignore_option(const char *field);

/* Declares a replacement and the function that it replaces, both with the type in the header. CMake extracts
 * the names for the linker. */
#define HOOK(type, name, ...)                                                                                \
    extern __typeof__(name) __real_##name, __wrap_##name;                                                    \
    type __wrap_##name(__VA_ARGS__)
