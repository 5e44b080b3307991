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
    for (int i = 1; i < plan.n_stacks; i++)
        plan.stack[i].below = plan.stack[i - 1].below + plan.stack[i - 1].n;
    return plan;
}

double model_flops(const ModelPlan *p, int64_t samples) {
    const double s = (double)p->sample.positions;
    double sum = p->head.ops->flops(p->head.spec, s);
    for (int i = 0; i < p->n_stacks; i++)
        sum += stack_flops(&p->stack[i], i + 1 < p->n_stacks ? (double)p->sample.encoder : s);
    return (double)samples * sum;
}

/* ---- stages ---- */

int64_t model_layers(const ModelPlan *p) {
    const StackSpec *last = &p->stack[p->n_stacks - 1];
    return last->below + last->n;
}

/* A stage without layers has no part of a stack, except at the ends of the model. */
StackPart model_stack_part(const ModelPlan *p, int stack, const StagePart *part) {
    const StackSpec *s = &p->stack[stack];
    const int64_t from = part->first_layer > s->below ? part->first_layer : s->below;
    int64_t to = part->first_layer + part->layers;
    if (to > s->below + s->n) to = s->below + s->n;
    StackPart own = {.first = from - s->below, .layers = to > from ? to - from : 0};
    own.begins = stack ? own.layers && own.first == 0 : part->embedding;
    own.ends = stack + 1 < p->n_stacks ? own.layers && own.first + own.layers == s->n : part->head;
    return own;
}

/* ---- construction ---- */

static void head_init(Model *m) {
    Registry *r = m->registry;
    const HeadSpec *head = &m->plan.head;
    Param *words = NULL;
    if (head->tied) words = m->embedding.words ? m->embedding.words : embedding_words(r, &m->plan.embedding);
    m->head = arena_alloc(r->arena, head->ops->size);
    head->ops->init(m->head, r, head->spec, words);
}

static void stack_part_init(Model *m, int stack, const StackPart *part) {
    Registry *r = m->registry;
    if (part->begins && !m->embedding.words) embedding_init(&m->embedding, r, &m->plan.embedding);
    stack_add_layers(&m->stack[stack], r, part->first, part->layers);
    if (!part->ends) return;
    registry_begin_unit(r);
    stack_add_final_norm(&m->stack[stack], r);
}

static void stage_init(Model *m, const StagePart *stage) {
    for (int i = 0; i < m->plan.n_stacks; i++) {
        const StackPart part = model_stack_part(&m->plan, i, stage);
        stack_part_init(m, i, &part);
    }
    if (stage->head) head_init(m);
}

/* The model of one rank, whose parameters are not tied yet. */
static Model *model_of(const Config *c, const Derived *d, const ModelPlace *place) {
    Registry *r = registry_new(&place->layout);
    Model *m = arena_alloc(r->arena, sizeof *m);
    *m = (Model){.family = model_family(c),
                 .config = c,
                 .derived = d,
                 .plan = model_plan(c, d, r->arena),
                 .registry = r};
    const int ranks = place->layout.mesh.size[AXIS_PP], rank = place->layout.mesh.coordinate[AXIS_PP];
    m->stages = arena_alloc(r->arena, (size_t)place->n_stages * sizeof *m->stages);
    for (int i = 0; i < m->plan.n_stacks; i++) stack_init(&m->stack[i], r, &m->plan.stack[i]);
    for (int i = rank; i < place->n_stages; i += ranks) {
        m->stages[m->n_stages++] = place->stages[i];
        stage_init(m, &place->stages[i]);
    }
    return m;
}

/* A parameter is tied if several pipeline ranks register its name. */
static void tie(Model *m, const ModelPlace *place) {
    Registry *r = m->registry;
    const Mesh *own = &r->layout.mesh;
    const int stride = own->world / own->size[AXIS_PP];
    for (int rank = 0; rank < own->size[AXIS_PP]; rank++) {
        const bool is_own = rank == own->coordinate[AXIS_PP];
        ModelPlace there = *place;
        there.layout.mesh =
            mesh_make(own->world, own->rank + (rank - own->coordinate[AXIS_PP]) * stride, own->size);
        Model *other = is_own ? m : model_of(m->config, m->derived, &there);
        for (int i = 0; i < r->n; i++)
            if (registry_find(other->registry, r->params[i]->spec.name))
                param_add_holder(r, r->params[i], rank);
        if (!is_own) model_free(other);
    }
}

/* Counts the stages of this rank that use each parameter: several virtual stages may share a table. */
static void count_stages(Model *m, const ModelPlace *place) {
    const Registry *r = m->registry;
    const int ranks = r->layout.mesh.size[AXIS_PP], rank = r->layout.mesh.coordinate[AXIS_PP];
    for (int i = 0; i < r->n; i++) r->params[i]->stages = 0;
    for (int stage = rank; stage < place->n_stages; stage += ranks) {
        const ModelPlace only = {place->layout, place->stages + stage - rank, rank + 1};
        Model *part = model_of(m->config, m->derived, &only);
        for (int i = 0; i < r->n; i++)
            r->params[i]->stages += registry_find(part->registry, r->params[i]->spec.name) != NULL;
        model_free(part);
    }
}

Model *model_new(const Config *c, const Derived *d, const ModelPlace *place) {
    if (place) {
        Model *m = model_of(c, d, place);
        if (m->n_stages > 1) count_stages(m, place);
        if (place->layout.mesh.size[AXIS_PP] > 1) tie(m, place);
        return m;
    }
    Arena *arena = arena_new();
    const ModelPlan plan = model_plan(c, d, arena);
    const StagePart everything = {.layers = model_layers(&plan), .embedding = true, .head = true};
    Model *m = model_of(c, d, &(ModelPlace){layout_single(), &everything, 1});
    arena_free(arena);
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

void model_allocate(Model *m, Device *device, DType storage, int64_t positions, bool trains) {
    registry_allocate(m->registry, device, storage, trains);
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

/* ---- router losses ---- */

/* The spec of the layer's branch of that kind; NULL: none. */
static const void *branch_spec(const LayerSpec *l, BranchId kind) {
    for (int k = 0; k < l->n; k++)
        if (l->branch[k].kind == kind) return l->branch[k].spec;
    return NULL;
}

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
