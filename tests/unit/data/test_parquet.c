/* Reads files that Apache Arrow wrote (tools/oracle/parquet_files.py), and small files with one error each,
 * which are created here. */
#include "fixture.h"

#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <lz4.h>
#include <snappy-c.h>
#include <stddef.h>
#include <zlib.h>
#include <zstd.h>

#include "data/input.h"
#include "data/parquet/codec.h"
#include "data/parquet/parquet.h"
#include "data/parquet/thrift.h"

static char folder[1024]; /* tests/data/parquet */

static const char *const NAMES[] = {"nulls",      "plain",    "lengths",     "deltas",
                                    "dictionary", "overflow", "null_lengths"};
enum { NAMES_COUNT = sizeof NAMES / sizeof *NAMES };

static void assert_rows(const char *path, int n) {
    char *expected = mem_printf("%s/rows.jsonl", folder), line[4096];
    FILE *f = fopen(expected, "r");
    Parquet *p;
    ParquetText row[NAMES_COUNT];
    bool more;
    assert_non_null(f);
    assert_ok(parquet_open(path, NAMES, n, &p));
    for (int64_t last = 0; fgets(line, sizeof line, f); last = parquet_bytes(p)) {
        json_t *object = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_ok(parquet_next(p, row, &more));
        assert_true(more && parquet_bytes(p) >= last && parquet_bytes(p) < file_size(path));
        for (int i = 0; i < n; i++) {
            const json_t *text = json_object_get(object, NAMES[i]);
            assert_int_equal(!row[i].bytes, !text);
            assert_int_equal(row[i].n, json_string_length(text));
            if (text) assert_memory_equal(row[i].bytes, json_string_value(text), row[i].n);
        }
        json_decref(object);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(parquet_next(p, row, &more));
        assert_false(more);
    }
    assert_int_equal(parquet_bytes(p), file_size(path));
    parquet_close(p);
    fclose(f), free(expected);
}

TEST(each_codec_encoding_and_page_version) {
    char *pattern = mem_printf("%s/*.parquet", folder);
    glob_t found;
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 13);
    for (size_t i = 0; i < found.gl_pathc; i++)
        assert_rows(found.gl_pathv[i], NAMES_COUNT), assert_rows(found.gl_pathv[i], 1);
    globfree(&found), free(pattern);
}

/* Returns the error from opening the file, or from its first bad row. */
static Err read_all(const char *path, const char *column) {
    Parquet *p;
    ParquetText text;
    ERR_RETURN(parquet_open(path, &column, 1, &p));
    Err e = ERR_OK;
    for (bool more = true; more && !e.code;) e = parquet_next(p, &text, &more);
    parquet_close(p);
    return e;
}

TEST(refused_columns_are_named) {
    char *path = mem_printf("%s/none-v1.parquet", folder);
    assert_err(read_all(path, "texts"), "no column 'texts'; its columns of strings are: 'plain', 'lengths', "
                                        "'deltas', 'dictionary', 'overflow', 'nulls', 'null_lengths'");
    assert_err(read_all(path, "element"), "no column 'element'");
    assert_err(read_all(path, "list"), "'list' of the Parquet file");
    assert_err(read_all(path, "list"), "is nested");
    assert_err(read_all(path, "number"), "has no strings");
    free(path);
}

TEST(damage_is_found) {
    char *path = mem_printf("%s/gzip-v1.parquet", folder);
    Str s = {0};
    assert_ok(file_read(path, &s));
    for (size_t n = 0; n < s.len; n += n < s.len - 40 ? 97 : 1) {
        assert_ok(file_write_atomic("torn", s.s, n));
        assert_err(read_all("torn", "plain"), "has no footer");
    }
    s.s[60] ^= 1;
    assert_ok(file_write_atomic("torn", s.s, s.len));
    assert_err(read_all("torn", "plain"), "the checksum of a page is wrong");
    s.s[60] ^= 1, s.s[s.len - 6] = 1;
    assert_ok(file_write_atomic("torn", s.s, s.len));
    assert_err(read_all("torn", "plain"), "its footer is longer than the file");
    s.s[s.len - 1] = 'E';
    assert_ok(file_write_atomic("torn", s.s, s.len));
    assert_err(read_all("torn", "plain"), "is encrypted");
    str_free(&s), free(path);
}

/* ---- files of one column "text" and two rows ---- */

