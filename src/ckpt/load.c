#include <stdlib.h>
#include <string.h>

#include "ckpt/reader.h"
#include "ckpt/shard_boxes.h"
#include "comm/agree.h"

/* The intersection of a stored box and this rank's part of an item. */
typedef struct Overlap {
    Param *param;
    int part;
    const CkptItem *item;
    const CkptTensor *stored;
    Box box;
} Overlap;

typedef struct Plan {
    const Ckpt *ckpt;
    Overlap *overlaps;
    int64_t n;
    /* [number of tensors in the manifest]; whether any rank has the tensor's parameter */
    unsigned char *is_known;
} Plan;

/* Returns the key for manifest lookups: the full part as one box. */
static CkptTensor wanted(const Param *p, int part, const CkptItem *item) {
    return (CkptTensor){
        .name = p->spec.name,
        .suffix = item->suffix,
        .part = p->spec.parts[part].name,
        .ndim = p->spec.ndim,
        .global = {param_part_rows(p, part), p->spec.ndim == 2 ? p->spec.dim[1] : 1},
        .dtype = item->dtype,
    };
}

static int64_t first_not_less(const Manifest *m, const CkptTensor *key) {
    int64_t low = 0, high = m->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ckpt_tensor_order(&m->tensors[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns the advice for errors about tensors that do not fit the model. */
static const char *remedy(const Ckpt *c) {
    return c->remedy ? c->remedy
                     : "use a checkpoint of the same model, or use the checkpoint's options "
                       "(--use-checkpoint-args)";
}

static Err check_match(const Ckpt *c, const CkptTensor *has, const CkptTensor *want, bool convert) {
    if (param_is_fp8_state(want->name) && has->global[1] != want->global[1])
        return err_user("'%s' contains FP8 amaxes for %lld steps, but this run keeps %lld steps; set "
                        "--fp8-amax-history-len %lld",
                        c->folder, (long long)has->global[1] - 1, (long long)want->global[1] - 1,
                        (long long)has->global[1] - 1);
    if (has->ndim != want->ndim || has->global[0] != want->global[0] || has->global[1] != want->global[1])
        return err_user(
            "'%s': tensor %s has the shape [%lld, %lld], but in this model it has the shape [%lld, %lld]; %s",
            c->folder, ckpt_title(want).s, (long long)has->global[0], (long long)has->global[1],
            (long long)want->global[0], (long long)want->global[1], remedy(c));
    if (has->dtype != want->dtype && !convert)
        return err_user(
            "'%s': tensor %s is stored as %s, but this run stores it as %s; use the saved run's --lane, "
            "--exp-avg-dtype and --exp-avg-sq-dtype, or omit the optimizer state with --no-load-optim",
            c->folder, ckpt_title(want).s, dtype_name(has->dtype), dtype_name(want->dtype));
    return ERR_OK;
}

static void add_overlaps(Plan *plan, Overlap like, const CkptTensor *stored, int64_t n_stored) {
    Box *held;
    const int64_t n = held_boxes(like.param, like.part, like.item, &held);
    for (int64_t i = 0; i < n_stored; i++)
        for (int64_t k = 0; k < n; k++) {
            if (!box_intersect(&stored[i].box, &held[k], &like.box)) continue;
            like.stored = &stored[i];
            if (!(plan->n & (plan->n - 1)))
                plan->overlaps = mem_grow(plan->overlaps, (size_t)plan->n * 2 + 1, sizeof like);
            plan->overlaps[plan->n++] = like;
        }
    free(held);
}

static bool is_optional(const CkptItem *item, const char *name) {
    for (const char *const *start = item->optional; start && *start; start++)
        if (!strncmp(name, *start, strlen(*start))) return true;
    return false;
}

static Err match_part(Plan *plan, Param *p, int part, const CkptItem *item) {
    const Manifest *m = &plan->ckpt->manifest;
    const CkptTensor want = wanted(p, part, item);
    const int64_t first = first_not_less(m, &want);
    int64_t end = first;
    while (end < m->count && ckpt_same_part(&m->tensors[end], &want)) plan->is_known[end++] = 1;
    if (end == first && param_is_fp8_state(want.name) && !ckpt_has_fp8_state(plan->ckpt)) return ERR_OK;
    if (end == first && is_optional(item, want.name)) return ERR_OK;
    if (end == first && *item->suffix)
        return err_user(
            "'%s' has no tensor %s: the run that saved it did not train this parameter "
            "(--freeze-parameters), or trained it with another --optimizer; omit the optimizer state with "
            "--no-load-optim",
            plan->ckpt->folder, ckpt_title(&want).s);
    if (end == first)
        return err_user("'%s' has no tensor %s, but the model needs it; %s", plan->ckpt->folder,
                        ckpt_title(&want).s, remedy(plan->ckpt));
    ERR_RETURN(check_match(plan->ckpt, &m->tensors[first], &want, item->convert));
    add_overlaps(plan, (Overlap){.param = p, .part = part, .item = item}, &m->tensors[first], end - first);
    return ERR_OK;
}

static Err match_all(Plan *plan, const Registry *r, const CkptItem *items, int n_items) {
    for (int k = 0; k < n_items; k++)
        for (int i = 0; i < r->n; i++)
            for (int part = 0; part < r->params[i]->spec.n_parts; part++)
                if (held_is_stored(r->params[i], &items[k]))
                    ERR_RETURN(match_part(plan, r->params[i], part, &items[k]));
    return ERR_OK;
}

/* Returns whether any rank has a parameter for one of the stored FP8 scales. */
static bool knows_fp8_state(const Plan *plan) {
    const Manifest *m = &plan->ckpt->manifest;
    for (int64_t i = 0; i < m->count; i++)
        if (plan->is_known[i] && param_is_fp8_state(m->tensors[i].name)) return true;
    return false;
}

/* Returns an error, the same on all ranks, if the checkpoint contains tensors that no rank has. */
static Err refuse_unknown(const Plan *plan, const CkptItem *items, int n_items) {
    const Ckpt *c = plan->ckpt;
    const Manifest *m = &c->manifest;
    if (c->comm)
        comm_all_reduce(c->comm, comm_everyone(c->comm), "ckpt_load", COMM_MAX, U8, plan->is_known, m->count);
    const bool scales = knows_fp8_state(plan);
    static const char STATE[] =
        " of a parameter that this run does not train (--freeze-parameters), or trains "
        "with another --optimizer; omit the optimizer state with --no-load-optim";
    for (int k = 0; k < n_items; k++)
        for (int64_t i = 0; i < m->count; i++)
            if (!plan->is_known[i] && (scales || !param_is_fp8_state(m->tensors[i].name)) &&
                !is_optional(&items[k], m->tensors[i].name) && !strcmp(m->tensors[i].suffix, items[k].suffix))
                return err_user("'%s' holds tensor %s%s%s", c->folder, ckpt_title(&m->tensors[i]).s,
                                *items[k].suffix ? STATE : ", which the model does not have; ",
                                *items[k].suffix ? "" : remedy(c));
    return ERR_OK;
}

/* Checks each stored box's hash once. Overlaps with the same box are consecutive. */
static Err check_bytes(const Plan *plan) {
    for (int64_t i = 0; i < plan->n; i++)
        if (!i || plan->overlaps[i].stored != plan->overlaps[i - 1].stored)
            ERR_RETURN(open_check(plan->ckpt, plan->overlaps[i].stored));
    return ERR_OK;
}

/* Copies rows [row, row + n) of the overlap, which are contiguous in the item. */
static void copy_run(const Ckpt *c, const Overlap *o, int64_t row, int64_t n, Device *device) {
    const CkptTensor *t = o->stored;
    const DType dtype = o->item->dtype;
    const int64_t width = o->box.shape[1], first = o->box.offset[0] + row, column = o->box.offset[1];
    char *to = held_at(o->param, o->part, o->item, first, column);
    const size_t size = dtype_size(dtype);
    DeviceView v = device_view(device, to, (size_t)(n * width) * size, VIEW_WRITE);
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = (first + i - t->box.offset[0]) * t->box.shape[1] + column - t->box.offset[1];
        dtype_convert((char *)v.data + (size_t)(i * width) * size, dtype,
                      ckpt_tensor_bytes(c, t) + (size_t)from * dtype_size(t->dtype), t->dtype, (size_t)width);
    }
    device_view_end(&v);
}

static void load_copy(const Ckpt *c, const Overlap *o, Device *device) {
    for (int64_t row = 0, n; row < o->box.shape[0]; row += n) {
        n = held_run(o->param, o->part, o->item, &o->box, row);
        copy_run(c, o, row, n, device);
    }
}

Err ckpt_load(const Ckpt *c, const Registry *r, const CkptItem *items, int n_items) {
    Plan plan = {.ckpt = c, .is_known = mem_zero((size_t)c->manifest.count + 1, 1)};
    Err e = comm_agree(c->comm, match_all(&plan, r, items, n_items));
    if (!e.code) e = refuse_unknown(&plan, items, n_items);
    if (!e.code) e = ckpt_agree(c, check_bytes(&plan));
    for (int64_t i = 0; i < plan.n && !e.code; i++) {
        const Overlap *o = &plan.overlaps[i];
        load_copy(c, o, r->device);
        const bool ends = i + 1 == plan.n || o[1].param != o->param || o[1].item != o->item;
        if (o->item->each && ends) o->item->each(o->item->arg, o->param);
    }
    free(plan.overlaps);
    free(plan.is_known);
    return e;
}
