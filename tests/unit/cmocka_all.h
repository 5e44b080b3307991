/* CMocka and the headers it asks for, in the order it asks for them. TEST(name) { ... } is a test; run_all_tests runs those of
 * the file, in its order. */
#ifndef ISOTRON_TESTS_CMOCKA_ALL_H
#define ISOTRON_TESTS_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST_TESTS = 100 };

/* The tests of the file that includes this. */
typedef struct FileTests {
    struct CMUnitTest at[MOST_TESTS];
    int line[MOST_TESTS], n;
} FileTests;
static FileTests file_tests;

/* Constructors run in no certain order. */
static inline void file_tests_add(const char *name, CMUnitTestFunction test, int line) {
    FileTests *t = &file_tests;
    int i = t->n++;
    for (; i > 0 && t->line[i - 1] > line; i--) t->at[i] = t->at[i - 1], t->line[i] = t->line[i - 1];
    t->at[i] = (struct CMUnitTest){name, test, NULL, NULL, NULL}, t->line[i] = line;
}

static inline int run_all_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    return _cmocka_run_group_tests("tests", file_tests.at, (size_t)file_tests.n, set_up, tear_down);
}

#define TEST(name)                                                                                           \
    static void name(void **state);                                                                          \
    static void __attribute__((constructor)) add_##name(void) { file_tests_add(#name, name, __LINE__); }     \
    static void name(__attribute__((unused)) void **state)

#endif
