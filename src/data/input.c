#include "data/input.h"

#include <errno.h>
#include <iconv.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/parquet/parquet.h"
#include "data/unpack.h"

enum { RAW = 1 << 16, TEXT = 4 * RAW, HEAD = 512 };

struct Input {
    char *where; /* the path in quotes (owned) */
    const char *path;
    InputOptions options;
    Unpack *file;
    Parquet *parquet;
    ParquetText *row; /* [columns] */
    Str json;         /* the row as a JSON object */
    size_t json_used; /* how many bytes of `json` have been read */
    int64_t rows;
    bool converts;
    iconv_t converter;
    char head[HEAD]; /* the first bytes of the file, for error messages */
    size_t head_size;
    char raw[RAW]; /* bytes not yet converted to text */
    size_t raw_size;
    int64_t offset, line; /* position of the first byte of `raw` in the file */
    bool ended;           /* whether the end of the file was reached */
    char text[TEXT];
    size_t at, size; /* the part of `text` that has not been returned yet */
    bool begun;      /* whether any text has been read */
    bool after_return;
};

bool input_is_stdin(const char *path) { return unpack_is_stdin(path); }

/* ---- conversion of Parquet rows to JSON Lines ---- */

static void add_json_string(Str *out, const char *s, size_t n) {
    str_add(out, "\"", 1);
    size_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c >= ' ' && c != '"' && c != '\\') continue;
        str_add(out, s + begin, i - begin);
        str_printf(out, "\\u%04x", c);
        begin = i + 1;
    }
    str_add(out, s + begin, n - begin);
    str_add(out, "\"", 1);
}

/* Returns an error if the value is not UTF-8. A NUL is allowed here, because JSON can escape it. */
static Err check_value(const Input *in, const char *name, ParquetText value) {
    bool cut;
    const size_t good = utf8_prefix(value.bytes, value.n, &cut);
    if (good == value.n) return ERR_OK;
    return err_user(
        "row %" PRId64
        " of '%s': the string in column %s contains byte 0x%02x at offset %zu, which is not valid "
        "UTF-8; write the column as UTF-8 strings",
        in->rows, in->path, quote(name).s, (unsigned char)value.bytes[good], good);
}

static Err next_row(Input *in, bool *more) {
    ERR_RETURN(parquet_next(in->parquet, in->row, more));
    str_clear(&in->json), in->json_used = 0;
    in->rows += *more;
    for (int i = 0; i < in->options.num_columns && *more; i++) {
        if (!in->row[i].bytes) continue;
        ERR_RETURN(check_value(in, in->options.columns[i], in->row[i]));
        str_puts(&in->json, in->json.len ? ", " : "{");
        add_json_string(&in->json, in->options.columns[i], strlen(in->options.columns[i]));
        str_puts(&in->json, ": ");
        add_json_string(&in->json, in->row[i].bytes, in->row[i].n);
    }
    if (*more) str_puts(&in->json, in->json.len ? "}\n" : "{}\n");
    return ERR_OK;
}

static Err read_rows(Input *in, char *out, size_t n, size_t *got) {
    bool more = true;
    *got = 0;
    if (in->json_used == in->json.len) ERR_RETURN(next_row(in, &more));
    if (!more) return ERR_OK;
    const size_t left = in->json.len - in->json_used;
    *got = n < left ? n : left;
    memcpy(out, in->json.s + in->json_used, *got);
    in->json_used += *got;
    return ERR_OK;
}

static Err open_parquet(Input *in) {
    if (!in->options.num_columns)
        return err_user("'%s' is a Parquet file, which can only be read as records with keys, like JSON "
                        "Lines; set --input-format "
                        "jsonl if the command has this option, or convert the file to text",
                        in->path);
    if (unpack_is_pipe(in->file))
        return err_user(
            "'%s' is a Parquet file, which cannot be read from a pipe; specify the name of the file",
            in->path);
    in->row = mem_zero((size_t)in->options.num_columns, sizeof *in->row);
    return parquet_open(in->path, in->options.columns, in->options.num_columns, &in->parquet);
}