enum { DICTIONARY = 2, V2 = 3 }; /* types of pages */

typedef struct Made {
    int64_t type, repetition, children, codec, group_rows, chunk_rows, begin, chunk_size;
    int64_t page_type, size, stored, page_rows, encoding, level_encoding, level_bytes, repetition_bytes;
    int64_t external, encrypted; /* flags */
} Made;

static void put(Str *s, int head, int64_t value) {
    uint64_t v = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    str_printf(s, "%c", head);
    for (; v > 127; v >>= 7) str_printf(s, "%c", (int)(v & 127) | 128);
    str_printf(s, "%c", (int)v);
}

static void put_bytes(Str *s, const char *bytes, size_t n) { str_add(s, bytes, n); }
#define PUT(s, text) put_bytes(s, text, sizeof text - 1)

/* Writes the fields in Thrift's compact protocol, where 0x15 is an i32 whose field number is the previous one
 * plus 1. */
static void put_page(Str *s, const Made *m) {
    put(s, 0x15, m->page_type), put(s, 0x15, m->size), put(s, 0x15, m->stored);
    put(s, m->page_type == DICTIONARY ? 0x4c : m->page_type == V2 ? 0x5c : 0x2c, 0);
    s->len--;
    put(s, 0x15, m->page_rows), put(s, m->page_type == V2 ? 0x35 : 0x15, m->encoding);
    if (m->page_type == V2) put(s, 0x15, m->level_bytes), put(s, 0x15, m->repetition_bytes);
    if (m->page_type < DICTIONARY) put(s, 0x15, m->level_encoding);
    PUT(s, "\0\0");
}

static void put_footer(Str *s, const Made *m) {
    put(s, 0x15, 1); /* version */
    PUT(s, "\x19\x2c\x48\x04root\x15\x02\0");
    if (m->type >= 0) put(s, 0x15, m->type), put(s, 0x25, m->repetition);
    if (m->type < 0) put(s, 0x35, m->repetition);
    PUT(s, "\x18\x04text");
    put(s, 0x15, m->children);
    PUT(s, "\0\x16\x04\x19\x1c\x19\x1c"); /* stop, rows, row groups, columns */
    if (m->external) PUT(s, "\x18\x01x");
    put(s, m->external ? 0x16 : 0x26, 0);
    PUT(s, "\x1c");
    put(s, 0x45, m->codec), put(s, 0x16, m->chunk_rows), put(s, 0x26, m->chunk_size), put(s, 0x26, m->begin);
    PUT(s, "\0");
    if (m->encrypted) PUT(s, "\x5c\0");
    PUT(s, "\0");
    put(s, 0x26, m->group_rows);
    PUT(s, "\0\0");
}

static Made made(size_t body) {
    return (Made){.type = 6,
                  .group_rows = 2,
                  .chunk_rows = 2,
                  .begin = 4,
                  .chunk_size = -1, /* set by the case */
                  .size = (int64_t)body,
                  .stored = (int64_t)body,
                  .page_rows = 2,
                  .level_encoding = 3};
}

static void write_made(Made m, const char *body, size_t n) {
    Str s = {0};
    PUT(&s, "PAR1");
    put_page(&s, &m);
    put_bytes(&s, body, n);
    if (m.chunk_size < 0) m.chunk_size = (int64_t)s.len - 4;
    const size_t begin = s.len;
    put_footer(&s, &m);
    const uint32_t length = (uint32_t)(s.len - begin);
    str_add(&s, &length, 4);
    PUT(&s, "PAR1");
    assert_ok(file_write_atomic("made", s.s, s.len));
    str_free(&s);
}

static const char BODY[] = "\x02\0\0\0hi\x01\0\0\0\xff";
enum { BODY_SIZE = sizeof BODY - 1 };

