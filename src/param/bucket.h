/* Divides the flat layout into buckets, and each bucket into one part for each data-parallel rank.
 *
 * Parameters are in reverse order of registration, so that a backward pass completes the buckets one after another.
 * Each parameter begins at a multiple of PARAM_ALIGN elements of its bucket. The parameters of a bucket are of one
 * kind (dense, experts, FP8 weights, matrices of these, quantized weights, frozen weights, buffers). PARAM_APART is set for all of them
 * or for none. The members of its `inner` group hold equal parts of the bucket, whose size is a multiple of
 * PARAM_ALIGN. Member i holds elements [begin + i * shard, begin + (i + 1) * shard). Parts of a bucket of matrices
 * (PARAM_MATRIX) consist of complete parameters. Padding is zero. Tied embeddings are in a separate bucket, so that
 * the first and the last pipeline stage shard them equally.
 *
 * Source: Megatron-LM core/distributed/param_and_grad_buffer.py, where a bucket ends at a multiple of lcm(ranks,
 * 128). */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

struct Bucket {
    /* The range [begin, end) of the flat layout, and the number of elements of a member's part. */
    int64_t begin, end, shard;
    int first, n; /* parameters: laid[first, first + n) of the registry */
    /* inner: the ranks that shard the bucket; outer: the ranks with the same part in all instances */
    Group inner, outer;
    bool matrices;  /* the parameters have PARAM_MATRIX */
    bool apart;     /* the parameters have PARAM_APART */
    bool fp8;       /* the values are in FLAT_FP8 */
    bool quantized; /* the weights are quantized (quantized.h) */
    /* The index of the mate, or -1 if there is none. If buckets end with units, a unit's bucket of FP8 weights and
     * its bucket of other dense parameters are mates. */
    int mate;
    bool trained; /* false for buffers and frozen weights, which have no gradients and are not sharded */
};

/* Assigns all registered parameters to buckets, and sets the offsets of parameters and buckets in the flat
 * layout. The storage type must be set. registry_allocate calls this function. */
void buckets_lay(Registry *);
/* Returns the buffer with the bucket's values. */
FlatBuffer bucket_values(const Bucket *);
/* Returns whether the ranks of `inner` shard the bucket's elements of this buffer. */
bool bucket_is_shared(const Registry *, const Bucket *, FlatBuffer);
/* Returns whether this rank has memory for all of the bucket's elements in this buffer. */
bool bucket_is_whole(const Registry *, const Bucket *, FlatBuffer);
/* Calls comm_register for the memory of gathered buckets, once for each group that shards buckets. */
void buckets_register(const Registry *, Comm *, void *memory, size_t bytes);
/* Returns the elements that this rank updates: its part, or the entire bucket. */
FlatRange bucket_part(const Registry *, const Bucket *);

/* Returns the ranges of a flat buffer that this rank keeps, in ascending order. The result is NULL if this rank keeps
 * the entire buffer, at the offsets of the layout. */
const FlatRange *registry_ranges(const Registry *, FlatBuffer, int *n);
/* Returns the index in this rank's buffer of element `at` of the flat layout, which this rank must hold. */
int64_t registry_place(const Registry *, FlatBuffer, int bucket, int64_t at);
/* Returns elements [at, at + n) as a tensor. `flat` is the memory of the buffer. */
Tensor registry_slice(const Registry *, FlatBuffer, void *flat, int bucket, int64_t at, int64_t n);
/* Like registry_slice, for a buffer of another type. */
Tensor registry_slice_of(const Registry *, FlatBuffer, DType, void *flat, int bucket, int64_t at, int64_t n);
/* Returns the elements of a parameter that this rank updates, without padding rows. The range may be empty (end <=
 * begin). */
FlatRange param_part_held(const Registry *, const Param *);
/* Returns whether this rank is primary for the elements of param_part_held, which means that it counts them in
 * norms. */
bool param_is_primary(const Registry *, const Param *);
/* Returns whether this rank is primary for the elements of the parameter that it holds in a buffer, which means that
 * it saves them. `sharded` is true if data-parallel ranks shard the buffer's trained elements, and false if each rank
 * has all of them. */
bool param_is_primary_for(const Registry *, const Param *, bool sharded);
