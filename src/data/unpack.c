#include "data/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>
#ifdef ISOTRON_BZIP2
#include <bzlib.h>
#endif
#ifdef ISOTRON_XZ
#include <lzma.h>
#endif

#include "base/file.h"
#include "base/mem.h"

enum { BLOCK = 1 << 16, MAGIC = 10 };

typedef struct Format {
    const char *name;
    bool (*begin)(Unpack *); /* begins a compressed part; returns false if memory is exhausted */
    /* Decodes bytes of the block into `out`, which has room for *n bytes. Sets *n to the number of decoded bytes, and
     * *ended if the part is complete. Returns NULL, NO_MEMORY, TOO_LARGE or a description of the damage. */
    const char *(*step)(Unpack *, unsigned char *out, size_t *n, bool *ended);
    void (*end)(Unpack *);
    bool padded; /* whether zeros may follow a compressed part */
} Format;

struct Unpack {
    const char *path; /* borrowed */
    int fd;
    int64_t bytes;
    unsigned char block[BLOCK];
    size_t at, size;      /* the part of `block` that has not been decoded yet */
    const Format *format; /* NULL for a plain file */
    bool inside;          /* true if the end of the current compressed part has not been decoded yet */
    bool begun;           /* true after the first part has begun; the decoder must then be closed */
    z_stream gzip;
    ZSTD_DStream *zstd;
#ifdef ISOTRON_BZIP2
    bz_stream bzip2;
#endif
#ifdef ISOTRON_XZ
    lzma_stream xz;
#endif
};

/* ---- decoders ---- */

static const char NO_MEMORY[] = "there is not enough memory", TOO_LARGE[] = "its window is larger than 2 GiB";

static bool gzip_begin(Unpack *u) {
    return (u->begun ? inflateReset(&u->gzip) : inflateInit2(&u->gzip, MAX_WBITS + 16)) == Z_OK;
}

static const char *gzip_step(Unpack *u, unsigned char *out, size_t *n, bool *ended) {
    z_stream *z = &u->gzip;
    const unsigned room = *n < BLOCK ? (unsigned)*n : BLOCK;
    z->next_in = u->block + u->at, z->avail_in = (unsigned)(u->size - u->at);
    z->next_out = out, z->avail_out = room;
    const int status = inflate(z, Z_NO_FLUSH);
    u->at = u->size - z->avail_in, *n = room - z->avail_out, *ended = status == Z_STREAM_END;
    if (*ended || status == Z_OK || status == Z_BUF_ERROR) return NULL;
    return status == Z_MEM_ERROR ? NO_MEMORY : z->msg ? z->msg : zError(status);
}

static void gzip_end(Unpack *u) { inflateEnd(&u->gzip); }

static bool zstd_begin(Unpack *u) {
    if (u->begun) return true;
    u->zstd = ZSTD_createDStream();
    const int window = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound;
    return u->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, window));
}

static const char *zstd_step(Unpack *u, unsigned char *out, size_t *n, bool *ended) {
    ZSTD_outBuffer o = {out, *n, 0};
    ZSTD_inBuffer i = {u->block, u->size, u->at};
    const size_t status = ZSTD_decompressStream(u->zstd, &o, &i);
    u->at = i.pos, *n = o.pos, *ended = status == 0;
    if (!ZSTD_isError(status)) return NULL;
    const ZSTD_ErrorCode error = ZSTD_getErrorCode(status);
    return error == ZSTD_error_memory_allocation               ? NO_MEMORY
           : error == ZSTD_error_frameParameter_windowTooLarge ? TOO_LARGE
                                                               : ZSTD_getErrorName(status);
}

static void zstd_end(Unpack *u) { ZSTD_freeDStream(u->zstd); }

#ifdef ISOTRON_BZIP2
static void bzip2_end(Unpack *u) { BZ2_bzDecompressEnd(&u->bzip2); }

static bool bzip2_begin(Unpack *u) {
    if (u->begun) bzip2_end(u);
    u->bzip2 = (bz_stream){0};
    return BZ2_bzDecompressInit(&u->bzip2, 0, 0) == BZ_OK;
}

