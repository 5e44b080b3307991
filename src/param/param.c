#include "param/param.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"

Layout layout_single(void) {
    return (Layout){.mesh = mesh_make(1, 0, (const int[AXES]){1, 1, 1, 1, 1, 1, 1})};
}

Registry *registry_new(const Layout *layout) {
    Registry *r = mem_zero(1, sizeof *r);
    r->layout = layout ? *layout : layout_single();
    r->arena = arena_new();
    return r;
}

DType registry_dtype(const Registry *r, FlatBuffer which) {
    return which == FLAT_VALUES  ? r->storage
           : which == FLAT_FP8   ? F8E4M3
           : which == FLAT_GRADS ? r->gradients
                                 : r->precise;
}

size_t registry_flat_bytes(const Registry *r, FlatBuffer which) {
    return (size_t)r->held[which] * dtype_size(registry_dtype(r, which));
}

size_t registry_offloaded_bytes(const Registry *r, FlatBuffer which) {
    return (size_t)r->offloaded[which] * dtype_size(registry_dtype(r, which));
}

void registry_free(Registry *r) {
    if (!r) return;
    if (r->device) {
        device_release(r->device, r->values, registry_flat_bytes(r, FLAT_VALUES));
        device_release(r->device, r->fp8, registry_flat_bytes(r, FLAT_FP8));
        device_release(r->device, r->fp8_scales, r->fp8_scale_bytes);
        device_release(r->device, r->row_scales, r->row_scale_bytes);
        device_release(r->device, r->grads, registry_flat_bytes(r, FLAT_GRADS));
        if (r->masters != r->values)
            device_release(r->device, r->masters, registry_flat_bytes(r, FLAT_MASTERS));
        device_host_release(r->device, r->host_masters, registry_offloaded_bytes(r, FLAT_MASTERS));
    }
    arena_free(r->arena);
    free(r->params);
    free(r->by_name);
    free(r);
}

/* Returns the entry of `name` in the hash table, or the free entry for it. */
static int *slot_of(const Registry *r, const char *name) {
    for (uint64_t h = hash_name(name);; h++) {
        int *slot = &r->by_name[h & (uint64_t)(r->slots - 1)];
        if (!*slot || !strcmp(r->params[*slot - 1]->spec.name, name)) return slot;
    }
}

Param *registry_find(const Registry *r, const char *name) {
    int number = r->slots ? *slot_of(r, name) : 0;
    return number ? r->params[number - 1] : NULL;
}

int registry_mark(Registry *r, const char *name, ParamFlags flag) {
    const size_t length = strlen(name);
    int marked = 0;
    for (int i = 0; i < r->n; i++) {
        ParamSpec *s = &r->params[i]->spec;
        const bool is_below = !strncmp(s->name, name, length) && (!s->name[length] || s->name[length] == '.');
        if (!is_below || s->flags & PARAM_BUFFER) continue;
        s->flags |= flag;
        marked++;
    }
    return marked;
}

void registry_mark_matrices(Registry *r) {
    for (int i = 0; i < r->n; i++) {
        ParamSpec *s = &r->params[i]->spec;
        if (s->ndim == 2 && param_is_trained(r->params[i]) && !(s->flags & (PARAM_EMBEDDING | PARAM_NO_MUON)))
            s->flags |= PARAM_MATRIX;
    }
}

void registry_mark_rescaled(Registry *r, bool matrices, unsigned except) {
    static const char EMBEDDING[] = "embedding."; /* also the prefix of learned positions and token types */
    for (int i = 0; i < r->n; i++) {
        ParamSpec *s = &r->params[i]->spec;
        const bool is_matrix = s->ndim > 1 && !(s->flags & PARAM_EMBEDDING) &&
                               strncmp(s->name, EMBEDDING, sizeof EMBEDDING - 1) != 0;
        if (is_matrix == matrices && param_is_trained(r->params[i]) && !(s->flags & except))
            s->flags |= PARAM_RESCALED;
    }
}

void registry_mark_offloaded(Registry *r, double fraction) {
    double all = 0, marked = 0;
    for (int i = 0; i < r->n; i++)
        if (param_is_trained(r->params[i])) all += (double)r->params[i]->count;
    for (int i = r->n; i--;) {
        Param *p = r->params[i];
        if (!param_is_trained(p) || marked + (double)p->count > fraction * all) continue;
        p->spec.flags |= PARAM_OFFLOADED;
        marked += (double)p->count;
    }
}

