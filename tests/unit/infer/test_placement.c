/* Tests which replica a placement chooses. */
#include "unit/cmocka_all.h"

#include <string.h>

#include "infer/placement.h"

enum { PAGE = 2, PAGES = 6, REQUESTS = 8, REPLICAS = 3, LONGEST = 14 };

/* A prompt has a token for each letter. Each row continues from the rows before it, unless it is the first row of a
 * policy. */
static const struct {
    const char *prompt, *salt;
    int64_t open[REPLICAS], want;
} BALANCED[] =
    {
        {"aabbc", "", {1, 0, 0}, 1},
        {"aabbc", "", {1, 1, 0}, 2},
        {"aabbc", "", {1, 1, 1}, 0},
},
  LONGEST_FIRST[] =
      {
          {"aabbccd", "", {4, 0, 2}, 1}, /* no replica has a page: the fewest requests */
          {"aabbxxx", "", {0, 9, 0}, 1}, /* two of three pages, in spite of its requests */
          {"aazzyyw", "", {0, 9, 1}, 1}, /* one page */
          {"xxzzyyw", "", {2, 9, 1}, 2}, /* the second and third page have other pages before them */
          {"xxzzyyw", "", {0, 0, 5}, 2},
          {"xxzz", "", {0, 0, 5}, 2},     /* the last token's page does not count, the first one does */
          {"xx", "", {0, 0, 5}, 0},       /* no page that counts */
          {"aabbccd", "s", {3, 4, 5}, 0}, /* another salt */
          {"aabbccd", "s", {3, 0, 0}, 0},
          {"aabbccddeeffg", "", {0, 9, 0}, 1}, /* fills the pool of replica 1, so that pages are reused */
          {"aazzyyw", "", {0, 9, 1}, 1},
          {"kkllmmnnooppq", "", {1, 0, 1}, 1},
          {"aabbxxx", "", {3, 9, 1}, 2}, /* replica 1 has only the latest pages */
},
  FIRST_ONLY[] = {
      {"aabbccd", "", {1, 0, 1}, 1}, {"aabbx", "", {0, 1, 0}, 1},
      {"aaxxy", "", {0, 6, 0}, 1}, /* as good as a longer prefix */
      {"aaxxy", "", {0, 8, 0}, 0}, /* no room: 0.5 against 0.5, and fewer requests */
      {"aaxxy", "", {0, 7, 1}, 0}, /* both have the page */
};

static int64_t choose(Placement *r, const char *text, const char *salt, const int64_t *open) {
    int32_t tokens[LONGEST];
    const int64_t n = (int64_t)strlen(text);
    for (int64_t i = 0; i < n; i++) tokens[i] = text[i];
    const Request q = {.prompt = tokens, .n = n, .salt = salt, .n_salt = (int64_t)strlen(salt)};
    return placement_choose(r, &q, open);
}

static Placement *open_placement(RoutePolicy route, double alpha) {
    return placement_new(
        REPLICAS,
        &(EngineLimits){
            .page = PAGE, .pages = PAGES, .requests = REQUESTS, .route = route, .route_alpha = alpha});
}

#define RUN(route, alpha, rows)                                                                              \
    do {                                                                                                     \
        Placement *r = open_placement(route, alpha);                                                         \
        for (size_t i = 0; i < sizeof(rows) / sizeof *(rows); i++) {                                         \
            const int64_t got = choose(r, (rows)[i].prompt, (rows)[i].salt, (rows)[i].open);                 \
            if (got != (rows)[i].want)                                                                       \
                fail_msg("row %zu of " #rows ": replica %lld, not %lld", i, (long long)got,                  \
                         (long long)(rows)[i].want);                                                         \
        }                                                                                                    \
        placement_free(r);                                                                                   \
    } while (0)

TEST(a_request_goes_to_the_replica_of_its_policy) {
    RUN(ROUTE_LOAD_BALANCED, 1, BALANCED);
    RUN(ROUTE_LONGEST_PREFIX, 1, LONGEST_FIRST);
    RUN(ROUTE_FIRST_PAGE, 0.5, FIRST_ONLY);
}

TEST(a_forgotten_page_does_not_count) {
    static const int64_t BUSY[] = {0, 5, 0}, IDLE[] = {1, 0, 1};
    Placement *r = open_placement(ROUTE_LONGEST_PREFIX, 1);
    assert_int_equal(choose(r, "aabbc", "", IDLE), 1);
    assert_int_equal(choose(r, "aabbc", "", BUSY), 1);
    placement_forget(r);
    assert_int_equal(choose(r, "aabbc", "", BUSY), 0);
    placement_free(r);
}