static const char *bzip2_step(Unpack *u, unsigned char *out, size_t *n, bool *ended) {
    bz_stream *z = &u->bzip2;
    const unsigned room = *n < BLOCK ? (unsigned)*n : BLOCK;
    z->next_in = (char *)u->block + u->at, z->avail_in = (unsigned)(u->size - u->at);
    z->next_out = (char *)out, z->avail_out = room;
    const int status = BZ2_bzDecompress(z);
    u->at = u->size - z->avail_in, *n = room - z->avail_out, *ended = status == BZ_STREAM_END;
    if (*ended || status == BZ_OK) return NULL;
    return status == BZ_DATA_ERROR_MAGIC ? "unexpected bytes follow a compressed part"
           : status == BZ_MEM_ERROR      ? NO_MEMORY
                                         : "a checksum or a length is wrong";
}
#endif

#ifdef ISOTRON_XZ
static void xz_end(Unpack *u) { lzma_end(&u->xz); }

static bool xz_begin(Unpack *u) {
    if (!u->begun) u->xz = (lzma_stream)LZMA_STREAM_INIT;
    const uint64_t most_memory = ((uint64_t)2 << 30) + (1 << 27); /* 2 GiB dictionary + 128 MiB */
    return lzma_auto_decoder(&u->xz, most_memory, 0) == LZMA_OK;
}

static const char *xz_step(Unpack *u, unsigned char *out, size_t *n, bool *ended) {
    const size_t room = *n;
    lzma_stream *z = &u->xz;
    z->next_in = u->block + u->at, z->avail_in = u->size - u->at;
    z->next_out = out, z->avail_out = room;
    const lzma_ret status = lzma_code(z, LZMA_RUN);
    u->at = u->size - z->avail_in, *n = room - z->avail_out, *ended = status == LZMA_STREAM_END;
    if (*ended || status == LZMA_OK || status == LZMA_BUF_ERROR) return NULL;
    return status == LZMA_MEMLIMIT_ERROR  ? TOO_LARGE
           : status == LZMA_FORMAT_ERROR  ? "unexpected bytes follow a compressed part"
           : status == LZMA_MEM_ERROR     ? NO_MEMORY
           : status == LZMA_OPTIONS_ERROR ? "it has options that this liblzma does not support"
                                          : "a checksum or a length is wrong";
}
#endif

static const Format GZIP = {"gzip", gzip_begin, gzip_step, gzip_end, true},
                    ZSTD = {"zstd", zstd_begin, zstd_step, zstd_end, false},
#ifdef ISOTRON_BZIP2
                    BZIP2 = {"bzip2", bzip2_begin, bzip2_step, bzip2_end, true},
#else
                    BZIP2 = {.name = "bzip2"},
#endif
#ifdef ISOTRON_XZ
                    XZ = {"xz", xz_begin, xz_step, xz_end, true};
#else
                    XZ = {.name = "xz"};
#endif

/* ---- the stream ---- */

bool unpack_is_stdin(const char *path) { return !strcmp(path, "-"); }

/* Reads more of the file once the block is fully decoded. Sets *have to false at the end of the file. */
static Err more(Unpack *u, bool *have) {
    *have = u->at < u->size;
    if (*have) return ERR_OK;
    ssize_t n;
    do n = read(u->fd, u->block, BLOCK);
    while (n < 0 && errno == EINTR);
    if (n < 0) return err_infra("'%s' cannot be read to its end: %s", u->path, strerror(errno));
    u->at = 0, u->size = (size_t)n, *have = n > 0;
    u->bytes += n;
    return ERR_OK;
}

static Err failed(const Unpack *u, const char *why) {
    if (why == NO_MEMORY)
        return err_infra(
            "%s to unpack '%s', which is compressed with %s; free memory, or unpack the file first", why,
            u->path, u->format->name);
    if (why == TOO_LARGE)
        return err_user("'%s' is compressed with %s, but %s: unpack the file first", u->path, u->format->name,
                        why);
    return err_user("the %s-compressed data of '%s' are damaged: %s; compress the file again",
                    u->format->name, u->path, why);
}

/* Skips zeros between and after parts, because files on tapes and disks with fixed block sizes are padded with
 * zeros. */
static Err skip_padding(Unpack *u, bool *have) {
    do {
        ERR_RETURN(more(u, have));
        while (u->begun && u->format->padded && u->at < u->size && !u->block[u->at]) u->at++;
    } while (*have && u->at == u->size);
    return ERR_OK;
}

/* Decodes bytes from the file. A decoder can buffer output, so it is also called without input until it returns no more
 * output. */
