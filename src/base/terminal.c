#include "base/terminal.h"

#include <limits.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

bool terminal_is_live(FILE *f) {
    const char *kind = getenv("TERM");
    return isatty(fileno(f)) && !(kind && !strcmp(kind, "dumb"));
}

/* Returns the terminal's width in columns, or 0 if it is unknown. */
static int known_columns(FILE *f) {
    enum { MOST = 10000 };
    struct winsize size;
    if (!ioctl(fileno(f), TIOCGWINSZ, &size) && size.ws_col) return size.ws_col;
    const char *text = getenv("COLUMNS");
    const long columns = text ? strtol(text, NULL, 10) : 0;
    return columns > 0 && columns < MOST ? (int)columns : 0;
}

int terminal_columns(FILE *f) {
    enum { USUAL = 80 };
    const int known = known_columns(f);
    return known ? known : USUAL;
}

size_t terminal_fit(const char *text, int columns) {
    const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0),
                   before = uselocale(utf8); /* this thread's previous locale */
    const char *end = text + strlen(text), *at = text;
    mbstate_t state = {0};
    while (at < end) {
        wchar_t c;
        if (*at == '\033') { /* a colour's escape sequence */
            const size_t before = strcspn(at, "m");
            at += before + (at[before] != 0);
            continue;
        }
        size_t n = mbrtowc(&c, at, (size_t)(end - at), &state);
        const bool valid = n <= (size_t)(end - at);
        const int width = valid ? wcwidth(c) : 1;
        if (!valid) n = 1, memset(&state, 0, sizeof state);
        columns -= width < 0 ? 1 : width;
        if (columns < 0) break;
        at += n;
    }
    uselocale(before);
    if (utf8) freelocale(utf8);
    return (size_t)(at - text);
}

void terminal_show(FILE *f, const char *text) {
    const int columns = terminal_columns(f) - 1; /* some terminals wrap after the last column */
    fprintf(f, "\r\033[K%.*s", (int)terminal_fit(text, columns), text);
}

void terminal_hide(FILE *f) { fputs("\r\033[K", f); }

/* Treats an unknown width as unlimited, because mpirun's processes have terminals without a width, and mpirun may
 * redirect their output to a file. */
int terminal_width(FILE *f) {
    const int known = terminal_is_live(f) ? known_columns(f) : 0;
    return known ? known : INT_MAX;
}

/* Returns how many bytes of a line to print before a break: more than `least` and, if possible, no more than fit into
 * `room` columns. */
static size_t break_at(const char *line, size_t length, size_t least, int room) {
    const size_t fits = terminal_fit(line, room);
    if (fits >= length) return length;
    size_t n = fits;
    while (n > least && line[n] != ' ' && line[n - 1] != '|') n--;
    if (n > least) return n;
    /* a long word is not broken */
    for (n = fits > least ? fits : least; n < length && line[n] != ' ';) n++;
    return n;
}

void terminal_fold(const char *text, int width, Str *out) {
    /* indentation of options and of their choices in --help */
    enum { HANGING = 4, OPTION = 2, CHOICES = 12 };
    while (*text) {
        size_t length = strcspn(text, "\n"), begin = strspn(text, " ");
        int indent = begin == 0 ? HANGING : begin == OPTION ? CHOICES : (int)begin, room = width;
        const char *end = text + length;
        if (indent > width / 2) indent = 0;
        for (size_t n; (n = break_at(text, length, begin, room)) < length; begin = 0, room = width - indent) {
            str_printf(out, "%.*s\n%*s", (int)n, text, indent, "");
            n += text[n] == ' ';
            text += n, length -= n;
        }
        str_printf(out, "%.*s\n", (int)length, text);
        text = end + (*end == '\n');
    }
}

/* Returns a column's cell in a line of tab-separated cells. */
static const char *cell_of(const char *line, int column, size_t *length) {
    for (; column; column--) line += strcspn(line, "\t") + 1;
    *length = strcspn(line, "\t\n");
    return line;
}

static int column_width(const char *cells, int column) {
    enum { GAP = 2 };
    size_t widest = 0, length;
    for (const char *line = cells; *line; line = strchr(line, '\n') + 1) {
        cell_of(line, column, &length);
        if (length > widest) widest = length;
    }
    return (int)widest + GAP;
}

void terminal_table(const char *cells, int width, Str *out) {
    int columns = 1;
    for (const char *c = cells; *c && *c != '\n'; c++) columns += *c == '\t';
    for (int from = 1, to; from < columns; from = to) {
        int all = column_width(cells, 0);
        for (to = from; to < columns && (to == from || all + column_width(cells, to) <= width); to++)
            all += column_width(cells, to);
        for (const char *line = cells; *line; line = strchr(line, '\n') + 1)
            for (int column = 0; column < to; column = column ? column + 1 : from) {
                size_t length;
                const char *cell = cell_of(line, column, &length);
                str_printf(out, "%*.*s%s", column_width(cells, column), (int)length, cell,
                           column == to - 1 ? "\n" : "");
            }
    }
}

void terminal_print(FILE *to, const char *text) {
    Str folded = {0};
    const int width = terminal_width(to);
    if (width < INT_MAX) terminal_fold(text, width, &folded);
    fputs(folded.s ? folded.s : text, to);
    str_free(&folded);
}

/* Returns the colour for a verdict, or NULL if the word is not a verdict. */
static const char *colour_of(const char *word, size_t n) {
    static const char GREEN[] = "\033[32m", YELLOW[] = "\033[33m", RED[] = "\033[31m";
    static const struct {
        const char *word, *colour;
    } VERDICTS[] = {{"PASS", GREEN},          {"pass", GREEN},          {"equal", GREEN},
                    {"INCONCLUSIVE", YELLOW}, {"inconclusive", YELLOW}, {"weak", YELLOW},
                    {"skip", YELLOW},         {"DEGRADED", YELLOW},     {"FAIL", RED},
                    {"INTERRUPTED", YELLOW},  {"REGRESS", RED},         {"differ", RED}};
    for (size_t i = 0; i < sizeof VERDICTS / sizeof *VERDICTS; i++)
        if (strlen(VERDICTS[i].word) == n && !memcmp(VERDICTS[i].word, word, n)) return VERDICTS[i].colour;
    return NULL;
}

static void colour(const char *text, Str *out) {
    bool begins = true; /* whether a verdict may begin here */
    while (*text) {
        const size_t blank = strspn(text, " \n"), word = strcspn(text + blank, " \n,:;()");
        const char *end = text + blank + word;
        begins |= blank > 1 || *text == '\n';
        const char *colour = begins && (*end != ' ' || end[1] == ' ') ? colour_of(text + blank, word) : NULL;
        str_printf(out, "%.*s%s%.*s%s", (int)blank, text, colour ? colour : "", (int)word, text + blank,
                   colour ? "\033[0m" : "");
        text += blank + word;
        const size_t rest = strcspn(text, " \n"); /* the end of the word and its punctuation */
        str_add(out, text, rest);
        text += rest;
        begins = text[-1] == ':';
    }
}

void terminal_report(FILE *to, const char *text) {
    const char *no = getenv("NO_COLOR");
    Str coloured = {0};
    if (terminal_is_live(to) && !(no && *no)) colour(text, &coloured);
    terminal_print(to, coloured.s ? coloured.s : text);
    str_free(&coloured);
}
