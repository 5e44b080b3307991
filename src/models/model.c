#include "models/model.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "tape/tape_ops.h"

#define FAMILY(name) void plan_##name(const Config *, Arena *, ModelPlan *);
#include "config/families.def"
#undef FAMILY

/* ---- plan ---- */

static int64_t layers_of(const ModelPlan *p) {
    const StackSpec *last = &p->stack[p->n_stacks - 1];
    return last->below + last->n;
}

static bool head_reads(const ModelPlan *p, int stack) {
    int i = 0;
    while (i < p->n_heads && p->head[i].stack != stack) i++;
    return i < p->n_heads;
}

/* Lists the flows. A stack's stream crosses the stage borders inside the stack. A stack's output crosses the borders up
 * to the end of the next stack or, if a head reads the output, up to the end of the last stack. */
static void add_flows(ModelPlan *p) {
    const int64_t all = layers_of(p);
    p->n_flows = 2 * p->n_stacks - 1;
    for (int i = 0; i < p->n_stacks; i++) {
        const StackSpec *s = &p->stack[i], *next = s + 1;
        const bool last = i + 1 == p->n_stacks;
        const int64_t end = s->below + s->n;
        const bool auxiliary = i > p->head[0].stack;
        p->flow[i] = (FlowSpec){i, i ? s->below + 1 : 0, last ? end : end - 1, auxiliary};
        if (!last)
            p->flow[p->n_stacks + i] =
                (FlowSpec){i, end, head_reads(p, i) ? all : next->below + next->n - 1, auxiliary};
    }
}

static void add_losses(ModelPlan *p) {
    const HeadSpec *const end = p->head + p->n_heads;
    for (const HeadSpec *h = p->head; h < end; h++) {
        CHECK(p->n_losses + h->n_losses <= MODEL_LOSSES, "the model has more than %d losses", MODEL_LOSSES);
        memcpy(&p->loss[p->n_losses], h->loss, (size_t)h->n_losses * sizeof *p->loss);
        p->n_losses += h->n_losses;
        if (!h->loss[0].auxiliary) p->n_main = p->n_losses;
    }
    int of = 0;
    for (const HeadSpec *h = p->head; h < end; of += h++->n_losses)
        for (int i = 0; i < h->n_counts; i++) {
            CHECK(model_sums(p) < MODEL_LOSSES, "the model has more than %d losses and counts", MODEL_LOSSES);
            p->counted[p->n_counts] = of;
            p->loss[p->n_losses + p->n_counts++] = h->loss[h->n_losses + i];
        }
}

ModelPlan model_plan(const Config *c, Arena *arena) {
    static void (*const FAMILIES[])(const Config *, Arena *, ModelPlan *) = {
#define FAMILY(name) [MODEL_##name] = plan_##name,
#include "config/families.def"
#undef FAMILY
    };
    ModelPlan plan;
    FAMILIES[c->model](c, arena, &plan);
    plan.vocab = c->derived.vocab_size;
    plan.limit = config_is_unlimited(c) ? INT64_MAX : c->derived.max_position_embeddings;
    add_flows(&plan);
    add_losses(&plan);
    return plan;
}

double model_flops(const ModelPlan *p, int64_t samples) {
    double sum = 0;
    for (int i = 0; i < p->n_heads; i++)
        sum += p->head[i].ops->flops(p->head[i].spec, (double)p->stack[p->head[i].stack].positions);
    for (int i = 0; i < p->n_stacks; i++) sum += stack_flops(&p->stack[i]);
    return (double)samples * sum;
}

/* ---- stages ---- */

/* The part of a stack that a stage computes: layers [first, first + layers). If these layers include the
 * stack's first layer, the part also contains the input. If the layers include the last layer, the part also
 * contains the final norm. A stage without layers contains no input and no norm, except at the ends of the
 * model. */
typedef struct StackPart {
    int64_t first, layers;
    bool begins, ends;
} StackPart;

