/* Tests that the roof of links follows from their kind and number, and that the floor is 45 % of NVLink's
 * roof. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "unit/cmocka_all.h"
#include "validate/links_roof.h"

enum { RANKS = 4 };
static const NvmlFacts H100 = {
    .known = true, .nvlinks = 18, .switched = 18, .sm = 90, .pcie = 5, .width = 16, .most_width = 16};

static void set_all(NvmlFacts facts[RANKS], NvmlFacts f) {
    for (int i = 0; i < RANKS; i++) facts[i] = f;
}

TEST(nvlink_counts_links) {
    static const struct {
        int sm, links;
        double rate;
    } CASES[] = {{60, 4, 80}, {70, 6, 150}, {80, 12, 300}, {86, 4, 56.25}, {90, 18, 450}, {100, 18, 900}};
    NvmlFacts facts[RANKS];
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        NvmlFacts f = H100;
        f.sm = CASES[i].sm, f.nvlinks = f.switched = CASES[i].links;
        set_all(facts, f);
        const LinksRoof r = links_roof(facts, RANKS, true, 8);
        assert_true(r.kind == ROOF_NVLINK && r.rate == CASES[i].rate && r.weakest == -1);
        assert_true(r.of_pair == r.rate);
    }
}

TEST(the_best_rank_has_the_roof) {
    NvmlFacts facts[RANKS];
    set_all(facts, H100);
    facts[2].nvlinks = facts[2].switched = 9;
    const LinksRoof r = links_roof(facts, RANKS, true, RANKS);
    assert_true(r.rate == 450 && r.weakest == 2);
    assert_string_equal(r.of, "18 NVLinks of 25 GB/s");
}

TEST(pcie_is_the_roof_without_nvlink) {
    NvmlFacts facts[RANKS], f = H100;
    f.nvlinks = f.switched = 0;
    set_all(facts, f);
    const LinksRoof r = links_roof(facts, RANKS, false, RANKS);
    assert_true(r.kind == ROOF_PCIE && r.rate > 63 && r.rate < 63.1 && r.of_pair == r.rate);
    assert_string_equal(r.of, "PCIe 5 x16");
}

TEST(it_may_not_be_known) {
    NvmlFacts facts[RANKS];
    set_all(facts, H100);
    assert_string_equal(links_roof(facts, RANKS, false, RANKS).why,
                        "NVLink does not connect all pairs of GPUs");
    facts[1].nvlinks = 0;
    assert_int_equal(links_roof(facts, RANKS, true, RANKS).kind, ROOF_NOT_KNOWN);
    set_all(facts, H100);
    facts[3].known = false;
    assert_non_null(strstr(links_roof(facts, RANKS, true, RANKS).why, "libnvidia-ml.so.1"));
    set_all(facts, H100);
    for (int i = 0; i < RANKS; i++) facts[i].switched = 0;
    assert_int_equal(links_roof(facts, RANKS, true, RANKS).kind, ROOF_NVLINK);
    assert_true(links_roof(facts, RANKS, true, RANKS).of_pair ==
                0); /* 0, because a pair uses only some of a GPU's links */
    assert_true(links_roof(facts, 2, true, 2).of_pair == 450);
    assert_string_equal(links_roof(facts, RANKS, true, 8).why, "NVLinks lead to GPUs without a rank");
    for (int i = 0; i < RANKS; i++) facts[i].sm = 0;
    const LinksRoof r = links_roof(facts, RANKS, true, RANKS);
    assert_true(r.kind == ROOF_NOT_KNOWN && strstr(r.why, "rate of a link"));
}

/* Returns n samples of a rate that deviate by 1 %. */
static Metric *metric_of(double rate, int n) {
    Metric *m = mem_zero(1, sizeof *m);
    for (m->n = 0; m->n < n; m->n++) m->sample[m->n] = rate * (1 + 0.01 * (m->n % 3 - 1));
    return m;
}

static bool are_slow(const LinksRoof *r, double rate, int n) {
    Metric *m = metric_of(rate, n);
    const bool slow = links_are_slow(r, m);
    free(m);
    return slow;
}

TEST(a_part_of_nvlink_is_the_floor) {
    enum { MANY = 16, FEW = 3 };
    NvmlFacts facts[RANKS];
    char share[160];
    set_all(facts, H100);
    const LinksRoof r = links_roof(facts, RANKS, true, RANKS), unknown = {.why = ""};
    LinksRoof pcie = r;
    pcie.kind = ROOF_PCIE;
    assert_false(are_slow(&r, 341, MANY));     /* rate of an H100 with NCCL's rings */
    assert_true(are_slow(&r, 341 / 2., MANY)); /* links have half of their speed */
    assert_false(are_slow(&r, 341 / 2., FEW));
    assert_false(are_slow(&r, 243, MANY));     /* rate of an all-gather on two H100 */
    assert_true(are_slow(&r, 361 / 2., MANY)); /* half the rate of an all-reduce on eight */
    assert_false(are_slow(&pcie, 20, MANY));
    assert_false(links_are_slow(&r, NULL));
    Metric *m = metric_of(351, MANY);
    links_share(&r, m, share, sizeof share);
    assert_string_equal(share, "78 % of 450 GB/s, 18 NVLinks of 25 GB/s");
    links_share(&unknown, m, share, sizeof share);
    assert_string_equal(share, "");
    free(m);
}

TEST(too_few_samples_are_a_limit) {
    enum { LEAST = 7 };
    const LinksRoof r = {.kind = ROOF_NVLINK, .rate = 450}, pcie = {.kind = ROOF_PCIE, .rate = 63};
    Outcome *out = mem_zero(1, sizeof *out);
    Metric *few = metric_of(100, LEAST - 1), *enough = metric_of(100, LEAST);
    assert_true(!links_are_slow(&r, few) && links_are_slow(&r, enough));
    links_limit_samples(&r, enough, "all_reduce", out);
    links_limit_samples(&pcie, few, "all_reduce", out);
    assert_int_equal(out->n_limits, 0);
    links_limit_samples(&r, few, "all_reduce", out);
    links_limit_samples(&r, NULL, "all_gather", out);
    assert_string_equal(out->limit[0], "speed: all_reduce against the roof of the links, because there are "
                                       "only 6 samples, but 7 are needed");
    assert_non_null(
        strstr(out->limit[1], "all_gather against the roof of the links, because there are only 0"));
    free(few), free(enough), free(out);
}
