/* Runs golden cases over the transport, in the layouts that fit the number of ranks, as a sweep of `isotron parity`
 * (parity/sweep.h). On a CPU, each cell runs in a separate process. On GPUs, all cells run in the process of the stage,
 * because opening GPUs takes longer than a cell. In the lane `exact`, sums are exact in any order, so results over NCCL
 * must be bitwise equal to one rank's results. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "parity/sweep.h"
#include "validate/stage.h"

/* The list begins with one layout of each kind of parallelism. Variants, combinations of two kinds of
 * parallelism, and other lanes follow. */
typedef struct Candidate {
    /* in `options`, the letter F is replaced by 4, or by 2 if there are two ranks */
    const char *golden, *lane, *options;
    int ranks; /* minimum number of ranks */
} Candidate;

#define TP    "--tensor-model-parallel-size "
#define SP    " --sequence-parallel"
#define PP    "--pipeline-model-parallel-size "
#define CP    "--context-parallel-size "
#define EP    "--expert-model-parallel-size "
#define ETP   "--expert-tensor-parallel-size "
#define FSDP  "--use-megatron-fsdp --data-parallel-sharding-strategy "
#define TO_EP " --moe-token-dispatcher-type alltoall"
#define ZERO1 "--use-distributed-optimizer"

static const Candidate CANDIDATES[] = {
    {"llama-layouts", "fp64", TP "F" SP, 2},
    {"gpt2-layouts", "exact", ZERO1 " --overlap-grad-reduce --overlap-param-gather", 2},
    {"llama-layouts", "fp64", PP "F", 2},
    {"llama-layouts", "fp64", CP "F", 2},
    {"mixtral-layouts", "fp64", EP "F" TO_EP, 2},
    {"llama-layouts", "fp64", FSDP "optim_grads_params --overlap-param-gather", 2},
    {"mixtral-layouts", "fp64", TP "2" SP " " ETP "2", 2},
    {"llama-layouts", "fp64", ZERO1 " --num-distributed-optimizer-instances 2", 4},
    {"llama-layouts", "fp64", TP "F", 2},
    {"llama-layouts", "fp64", PP "2 --num-virtual-stages-per-pipeline-rank 2", 2},
    {"llama-layouts", "fp64", PP "F --pipeline-schedule zero-bubble", 2},
    {"llama-layouts", "fp64", CP "F --cp-comm-type a2a", 2},
    {"llama-layouts", "fp64", CP "F --cp-comm-type allgather", 2},
    {"llama-layouts", "fp64", "", 2},
    {"llama-layouts", "fp64", FSDP "optim_grads", 2},
    {"mixtral-layouts", "fp64", EP "F", 2},
    {"llama-layouts", "exact", TP "2 " PP "2", 4},
    {"llama-layouts", "exact", CP "2 " TP "2", 4},
    {"mixtral-layouts", "exact", TP "2 " EP "2" SP TO_EP, 4},
    {"mixtral-layouts", "fp64", TP "2 " EP "2 " ETP "2" SP, 4},
    {"llama-layouts", "fp64", PP "2 " CP "2", 4},
    {"llama-layouts", "fp64", TP "2 " PP "2 --pipeline-schedule zero-bubble", 4},
    {"llama-layouts", "exact", PP "F", 2},
    {"llama-layouts", "exact", CP "F", 2},
    {"llama-layouts", "bf16", FSDP "optim_grads_params", 2},
    {"gpt2-layouts", "fp32", TP "F", 2},
};
enum { N_CANDIDATES = sizeof CANDIDATES / sizeof *CANDIDATES, CASES = 3 };
static const char *const GOLDEN[CASES] = {"llama-layouts", "gpt2-layouts", "mixtral-layouts"};
static const char *const ONE_RANK[] = {"llama-layouts fp64", "llama-layouts bf16", "mixtral-layouts fp64",
                                       "gpt2-layouts fp32"};

/* ---- the list ---- */

/* Returns the number of ranks per cell. Golden batches contain 8 sequences, so the number of ranks must be a
 * power of two. */
static int cell_ranks(const StageInput *in) {
    enum { MOST = 8 };
    int ranks = 1;
    while (2 * ranks <= stage_world(in) && ranks < MOST) ranks *= 2;
    return ranks;
}

static void add_candidate(const Candidate *l, int ranks, Str *out) {
    str_printf(out, "%s %s --ranks %d ", l->golden, l->lane, ranks);
    for (const char *c = l->options; *c; c++)
        if (*c == 'F')
            str_printf(out, "%d", ranks < 4 ? ranks : 4);
        else
            str_add(out, c, 1);
    str_puts(out, "\n");
}

/* Lists the cells [first, end) that fit the number of ranks, one per line. Returns the number of all cells that
 * fit. */
static int list_cells(int ranks, int first, int end, Str *out) {
    int n = 0;
    for (size_t i = 0; ranks == 1 && i < sizeof ONE_RANK / sizeof *ONE_RANK; i++, n++)
        if (n >= first && n < end) str_printf(out, "%s\n", ONE_RANK[i]);
    for (int i = 0; ranks > 1 && i < N_CANDIDATES; i++) {
        if (ranks < CANDIDATES[i].ranks) continue;
        if (n >= first && n < end) add_candidate(&CANDIDATES[i], ranks, out);
        n++;
    }
    return n;
}

/* ---- the sweep ---- */

/* The number of cells in all sweeps. */
typedef struct Tally {
    int all, ran, passed, failed;
} Tally;

