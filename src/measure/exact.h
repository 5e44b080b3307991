/* Runs collectives on data whose exact results are known. The data are integers whose sums are exact in their type.
 * They are as large as exactness allows, so that summation in a narrower type would give a wrong result. `bench comm`
 * measures these collectives, and `validate` uses them to certify a transport. */
#pragma once

#include "comm/comm.h"

/* maximum number of ranks; with more, even sums of zeros and ones would not be exact in bf16 */
enum { EXACT_RANKS = 256 };

typedef struct Collective {
    const char *name;
    CommKind kind;        /* COMM_SEND means that each member sends to the next member */
    bool reduces, splits; /* splits: whether the larger of the two buffers is divided among the members */
    bool in_place, out_of_place;
    double per_step; /* busbw / algbw is per_step * (n - 1) / n, or 1 if per_step is 0 */
} Collective;

typedef struct ExactType {
    const char *name;
    DType type;
    int bits; /* the type represents all integers up to 2^bits exactly */
} ExactType;

enum { N_COLLECTIVES = 6, N_EXACT_TYPES = 6 };
extern const Collective COLLECTIVES[N_COLLECTIVES];
extern const ExactType EXACT_TYPES[N_EXACT_TYPES];

/* One collective on one rank. */
typedef struct Exact {
    Comm *comm;
    Group group;
    Device *device;
    char *in, *out; /* device memory; both are as large as the larger buffer */
    const Collective *of;
    const ExactType *type;
    int64_t count; /* the argument n of the collective */
    /* Whether input and output share one buffer. If they do, the smaller buffer is this member's part of the
     * larger one. */
    bool in_place;
} Exact;

/* Returns busbw / algbw for a group of `members` members. */
double exact_bus_factor(const Collective *, int members);
int64_t exact_in_count(const Exact *); /* number of elements in this rank's input or output */
int64_t exact_out_count(const Exact *);
CommCall exact_call(const Exact *);
/* Returns the exact value of an output element. */
double exact_expected(const Exact *, int64_t at);
/* Writes this rank's input. */
void exact_fill(const Exact *, const CommCall *);
/* Runs one call. For COMM_SEND, the rank also receives a message. */
void exact_run(const Exact *, CommCall);

/* Describes the wrong elements in an output. */
typedef struct ExactWrong {
    /* number of wrong elements; indices of the first and the last wrong element */
    int64_t count, first, last;
    int64_t rounded;    /* number of wrong elements that summation in bf16 or fp16 could explain */
    double got, wanted; /* values of the first wrong element */
} ExactWrong;
ExactWrong exact_check(const Exact *, const CommCall *);
/* Returns whether a bf16 or fp16 sum of `members` summands, rounded or truncated after each addition, could produce
 * `got`. */
bool exact_is_rounded(double got, double wanted, int members);
