#include "pipeline/report.h"

#include <math.h>
#include <stdio.h>

void pipeline_draw(const PipelineSpec *s, const RankSchedule *schedules, const PipelineTimes *times,
                   const Simulation *simulation, double unit, Str *out) {
    int rank_digits = snprintf(NULL, 0, "%d", s->ranks - 1);
    int width = snprintf(NULL, 0, "%lld", (long long)s->microbatches - 1) + 2 + (s->chunks > 1);
    for (int rank = 0; rank < s->ranks; rank++) {
        int64_t column = 0;
        str_printf(out, "rank %*d  ", rank_digits, rank);
        for (int64_t i = 0; i < schedules[rank].count; i++) {
            const Action *a = &schedules[rank].actions[i];
            double start = simulation->ranks[rank].start[i],
                   end = start + pipeline_duration(s, times, rank, a);
            char label[32], chunk[] = {s->chunks > 1 ? (char)('a' + a->chunk % 26) : 0, 0};
            snprintf(label, sizeof label, "%c%lld%s", "FBIW"[a->kind], (long long)a -> microbatch, chunk);
            for (; column < llround(start / unit); column++) str_printf(out, "%-*s", width, ".");
            for (; column < llround(end / unit); column++) {
                str_printf(out, "%-*s", width, label);
                snprintf(label, sizeof label, "-");
            }
        }
        str_puts(out, "\n");
    }
}

static void print_layers(const PipelineLayout *l, int rank, Str *out) {
    for (int chunk = 0; chunk < l->chunks; chunk++) {
        const StagePart *stage = &l->stages[chunk * l->ranks + rank];
        str_puts(out, chunk ? " | " : "layers ");
        if (stage->embedding) str_puts(out, "embedding ");
        if (stage->layers)
            str_printf(out, "%lld-%lld", (long long)stage->first_layer,
                       (long long)(stage->first_layer + stage->layers - 1));
        else
            str_puts(out, "none");
        if (stage->head) str_puts(out, " loss");
    }
}

Err pipeline_report(const PipelineSpec *s, const PipelineLayout *layout, Str *out) {
    const int64_t most = 1 << 16;
    int64_t stages = (int64_t)s->ranks * s->chunks;
    if (stages > most || s->microbatches > most / stages)
        return err_user("%lld stages and %lld microbatches are too many to draw: lower --global-batch-size "
                        "or the pipeline sizes",
                        (long long)stages, (long long)s->microbatches);
    const PassTimes unit = {1, 1, 1};
    Arena *arena = arena_new();
    PassTimes *each = arena_alloc(arena, (size_t)stages * sizeof *each);
    RankSchedule *schedules = arena_alloc(arena, (size_t)s->ranks * sizeof *schedules);
    for (int64_t i = 0; i < stages; i++) each[i] = unit;
    for (int rank = 0; rank < s->ranks; rank++) schedules[rank] = pipeline_schedule(s, rank, arena);
    PipelineTimes times = {.stages = each};
    Simulation simulation;
    Err e = pipeline_simulate(s, schedules, &times, arena, &simulation);
    if (!e.code) {
        str_printf(out, "%s: ranks %d, chunks per rank %d, microbatches %lld\n",
                   PipelineSchedule_spellings[s->kind], s->ranks, s->chunks, (long long)s->microbatches);
        pipeline_draw(s, schedules, &times, &simulation, 1, out);
        for (int rank = 0; rank < s->ranks; rank++) {
            str_printf(out, "rank %d: ", rank);
            print_layers(layout, rank, out);
            str_printf(out, "; at most %lld in flight\n", (long long)simulation.ranks[rank].peak_slots);
        }
        double idle = simulation.makespan - simulation.ranks[0].busy, formula = pipeline_bubble(s, unit);
        str_printf(out, "bubble: %g of %g, %.1f %%; ", idle, simulation.makespan,
                   100 * idle / simulation.makespan);
        str_printf(out, isnan(formula) ? "there is no formula for this case\n" : "%g by the formula\n",
                   formula);
    }
    arena_free(arena);
    return e;
}
