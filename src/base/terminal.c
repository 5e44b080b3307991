#include "base/terminal.h"

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

int terminal_columns(FILE *f) {
    enum { USUAL = 80, MOST = 10000 };
    struct winsize size;
    if (!ioctl(fileno(f), TIOCGWINSZ, &size) && size.ws_col) return size.ws_col;
    const char *text = getenv("COLUMNS");
    const long columns = text ? strtol(text, NULL, 10) : 0;
    return columns > 0 && columns < MOST ? (int)columns : USUAL;
}

size_t terminal_fit(const char *text, int columns) {
    const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0),
                   before = uselocale(utf8); /* of this thread */
    const char *end = text + strlen(text), *at = text;
    mbstate_t state = {0};
    while (at < end) {
        wchar_t c;
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
    const int columns = terminal_columns(f) - 1; /* in the last one, some terminals begin a line */
    fprintf(f, "\r\033[K%.*s", (int)terminal_fit(text, columns), text);
}

void terminal_hide(FILE *f) { fputs("\r\033[K", f); }

/* The colour of a verdict; NULL: the word is no verdict. */
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

void terminal_report(FILE *to, const char *text) {
    const char *no = getenv("NO_COLOR");
    const bool plain = !terminal_is_live(to) || (no && *no);
    bool begins = true; /* what is before the blanks lets a verdict follow */
    if (plain) fputs(text, to);
    while (!plain && *text) {
        const size_t blank = strspn(text, " \n"), word = strcspn(text + blank, " \n,:;()");
        const char *end = text + blank + word;
        begins |= blank > 1 || *text == '\n';
        const char *colour = begins && (*end != ' ' || end[1] == ' ') ? colour_of(text + blank, word) : NULL;
        fprintf(to, "%.*s%s%.*s%s", (int)blank, text, colour ? colour : "", (int)word, text + blank,
                colour ? "\033[0m" : "");
        text += blank + word;
        const size_t rest = strcspn(text, " \n"); /* the end of the word with its punctuation */
        fwrite(text, 1, rest, to);
        text += rest;
        begins = text[-1] == ':';
    }
}