static void append(Registry *r, Param *p) {
    r->params = mem_grow(r->params, (size_t)r->n + 1, sizeof *r->params);
    r->params[r->n++] = p;
    /* the first parameter to insert, which is 0 if the table grows, because growing reinserts all parameters */
    int first = r->n - 1;
    if (2 * r->n > r->slots) {
        free(r->by_name);
        r->slots = r->slots ? 2 * r->slots : 64;
        r->by_name = mem_zero((size_t)r->slots, sizeof *r->by_name);
        first = 0;
    }
    for (int i = first; i < r->n; i++) *slot_of(r, r->params[i]->spec.name) = i + 1;
}

static void divisible(const Param *p, const char *what, int64_t n, int by) {
    CHECK(n % by == 0, "'%s': %lld %s cannot be divided evenly among %d ranks", p->spec.name, (long long)n,
          what, by);
}

/* Computes this rank's part of the parameter. */
static void cut(const Registry *r, Param *p) {
    const ParamSpec *s = &p->spec;
    const Mesh *m = &r->layout.mesh;
    const Axis axis = s->expert ? AXIS_ETP : AXIS_TP;
    p->shards = s->tp_split == SPLIT_NONE ? 1 : m->size[axis];
    p->shard = s->tp_split == SPLIT_NONE ? 0 : m->coordinate[axis];
    p->rows = s->padded;
    p->columns = s->ndim == 2 ? s->dim[1] : 1;
    if (s->expert) {
        divisible(p, "experts", s->groups, m->size[AXIS_EP]);
        p->rows /= m->size[AXIS_EP];
        p->first_group = s->groups / m->size[AXIS_EP] * m->coordinate[AXIS_EP];
    }
    if (s->tp_split == 0) {
        for (int i = 0; s->split_parts && i < s->n_parts; i++)
            divisible(p, "rows of a part", s->parts[i].rows, p->shards);
        divisible(p, "rows", p->rows, p->shards);
        p->rows /= p->shards;
    } else if (s->tp_split == 1) {
        divisible(p, "columns", p->columns, p->shards);
        p->columns /= p->shards;
        p->first_column = p->columns * p->shard;
    }
}

bool param_is_fp8_state(const char *name) {
    const size_t n = strlen(name), end = sizeof PARAM_FP8_STATE - 1;
    return n > end && !strcmp(name + n - end, PARAM_FP8_STATE);
}

Param *param_add(Registry *r, ParamSpec spec) {
    Param *same = registry_find(r, spec.name);
    if (same && r->repeats) return same;
    CHECK(!same, "parameter '%s' is registered twice", spec.name);
    CHECK(!r->device, "parameter '%s' is added after registry_allocate", spec.name);
    if (!spec.padded) spec.padded = spec.dim[0];
    if (!spec.groups) {
        spec.groups = spec.n_parts = 1;
        spec.parts[0] = (ParamPart){"whole", spec.dim[0]};
    }
    int64_t rows = 0;
    for (int i = 0; i < spec.n_parts; i++) rows += spec.parts[i].rows;
    CHECK(rows * spec.groups == spec.dim[0], "'%s': the parts have %lld rows, but the parameter has %lld",
          spec.name, (long long)(rows * spec.groups), (long long)spec.dim[0]);
    Param *p = arena_alloc(r->arena, sizeof *p);
    p->spec = spec;
    cut(r, p);
    p->count = p->rows * p->columns;
    p->number = r->n;
    p->unit = r->unit;
    p->stages = 1;
    append(r, p);
    return p;
}

Param *param_share(Registry *r, ParamSpec spec) {
    Param *p = registry_find(r, spec.name);
    return p ? p : param_add(r, spec);
}

void param_add_holder(Registry *r, Param *p, int rank) {
    CHECK(!r->device, "a holder of parameter '%s' is added after registry_allocate", p->spec.name);
    if (!p->holders)
        p->holders = arena_alloc(r->arena, (size_t)r->layout.mesh.size[AXIS_PP] * sizeof *p->holders);
    p->holders[p->n_holders++] = rank;
}

void registry_begin_unit(Registry *r) { r->unit++; }

int64_t param_logical_count(const Param *p) {
    return p->spec.dim[0] * (p->spec.ndim == 2 ? p->spec.dim[1] : 1);
}

unsigned param_sum_axes(const Param *p) { return spmd_axes(p->value.spmd, SPMD_R); }

