/* Chooses a GEMM's algorithm by measurement. The criterion is the time in a training step, in which the power
 * limit determines a GPU's clocks. An algorithm that is fast in short runs because it draws more power may be
 * slower in a training step. Short interleaved runs are therefore only used to discard candidates that are
 * much slower. Each finalist then runs by itself, on a hot GPU, until the power governor has settled. The
 * measured time includes epilogues that run as separate passes.
 *
 * Two algorithms are chosen and stored, and --gemm-tuning selects between the two. The first algorithm is the
 * fastest whose results are bitwise equal to those of an unmeasured GEMM, so that tuning never changes results
 * between ranks or after a restart. The second algorithm is the fastest of all. All runs that share the store
 * use the same algorithms. */
#include "kernels/cuda/gemm/gemm_bench.cuh"

#include <algorithm>
#include <math.h>
#include <string.h>

extern "C" {
#include "base/clock.h"
}

/* Candidates first run in interleaved turns. In each turn, every candidate runs for a short time. */
enum { TURNS = 3, TURN_RUNS_MIN = 3, TURN_RUNS_MAX = 50 };
static const double WARM_MS = 30, TURN_MS = 0.5;
static const double HOPELESS = 1.2; /* maximum time in the first turn, relative to the first candidate */

/* Blocks are long runs that keep the GPU busy. Every other round of blocks reverses the order of the
 * candidates, so that most of any drift cancels out. Turns predict the speed of long runs only roughly, so
 * the first round includes all candidates that are nearly as fast as the best one. Each later round includes
 * fewer candidates, namely the best so far. */
enum { ROUNDS = 4 };
typedef struct Entry {
    /* maximum number of bitwise equal candidates, and maximum number of candidates of any kind */
    int most;
    double near; /* maximum time, as a multiple of the fastest time so far */
} Entry;
static const Entry ENTRY[ROUNDS] = {{12, 1.15}, {6, 1.04}, {4, 1.02}, {3, 1.01}};
static const double HEAT_MS = 400;  /* time in which an idle GPU's clocks and temperature settle under load */
static const double REHEAT_MS = 80; /* like HEAT_MS, for a GPU that was busy less than IDLE_S seconds ago */
static const double IDLE_S = 1;
/* the parts of a block: SETTLE_MS without measurement, then BLOCK_MS with measurement */
static const double SETTLE_MS = 30, BLOCK_MS = 50;

static const double WORTHWHILE = 0.995; /* smaller gains over the first candidate are noise */

typedef struct Candidate {
    GemmAlgo algo;
    bool runs, same_bits, finalist;
    double turn[TURNS], ms; /* milliseconds per run: in each turn, and the mean over the blocks so far */
} Candidate;

/* ---- turns ---- */

/* Tries all algorithms. An algorithm is excluded if the results of two runs are not bitwise equal. */
static void try_all(GemmBench *b, Candidate *all, int n) {
    unsigned long long first = 0, one, two;
    for (int i = 0; i < n; i++) {
        gemm_bench_take(b, &all[i].algo);
        all[i].runs = gemm_bench_print(b, &one) && gemm_bench_print(b, &two) && one == two;
        if (i == 0) first = one;
        all[i].same_bits = all[i].runs && one == first;
    }
}

/* Returns the number of runs that together take `ms` milliseconds if each run takes `once` milliseconds. */
static int runs_in(double ms, double once) { return (int)ceil(ms / fmax(once, 1e-4)); }

static void turn(GemmBench *b, Candidate *x, int number) {
    if (!x->runs) return;
    gemm_bench_take(b, &x->algo);
    const double once = number ? x->turn[0] : gemm_bench_run(b, 0, TURN_RUNS_MIN);
    const int runs = std::max<int>(TURN_RUNS_MIN, std::min<int>(TURN_RUNS_MAX, runs_in(TURN_MS, once)));
    x->turn[number] = gemm_bench_run(b, 0, runs);
    x->runs = x->turn[number] >= 0;
}

static void take_turns(GemmBench *b, Candidate *all, int n) {
    double warm = 0, once = 1;
    gemm_bench_take(b, &all[0].algo);
    for (; once > 0 && warm < WARM_MS; warm += TURN_RUNS_MIN * once)
        once = gemm_bench_run(b, 0, TURN_RUNS_MIN);
    for (int number = 0; number < TURNS; number++) {
        for (int i = 0; i < n; i++) turn(b, &all[i], number);
        for (int i = 1; i < n && !number; i++) all[i].runs &= all[i].turn[0] < HOPELESS * all[0].turn[0];
    }
    for (int i = 0; i < n; i++) {
        std::sort(all[i].turn, all[i].turn + TURNS);
        all[i].ms = all[i].turn[TURNS / 2];
    }
}

/* ---- blocks ---- */

static bool is_faster(const Candidate *a, const Candidate *b) { return a->ms < b->ms; }

/* Selects the candidates for a round: sets chosen[i] for all[i]. */
static void choose(Candidate *all, int n, Entry entry, bool any_bits, bool *chosen) {
    Candidate *by_speed[GEMM_ALGOS];
    int count = 0;
    for (int i = 0; i < n; i++)
        if (all[i].finalist && (any_bits || all[i].same_bits)) by_speed[count++] = &all[i];
    std::sort(by_speed, by_speed + count, is_faster);
    for (int i = 0; i < std::min(count, entry.most); i++)
        chosen[by_speed[i] - all] |= by_speed[i]->ms < entry.near * by_speed[0]->ms;
}