/* ---- conversion of bytes to text ---- */

static bool is_utf8(const char *encoding) {
    return !encoding || !strcasecmp(encoding, "utf-8") || !strcasecmp(encoding, "utf8");
}

/* Opens a converter for the encoding. Also accepts Python's spellings, such as latin-1 and utf_16. Rejects
 * iconv's suffixes, such as IGNORE, because they drop text without an error. */
static iconv_t find_encoding(const char *encoding) {
    char *name = mem_strdup(encoding), *to = name;
    iconv_t found = (iconv_t)-1;
    if (*encoding && !strchr(encoding, '/')) found = iconv_open("UTF-8", encoding);
    for (const char *from = encoding; *from; from++)
        if (!strchr("-_ ", *from)) *to++ = *from;
    *to = 0;
    if (*name && !strchr(name, '/') && found == (iconv_t)-1) found = iconv_open("UTF-8", name);
    free(name);
    return found;
}

Err input_check_encoding(const char *encoding) {
    static const char *const USUAL[] = {"utf-8",     "latin1",   "iso-8859-15", "cp1252",    "utf-16",
                                        "utf-16le",  "utf-16be", "utf-32",      "ascii",     "koi8-r",
                                        "shift-jis", "euc-jp",   "euc-kr",      "gbk",       "gb18030",
                                        "big5",      "cp1251",   "cp437",       "iso-8859-2"};
    enum { NUMBER = sizeof USUAL / sizeof *USUAL };
    if (is_utf8(encoding)) return ERR_OK;
    const iconv_t found = find_encoding(encoding);
    if (found != (iconv_t)-1) return iconv_close(found), ERR_OK;
    Str all = {0};
    const char *near = str_nearest(encoding, USUAL, NUMBER);
    for (int i = 0; i < NUMBER; i++) str_printf(&all, "%s%s", i ? ", " : "", USUAL[i]);
    const Err e =
        err_user("--input-encoding %s is unknown%s%s; common encodings are %s, and 'iconv -l' lists all",
                 quote(encoding).s, near ? ", did you mean " : "", near ? near : "", all.s);
    str_free(&all);
    return e;
}

static void count_lines(Input *in, const char *s, size_t n) {
    for (const char *p = s; (p = memchr(p, '\n', n - (size_t)(p - s))); p++) in->line++;
}

/* Moves the valid UTF-8 at the start of `raw` to `text`. */
static Err take_text(Input *in) {
    bool cut;
    const size_t good = text_prefix(in->raw, in->raw_size, &cut);
    memcpy(in->text, in->raw, in->size = good);
    count_lines(in, in->text, good);
    if (good < in->raw_size && (!cut || in->ended)) {
        const TextFault fault = {in->line, in->offset + (int64_t)good, (unsigned char)in->raw[good], cut};
        return text_error(in->where, fault, in->head, in->head_size);
    }
    memmove(in->raw, in->raw + good, in->raw_size -= good);
    in->offset += (int64_t)good;
    return ERR_OK;
}

static Err bad_conversion(const Input *in, const char *what) {
    return err_user("%s, line %" PRId64 ": byte 0x%02x at offset %" PRId64
                    " %s --input-encoding %s; check the encoding",
                    in->where, in->line, (unsigned char)*in->raw, in->offset, what, in->options.encoding);
}

/* Converts `raw` to `text` with iconv. At the end of the file, iconv may still hold a buffered character. */
static Err convert_text(Input *in) {
    char *from = in->raw, *to = in->text;
    size_t left = in->raw_size, room = TEXT;
    const bool flush = in->ended && !left;
    const bool failed = iconv(in->converter, flush ? NULL : &from, &left, &to, &room) == (size_t)-1;
    const int why = failed ? errno : 0;
    in->size = TEXT - room;
    count_lines(in, in->text, in->size);
    in->offset += from - in->raw;
    memmove(in->raw, from, in->raw_size = left);
    if (memchr(in->text, 0, in->size))
        return err_user("%s, before line %" PRId64
                        ": text must not contain a NUL character; check --input-encoding %s",
                        in->where, in->line + 1, in->options.encoding);
    if (why == EILSEQ) return bad_conversion(in, "is not a character in");
    if (why == EINVAL && in->ended) return bad_conversion(in, "begins an incomplete character in");
    return ERR_OK;
}

