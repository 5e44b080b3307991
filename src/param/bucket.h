/* Divides the flat layout into buckets, and each bucket into one part for each data-parallel rank.
 *
 * Parameters are in reverse order of registration, so that a backward pass completes the buckets one after
 * another. Each parameter begins at a multiple of PARAM_ALIGN elements in its bucket. The parameters in a
 * bucket are all of one kind (dense parameters, experts or FP8 weights, each with or without PARAM_MATRIX; quantized
 * weights; frozen weights; or buffers). PARAM_APART is set for all parameters in a bucket or for none, and so is
 * PARAM_OFFLOADED. The members of the bucket's `inner` group hold equal parts of the bucket; the size of a part is a multiple of
 * PARAM_ALIGN. Member i holds elements [begin + i * shard, begin + (i + 1) * shard). In a bucket of matrices
 * (PARAM_MATRIX), parts consist of complete parameters. Padding is zero. Tied embeddings are in a separate
 * bucket, so that the first and the last pipeline stages shard them in the same way.
 *
 * Source: Megatron-LM core/distributed/param_and_grad_buffer.py, where a bucket ends at a multiple of lcm(ranks,
 * 128). */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

struct Bucket {
    /* The range [begin, end) of the bucket in the flat layout, and the number of elements in a member's
     * part. */
    int64_t begin, end, shard;
    int first, n; /* the bucket's parameters are Registry.laid[first, first + n) */
    /* inner: the ranks that shard the bucket; outer: the ranks in all instances that hold the same part */
    Group inner, outer;
    bool matrices;  /* the parameters have PARAM_MATRIX */
    bool apart;     /* the parameters have PARAM_APART */
    bool offloaded; /* the parameters have PARAM_OFFLOADED */
    bool fp8;       /* whether the values are in FLAT_FP8 */
    bool quantized; /* whether the weights are quantized (quantized.h) */
    /* The mate's index, or -1 if there is none. If buckets end where units end, a unit's bucket of FP8 weights and its
     * bucket of other dense parameters are mates. */
    int mate;
    bool trained; /* false for buffers and frozen weights, which have no gradients and are not sharded */
};

/* Assigns all registered parameters to buckets, and sets the offset of each parameter and bucket in the flat
 * layout. The storage type must be set. registry_allocate calls this function. */
void buckets_lay(Registry *);
/* Returns the buffer that contains the bucket's values. */
FlatBuffer bucket_values(const Bucket *);
/* Returns whether the ranks in `inner` shard the bucket's elements in the given buffer. */
bool bucket_is_shared(const Registry *, const Bucket *, FlatBuffer);
/* Returns whether this rank has memory for all of the bucket's elements in the given buffer. */
bool bucket_is_whole(const Registry *, const Bucket *, FlatBuffer);
/* Calls comm_register for the memory into which buckets are gathered, once for each group that shards buckets. */
void buckets_register(const Registry *, Comm *, void *memory, size_t bytes);
/* Returns the elements that this rank updates: its part, or the entire bucket. */
FlatRange bucket_part(const Registry *, const Bucket *);

/* Returns, in ascending order, the ranges of a flat buffer that this rank keeps. The result is NULL if this rank keeps
 * the entire buffer in device memory, at the layout's offsets. */
const FlatRange *registry_ranges(const Registry *, FlatBuffer, int *n);
/* Returns the index of the flat layout's element `at` in this rank's buffer. This rank must hold the
 * element. */
int64_t registry_place(const Registry *, FlatBuffer, int bucket, int64_t at);
/* Returns elements [at, at + n) of the flat layout as a tensor. `flat` is the device memory of this rank's buffer; for
 * offloaded masters, the tensor is in host memory. */
Tensor registry_slice(const Registry *, FlatBuffer, void *flat, int bucket, int64_t at, int64_t n);
/* Like registry_slice, but the caller passes the buffer's dtype and, for the state of an offloaded bucket, its host
 * memory. */
Tensor registry_slice_of(const Registry *, FlatBuffer, DType, void *flat, int bucket, int64_t at, int64_t n);
/* Returns the elements of a parameter that this rank updates, excluding padding rows. The range may be empty
 * (end <= begin). */
FlatRange param_part_held(const Registry *, const Param *);
/* Returns whether this rank is primary for the elements in param_part_held. Norms count an element only on
 * its primary rank. */
bool param_is_primary(const Registry *, const Param *);
/* Returns whether this rank is primary for those elements of the parameter that it holds in a buffer. Only the
 * primary rank of an element saves the element. `sharded` is true if data-parallel ranks shard the buffer's
 * trained elements, and false if each rank has all elements. */
bool param_is_primary_for(const Registry *, const Param *, bool sharded);
