#include "models/stack.h"

#include <string.h>

#include "base/hash.h"
#include "ops/dropout.h"
#include "ops/residual.h"
#include "ops/scale.h"
#include "param/state.h"

/* ---- construction ---- */

void stack_init(Stack *m, Registry *r, const StackSpec *s) {
    *m = (Stack){.spec = s, .layer = arena_alloc(r->arena, (size_t)s->n * sizeof *m->layer)};
    m->counters = arena_alloc(r->arena, (size_t)s->n * LAYER_BRANCHES * sizeof *m->counters);
    for (int64_t i = 0; i < s->n; i++) {
        m->layer[i].n = 0;
        for (int k = 0; k < s->layer[i].n; k++) {
            const BranchSpec *b = &s->layer[i].branch[k];
            const BranchOps *ops = BRANCHES[b->kind].ops;
            const int64_t n = ops->counters ? ops->counters(b->spec) : 0;
            m->counters[i * LAYER_BRANCHES + k] = n ? state_counters(r, ops->reduction, n) : NULL;
        }
    }
}

static bool norms_input(const BranchSpec *s) { return s->norms == NORM_INPUT || s->norms == NORM_BOTH; }

static bool norms_output(const BranchSpec *s) { return s->norms == NORM_OUTPUT || s->norms == NORM_BOTH; }

static bool norms_sum(const BranchSpec *s) { return s->norms == NORM_SUM; }

static const char *branch_scope(const StackSpec *s, int64_t layer, int k, Arena *arena) {
    if (s->numbered) return arena_printf(arena, "%s.%s.layers.%d", s->name, s->only, k);
    return s->only ? arena_printf(arena, "%s.%s", s->name, s->only)
                   : arena_printf(arena, "%s.layers.%lld", s->name, (long long)layer);
}

static void branch_init(const Stack *m, Registry *r, int64_t layer, int k, Branch *b) {
    const BranchSpec *s = &m->spec->layer[layer].branch[k];
    const BranchKind *kind = &BRANCHES[s->kind];
    const char *scope = branch_scope(m->spec, layer, k, r->arena);
    *b = (Branch){.spec = s,
                  .self = arena_alloc(r->arena, kind->ops->size),
                  .cache = stack_caches(m->spec, &r->layout, layer, k, NULL)};
    if (norms_input(s))
        b->norm = norm_new(r, arena_printf(r->arena, "%s.%s", scope, kind->norm), m->spec->hidden, s->norm);
    kind->ops->init(b->self, r, arena_printf(r->arena, "%s.%s", scope, kind->scope), s->spec,
                    m->counters[layer * LAYER_BRANCHES + k]);
    if (norms_output(s) || norms_sum(s))
        b->post_norm =
            norm_new(r, arena_printf(r->arena, "%s.%s", scope, kind->post_norm), m->spec->hidden, s->norm);
    b->dropout_site = hash_name(arena_printf(r->arena, "%s.%s", scope, kind->dropout));
}

void stack_add_input(Stack *m, Registry *r) {
    if (m->input) return;
    m->input = arena_alloc(r->arena, m->spec->input.ops->size);
    m->spec->input.ops->init(m->input, r, m->spec->input.spec);
}

void stack_add_layers(Stack *m, Registry *r, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i++) {
        Layer *l = &m->layer[i];
        l->parallel = m->spec->layer[i].parallel;
        registry_begin_unit(r);
        for (l->n = 0; l->n < m->spec->layer[i].n; l->n++) branch_init(m, r, i, l->n, &l->branch[l->n]);
    }
}

void stack_add_final_norm(Stack *m, Registry *r) {
    if (!m->spec->has_final) return;
    m->final = norm_new(r, arena_printf(r->arena, "%s.final_layernorm", m->spec->name), m->spec->hidden,
                        m->spec->final);
}

/* ---- forward ---- */

typedef struct BranchRun {
    const Branch *branch;
    const Feed *feed;
} BranchRun;

static Tensor *branch_forward(Tape *t, void *run, Tensor *x_sbh) {
    const BranchRun *r = run;
    const Branch *b = r->branch;
    Tensor *cache = r->feed->cache ? &r->feed->cache->pool[b->cache] : NULL;
    return BRANCHES[b->spec->kind].ops->forward(t, b->self, r->feed, cache, x_sbh);
}

/* Computes the branch's output from x [s, b, h], which is already normalized if the branch has an input norm. */
static Tensor *branch_output(Tape *t, const Branch *b, const Feed *feed, Tensor *x) {
    BranchRun *run = tape_alloc(t, sizeof *run);
    *run = (BranchRun){b, feed};
    Tensor *h = b->spec->recompute ? tape_block(t, branch_forward, run, x) : branch_forward(t, run, x);
    if (norms_output(b->spec)) h = norm_forward(t, &b->post_norm, h);
    h = op_scale(t, h, b->spec->multiplier);
    return op_dropout(t, h, b->spec->dropout, b->dropout_site);
}

static Tensor *normed(Tape *t, void *norm, Tensor *x) { return norm_forward(t, norm, x); }

static bool discards_input(const Branch *b) { return norms_input(b->spec) && b->spec->recompute_norm; }

/* Returns the branch's input, after adding the previous branch's output to the stream. */
static Tensor *branch_input(Tape *t, const Branch *b, Stream *s) {
    const bool mlp = b->spec->kind == BRANCH_mlp || b->spec->kind == BRANCH_moe;
    const bool fuses = norms_input(b->spec) && !b->spec->recompute_norm && !b->spec->offloads;
    if (fuses) return stream_norm(t, &b->norm, s);
    tape_module_begin(t, mlp ? OFFLOAD_MLP_NORM : OFFLOAD_ATTN_NORM);
    *s = (Stream){stream_sum(t, *s), NULL};
    tape_module_end(t);
    if (!norms_input(b->spec)) return s->x;
    if (b->spec->recompute_norm) return tape_block_discarded(t, normed, (void *)&b->norm, s->x);
    if (!mlp) tape_module_begin(t, OFFLOAD_QKV_LINEAR);
    Tensor *x = norm_forward(t, &b->norm, s->x);
    tape_module_end(t);
    return x;
}

