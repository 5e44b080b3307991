#include "param/param.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

Registry *registry_new(void) {
    Registry *r = mem_zero(1, sizeof *r);
    r->arena = arena_new();
    return r;
}

static size_t flat_bytes(const Registry *r, DType dtype) { return (size_t)r->elements * dtype_size(dtype); }

void registry_free(Registry *r) {
    if (!r) return;
    if (r->device) {
        device_release(r->device, r->values, flat_bytes(r, r->storage));
        device_release(r->device, r->grads, flat_bytes(r, r->precise));
        if (r->masters != r->values) device_release(r->device, r->masters, flat_bytes(r, r->precise));
    }
    arena_free(r->arena);
    free(r->params);
    free(r->by_name);
    free(r);
}

/* Where `name` stands in the table, or belongs. */
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

static void append(Registry *r, Param *p) {
    r->params = mem_grow(r->params, (size_t)r->n + 1, sizeof *r->params);
    r->params[r->n++] = p;
    int first = r->n - 1; /* of those to enter; all, if the table grows */
    if (2 * r->n > r->slots) {
        free(r->by_name);
        r->slots = r->slots ? 2 * r->slots : 64;
        r->by_name = mem_zero((size_t)r->slots, sizeof *r->by_name);
        first = 0;
    }
    for (int i = first; i < r->n; i++) *slot_of(r, r->params[i]->spec.name) = i + 1;
}

Param *param_add(Registry *r, ParamSpec spec) {
    CHECK(!registry_find(r, spec.name), "parameter '%s' is registered twice", spec.name);
    CHECK(!r->device, "parameter '%s' comes after registry_allocate", spec.name);
    if (!spec.padded) spec.padded = spec.dim[0];
    if (!spec.groups) {
        spec.groups = spec.n_parts = 1;
        spec.parts[0] = (ParamPart){"whole", spec.dim[0]};
    }
    int64_t rows = 0;
    for (int i = 0; i < spec.n_parts; i++) rows += spec.parts[i].rows;
    CHECK(rows * spec.groups == spec.dim[0], "'%s': its parts have %lld rows, it has %lld", spec.name,
          (long long)(rows * spec.groups), (long long)spec.dim[0]);
    Param *p = arena_alloc(r->arena, sizeof *p);
    p->spec = spec;
    p->offset = r->elements;
    p->count = spec.padded * (spec.ndim == 2 ? spec.dim[1] : 1);
    r->elements += (p->count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    append(r, p);
    return p;
}

static Tensor slice(const Param *p, void *flat, DType dtype) {
    return tensor_make((char *)flat + (size_t)p->offset * dtype_size(dtype), dtype, p->spec.ndim,
                       (int64_t[]){p->spec.padded, p->spec.dim[1]});
}

void registry_allocate(Registry *r, Device *device, DType storage) {
    r->device = device;
    r->storage = storage;
    r->precise = storage == F64 ? F64 : F32;
    r->values = device_alloc(device, flat_bytes(r, storage), "parameters");
    r->grads = device_alloc(device, flat_bytes(r, r->precise), "main gradients");
    r->masters = dtype_is_16bit(storage)
                     ? device_alloc(device, flat_bytes(r, r->precise), "master parameters")
                     : r->values;
    for (int i = 0; i < r->n; i++) {
        Param *p = r->params[i];
        p->value = slice(p, r->values, storage);
        p->master = slice(p, r->masters, r->precise);
        p->main_grad = slice(p, r->grads, r->precise);
        p->main_grad.flags = TENSOR_ACCUM | TENSOR_MAIN_GRAD;
        p->value.flags = TENSOR_NEEDS_GRAD;
        p->value.grad = &p->main_grad;
    }
}

size_t registry_bytes(const Registry *r) {
    size_t masters = dtype_is_16bit(r->storage) ? flat_bytes(r, r->precise) : 0;
    return flat_bytes(r, r->storage) + flat_bytes(r, r->precise) + masters;
}

int64_t param_logical_count(const Param *p) {
    return p->spec.dim[0] * (p->spec.ndim == 2 ? p->spec.dim[1] : 1);
}

typedef struct Draw {
    const Registry *registry;
    const Param *param;
    uint64_t seed, site;
} Draw;

/* Elements 2i and 2i + 1 for i in [begin, end): the halves of one Box-Muller pair. */
static void draw_pairs(void *arg, int64_t begin, int64_t end) {
    const Draw *d = arg;
    const Init init = d->param->spec.init;
    const int64_t n = param_logical_count(d->param);
    for (int64_t i = begin; i < end; i++) {
        double z[2] = {1, 1};
        if (init.kind == INIT_NORMAL) philox_normal_pair(d->seed, d->site, (uint64_t)i, z);
        for (int64_t e = 2 * i; e < n && e < 2 * i + 2; e++) {
            const float x = (float)(init.value * z[e % 2]);
            if (d->registry->precise == F64)
                ((double *)d->param->master.data)[e] = (double)x;
            else
                ((float *)d->param->master.data)[e] = x;
        }
    }
}

void registry_init(Registry *r, uint64_t seed) {
    if (r->device->kind == DEVICE_NULL) return;
    enum { PAIRS_PER_THREAD = 1024 }; /* fewer are not worth one */
    for (int i = 0; i < r->n; i++) {
        Draw d = {r, r->params[i], seed, hash_name(r->params[i]->spec.name)};
        pool_for(r->device->pool, (param_logical_count(d.param) + 1) / 2, PAIRS_PER_THREAD, draw_pairs, &d);
    }
    registry_round_values(r);
}

void registry_round_values(Registry *r) {
    if (r->masters == r->values) return;
    Tensor from = tensor_make(r->masters, r->precise, 1, &r->elements),
           to = tensor_make(r->values, r->storage, 1, &r->elements);
    call_run(&OPS[OP_copy], &(Call){.in = {&from}, .out = {&to}, .device = r->device});
}

void registry_zero_grads(Registry *r) {
    const FillAttr zero = {0};
    Tensor grads = tensor_make(r->grads, r->precise, 1, &r->elements);
    call_run(&OPS[OP_fill], &(Call){.out = {&grads}, .attr = &zero, .device = r->device});
}

int64_t param_part_rows(const Param *p, int part) { return p->spec.groups * p->spec.parts[part].rows; }

int64_t param_part_row(const Param *p, int part, int64_t row) {
    int64_t before = 0, per_group = p->spec.dim[0] / p->spec.groups, rows = p->spec.parts[part].rows;
    for (int i = 0; i < part; i++) before += p->spec.parts[i].rows;
    return row / rows * per_group + before + row % rows;
}
