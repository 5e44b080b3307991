#include "data/text_reader.h"

#include <stdlib.h>
#include <string.h>

TextReader text_reader(PreprocessInput kind, const char *const *inputs, int n, InputOptions options) {
    return (TextReader){.kind = kind, .inputs = inputs, .num_inputs = n, .options = options};
}

int64_t text_reader_bytes(const TextReader *r) { return r->bytes + (r->input ? input_bytes(r->input) : 0); }

static void close_input(TextReader *r) {
    r->bytes = text_reader_bytes(r);
    input_close(r->input);
    r->input = NULL;
}

void text_reader_close(TextReader *r) {
    if (r->input) close_input(r);
    str_free(&r->buffer);
    *r = (TextReader){0};
}

static Err open_next(TextReader *r) {
    r->path = r->inputs[r->next_input++];
    r->lines_read = 0;
    return input_open(r->path, r->options, &r->input);
}

/* Reads the next line into the buffer, and sets *more to false at the end of the file. */
static Err read_line(TextReader *r, bool *more) {
    str_clear(&r->buffer);
    ERR_RETURN(input_line(r->input, r->kind == PREPROCESS_JSONL, &r->buffer, more));
    r->lines_read += *more;
    return ERR_OK;
}

static bool is_blank(const Str *line) { return !line->len || strspn(line->s, " \t\r\v\f") == line->len; }

/* Each next_... function appends one record, and sets *more to false at the end of the file. */
static Err next_line(TextReader *r, Str *out, bool *more) {
    do ERR_RETURN(read_line(r, more));
    while (*more && is_blank(&r->buffer));
    r->line = r->lines_read;
    if (*more) str_add(out, r->buffer.s, r->buffer.len);
    return ERR_OK;
}

static Err next_paragraph(TextReader *r, Str *out, bool *more) {
    ERR_RETURN(next_line(r, out, more));
    for (bool next = *more; next;) {
        ERR_RETURN(read_line(r, &next));
        if (!next || is_blank(&r->buffer)) break;
        str_add(out, "\n", 1);
        str_add(out, r->buffer.s, r->buffer.len);
    }
    return ERR_OK;
}

static Err next_file(TextReader *r, Str *out, bool *more) {
    *more = !r->lines_read;
    r->line = r->lines_read = 1;
    for (bool next = *more; next;) ERR_RETURN(input_text(r->input, out, &next));
    return ERR_OK;
}

Err text_reader_next(TextReader *r, Str *out, bool *more) {
    static Err (*const NEXT[])(TextReader *, Str *, bool *) = {[PREPROCESS_JSONL] = next_line,
                                                               [PREPROCESS_TEXT_FILES] = next_file,
                                                               [PREPROCESS_TEXT_PARAGRAPHS] = next_paragraph};
    for (;;) {
        if (!r->input) {
            *more = r->next_input < r->num_inputs;
            if (!*more) return ERR_OK;
            ERR_RETURN(open_next(r));
        }
        ERR_RETURN(NEXT[r->kind](r, out, more));
        if (*more) return ERR_OK;
        close_input(r);
    }
}
