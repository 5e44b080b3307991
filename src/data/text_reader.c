#include "data/text_reader.h"

#include <stdlib.h>
#include <string.h>

TextReader text_reader(PreprocessInput kind, const char *const *inputs, int n, InputColumns columns) {
    return (TextReader){.kind = kind, .inputs = inputs, .num_inputs = n, .columns = columns};
}

int64_t text_reader_bytes(const TextReader *r) { return r->bytes + (r->input ? input_bytes(r->input) : 0); }

static Err close_input(TextReader *r) {
    r->bytes = text_reader_bytes(r);
    const Err e = input_close(r->input);
    r->input = NULL;
    return e;
}

void text_reader_close(TextReader *r) {
    if (r->input) close_input(r);
    free(r->buffer);
    *r = (TextReader){0};
}

static Err open_next(TextReader *r) {
    r->path = r->inputs[r->next_input++];
    r->lines_read = 0;
    return input_open(r->path, r->columns, &r->input);
}

/* The next line without its newline, -1 at the end of the file. */
static ssize_t read_line(TextReader *r) {
    ssize_t n = getline(&r->buffer, &r->buffer_size, input_text(r->input));
    if (n < 0) return -1;
    r->lines_read++;
    return n && r->buffer[n - 1] == '\n' ? n - 1 : n;
}

static bool is_blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\v\f", s[i]) || !s[i]) return false;
    return true;
}

/* Each of these appends one record; false at the end of the file. */
static bool next_line(TextReader *r, Str *out) {
    for (ssize_t n; (n = read_line(r)) >= 0;)
        if (!is_blank(r->buffer, (size_t)n)) {
            r->line = r->lines_read;
            str_add(out, r->buffer, (size_t)n);
            return true;
        }
    return false;
}

static bool next_paragraph(TextReader *r, Str *out) {
    if (!next_line(r, out)) return false;
    for (ssize_t n; (n = read_line(r)) >= 0 && !is_blank(r->buffer, (size_t)n);) {
        str_add(out, "\n", 1);
        str_add(out, r->buffer, (size_t)n);
    }
    return true;
}

static bool next_file(TextReader *r, Str *out) {
    if (r->lines_read) return false;
    r->line = r->lines_read = 1;
    char block[1 << 16];
    for (size_t n; (n = fread(block, 1, sizeof block, input_text(r->input))) > 0;) str_add(out, block, n);
    return true;
}

Err text_reader_next(TextReader *r, Str *out, bool *more) {
    static bool (*const NEXT[])(TextReader *, Str *) = {[PREPROCESS_JSONL] = next_line,
                                                        [PREPROCESS_TEXT_FILES] = next_file,
                                                        [PREPROCESS_TEXT_PARAGRAPHS] = next_paragraph};
    for (;;) {
        if (!r->input) {
            *more = r->next_input < r->num_inputs;
            if (!*more) return ERR_OK;
            ERR_RETURN(open_next(r));
        }
        if (NEXT[r->kind](r, out)) return ERR_OK;
        ERR_RETURN(close_input(r));
    }
}
