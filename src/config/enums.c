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
#undef ENUM
#undef CHOICE
#undef END

static const struct {
    const char *const *spellings;
    const char *word;
    int choice;
} SYNONYMS[] = {
#define ENUM(T)
#define CHOICE(...)
#define END(T)
#define SYNONYM(T, constant, spelling) {T##_spellings, spelling, constant},
#include "config/enums.def"
};

int enum_find(const char *const *spellings, const char *word) {
    for (int i = 0; spellings[i]; i++)
        if (!strcmp(spellings[i], word)) return i;
    for (size_t i = 0; i < sizeof SYNONYMS / sizeof *SYNONYMS; i++)
        if (SYNONYMS[i].spellings == spellings && !strcmp(SYNONYMS[i].word, word)) return SYNONYMS[i].choice;
    return -1;
}
