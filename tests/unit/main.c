#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#include "unit/cmocka_all.h"

enum { MOST_TESTS = 100 };

static struct {
    struct CMUnitTest at[MOST_TESTS];
    int line[MOST_TESTS];
    size_t n;
} all;

/* Sorts tests by line, because constructors run in unspecified order. */
void test_add(const char *name, CMUnitTestFunction test, int line) {
    if (all.n == MOST_TESTS) abort();
    size_t i = all.n++;
    for (; i > 0 && all.line[i - 1] > line; i--) all.at[i] = all.at[i - 1], all.line[i] = all.line[i - 1];
    all.at[i] = (struct CMUnitTest){.name = name, .test_func = test}, all.line[i] = line;
}

int run_all_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    if (!all.n) fputs("this program has no TEST\n", stderr);
    return !all.n ? 1 : _cmocka_run_group_tests("tests", all.at, all.n, set_up, tear_down);
}

/* The argument is a filter of test names ("every_way_*"). */
int __attribute__((weak)) main(int argc, char **argv) {
    size_t matches = 0;
    for (size_t i = 0; i < all.n; i++) matches += argc < 2 || !fnmatch(argv[1], all.at[i].name, 0);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return matches ? run_all_tests(NULL, NULL) : 1;
}
