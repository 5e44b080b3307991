/* Allocates memory for registered parameters, draws their initial values, and tracks which gradients are unwritten. */
#include <math.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "param/bucket.h"
#include "param/fp8_weights.h"
#include "param/quantized.h"

static Tensor whole(const Registry *r, const Param *p, void *flat, FlatBuffer which) {
    Tensor t = {.dtype = (uint8_t)registry_dtype(r, which)};
    if (bucket_is_whole(r, &r->buckets[p->bucket], which))
        t = registry_slice(r, which, flat, p->bucket, p->offset, p->count);
    return tensor_make(t.data, (DType)t.dtype, p->spec.ndim, (int64_t[]){p->rows, p->columns});
}

/* Returns the SPMD type of a parameter. On axes of size 1, the type is I. */
static SpmdType type_of(const Layout *l, const ParamSpec *s) {
    const int *size = l->mesh.size;
    const Axis axis = s->expert ? AXIS_ETP : AXIS_TP;
    const Axis *copies = s->expert ? (const Axis[]){AXIS_EDP, AXIS_EDP} : (const Axis[]){AXIS_CP, AXIS_DP};
    SpmdType t = 0;
    if (size[axis] > 1)
        t = spmd_with(t, axis, s->tp_split != SPLIT_NONE ? SPMD_V : s->invariant ? SPMD_I : SPMD_R);
    if (s->expert && size[AXIS_EP] > 1) t = spmd_with(t, AXIS_EP, SPMD_V);
    for (int i = 0; i < 2; i++)
        if (size[copies[i]] > 1) t = spmd_with(t, copies[i], SPMD_R);
    return t;
}

void *registry_host_alloc(const Registry *r, size_t bytes, const char *what) {
    if (r->device->kind == DEVICE_NULL || !bytes) return NULL;
    return memset(device_host_alloc(r->device, bytes, what), 0, bytes);
}

void registry_allocate(Registry *r, Device *device, DType storage, bool trains) {
    r->device = device;
    r->trains = trains;
    r->storage = storage;
    r->precise = storage == F64 ? F64 : F32;
    r->gradients = storage == BF16 && r->layout.data.bf16_grads ? BF16 : r->precise;
    for (int i = 0; i < r->n; i++)
        if (!trains || !param_is_trained(r->params[i])) r->params[i]->fp8 = NULL;
    buckets_lay(r);
    r->values = device_alloc(device, registry_flat_bytes(r, FLAT_VALUES), "parameters");
    r->fp8 = device_alloc(device, registry_flat_bytes(r, FLAT_FP8), "FP8 parameters");
    fp8_weights_allocate(r);
    quantized_allocate(r);
    r->grads = device_alloc(device, registry_flat_bytes(r, FLAT_GRADS), "main gradients");
    r->masters = dtype_is_16bit(storage)
                     ? device_alloc(device, registry_flat_bytes(r, FLAT_MASTERS), "master parameters")
                     : r->values;
    r->host_masters =
        registry_host_alloc(r, registry_offloaded_bytes(r, FLAT_MASTERS), "offloaded master parameters");
    for (int i = 0; i < r->n; i++) {
        Param *p = r->params[i];
        p->value = whole(r, p, bucket_values(&r->buckets[p->bucket]) == FLAT_FP8 ? r->fp8 : r->values,
                         bucket_values(&r->buckets[p->bucket]));
        if (param_is_quantized(p)) p->value.dtype = (uint8_t)p->spec.quantized;
        p->master = whole(r, p, r->masters, FLAT_MASTERS);
        p->main_grad = whole(r, p, r->grads, FLAT_GRADS);
        p->main_grad.flags = TENSOR_ACCUM | TENSOR_MAIN_GRAD;
        p->value.spmd = type_of(&r->layout, &p->spec);
        p->value.cut = (int8_t)(p->spec.tp_split + 1);
        if (!param_is_trained(p)) continue;
        p->value.flags = TENSOR_NEEDS_GRAD;
        p->value.grad = &p->main_grad;
    }
}

