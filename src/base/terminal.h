/* Prints to a terminal: breaks lines at its width, and colours verdicts. Output to other destinations is plain. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/str.h"

/* Returns whether the stream is a terminal that can overwrite a line (a terminal with TERM=dumb cannot). */
bool terminal_is_live(FILE *);
/* Returns the terminal's width. If the width is unknown, returns the value of COLUMNS, or 80 if COLUMNS is
 * not set. */
int terminal_columns(FILE *);
/* Returns how many bytes of `text` fit into `columns`, counting only whole characters. A wide character occupies two
 * columns, and a colour's escape sequence occupies none. A byte that is not UTF-8 counts as one column. */
size_t terminal_fit(const char *text, int columns);
/* Replaces the current line of a live terminal with `text`, truncated to the terminal's width. terminal_hide clears the
 * line. */
void terminal_show(FILE *, const char *text);
void terminal_hide(FILE *);
/* Returns the width of a live terminal in columns, or INT_MAX (no limit) if the terminal is not live or its width is
 * unknown. */
int terminal_width(FILE *);
/* Breaks lines longer than `width` at blanks, or after a | in a list of choices, and indents the continuation lines.
 * Words that are longer than `width` are not broken. */
void terminal_fold(const char *text, int width, Str *out);
/* Formats lines of tab-separated cells as a table with right-aligned columns. Columns that do not fit the width are
 * printed below the others, after a repeated first column. */
void terminal_table(const char *cells, int width, Str *out);
/* Prints text. On a live terminal, long lines are folded. */
void terminal_print(FILE *, const char *text);
/* Prints a report. On a live terminal, lines are folded, and verdicts are green (PASS), yellow (INCONCLUSIVE, DEGRADED)
 * or red (FAIL), unless the environment variable NO_COLOR is set (no-color.org). A word counts as a verdict only if it
 * is alone in its column or directly after a colon. */
void terminal_report(FILE *, const char *text);
