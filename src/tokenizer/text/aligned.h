/* A normalized text, with the position of each of its bytes in the original text. The offsets of tokens are
 * computed from the positions. All bytes of a character have the same origin. Source: NormalizedString of the
 * `tokenizers` library (tokenizers/src/tokenizer/normalizer.rs). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef struct Origin { /* [begin, end) in bytes of the original text */
    uint32_t begin, end;
} Origin;

/* A part of a text (borrowed). */
typedef struct View {
    const char *text;
    size_t n;
    const Origin *at; /* [n], or NULL if the origins are unknown */
} View;

static inline View view_slice(View v, size_t begin, size_t end) {
    return (View){v.text + begin, end - begin, v.at ? v.at + begin : NULL};
}

/* view_origin returns the origin of byte i, and view_origin_before the origin of the character before byte i.
 * The origin before the first character is the empty range at the start of the part. An origin of {0} means
 * that the origin is unknown. */
static inline Origin view_origin(View v, size_t i) { return v.at ? v.at[i] : (Origin){0, 0}; }
static inline Origin view_origin_before(View v, size_t i) {
    if (!v.at || !v.n) return (Origin){0, 0};
    return i ? v.at[i - 1] : (Origin){v.at[0].begin, v.at[0].begin};
}

typedef struct Aligned {
    Str text;
    bool tracks; /* whether origins are tracked; the owner sets this member while the text is empty */
    Origin *at;  /* [count] */
    size_t count, cap;
} Aligned;

void aligned_free(Aligned *); /* frees the memory, and leaves an empty text that does not track origins */
void aligned_clear(Aligned *);
void aligned_shorten(Aligned *, size_t n); /* truncates the text to n bytes */
View aligned_view(const Aligned *);
/* Sets the origin of the bytes that the caller has appended to `text`. */
void aligned_fill(Aligned *, Origin);
void aligned_add(Aligned *, View);
void aligned_insert(Aligned *, const char *bytes, size_t n, Origin);
/* Appends valid UTF-8 from byte `at` of the original text. */
void aligned_original(Aligned *, const char *text, size_t n, size_t at);

/* An edit that replaces characters of `from` in order. The initial value is {.from, .out}. */
typedef struct Edit {
    View from;
    Aligned *out;
    size_t at; /* position of the next character to replace */
    uint32_t last;
    int change; /* the change of the last character, which edit_remove may extend */
    bool waits;
} Edit;

/* Appends a character. If `change` is 0, the appended character replaces the next character of `from`; if
 * `change` is -n, it replaces the next n + 1 characters. If `change` is 1, it is inserted with the origin of
 * the character before it. */
void edit_put(Edit *, uint32_t character, int change);
/* Makes the last appended character replace `n` more characters. If no character has been appended, all later
 * replacements occur too early in the text, as in the `tokenizers` library. */
void edit_remove(Edit *, int n);
void edit_end(Edit *);
