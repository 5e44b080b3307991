#include "data/input.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unicode/utf8.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/parquet.h"

enum { BLOCK = 1 << 16, MAGIC = 4 };

struct Input {
    const char *path; /* borrowed */
    FILE *text;
    int fd;
    int64_t bytes;
    unsigned char block[BLOCK];
    size_t begin, end; /* of the bytes in `block` that are not used yet */
    z_stream gzip;
    ZSTD_DStream *zstd;
    Parquet *parquet;
    InputColumns columns;
    ParquetText *row; /* [columns] */
    Str json;         /* the row */
    size_t json_used; /* bytes of it that are read */
    int64_t rows;
    bool inside; /* a compressed part is not complete */
    Err err;
    ssize_t (*read)(Input *, char *out, size_t n); /* 0: the end; -1: input->err is set */
};

bool input_is_stdin(const char *path) { return !strcmp(path, "-"); }

/* Reads more of the file; false at its end and after an error. */
static bool more(Input *in) {
    if (in->begin < in->end) return true;
    ssize_t n;
    do n = read(in->fd, in->block, BLOCK);
    while (n < 0 && errno == EINTR);
    in->begin = 0, in->end = n > 0 ? (size_t)n : 0;
    in->bytes += (int64_t)in->end;
    if (n < 0) in->err = err_infra("'%s' cannot be read to its end: %s", in->path, strerror(errno));
    return n > 0;
}

static ssize_t read_plain(Input *in, char *out, size_t n) {
    if (!more(in)) return in->err.code ? -1 : 0;
    if (n > in->end - in->begin) n = in->end - in->begin;
    memcpy(out, in->block + in->begin, n);
    in->begin += n;
    return (ssize_t)n;
}

static ssize_t damaged(Input *in, const char *why) {
    in->err = err_user("the compressed data of '%s' are damaged: %s; compress the file again", in->path, why);
    return -1;
}

/* Both decoders may hold output back, so each is also called without input, until nothing comes. */
static ssize_t read_gzip(Input *in, char *out, size_t n) {
    z_stream *z = &in->gzip;
    const unsigned room = n < BLOCK ? (unsigned)n : BLOCK;
    for (;;) {
        const bool have = more(in);
        if (!have && (in->err.code || !in->inside)) return in->err.code ? -1 : 0;
        if (!in->inside) inflateReset(z);
        z->next_in = in->block + in->begin, z->avail_in = (unsigned)(in->end - in->begin);
        z->next_out = (unsigned char *)out, z->avail_out = room;
        const int status = inflate(z, Z_NO_FLUSH);
        in->begin = in->end - z->avail_in, in->inside = status != Z_STREAM_END;
        if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
            return damaged(in, z->msg ? z->msg : zError(status));
        if (z->avail_out < room) return (ssize_t)(room - z->avail_out);
        if (!have && in->inside) return damaged(in, "the end is missing");
    }
}

static ssize_t read_zstd(Input *in, char *out, size_t n) {
    for (;;) {
        const bool have = more(in);
        if (!have && (in->err.code || !in->inside)) return in->err.code ? -1 : 0;
        ZSTD_outBuffer o = {out, n, 0};
        ZSTD_inBuffer i = {in->block, in->end, in->begin};
        const size_t status = ZSTD_decompressStream(in->zstd, &o, &i);
        if (ZSTD_isError(status)) return damaged(in, ZSTD_getErrorName(status));
        in->begin = i.pos, in->inside = status != 0;
        if (o.pos) return (ssize_t)o.pos;
        if (!have && in->inside) return damaged(in, "the end is missing");
    }
}

/* False if the string is not UTF-8. */
static bool add_json_string(Str *out, const char *s, size_t n) {
    str_add(out, "\"", 1);
    for (size_t i = 0, begin = 0, next; i < n; i = next) {
        UChar32 c;
        next = i;
        U8_NEXT(s, next, n, c);
        if (c < 0) return false;
        const bool escape = c < ' ' || c == '"' || c == '\\';
        if (escape || next == n) str_add(out, s + begin, (escape ? i : n) - begin);
        if (escape) str_printf(out, "\\u%04x", (unsigned)c), begin = next;
    }
    str_add(out, "\"", 1);
    return true;
}

