#include "config/enums.h"

#include <stddef.h>
#include <string.h>

#define ENUM(T)                    const char *const T##_spellings[] = {
#define CHOICE(constant, spelling) spelling,
#define END(T)                                                                                               \
    NULL                                                                                                     \
    }                                                                                                        \
    ;
#include "config/enums.def"

int enum_find(const char *const *spellings, const char *word) {
    for (int i = 0; spellings[i]; i++)
        if (!strcmp(spellings[i], word)) return i;
    return -1;
}