TEST(each_field_is_checked) {
    static const struct {
        size_t field;
        int64_t value;
        const char *says;
    } CASES[] = {
        {offsetof(Made, type), 1, "has no strings"},
        {offsetof(Made, type), 7, "has no strings"},
        {offsetof(Made, type), -1, "is nested"},
        {offsetof(Made, repetition), 2, "is nested or repeated"},
        {offsetof(Made, children), 5, "footer of the Parquet file 'made' is damaged"},
        {offsetof(Made, children), -1, "footer of the Parquet file 'made' is damaged"},
        {offsetof(Made, external), 1, "is stored in another file"},
        {offsetof(Made, encrypted), 1, "is encrypted"},
        {offsetof(Made, codec), 3, "is compressed by LZO"},
        {offsetof(Made, codec), 5, "LZ4 in Hadoop's framing"},
        {offsetof(Made, codec), 8, "is compressed by an unknown codec"},
        {offsetof(Made, codec), -1, "is compressed by an unknown codec"},
        {offsetof(Made, group_rows), 3, "is damaged"},
        {offsetof(Made, group_rows), -2, "is damaged"},
        {offsetof(Made, group_rows), 0, "is damaged"},
        {offsetof(Made, chunk_rows), INT64_MAX, "is damaged"},
        {offsetof(Made, begin), 3, "is damaged"},
        {offsetof(Made, begin), INT64_MAX, "is damaged"},
        {offsetof(Made, chunk_size), INT64_MAX, "is damaged"},
        {offsetof(Made, chunk_size), 60, "is damaged"},
        {offsetof(Made, chunk_size), 20, "a page header is damaged, or longer than the column"},
        {offsetof(Made, stored), 12, "a page header is damaged, or longer than the column"},
        {offsetof(Made, stored), -1, "a page header is damaged, or longer than the column"},
        {offsetof(Made, size), -1, "a page header is damaged, or longer than the column"},
        {offsetof(Made, size), 10, "longer or shorter than its header says"},
        {offsetof(Made, page_type), 1, "pages are missing"},
        {offsetof(Made, page_rows), 1, "pages are missing"},
        {offsetof(Made, page_rows), 3, "more rows than its row group"},
        {offsetof(Made, page_rows), -1, "more rows than its row group"},
        {offsetof(Made, encoding), 5, "an encoding that is invalid for strings"},
        {offsetof(Made, encoding), 6, "a page's string lengths"},
        {offsetof(Made, encoding), 8, "its dictionary is missing"},
        {offsetof(Made, repetition), 1, "a page's definition levels are damaged"},
        {offsetof(Made, codec), 1, "a page's compressed data are damaged"},
        {offsetof(Made, codec), 2, "a page's compressed data are damaged"},
        {offsetof(Made, codec), 4, "a page's compressed data are damaged"},
        {offsetof(Made, codec), 6, "a page's compressed data are damaged"},
        {offsetof(Made, codec), 7, "a page's compressed data are damaged"},
    };
    write_made(made(BODY_SIZE), BODY, BODY_SIZE);
    assert_ok(read_all("made", "text"));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Made m = made(BODY_SIZE);
        *(int64_t *)((char *)&m + CASES[i].field) = CASES[i].value;
        write_made(m, BODY, BODY_SIZE);
        assert_err(read_all("made", "text"), CASES[i].says);
    }
    Made m = made(BODY_SIZE);
    m.repetition = 1, m.level_encoding = 4;
    write_made(m, BODY, BODY_SIZE);
    assert_err(read_all("made", "text"), "the old encoding BIT_PACKED");
    m = made(BODY_SIZE), m.group_rows = m.chunk_rows = -2;
    write_made(m, BODY, BODY_SIZE);
    assert_err(read_all("made", "text"), "is damaged");
    m = made(BODY_SIZE), m.codec = 6;
    for (m.size = 64 << 20 | 1; m.size < INT64_C(1) << 40; m.size <<= 10) {
        write_made(m, BODY, BODY_SIZE);
        assert_err(read_all("made", "text"), "a page exceeds 1 GiB");
    }
}

TEST(thrift_is_bounded) {
    enum { DEEP = 1 << 20 };
    static const unsigned char LIST[] = {0xfc, 0x05, 0,
                                         0,    0,    0}; /* a list of 5 structs, in the 4 bytes that follow */
    Bytes b = {LIST, LIST + sizeof LIST, false};
    assert_int_equal(thrift_structs(&b, (ThriftField){.type = THRIFT_LIST}), 0);
    assert_true(b.bad);
    b = (Bytes){LIST, LIST + sizeof LIST, false};
    assert_int_equal(thrift_int(&b, (ThriftField){.type = THRIFT_BINARY}), 0);
    assert_true(b.bad && b.at == b.end);

    Str s = {0}; /* a footer with nested lists in an unknown field */
    PUT(&s, "PAR1\xf9");
    for (int i = 0; i < DEEP; i++) PUT(&s, "\x19");
    const uint32_t length = DEEP + 1;
    str_add(&s, &length, sizeof length);
    PUT(&s, "PAR1");
    assert_ok(file_write_atomic("made", s.s, s.len));
    assert_err(read_all("made", "text"), "the footer of the Parquet file 'made' is damaged");
    str_free(&s);
}

