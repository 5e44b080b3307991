/* How the flat layout is cut into buckets, and what of it this rank holds when data-parallel ranks share it
 * out. Parameters lie in reverse order of registration, so that buckets are complete one after the other in a
 * backward; each begins at a multiple of PARAM_ALIGN elements of its bucket. A bucket has parameters of one
 * kind (dense, experts, buffers), and each member of its `inner` group holds an equal part of it, a multiple
 * of PARAM_ALIGN: member i the elements [begin + i * shard, begin + (i + 1) * shard). The padding behind the
 * last parameter is zero. Tied embeddings have a bucket of their own, so that first and last pipeline stage
 * cut them alike. Megatron-LM core/distributed/param_and_grad_buffer.py; there a bucket ends at a multiple of
 * lcm(ranks, 128). */
#ifndef ISOTRON_PARAM_BUCKET_H
#define ISOTRON_PARAM_BUCKET_H

#include "param/param.h"

typedef enum FlatBuffer { FLAT_VALUES, FLAT_GRADS, FLAT_MASTERS, FLAT_STATE, FLAT_BUFFERS } FlatBuffer;

struct Bucket {
    int64_t begin, end, shard;    /* of the flat layout; elements of a member's part */
    int first, n;                 /* parameters: laid[first, first + n) of the registry */
    Group inner, outer;           /* who shares it out; who has the same part of it in another instance */
    bool trained;                 /* false: buffers, which have no gradients and are not shared out */
    FlatRange held[FLAT_BUFFERS]; /* what this rank keeps of it in each flat buffer */
};

/* Cuts the layout of all registered parameters; sets their offsets. Called by registry_allocate. */
void buckets_lay(Registry *);

/* What this rank keeps in a flat buffer, in ascending order; NULL: all of it, at its place. */
const FlatRange *registry_ranges(const Registry *, FlatBuffer, int *n);
/* Of a flat buffer. */
int64_t registry_held_elements(const Registry *, FlatBuffer);
/* The same of one parameter, padding rows not counted; may be empty (end <= begin). */
FlatRange param_held(const Registry *, const Param *, FlatBuffer);
/* Whether this rank speaks for what it holds of masters and optimizer state, in norms and checkpoints. */
bool param_speaks(const Registry *, const Param *);

#endif
