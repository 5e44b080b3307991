/* Prints to a terminal with limited line widths and coloured verdicts. Output to other destinations is plain. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/str.h"

/* Returns whether the stream is a terminal that can overwrite a line (with TERM=dumb it cannot). */
bool terminal_is_live(FILE *);
/* Returns the width of the terminal, or the value of COLUMNS if the width is unknown, or 80 if both are unknown. */
int terminal_columns(FILE *);
/* Returns the number of bytes of `text` that fit into `columns`, in whole characters. A wide character occupies two
 * columns, and the escape sequence of a colour occupies no column. A byte that is not UTF-8 counts as one
 * column. */
size_t terminal_fit(const char *text, int columns);
/* Replaces the cursor's line with `text`, truncated to the width of the live terminal. terminal_hide clears the
 * line. */
void terminal_show(FILE *, const char *text);
void terminal_hide(FILE *);
/* Returns the number of columns of a live terminal. Returns INT_MAX (no limit) if the terminal is not live or the
 * number is unknown. */
int terminal_width(FILE *);
/* Breaks lines longer than `width` at a blank, or after the | of a list of choices, and indents the remaining text.
 * Words that are longer than `width` are not broken. */
void terminal_fold(const char *text, int width, Str *out);
/* Formats lines of tab-separated cells as a table with right-aligned columns. Columns that do not fit into the width
 * are printed below, and the first column is repeated there. */
void terminal_table(const char *cells, int width, Str *out);
/* Prints a text. On a live terminal, folds its lines. */
void terminal_print(FILE *, const char *text);
/* Prints a report. On a live terminal, lines are folded, and verdicts are green (PASS), yellow
 * (INCONCLUSIVE, DEGRADED) or red (FAIL), unless the environment variable NO_COLOR is set (no-color.org). A
 * verdict is the only word of its column or the first word after a colon. */
void terminal_report(FILE *, const char *text);