static Err read_raw(Input *in) {
    size_t got;
    char *to = in->raw + in->raw_size;
    if (in->parquet)
        ERR_RETURN(read_rows(in, to, RAW - in->raw_size, &got));
    else
        ERR_RETURN(unpack_read(in->file, to, RAW - in->raw_size, &got));
    in->raw_size += got, in->ended = !got;
    const size_t head = got < HEAD - in->head_size ? got : HEAD - in->head_size;
    memcpy(in->head + in->head_size, to, head);
    in->head_size += head;
    return ERR_OK;
}

/* Refills `text` if all of the text has been returned. After the call, `text` is empty only at the end of the
 * file. */
static Err fill(Input *in) {
    for (bool done = false; in->at == in->size && !done;) {
        if (!in->ended && in->raw_size < RAW) ERR_RETURN(read_raw(in));
        done = in->ended && !in->raw_size;
        ERR_RETURN(in->converts ? convert_text(in) : take_text(in));
        in->at = in->begun ? 0 : text_mark(in->text, in->size);
        in->begun |= in->size > 0;
    }
    return ERR_OK;
}

Err input_text(Input *in, Str *out, bool *more) {
    ERR_RETURN(fill(in));
    *more = in->at < in->size;
    if (*more) str_add(out, in->text + in->at, in->size - in->at);
    in->at = in->size;
    return ERR_OK;
}

Err input_line(Input *in, bool any_newline, Str *out, bool *more) {
    for (*more = false;;) {
        ERR_RETURN(fill(in));
        if (in->at == in->size) return ERR_OK;
        const bool after_return = in->after_return;
        in->after_return = false;
        if (after_return && in->text[in->at] == '\n') {
            in->at++;
            continue;
        }
        const char *s = in->text + in->at;
        const size_t left = in->size - in->at;
        const char *end = memchr(s, '\n', left);
        const char *cr = any_newline ? memchr(s, '\r', end ? (size_t)(end - s) : left) : NULL;
        if (cr) end = cr, in->after_return = true;
        const size_t n = end ? (size_t)(end - s) : left;
        *more = true;
        str_add(out, s, n);
        in->at += n + (end != NULL);
        if (end) return ERR_OK;
    }
}

/* ---- files ---- */

static Err open_text(Input *in) {
    ERR_RETURN(unpack_open(in->path, &in->file));
    if (unpack_is_parquet(in->file)) return open_parquet(in);
    if (is_utf8(in->options.encoding)) return ERR_OK;
    ERR_RETURN(input_check_encoding(in->options.encoding));
    in->converter = find_encoding(in->options.encoding);
    in->converts = in->converter != (iconv_t)-1;
    return in->converts ? ERR_OK : err_infra("iconv cannot start: %s", strerror(errno));
}

Err input_open(const char *path, InputOptions options, Input **out) {
    Input *in = mem_zero(1, sizeof *in);
    in->path = path, in->options = options, in->line = 1;
    in->where = mem_printf("'%s'", path);
    const Err e = open_text(in);
    if (e.code)
        input_close(in);
    else
        *out = in;
    return e;
}

int64_t input_bytes(const Input *in) {
    return in->parquet ? parquet_bytes(in->parquet) : unpack_bytes(in->file);
}

void input_close(Input *in) {
    if (in->file) unpack_close(in->file);
    if (in->parquet) parquet_close(in->parquet);
    if (in->converts) iconv_close(in->converter);
    str_free(&in->json), free(in->row), free(in->where);
    free(in);
}
