/* CMocka and the headers it asks for, in the order it asks for them. */
#ifndef ISOTRON_TESTS_CMOCKA_ALL_H
#define ISOTRON_TESTS_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
