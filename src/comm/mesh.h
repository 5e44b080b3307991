/* The mesh of ranks. Named axes form two views of the same ranks, dense (tp cp dp pp) and expert (etp ep edp pp), and a
 * mask of axes selects a group. Ranks are ordered as in Megatron-LM's RankGenerator (core/parallel_state.py):
 * tp-cp-ep-dp-pp, where the leftmost axis varies fastest. */
#pragma once

typedef enum Axis { AXIS_TP, AXIS_CP, AXIS_DP, AXIS_PP, AXIS_ETP, AXIS_EP, AXIS_EDP, AXES } Axis;

/* A mask may contain dense or expert axes, but not both (PP belongs to both views). */
enum {
    MASK_DENSE = 1 << AXIS_TP | 1 << AXIS_CP | 1 << AXIS_DP | 1 << AXIS_PP,
    MASK_EXPERT = 1 << AXIS_ETP | 1 << AXIS_EP | 1 << AXIS_EDP | 1 << AXIS_PP,
};

typedef struct Mesh {
    int world, rank;
    int size[AXES], coordinate[AXES]; /* [axis]: the number of ranks along it, and this rank's coordinate */
} Mesh;

typedef struct Group {
    int size, rank; /* the number of members, and the index of this rank */
    int first, n_axes;
    int axis_size[4], axis_stride[4]; /* a member's rank is first + the sum of coordinate * stride */
    /* mask of the group's axes that have more than one rank; 0 if there is no such axis, or if the group is
     * simplified */
    unsigned axes;
} Group;

/* Creates a mesh. The world must have tp*cp*dp*pp = etp*ep*edp*pp ranks. dp and edp are derived, and may be 0 in
 * `size`. Inconsistent sizes are a fault, because the option rules would have rejected them earlier. */
Mesh mesh_make(int world, int rank, const int size[AXES]);
/* Returns the group of ranks that differ from this rank only in coordinates along the mask's axes, in axis order. */
Group mesh_group(const Mesh *, unsigned mask);
const char *axis_name(Axis); /* such as "tp" */
/* Formats a mask as "tp" or "tp-cp", or as "world" if it has no axes. */
const char *mesh_axes_text(unsigned axes, char text[32]);
/* Returns the global rank of member `i`. */
int mesh_member(const Group *, int i);

/* Returns a group with the same members in the same order and the fewest axes. Two groups have equal member lists if
 * and only if their simplified forms are equal except for `rank`. */
Group group_simplify(const Group *);
/* Splits a group into consecutive blocks of `size` members. group_inner is this rank's block. group_outer
 * consists of the ranks that have this rank's index in each block (hierarchical context parallelism, hybrid
 * sharding). Every member computes the same blocks. `size` must divide the group's size and, if the members
 * are not evenly spaced, the size of each axis that it splits. Any other value of `size` is a fault. */
Group group_inner(const Group *, int size);
Group group_outer(const Group *, int size);
