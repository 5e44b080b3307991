/* Runs statements that must cause a fault whose message contains a text. Do not use this macro inside a loop,
 * because its longjmp might lose the loop's variables. */
#pragma once

#include <string.h>

#include "unit/cmocka_all.h"

#include "base/fault.h"

#define EXPECT_FAULT(sentence, ...)                                                                          \
    do {                                                                                                     \
        jmp_buf jump_;                                                                                       \
        FaultScope scope_ = {.where = "test", .catch_jmp = &jump_}, *old_ = fault_scope(&scope_);            \
        if (!setjmp(jump_)) {                                                                                \
            __VA_ARGS__;                                                                                     \
            fault_scope(old_);                                                                               \
            fail_msg("nothing is said, where it should be: %s", sentence);                                   \
        }                                                                                                    \
        fault_scope(old_);                                                                                   \
        if (!strstr(scope_.message, sentence)) fail_msg("%s", scope_.message);                               \
    } while (0)
