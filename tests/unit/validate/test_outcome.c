/* Tests that findings of a stage are not lost: severe evidence, distinct faults, texts of any bytes, and rows
 * that do not fit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "unit/cmocka_all.h"
#include "validate/outcome.h"

static Outcome *new_outcome(void) { return mem_zero(1, sizeof(Outcome)); }

TEST(severe_evidence_is_kept) {
    Outcome *r = new_outcome(), *all = new_outcome();
    for (int i = 0; i < OUTCOME_EVIDENCE; i++)
        outcome_add(r, i % 2 ? VALIDATE_PASS : VALIDATE_DEGRADED, "rank", "%d", i);
    assert_int_equal(outcome_verdict(r), VALIDATE_DEGRADED);
    outcome_add(r, VALIDATE_FAIL, "rank 7", "wrong");
    outcome_add(r, VALIDATE_PASS, "rank 8", "a note");
    assert_true(outcome_verdict(r) == VALIDATE_FAIL && r->n_lost == 2);
    outcome_merge(all, r);
    assert_true(outcome_verdict(all) == VALIDATE_FAIL && all->n_lost == 2);
    for (int i = 0; i < r->n_evidence; i++) assert_string_not_equal(r->evidence[i].suspect, "rank 8");
    free(r), free(all);
}

TEST(distinct_faults_of_one_suspect_are_kept) {
    Outcome *r = new_outcome(), *all = new_outcome();
    outcome_add(r, VALIDATE_FAIL, "NCCL", "all_reduce is wrong");
    outcome_add(r, VALIDATE_FAIL, "NCCL", "all_gather is wrong");
    for (int turn = 0; turn < 2; turn++) outcome_merge(all, r);
    assert_int_equal(all->n_evidence, 2);
    assert_string_equal(all->evidence[1].text, "all_gather is wrong");
    free(r), free(all);
}

TEST(what_does_not_fit_is_a_limit) {
    char name[32];
    Outcome *r = new_outcome();
    for (int i = 0; i <= OUTCOME_FACTS; i++) outcome_fact(r, true, "fact", "%d", i);
    assert_non_null(strstr(r->limit[0], "facts of the machine after the first"));
    for (int i = 0; i <= OUTCOME_METRICS; i++) {
        snprintf(name, sizeof name, "rate %d", i);
        outcome_sample(r, "GB/s", 1, name);
    }
    assert_true(r->n_limits == 2 && !outcome_metric(r, name));
    for (int i = 0; i <= OUTCOME_LIMITS; i++) outcome_limit(r, "limit %d", i);
    assert_non_null(
        strstr(r->limit[OUTCOME_LIMITS - 1], "further limitations of this stage, after the first"));
    free(r);
}

TEST(a_stage_can_measure_again) {
    Outcome *r = new_outcome();
    outcome_sample(r, "GB/s", 1, "rate");
    r->n_metrics = 0;
    outcome_sample(r, "GB/s", 2, "rate");
    assert_true(r->metric[0].n == 1 && r->metric[0].sample[0] == 2);
    free(r);
}

TEST(texts_are_utf8) {
    Outcome *r = new_outcome();
    outcome_fact(r, true, "env A\xff", "a\xc3\xa9\xe2\x82z");
    assert_string_equal(r->fact[0].name, "env A?");
    assert_string_equal(r->fact[0].value, "a\xc3\xa9??z");
    outcome_fact(r, true, "long", "%*s\xc3\xa9", (int)sizeof r->fact[0].value - 2,
                 ""); /* the buffer ends inside the last character */
    assert_true(utf8_valid(r->fact[1].value, strlen(r->fact[1].value)));
    outcome_add(r, VALIDATE_FAIL, "\x80", "\x80");
    outcome_limit(r, "\x80");
    assert_string_equal(r->evidence[0].suspect, "?");
    assert_string_equal(r->evidence[0].text, "?");
    assert_string_equal(r->limit[0], "?");
    free(r);
}
