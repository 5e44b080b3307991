#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { HEAD = 512 }; /* number of bytes that text_error examines */

size_t text_prefix(const char *s, size_t n, bool *cut) {
    const char *nul = memchr(s, 0, n);
    const size_t end = nul ? (size_t)(nul - s) : n, good = utf8_prefix(s, end, cut);
    *cut &= !nul;
    return good;
}

size_t text_mark(const char *s, size_t n) { return n >= 3 && !memcmp(s, "\xEF\xBB\xBF", 3) ? 3 : 0; }

/* Returns whether, in every group of `size` bytes, the byte at offset `at` is at most `most`. */
static bool is_at_most(const char *s, size_t n, size_t size, size_t at, unsigned char most) {
    for (size_t i = at; i < n; i += size)
        if ((unsigned char)s[i] > most) return false;
    return true;
}

/* Returns whether c is a control character that commonly occurs in text. */
static bool is_blank(unsigned c) { return c && c < ' ' && strchr("\t\n\v\f\r\x1b", (int)c); }

/* Returns whether the UTF-16 text contains no control characters and no unpaired surrogates. Sets *small to the number
 * of code units below U+0100. */
static bool is_utf16(const char *s, size_t n, bool big, size_t *small) {
    bool half = false;
    for (size_t i = *small = 0; i + 1 < n; i += 2) {
        const unsigned high = (unsigned char)s[i + !big], low = (unsigned char)s[i + big],
                       unit = high << 8 | low;
        const bool second = unit >> 10 == 0xDC00 >> 10;
        if (second != half || (unit < ' ' && !is_blank(unit))) return false;
        half = unit >> 10 == 0xD800 >> 10, *small += !high;
    }
    return true;
}

/* Returns whether the bytes are ASCII text with too few NULs (fewer than a quarter of the bytes) to be
 * UTF-16. */
static bool is_ascii(const char *s, size_t n) {
    size_t nuls = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c > '~' || (c && c < ' ' && !is_blank(c))) return false;
        nuls += !c;
    }
    return 4 * nuls < n;
}

/* Returns the name of a text's encoding if the encoding uses two or four bytes per character, or NULL if no
 * such encoding is recognized. Recognition relies on characters below U+0100, such as blanks, which almost
 * every text contains. */
static const char *wide_name(const char *s, size_t n) {
    const size_t even = n - n % 2, whole = n - n % 4;
    if (even < 2 || is_at_most(s, n, 1, 0, 0)) return NULL;
    if (n >= 4 && !memcmp(s, "\xFF\xFE\0\0", 4)) return "utf-32";
    if (!memcmp(s, "\xFF\xFE", 2) || !memcmp(s, "\xFE\xFF", 2)) return "utf-16";
    if (whole && is_at_most(s, whole, 4, 3, 0) && is_at_most(s, whole, 4, 2, 16)) return "utf-32le";
    if (whole && is_at_most(s, whole, 4, 0, 0) && is_at_most(s, whole, 4, 1, 16)) return "utf-32be";
    if (is_ascii(s, n)) return NULL;
    size_t little, big;
    const bool may_be_little = is_utf16(s, even, false, &little), may_be_big = is_utf16(s, even, true, &big);
    if (may_be_little && little && (!may_be_big || little > big)) return "utf-16le";
    return may_be_big && big ? "utf-16be" : NULL;
}

static const char *container(const char *s, size_t n) {
    static const struct {
        size_t at, n;
        const char *bytes, *name;
    } KINDS[] = {
        {0, 2, "\x1f\x8b", "gzip"},
        {0, 4, "\x28\xb5\x2f\xfd", "zstd"},
        {0, 4, "BZh9", "bzip2"},
        {0, 6, "\xfd\x37zXZ", "xz"},
        {0, 4, "PK\3\4", "a ZIP archive"},
        {0, 6, "7z\xbc\xaf\x27\x1c", "a 7z archive"},
        {0, 4, "\x04\x22\x4d\x18", "LZ4"},
        {0, 2, "\x1f\x9d", "Unix compress"},
        {0, 8, "\xff\x06\0\0sNaP", "framed Snappy"},
        {257, 5, "ustar", "a tar archive"},
        {0, 4, "PAR1", "Parquet"},
        {0, 6, "ARROW1", "Arrow (Feather)"},
        {0, 4, "Obj\1", "Avro"},
        {0, 5, "%PDF-", "PDF"},
    };
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (n >= KINDS[i].at + KINDS[i].n && !memcmp(s + KINDS[i].at, KINDS[i].bytes, KINDS[i].n))
            return KINDS[i].name;
    return NULL;
}

static bool is_binary(const char *s, size_t n) {
    size_t odd = 0;
    for (size_t i = 0; i < n; i++) odd += (unsigned char)s[i] < ' ' && !is_blank((unsigned char)s[i]);
    return memchr(s, 0, n) || odd > n / 10;
}

Err text_error(const char *where, TextFault f, const char *head, size_t n) {
    if (n > HEAD) n = HEAD;
    const char *inside = container(head, n), *wide = wide_name(head, n);
    Str what = {0};
    if (inside)
        str_printf(&what, "it is %s: unpack or convert it first", inside);
    else if (wide)
        str_printf(&what,
                   "it looks like %s: convert it to UTF-8, or set --input-encoding %s if the command has "
                   "this option",
                   wide, wide);
    else if (!f.byte || is_binary(head, n))
        str_puts(&what, f.byte ? "it looks like binary data: check the path"
                               : "text must not contain NUL: remove it, or convert the file");
    else
        str_printf(&what,
                   "%sconvert it to UTF-8, or set --input-encoding, for example to latin1 or cp1252, if the "
                   "command has this option",
                   f.cut ? "unless it is cut off inside a character, " : "");
    const Err e = err_user("%s, line %" PRId64 ": byte 0x%02x at offset %" PRId64 " is not UTF-8 text; %s",
                           where, f.line, f.byte, f.offset, what.s);
    str_free(&what);
    return e;
}

Err text_check(const char *where, const char *s, size_t n) {
    TextFault f = {.line = 1};
    const size_t good = text_prefix(s, n, &f.cut);
    if (good == n) return ERR_OK;
    for (const char *p = s; (p = memchr(p, '\n', good - (size_t)(p - s))); p++) f.line++;
    f.offset = (int64_t)good, f.byte = (unsigned char)s[good];
    return text_error(where, f, s, n);
}

Err text_check_pointer(const char *path, const char *s, size_t n) {
    static const char FIRST[] = "version https://git-lfs";
    if (n < sizeof FIRST || memcmp(s, FIRST, sizeof FIRST - 1)) return ERR_OK;
    return err_user(
        "'%s' is a Git LFS pointer, not the file itself: run 'git lfs pull' in its folder, or download it",
        path);
}

Err text_read(const char *path, Str *out) {
    ERR_RETURN(file_read(path, out));
    const size_t mark = text_mark(out->s, out->len);
    char *where = mem_printf("'%s'", path);
    const Err e = text_check(where, out->s, out->len);
    free(where);
    memmove(out->s, out->s + mark, out->len - mark + 1);
    out->len -= mark;
    return e;
}
