/* Output to a terminal: the width of a line, and verdicts in colour. Other output is plain. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/str.h"

/* Whether the stream is a terminal that can overwrite a line: not with TERM=dumb. */
bool terminal_is_live(FILE *);
/* The current width: that of the terminal, else COLUMNS, else 80. */
int terminal_columns(FILE *);
/* The number of bytes of `text` that fit into `columns`, in whole characters. A wide character takes two columns, and a
 * colour none. A byte that is not UTF-8 counts as one column. */
size_t terminal_fit(const char *text, int columns);
/* Replaces the line of the cursor by `text`, cut to the width of the live terminal; hide leaves it empty. */
void terminal_show(FILE *, const char *text);
void terminal_hide(FILE *);
/* Its columns if it is live and they are known; else there is no limit: INT_MAX. */
int terminal_width(FILE *);
/* Breaks lines that are longer at a blank, or after the | of a list of choices, and indents what follows. A longer word
 * stays whole. */
void terminal_fold(const char *text, int width, Str *out);
/* The lines of cells, which tabs separate, as a table whose columns are aligned to the right. Columns that do not fit
 * into the width continue below, where the first column is repeated. */
void terminal_table(const char *cells, int width, Str *out);
/* Prints a text, folded on a live terminal. */
void terminal_print(FILE *, const char *text);
/* The same for a report. On a live terminal its verdicts are green (PASS), yellow (INCONCLUSIVE, DEGRADED) or
 * red (FAIL), unless the variable NO_COLOR is set (no-color.org). A verdict is alone in its column, or begins
 * what follows a colon. */
void terminal_report(FILE *, const char *text);
