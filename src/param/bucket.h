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

struct Bucket {
    int64_t begin, end, shard; /* of the flat layout; elements of a member's part */
    int first, n;              /* parameters: laid[first, first + n) of the registry */
    Group inner, outer;        /* who shares it out; who has the same part of it in another instance */
    bool trained;              /* false: buffers, which have no gradients and are not shared out */
};

/* Cuts the layout of all registered parameters and sets their offsets; needs the storage type. Called by
 * registry_allocate. */
void buckets_lay(Registry *);
/* Whether the ranks of `inner` share out the bucket's elements of this buffer. */
bool bucket_is_shared(const Registry *, const Bucket *, FlatBuffer);
/* What this rank updates: its part, or all of it. */
FlatRange bucket_part(const Registry *, const Bucket *);

/* What this rank keeps in a flat buffer, in ascending order; NULL: all of it, at its place. */
const FlatRange *registry_ranges(const Registry *, FlatBuffer, int *n);
/* Whether another instance of ranks holds the same shares and is primary for them. */
bool registry_is_copy(const Registry *);
/* Where element `at` of the flat layout, which this rank holds, stands in the buffer. */
int64_t registry_place(const Registry *, FlatBuffer, int bucket, int64_t at);
/* A run of n such elements as a tensor; `flat` is the buffer's memory. */
Tensor registry_slice(const Registry *, FlatBuffer, void *flat, int bucket, int64_t at, int64_t n);
/* The same of a buffer of another type. */
Tensor registry_slice_of(const Registry *, FlatBuffer, DType, void *flat, int bucket, int64_t at, int64_t n);
/* The elements of a parameter that this rank updates; padding rows not counted; may be empty (end <= begin). */
FlatRange param_part_held(const Registry *, const Param *);
/* Whether this rank is the primary of them: it counts them in norms and saves them. */
bool param_is_primary(const Registry *, const Param *);

#endif
