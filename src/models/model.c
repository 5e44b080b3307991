#include "models/model.h"

#include <stdlib.h>

#include "base/fault.h"

#define FAMILY(name) extern const Family name##_family;
#include "config/families.def"
#undef FAMILY

static const Family *const FAMILIES[] = {
#define FAMILY(name) [MODEL_##name] = &name##_family,
#include "config/families.def"
#undef FAMILY
};

const Family *model_family(const Config *c) { return FAMILIES[c->model]; }

ModelPlan model_plan(const Config *c, const Derived *d, Arena *arena) {
    ModelPlan plan = {.n_stacks = 0};
    model_family(c)->plan(c, d, arena, &plan);
    return plan;
}

double model_flops(const ModelPlan *p, double s, int64_t samples) {
    double sum = p->head.ops->flops(p->head.spec, s);
    for (int i = 0; i < p->n_stacks; i++) sum += stack_flops(&p->stack[i], s);
    return (double)samples * sum;
}

/* ---- construction ---- */

static void head_init(Model *m) {
    Registry *r = m->registry;
    registry_begin_unit(r);
    stack_add_final_norm(&m->stack[m->plan.n_stacks - 1], r);
    const HeadSpec *head = &m->plan.head;
    Param *words = m->embedding.words;
    if (!head->tied)
        words = NULL;
    else if (!words)
        words = embedding_words(r, &m->plan.embedding, PARAM_TIED_COPY);
    m->head = arena_alloc(r->arena, head->ops->size);
    head->ops->init(m->head, r, head->spec, words);
}

static void stage_init(Model *m, const StagePart *part) {
    if (part->embedding) embedding_init(&m->embedding, m->registry, &m->plan.embedding);
    stack_add_layers(&m->stack[0], m->registry, part->first_layer, part->layers);
    if (part->head) head_init(m);
}

Model *model_new(const Config *c, const Derived *d, const ModelPlace *place) {
    StagePart everything = {.embedding = true, .head = true};
    const ModelPlace whole = {layout_single(), &everything, 1};
    if (!place) place = &whole;
    Registry *r = registry_new(&place->layout);
    Model *m = arena_alloc(r->arena, sizeof *m);
    *m = (Model){.family = model_family(c),
                 .config = c,
                 .derived = d,
                 .plan = model_plan(c, d, r->arena),
                 .registry = r,
                 .n_stages = place->n_stages};
    everything.layers = m->plan.stack[0].n;
    m->stages = arena_alloc(r->arena, (size_t)place->n_stages * sizeof *m->stages);
    for (int i = 0; i < m->plan.n_stacks; i++) stack_init(&m->stack[i], r, &m->plan.stack[i]);
    for (int i = 0; i < place->n_stages; i++) {
        m->stages[i] = place->stages[i];
        stage_init(m, &m->stages[i]);
    }
    if (m->plan.head.tied && m->embedding.words && !m->head) m->embedding.words->spec.flags |= PARAM_TIED;
    return m;
}

ModelCount model_count(const Config *c, const Derived *d) {
    Model *whole = model_new(c, d, NULL);
    ModelCount n = {0};
    for (int i = 0; i < whole->registry->n; i++) {
        const Param *p = whole->registry->params[i];
        const int64_t own = p->spec.flags & PARAM_BUFFER ? 0 : param_logical_count(p);
        n.all += own;
        n.experts += p->spec.expert ? own : 0;
        n.active += p->spec.expert ? own / c->num_experts * c->moe_router_topk : own;
    }
    model_free(whole);
    return n;
}

void model_allocate(Model *m, Device *device, DType storage, int64_t positions) {
    registry_allocate(m->registry, device, storage);
    states_allocate(m->registry, positions);
    m->device = device;
}

void model_free(Model *m) {
    if (!m) return;
    states_free(m->registry);
    registry_free(m->registry); /* the model itself lives in the registry's arena */
}

/* ---- forward ---- */

Flow model_stage(Tape *t, const Model *m, int stage, const Feed *feed, Flow in) {
    return m->family->stage(t, m, &m->stages[stage], feed, in);
}

Tensor *model_forward(Tape *t, const Model *m, const Feed *feed) {
    return model_stage(t, m, 0, feed, (Flow){{NULL}}).at[0];
}

