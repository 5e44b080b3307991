/* The enumerated options (enums.def). Each type has constants and a NULL-terminated list of spellings. For example,
 * Lane_spellings[LANE_BF16] is "bf16". */
#pragma once

#define ENUM(T)                    typedef enum T {
#define CHOICE(constant, spelling) constant,
#define END(T)                                                                                               \
    }                                                                                                        \
    T;                                                                                                       \
    extern const char *const T##_spellings[];
#include "config/enums.def"
#undef ENUM
#undef CHOICE
#undef END

/* Returns the constant with this spelling or synonym, or -1 if there is none. */
int enum_find(const char *const *spellings, const char *word);