static StackPart stack_part(const ModelPlan *p, int stack, const StagePart *part) {
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

static void heads_init(Model *m) {
    for (int i = 0; i < m->plan.n_heads; i++) {
        const HeadSpec *head = &m->plan.head[i];
        m->head[i] = arena_alloc(m->registry->arena, head->ops->size);
        head->ops->init(m->head[i], m->registry, head->spec);
    }
}

static void stack_part_init(Model *m, int stack, const StackPart *part) {
    Registry *r = m->registry;
    r->repeats = m->plan.stack[stack].repeats;
    if (part->begins) stack_add_input(&m->stack[stack], r);
    stack_add_layers(&m->stack[stack], r, part->first, part->layers);
    if (part->ends) {
        registry_begin_unit(r);
        stack_add_final_norm(&m->stack[stack], r);
    }
    r->repeats = false;
}

static void stage_init(Model *m, const StagePart *stage) {
    for (int i = 0; i < m->plan.n_stacks; i++) {
        const StackPart part = stack_part(&m->plan, i, stage);
        stack_part_init(m, i, &part);
    }
    if (stage->head) heads_init(m);
}

/* Marks the weights whose learning rate depends on the width, as in Megatron-LM get_mup_config_overrides. */
static void mark_rescaled(const Config *c, Registry *r) {
    if (c->optimizer == OPTIMIZER_SGD)
        registry_mark_rescaled(r, false, f64_is_set(c->decoupled_lr) ? PARAM_EMBEDDING : 0);
    else
        registry_mark_rescaled(r, true, PARAM_MATRIX); /* Muon updates its matrices at its own rate */
}

/* Creates one rank's model, without tying its parameters. */
static Model *model_of(const Config *c, const ModelPlace *place) {
    Registry *r = registry_new(&place->layout);
    Model *m = arena_alloc(r->arena, sizeof *m);
    *m = (Model){.plan = model_plan(c, r->arena), .registry = r};
    const int ranks = place->layout.mesh.size[AXIS_PP], rank = place->layout.mesh.coordinate[AXIS_PP];
    m->stages = arena_alloc(r->arena, (size_t)place->n_stages * sizeof *m->stages);
    for (int i = 0; i < m->plan.n_stacks; i++) stack_init(&m->stack[i], r, &m->plan.stack[i]);
    for (int i = rank; i < place->n_stages; i += ranks) {
        m->stages[m->n_stages++] = place->stages[i];
        stage_init(m, &place->stages[i]);
    }
    for (int64_t i = 0; i < c->freeze_parameters.count; i++)
        registry_mark(r, c->freeze_parameters.at[i], PARAM_FROZEN);
    if (c->mtp_detach_heads) registry_mark(r, "mtp", PARAM_APART);
    if (c->optimizer == OPTIMIZER_MUON) registry_mark_matrices(r);
    if (c->use_mup) mark_rescaled(c, r);
    if (c->optimizer_cpu_offload) registry_mark_offloaded(r, c->optimizer_offload_fraction);
    return m;
}

/* Ties each parameter that several pipeline ranks register under the same name. */
static void tie(Model *m, const Config *c, const ModelPlace *place) {
    Registry *r = m->registry;
    const Mesh *own = &r->layout.mesh;
    const int stride = own->world / own->size[AXIS_PP];
    for (int rank = 0; rank < own->size[AXIS_PP]; rank++) {
        const bool is_own = rank == own->coordinate[AXIS_PP];
        ModelPlace there = *place;
        there.layout.mesh =
            mesh_make(own->world, own->rank + (rank - own->coordinate[AXIS_PP]) * stride, own->size);
        Model *other = is_own ? m : model_of(c, &there);
        for (int i = 0; i < r->n; i++)
            if (registry_find(other->registry, r->params[i]->spec.name))
                param_add_holder(r, r->params[i], rank);
        if (!is_own) model_free(other);
    }
}

/* Counts this rank's stages that use each parameter, because several virtual stages can share an embedding table. */
static void count_stages(Model *m, const Config *c, const ModelPlace *place) {
    const Registry *r = m->registry;
    const int ranks = r->layout.mesh.size[AXIS_PP], rank = r->layout.mesh.coordinate[AXIS_PP];
    for (int i = 0; i < r->n; i++) r->params[i]->stages = 0;
    for (int stage = rank; stage < place->n_stages; stage += ranks) {
        const ModelPlace only = {place->layout, place->stages + stage - rank, rank + 1};
        Model *part = model_of(c, &only);
        for (int i = 0; i < r->n; i++)
            r->params[i]->stages += registry_find(part->registry, r->params[i]->spec.name) != NULL;
        model_free(part);
    }
}

Model *model_new(const Config *c, const ModelPlace *place) {
    if (place) {
        Model *m = model_of(c, place);
        if (m->n_stages > 1) count_stages(m, c, place);
        if (place->layout.mesh.size[AXIS_PP] > 1) tie(m, c, place);
        return m;
    }
    Arena *arena = arena_new();
    const ModelPlan plan = model_plan(c, arena);
    const StagePart everything = {.layers = layers_of(&plan), .embedding = true, .head = true};
    Model *m = model_of(c, &(ModelPlace){layout_single(), &everything, 1});
    arena_free(arena);
    return m;
}

ModelCount model_count(const Config *c) {
    Model *whole = model_new(c, NULL);
    ModelCount n = {0};
    for (int i = 0; i < whole->registry->n; i++) {
        const Param *p = whole->registry->params[i];
        const int64_t own = p->spec.flags & PARAM_BUFFER ? 0 : param_logical_count(p);
        n.all += own;
        n.experts += p->spec.expert ? own : 0;
        n.trained += param_is_trained(p) ? own : 0;
        n.active += p->spec.expert ? own / c->num_experts * c->moe_router_topk : own;
    }
    model_free(whole);
    return n;
}

Err model_check_frozen(const Config *c) {
    const TextList *names = &c->freeze_parameters;
    if (!names->count) return ERR_OK;
    Err e = ERR_OK;
    Model *whole = model_new(c, NULL);
    Registry *r = whole->registry;
    for (int64_t i = 0; i < names->count && !e.code; i++)
        if (!registry_mark(r, names->at[i], PARAM_FROZEN))
            e = err_user(
                "--freeze-parameters %s: the model has no parameter or module with this name: specify a full "
                "name such as '%s', or the beginning of a name up to a dot, such as 'decoder.layers.0'",
                names->at[i], r->params[0]->spec.name);
    bool trains = false;
    for (int i = 0; i < r->n; i++) trains |= param_is_trained(r->params[i]);
    if (!e.code && !trains)
        e = err_user("--freeze-parameters leaves no parameter to train: freeze fewer parameters");
    model_free(whole);
    return e;
}

void model_note_precision(const Config *c, FILE *to) {
    Model *whole = c->precision_rules.count ? model_new(c, NULL) : NULL;
    for (int k = 0; k < c->precision_rules.count; k++) {
        const char *pattern = c->precision_rules.at[k].pattern;
        bool found = false;
        for (int i = 0; i < whole->registry->n && !found; i++) {
            const char *name = whole->registry->params[i]->spec.name, *end = strrchr(name, '.');
            char module[256];
            snprintf(module, sizeof module, "%.*s", end ? (int)(end - name) : 0, name);
            found = !fnmatch(pattern, module, FNM_NOESCAPE);
        }
        if (!found) fprintf(to, "note: no layer matches '%s' in %s\n", pattern, c->te_precision_config_file);
    }
    if (whole) model_free(whole);
}

void model_allocate(Model *m, Device *device, DType storage, int64_t positions, bool trains) {
    registry_allocate(m->registry, device, storage, trains);
    states_allocate(m->registry, positions);
    m->device = device;
}

void model_free(Model *m) {
    if (!m) return;
    states_free(m->registry);
    registry_free(m->registry); /* the model itself is allocated in the registry's arena */
}

/* ---- forward ---- */

/* Returns the feed for stack i. `encoded` is the previous stack's output. */
static const Feed *stack_feed(Tape *t, const ModelPlan *p, int i, const Feed *feed, Tensor *encoded) {
    Feed *own = feed_fields(t, feed, p->stack[i].fields, p->stack[i].n_fields);
    own->encoded = encoded && p->stack[i].detached ? tape_detach(t, encoded) : encoded;
    if (i != p->head[0].stack) own->cache = NULL;
    return own;
}

/* Stores a stack's output x [s, 1, h] if the cache has a pool for it. */
static Tensor *keep_output(Tape *t, const Feed *feed, Tensor *x) {
    if (!feed->cache || !feed->cache->output) return x;
    const int64_t dim[] = {x->dim[0], 1, 1, 1, x->dim[2]},
                  stride[] = {x->stride[0], x->dim[2], x->dim[2], x->dim[2], 1};
    op_store_rows(t, &feed->cache->positions, tape_view(t, x, 0, 5, dim, stride), feed->cache->output, NULL,
                  NULL);
    return x;
}

/* `output` contains the stacks' outputs. */
static Flow heads_forward(Tape *t, const Model *m, const Feed *feed, Tensor *const *output) {
    Flow out = {{NULL}};
    const int n = feed->labels ? m->plan.n_heads : 1;
    Tensor **loss = out.at, **count = out.at + m->plan.n_losses;
    for (int i = 0; i < n; i++) {
        const HeadSpec *head = &m->plan.head[i];
        Tensor *own[HEAD_LOSSES] = {NULL};
        if (output[head->stack])
            head->ops->forward(t, m->head[i], feed_fields(t, feed, head->fields, head->n_fields),
                               output[head->stack], feed->dloss + (loss - out.at), own);
        for (int k = 0; k < head->n_losses; k++) *loss++ = own[k];
        for (int k = 0; k < head->n_counts; k++) *count++ = own[head->n_losses + k];
    }
    return out;
}

/* Runs one stage. Each stack runs its layers in this stage. A stack's input runs before the stack's first
 * layer, and the final norm runs after the last layer. With sequence parallelism, the stream is V along the
 * sequence over tp, otherwise I. Logits are V along the vocabulary. Over cp, all tensors are V along the
 * sequence; over dp, along samples. */
Flow model_stage(Tape *t, const Model *m, int stage, const Feed *feed, Flow in) {
    const ModelPlan *p = &m->plan;
    const int last = p->n_stacks - 1;
    Flow out = {{NULL}};
    Tensor *output[MODEL_STACKS] = {NULL};
    for (int i = 0; i <= last; i++) {
        const Stack *stack = &m->stack[i];
        const StackPart part = stack_part(p, i, &m->stages[stage]);
        const Feed *own = stack_feed(t, p, i, feed, i ? output[i - 1] : NULL);
        Stream s = {.x = in.at[i]}; /* [s, b, h], V or I */
        if (part.begins && (!stack->spec->fields || own->field[stack->spec->fields->name]))
            s.x = stack->spec->input.ops->forward(t, stack->input, own);
        if (s.x && !part.ends) {
            out.at[i] = stack_output(t, stack, part.first, part.layers, own, s);
            break;
        }
        output[i] = s.x        ? keep_output(t, own, stack_end(t, stack, part.first, part.layers, own, s))
                    : i < last ? in.at[p->n_stacks + i]
                               : NULL;
    }
    if (m->stages[stage].head) return heads_forward(t, m, feed, output);
    memcpy(&out.at[p->n_stacks], output, (size_t)last * sizeof *output);
    return out;
}

Tensor *model_forward(Tape *t, const Model *m, const Feed *feed) {
    return model_stage(t, m, 0, feed, (Flow){{NULL}}).at[0];
}

Tensor *model_forward_ahead(Tape *t, const Model *m, int k, const Feed *feed) {
    const HeadSpec *head = &m->plan.head[k];
    const Stack *s = &m->stack[head->stack];
    Tensor *x = s->spec->input.ops->forward(t, s->input, feed), *out[HEAD_LOSSES];
    x = keep_output(t, feed, stack_end(t, s, 0, s->spec->n, feed, (Stream){.x = x}));
    head->ops->forward(t, m->head[k], feed, x, feed->dloss, out);
    return out[0];
}

SpmdType model_flow(const Model *m, int flow, int64_t b, int64_t dim[3]) {
    const Layout *l = &m->registry->layout;
    const int *size = l->mesh.size;
    const bool sharded = l->sequence_parallel && size[AXIS_TP] > 1;
    SpmdType type = 0;
    const StackSpec *s = &m->plan.stack[m->plan.flow[flow].stack];
    dim[0] = s->positions / size[AXIS_CP] / (sharded ? size[AXIS_TP] : 1);
    dim[1] = b;
    dim[2] = s->hidden;
    if (sharded) type = spmd_with(type, AXIS_TP, SPMD_V);
    if (size[AXIS_CP] > 1) type = spmd_with(type, AXIS_CP, SPMD_V);
    return size[AXIS_DP] > 1 ? spmd_with(type, AXIS_DP, SPMD_V) : type;
}

/* ---- router losses ---- */

/* Returns the index of the layer's MoE branch, or -1 if there is none. */
static int experts_at(const LayerSpec *l) {
    int k = l->n - 1;
    while (k >= 0 && l->branch[k].kind != BRANCH_moe) k--;
    return k;
}

bool model_has_experts(const ModelPlan *p) {
    for (const StackSpec *s = p->stack; s < p->stack + p->n_stacks; s++)
        for (const LayerSpec *l = s->layer; l < s->layer + s->n; l++)
            if (experts_at(l) >= 0) return true;
    return false;
}

double model_router_loss_coeff(const Model *m, int loss) {
    for (const StackSpec *s = m->plan.stack; s < m->plan.stack + m->plan.n_stacks; s++)
        for (const LayerSpec *l = s->layer; l < s->layer + s->n; l++) {
            const int k = experts_at(l);
            if (k >= 0) return ((const MoeSpec *)l->branch[k].spec)->router.loss_coeff[loss];
        }
    return 0;
}

double model_router_loss(const Model *m, const double *counters, int loss, double *by_layer) {
    const double *all = states_counters(m->registry, COMM_SUM)->data;
    double sum = 0;
    int64_t layers = 0, layer = 0;
    for (const Stack *s = m->stack; s < m->stack + m->plan.n_stacks; s++)
        for (int64_t i = 0; i < s->spec->n; i++, layer++) {
            const int k = experts_at(&s->spec->layer[i]);
            if (by_layer) by_layer[layer] = NAN;
            if (k < 0) continue;
            const MoeSpec *e = s->spec->layer[i].branch[k].spec;
            const double *own = s->counters[i * LAYER_BRANCHES + k]->data;
            const double x = router_loss_sum(counters + (own - all), e->router.experts, loss);
            if (by_layer) by_layer[layer] = x;
            sum += x;
            layers++;
        }
    return sum / (double)layers;
}
