#include "data/text_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

TextReader text_reader(PreprocessInput kind, const char *const *inputs, int n) {
    return (TextReader){.kind = kind, .inputs = inputs, .num_inputs = n};
}

void text_reader_close(TextReader *r) {
    if (r->file) fclose(r->file);
    free(r->buffer);
    *r = (TextReader){0};
}

static Err open_next(TextReader *r) {
    r->path = r->inputs[r->next_input++];
    r->lines_read = 0;
    if (file_is_dir(r->path)) return err_user("'%s' is a folder; specify the files in it", r->path);
    r->file = fopen(r->path, "rbe");
    return r->file ? ERR_OK
                   : err_user("cannot open '%s': %s; check the path and its permissions", r->path,
                              strerror(errno));
}

static Err close_file(TextReader *r) {
    bool bad = ferror(r->file);
    fclose(r->file);
    r->file = NULL;
    return bad ? err_infra("'%s' could not be read to its end (after line %lld)", r->path,
                           (long long)r->lines_read)
               : ERR_OK;
}

/* The next line without its newline, -1 at the end of the file. */
static ssize_t read_line(TextReader *r) {
    ssize_t n = getline(&r->buffer, &r->buffer_size, r->file);
    if (n < 0) return -1;
    r->lines_read++;
    r->bytes += n;
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
    for (size_t n; (n = fread(block, 1, sizeof block, r->file)) > 0; r->bytes += (int64_t)n)
        str_add(out, block, n);
    return true;
}

Err text_reader_next(TextReader *r, Str *out, bool *more) {
    static bool (*const NEXT[])(TextReader *, Str *) = {[PREPROCESS_JSONL] = next_line,
                                                        [PREPROCESS_TEXT_FILES] = next_file,
                                                        [PREPROCESS_TEXT_PARAGRAPHS] = next_paragraph};
    for (;;) {
        if (!r->file) {
            *more = r->next_input < r->num_inputs;
            if (!*more) return ERR_OK;
            ERR_RETURN(open_next(r));
        }
        if (NEXT[r->kind](r, out)) return ERR_OK;
        ERR_RETURN(close_file(r));
    }
}