size_t registry_value_bytes(const Registry *r) {
    return registry_flat_bytes(r, FLAT_VALUES) + registry_flat_bytes(r, FLAT_FP8) + r->fp8_scale_bytes +
           r->row_scale_bytes;
}

size_t registry_bytes(const Registry *r) {
    return registry_value_bytes(r) + registry_flat_bytes(r, FLAT_GRADS) +
           registry_flat_bytes(r, FLAT_MASTERS);
}

/* The rows to draw, which start at row `first` and are limited to elements [begin, end) of the flat layout. */
typedef struct Draw {
    const Param *param;
    int64_t first, begin, end;
    void *out; /* the address of element `begin` */
    DType type;
    uint64_t seed, site;
} Draw;

double init_from_bits(const Init *init, uint32_t bits) {
    const double u = (bits + 0.5) * 0x1p-32, x = init->value * pow(100, u - 1);
    switch (init->kind) {
    case INIT_UNIFORM:
        return init->value * (2 * u - 1);
    case INIT_LOG:
        return log(1 + (init->value - 1) * u);
    case INIT_SOFTPLUS:
        return x + log(-expm1(-x));
    default:
        return init->value;
    }
}

static void store(const Draw *d, int64_t at, double z) {
    const float x = (float)z;
    if (d->type == F64)
        ((double *)d->out)[at] = (double)x;
    else
        ((float *)d->out)[at] = x;
}

/* Global elements 2i and 2i + 1 are the halves of one Box-Muller pair. */
static void draw_rows(void *arg, int64_t begin, int64_t end) {
    const Draw *d = arg;
    const Param *p = d->param;
    const int64_t width = p->spec.ndim == 2 ? p->spec.dim[1] : 1;
    const Init *init = &p->spec.init;
    for (int64_t row = d->first + begin; row < d->first + end; row++) {
        const int64_t global = param_global_row(p, row), first = global * width + p->first_column;
        const int64_t at = p->offset + row * p->columns, before = d->begin - at, until = d->end - at;
        const int64_t from = before > 0 ? before : 0, to = until < p->columns ? until : p->columns;
        double z[2];
        for (int64_t k = from; global < 0 && k < to; k++) store(d, k - before, 0); /* padding */
        for (int64_t k = from, e; global >= 0 && k < to; k++) {
            e = first + k;
            if (init->kind != INIT_NORMAL)
                z[e % 2] = init_from_bits(init, philox_u32(d->seed, d->site, (uint64_t)e));
            else if (k == from || e % 2 == 0)
                philox_normal_pair(d->seed, d->site, (uint64_t)e / 2, z);
            store(d, k - before, init->kind == INIT_NORMAL ? init->value * z[e % 2] : z[e % 2]);
        }
    }
}

/* Blocks of host memory for draws. A discrete device copies one block while the host fills the other. */
typedef struct Staging {
    void *block[2]; /* NULL if the host can access the device's memory */
    int next;
} Staging;

static int64_t rows_together(const Registry *r, const Param *p) {
    const int64_t most = VIEW_BYTES / (p->columns * (int64_t)dtype_size(r->precise)) + 1;
    return most < p->rows ? most : p->rows;
}

static void draw(Registry *r, const Param *p, int64_t first, int64_t rows, uint64_t seed, Staging *staging) {
    /* for fewer elements, a second thread costs more time than it saves */
    enum { ELEMENTS_PER_THREAD = 2048 };
    const FlatRange held = r->ranges[FLAT_MASTERS][p->bucket];
    const int64_t from = p->offset + first * p->columns, to = from + rows * p->columns;
    Draw d = {.param = p, .first = first, .type = r->precise, .seed = seed, .site = hash_name(p->spec.name)};
    d.begin = from > held.begin ? from : held.begin;
    d.end = to < held.end ? to : held.end;
    if (d.end <= d.begin) return;
    const size_t size = dtype_size(r->precise);
    void *at = registry_slice(r, FLAT_MASTERS, r->masters, p->bucket, d.begin, 0).data;
    void *block = staging->block[staging->next];
    d.out = block ? block : at;
    pool_for(r->device->pool, rows, ELEMENTS_PER_THREAD / p->columns + 1, draw_rows, &d);
    if (!block) return;
    device_wait(r->device); /* for the copy from the other block, which is filled next */
    device_copy(r->device, at, block, (size_t)(d.end - d.begin) * size);
    staging->next = 1 - staging->next;
}