/* Keeps only the best finalists and the first candidate. */
static void keep_best(Candidate *all, int n, Entry entry) {
    bool chosen[GEMM_ALGOS] = {true};
    choose(all, n, entry, false, chosen);
    choose(all, n, entry, true, chosen);
    for (int i = 0; i < n; i++) all[i].finalist &= chosen[i];
}

/* Keeps the GPU busy until it is hot. This takes less time if the GPU is still hot from the previous GEMM. */
static void heat(GemmBench *b, const GemmState *s, const Candidate *by) {
    const bool hot = s->hot_ns && (double)(clock_ns() - s->hot_ns) < IDLE_S * 1e9;
    gemm_bench_take(b, &by->algo);
    gemm_bench_run(b, 0, runs_in(hot ? REHEAT_MS : HEAT_MS, by->ms));
}

/* Measures block number `round` of a candidate and updates the mean of its blocks. */
static void block(GemmBench *b, Candidate *x, int round) {
    const double once = x->turn[TURNS / 2];
    gemm_bench_take(b, &x->algo);
    const double ms = gemm_bench_run(b, runs_in(SETTLE_MS, once), runs_in(BLOCK_MS, once));
    x->ms = round ? (round * x->ms + ms) / (round + 1) : ms;
    x->runs = x->finalist = ms >= 0;
}

static void run_finals(GemmBench *b, GemmState *s, Candidate *all, int n) {
    for (int i = 0; i < n; i++) all[i].finalist = all[i].runs;
    heat(b, s, &all[0]);
    for (int round = 0; round < ROUNDS && all[0].runs; round++) {
        keep_best(all, n, ENTRY[round]);
        for (int i = 0; i < n; i++) {
            Candidate *x = &all[round % 2 ? n - 1 - i : i];
            if (x->finalist) block(b, x, round);
        }
    }
    s->hot_ns = clock_ns();
}

/* ---- choice ---- */

/* Lists the candidates. The first candidate is the algorithm that an unmeasured GEMM would use. */
static int gather(const GemmState *s, GemmPlan *p, Candidate all[GEMM_ALGOS]) {
    GemmAlgo algos[GEMM_ALGOS];
    const int n = gemm_all_algos(s, p, algos);
    memset(all, 0, GEMM_ALGOS * sizeof *all);
    for (int i = 0; i < n; i++) all[i].algo = algos[i];
    return n;
}

static GemmChoice best_of(const Candidate *all, int n, bool any_bits) {
    const Candidate *best = &all[0];
    for (int i = 1; i < n; i++)
        if (all[i].finalist && (any_bits || all[i].same_bits) && is_faster(&all[i], best)) best = &all[i];
    if (best->ms > WORTHWHILE * all[0].ms) best = &all[0];
    GemmChoice c = {best->algo, 1e3 * best->ms};
    return c;
}

static bool tune(const Device *d, GemmState *s, GemmPlan *p, const Gemm *g, GemmRecord *out) {
    GemmBench b;
    Candidate all[GEMM_ALGOS];
    const int n = gather(s, p, all);
    if (n < 2 || !gemm_bench_open(&b, d, s, p, g)) return false;
    try_all(&b, all, n);
    if (all[0].runs) take_turns(&b, all, n);
    if (all[0].runs) run_finals(&b, s, all, n);
    gemm_bench_close(&b);
    if (!all[0].runs) return false;
    out->key = p->key;
    out->first_us = 1e3 * all[0].ms;
    out->choice[GEMM_TUNING_SAME_BITS] = best_of(all, n, false);
    out->choice[GEMM_TUNING_FASTEST] = best_of(all, n, true);
    return true;
}

/* Returns a record without measurements, for a rank that lacks the memory to measure. With
 * GEMM_TUNING_SAME_BITS, this rank's results are still bitwise equal to the other ranks'. */
static const GemmRecord *unmeasured(const GemmPlan *p, GemmRecord *r) {
    memset(r, 0, sizeof *r);
    r->key = p->key;
    for (int i = 0; i < GEMM_CHOICES; i++) r->choice[i].algo = p->algo;
    return r;
}

void gemm_tune(const Device *d, GemmState *s, GemmPlan *p, const Gemm *g) {
    const GemmTuning by = cuda_of(d)->gemm_tuning;
    const GemmAlgo first = p->algo;
    GemmStore store = gemm_store_open(cuda_of(d), s);
    GemmRecord r;
    bool kept = store.alone;
    if (gemm_store_find(&store, &p->key, &r) && gemm_can(s, p, &r.choice[by].algo)) {
        p->algo = r.choice[by].algo;
    } else if (tune(d, s, p, g, &r)) {
        p->algo = r.choice[by].algo;
        kept &= gemm_store_add(&store, s, &r);
    } else {
        p->algo = first;
        if (by == GEMM_TUNING_FASTEST) kept &= gemm_store_add(&store, s, unmeasured(p, &r));
    }
    CHECK(kept || by != GEMM_TUNING_FASTEST,
          "%s: --gemm-tuning fastest needs a writable folder that supports locks (ISOTRON_CACHE_DIR), "
          "because ranks could otherwise choose different algorithms",
          g->op);
    gemm_describe(p, p->algo.fused);
    gemm_store_close(&store);
}
