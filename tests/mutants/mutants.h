/* Planted bugs: the program with one of its functions replaced (ld --wrap), to judge the test suite that must
 * find them. The program's sources contain no hook. `isotron_mutants --mutant ID COMMAND ...` runs a command
 * with the bug, in the environment variable ISOTRON_MUTANT; --mutant list prints all bugs.
 *
 * A bug is only in ranks of a layout: runs on one rank, the reference, are correct. Bugs of the family
 * "comparator" are in the judge, and those of "option" and "dataset" are judged by a separate witness; all
 * of them are in every run. Calls inside one object file are not replaced. */
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

/* A row of mutants.def: the rank that has the bug; the op that a report should name; reports like it;
 * the cells (cells.list) that look for it, of the judge's bugs as probe@cell. */
typedef struct Mutant {
    const char *id;
    int rank;
    const char *family, *op, *issues, *cells, *what;
} Mutant;
extern const Mutant MUTANT_TABLE[MUTANTS];

/* The current activity of the calling thread. */
typedef struct Place {
    Mesh mesh;              /* world 0: no rank of a layout */
    int64_t step;           /* from 1 */
    const OptimStep *optim; /* the update that is running, or NULL */
    bool lays_norms;        /* what norms count is being decided */
    int64_t blocks;         /* recomputed so far */
    MutantId planted[2];    /* on this rank */
} Place;
Place *mutant_place(void);

/* Whether this rank has the bug. */
bool mutant_is(MutantId);
/* Whether the bug was requested, on any rank. */
bool mutant_is_named(MutantId);
/* The number after the colon of ID:NUMBER, or `otherwise`. */
double mutant_value(double otherwise);

/* ignore.c: from now on no command receives this option, a field of options.def. */
Err ignore_option(const char *field);

/* Declares a replacement and the function that it replaces, both with the header's type. CMake reads the names for the
 * linker. */
#define HOOK(type, name, ...)                                                                                \
    extern __typeof__(name) __real_##name, __wrap_##name;                                                    \
    type __wrap_##name(__VA_ARGS__)
