/* Golden cases in the layouts that fit the world, over the transport: a sweep of `isotron parity`
 * (validate/sweep.h). Each cell runs in its own process. The lane exact has sums that are exact in any
 * order, so NCCL has to agree bitwise with one rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "acceptance/stage.h"
#include "base/amount.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "validate/sweep.h"

/* The most important first. */
typedef struct Candidate {
    const char *golden, *lane, *options; /* W: the ranks, H: half of them */
    int ranks;                           /* that must divide the world */
} Candidate;

static const Candidate CANDIDATES[] = {
    {"llama-layouts", "fp64", "--tensor-model-parallel-size W --sequence-parallel", 2},
    {"gpt2-layouts", "exact", "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", 2},
    {"llama-layouts", "fp64", "--pipeline-model-parallel-size W", 2},
    {"llama-layouts", "fp64", "--context-parallel-size W", 2},
    {"mixtral-layouts", "fp64", "--expert-model-parallel-size W --moe-token-dispatcher-type alltoall", 2},
    {"llama-layouts", "bf16", "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", 2},
    {"llama-layouts", "exact", "--tensor-model-parallel-size 2 --pipeline-model-parallel-size H", 4},
    {"llama-layouts", "exact", "--context-parallel-size 2 --tensor-model-parallel-size H", 4},
    {"mixtral-layouts", "exact",
     "--tensor-model-parallel-size 2 --expert-model-parallel-size H --sequence-parallel", 4},
    {"gpt2-layouts", "fp32", "--tensor-model-parallel-size 2", 2},
};
enum { N_CANDIDATES = sizeof CANDIDATES / sizeof *CANDIDATES, CASES = 3 };
static const char *const GOLDEN[CASES] = {"llama-layouts", "gpt2-layouts", "mixtral-layouts"};
static const char *const ONE_RANK[] = {"llama-layouts fp64", "llama-layouts bf16", "mixtral-layouts fp64",
                                       "gpt2-layouts fp32"};

/* ---- the list ---- */

static void add_candidate(const Candidate *l, int ranks, Str *out) {
    str_printf(out, "%s %s --ranks %d ", l->golden, l->lane, ranks);
    for (const char *c = l->options; *c; c++)
        if (*c == 'W' || *c == 'H')
            str_printf(out, "%d", *c == 'W' ? ranks : ranks / 2);
        else
            str_add(out, c, 1);
    str_puts(out, "\n");
}

/* As many cells as the time allows, at least 2; none if no layout fits. */
static void make_list(const StageInput *in, Str *out) {
    const int ranks = stage_world(in);
    const double cell_s = stage_on_gpu(in) ? 4 : 1.5;
    int left = in->seconds < 2 * cell_s ? 2 : (int)(in->seconds / cell_s);
    for (size_t i = 0; ranks == 1 && i < sizeof ONE_RANK / sizeof *ONE_RANK && left; i++, left--)
        str_printf(out, "%s\n", ONE_RANK[i]);
    for (int i = 0; ranks > 1 && i < N_CANDIDATES && left; i++)
        if (ranks % CANDIDATES[i].ranks == 0) add_candidate(&CANDIDATES[i], ranks, out), left--;
}

/* ---- the sweep ---- */

static void report(const StageInput *in, const Sweep *s) {
    const SweepCounts n = sweep_counts(s);
    for (int64_t i = 0; i < s->n_cells; i++) {
        const Cell *c = &s->cells[i];
        if (cell_verdict(c) != VERDICT_FAIL) continue;
        Str why = {0};
        char suspect[96] = "not known";
        cell_reason(c, &why);
        if (c->result && c->result->finding.found)
            snprintf(suspect, sizeof suspect, "op %s, ranks %s", c->result->finding.op,
                     c->result->finding.ranks);
        outcome_add(in->out, ACCEPT_FAIL, suspect, "%s %s, %s: %.250s", c->of->golden->name,
                    Lane_spellings[c->lane], c->name, why.s ? why.s : "");
        str_free(&why);
    }
    for (int64_t i = 0; i < s->n_cells; i++)
        if (s->cells[i].skipped)
            outcome_limit(in->out, "parity: %s %s, which breaks a rule on %d ranks",
                          s->cells[i].of->golden->name, s->cells[i].words, stage_world(in));
    if (!n.of[VERDICT_PASS] && !n.of[VERDICT_FAIL])
        outcome_add(in->out, ACCEPT_INCONCLUSIVE, "", "no cell ran");
    outcome_sum_up(in->out, "%d of %s pass, in %s", (int)n.of[VERDICT_PASS],
                   amount(n.of[VERDICT_PASS] + n.of[VERDICT_FAIL], "cell").s, amount(n.layouts, "layout").s);
}

static Err sweep(const StageInput *in, const char *const *dirs, const char *list) {
    char *words[8], none[] = "";
    int n = 0;
    Arena *arena = arena_new();
    if (stage_on_gpu(in))
        words[n++] = arena_printf(arena, "--device"), words[n++] = arena_printf(arena, "cuda");
    words[n++] = arena_printf(arena, "--gemm-tuning");
    words[n++] = arena_printf(arena, "%s", GemmTuningOption_spellings[in->config.gemm_tuning]);
    if (in->config.nccl_library) {
        words[n++] = arena_printf(arena, "--nccl-library");
        words[n++] = arena_printf(arena, "%s", in->config.nccl_library);
    }
    const SweepOptions o = {.own = {.rows = NULL, .count = 0, .target = none},
                            .dirs = dirs,
                            .n_dirs = CASES,
                            .list = list,
                            .words = words,
                            .n_words = n,
                            .deadline_s = 60 + in->seconds};
    Sweep s;
    outcome_doing(in->out, "a sweep of golden cases");
    Err e = sweep_open(&o, &s);
    if (!e.code) e = sweep_check_device(&s);
    if (!e.code) sweep_run(&o, &s);
    if (!e.code) report(in, &s);
    sweep_free(&s);
    arena_free(arena);
    return e;
}

static Err sweep_list(const StageInput *in, const char *const *dirs, const Str *cells) {
    char list[40];
    const int fd = memfd_create("cells", MFD_CLOEXEC); /* a file that cannot stay behind */
    if (fd < 0) return file_failed("create", "a list of cells");
    snprintf(list, sizeof list, "/proc/self/fd/%d", fd);
    Err e = file_write_all(fd, list, cells->s, cells->len);
    if (!e.code) e = sweep(in, dirs, list);
    close(fd);
    return e;
}

Err stage_parity(const StageInput *in) {
    char *dirs[CASES];
    const char *root = in->options->golden;
    bool there = true;
    Str cells = {0};
    Err e = ERR_OK;
    for (int i = 0; i < CASES; i++) {
        dirs[i] = mem_printf("%s/%s", root, GOLDEN[i]);
        there &= file_is_dir(dirs[i]);
    }
    make_list(in, &cells);
    if (!there)
        outcome_limit(in->out, "parity: '%s' has no golden cases; --golden names their folder", root);
    else if (!cells.len)
        outcome_limit(in->out, "parity: no layout of the golden cases fits %s",
                      amount(stage_world(in), "rank").s);
    else
        e = sweep_list(in, (const char *const *)dirs, &cells);
    if (!there || !cells.len) outcome_add(in->out, ACCEPT_INCONCLUSIVE, "", "nothing to run");
    str_free(&cells);
    for (int i = 0; i < CASES; i++) free(dirs[i]);
    return e;
}