void registry_init(Registry *r, uint64_t seed) {
    if (r->device->kind == DEVICE_NULL) return;
    CHECK(r->trains || r->masters == r->values, "initial values need masters");
    size_t most = 0;
    for (int i = 0; i < r->n; i++) {
        const size_t bytes =
            (size_t)(rows_together(r, r->params[i]) * r->params[i]->columns) * dtype_size(r->precise);
        if (bytes > most) most = bytes;
    }
    Staging staging = {0};
    const int blocks = device_is_discrete(r->device) ? 2 : 0;
    for (int k = 0; k < blocks; k++) staging.block[k] = device_host_alloc(r->device, most, "initial values");
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        const int64_t together = rows_together(r, p);
        for (int64_t row = 0; row < p->rows; row += together)
            draw(r, p, row, p->rows - row < together ? p->rows - row : together, seed, &staging);
    }
    device_wait(r->device);
    for (int k = 0; k < blocks; k++) device_host_release(r->device, staging.block[k], most);
    registry_round_values(r);
}

/* Rounds the values in buckets whose parameters have the given flags, or in all buckets if `flags` is 0. */
static void round_values(Registry *r, unsigned flags) {
    for (int k = 0; r->masters != r->values && k < r->n_buckets; k++) {
        if (r->buckets[k].fp8 || (flags && !(r->laid[r->buckets[k].first]->spec.flags & flags))) continue;
        const FlatRange *h = &r->ranges[FLAT_MASTERS][k];
        const int64_t n = h->end - h->begin;
        Tensor from = registry_slice(r, FLAT_MASTERS, r->masters, k, h->begin, n),
               to = registry_slice(r, FLAT_VALUES, r->values, k, h->begin, n);
        call_run(&OPS[OP_copy], &(Call){.in = {&from}, .out = {&to}, .device = r->device});
    }
}

void registry_round_buffers(Registry *r) { round_values(r, PARAM_BUFFER); }

void registry_round_values(Registry *r) { round_values(r, 0); }

void registry_zero(const Registry *r, Tensor *x) {
    const FillAttr attr = {0};
    call_run(&OPS[OP_fill], &(Call){.out = {x}, .attr = &attr, .device = r->device});
}

static void mark_written(Param *p) { p->main_grad.flags |= TENSOR_ACCUM; }

void grads_mark_written(Registry *r) {
    for (int i = 0; i < r->n; i++) mark_written(r->params[i]);
}

bool grads_are_unwritten(const Registry *r) {
    for (int i = 0; i < r->n; i++)
        if (grad_is_unwritten(&r->params[i]->main_grad)) return true;
    return false;
}

/* Parameters that are not trained, and the gaps between parameters in the flat buffer, have no gradient, so
 * these elements of the buffer stay 0. */
void grad_mark_unwritten(Param *p) {
    if (param_is_trained(p)) p->main_grad.flags &= (uint8_t)~TENSOR_ACCUM;
}

void grads_mark_unwritten(Registry *r) {
    for (int i = 0; i < r->n; i++) grad_mark_unwritten(r->params[i]);
}

void grad_zero_unwritten(Registry *r, Param *p) {
    if (grad_is_unwritten(&p->main_grad)) registry_zero(r, &p->main_grad);
    mark_written(p);
}

void grads_zero_unwritten(Registry *r) {
    for (int i = 0; i < r->n; i++) grad_zero_unwritten(r, r->params[i]);
}

void registry_snap(Registry *r, FlatBuffer which, int bits) {
    const bool values = which == FLAT_MASTERS && r->masters == r->values;
    void *flat = which == FLAT_GRADS ? r->grads : r->masters;
    Tensor all = tensor_make(flat, registry_dtype(r, which), 1, &r->held[values ? FLAT_VALUES : which]);
    const SnapAttr attr = {bits};
    call_run(&OPS[OP_snap], &(Call){.out = {&all}, .attr = &attr, .device = r->device});
}