/* The stated size must equal the size of the decompressed data. */
TEST(sizes_of_codecs_are_exact) {
    static const unsigned char BROTLI[] = {0x8b, 0x00, 0x80, 'h', 'i', 0x03};
    unsigned char packed[5][200], out[8];
    size_t n[5] = {200, 0, sizeof BROTLI};
    z_stream z = {.next_out = packed[1], .avail_out = 200};
    assert_int_equal(snappy_compress("hi", 2, (char *)packed[0], &n[0]), SNAPPY_OK);
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, MAX_WBITS + 16, 1, Z_DEFAULT_STRATEGY), Z_OK);
    for (int i = 0; i < 2; i++, deflateReset(&z)) { /* each round writes one gzip member */
        unsigned char *at = packed[1] + n[1];
        z.next_out = at, z.avail_out = 100, z.next_in = (unsigned char *)&"hi"[i], z.avail_in = 1;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        n[1] += (size_t)(z.next_out - at);
    }
    deflateEnd(&z);
    memcpy(packed[2], BROTLI, sizeof BROTLI);
    n[3] = ZSTD_compress(packed[3], 200, "hi", 2, 1);
    n[4] = (size_t)LZ4_compress_default("hi", (char *)packed[4], 2, 200);
    static const int CODECS[] = {1, 2, 4, 6, 7};
    for (int i = 0; i < 5; i++) {
        assert_true(parquet_decompress(CODECS[i], packed[i], n[i], out, 2));
        assert_memory_equal(out, "hi", 2);
        assert_false(parquet_decompress(CODECS[i], packed[i], n[i], out, 1));
        assert_false(parquet_decompress(CODECS[i], packed[i], n[i], out, 3));
        assert_false(parquet_decompress(CODECS[i], packed[i], n[i] - 1, out, 2));
    }
}

TEST(each_encoding_is_checked) {
#define ZEROS "\0\0\0\0\0\0\0\0\0\0\0\0"
    /* Delta encoding begins with these bytes: blocks have 8 values in one miniblock; there are 2 values, the first is
     * 0. Then come the smallest delta and the bit width. */
    static const struct {
        int64_t encoding, repetition;
        const char *body;
        size_t n;
        const char *says; /* expected error, or NULL if it can be read */
    } CASES[] = {
#define CASE(encoding, repetition, body, says) {encoding, repetition, body, sizeof body - 1, says}
        CASE(6, 0, "\x08\x01\x02\0\x02\0x", NULL),
        CASE(6, 0, "\x08\x01\x02\0\x04\0x", "fewer strings"),                              /* 2 bytes */
        CASE(6, 0, "\x08\x01\x02\0\x01\0x", "fewer strings"),                              /* -1 bytes */
        CASE(6, 0, "\x08\x01\x01\0x", "fewer strings"),                                    /* 1 value */
        CASE(6, 0, "\x08\x01\x02\0\x02\x21" ZEROS ZEROS ZEROS, "a page's string lengths"), /* 33 bits */
        CASE(6, 1, "\x02\0\0\0\x04\0", NULL),                           /* two nulls, and no lengths */
        CASE(6, 0, "\x08\0\x02\0\x02\0x", "a page's string lengths"),   /* no miniblock */
        CASE(6, 0, "\0\x01\x02\0\x02\0x", "a page's string lengths"),   /* empty blocks */
        CASE(6, 0, "\x0c\x01\x02\0\x02\0x", "a page's string lengths"), /* 12 values */
        CASE(6, 0, "\x08\x01\xff\xff\xff\xff\x7f\0\x02\0x", "a page's string"), /* too many */
        CASE(7, 0, "\x08\x01\x02\0\x02\0\x08\x01\x02\x02\0\0xy", NULL),         /* x, xy */
        CASE(7, 0, "\x08\x01\x02\0\x04\0\x08\x01\x02\x02\0\0xy",
             "fewer strings"), /* two strings, one character */
        CASE(7, 0, "\x08\x01\x02\x02\x02\0\x08\x01\x02\x02\0\0xy",
             "fewer strings"),                /* a prefix of an empty string */
        CASE(0, 1, "\x02\0\0\0\x04\0", NULL), /* a run of two nulls */
        CASE(0, 1, "\x02\0\0\0\x03\0", NULL), /* eight packed levels */
        CASE(0, 1, "\x02\0\0\0\x04\x02", "a page's definition levels are damaged"), /* level 2 */
        CASE(0, 1, "\x02\0\0\0\x02\0", "a page's definition levels are damaged"),   /* one */
        CASE(0, 1, "\x03\0\0\0\x04\0", "a page's definition levels are longer"),
        CASE(0, 1, "\x02\0\0\0\x04\x01\x01\0\0\0x", "fewer strings"), /* only one of two strings */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Made m = made(CASES[i].n);
        m.encoding = CASES[i].encoding, m.repetition = CASES[i].repetition;
        write_made(m, CASES[i].body, CASES[i].n);
        if (CASES[i].says)
            assert_err(read_all("made", "text"), CASES[i].says);
        else
            assert_ok(read_all("made", "text"));
    }
}

