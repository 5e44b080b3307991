#include "ckpt/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/folder.h"
#include "ckpt/quote.h"

struct Ckpt {
    char *dir, *folder;
    Manifest manifest;
    FileMap *maps; /* [num_files] */
};

void ckpt_close(Ckpt *c) {
    if (!c) return;
    for (int64_t i = 0; c->maps && i < c->manifest.num_files; i++) file_unmap(&c->maps[i]);
    manifest_free(&c->manifest);
    free(c->maps), free(c->dir), free(c->folder);
    free(c);
}

const Manifest *ckpt_manifest(const Ckpt *c) { return &c->manifest; }

/* ---- open ---- */

static Err open_manifest(Ckpt *c, int64_t iteration) {
    char *path = mem_printf("%s/manifest.json", c->folder);
    Str text = {0};
    Err e = file_read(path, &text);
    if (!e.code) e = manifest_parse(&c->manifest, path, text.s, text.len);
    if (!e.code && c->manifest.iteration != iteration)
        e = err_user("'%s' says it is of step %lld; its folder was renamed", path,
                     (long long)c->manifest.iteration);
    str_free(&text);
    free(path);
    return e;
}

static Err open_files(Ckpt *c) {
    c->maps = mem_zero((size_t)c->manifest.num_files + 1, sizeof *c->maps);
    Err e = ERR_OK;
    for (int64_t i = 0; i < c->manifest.num_files && !e.code; i++) {
        const CkptFile *f = &c->manifest.files[i];
        char *path = mem_printf("%s/%s", c->folder, f->name);
        e = file_map(path, &c->maps[i]);
        if (!e.code && (int64_t)c->maps[i].size != f->bytes)
            e = err_user("'%s' is damaged: it has %zu bytes, the manifest says %lld", path, c->maps[i].size,
                         (long long)f->bytes);
        free(path);
    }
    return e;
}

static Err open_folder(const char *dir, int64_t iteration, Ckpt **out) {
    Ckpt *c = mem_zero(1, sizeof *c);
    c->dir = mem_strdup(dir);
    c->folder = folder_path(dir, iteration, "");
    Err e = open_manifest(c, iteration);
    if (!e.code) e = open_files(c);
    if (e.code) ckpt_close(c), c = NULL;
    *out = c;
    return e;
}

/* ---- verify ---- */

static const unsigned char *stored(const Ckpt *c, const CkptTensor *t) {
    return c->maps[t->file].bytes + t->byte_offset;
}

static Err check_bytes(const Ckpt *c, const CkptTensor *t) {
    Hash128 h = hash128(stored(c, t), (size_t)t->bytes);
    if (h.hi == t->hash.hi && h.lo == t->hash.lo) return ERR_OK;
    return err_user("'%s/%s' is damaged: tensor %s does not have the bytes that were saved", c->folder,
                    c->manifest.files[t->file].name, ckpt_title(t).s);
}

static Err check_all_bytes(const Ckpt *c) {
    for (int64_t i = 0; i < c->manifest.count; i++) ERR_RETURN(check_bytes(c, &c->manifest.tensors[i]));
    return ERR_OK;
}

/* Adds what the user can do about a damaged checkpoint. */
static Err advise(Err e, const char *dir, int64_t damaged) {
    int64_t *all, n, found = -1;
    ckpt_list(dir, &all, &n);
    for (int64_t i = n - 1; i >= 0 && found < 0; i--) {
        Ckpt *c = NULL;
        if (all[i] != damaged && !open_folder(dir, all[i], &c).code && !check_all_bytes(c).code)
            found = all[i];
        ckpt_close(c);
    }
    free(all);
    Err longer = e;
    if (found < 0)
        snprintf(longer.msg, sizeof longer.msg, "%.800s; '%.100s' holds no other sound checkpoint", e.msg,
                 dir);
    else
        snprintf(longer.msg, sizeof longer.msg,
                 "%.800s; the newest other sound checkpoint is loaded with --ckpt-step %lld", e.msg,
                 (long long)found);
    return longer;
}

Err ckpt_open(const char *dir, int64_t iteration, Ckpt **out) {
    *out = NULL;
    if (iteration < 0) ERR_RETURN(ckpt_latest(dir, &iteration));
    if (iteration < 0) return err_user("'%s' holds no checkpoint; check the path", dir);
    Err e = open_folder(dir, iteration, out);
    return e.code ? advise(e, dir, iteration) : e;
}

Err ckpt_verify(const Ckpt *c) {
    Err e = check_all_bytes(c);
    return e.code ? advise(e, c->dir, c->manifest.iteration) : e;
}

/* ---- load ---- */

/* What is stored of one part: the shards [first, first + count) of the manifest. */
typedef struct Match {
    const Param *param;
    int part;
    const CkptItem *item;
    int64_t first, count;
} Match;

typedef struct Plan {
    const Ckpt *ckpt;
    Match *matches;
    int64_t n;
    unsigned char *is_used; /* of each stored tensor */
} Plan;

