/* CMocka and the headers that it requires, in the required order. TEST(name) { ... } defines a test. A program
 * runs its tests in the order of the file. It defines main() only if it must do more than that. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#ifdef __cplusplus
extern "C" {
#endif
void test_add(const char *name, CMUnitTestFunction test, int line);
int run_all_tests(CMFixtureFunction set_up,
                  CMFixtureFunction tear_down); /* set-up and tear-down of the file; NULL if it has none */
#ifdef __cplusplus
}
#endif

#define TEST(name)                                                                                           \
    static void name(void **state);                                                                          \
    static void __attribute__((constructor)) add_##name(void) { test_add(#name, name, __LINE__); }           \
    static void name(__attribute__((unused)) void **state)