static void write_page(int64_t type, int64_t encoding, int64_t rows, const char *body, size_t n) {
    Made m = made(n);
    m.page_type = type, m.encoding = encoding, m.page_rows = rows;
    write_made(m, body, n);
}

TEST(dictionaries_are_checked) {
    static const char ONE[] = "\x01\0\0\0x", LONG[] = "\x02\0\0\0x";
    write_page(DICTIONARY, 0, 2, ONE, sizeof ONE - 1);
    assert_err(read_all("made", "text"), "its dictionary is too short for its number of strings");
    write_page(DICTIONARY, 0, -1, ONE, sizeof ONE - 1);
    assert_err(read_all("made", "text"), "its dictionary is too short for its number of strings");
    write_page(DICTIONARY, 0, 1, LONG, sizeof LONG - 1);
    assert_err(read_all("made", "text"), "a string of its dictionary is longer");
    write_page(DICTIONARY, 8, 1, ONE, sizeof ONE - 1);
    assert_err(read_all("made", "text"), "its dictionary has an unknown encoding");
    /* The next page is of type 2, or of type 0 with an index width and runs. Its size is zigzag-encoded: \x06
     * is 3 bytes. */
#define DATA(size, bytes)                                                                                    \
    "\x01\0\0\0x\x15\0\x15" size "\x15" size "\x2c\x15\x04\x15\x10\x15\x06\x15\x06\0\0" bytes
    static const struct {
        int64_t repetition;
        const char *body;
        size_t n;
        const char *says;
    } CASES[] = {
#define ROW(repetition, body, says) {repetition, body, sizeof body - 1, says}
        ROW(0, "\x01\0\0\0x\x15\x04\x15\0\x15\0\x4c\x15\0\x15\0\0\0", "it has two dictionaries"),
        ROW(0, DATA("\x06", "\x01\x04\0"), NULL),
        ROW(0, DATA("\x06", "\x01\x04\x01"), "fewer strings than rows"), /* there is no string 1 */
        ROW(0, DATA("\x06", "\x01\x02\0"), "fewer strings than rows"),   /* a run of only one row */
        ROW(0, DATA("\x06", "\x21\x04\0"), "more than 32 bits"),
        /* Bit-packed runs of 8 values (with 4 bits, and with 8 bits but only one byte) and of 2^62 values. The page is
         * followed by zeros. */
        ROW(0, DATA("\x06", "\x04\x03\0"), NULL),
        ROW(0, DATA("\x06", "\x08\x03\0\0\0"), "fewer strings than rows"),
        ROW(0, DATA("\x14", "\x20\x81\x80\x80\x80\x80\x80\x80\x80\x10\0\0\0\0\0\0\0\0"),
            "fewer strings than rows"),
        /* Two nulls and no indices. The bytes after the page must not be read as a bit width. */
        ROW(1, DATA("\x0c", "\x02\0\0\0\x04\0\x7f"), NULL),
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Made m = made(sizeof ONE - 1);
        m.page_type = DICTIONARY, m.page_rows = 1, m.repetition = CASES[i].repetition;
        write_made(m, CASES[i].body, CASES[i].n);
        if (CASES[i].says)
            assert_err(read_all("made", "text"), CASES[i].says);
        else
            assert_ok(read_all("made", "text"));
    }
}

