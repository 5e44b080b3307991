/* Methods of Python's str that both string methods and filters use. */
#pragma once

#include "chat/value.h"

typedef enum StringCase { CASE_LOWER, CASE_UPPER, CASE_FOLD } StringCase;

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
/* Removes the characters of `chars`, or whitespace if `chars` is not a string. */
Value string_strip(Machine *, Value text, Value chars, int sides);
/* Replaces at most `most` occurrences, or all occurrences if `most` is -1. */
Value string_replace(Machine *, Value text, Value old, Value with, int64_t most);
Value string_case(Machine *, Value text, StringCase);
Value string_capitalize(Machine *, Value text);
/* Appends the title case of a character. */
void string_put_title(Machine *, uint32_t character, Str *);
/* Returns the list of the lines of a text. Lines have no line ends unless keep_ends is set. */
Value string_lines(Machine *, Value text, bool keep_ends);
/* Joins the texts of items. */
Value string_joined(Machine *, Value between, const List *items);