static Err unpack(Unpack *u, void *out, size_t room, size_t *got) {
    for (bool have, ended = false;;) {
        ERR_RETURN(u->inside ? more(u, &have) : skip_padding(u, &have));
        if (!have && !u->inside) return *got = 0, ERR_OK;
        const char *why = u->inside || u->format->begin(u) ? NULL : NO_MEMORY;
        u->inside = u->begun = true;
        *got = room;
        if (!why) why = u->format->step(u, out, got, &ended);
        if (why) return failed(u, why);
        u->inside = !ended;
        if (*got) return ERR_OK;
        if (!have && u->inside) return failed(u, "the end is missing");
    }
}

Err unpack_read(Unpack *u, void *out, size_t n, size_t *got) {
    if (u->format) return unpack(u, out, n, got);
    bool have;
    ERR_RETURN(more(u, &have));
    *got = u->size - u->at < n ? u->size - u->at : n;
    memcpy(out, u->block + u->at, *got);
    u->at += *got;
    return ERR_OK;
}

static bool begins(const Unpack *u, const char *magic, size_t n) {
    return u->size >= n && !memcmp(u->block, magic, n);
}

/* Plain text may also begin with PAR1 or BZh, so the next bytes are tested, too. */
bool unpack_is_parquet(const Unpack *u) {
    return (begins(u, "PAR1", 4) || begins(u, "PARE", 4)) &&
           (u->size == 4 || u->block[4] < ' ' || u->block[4] > '~');
}

bool unpack_is_pipe(const Unpack *u) {
    struct stat st;
    return unpack_is_stdin(u->path) || fstat(u->fd, &st) || !S_ISREG(st.st_mode);
}

static const Format *format_of(const Unpack *u) {
    static const char FIRST[] = "\x31\x41\x59\x26\x53\x59",
                      /* magic numbers of a block and of the end of a stream */
        NONE[] = "\x17\x72\x45\x38\x50\x90";
    const unsigned char *b = u->block;
    const bool skippable = u->size >= 4 && b[0] >> 4 == 5 && !memcmp(b + 1, "\x2a\x4d\x18", 3);
    if (begins(u, "\x1f\x8b", 2)) return &GZIP;
    if (begins(u, "\x28\xb5\x2f\xfd", 4) || skippable) return &ZSTD;
    /* a truncated file may be shorter than the magic numbers */
    const size_t n = u->size < 6 ? 6 : u->size < MAGIC ? u->size - 4 : 6;
    if (begins(u, "BZh", 3) && b[3] >= '1' && b[3] <= '9' &&
        (!memcmp(b + 4, FIRST, n) || !memcmp(b + 4, NONE, n)))
        return &BZIP2;
    return begins(u, "\xfd\x37zXZ", 6) || begins(u, "\x5d\0\0", 3) || begins(u, "LZIP\1", 5) ? &XZ : NULL;
}

/* Detects the format from the first bytes. Stops reading at a newline: a line typed at a terminal may be shorter than a
 * magic number, and no magic number contains a newline. */
static Err choose(Unpack *u) {
    for (ssize_t n = 1; u->size < MAGIC && n > 0 && !memchr(u->block, '\n', u->size);) {
        do n = read(u->fd, u->block + u->size, BLOCK - u->size);
        while (n < 0 && errno == EINTR);
        if (n < 0) return err_infra("'%s' cannot be read: %s", u->path, strerror(errno));
        u->size += (size_t)n;
    }
    u->bytes = (int64_t)u->size;
    u->format = format_of(u);
    if (!u->format || u->format->begin) return ERR_OK;
    return err_user("'%s' is compressed with %s, which this build does not support; unpack the file, or "
                    "install %s and build again",
                    u->path, u->format->name, u->format == &XZ ? "liblzma" : "libbz2");
}

Err unpack_open(const char *path, Unpack **out) {
    if (file_is_dir(path)) return err_user("'%s' is a folder; specify the files in it", path);
    const int fd = unpack_is_stdin(path) ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_user("cannot open '%s': %s; check the path and its permissions", path, strerror(errno));
    Unpack *u = mem_zero(1, sizeof *u);
    u->path = path, u->fd = fd;
    const Err e = choose(u);
    if (e.code)
        unpack_close(u);
    else
        *out = u;
    return e;
}

int64_t unpack_bytes(const Unpack *u) { return u->bytes; }

void unpack_close(Unpack *u) {
    if (u->fd > STDIN_FILENO) close(u->fd);
    if (u->begun) u->format->end(u);
    free(u);
}
