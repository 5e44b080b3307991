/* The enumerated options (enums.def): each type has its constants and a NULL-terminated list of spellings,
 * for example Lane_spellings[LANE_BF16] == "bf16". */
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
