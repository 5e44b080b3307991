/* Tests the message for two ranks that call a collective with contradictory arguments. */
#include <string.h>

#include "unit/cmocka_all.h"

#include "comm/transport.h"
#include "tensor/dtype.h"

static void expect(CommFacts mine, CommFacts theirs, const char *why) {
    char got[512] = "";
    snprintf(mine.site, sizeof mine.site, "here");
    if (!theirs.site[0]) snprintf(theirs.site, sizeof theirs.site, "here");
    assert_int_equal(comm_mismatch(&mine, 2, &theirs, 5, got), why != NULL);
    assert_string_equal(got, why ? why : "");
}

TEST(calls_that_fit_say_nothing) {
    expect((CommFacts){.kind = COMM_BARRIER}, (CommFacts){.kind = COMM_BARRIER}, NULL);
    expect((CommFacts){.kind = COMM_SEND, .dtype = F32, .n = 3},
           (CommFacts){.kind = COMM_RECV, .dtype = F32, .n = 3}, NULL);
    expect((CommFacts){.kind = COMM_ALL_TO_ALL, .sends = 3, .expects = 4},
           (CommFacts){.kind = COMM_ALL_TO_ALL, .sends = 4, .expects = 3}, NULL);
}

TEST(each_contradiction_is_named) {
    const CommFacts sum = {.kind = COMM_ALL_REDUCE, .reduction = COMM_SUM, .dtype = F32, .n = 8};
    CommFacts other = sum;
    other.kind = COMM_REDUCE_SCATTER;
    expect(sum, other,
           "the kind differs: rank 2 starts all_reduce sum of 8 F32 at 'here', rank 5 starts reduce_scatter "
           "sum of 8 F32 at 'here'");
    other = sum, strcpy(other.site, "there");
    expect(sum, other,
           "the site differs: rank 2 starts all_reduce sum of 8 F32 at 'here', rank 5 starts all_reduce sum "
           "of 8 F32 at 'there'");
    other = sum, other.dtype = F64;
    expect(sum, other,
           "the dtype differs: rank 2 starts all_reduce sum of 8 F32 at 'here', rank 5 starts all_reduce sum "
           "of 8 F64 at 'here'");
    other = sum, other.n = 9;
    expect(sum, other,
           "the count differs: rank 2 starts all_reduce sum of 8 F32 at 'here', rank 5 starts all_reduce sum "
           "of 9 F32 at 'here'");
    other = sum, other.reduction = COMM_MAX;
    expect(sum, other,
           "the reduction differs: rank 2 starts all_reduce sum of 8 F32 at 'here', rank 5 starts all_reduce "
           "max of 8 F32 at 'here'");
    const CommFacts root = {.kind = COMM_BROADCAST, .dtype = I64, .n = 1};
    other = root, other.peer = 1;
    expect(root, other,
           "the root differs: rank 2 starts broadcast of 1 I64 at 'here', rank 5 starts broadcast of 1 I64 "
           "at 'here'");
}

TEST(an_all_to_all_says_what_was_expected) {
    const CommFacts all = {.kind = COMM_ALL_TO_ALL, .sends = 3, .expects = 4};
    expect(all, (CommFacts){.kind = COMM_ALL_TO_ALL, .sends = 5, .expects = 6},
           "the count differs: rank 2 starts all_to_all at 'here', rank 5 starts all_to_all at 'here' (3 "
           "sent, 6 expected; in the other direction, 5 sent, 4 expected)");
    expect(all, (CommFacts){.kind = COMM_BARRIER},
           "the kind differs: rank 2 starts all_to_all at 'here', rank 5 starts barrier at 'here'");
    expect(
        (CommFacts){.kind = COMM_BROADCAST, .dtype = F32, .n = 2}, all,
        "the kind differs: rank 2 starts broadcast of 2 F32 at 'here', rank 5 starts all_to_all at 'here'");
}
