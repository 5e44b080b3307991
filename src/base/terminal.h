/* Prints to a terminal, with limited line widths and coloured verdicts. Other output is plain. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/str.h"

/* Whether the stream is a terminal that can overwrite a line (with TERM=dumb it cannot). */
bool terminal_is_live(FILE *);
/* The current width: that of the terminal, or else the value of COLUMNS, or else 80. */
int terminal_columns(FILE *);
/* The number of bytes of `text` that fit into `columns`, in whole characters. A wide character occupies two
 * columns, and the escape sequence of a colour occupies none. A byte that is not UTF-8 counts as one
 * column. */
size_t terminal_fit(const char *text, int columns);
/* Replaces the cursor's line with `text`, truncated to the width of the live terminal; terminal_hide
 * clears the line. */
void terminal_show(FILE *, const char *text);
void terminal_hide(FILE *);
/* The number of columns of a live terminal; INT_MAX (no limit) if it is not live or the number is unknown. */
int terminal_width(FILE *);
/* Breaks lines longer than `width` at a blank, or after the | of a list of choices, and indents the rest. Longer
 * words are not broken. */
void terminal_fold(const char *text, int width, Str *out);
/* Formats lines of tab-separated cells as a table with right-aligned columns. Columns that do not fit into
 * the width continue below, with the first column repeated. */
void terminal_table(const char *cells, int width, Str *out);
/* Prints a text, folded on a live terminal. */
void terminal_print(FILE *, const char *text);
/* Prints a report, folded on a live terminal. On a live terminal, verdicts are green (PASS), yellow
 * (INCONCLUSIVE, DEGRADED) or red (FAIL), unless the environment variable NO_COLOR is set (no-color.org). A
 * verdict is the only word of its column or the first word after a colon. */
void terminal_report(FILE *, const char *text);