SpmdType model_flow(const Model *m, int flow, int64_t b, int64_t dim[3]) {
    const Layout *l = &m->registry->layout;
    const int *size = l->mesh.size;
    const bool sharded = l->sequence_parallel && size[AXIS_TP] > 1;
    SpmdType type = 0;
    dim[0] = m->plan.flow[flow].positions / size[AXIS_CP] / (sharded ? size[AXIS_TP] : 1);
    dim[1] = b;
    dim[2] = m->plan.stack[m->plan.flow[flow].stack].hidden;
    if (sharded) type = spmd_with(type, AXIS_TP, SPMD_V);
    if (size[AXIS_CP] > 1) type = spmd_with(type, AXIS_CP, SPMD_V);
    return size[AXIS_DP] > 1 ? spmd_with(type, AXIS_DP, SPMD_V) : type;
}

/* ---- keys and values of generation ---- */

/* The spec of the layer's branch of that kind; NULL: none. */
static const void *branch_spec(const LayerSpec *l, BranchId kind) {
    for (int k = 0; k < l->n; k++)
        if (l->branch[k].kind == kind) return l->branch[k].spec;
    return NULL;
}

/* Keys or values of a layer, without memory; ndim 0: it has no attention. */
static Tensor cache_tensor(const StackSpec *s, int64_t layer, DType dtype, int64_t capacity, int64_t b) {
    const AttentionSpec *a = branch_spec(&s->layer[layer], BRANCH_attention);
    return a ? tensor_make(NULL, dtype, 5, (int64_t[]){capacity, b, a->groups, 1, a->head_dim}) : (Tensor){0};
}

double model_cache_bytes(const Model *m, DType dtype, int64_t capacity, int64_t b) {
    const StackSpec *s = &m->plan.stack[m->plan.n_stacks - 1];
    double bytes = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const Tensor position = cache_tensor(s, i, dtype, 1, 1);
        if (position.ndim) bytes += 2 * (double)tensor_bytes(&position) * (double)capacity * (double)b;
    }
    return bytes;
}

KvCache model_cache_new(const Model *m, DType dtype, int64_t capacity, int64_t b) {
    const StackSpec *s = &m->plan.stack[m->plan.n_stacks - 1];
    KvCache cache = {.k = mem_zero(2 * (size_t)s->n, sizeof *cache.k)};
    cache.v = cache.k + s->n;
    for (int64_t i = 0; i < 2 * s->n; i++) {
        cache.k[i] = cache_tensor(s, i % s->n, dtype, capacity, b);
        if (cache.k[i].ndim) cache.bytes += tensor_bytes(&cache.k[i]);
    }
    char *at = cache.block = device_alloc(m->device, cache.bytes, "KV cache");
    for (int64_t i = 0; i < 2 * s->n; i++) {
        if (!cache.k[i].ndim) continue;
        cache.k[i].data = at;
        at += tensor_bytes(&cache.k[i]);
    }
    return cache;
}

void model_cache_free(const Model *m, KvCache *cache) {
    device_release(m->device, cache->block, cache->bytes);
    free(cache->k);
    *cache = (KvCache){.length = 0};
}

/* ---- router losses ---- */

double model_router_loss_coeff(const Model *m, int loss) {
    for (int i = 0; i < m->plan.n_stacks; i++)
        for (int64_t k = 0; k < m->plan.stack[i].n; k++) {
            const MoeSpec *e = branch_spec(&m->plan.stack[i].layer[k], BRANCH_moe);
            if (e) return e->router.loss_coeff[loss];
        }
    return 0;
}

double model_router_loss(const Model *m, const double *counters, int loss) {
    const Tensor *all = states_counters(m->registry);
    double sum = 0;
    int64_t layers = 0;
    for (int i = 0; i < m->plan.n_stacks; i++)
        for (int64_t k = 0; k < m->plan.stack[i].n; k++) {
            const LayerSpec *l = &m->plan.stack[i].layer[k];
            for (int j = 0; j < l->n; j++) {
                if (l->branch[j].kind != BRANCH_moe) continue;
                const MoeSpec *e = l->branch[j].spec;
                const Tensor *own = m->stack[i].counters[k * LAYER_BRANCHES + j];
                const ptrdiff_t at = (double *)own->data - (double *)all->data;
                sum += router_loss_sum(counters + at, e->router.experts, loss);
                layers++;
            }
        }
    return sum / (double)layers;
}
