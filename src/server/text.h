/* Converts the tokens of a text to UTF-8 one by one, and ends the text before the first stop string. The
 * concatenation of the released parts does not depend on the division of the text into parts. A part contains
 * only complete characters, and never the start of a stop string that a later token might complete. */
#pragma once

#include "base/str.h"
#include "tokenizer/tokenizer.h"

/* Number of trailing prompt tokens that are decoded with a text, for example to tell whether the text begins
 * with a space. */
enum { TEXT_CONTEXT = 8 };

typedef struct StopList {
    char **at; /* [n]: not empty */
    int64_t n;
    bool kept; /* whether a text ends after the first stop string, instead of before it */
} StopList;

typedef struct TextStream {
    const Tokenizer *tokenizer;
    const StopList *stops;
    bool special;        /* whether special tokens appear by name */
    int32_t *window;     /* [n]: the last tokens, on which the next token's text can depend */
    size_t n, read;      /* the text of the first `read` tokens is known */
    size_t base;         /* number of bytes in the text of the first `read` tokens */
    Str bytes;           /* the start of an incomplete character */
    Str held;            /* characters that may begin a stop string */
    int64_t characters;  /* number of complete characters so far, including held characters */
    const char *stopped; /* the stop string that has ended the text, or NULL */
} TextStream;

/* Begins a text after the tokens of a prompt. The prompt can be empty. The tokenizer and the list must outlive the
 * TextStream. */
void text_begin(TextStream *, const Tokenizer *, const StopList *, bool special, const int32_t *prompt,
                size_t n);
void text_free(TextStream *);
/* Appends the bytes that a token would add, or the name of a special token. The bytes need not form complete
 * characters. */
void text_piece(const TextStream *, int32_t token, Str *bytes);
/* Returns the index of the character that the next token begins or continues. */
int64_t text_offset(const TextStream *, int32_t token);
/* Adds a token, and appends to `out` the text that can no longer change. Ids without a token have no text. Special
 * tokens have no text unless `special` is true. After a stop string, nothing is added. */
void text_push(TextStream *, int32_t token, Str *out);
/* Ends the text, and appends the remaining text to `out`. */
void text_end(TextStream *, Str *out);