/* Old versions of parquet-mr write prefixes of strings in the previous page (PARQUET-246). */
TEST(a_prefix_may_refer_to_the_page_before) {
    /* A page of 1 value: a prefix of 0, 2 bytes, xy. Then the header and a page with a prefix of 1, 1 byte, z. */
    static const char PAGE[] = "\x08\x01\x01\0\x08\x01\x01\x04xy",
                      PAGES[] =
                          "\x08\x01\x01\0\x08\x01\x01\x04xy\x15\0\x15\x12\x15\x12\x2c\x15\x02\x15\x0e\x15"
                          "\x06\x15\x06\0\0\x08\x01\x01\x02\x08\x01\x01\x02z";
    static const char *const COLUMN[] = {"text"}, *const WANT[] = {"xy", "xz"};
    Made m = made(sizeof PAGE - 1);
    Parquet *p;
    m.encoding = 7, m.page_rows = 1;
    write_made(m, PAGES, sizeof PAGES - 1);
    assert_ok(parquet_open("made", COLUMN, 1, &p));
    for (int i = 0; i < 2; i++) {
        ParquetText text;
        bool more;
        assert_ok(parquet_next(p, &text, &more));
        assert_true(more && text.n == 2);
        assert_memory_equal(text.bytes, WANT[i], 2);
    }
    parquet_close(p);
}

TEST(levels_of_version_2_are_checked) {
    static const char PAGE[] = "\x04\x01\x01\0\0\0x\0\0\0\0"; /* a run of two levels, then two strings */
    for (int64_t bytes = -1; bytes <= 100; bytes++) {
        Made m = made(sizeof PAGE - 1);
        m.page_type = V2, m.repetition = 1, m.level_bytes = bytes;
        write_made(m, PAGE, sizeof PAGE - 1);
        const Err e = read_all("made", "text");
        if (bytes == 2) assert_ok(e);
        if (bytes < 0 || bytes >= (int64_t)sizeof PAGE)
            assert_err(e, "a page's definition levels are longer");
        m.level_bytes = 2, m.repetition_bytes = bytes;
        write_made(m, PAGE, sizeof PAGE - 1);
        if (bytes < 0 || bytes > (int64_t)sizeof PAGE - 3)
            assert_err(read_all("made", "text"), "a page's definition levels are longer");
    }
}

static Err open_input(const char *path, int n, Input **in) {
    static const char *const KEY[] = {"text"};
    return input_open(path, (InputOptions){.columns = KEY, .num_columns = n}, in);
}

/* Appends the lines of the file to `out`, and returns the error that ends them. */
static Err lines_of(const char *path, Str *out) {
    Input *in;
    bool more;
    str_clear(out), str_puts(out, "");
    ERR_RETURN(open_input(path, 1, &in));
    Err e;
    while (!(e = input_line(in, false, out, &more)).code && more) str_puts(out, "\n");
    if (!e.code) assert_int_equal(input_bytes(in), file_size(path));
    input_close(in);
    return e;
}

TEST(rows_become_json_lines) {
    static const char PAIR[] = "\x02\0\0\0h\n\x02\0\0\0\"\\", NULLS[] = "\x02\0\0\0\x04\0";
    Str text = {0};
    Input *in;
    write_made(made(sizeof PAIR - 1), PAIR, sizeof PAIR - 1);
    assert_ok(lines_of("made", &text));
    assert_string_equal(text.s, "{\"text\": \"h\\u000a\"}\n{\"text\": \"\\u0022\\u005c\"}\n");

    Made m = made(sizeof NULLS - 1);
    m.repetition = 1;
    write_made(m, NULLS, sizeof NULLS - 1);
    assert_ok(lines_of("made", &text));
    assert_string_equal(text.s, "{}\n{}\n");

    write_made(made(BODY_SIZE), BODY, BODY_SIZE);
    assert_err(lines_of("made", &text), "row 2 of 'made': the string in column 'text' contains byte 0x");
    str_free(&text);

    assert_err(open_input("made", 0, &in), "set --input-format jsonl");
    const int old = dup(STDIN_FILENO), file = open("made", O_RDONLY);
    assert_int_equal(dup2(file, STDIN_FILENO), STDIN_FILENO);
    assert_err(open_input("-", 1, &in), "cannot be read from a pipe");
    if (old >= 0) dup2(old, STDIN_FILENO), close(old);
    close(file);
}

int main(void) {
    if (!realpath("tests/data/parquet", folder)) return 1;
    return run_all_tests(enter_folder, leave_folder);
}