static Stream parallel_forward(Tape *t, const Layer *l, const Feed *feed, Stream s) {
    Tensor *x[LAYER_BRANCHES], *sum = NULL;
    for (int k = 0; k < l->n; k++) {
        const Branch *b = &l->branch[k];
        x[k] = b->spec->norms == NORM_SHARED ? x[0] : branch_input(t, b, &s);
        Tensor *h = branch_output(t, b, feed, x[k]);
        sum = sum ? op_add(t, sum, h) : h;
    }
    for (int k = l->n; k-- > 0;)
        if (discards_input(&l->branch[k])) tape_discard(t, x[k]);
    tape_modules_leave(t);
    return (Stream){s.x, sum};
}

static Stream layer_forward(Tape *t, const Layer *l, const Feed *feed, Stream s) {
    if (l->parallel) return parallel_forward(t, l, feed, s);
    for (const Branch *b = l->branch; b < l->branch + l->n; b++) {
        Tensor *x = branch_input(t, b, &s);
        s.branch = branch_output(t, b, feed, x);
        if (discards_input(b)) tape_discard(t, x);
        tape_modules_leave(t);
        if (norms_sum(b->spec)) s = (Stream){stream_norm(t, &b->post_norm, &s), NULL};
    }
    return s;
}

typedef struct LayersRun {
    const Stack *stack;
    const Feed *feed;
    int64_t first, n;
} LayersRun;

static Stream layers_forward(Tape *t, const LayersRun *r, Stream s) {
    for (int64_t i = r->first; i < r->first + r->n; i++)
        s = layer_forward(t, &r->stack->layer[i], r->feed, s);
    return s;
}

static Tensor *layers_block(Tape *t, void *run, Tensor *x_sbh) {
    return stream_sum(t, layers_forward(t, run, (Stream){x_sbh, NULL}));
}

/* Runs layers without a later backward pass. After each layer, all its tensors except the stream are freed. */
static Stream layers_freed(Tape *t, const Stack *m, int64_t first, int64_t n, const Feed *feed, Stream s) {
    tape_frees_begin(t);
    for (int64_t i = first; i < first + n; i++) {
        s = layer_forward(t, &m->layer[i], feed, s);
        tape_free_except(t, (const Tensor *[]){s.x, s.branch}, 2);
    }
    tape_frees_end(t);
    return s;
}

static bool is_block(const StackSpec *s, int64_t i) {
    return s->recompute == RECOMPUTES_CHUNKS || (s->recompute == RECOMPUTES_FIRST && i < s->recomputed);
}

static Stream run_stack(Tape *t, const Stack *m, int64_t first, int64_t n, const Feed *feed, Stream s,
                        bool leaves) {
    const StackSpec *spec = m->spec;
    const int64_t chunk = spec->recompute == RECOMPUTES_CHUNKS ? spec->recomputed : 1;
    if (feed->releases) return layers_freed(t, m, first, n, feed, s);
    for (int64_t i = 0; i < n; i += chunk) {
        LayersRun *run = tape_alloc(t, sizeof *run);
        *run = (LayersRun){m, feed, first + i, chunk < n - i ? chunk : n - i};
        const int64_t number = spec->below + first + i;
        const bool offloads = number < spec->offloaded;
        if (offloads) tape_offload_begin(t, number);
        if (is_block(spec, i)) {
            Tensor *x = stream_sum(t, s);
            if (leaves && i + chunk >= n) tape_output_next(t);
            s = (Stream){tape_block(t, layers_block, run, x), NULL};
        } else {
            s = layers_forward(t, run, s);
        }
        if (offloads) tape_offload_end(t, number);
    }
    return s;
}

Tensor *stack_end(Tape *t, const Stack *m, int64_t first, int64_t n, const Feed *feed, Stream s) {
    s = run_stack(t, m, first, n, feed, s, false);
    return m->spec->has_final ? stream_norm(t, &m->final, &s) : stream_sum(t, s);
}

Tensor *stack_output(Tape *t, const Stack *m, int64_t first, int64_t n, const Feed *feed, Stream s) {
    s = run_stack(t, m, first, n, feed, s, true);
    tape_output_next(t);
    return stream_sum(t, s);
}

/* ---- facts ---- */

int stack_caches(const StackSpec *m, const Layout *l, int64_t layer, int k, CacheSpec *out) {
    CacheSpec some[BRANCH_CACHES];
    int n = 0;
    for (int64_t i = 0; i <= layer; i++)
        for (int j = 0; j < (i < layer ? m->layer[i].n : k); j++) {
            const BranchSpec *b = &m->layer[i].branch[j];
            const BranchOps *ops = BRANCHES[b->kind].ops;
            const int count = ops->caches ? ops->caches(b->spec, l, some) : 0;
            if (out) memcpy(out + n, some, (size_t)count * sizeof *out);
            n += count;
        }
    return n;
}

double stack_flops(const StackSpec *m) {
    const InputSpec *input = &m->input;
    double sum = input->ops->flops ? input->ops->flops(input->spec, (double)m->positions) : 0;
    for (int64_t i = 0; i < m->n; i++)
        for (int k = 0; k < m->layer[i].n; k++)
            sum += BRANCHES[m->layer[i].branch[k].kind].ops->flops(m->layer[i].branch[k].spec,
                                                                   (double)m->positions);
    return sum;
}
