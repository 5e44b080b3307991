/* Planted bugs in the placement of parameters, in groups of ranks, and in schedules. */
#include <string.h>

#include "data/data.h"
#include "models/model.h"
#include "mutants/mutants.h"
#include "param/bucket.h"
#include "parity/golden.h"
#include "pipeline/schedule.h"
#include "tape/tape.h"

/* ---- parameters ---- */

static bool is_called(const Param *p, const char *part) { return strstr(p->spec.name, part); }

static bool is_head_norm(const Param *p) {
    return is_called(p, "q_layernorm") || is_called(p, "k_layernorm");
}

HOOK(unsigned, param_sum_axes, const Param *p) {
    const unsigned tp = 1u << AXIS_TP, axes = __real_param_sum_axes(p);
    const bool norm = is_called(p, "layernorm");
    if (mutant_is(M_norms_not_summed) && norm && !is_head_norm(p)) return axes & ~tp;
    if (mutant_is(M_head_norms_not_summed) && is_head_norm(p)) return axes & ~tp;
    if (mutant_is(M_row_biases_not_summed) && is_called(p, ".bias") && !norm) return axes & ~tp;
    if (mutant_is(M_router_not_summed) && is_called(p, "router")) return axes & ~tp;
    if (mutant_is(M_norms_summed_again) && norm) return axes | tp;
    return axes;
}

/* Decides which rank counts a parameter in norms. */
HOOK(bool, param_is_primary, const Registry *r, const Param *p) {
    const bool speaks = __real_param_is_primary(r, p);
    if (!mutant_place()->lays_norms) return speaks;
    if (mutant_is(M_norm_counts_copies)) return true;
    if (mutant_is(M_norm_misses_shards)) return speaks && r->layout.mesh.coordinate[AXIS_TP] == 0;
    if (mutant_is(M_norm_misses_experts))
        return speaks && (!p->spec.expert || r->layout.mesh.coordinate[AXIS_EP] == 0);
    return speaks;
}

HOOK(Param *, param_add, Registry *r, ParamSpec s) {
    if (mutant_is(M_gate_up_contiguous) && !s.expert) s.split_parts = false;
    return __real_param_add(r, s);
}

/* ---- groups ---- */

HOOK(Group, mesh_group, const Mesh *m, unsigned mask) {
    const unsigned data = 1u << AXIS_CP | 1u << AXIS_DP, experts = 1u << AXIS_EDP;
    if (mutant_is(M_cp_not_summed) && mask == data) mask = 1u << AXIS_DP;
    if (mutant_is(M_experts_not_summed) && mask == experts) mask = 0;
    if (mutant_is(M_experts_summed_over_dp) && mask == experts) mask = data;
    return __real_mesh_group(m, mask);
}

HOOK(Group, tape_group, const Tape *t, unsigned mask) {
    if (mutant_is(M_wrong_group) && mask == 1u << AXIS_TP) mask = 1u << AXIS_DP;
    return __real_tape_group(t, mask);
}

/* ---- pipeline ---- */

static Action *find(const RankSchedule *s, ActionKind kind, int64_t microbatch) {
    for (int64_t i = 0; i < s->count; i++)
        if (s->actions[i].kind == kind && s->actions[i].microbatch == microbatch) return &s->actions[i];
    return NULL;
}

static void drop_last(RankSchedule *s, ActionKind kind) {
    for (int64_t i = s->count; i-- > 0;)
        if (s->actions[i].kind == kind) {
            memmove(&s->actions[i], &s->actions[i + 1], (size_t)(s->count - i - 1) * sizeof *s->actions);
            s->count--;
            return;
        }
}

/* Swaps microbatches 0 and 1 in all passes of one kind. */
static void swap_microbatches(RankSchedule *s, ActionKind kind) {
    Action *a = find(s, kind, 0), *b = find(s, kind, 1);
    if (a && b) a->microbatch = 1, b->microbatch = 0;
}

static void swap_slots(RankSchedule *s, ActionKind kind) {
    Action *a = find(s, kind, 0), *b = find(s, kind, 1);
    if (!a || !b) return;
    const int64_t slot = a->slot;
    a->slot = b->slot, b->slot = slot;
}

/* Alternates between two buffers, as if a message were needed only until the next action. */
static void alternate_buffers(RankSchedule *s, ActionKind kind) {
    for (int64_t i = 0; i < s->count; i++)
        if (s->actions[i].kind == kind) s->actions[i].buffer %= 2;
}

HOOK(RankSchedule, pipeline_schedule, const PipelineSpec *spec, int rank, Arena *arena) {
    RankSchedule s = __real_pipeline_schedule(spec, rank, arena);
    if (spec->forward_only) return s;
    if (mutant_is(M_labels_of_other_microbatch)) swap_microbatches(&s, ACTION_FORWARD);
    if (mutant_is(M_activations_of_other_microbatch)) swap_slots(&s, ACTION_BACKWARD);
    if (mutant_is(M_received_too_early)) alternate_buffers(&s, ACTION_FORWARD);
    if (mutant_is(M_last_backward_skipped)) drop_last(&s, ACTION_BACKWARD);
    if (mutant_is(M_weight_pass_skipped)) drop_last(&s, ACTION_BACKWARD_WEIGHT);
    return s;
}

/* Assigns virtual stages to ranks in blocks instead of round-robin: rank 0 gets the first chunks. */
HOOK(Err, pipeline_layout, const Config *c, Arena *arena, PipelineLayout *out) {
    const Err e = __real_pipeline_layout(c, arena, out);
    if (e.code || !mutant_is(M_chunks_in_blocks) || out->chunks != 2 || out->ranks != 2) return e;
    const StagePart kept = out->stages[1];
    out->stages[1].first_layer = out->stages[2].first_layer;
    out->stages[2].first_layer = kept.first_layer;
    return e;
}

/* ---- data ---- */

static void move_samples(Batch *b, int64_t by) {
    for (int64_t i = 0; i < b->b; i++) b->indices[i] += by;
}

HOOK(void, golden_batch, const Golden *g, int64_t step, Batch *b) {
    if (mutant_is(M_dp_same_samples)) move_samples(b, -mutant_place()->mesh.coordinate[AXIS_DP] * b->b);
    if (mutant_is(M_dp_sample_offset) && b->indices[0] > 0) move_samples(b, -1);
    __real_golden_batch(g, step, b);
}

HOOK(Batch, batch_slice, const Batch *b, int ranks, int rank, Arena *arena) {
    if (mutant_is(M_cp_chunks_of_neighbour)) rank = (rank + 1) % ranks;
    Batch x = __real_batch_slice(b, ranks, rank, arena);
    for (int64_t i = 0; i < x.b * x.shape.positions; i++) {
        if (mutant_is(M_cp_positions_local)) x.position_ids[i] = i % x.shape.positions;
        if (mutant_is(M_position_off_by_one) && x.position_ids[i] > 0) x.position_ids[i]--;
        if (mutant_is(M_cp_boundary_label) && i % x.shape.positions == x.shape.positions / 2 - 1)
            x.labels[i] = x.tokens[i + 1];
    }
    if (mutant_is(M_cp_ahead_of_own_tokens)) batch_look_ahead(&x);
    return x;
}