static CkptTensor wanted(const Param *p, int part, const CkptItem *item) {
    int64_t rows = param_part_rows(p, part), columns = p->spec.ndim == 2 ? p->spec.dim[1] : 1;
    return (CkptTensor){
        .name = p->spec.name,
        .suffix = item->suffix,
        .part = p->spec.parts[part].name,
        .ndim = p->spec.ndim,
        .global = {rows, columns},
        .box = {{0, 0}, {rows, columns}},
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

static Err check_match(const Ckpt *c, const CkptTensor *has, const CkptTensor *want, bool convert) {
    if (has->ndim != want->ndim || has->global[0] != want->global[0] || has->global[1] != want->global[1])
        return err_user("'%s': tensor %s is stored as [%lld, %lld], the model has [%lld, %lld]; give the "
                        "model options it was "
                        "trained with (--use-checkpoint-args takes them from the checkpoint)",
                        c->folder, ckpt_title(want).s, (long long)has->global[0], (long long)has->global[1],
                        (long long)want->global[0], (long long)want->global[1]);
    if (has->dtype != want->dtype && !convert)
        return err_user("'%s': tensor %s is stored as %s, this run keeps it as %s; use the --lane it was "
                        "saved with, or give "
                        "up the optimizer's state with --no-load-optim",
                        c->folder, ckpt_title(want).s, dtype_name(has->dtype), dtype_name(want->dtype));
    return ERR_OK;
}

static Err match_part(Plan *plan, const Param *p, int part, const CkptItem *item) {
    const Manifest *m = &plan->ckpt->manifest;
    const CkptTensor want = wanted(p, part, item);
    Match match = {p, part, item, first_not_less(m, &want), 0};
    while (match.first + match.count < m->count &&
           ckpt_same_part(&m->tensors[match.first + match.count], &want))
        plan->is_used[match.first + match.count++] = 1;
    if (!match.count)
        return err_user(
            "'%s' holds no tensor %s, which the model has; give the model options it was trained with "
            "(--use-checkpoint-args takes them from the checkpoint)",
            plan->ckpt->folder, ckpt_title(&want).s);
    plan->matches[plan->n++] = match;
    return check_match(plan->ckpt, &m->tensors[match.first], &want, item->convert);
}

static Err make_plan(Plan *plan, const Registry *r, const CkptItem *items, int n_items) {
    const Manifest *m = &plan->ckpt->manifest;
    for (int k = 0; k < n_items; k++) {
        for (int i = 0; i < r->n; i++)
            for (int part = 0; part < r->params[i]->spec.n_parts; part++)
                ERR_RETURN(match_part(plan, r->params[i], part, &items[k]));
        for (int64_t i = 0; i < m->count; i++)
            if (!plan->is_used[i] && !strcmp(m->tensors[i].suffix, items[k].suffix))
                return err_user("'%s' holds tensor %s, which the model does not have; give the model options "
                                "it was trained "
                                "with (--use-checkpoint-args takes them from the checkpoint)",
                                plan->ckpt->folder, ckpt_title(&m->tensors[i]).s);
    }
    return ERR_OK;
}

/* The rows and columns that a shard and the wanted box share. */
static void copy_shard(const Ckpt *c, const Match *match, const CkptTensor *shard) {
    const CkptItem *item = match->item;
    const CkptTensor want = wanted(match->param, match->part, item);
    Box both;
    if (!box_intersect(&shard->box, &want.box, &both)) return;
    for (int64_t i = 0; i < both.shape[0]; i++) {
        const int64_t row = both.offset[0] + i;
        const int64_t from =
            (row - shard->box.offset[0]) * shard->box.shape[1] + both.offset[1] - shard->box.offset[1];
        const int64_t to = match->param->offset +
                           param_memory_row(match->param, match->part, row) * want.global[1] + both.offset[1];
        dtype_convert((char *)item->flat + (size_t)to * dtype_size(item->dtype), item->dtype,
                      stored(c, shard) + (size_t)from * dtype_size(shard->dtype), shard->dtype,
                      (size_t)both.shape[1]);
    }
}

static Err execute(const Plan *plan) {
    const Ckpt *c = plan->ckpt;
    const CkptTensor *all = c->manifest.tensors;
    for (int64_t i = 0; i < c->manifest.count; i++)
        if (plan->is_used[i]) {
            Err e = check_bytes(c, &all[i]);
            if (e.code) return advise(e, c->dir, c->manifest.iteration);
        }
    for (int64_t i = 0; i < plan->n; i++)
        for (int64_t k = 0; k < plan->matches[i].count; k++)
            copy_shard(c, &plan->matches[i], &all[plan->matches[i].first + k]);
    return ERR_OK;
}

Err ckpt_load(const Ckpt *c, const Registry *r, const CkptItem *items, int n_items) {
    size_t parts = (size_t)r->n * PARAM_PARTS * (size_t)n_items;
    Plan plan = {c, mem_zero(parts + 1, sizeof *plan.matches), 0, mem_zero((size_t)c->manifest.count + 1, 1)};
    Err e = make_plan(&plan, r, items, n_items);
    if (!e.code) e = execute(&plan);
    free(plan.matches);
    free(plan.is_used);
    return e;
}

bool ckpt_has(const Ckpt *c, const char *suffix) {
    for (int64_t i = 0; i < c->manifest.count; i++)
        if (!strcmp(c->manifest.tensors[i].suffix, suffix)) return true;
    return false;
}
