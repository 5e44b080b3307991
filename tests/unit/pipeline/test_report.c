/* Tests how schedules are printed. */
#include "unit/err.h"
#include "unit/pipeline/plan.h"

#include "pipeline/report.h"

TEST(pictures_are_the_papers_figures) {
    Arena *arena = arena_new();
    Str text = {0};
    Plan p;
    plan_make(&p, arena, (PipelineSpec){SCHEDULE_1F1B, 2, 1, 3, 2, false, false, false},
              (PassTimes){1, 1, 1});
    plan_play(&p);
    pipeline_draw(&p.spec, p.ranks, &p.times, &p.out, 1, &text);
    plan_make(&p, arena, (PipelineSpec){SCHEDULE_ZERO_BUBBLE, 2, 1, 3, 2, false, false, false},
              (PassTimes){1, 1, 1});
    plan_play(&p);
    pipeline_draw(&p.spec, p.ranks, &p.times, &p.out, 1, &text);
    assert_string_equal(text.s, "rank 0  F0 F1 .  .  B0 -  F2 B1 -  .  B2 -  \n"
                                "rank 1  .  F0 B0 -  F1 B1 -  F2 B2 -  \n"
                                "rank 0  F0 F1 .  I0 W0 F2 I1 W1 I2 W2 \n"
                                "rank 1  .  F0 I0 F1 I1 W0 F2 I2 W1 W2 \n");
    str_free(&text);
    arena_free(arena);
}

TEST(a_report_counts_layers_slots_and_bubble) {
    Str text = {0};
    StagePart stages[] = {
        {0, 2, true, false}, {2, 1, false, false}, {3, 0, false, false}, {3, 1, false, true}};
    PipelineLayout layout = {2, 2, stages};
    PipelineSpec s = {SCHEDULE_INTERLEAVED, 2, 2, 2, 2, false, false, false};
    assert_ok(pipeline_report(&s, &layout, &text));
    assert_string_equal(text.s, "interleaved: ranks 2, chunks per rank 2, microbatches 2\n"
                                "rank 0  F0a F1a F0b F1b .   .   B0b -   .   B1b -   B0a -   B1a -   \n"
                                "rank 1  .   F0a F1a F0b B0b -   F1b B1b -   B0a -   B1a -   \n"
                                "rank 0: layers embedding 0-1 | none; at most 4 in flight\n"
                                "rank 1: layers 2-2 | 3-3 loss; at most 3 in flight\n"
                                "bubble: 3 of 15, 20.0 %; 3 by the formula\n");
    s.microbatches = 1 << 20;
    assert_int_equal(pipeline_report(&s, &layout, &text).code, ERR_USER);
    str_free(&text);
}
