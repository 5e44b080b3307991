/* String operations with the semantics of Python's str, used by string methods and by filters. */
#pragma once

#include "chat/value.h"

typedef enum StringCase { CASE_LOWER, CASE_UPPER, CASE_FOLD } StringCase;

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
/* Strips the characters in `chars`, or whitespace if `chars` is not a string. */
Value string_strip(Machine *, Value text, Value chars, int sides);
/* Replaces at most `most` occurrences, or all occurrences if `most` is -1. */
Value string_replace(Machine *, Value text, Value old, Value with, int64_t most);
Value string_case(Machine *, Value text, StringCase);
Value string_capitalize(Machine *, Value text);
/* Appends the title-case form of a character. */
void string_put_title(Machine *, uint32_t character, Str *);
/* Returns a list of the lines in a text, without line ends unless keep_ends is set. */
Value string_lines(Machine *, Value text, bool keep_ends);
/* Joins the items' text. */
Value string_joined(Machine *, Value between, const List *items);