bool param_is_owned_on(const Registry *r, const Param *p, unsigned axes) {
    const Mesh *m = &r->layout.mesh;
    if (param_is_tied(p) && p->holders[0] != m->coordinate[AXIS_PP]) return false;
    axes &= (p->spec.expert ? MASK_EXPERT : MASK_DENSE) & ~(1u << AXIS_PP);
    for (int a = 0; a < AXES; a++)
        if (axes & 1u << a && spmd_on(p->value.spmd, a) != SPMD_V && m->coordinate[a]) return false;
    return true;
}

bool param_is_owned(const Registry *r, const Param *p) {
    return param_is_owned_on(r, p, MASK_DENSE | MASK_EXPERT);
}

/* ---- parts ---- */

int64_t param_part_rows(const Param *p, int part) { return p->spec.groups * p->spec.parts[part].rows; }

static int64_t group_rows(const Param *p) { return p->spec.dim[0] / p->spec.groups; }

/* Returns the number of rows that precede the part in a group. */
static int64_t rows_before(const Param *p, int part) {
    int64_t n = 0;
    for (int i = 0; i < part; i++) n += p->spec.parts[i].rows;
    return n;
}

static bool cuts_parts(const Param *p) {
    return p->spec.tp_split == 0 && p->spec.split_parts && p->shards > 1;
}

/* Returns the index of the first row in this rank's memory, counted in the full parameter. If every part is sharded
 * separately (cuts_parts), this row is the start of the rank's first group. */
static int64_t first_row(const Param *p) {
    const bool rows_cut = p->spec.tp_split == 0 && !cuts_parts(p);
    return p->first_group * group_rows(p) + (rows_cut ? p->rows * p->shard : 0);
}

/* Returns the number of rows of the part that precede row `row` of the parameter. */
static int64_t part_rows_until(const Param *p, int part, int64_t row) {
    const int64_t rows = p->spec.parts[part].rows, into = row % group_rows(p) - rows_before(p, part);
    return row / group_rows(p) * rows + (into < 0 ? 0 : into > rows ? rows : into);
}

int64_t param_filled_rows(const Param *p) {
    const int64_t rows = cuts_parts(p) ? p->rows : p->spec.dim[0] - first_row(p);
    return rows < 0 ? 0 : rows < p->rows ? rows : p->rows;
}

static int64_t local_groups(const Param *p) {
    return p->rows * (cuts_parts(p) ? p->shards : 1) / group_rows(p);
}

/* Sets [begin, end) to the part's rows in memory, if they are contiguous. */
static void part_run(const Param *p, int part, int64_t *begin, int64_t *end) {
    const int64_t first = first_row(p), last = first + p->rows;
    const int64_t limit = p->spec.dim[0];
    *begin = part_rows_until(p, part, first < limit ? first : limit);
    *end = part_rows_until(p, part, last < limit ? last : limit);
}

int param_boxes(const Param *p, int part) {
    if (cuts_parts(p)) return (int)local_groups(p);
    int64_t begin, end;
    part_run(p, part, &begin, &end);
    return end > begin;
}

Box param_box(const Param *p, int part, int i) {
    Box b = {{0, p->first_column}, {0, p->columns}};
    if (cuts_parts(p)) {
        const int64_t rows = p->spec.parts[part].rows;
        b.shape[0] = rows / p->shards;
        b.offset[0] = (p->first_group + i) * rows + b.shape[0] * p->shard;
    } else {
        int64_t end;
        part_run(p, part, &b.offset[0], &end);
        b.shape[0] = end - b.offset[0];
    }
    return b;
}

int64_t param_memory_row(const Param *p, int part, int64_t row) {
    const int64_t rows = p->spec.parts[part].rows, group = row / rows, into = row % rows;
    if (!cuts_parts(p)) return group * group_rows(p) + rows_before(p, part) + into - first_row(p);
    return ((group - p->first_group) * group_rows(p) + rows_before(p, part)) / p->shards + into -
           rows / p->shards * p->shard;
}

int64_t param_global_row(const Param *p, int64_t row) {
    int64_t global = first_row(p) + row;
    if (cuts_parts(p)) {
        const int64_t per_group = group_rows(p) / p->shards, into = row % per_group;
        int part = 0;
        while (part + 1 < p->spec.n_parts && into >= rows_before(p, part + 1) / p->shards) part++;
        const int64_t share = p->spec.parts[part].rows / p->shards;
        global = (p->first_group + row / per_group) * group_rows(p) + rows_before(p, part) + into -
                 rows_before(p, part) / p->shards + share * p->shard;
    }
    return global < p->spec.dim[0] ? global : -1;
}
