/* Splits a template into tokens. Applies whitespace control (-, +, trim_blocks, lstrip_blocks) to the text. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

typedef enum TokenType {
    TOKEN_END,
    TOKEN_DATA, /* the text between tags */
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OPERATOR
} TokenType;

typedef struct Token {
    TokenType type;
    int line;
    const char *s; /* the token's text, or the value of a string */
    size_t n;
    int64_t i;
    double f;
} Token;

/* Splits a source into tokens. The tokens belong to the arena. The last token is a TOKEN_END. */
Err lexer_run(const char *source, size_t n, Arena *, Token **tokens);
/* A syntax error is reported as a user error: "line N of the chat template: ...". */
Err lexer_error(int line, const char *fmt, va_list);
/* Returns whether Python's str.isspace and regular expressions treat the character as whitespace. */
bool lexer_is_space(uint32_t character);