static Err next_row(Input *in, bool *more) {
    ERR_RETURN(parquet_next(in->parquet, in->row, more));
    str_clear(&in->json), in->json_used = 0;
    in->rows += *more;
    for (int i = 0; i < in->columns.n && *more; i++) {
        const char *name = in->columns.names[i];
        if (!in->row[i].bytes) continue;
        str_puts(&in->json, in->json.len ? ", " : "{");
        bool ok = add_json_string(&in->json, name, strlen(name));
        str_puts(&in->json, ": ");
        ok = ok && add_json_string(&in->json, in->row[i].bytes, in->row[i].n);
        if (!ok)
            return err_user("row %" PRId64
                            " of '%s': the column %s is not valid UTF-8; write it as UTF-8 strings",
                            in->rows, in->path, quote(name).s);
    }
    if (*more) str_puts(&in->json, in->json.len ? "}\n" : "{}\n");
    return ERR_OK;
}

static ssize_t read_parquet(Input *in, char *out, size_t n) {
    bool more = true;
    if (in->json_used == in->json.len) in->err = next_row(in, &more);
    if (in->err.code || !more) return in->err.code ? -1 : 0;
    const size_t left = in->json.len - in->json_used;
    if (n > left) n = left;
    memcpy(out, in->json.s + in->json_used, n);
    in->json_used += n;
    return (ssize_t)n;
}

/* Its footer is at the end, so that a pipe would have to be stored first. */
static Err open_parquet(Input *in) {
    struct stat st;
    if (!in->columns.n)
        return err_user(
            "'%s' is a Parquet file, which can only be read as records with keys, like JSON Lines; "
            "set --input-format jsonl where there is such an option, or convert the file to text",
            in->path);
    if (input_is_stdin(in->path) || fstat(in->fd, &st) || !S_ISREG(st.st_mode))
        return err_user(
            "'%s' is a Parquet file, which cannot be read from a pipe; specify the name of the file",
            in->path);
    in->read = read_parquet;
    in->row = mem_zero((size_t)in->columns.n, sizeof *in->row);
    return parquet_open(in->path, in->columns.names, in->columns.n, &in->parquet);
}

static ssize_t cookie_read(void *cookie, char *out, size_t n) {
    Input *in = cookie;
    return in->err.code ? -1 : in->read(in, out, n);
}

/* Chooses by the first bytes. */
static Err choose(Input *in) {
    static const unsigned char GZIP[] = {0x1f, 0x8b}, ZSTD[MAGIC] = {0x28, 0xb5, 0x2f, 0xfd};
    for (ssize_t n = 1; in->end < MAGIC && n > 0; in->end += n > 0 ? (size_t)n : 0)
        n = read(in->fd, in->block + in->end, BLOCK - in->end);
    in->bytes = (int64_t)in->end;
    in->read = read_plain;
    if (in->end >= MAGIC && (!memcmp(in->block, "PAR1", MAGIC) || !memcmp(in->block, "PARE", MAGIC)))
        return open_parquet(in);
    if (in->end >= sizeof GZIP && !memcmp(in->block, GZIP, sizeof GZIP)) {
        in->read = read_gzip;
        if (inflateInit2(&in->gzip, MAX_WBITS + 16) != Z_OK) return err_infra("zlib cannot start");
    } else if (in->end >= MAGIC && !memcmp(in->block, ZSTD, MAGIC)) {
        in->read = read_zstd;
        in->zstd = ZSTD_createDStream();
        if (!in->zstd) return err_infra("zstd cannot start");
    }
    return ERR_OK;
}

static void input_free(Input *in) {
    if (in->text) fclose(in->text);
    if (in->fd > STDIN_FILENO) close(in->fd);
    if (in->read == read_gzip) inflateEnd(&in->gzip);
    ZSTD_freeDStream(in->zstd);
    if (in->parquet) parquet_close(in->parquet);
    str_free(&in->json), free(in->row);
    free(in);
}

Err input_open(const char *path, InputColumns columns, Input **out) {
    if (file_is_dir(path)) return err_user("'%s' is a folder; specify the files in it", path);
    const int fd = input_is_stdin(path) ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_user("cannot open '%s': %s; check the path and its permissions", path, strerror(errno));
    Input *in = mem_zero(1, sizeof *in);
    in->path = path, in->fd = fd, in->columns = columns;
    Err e = choose(in);
    if (!e.code) in->text = fopencookie(in, "r", (cookie_io_functions_t){.read = cookie_read});
    if (!e.code && !in->text) e = err_infra("'%s' cannot be read: %s", path, strerror(errno));
    if (e.code)
        input_free(in);
    else
        *out = in;
    return e;
}

FILE *input_text(Input *in) { return in->text; }
int64_t input_bytes(const Input *in) { return in->parquet ? parquet_bytes(in->parquet) : in->bytes; }

Err input_close(Input *in) {
    const Err e = in->err;
    input_free(in);
    return e;
}