static void report(const StageInput *in, const Sweep *s, Tally *t) {
    const SweepCounts n = sweep_counts(s);
    t->passed += (int)n.of[VERDICT_PASS], t->failed += (int)n.of[VERDICT_FAIL];
    for (int64_t i = 0; i < s->n_cells; i++) {
        const Cell *c = &s->cells[i];
        if (cell_verdict(c) != VERDICT_FAIL) continue;
        Str why = {0};
        char suspect[96] = "not known";
        cell_reason(c, &why);
        if (c->result && c->result->finding.found)
            snprintf(suspect, sizeof suspect, "op %s, ranks %s", c->result->finding.op,
                     c->result->finding.ranks);
        outcome_add(in->out, VALIDATE_FAIL, suspect, "%s %s, %s: %.250s", c->of->golden->name,
                    Lane_spellings[c->lane], c->name, why.s ? why.s : "");
        str_free(&why);
    }
    for (int64_t i = 0; i < s->n_cells; i++)
        if (s->cells[i].skipped)
            outcome_limit(in->out, "parity: %s %s, which breaks a rule on %d ranks",
                          s->cells[i].of->golden->name, s->cells[i].words, cell_ranks(in));
}

static Err sweep(const StageInput *in, const char *const *dirs, const char *list, Tally *t) {
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
                            .here = stage_on_gpu(in),
                            .deadline_s = 60 + in->seconds};
    Sweep s;
    Err e = sweep_open(&o, &s);
    if (!e.code) sweep_run(&o, &s);
    if (!e.code) report(in, &s, t);
    sweep_free(&s);
    arena_free(arena);
    return e;
}

static Err sweep_list(const StageInput *in, const char *const *dirs, const Str *cells, Tally *t) {
    char list[40];
    outcome_doing(in->out, "golden cases, from: %.*s", (int)strcspn(cells->s, "\n"), cells->s);
    /* the file has no name, and need not be deleted */
    const int fd = memfd_create("cells", MFD_CLOEXEC);
    if (fd < 0) return file_failed("create", "a list of cells");
    snprintf(list, sizeof list, "/proc/self/fd/%d", fd);
    Err e = file_write_all(fd, list, cells->s, cells->len);
    if (!e.code) e = sweep(in, dirs, list, t);
    close(fd);
    return e;
}

static void finish(const StageInput *in, const Tally *t) {
    const int ranks = cell_ranks(in), judged = t->passed + t->failed;
    if (!judged) outcome_add(in->out, VALIDATE_INCONCLUSIVE, "", "no cell was run");
    outcome_sum_up(in->out, "%d of %s pass, of %d for %s", t->passed, amount(judged, "cell").s, t->all,
                   amount(ranks, "rank").s);
    if (t->ran < t->all)
        outcome_limit(in->out, "parity: %d of the %s for %s, for which there was no time", t->all - t->ran,
                      amount(t->all, "cell").s, amount(ranks, "rank").s);
    if (ranks < stage_world(in))
        outcome_limit(in->out,
                      "parity: layouts of more than %d ranks, because the golden cases do not fit %d ranks",
                      ranks, stage_world(in));
}

/* Sweeps as many cells as the time allows, but at least 2. The first sweep measures the time for a cell. On
 * GPUs, each sweep has one cell, so that the report can name the cell that ended the process. */
static Err sweep_all(const StageInput *in, const char *const *dirs) {
    const int64_t start = clock_ns();
    const double guess_s = 1.5;
    const int ranks = cell_ranks(in), least = 2;
    Tally t = {.all = list_cells(ranks, 0, 0, NULL)};
    int next = in->seconds < least * guess_s ? least : (int)(in->seconds / guess_s);
    Err e = ERR_OK;
    while (next > 0 && t.ran < t.all && !e.code) {
        Str cells = {0};
        const int n = stage_on_gpu(in) ? 1 : next, end = t.ran + n < t.all ? t.ran + n : t.all;
        list_cells(ranks, t.ran, end, &cells);
        e = sweep_list(in, dirs, &cells, &t);
        str_free(&cells);
        t.ran = end;
        const double seconds = (double)(clock_ns() - start) * 1e-9;
        next = t.ran < least ? least - t.ran : (int)((in->seconds - seconds) * t.ran / seconds);
    }
    if (!e.code) finish(in, &t);
    return e;
}

Err stage_parity(const StageInput *in) {
    char *dirs[CASES];
    for (int i = 0; i < CASES; i++) dirs[i] = mem_printf("%s/%s", in->options->golden, GOLDEN[i]);
    const Err e = sweep_all(in, (const char *const *)dirs);
    for (int i = 0; i < CASES; i++) free(dirs[i]);
    return e;
}

/* ---- the folder of the cases ---- */

static Err check_golden(const char *root) {
    Err e = ERR_OK;
    for (int i = 0; i < CASES && !e.code; i++) {
        char *dir = mem_printf("%s/%s", root, GOLDEN[i]);
        Golden *g = NULL;
        e = golden_open(dir, &g);
        golden_close(g);
        free(dir);
    }
    return e;
}

/* In an installation, the program is in bin/; in the source tree, it is in build/PRESET/ or a subfolder. */
static char *near_program(void) {
    static const char *const PLACES[] = {"../share/isotron/golden", "../../golden", "../../../golden"};
    char program[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *slash = strrchr(program, '/');
    if (slash) *slash = 0;
    for (size_t i = 0; slash && i < sizeof PLACES / sizeof *PLACES; i++) {
        char *root = mem_printf("%s/%s", program, PLACES[i]);
        if (file_is_dir(root)) return root;
        free(root);
    }
    return mem_strdup("golden");
}

Err parity_find_golden(const char *given, char **out) {
    *out = given ? mem_strdup(given) : near_program();
    const Err e = check_golden(*out);
    return e.code ? err_user("the stage parity has no golden cases: %s. Set --golden to the folder with %s, "
                             "%s and %s, or leave parity out of --only",
                             e.msg, GOLDEN[0], GOLDEN[1], GOLDEN[2])
                  : e;
}
